// SPDX-License-Identifier: Apache-2.0
/*
 * fd: descriptors come and go.  Return values as in descriptors/io.h.
 */
#ifndef FASTWRITE_FD_H
#define FASTWRITE_FD_H

#include "files/fdtable.h"

#include <limits.h>
#include <stdatomic.h>
#include <time.h>

#define FD_PASS LONG_MIN

/* A call that only looks has succeeded, or one that changes will be made.  If a rule has the path, as far as the path itself
 * says that, what a dead process left for the file is put in place.  True when a file got bytes: to be looked at once more. */
bool fd_recover_named(int dirfd, const char *path);

/* What must be known before the kernel opens a file. */
struct fd_open {
	int flags;
	bool watch;             /* fd_opened has something to do */
	bool regular;           /* it may be a regular file, to read or to write: see fd_open_concerns */
	struct timespec before; /* coarse clock: a file born later was made by this open */
	bool looks;     /* whether it is lazy the path says: not read before the kernel has accepted it */
	bool lazy;      /* nothing is staged near it: it is enough to note the descriptor */
	bool unsure;    /* lazy, but until its first use only */
	bool late;      /* fd_resolve: the program may have written since */
	bool resolving; /* in the middle of unresolved_resolve, which says when it is over */
	bool reader;    /* to be known although it is read only */
	int dirfd;      /* of the call, for as long as it lasts */
	const char *path;
	unsigned waits; /* see fd_lease_over */
	uint32_t releases;
	bool cuts;   /* no file is attached until fd_open_end */
	bool holds;  /* nor is anything staged: this one is */
	int cancels; /* the thread's state before */
	uint64_t signals;
};

/* Before an open: O_TRUNC of a file with staged bytes settles it first.  False in `watch` when the open cannot
 * matter to us.  `path` stays until fd_open_end, and may be anything: only the kernel reads it. */
void fd_open_prepare(struct fd_open *op, int dirfd, const char *path, int flags);
/* The same, between that and the call, when a path does not tell which file it is: would it be cut, and if so which one?
 * `target` is an O_PATH descriptor on it. */
bool fd_open_cuts_some(const struct fd_open *op);
void fd_open_cuts(struct fd_open *op, int target);
/* After the call, and fd_opened if it succeeded. */
void fd_open_end(struct fd_open *op);
/* The open failed with EAGAIN: true when it may have met the lease that a flush of ours takes for the length of a write,
 * which is over now.  (Without O_NONBLOCK the kernel waits for that.) */
bool fd_lease_over(struct fd_open *op);
/* After the kernel opened fd. */
void fd_opened(struct fd_open *op, int fd);
/* Is that to be called?  Asked after the call: a file that this open is to read may have been attached since by somebody
 * who looked for other descriptors before there was this one. */
static inline bool fd_open_concerns(struct fd_open *op)
{
	if (op->regular && (op->flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY)
		(void)fd_recover_named(op->dirfd, op->path);
	if (op->watch || !op->regular)
		return op->watch;
	/* the kernel showed the descriptor before, and who attaches counts before it searches: one of us sees the other */
	atomic_thread_fence(memory_order_seq_cst);
	return op->watch = file_attached() > 0;
}
/* The same, later: the descriptor was only noted (descriptors/unresolved.h).  Unless `unused` it may have been used, and its first write is
 * over if `written`. */
void fd_resolve(int fd, int flags, const struct timespec *before, bool unused, bool written);
/* Before a fork.  Another member of the family may stage what our descriptors are to see, or write: before the first
 * one those that only read become known, and what stays unknown is never staged by anybody (files/never_staged.h). */
void fd_fork_prepare(void);
/* The process ran out of descriptors: closes those of ours that can be spared.  True when one was. */
bool fd_spare_own(void);

/* Before close: FD_PASS, or an error that close must report although the descriptor is closed. */
long fd_close_prepare(int fd);
/* close of a managed descriptor: 0 or -errno.  Who uses the number meanwhile waits: what is put there before the kernel has
 * closed it would be taken for managed when it is gone. */
long fd_close(int fd);
/* False: no descriptor is noted or managed. */
bool fd_any_known(void);
/* A descriptor is about to be copied, and another thread may put another one on its number meanwhile. */
struct fd_copy {
	int oldfd;
	uint32_t turn; /* of the table's entry */
	struct ofd *o; /* which that was, NULL: none */
};
void fd_dup_begin(struct fd_copy *c, int oldfd);
/* The kernel made `newfd` a duplicate of it, or (negative) did not. */
void fd_dup_done(const struct fd_copy *c, int newfd);
/* dup2 or dup3 */
struct fd_dup_onto {
	struct fd_copy copy;
	int newfd;
	bool forgotten; /* newfd was known */
	bool holds;     /* who uses newfd meanwhile waits ... */
	bool blocked;   /* ... or else nothing is staged */
	uint64_t signals;
};
/* Before the call, which closes newfd.  -EBADF: newfd is ours, pretend it is out of range. */
long fd_dup_onto_prepare(struct fd_dup_onto *d, int oldfd, int newfd);
/* After it; `made`: it succeeded. */
void fd_dup_onto_done(const struct fd_dup_onto *d, bool made);
/* close_range by `next` (0 or -errno), of what lies between our own descriptors. */
long fd_close_range(unsigned from, unsigned to, int flags,
                    long (*next)(unsigned from, unsigned to, int flags));
/* Own descriptors in [from, to], ascending: next one at or after `at`, or -1. */
int fd_next_own(unsigned at, unsigned to);

/* fcntl of a managed descriptor; `arg` as passed.  FD_PASS, or the result. */
long fd_fcntl(int fd, struct ofd *o, int cmd, long arg);
/*
 * Any lock through fd is about to be taken, or released.  What a lock guards may be other files than the one that it
 * is on: before it is released, by an unlock or a close, everything is settled.  A managed file that is locked is
 * shared with others from now on (visibility_is).  0 or -errno
 */
long fd_before_lock(int fd, bool releases);
/* True when that would do nothing, whether the lock is taken or released. */
bool fd_lock_changes_nothing(int fd);
/* lockf is about to be called. 0 or -errno */
long fd_before_posix_lock(int fd);
/* The lock was taken, or released. */
void fd_locked(int fd);
/* A stream that is not seen was made on fd, or raw output bypasses write: written through from now on. */
void fd_use_stdio(int fd);
/* Something outside the model is about to use the descriptor: written through from now on. */
void fd_use_unmodelled(int fd, int why);
/* flock, lockf: another process may be handed the file; settle. 0 or -errno */
long fd_hand_over(int fd);
/* True in a child that has our memory but descriptors of its own, and once nothing is managed any more. */
bool fd_foreign_process(void);
/* True in the process that called fd_set_process last. */
bool fd_own_process(void);
void fd_set_process(void);

#endif
