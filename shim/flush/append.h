// SPDX-License-Identifier: Apache-2.0
/*
 * append: flushes staged O_APPEND writes of a file to which other processes may append, too.
 */
#ifndef FASTWRITE_FLUSH_APPEND_H
#define FASTWRITE_FLUSH_APPEND_H

#include "files/file.h"

/*
 * Appends everything staged with the kernel's own O_APPEND, in calls that contain only whole writes of the
 * program.  Seals the current block first and keeps the file lock throughout.  Afterwards ksize and lsize are
 * the kernel's.  0 or -errno.
 */
int append_shared(struct file *f);

/* Records in the file entry that an append of the next `bytes` staged bytes begins at file size `base`.
 * append_end removes the record. */
void append_begin(struct file *f, enum append_flush how, uint64_t base, uint64_t bytes);
void append_end(struct file *f);

#endif
