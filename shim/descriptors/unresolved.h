// SPDX-License-Identifier: Apache-2.0
/*
 * unresolved: descriptors that were opened for writing and have not been asked about yet.
 *
 * Most files get one write and are closed: finding out their path and rule would cost more than it can gain.  So an
 * open only notes the descriptor here; the calls pass to the C library; the second write, or another call that
 * needs to know, resolves it (fd_resolve).  Where a dead process may have left bytes for the file (UNRESOLVED_UNSURE) that
 * is the first call that reads, writes, moves or measures; so it is for all in a family (files/family.h), where another
 * member may stage for the file, and there descriptors that only read are noted, too.  Only descriptors that an open of
 * this process made, and that have been neither duplicated nor inherited since, are noted.  Lock-free; descriptors from
 * UNRESOLVED_FDS on are never lazy.
 */
#ifndef FASTWRITE_LAZY_H
#define FASTWRITE_LAZY_H

#include "files/fdtable.h"

#include <time.h>

/* What a call passes on may have become something else just now (fd_dup_onto_prepare): so often that is asked again.  What
 * does so all the time is for the kernel to name. */
enum { ASK_TRIES = 8 };
/* Lets other threads run: yields, and every UNRESOLVED_YIELDS-th time sleeps 50 µs (what is waited for may take as long as a
 * flush; and where threads have priorities, yielding may let nobody else run). */
enum { UNRESOLVED_YIELDS = 64 };
void unresolved_pause(void);

/* False when fd cannot be lazy. */
bool unresolved_note(int fd, int flags, const struct timespec *before, bool unsure);
static inline void unresolved_clear(int fd)
{
	uint32_t state = UNRESOLVED_NOTED;

	/* (not what is blocked, or being found out) */
	if (unresolved_is(fd) &&
	    !atomic_compare_exchange_strong(&unresolved_fds[fd].state, &state, UNRESOLVED_NONE) &&
	    state == UNRESOLVED_UNSURE)
		atomic_compare_exchange_strong(&unresolved_fds[fd].state, &state, UNRESOLVED_NONE);
}
/*
 * fd is about to be closed, or something else takes its number: what another thread is just finding out about it comes
 * first, and the table may show it then; it is not noted any more.
 */
void unresolved_end(int fd);
/* The same, and whoever uses fd from now on waits until it is unblocked.  All signals of this thread are blocked meanwhile.
 * False when that cannot be had: numbers from UNRESOLVED_FDS on, and in a signal handler that the other thread may wait for. */
bool unresolved_block(int fd);
void unresolved_unblock(int fd);
/* False when none has ever been noted. */
bool unresolved_any(void);
/* The lowest noted descriptor from `from` on, or -1. */
int unresolved_next(int from);
/* unresolved_used of all. */
void unresolved_use_all(void);
/* fork, exec: the descriptions are shared from now on. */
void unresolved_clear_all(void);

/* In the child of a fork: what other threads have noted since then may mean other descriptors than the child has. */
void unresolved_fork_child(void);

/*
 * A write of `size` bytes to fd is about to be made.  The description that fd refers to when it is managed now;
 * NULL: pass the call on, and call unresolved_written afterwards when *counted is not 0.
 */
struct ofd *unresolved_write(int fd, size_t size, uint32_t *counted);
void unresolved_written(int fd, uint32_t counted);
/* Resolves fd now, if it is lazy. */
void unresolved_resolve(int fd);

/* Before a call that lets a noted descriptor be: all that read, move or measure. */
static inline void unresolved_use(int fd)
{
	if (__builtin_expect((unsigned)fd < UNRESOLVED_FDS, 1) &&
	    __builtin_expect(atomic_load_explicit(&unresolved_fds[fd].state, memory_order_acquire) >=
	                             UNRESOLVED_UNSURE,
	                     0))
		unresolved_resolve(fd);
}

/* The same; the description that fd refers to when it is managed. */
static inline struct ofd *unresolved_used(int fd)
{
	struct ofd *o = fdtable_get(fd);

	if (__builtin_expect(o != NULL, 0))
		return o;
	unresolved_use(fd);
	return fdtable_get(fd); /* another thread may have found it out since */
}

/* The same before a call that moves the position: whoever resolved fd meanwhile would take the old one for good. */
static inline struct ofd *unresolved_moved(int fd)
{
	struct ofd *o = fdtable_get(fd);

	if (__builtin_expect(o != NULL, 0))
		return o;
	if (unresolved_is(fd))
		unresolved_resolve(fd);
	return fdtable_get(fd);
}

/* fd is about to be used in ways that are not seen: it is not noted any more.  Managed or not, it is as before. */
static inline void unresolved_forget(int fd)
{
	if (!unresolved_used(fd))
		unresolved_clear(fd);
}

#endif
