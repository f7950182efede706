// SPDX-License-Identifier: Apache-2.0
/* lazy: see lazy.h. */
#include "lazy.h"

#include "fd.h"
#include "sys.h"

struct lazy lazy_fds[LAZY_FDS];
static _Atomic int highest = -1;

bool lazy_note(int fd, int flags, const struct timespec *before)
{
	struct lazy *l;
	int seen = atomic_load(&highest);

	/* 0 to 2 are written to by the C library itself */
	if (fd <= 2 || fd >= LAZY_FDS)
		return false;
	while (seen < fd && !atomic_compare_exchange_weak(&highest, &seen, fd))
		;
	l = &lazy_fds[fd];
	l->flags = flags;
	l->before = *before;
	atomic_store(&l->small_seen, 0);
	atomic_store(&l->inflight, 0);
	atomic_store(&l->state, LAZY_NOTED);
	return true;
}

void lazy_clear_all(void)
{
	int top = atomic_load(&highest);

	for (int fd = 0; fd <= top; fd++)
		lazy_clear(fd);
}

/* At most `mine` writes may be under way: the caller's own.  True when the descriptor is resolved. */
static bool resolve(int fd, uint32_t mine)
{
	struct lazy *l = &lazy_fds[fd];
	sys_sigset signals = sys_block_signals();
	uint32_t expected = LAZY_NOTED;
	bool done = false;

	if (atomic_compare_exchange_strong(&l->state, &expected, LAZY_RESOLVING)) {
		/* a write of another thread, in the kernel at this moment, would move offset and size under us */
		done = atomic_load(&l->inflight) <= mine;
		if (done)
			fd_resolve(fd, l->flags, &l->before);
		atomic_store(&l->state, done ? LAZY_NONE : LAZY_NOTED);
	}
	sys_restore_signals(signals);
	return done;
}

struct ofd *lazy_write(int fd, size_t size, bool *counted)
{
	struct lazy *l = &lazy_fds[fd];
	uint32_t state;

	*counted = false;
	atomic_fetch_add(&l->inflight, 1);
	/* another thread may be at it; it has its signals blocked, so it is not us who interrupted it */
	while ((state = atomic_load(&l->state)) == LAZY_RESOLVING) {
		atomic_fetch_sub(&l->inflight, 1);
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		atomic_fetch_add(&l->inflight, 1);
	}
	if (state == LAZY_NOTED && size > 0 && size <= 65536 && atomic_fetch_add(&l->small_seen, 1) > 0 &&
	    resolve(fd, 1))
		state = LAZY_NONE;
	if (state == LAZY_NONE) {
		atomic_fetch_sub(&l->inflight, 1);
		return fdtable_get(fd);
	}
	*counted = true;
	return NULL;
}

void lazy_written(int fd) { atomic_fetch_sub(&lazy_fds[fd].inflight, 1); }

void lazy_resolve(int fd)
{
	while (lazy_is(fd) && !resolve(fd, 0))
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
}
