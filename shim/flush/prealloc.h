// SPDX-License-Identifier: Apache-2.0
/*
 * prealloc: space for staged bytes is reserved in the target before they are accepted, so that ENOSPC and
 * EDQUOT come from the write that causes them.
 */
#ifndef FASTWRITE_PREALLOC_H
#define FASTWRITE_PREALLOC_H

#include "files/file.h"

/* Reserves [offset, offset + need) and, when it is cheap, up to `want` bytes; *granted (>= need) says how
 * many.  fd: a writable descriptor.  -ENOSPC, -EDQUOT, -EFBIG: the kernel must decide; -EOPNOTSUPP: this file
 * system cannot reserve. */
int prealloc_reserve(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t want,
                     uint64_t *granted);

/* Gives back what was reserved beyond the end of the file, if nobody else has it open.  Nothing is staged. */
void prealloc_trim(struct file *f, int fd);

/* The same of a file that stays attached, in the engine: it has not been written for a while.  What cannot be given back
 * now is at the next time. */
void prealloc_rest(struct file *f);

/* After others had the file open, and now nobody else can: what was reserved behind its end may have been cut off. */
void prealloc_again(struct file *f, int fd);

/*
 * prealloc_mode = zero.  An fdatasync after an append has the file system commit its journal, for the size and the
 * blocks that are new; over zeros that were written before it has not.  So the engine writes zeros ahead of the end of
 * a file that is synced often, and the kernel's size is theirs (zero_end) until somebody looks at it: flush_settle cuts
 * them off.  Only with writers = exclusive, since whoever else appended would do so behind them, and only while the file
 * belongs to this process alone.
 */

/* After a sync: do so few zeros stand ahead that more are to be written? */
bool prealloc_zeros_wanted(struct file *f);
/* The next stretch of zeros, with room reserved for it and noted for recovery.  False: none, at least now. */
bool prealloc_zeros_next(struct file *f, uint64_t *from, uint64_t *to);
/* Without the lock: writes them and has them on the device.  0 or -errno. */
int prealloc_zeros_write(int fd, uint64_t from, uint64_t to);
/* They stand. */
void prealloc_zeros_done(struct file *f, uint64_t from, uint64_t to);
/* Some of them are used up, and more are asked for: next time further ahead. */
void prealloc_zeros_used(struct file *f);
/* Cuts them off.  Nothing is staged, nobody flushes. */
void prealloc_zeros_cut(struct file *f);

#endif
