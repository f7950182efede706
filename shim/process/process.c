// SPDX-License-Identifier: Apache-2.0
/* process: see process/process.h. */
#include "process/process.h"

#include "attach/attach.h"
#include "attach/repair.h"
#include "attach/stop.h"
#include "attach/watcher.h"
#include "base/buffer.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "base/user.h"
#include "descriptors/fd.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "files/never_staged.h"
#include "files/workers.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/token.h"
#include "flush/visibility.h"
#include "process/child.h"
#include "process/inherit.h"
#include "staging/arenas.h"
#include "staging/stage.h"
#include "staging/stats.h"
#include "staging/takeover.h"
#include "sync/journal.h"

static PROCESS_DATA struct process_fork forking;
__thread bool process_forks_and_ends;

static void visit_fork(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	if (f->mode == FILE_BYPASSED)
		return;
	g = file_lock(f);
	if (f->refs && f->mode != FILE_BYPASSED) {
		watcher_fork(f);
		attach_bypass(f, BYPASS_FORK);
	}
	file_unlock(f, g);
}

struct before {
	bool any;
	bool paused; /* no file is attached meanwhile */
};

/* Nothing is staged in order while both live (attach/attach.c).  What cannot be written now stays staged. */
static void drain_ordered(struct file *f, bool last)
{
	(void)detach_file(f);
	if (!last || f->mode != FILE_ATTACHED)
		return;
	(void)attach_bypass(f, BYPASS_FORK);
	if (f->mode == FILE_ATTACHED)
		ordered_end();
}

static void visit_before(struct file *f, void *ctx)
{
	struct before *b = ctx;

	file_lock_again(f); /* signals are blocked */
	b->any = true;
	if (f->refs && file_is_ordered(f))
		drain_ordered(f, b->paused);
	if (f->refs && visibility_is(f))
		watcher_fork(f); /* the child will have it, too */
	/* the child has no such descriptor, and may start the file as a program */
	if (f->refs && f->left)
		attach_keep_nothing(f);
	file_drop(f);
}

static void visit_claim(struct file *f, void *ctx)
{
	/* other threads open and close meanwhile */
	struct file_guard g = file_lock(f);

	/* a flush that began without its gate, see staging/takeover.h */
	if (!f->shared && !f->nested)
		flush_wait_idle(f);
	f->shared = true;
	takeover_share(f);
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (ofd_local(o)->refs)
			family_set_add(&o->holders, *(const uint32_t *)ctx);
	file_unlock(f, g);
}

/* A member for the child, and its claims to all that this process has.  False: the child cannot belong to the
 * family. */
static bool claim_for_child(void)
{
	int found = family_found();
	uint32_t child;

	if (found < 0)
		return false;
	if (found > 0)
		arenas_reserve_places();
	if (!family_has_room())
		repair_sweep();
	child = family_child_begin();
	if (child == FAMILY_MAX)
		return false;
	attach_share(child);
	file_for_each(visit_claim, &child);
	return true;
}

PROCESS_CODE static void visit_internal(struct file *f, void *ctx)
{
	(void)ctx;
	flush_close_internal(f);
}

void process_fork_soon(void)
{
	if (live_config && !fork_guard_vforked && !fd_foreign_process() && file_any_open())
		workers_start(); /* flushes what a killed child leaves */
	thread_hold();
}

/* `managed`: the child is to be managed, too. */
static void fork_prepare(bool managed)
{
	sys_sigset signals;
	struct before before = {.any = false};
	bool member, interrupted;

	if (!live_config)
		return;
	if (fork_guard_vforked)
		child_forks();
	if (fd_foreign_process())
		return;
	signals = signals_block();
	young_other();
	never_staged_share();
	unresolved_resolve_all();
	fd_fork_prepare();
	file_for_each(visit_before, &before);
	if (before.any)
		workers_start(); /* (process_fork_soon has done it, if it was called) */
	attach_pause();
	/* once more, for files that another thread attached meanwhile.  A file that it opens from now on is
	 * not staged before the fork; afterwards it is seen to be shared. */
	before.paused = true;
	file_for_each(visit_before, &before);
	if (!ordered_close_all())
		ordered_end();
	interrupted = stage_forks();
	/* before the family: an entry not changed since then is claimed for the child, too */
	fdtable_fork_prepare();
	/* also in a process without a managed file: its children may stage */
	member = managed && !interrupted && fork_guard_set() == 0 && claim_for_child();
	if (!member) {
		/* its end is not noticed */
		ordered_end();
		file_for_each(visit_fork, NULL);
		attach_drain_elsewhere();
	}
	/* the child may end before our fork returns, and would leave the arena to us */
	if (process_forks_and_ends)
		family_exiting(true);
	forking = (struct process_fork){.signals = signals,
	                                .watch = 1,
	                                .member = member,
	                                .interrupted = interrupted,
	                                .alone = thread_is_only()};
}

