// SPDX-License-Identifier: Apache-2.0
/* unresolved: see descriptors/unresolved.h. */
#include "descriptors/unresolved.h"

#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "config/rule.h"
#include "descriptors/fd.h"
#include "descriptors/outside.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/marked_fds.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"

enum { PATIENCE = 100 };

static uint32_t note_generation(const struct unresolved_fd *l)
{
	return (uint32_t)(atomic_load(&l->inflight) >> 32);
}

bool unresolved_note(int fd, int flags, const struct timespec *before, bool unsure)
{
	struct unresolved_fd *l;

	if (fd < 0 || fd >= UNRESOLVED_FDS || fd_is_standard(fd))
		return false;
	fdtable_reach(fd);
	l = &unresolved_fds[fd];
	/* A thread that used an earlier descriptor of this number changed the state last.  Our change orders
	 * our stores after its. */
	fdtable_set_state(fd, UNRESOLVED_NONE);
	l->flags = flags;
	l->before = *before;
	atomic_store(&l->seen, 0);
	atomic_store(&l->inflight, (uint64_t)(note_generation(l) + 1 ? note_generation(l) + 1 : 1) << 32);
	fdtable_set_state(fd, unsure ? UNRESOLVED_UNSURE : UNRESOLVED_NOTED);
	return true;
}

