// SPDX-License-Identifier: Apache-2.0
/* lazy: see lazy.h. */
#include "lazy.h"

#include "fd.h"
#include "sys.h"

enum { PATIENCE = 100 };

struct lazy lazy_fds[LAZY_FDS];
static _Atomic int highest = -1;

bool lazy_note(int fd, int flags, const struct timespec *before, bool unsure)
{
	struct lazy *l;
	int seen = atomic_load(&highest);

	if (fd < 0 || fd >= LAZY_FDS || fd_is_standard(fd))
		return false;
	while (seen < fd && !atomic_compare_exchange_weak(&highest, &seen, fd))
		;
	l = &lazy_fds[fd];
	/* behind whoever used the number before: its thread has stored the state last */
	atomic_exchange(&l->state, LAZY_NONE);
	l->flags = flags;
	l->before = *before;
	atomic_store(&l->seen, 0);
	atomic_store(&l->inflight, 0);
	atomic_store(&l->state, unsure ? LAZY_UNSURE : LAZY_NOTED);
	return true;
}

void lazy_block(int fd)
{
	if ((unsigned)fd < LAZY_FDS && !alive_vforked)
		atomic_store(&lazy_fds[fd].state, LAZY_RESOLVING);
}

void lazy_unblock(int fd)
{
	uint32_t blocked = LAZY_RESOLVING;

	/* (whoever got the number from the kernel since may have noted it) */
	if ((unsigned)fd < LAZY_FDS && !alive_vforked)
		atomic_compare_exchange_strong(&lazy_fds[fd].state, &blocked, LAZY_NONE);
}

void lazy_end(int fd)
{
	uint32_t state;

	if ((unsigned)fd >= LAZY_FDS || alive_vforked)
		return;
	/* another thread is at it; it has its signals blocked, so it is not us who interrupted it */
	while ((state = atomic_load(&lazy_fds[fd].state)) != LAZY_NONE)
		if (state == LAZY_RESOLVING)
			sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		else
			atomic_compare_exchange_strong(&lazy_fds[fd].state, &state, LAZY_NONE);
}

bool lazy_any(void) { return atomic_load(&highest) >= 0; }

int lazy_next(int from)
{
	int top = atomic_load(&highest);

	for (int fd = from; fd <= top; fd++)
		if (lazy_is(fd))
			return fd;
	return -1;
}

void lazy_use_all(void)
{
	for (int fd = lazy_next(0); fd >= 0; fd = lazy_next(fd + 1))
		lazy_use(fd);
}

void lazy_clear_all(void)
{
	lazy_use_all(); /* bytes of a dead process come first, whoever writes then */
	for (int fd = lazy_next(0); fd >= 0; fd = lazy_next(fd + 1))
		lazy_clear(fd);
}

void lazy_fork_child(void)
{
	int top = atomic_load(&highest);

	for (int fd = 0; fd <= top; fd++)
		atomic_store(&lazy_fds[fd].state, LAZY_NONE);
}

/* At most `mine` writes may be under way: the caller's own.  True when the descriptor is resolved. */
static bool resolve(int fd, uint32_t mine)
{
	struct lazy *l = &lazy_fds[fd];
	sys_sigset signals = sys_block_signals();
	uint32_t before = atomic_load(&l->state);
	uint32_t expected = before;
	bool done = false;

	if ((before == LAZY_NOTED || before == LAZY_UNSURE) &&
	    atomic_compare_exchange_strong(&l->state, &expected, LAZY_RESOLVING)) {
		/* a write of another thread, in the kernel at this moment, would move offset and size under us */
		done = atomic_load(&l->inflight) <= mine;
		if (done)
			fd_resolve(fd, l->flags, &l->before, before == LAZY_UNSURE);
		atomic_store(&l->state, done ? LAZY_NONE : before);
	}
	sys_restore_signals(signals);
	return done;
}

/* Counts a call on a noted descriptor; the state then, never LAZY_RESOLVING. */
static uint32_t begin_call(struct lazy *l)
{
	uint32_t state;

	atomic_fetch_add(&l->inflight, 1);
	/* another thread may be at it; it has its signals blocked, so it is not us who interrupted it */
	while ((state = atomic_load(&l->state)) == LAZY_RESOLVING) {
		atomic_fetch_sub(&l->inflight, 1);
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		atomic_fetch_add(&l->inflight, 1);
	}
	return state;
}

/* NULL when the call is counted, and to be passed on. */
static struct ofd *counts(int fd, uint32_t state, bool *counted)
{
	*counted = state != LAZY_NONE;
	if (*counted)
		return NULL;
	lazy_written(fd);
	return fdtable_get(fd);
}

struct ofd *lazy_move(int fd, bool *counted)
{
	lazy_use(fd);
	return counts(fd, begin_call(&lazy_fds[fd]), counted);
}

struct ofd *lazy_write(int fd, size_t size, bool *counted)
{
	struct lazy *l = &lazy_fds[fd];
	uint32_t state;

	*counted = false;
	if (atomic_load(&l->state) == LAZY_UNSURE) {
		lazy_resolve(fd);
		return fdtable_get(fd);
	}
	state = begin_call(l);
	/* large writes count, too: a descriptor that no rule matches shall not be asked about for ever */
	if (state == LAZY_NOTED && size > 0 && atomic_fetch_add(&l->seen, 1) > 0 && resolve(fd, 1))
		state = LAZY_NONE;
	return counts(fd, state, counted);
}

void lazy_written(int fd) { atomic_fetch_sub(&lazy_fds[fd].inflight, 1); }

void lazy_resolve(int fd)
{
	for (int tries = 0; lazy_is(fd) && !resolve(fd, 0); tries++) {
		uint32_t expected = LAZY_NOTED;

		/* A write that is under way for so long waits in the kernel, for a pipe's reader, say; or a signal
		 * handler has left it for good.  Nobody must wait for it: it stays what it is natively. */
		if (tries >= PATIENCE)
			atomic_compare_exchange_strong(&lazy_fds[fd].state, &expected, LAZY_NONE);
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
}
