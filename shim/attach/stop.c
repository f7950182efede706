// SPDX-License-Identifier: Apache-2.0
/* stop: see attach/stop.h. */
#include "attach/stop.h"

#include "attach/attach.h"
#include "attach/repair.h"
#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/pid.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/family.h"
#include "files/gate.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/prealloc.h"
#include "staging/arenas.h"
#include "staging/staging_policy.h"
#include "staging/takeover.h"
#include "sync/journal.h"
#include "sync/sync.h"

#include <string.h>

/* LOCK_ATTACH held.  Removes arena i if it holds nothing and no other process has it. */
static bool arena_close(uint32_t i)
{
	struct arena *a = arenas_close_begin(i);

	if (!a)
		return false;
	journal_destroy(a);
	ordered_close(a);
	arenas_close_end(a);
	return true;
}

/* ---- files that only other members have ---- */

/* True if another member has staged bytes of f, and this process has no description of f. */
static bool is_staged_elsewhere(const struct file *f)
{
	return file_local(f)->refs == 0 && f->refs != 0 && f->mode == FILE_ATTACHED && f->due[DUE_FLUSH] != 0;
}

/* The thread without which f cannot be drained now, or 0. */
static uint32_t holder_of(const struct file *f)
{
	uint32_t tid = lock_owner(&f->lock);

	return tid ? tid : atomic_load(&f->flush.busy);
}

/* Drains f in this process.  False if only another member can: this process may not map the arena, or may not
 * write to the file. */
static bool drain_here(struct file *f)
{
	struct file_guard g;
	bool reaches;

	file_retake(f);
	reaches = !f->nested && attach_reaches(f);
	file_drop(f);
	if (!reaches)
		return false;
	g = file_lock(f);
	if (f->refs != 0 && f->mode == FILE_ATTACHED && f->arena && file_is_staged(f)) {
		reaches = flush_possible(f);
		if (reaches)
			flush_drain(f); /* it reports an error, and the bytes stay staged */
	}
	file_unlock(f, g);
	return reaches;
}

/* Asks the timers of the members that have f to flush it.  False: all bytes staged before `since_ns` are in
 * the file, or its flush has failed, which those members have said. */
static bool ask_members(struct file *f, uint64_t since_ns)
{
	enum { NOW = 1 };
	uint64_t due = atomic_load(&f->due[DUE_FLUSH]);

	/* The deadline tells the age of the oldest block.  It is set anew, and the request is lost, when a
	 * flush that was under way before has ended: so ask again. */
	while (due != 0 && due <= since_ns + file_lag_ns(f))
		if (due == NOW || atomic_compare_exchange_weak(&f->due[DUE_FLUSH], &due, NOW))
			return true;
	return false;
}

static void visit_elsewhere(struct file *f, void *ctx)
{
	enum { TRIES = 1000, AGAIN = 16 };
	uint64_t since_ns;
	uint32_t holder;

	(void)ctx;
	if (!is_staged_elsewhere(f))
		return;
	holder = holder_of(f);
	if (holder != 0 && pid_is_stopped((pid_t)holder)) {
		log_warn(
			"thread %u of another process is stopped while it writes a file: its last bytes are not "
			"in the file yet",
			holder);
		return;
	}
	if (drain_here(f))
		return;
	/* The timers of the members that have the file.  When those are dead, or just dying, this process can
	 * soon do it; or when they have given back the lease that refuses this process an open. */
	since_ns = sys_now_ns();
	for (int tries = 1; tries <= TRIES; tries++) {
		if (!is_staged_elsewhere(f) || !ask_members(f, since_ns))
			return;
		sys_nap(1000000);
		if (tries % AGAIN == 0 && drain_here(f))
			return;
	}
	if (is_staged_elsewhere(f) && ask_members(f, since_ns))
		log_warn(
			"another process does not write what it has staged: its last bytes are not in the file "
			"yet");
}

PROCESS_CODE void attach_drain_elsewhere(void)
{
	sys_sigset signals;

	if (!family_is_shared() || file_attached() == 0 || fork_guard_elsewhere())
		return;
	signals = signals_hold();
	file_for_each_shared(visit_elsewhere, NULL);
	signals_release(signals);
}

/* ---- stop and resume ---- */

struct stop {
	enum bypass_reason why;
	bool failed;
};

