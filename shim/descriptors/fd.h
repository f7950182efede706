// SPDX-License-Identifier: Apache-2.0
/*
 * fd: descriptors come and go.  Return values as in descriptors/io.h.
 */
#ifndef FASTWRITE_DESCRIPTORS_FD_H
#define FASTWRITE_DESCRIPTORS_FD_H

#include "descriptors/left_bytes.h"
#include "files/fdtable.h"
#include "files/young.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <time.h>

#define FD_PASS LONG_MIN

/* State of one open call, from fd_open_prepare to fd_open_end. */
struct fd_open {
	int flags;
	bool watch;             /* fd_opened must be called */
	bool regular;           /* may be a regular file: see fd_open_concerns */
	struct timespec before; /* coarse clock; a file with a later birth time was made by this open */
	bool looks;      /* the path decides about `lazy`; it is read only after the kernel accepted it */
	bool unresolved; /* no dead process left bytes for the file: note the descriptor as unresolved */
	bool unsure;     /* noted, but resolved at the first use of any kind */
	bool late;       /* called from fd_resolve: the program may have written since the open */
	bool resolving;  /* called from unresolved_resolve, which changes the state of fd itself */
	bool reader;     /* register it although it only reads */
	int dirfd;       /* of the call; valid until fd_open_end */
	const char *path;
	unsigned waits; /* retries of fd_lease_over */
	uint32_t releases;
	long error;                  /* O_TRUNC: 0, or what the open must fail with */
	bool cuts;                   /* O_TRUNC: no file may be attached until fd_open_end */
	bool holds;                  /* and nothing may be staged: this file is attached */
	const struct rule *ordered;  /* of a file that it makes or cuts, as by_name_order; or NULL */
	uint64_t dev;                /* of that file, 0: unknown */
	bool anywhere;               /* as ordered_calls_begin */
	struct transient_name *name; /* as ordered_create; or NULL */
	const struct rule *rule;     /* of that name, if young_found has its path; or NULL */
	bool exclusive;              /* see fd_open_exclusive */
	bool counts;                 /* as fdtable_change_begin */
	bool ours;                   /* an overlay has the file: no dead process left bytes for it */
	uint32_t young;              /* as young_coming */
	bool uncancelled;            /* until fd_open_end */
	int cancels;                 /* the thread's cancel state before */
	uint64_t signals;
};

/* Before an open.  Drains the staged bytes of a file that O_TRUNC is about to cut.  If that fails, `error` is
 * set, and the caller must not open it: a later flush would put the bytes into the file that was cut. `watch`
 * is false if the open cannot concern the library.  `path` must stay valid until fd_open_end.  It may be an
 * invalid pointer: only the kernel reads it. */
void fd_open_prepare(struct fd_open *op, int dirfd, const char *path, int flags);
/* Called between prepare and the open if no path names the file.  fd_open_cuts_some: could O_TRUNC cut a file
 * that matters?  fd_open_cuts drains the file; `target` is an O_PATH descriptor of it. */
bool fd_open_cuts_some(const struct fd_open *op);
void fd_open_cuts(struct fd_open *op, int target);
/* The same: the open may make or cut a file of which no path is known. */
void fd_open_unnamed(struct fd_open *op);
/* The same: it makes a file of some such name. */
void fd_open_temporary(struct fd_open *op, const char *template);
/* After the call.  Call fd_opened first if the open succeeded. */
void fd_open_end(struct fd_open *op);
/* The open failed with EAGAIN.  True: repeat it, because it may have met the lease of one of our own flushes,
 * which has ended.  (Without O_NONBLOCK the kernel waits for the end of the lease.) */
bool fd_lease_over(struct fd_open *op);
/* After the kernel opened fd. */
void fd_opened(struct fd_open *op, int fd);
/* The open makes a file with op->name, or fails. */
static inline bool fd_open_makes(const struct fd_open *op)
{
	return op->name && (op->exclusive || (op->flags & O_EXCL));
}
/* Asked before each try of an open that can have it: O_EXCL, or 0.  (The program asks for a file whether it
 * is there or not.  With O_EXCL it is known to be new, and to be no link.) */
static inline int fd_open_exclusive(const struct fd_open *op) { return op->exclusive ? O_EXCL : 0; }
/* Asked after the open: must fd_opened be called?  Another thread may have attached the file since the
 * prepare, and before this descriptor existed. */
