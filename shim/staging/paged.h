// SPDX-License-Identifier: Apache-2.0
/*
 * paged: accepts the program's bytes in the overlay of pages of an arena, and shows them (pages/overlay.h).
 *
 * A file is *paged* (file_is_paged) from the first byte that the overlay takes until all of it is in the file
 * (flush/flush.h).  Then it has no blocks.  Its positions are POS_USER or POS_KERNEL.
 *
 * Only for rules with config_orders: nobody else reads or writes the file, so reads and syncs need no
 * drain.
 *
 * All functions: file lock held, signals blocked.
 */
#ifndef FASTWRITE_STAGING_PAGED_H
#define FASTWRITE_STAGING_PAGED_H

#include "files/file.h"

#include <sys/uio.h>

/* True if the next write of an attached file goes to the overlay.  Where only a part of a page is written the
 * rest is read from the file, so a descriptor for reading is needed, or its end has to be known
 * (staging/tail.h). */
bool paged_suits(const struct file *f);
/* The same before f, `size` bytes long, is attached to `a`. */
bool paged_fits(const struct file *f, const struct arena *a, uint64_t size);

/* Accepts n >= 1 bytes for file offset `offset`.  `stream`: the description whose position moves along, or
 * NULL.  0; else nothing has changed: -EAGAIN: the overlay is full; other -errno: the rest of a page cannot
 * be read, or the entry is used up. */
int paged_put(struct file *f, struct ofd *stream, const struct iovec *iov, int count, size_t n,
              uint64_t offset);

/* f suits.  Makes it shorter, also than the file itself: the cut must not reach the kernel before what was
 * written earlier.  0; -EINVAL: the kernel has to do it, or to refuse it; or as
 * paged_put. */
int paged_truncate(struct file *f, uint64_t size);

/* f is paged.  Reads as preadv does; the buffers can be written. */
ssize_t paged_readv(struct file *f, const struct iovec *iov, int count, uint64_t offset);

#endif