PROCESS_CODE static void visit_stop(struct file *f, void *ctx)
{
	struct stop *s = ctx;
	struct file_guard g;
	int r = 0;

	g = file_lock(f);
	if (f->refs != 0 && f->mode != FILE_BYPASSED) {
		file_local(f)->stopped =
			!file_others_have(f) || (s->why == BYPASS_EXEC && attach_stays_open(f));
		if (file_local(f)->stopped)
			r = attach_bypass(f, s->why);
		else if (f->arena)
			r = flush_drain_and_reposition(f);
	}
	/* the worker thread that would do it later ends with this program */
	if (f->refs != 0 && f->due[DUE_SYNC])
		sync_relaxed_due(f);
	s->failed |= r < 0;
	file_unlock(f, g);
}

PROCESS_CODE bool attach_stop_all(enum bypass_reason why)
{
	struct stop s = {.why = why};
	sys_sigset signals;

	gate_stop();
	/* the gate is closed first: a thread that opens a file now sees it */
	if (why == BYPASS_EXIT)
		family_exiting(true);
	if (!file_any())
		return true;
	signals = signals_hold();
	if (family_is_shared())
		repair_sweep();
	file_for_each(visit_stop, &s);
	attach_drain_elsewhere();
	arenas_lock();
	for (uint32_t i = 0; file_family() && i < arenas_count(); i++)
		arena_close(i);
	arenas_unlock();
	if (s.failed)
		log_warn(
			"some bytes could not be written; they stay in the staging directory, see `fastwrite recover`");
	signals_release(signals);
	return !s.failed;
}

static void visit_refuse(struct file *f, void *ctx)
{
	const enum bypass_reason *why = ctx;
	struct file_guard g = file_lock(f);

	if (f->refs != 0 && f->mode != FILE_BYPASSED)
		attach_bypass(f, *why);
	file_unlock(f, g);
}

void attach_refuse(enum bypass_reason why)
{
	if (!live_config)
		return;
	/* Refuse first: a file that is being attached is found below, and a later attach sees the refusal. */
	gate_refuse(why);
	if (fork_guard_elsewhere())
		return;
	family_refuse(family_me, why);
	file_for_each_shared(visit_refuse, &why);
}

bool attach_end_family(bool waits)
{
	sys_sigset signals;
	bool ended;

	if (!family_can_close())
		return false;
	signals = signals_block();
	if (waits) {
		arenas_lock();
	} else if (!arenas_try()) {
		sys_restore_signals(signals);
		return false;
	}
	atomic_store(&gate.alone, false);
	ended = repair_end_family();
	if (ended)
		takeover_alone();
	/* An arena says whose it is.  Its maker may have started another program, and recovery would wait for
	 * the end of that. */
	for (uint32_t i = 0; ended && i < arenas_count(); i++)
		if (arenas_at(i) && arenas_at(i)->header->pid != sys_getpid())
			arena_close(i);
	if (waits)
		arenas_unlock();
	else
		arenas_unlock_tried();
	sys_restore_signals(signals);
	return ended;
}

void attach_tend(void)
{
	enum { TRIES = 10 };

	if (atomic_load(&gate.soon) != BYPASS_NONE)
		attach_refuse(atomic_exchange(&gate.soon, BYPASS_NONE));
	for (int tries = 0; tries < TRIES && atomic_load(&gate.alone); tries++) {
		if (tries > 0)
			sys_nap(1000000);
		(void)attach_end_family(false);
	}
}

bool attach_refused(void) { return gate_refusal() != BYPASS_NONE; }

static void visit_resume(struct file *f, void *ctx)
{
	enum bypass_reason why = *(enum bypass_reason *)ctx;
	struct file_guard g;

	g = file_lock(f);
	/* (another process may have bypassed it, for a program that goes on writing to it) */
	if (f->mode == FILE_BYPASSED && f->why == why && file_local(f)->stopped) {
		file_become(f, FILE_PASSIVE, f->why);
		staging_policy_restart(f);
	}
	file_local(f)->stopped = false;
	if (f->wanted == WANT_BYPASS && f->wanted_why == why)
		file_want_less(f, WANT_BYPASS);
	file_unlock(f, g);
}

void attach_resume_all(enum bypass_reason why)
{
	/* nothing may be staged while another thread tries to exec */
	if (gate_resume())
		file_for_each(visit_resume, &why);
}

static void visit_abandon(struct file *f, void *ctx)
{
	struct file_guard g = file_lock(f);

	(void)ctx;
	/* (an interrupted write ends in the arena where it began) */
	if (!f->nested && f->refs && f->mode == FILE_ATTACHED && f->arena && f->flush.error < 0 &&
	    !file_others_have(f)) {
		file_note_sync_error(f, f->flush.error);
		attach_abandon(f);
	}
	file_unlock(f, g);
}