static inline bool fd_open_concerns(struct fd_open *op)
{
	if (!fd_open_makes(op))
		young_other();
	if (op->regular && !op->ours && (op->flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY)
		(void)left_bytes_recover_named(op->dirfd, op->path);
	if (op->watch || !op->regular)
		return op->watch;
	/* The kernel published the descriptor before this fence.  An attach counts the file before it
	 * searches for descriptors.  So one of the two sees the other. */
	atomic_thread_fence(memory_order_seq_cst);
	return op->watch = file_attached() > 0;
}
/* Resolves a noted descriptor (descriptors/unresolved.h).  `unused`: no write has been counted.  `written`:
 * its writes so far. */
void fd_resolve(int fd, int flags, const struct timespec *before, bool unused, uint32_t written);
/* Before a fork.  Another process of the family may stage bytes that our descriptors read.  So before the
 * first fork the read-only descriptors are registered.  A file with a descriptor that cannot be registered is
 * never staged (files/never_staged.h). */
void fd_fork_prepare(void);
/* The process ran out of descriptors: closes internal descriptors that can be spared.  True if it closed
 * one. */
bool fd_spare_internal(void);

/* Before close: FD_PASS, or the error that close must report although the kernel closes the descriptor. */
long fd_close_prepare(int fd);
/* Closes a managed descriptor: 0 or -errno.  Other threads that use `fd` wait until the kernel has closed it.
 * Otherwise a new descriptor of the same number would be taken for the managed one. */
long fd_close(int fd);
/* False: no descriptor is unresolved or managed. */
bool fd_any_known(void);
/* A descriptor to be duplicated.  Another thread may replace it at any time. */
struct fd_copy {
	int oldfd;
	uint32_t generation; /* generation of the table's entry */
	struct ofd *o;       /* its description, NULL: not managed */
};
void fd_dup_begin(struct fd_copy *c, int oldfd);
/* The kernel made `newfd` a duplicate.  Negative: the call failed. */
void fd_dup_done(const struct fd_copy *c, int newfd);
/* dup2 or dup3 */
struct fd_dup_onto {
	struct fd_copy copy;
	int newfd;
	bool forgotten; /* newfd was managed or unresolved */
	bool holds;     /* newfd is replaced under our control */
	bool blocked;   /* threads that use newfd wait; otherwise the gate is held */
	uint64_t signals;
};
/* Before dup2 or dup3, which close newfd.  -EBADF: newfd is internal; report it as out of range. */
long fd_dup_onto_prepare(struct fd_dup_onto *d, int oldfd, int newfd);
/* After the call; `made`: it succeeded. */
void fd_dup_onto_done(const struct fd_dup_onto *d, bool made);
/* close_range by `next` (0 or -errno), which leaves the internal descriptors open. */
long fd_close_range(unsigned from, unsigned to, int flags,
                    long (*next)(unsigned from, unsigned to, int flags));
/* As closefrom, where close_range is refused. */
void fd_close_listed(int from);
/* The next internal descriptor in [at, to], or -1. */
int fd_next_internal(unsigned at, unsigned to);

/* fcntl of a managed descriptor, but for locks; `arg` as passed.  FD_PASS, or the result. */
long fd_fcntl(int fd, struct ofd *o, int cmd, long arg);
/*
 * Before a lock is taken or released through fd.  A lock may guard other files than its own.  So before a
 * release, by an unlock or a close, all files are drained.  From the first lock on, a managed file counts as
 * shared with other programs (visibility_is), and after a POSIX lock it has no internal descriptor.  0 or
 * -errno.
 */
enum fd_lock_range {
	LOCK_WHOLE,         /* flock */
	LOCK_AT_OFFSET,     /* a POSIX lock */
	LOCK_FROM_POSITION, /* the same; position or size, as the kernel knows them, say where */
};
long fd_before_lock(int fd, bool releases, enum fd_lock_range range);
/* True if fd_before_lock would do nothing, for taking as well as for releasing. */
bool fd_lock_changes_nothing(int fd);
/* After a lock was taken or released.  The previous owner may have written. */
void fd_locked(int fd, bool released);
/* A stdio stream that the library does not see uses fd, or output that does not go through write.  Its file
 * is bypassed from now on. */
void fd_use_stdio(int fd);
/* fd is about to be used in ways that the library does not see: it stays unmanaged if it is unresolved. Waits
 * for a thread that is resolving it.  A managed descriptor stays managed. */
void fd_forget_unresolved(int fd);
/* A call that the library does not model is about to use fd.  Its file is bypassed from now on.  0, or the
 * -errno of the drain: bytes stay staged, and a later flush would write them over those of the call. */
long fd_use_unmodelled(int fd, int why);
/* For a system call by number that reads, writes or moves fd, with the arguments `a`.  Bypasses its file from
 * now on.  FD_PASS: the caller must make the call.  Otherwise its result. */
long fd_bypass_call(int fd, long number, const long *a);
/* flock, lockf: another process may use the file next.  Drains it.  0 or -errno. */
long fd_drain(int fd);
/* True in a child that has our memory but its own descriptors, and after fork_guard_stop. */
bool fd_foreign_process(void);
/* Before a child may get our memory unseen: only its process id tells it from this process. */
void fd_memory_shared(void);
/* True in the process that last called one of the others. */
bool fd_own_process(void);
void fd_set_process(void);
/* This process manages no file any more, and the library makes no system call in it.  Everything was drained.
 */
void fd_leave_process(void);
bool fd_has_left(void);
void fd_fork_child(void);

#endif