void process_fork_prepare(void) { fork_prepare(true); }
void process_part_prepare(void) { fork_prepare(false); }

void process_fork_parent(void)
{
	struct process_fork was = forking;

	if (!was.watch || fork_guard_vforked)
		return;
	forking.watch = 0;
	if (was.member) {
		family_fork_parent();
		kill_arm_children(0);
	}
	stage_limit_changes();
	attach_unpause();
	sys_restore_signals(was.signals);
}

PROCESS_CODE static void fork_child(bool managed)
{
	struct process_fork was = forking;

	if (!was.watch || fork_guard_vforked)
		return;
	forking.watch = 0;
	lock_after_fork();
	buffer_fork_child();
	signals_fork_child();
	thread_after_fork();
	workers_after_fork();
	watcher_after_fork();
	journal_after_fork();
	ordered_forget();
	if (managed) {
		fork_guard_set();
		fd_fork_child();
	}
	stage_limit_changes();
	user_memory_changed(); /* (some of it may stay with the parent: MADV_DONTFORK) */
	unresolved_fork_child(was.alone);
	if (was.member) {
		fdtable_fork_child();
		family_fork_child();
		kill_forked();
		file_for_each(visit_internal, NULL);
		attach_fork_child();
		file_fork_child(repair_give_up);
	} else {
		attach_forget(was.interrupted);
		family_forget();
		internal_fd_close_all();
		fdtable_reset();
		file_pools_reset();
	}
	stats_forget();
	sys_restore_signals(was.signals);
}

PROCESS_CODE void process_fork_child(void) { fork_child(true); }
void process_part_child(void) { fork_child(false); }

long process_raw_fork(long (*call)(long number, const long *arguments), long number, const long *arguments)
{
	long r;

	fork_prepare(false);
	r = call(number, arguments);
	if (r == 0)
		fork_child(false);
	else
		process_fork_parent();
	return r;
}

void process_raw_clone(void)
{
	fd_memory_shared();
	if (!live_config || fd_foreign_process())
		return;
	young_other();
	unresolved_clear_all();
	attach_refuse(BYPASS_FORK);
}

static void visit_locked(struct file *f, void *ctx) { *(bool *)ctx |= lock_owner(&f->lock) != 0; }

/* Other threads were in a call when this process was left: they end it as they began. */
static void wait_for_threads(void)
{
	enum {
		TRIES = 1000,
		TICK_NS = 1000000,
		REST_NS = 20000000 /* what follows the lock, on a busy machine */
	};
	bool locked = true;

	if (thread_is_only())
		return;
	for (int tries = 0; tries < TRIES && locked; tries++) {
		sys_nap(TICK_NS);
		locked = false;
		file_for_each_shared(visit_locked, &locked);
	}
	sys_nap(REST_NS);
}

void process_filter_prepare(void)
{
	sys_sigset signals;

	if (!live_config || fd_foreign_process())
		return;
	attach_refuse(BYPASS_SECCOMP);
	/* (bytes that cannot be written now come to the file before a sync or a close of it, if the filter
	 * lets them) */
	if (!attach_stop_all(BYPASS_SECCOMP))
		return;
	stats_report();
	signals = signals_block();
	watcher_stop();
	journal_stop();
	workers_stop();
	unresolved_clear_all();
	inherit_end();
	fd_leave_process();
	wait_for_threads();
	signals_let_go(); /* (no thread is in a short section any more) */
	sys_restore_signals(signals);
}

void process_exec_prepare(void)
{
	if (!live_config)
		return;
	if (fork_guard_vforked)
		child_exec_prepare();
	else if (!fd_foreign_process())
		attach_stop_all(BYPASS_EXEC);
	else if (fork_guard_here())
		child_spawn_prepare(false); /* a child of a raw clone */
}

void process_exec_failed(void)
{
	if (!live_config)
		return;
	if (fork_guard_vforked)
		child_exec_failed();
	else if (!fd_foreign_process())
		attach_resume_all(BYPASS_EXEC);
}

void process_spawn_prepare(void)
{
	if (live_config)
		child_spawn_prepare(false);
}

void process_spawn_actions_prepare(void)
{
	if (live_config)
		child_spawn_prepare(true);
}

PROCESS_CODE void process_exit(void)
{
	if (!live_config)
		return;
	if (fork_guard_vforked)
		child_ends();
	else if (fd_own_process()) {
		attach_stop_all(BYPASS_EXIT);
		stats_report();
	}
}