void attach_abandon_failed(void) { file_for_each(visit_abandon, NULL); }

void attach_rights_changed(enum bypass_reason why)
{
	sys_sigset signals = signals_block();

	arenas_forget_refused();
	sys_restore_signals(signals);
	attach_resume_all(why);
}

struct retire {
	struct arena *arena;
};

static void visit_retire(struct file *f, void *ctx)
{
	struct retire *r = ctx;
	struct file_guard g;

	if (f->mode != FILE_ATTACHED)
		return;
	g = file_lock(f);
	if (!f->nested && f->mode == FILE_ATTACHED && f->arena == r->arena)
		detach_file(f);
	file_unlock(f, g);
}

bool attach_retire_dir(const char *dir)
{
	sys_sigset signals = signals_hold();
	bool any = false;

	for (uint32_t i = 0; i < arenas_count(); i++) {
		struct retire r = {.arena = arenas_at(i)};

		if (!r.arena || (dir && strcmp(r.arena->dir, dir) != 0))
			continue;
		file_for_each(visit_retire, &r);
		arenas_lock();
		if (arenas_at(i) == r.arena)
			any |= arena_close(i);
		arenas_unlock();
	}
	signals_release(signals);
	return any;
}

/* Takes the lock of f, if that is free and nothing is staged or at work there. */
static bool hold_resting(struct file *f, uint32_t tid)
{
	if (f->mode != FILE_ATTACHED || !lock_try(&f->lock, tid))
		return false;
	if (f->mode == FILE_ATTACHED && f->arena && !file_is_staged(f) && !atomic_load(&f->flush.busy) &&
	    !f->needs_repair)
		return true;
	lock_drop_fast(&f->lock, tid);
	return false;
}

static void visit_rest(struct file *f, void *ctx)
{
	uint32_t tid = lock_self();
	int fd;

	(void)ctx;
	if (!hold_resting(f, tid))
		return;
	fd = prealloc_rests(f);
	lock_drop_fast(&f->lock, tid);
	if (fd < 0)
		return;
	/* (while somebody has frozen the file system, this waits without the lock) */
	sys_wait_thawed(fd);
	if (!hold_resting(f, tid))
		return;
	prealloc_rest(f);
	lock_drop_fast(&f->lock, tid);
}

void attach_retire_idle(void)
{
	file_for_each(visit_rest, NULL);
	arenas_wait_thawed();
	/* (the holder of the lock may wait for this thread to end) */
	if (!arenas_try())
		return;
	for (uint32_t i = 0; i < arenas_count(); i++)
		if (arenas_at(i) && arenas_at(i)->entries_used == 0)
			arena_close(i);
	arenas_unlock_tried();
}

/* A file that is inherited before it is attached needs an arena that both processes have. */
static void visit_arena(struct file *f, void *ctx)
{
	BUFFER(char, path);
	const struct rule *rule = NULL;
	struct file_guard g;
	uint64_t dev = 0;

	(void)ctx;
	/* (nothing is staged in order while both live; and what the program's limits forbid is not tried at
	 * each fork) */
	if (f->mode != FILE_PASSIVE || file_is_ordered(f) || f->why == BYPASS_NO_ARENA)
		return;
	/* other threads open and close descriptors meanwhile */
	g = file_lock(f);
	for (const struct ofd *o = f->ofds; o && !rule && f->mode == FILE_PASSIVE; o = o->next)
		if (o->writable && ofd_fd(o) >= 0 && fd_link_path(ofd_fd(o), path) == 0) {
			rule = f->rule;
			dev = f->dev;
		}
	file_unlock(f, g);
	if (rule)
		arenas_prepare(rule, path, dev);
}

void attach_pause(void)
{
	arenas_lock();
	if (!gate_stopped())
		file_for_each(visit_arena, NULL);
}

void attach_unpause(void) { arenas_unlock(); }

void attach_share(uint32_t member)
{
	enum bypass_reason why = gate_refusal();

	if (why != BYPASS_NONE) {
		family_refuse(family_me, why);
		family_refuse(member, why);
	}
	arenas_share(member);
}

PROCESS_CODE void attach_fork_child(void)
{
	arenas_fork_child();
	gate.stopped = 0;
}

void attach_forget(bool keep_mapped)
{
	arenas_forget(keep_mapped);
	journal_forget();
	ordered_forget();
	ordered_end();
	gate.stopped = 0;
}

void attach_still_stopped(void) { atomic_store(&gate.stopped, 1); }
