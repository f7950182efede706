// SPDX-License-Identifier: Apache-2.0
/*
 * guard: notes the size and time of a staged file after each change that the library makes
 * (format/guard_format.h).
 *
 * The guard is taken when the first bytes are staged, and after each flush that leaves more bytes staged.
 *
 * Called by: io, flush, prealloc, sync.  File lock or flush token held.
 */
#ifndef FASTWRITE_GUARD_H
#define FASTWRITE_GUARD_H

#include "files/file.h"
#include "format/guard_format.h"

/* Takes the guard anew; fd: any descriptor of f. */
void guard_take(struct file *f, int fd);

/* The same when the first bytes are about to be staged.  Whoever is writing zeros ahead takes it again when
 * that is done. */
void guard_begin(struct file *f, int fd);

/* A change of the library's own is about to reach the kernel. */
void guard_change(struct file *f);

/* A flush wrote below the end that the file had. */
void guard_overwrote(struct file *f);

/*
 * A sync of f is about to be answered.  Which time of change reaches the disk with fdatasync is up to the
 * kernel; so after a power loss nobody could tell staged bytes from older ones than were synced.  The slot
 * says so, durably, before the first sync after an overwrite.  0 or -errno.
 */
int guard_synced(struct file *f);

#endif
