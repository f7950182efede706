// SPDX-License-Identifier: Apache-2.0
/*
 * tail: the end of files in an overlay that this process cannot read.
 *
 * The overlay writes whole pages.  An append that begins in the middle of a page needs what stands before it,
 * which is read from the file.  But a program may open its log only for writing, and lock it: then the
 * library must not open it, because the close of any descriptor drops the program's locks.  So the end of
 * what was written is kept here from one overlay of the file to the next one.
 *
 * What is kept counts for one write only, the one that begins the next overlay.  Afterwards a page of the
 * overlay has it, or it is lost.  A change of this process that goes past the overlay ends it (tail_forget),
 * and one of another process by its open, as long as the file has its lease, or by size and times
 * (tail_check; on kernels before 6.13 these tell nothing within a tick of the clock, and the rule's promise
 * has to do).
 *
 * Only for sync = ordered: there the process is alone.  All functions: file lock held.
 */
#ifndef FASTWRITE_STAGING_TAIL_H
#define FASTWRITE_STAGING_TAIL_H

#include "files/file.h"

#include <sys/stat.h>

/* A file of this size: an append needs nothing of it but what is kept. */
bool tail_reaches(const struct file *f, uint64_t end);
/* Reads n bytes at `offset`: 0, or -EBADF if they are not kept. */
int tail_read(const struct file *f, void *to, size_t n, uint64_t offset);

/* This process cannot read f, all of it is in the file, and the overlay is about to be detached: keeps the
 * end. */
void tail_keep(struct file *f);
/* Behind that, when the times of f are set: what tail_check compares. */
void tail_stamp(const struct file *f);
/* Forgets it if f has changed.  `st`: STATX_SIZE, STATX_MTIME, STATX_CTIME. */
void tail_check(const struct file *f, const struct statx *st);
void tail_forget(const struct file *f);

#endif
