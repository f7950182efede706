// SPDX-License-Identifier: Apache-2.0
/*
 * fd: descriptors come and go.  Return values as in io.h.
 */
#ifndef FASTWRITE_FD_H
#define FASTWRITE_FD_H

#include "fdtable.h"

#include <limits.h>
#include <time.h>

#define FD_PASS LONG_MIN

/* What must be known before the kernel opens a file. */
struct fd_open {
	int flags;
	bool watch;             /* fd_opened has something to do */
	struct timespec before; /* coarse clock: a file born later was made by this open */
	bool lazy;              /* nothing is staged near it: it is enough to note the descriptor */
	bool late;              /* fd_resolve: the program may have written since */
};

/* Before an open: O_TRUNC of a file with staged bytes settles it first.  False in `watch` when the open cannot
 * matter to us. */
void fd_open_prepare(struct fd_open *op, int dirfd, const char *path, int flags);
/* After the kernel opened fd. */
void fd_opened(const struct fd_open *op, int fd);
/* The same, later: the descriptor was only noted (lazy.h).  Its first small write is over. */
void fd_resolve(int fd, int flags, const struct timespec *before);
/* The process ran out of descriptors: closes those of ours that can be spared.  True when one was. */
bool fd_spare_own(void);

/* Before close: FD_PASS, or an error that close must report although the descriptor is closed. */
long fd_close_prepare(int fd);
/* The kernel made `newfd` a duplicate of `oldfd`. */
void fd_dup_done(int oldfd, int newfd);
/* Before dup2/dup3 onto newfd (which closes it).  -EBADF: newfd is ours, pretend it is out of range. */
long fd_dup_onto_prepare(int oldfd, int newfd);
/* Before close_range/closefrom: settles and forgets managed descriptors in the range. */
void fd_close_range_prepare(unsigned from, unsigned to);
/* Own descriptors in [from, to], ascending: next one at or after `at`, or -1. */
int fd_next_own(unsigned at, unsigned to);

/* fcntl of a managed descriptor; `arg` as passed.  FD_PASS, or the result. */
long fd_fcntl(int fd, struct ofd *o, int cmd, long arg);
/* lockf is about to be called. 0 or -errno */
long fd_before_posix_lock(int fd);
/* A stdio stream was made on fd, or raw output that bypasses write: written through from now on. */
void fd_use_stdio(int fd);
/* Something outside the model is about to use the descriptor: written through from now on. */
void fd_use_unmodelled(int fd, int why);
/* flock, lockf: another process may be handed the file; settle. 0 or -errno */
long fd_hand_over(int fd);
/* True in a child made by vfork: it shares our memory but not our descriptors. */
bool fd_foreign_process(void);
void fd_set_process(void);

#endif
