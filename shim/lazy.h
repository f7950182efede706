// SPDX-License-Identifier: Apache-2.0
/*
 * lazy: descriptors that were opened for writing and have not been asked about yet.
 *
 * Most files get one write and are closed: finding out their path and rule would cost more than it can gain.  So an
 * open only notes the descriptor here; the calls pass to the C library; the second small write, or another call
 * that needs to know, resolves it (fd_resolve).  Only descriptors that an open of this process made, and that have
 * been neither duplicated nor inherited since, are noted.  Lock-free; descriptors from LAZY_FDS on are never lazy.
 */
#ifndef FASTWRITE_LAZY_H
#define FASTWRITE_LAZY_H

#include "fdtable.h"

#include <time.h>

enum { LAZY_FDS = 1024 };
enum lazy_state { LAZY_NONE, LAZY_NOTED, LAZY_RESOLVING };

struct lazy {
	_Atomic uint32_t state;
	_Atomic uint32_t inflight; /* writes under way in the kernel */
	_Atomic uint32_t small_seen;
	int flags;              /* of the open */
	struct timespec before; /* the open, by the coarse clock */
};

extern struct lazy lazy_fds[LAZY_FDS];

static inline bool lazy_is(int fd)
{
	return (unsigned)fd < LAZY_FDS &&
	       __builtin_expect(atomic_load_explicit(&lazy_fds[fd].state, memory_order_relaxed) != LAZY_NONE,
	                        0);
}

/* False when fd cannot be lazy. */
bool lazy_note(int fd, int flags, const struct timespec *before);
static inline void lazy_clear(int fd)
{
	if (lazy_is(fd))
		atomic_store(&lazy_fds[fd].state, LAZY_NONE);
}
/* fork, exec, spawn: the descriptions are shared from now on. */
void lazy_clear_all(void);

/*
 * A write of `size` bytes to fd is about to be made.  The description that fd refers to when it is managed now;
 * NULL: pass the call on, and call lazy_written afterwards when *counted.
 */
struct ofd *lazy_write(int fd, size_t size, bool *counted);
void lazy_written(int fd);

/* Resolves fd now, if it is lazy. */
void lazy_resolve(int fd);

#endif