void unresolved_pause(void)
{
	static __thread unsigned paused;
	const struct timespec nap = {.tv_nsec = 50000};

	if (++paused % UNRESOLVED_YIELDS)
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	else
		sys_raw(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
}

/*
 * Another thread resolves or replaces a descriptor: waits a moment for it.  Does not wait in the child of a
 * fork that no hook saw.  Nor in a signal handler: the interrupted code may hold a lock that the other thread
 * needs.
 */
static bool waits(void)
{
	if (stage_frames || fork_guard_elsewhere())
		return false;
	unresolved_pause();
	return true;
}

/* Changes the state of fd to `to`, once no other thread resolves fd.  False if it cannot wait.  *noted: fd
 * was unresolved. */
static bool end_as(int fd, enum unresolved_state to, bool *noted)
{
	enum unresolved_state state;

	*noted = unresolved_is(fd);
	if ((unsigned)fd >= UNRESOLVED_FDS || fork_guard_vforked)
		return false;
	for (;;) {
		state = fdtable_state(fd);
		if (state == UNRESOLVED_RESOLVING) {
			if (!waits())
				return false;
		} else if (state == to || fdtable_change_state(fd, state, to)) {
			*noted = state != UNRESOLVED_NONE;
			return true;
		}
	}
}

void unresolved_end(int fd)
{
	bool noted;

	end_as(fd, UNRESOLVED_NONE, &noted);
}

bool unresolved_block(int fd, bool *noted) { return end_as(fd, UNRESOLVED_RESOLVING, noted); }

void unresolved_unblock(int fd)
{
	/* another thread may have got the same descriptor from the kernel and noted it */
	fdtable_change_state(fd, UNRESOLVED_RESOLVING, UNRESOLVED_NONE);
}

int unresolved_next(int from)
{
	int top = fdtable_highest();

	for (int fd = from; fd <= top && fd < UNRESOLVED_FDS; fd++)
		if (unresolved_is(fd))
			return fd;
	return -1;
}

void unresolved_use_all(void)
{
	for (int fd = unresolved_next(0); fd >= 0; fd = unresolved_next(fd + 1))
		unresolved_use(fd);
}

void unresolved_clear_all(void)
{
	unresolved_use_all(); /* recover a dead process's bytes before any process writes */
	for (int fd = unresolved_next(0); fd >= 0; fd = unresolved_next(fd + 1))
		unresolved_clear(fd);
}

void unresolved_resolve_all(void)
{
	for (int fd = unresolved_next(0); fd >= 0; fd = unresolved_next(fd + 1))
		unresolved_resolve(fd);
	unresolved_clear_all();
}

PROCESS_CODE void unresolved_fork_child(bool alone)
{
	int top = fdtable_highest();

	marked_fds_fork_child(alone);
	if (!alone)
		fdtable_zero_above(top);
	for (int fd = 0; fd <= top && fd < UNRESOLVED_FDS; fd++) {
		struct unresolved_fd *l = &unresolved_fds[fd];

		if (fdtable_state(fd) != UNRESOLVED_NONE)
			fdtable_set_state(fd, UNRESOLVED_NONE);
		/* writes of the parent's other threads */
		if (unresolved_inflight(fd) > 0)
			atomic_store(&l->inflight, (uint64_t)note_generation(l) << 32);
	}
}

/* Resolves fd unless more than `mine` writes are under way; `mine` are the caller's own.  True if it was
 * resolved. */
static bool resolve(int fd, uint32_t mine)
{
	struct unresolved_fd *l = &unresolved_fds[fd];
	sys_sigset signals = signals_hold();
	enum unresolved_state before = fdtable_begin_resolve(fd);
	bool done = false;

	if (before != UNRESOLVED_NONE) {
		/* a write of another thread, now in the kernel, would change offset and size during the
		 * lookup */
		done = unresolved_inflight(fd) <= mine;
		if (done)
			fd_resolve(fd, l->flags, &l->before, before == UNRESOLVED_UNSURE,
			           atomic_load(&l->seen));
		fdtable_set_state(fd, done ? UNRESOLVED_NONE : before);
	}
	signals_release(signals);
	return done;
}

/* No rule matches the path of fd. */
static bool lies_outside(int fd)
{
	BUFFER(char, path);

	if (fd_link_path(fd, path) < 0 || rule_match(live_config, path))
		return false;
	outside_note(path);
	return true;
}

bool unresolved_stays_unsure(int fd)
{
	sys_sigset signals;
	enum unresolved_state before;
	bool outside = false;

	/* in a family a living process may have staged bytes for it */
	if (family_is_shared() || fork_guard_elsewhere())
		return true;
	/* (fd stays the same meanwhile: whoever closes it waits) */
	signals = signals_hold();
	before = fdtable_begin_resolve(fd);
	if (before == UNRESOLVED_UNSURE)
		outside = lies_outside(fd);
	if (before != UNRESOLVED_NONE)
		fdtable_set_state(fd, outside ? UNRESOLVED_NOTED : before);
	signals_release(signals);
	return !outside;
}

/* Counts a write that goes to the kernel.  Returns the generation of the note. */
static uint32_t enter(struct unresolved_fd *l) { return (uint32_t)(atomic_fetch_add(&l->inflight, 1) >> 32); }

static void leave(struct unresolved_fd *l, uint32_t generation)
{
	uint64_t now = atomic_load(&l->inflight);

	while (now >> 32 == generation && (uint32_t)now > 0 &&
	       !atomic_compare_exchange_weak(&l->inflight, &now, now - 1))
		;
}

struct ofd *unresolved_write_noted(int fd, size_t size, uint32_t *counted)
{
	struct unresolved_fd *l = &unresolved_fds[fd];
	enum unresolved_state state;
	uint32_t generation;

	if (fdtable_state(fd) == UNRESOLVED_UNSURE && unresolved_stays_unsure(fd)) {
		unresolved_resolve(fd);
		return fdtable_get(fd);
	}
	generation = enter(l);
	while ((state = fdtable_state(fd)) == UNRESOLVED_RESOLVING || note_generation(l) != generation) {
		leave(l, generation);
		/* an entry of the table is valid */
		if (fdtable_get(fd) || (state == UNRESOLVED_RESOLVING && !waits()))
			return fdtable_get(fd);
		generation = enter(l);
	}
	/* Large writes count, too.  Otherwise a descriptor that no rule matches would be asked about
	 * forever. */
	if (state == UNRESOLVED_NOTED && size > 0 &&
	    atomic_fetch_add(&l->seen, 1) + 1 >= staging_policy_resolve_at && resolve(fd, 1))
		state = UNRESOLVED_NONE;
	if (state == UNRESOLVED_NONE) {
		leave(l, generation);
		return fdtable_get(fd);
	}
	*counted = generation;
	return NULL;
}

void unresolved_written(int fd, uint32_t counted) { leave(&unresolved_fds[fd], counted); }

void unresolved_resolve(int fd)
{
	for (int tries = 0; unresolved_is(fd) && !resolve(fd, 0); tries++) {
		/* A write that takes so long waits in the kernel, for example for a pipe's reader.  Or a
		 * signal handler has left it with longjmp.  No thread may wait for it: fd stays unmanaged. */
		if (tries >= PATIENCE)
			fdtable_change_state(fd, UNRESOLVED_NOTED, UNRESOLVED_NONE);
		if (fdtable_get(fd) || (!waits() && fdtable_state(fd) == UNRESOLVED_RESOLVING))
			return; /* an entry of the table is valid */
	}
}

struct ofd *unresolved_synced(int fd, bool full)
{
	if (staging_policy_sync_resolves || fdtable_state(fd) != UNRESOLVED_NOTED)
		unresolved_resolve(fd);
	else if (!full)
		atomic_store(&unresolved_fds[fd].seen, 0);
	return fdtable_get(fd);
}
