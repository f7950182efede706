// SPDX-License-Identifier: Apache-2.0
/*
 * guard: what a staged file was like after the library's own last change of it (struct arena_guard).
 *
 * Recovery replays bytes at a position only onto a file that nobody else has changed since.  The guard is taken when
 * the first bytes are staged, and after each flush that leaves more of them staged.  Around each change of the
 * library's own stands a time stamp, so that a kill between the change and the new guard is not taken for somebody
 * else's change.
 *
 * Called by: io, flush, prealloc, sync (live side); guard_holds by recover.  File lock held, or the flush token.
 */
#ifndef FASTWRITE_GUARD_H
#define FASTWRITE_GUARD_H

#include "files/file.h"

#include <sys/stat.h>

/* What st says of size and time; the stamps stay. */
void guard_fill(struct arena_guard *g, const struct statx *st);

/* Takes the guard anew; fd: any descriptor of f. */
void guard_take(struct file *f, int fd);

/* The same when the first bytes are about to be staged.  Whoever is writing zeros ahead takes it again when that is
 * done. */
void guard_begin(struct file *f, int fd);

/* A change of the library's own is about to reach the kernel. */
void guard_stamp(struct arena_guard *g);
void guard_change(struct file *f);

/* A flush wrote below the end that the file had. */
void guard_overwrote(struct file *f);

/*
 * A sync of f is about to be answered.  Which time of change reaches the disk with fdatasync is up to the kernel; so
 * after a power loss nobody could tell staged bytes from older ones than were synced.  The slot says so, durably, before
 * the first sync after an overwrite.  0 or -errno.
 */
int guard_synced(struct file *f);

/* True when the file with this state has not been changed by anybody else. */
bool guard_holds(const struct arena_guard *g, const struct statx *st);

#endif
