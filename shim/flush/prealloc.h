// SPDX-License-Identifier: Apache-2.0
/*
 * prealloc: space for staged bytes is reserved in the target before they are accepted, so that ENOSPC and
 * EDQUOT come from the write that causes them.
 */
#ifndef FASTWRITE_FLUSH_PREALLOC_H
#define FASTWRITE_FLUSH_PREALLOC_H

#include "files/file.h"

struct statfs;

/* For f->space.block: the unit in which the file system gives out space, at most ARENA_PAGE. */
uint32_t prealloc_block(const struct statfs *st);

/* Reserves [offset, offset + need), and if that is cheap up to `want` bytes.  *granted (>= need) is the
 * number reserved.  fd: a writable descriptor.  -ENOSPC, -EDQUOT, -EFBIG: the kernel must decide;
 * -EOPNOTSUPP: this file system cannot reserve. */
int prealloc_reserve(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t want,
                     uint64_t *granted);

/* Nothing is staged.  Gives back the reservation beyond the end of the file, unless another process has it
 * open. */
void prealloc_trim(struct file *f, int fd);

/* The same before a vfork, after gate_child_begin.  The child may share the description with its parent.  A
 * lease does not show that, so once the child runs nothing can be given back. */
void prealloc_before_vfork(struct file *f);

/*
 * The program is about to write at `offset`.  True if what is reserved behind the end of the file would lie
 * in the hole before that write, for good.  Then drain the file and call prealloc_leave.  False also if an
 * earlier try has failed: another process has the file open.
 */
bool prealloc_strands(struct file *f, uint64_t offset);
/* Nothing is staged, no flusher is at work, and no lease is held.  Gives that space back if possible. */
void prealloc_leave(struct file *f);

/* A descriptor of f if it has space that prealloc_rest could give back, or -1. */
int prealloc_rests(struct file *f);
/* prealloc_trim in a worker thread, for a file that stays attached and was not written for a while.  If it
 * fails it is tried again later. */
void prealloc_rest(struct file *f);

/* Other processes had the file open, and no longer have.  They may have cut off the reservation: renews or
 * forgets it. */
void prealloc_again(struct file *f, int fd);

#endif
