// SPDX-License-Identifier: Apache-2.0
/*
 * prealloc: space for staged bytes is reserved in the target before they are accepted, so that ENOSPC and
 * EDQUOT come from the write that causes them.
 */
#ifndef FASTWRITE_PREALLOC_H
#define FASTWRITE_PREALLOC_H

#include "file.h"

/* Reserves [offset, offset + need) and, when it is cheap, up to `want` bytes; *granted (>= need) says how
 * many.  fd: a writable descriptor.  -ENOSPC, -EDQUOT, -EFBIG: the kernel must decide; -EOPNOTSUPP: this file
 * system cannot reserve. */
int prealloc_reserve(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t want,
                     uint64_t *granted);

/* Gives back what was reserved beyond the end of the file, if nobody else has it open.  Nothing is staged. */
void prealloc_trim(struct file *f, int fd);

/* After others had the file open, and now nobody else can: what was reserved behind its end may have been cut off. */
void prealloc_again(struct file *f, int fd);

#endif
