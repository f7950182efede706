// SPDX-License-Identifier: Apache-2.0
/*
 * guard: records the size and mtime of a staged file after each change that the library makes
 * (format/guard_format.h).
 *
 * The guard is taken when the first bytes are staged, and after each flush that leaves staged bytes.
 *
 * Called by: io, flush, prealloc, sync.  File lock or flush token held.
 */
#ifndef FASTWRITE_STAGING_GUARD_H
#define FASTWRITE_STAGING_GUARD_H

#include "files/file.h"
#include "format/guard_format.h"

/* Takes the guard again; fd: any descriptor of f.  False: the kernel does not tell size and time, and the
 * guard stays as it is. */
bool guard_take(struct file *f, int fd);

/* The same before the first bytes are staged.  While a flush is under way the guard still announces its
 * change: the flush takes the guard again when it ends.  False: the file is not f->ksize bytes long, because
 * another program has changed it. */
bool guard_begin(struct file *f, int fd);

/* The library is about to change the file in the kernel. */
void guard_change(struct file *f);

/* A flush writes below the end that the file had before. */
void guard_overwrote(struct file *f);

/*
 * Called before a sync of f returns.  The kernel decides which mtime an fdatasync makes durable.  So after a
 * power loss the guard cannot tell whether the file has newer bytes than the staged ones.  Before the first
 * sync after an overwrite this is recorded durably in the file entry.  0 or -errno.
 */
int guard_synced(struct file *f);

#endif
