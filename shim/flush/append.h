// SPDX-License-Identifier: Apache-2.0
/*
 * append: flushing staged O_APPEND writes of a file that others may append to as well.
 */
#ifndef FASTWRITE_APPEND_H
#define FASTWRITE_APPEND_H

#include "files/file.h"

/*
 * Level 2: appends everything staged with the kernel's own O_APPEND, in calls that hold whole program writes
 * only.  The current block is sealed first; the file lock is held throughout.  Afterwards ksize and lsize are
 * what the kernel says.  0 or -errno.
 */
int append_shared(struct file *f);

/* Remembers in the slot that an append of the next `bytes` staged bytes begins at file size `base`;
 * append_end forgets. */
void append_begin(struct file *f, enum append_flush how, uint64_t base, uint64_t bytes);
void append_end(struct file *f);

#endif
