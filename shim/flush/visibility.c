// SPDX-License-Identifier: Apache-2.0
/* visibility: see flush/visibility.h. */
#include "flush/visibility.h"

#include "attach/attach.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/never_staged.h"
#include "flush/flush.h"
#include "flush/prealloc.h"
#include "staging/stage.h"
#include "sync/journal_file.h"

#include <fcntl.h>

enum {
	TICK_MS = 100,
	QUIET_TICKS = 10, /* so many without a lease: the watcher ends */
	RETRY_FIRST_US = 500,
	RETRY_MOST_US = 16000,
};

static struct {
	struct thread_one thread;
	_Atomic uint32_t held; /* leases that are held, or about to be */
	_Atomic bool stop;
} watcher;

static _Atomic bool refusal_said;

/* F_WRLCK: held and not asked for.  While somebody waits the kernel says what it will become. */
static bool lease_intact(const struct ofd *o) { return o && ofd_fd(o) >= 0 && lease_holds(ofd_fd(o)); }

/* A lease that another member of the family has is that one's business. */
static bool lease_is_ours(const struct file *f) { return f->leased && ofd_fd(f->leased) >= 0; }

static bool visibility_by_itself(const struct file *f)
{
	return f->rule->set.visibility == VISIBILITY_STRICT || f->cooperates ||
	       never_staged_memory_is_shared(f->rule);
}

bool visibility_for_journal(const struct file *f)
{
	return journal_file_leases(f) && !visibility_by_itself(f);
}

void visibility_not_for_journal(struct file *f)
{
	f->no_journal = true;
	/* (who locks the file needs it so for other reasons, and is strict by himself) */
	if (!f->leased)
		f->no_own_fd = false;
}

bool visibility_is(const struct file *f) { return visibility_by_itself(f) || journal_file_leases(f); }

static struct arena_slot *slot_of(const struct file *f)
{
	return f->arena && f->slot >= 0 ? arena_slot_at(f->arena, (uint32_t)f->slot) : NULL;
}

/* What `fastwrite status` shows. */
static void show_state(const struct file *f, uint32_t state)
{
	struct arena_slot *slot = slot_of(f);

	if (!slot)
		return;
	atomic_fetch_or_explicit(&slot->flags, SLOT_STRICT | state, memory_order_relaxed);
	atomic_fetch_and_explicit(&slot->flags, ~((SLOT_LEASED | SLOT_LEASE_BUSY) & ~state),
	                          memory_order_relaxed);
}

/* Somebody else has the file open: when to ask again. */
static void back_off(struct file *f)
{
	struct arena_slot *slot = slot_of(f);

	if (!f->lease_wait_us)
		f->lease_wait_us = RETRY_FIRST_US;
	else if (f->lease_wait_us < RETRY_MOST_US)
		f->lease_wait_us *= 2;
	f->lease_retry_ns = sys_now_ns() + f->lease_wait_us * 1000ull;
	if (slot && !(atomic_fetch_or(&slot->flags, SLOT_BUSY_SEEN) & SLOT_BUSY_SEEN))
		atomic_fetch_add(&f->arena->header->live.through[BYPASS_LEASE_BUSY], 1);
	show_state(f, SLOT_LEASE_BUSY);
}

static bool same_file(const struct file *f, uint64_t dev, uint64_t ino)
{
	return f->dev == dev && f->ino == ino;
}

/* File lock held: everything out, then whoever waits may go on.  What cannot be written (the disk is full, say)
 * would not become visible by waiting. */
static void give_way(struct file *f, bool nested)
{
	uint64_t dev = f->dev, ino = f->ino;

	flush_settle(f, nested);
	/* (the lock may have been free meanwhile) */
	if (!same_file(f, dev, ino))
		return;
	journal_retire(f, nested);
	visibility_drop(f);
	if (f->mode == FILE_ENGAGED)
		back_off(f);
}

static bool answer_file(struct file *f)
{
	struct file_guard g;
	bool answered = false;

	if (!atomic_load(&f->leased))
		return false;
	g = file_lock(f);
	if (lease_is_ours(f) && !lease_intact(f->leased)) {
		give_way(f, false);
		answered = true;
	}
	file_unlock(f, g);
	return answered;
}

static void visit_answer(struct file *f, void *ctx)
{
	(void)ctx;
	answer_file(f);
}

/* The kernel names the descriptor by which the lease was taken; it may be closed by now, or another file's. */
static void answer(const siginfo_t *info)
{
	struct ofd *o = info->si_code > 0 ? fdtable_get(info->si_fd) : NULL;

	if (!o || !answer_file(atomic_load(&o->file)))
		file_for_each(visit_answer, NULL);
}

static bool any_held(void) { return atomic_load(&watcher.held) > 0; }

static void *watch(void *arg)
{
	uint32_t quiet = 0;

	(void)arg;
	thread_one_begin(&watcher.thread);
	for (;;) {
		struct timespec tick = {.tv_nsec = TICK_MS * 1000000};
		siginfo_t info;
		int r = thread_wait_signal(&info, &tick);

		if (r > 0)
			answer(&info);
		else if (r == 0 && atomic_load(&watcher.held) > 0)
			/* the kernel sends something else when too many signals are queued */
			file_for_each(visit_answer, NULL);
		quiet = atomic_load(&watcher.held) > 0 ? 0 : quiet + (r == 0);
		if ((quiet >= QUIET_TICKS || atomic_load(&watcher.stop)) &&
		    thread_one_leave(&watcher.thread, any_held))
			return NULL;
	}
}

/* One more lease: the watcher's thread id, or -errno. */
static int watcher_hold(void)
{
	int r;

	atomic_fetch_add(&watcher.held, 1);
	r = thread_one_need(&watcher.thread, watch);
	if (r < 0)
		atomic_fetch_sub(&watcher.held, 1);
	return r;
}

static void watcher_release(void) { atomic_fetch_sub(&watcher.held, 1); }

static void say_refusal(const struct file *f, int error)
{
	if (!atomic_exchange(&refusal_said, true))
		log_warn(
			"rule %s: visibility = strict, but no lease can be had on %s: %s (error %d); such files are "
			"written through",
			f->rule->name, slot_of(f) ? slot_of(f)->path : "a file",
			error == EACCES ? "it belongs to another user"
					: "its file system has none that counts",
			error);
}

void visibility_pass(struct file *f)
{
	/* another member of the family may still have to hand a position over */
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (o->pos_mode != POS_KERNEL)
			return;
	/* (with a journal each write counts, see file->changed) */
	if (f->mode == FILE_ENGAGED && !f->head && f->lease_wait_us && !journal_file_is(f))
		atomic_store(&f->lease_pass, true);
}

bool visibility_passes(struct file *f)
{
	if (!atomic_load_explicit(&f->lease_pass, memory_order_relaxed))
		return false;
	stage_pass_begin(f);
	if (atomic_load(&f->lease_pass) && sys_now_ns() < atomic_load(&f->lease_retry_ns))
		return true;
	stage_pass_end(f);
	return false;
}

bool visibility_stop_passing(struct file *f)
{
	atomic_store(&f->lease_pass, false);
	return atomic_load(&f->inflight) == 0;
}

int visibility_hold(struct file *f, struct ofd *o, bool nested)
{
	int r;

	if (f->leased)
		return 1;
	if (family_set_count(&o->holders) > 1)
		return -BYPASS_FORK; /* it was opened while another thread forked */
	/* (staged without a lease: the kernel took it away from a process that was stopped for too long, or the
	 * bytes could not be written when somebody opened the file) */
	if (nested || f->head || (f->lease_wait_us && sys_now_ns() < f->lease_retry_ns))
		return 0;
	if (!visibility_stop_passing(f))
		return 0;
	if (!f->lease_proves) {
		if (!visibility_for_journal(f))
			say_refusal(f, EOPNOTSUPP);
		return -BYPASS_NO_LEASE;
	}
	flush_close_own(f);
	f->no_own_fd = true;
	r = watcher_hold();
	if (r == -EDEADLK)
		return 0; /* in a signal handler: with a later write */
	if (r < 0)
		return -BYPASS_NO_THREAD;
	r = lease_take_for(ofd_fd(o), r);
	if (r < 0) {
		watcher_release();
		if (r != -EAGAIN) {
			if (!visibility_for_journal(f))
				say_refusal(f, -r);
			return -BYPASS_NO_LEASE;
		}
		back_off(f);
		return 0;
	}
	atomic_store_explicit(&f->leased, o, memory_order_relaxed);
	show_state(f, SLOT_LEASED);
	f->journal.asked_ns = sys_now_ns();
	journal_file_changed(f);
	/* others may have written, and cut off what we had reserved */
	attach_refresh(f, ofd_fd(o));
	if (f->lease_wait_us)
		prealloc_again(f, ofd_fd(o));
	f->lease_wait_us = 0;
	return 1;
}

void visibility_drop_slow(struct file *f)
{
	if (!lease_is_ours(f))
		return;
	lease_drop(ofd_fd(f->leased));
	atomic_store_explicit(&f->leased, NULL, memory_order_relaxed);
	show_state(f, 0);
	watcher_release();
}

bool visibility_proves(const struct file *f) { return lease_intact(f->leased); }

void visibility_before_open(int dirfd, const char *path)
{
	struct file_guard g;
	struct statx st;
	struct file *f;

	if (atomic_load_explicit(&watcher.held, memory_order_relaxed) == 0 || !path ||
	    sys.statx(dirfd, path, 0, STATX_INO, &st) < 0)
		return;
	f = file_find(sys_dev_of(&st), st.stx_ino);
	if (!f || !atomic_load(&f->leased))
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (lease_is_ours(f) && same_file(f, sys_dev_of(&st), st.stx_ino))
		give_way(f, g.nested);
	file_unlock(f, g);
}

void visibility_fork(struct file *f, bool nested)
{
	if (!visibility_is(f) || f->mode == FILE_THROUGH)
		return;
	if (visibility_for_journal(f)) {
		/* staged as any other from now on, and its syncs go to the file */
		journal_retire(f, nested);
		if (f->leased && flush_settle(f, nested) < 0)
			attach_bypass(f, BYPASS_FORK, nested);
		visibility_drop(f);
		visibility_not_for_journal(f);
		return;
	}
	attach_bypass(f, BYPASS_FORK, nested);
	visibility_drop(f);
}

void visibility_after_fork(void)
{
	thread_one_after_fork(&watcher.thread);
	watcher.held = 0;
	watcher.stop = false;
}

static void visit_give_way(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	if (!atomic_load(&f->leased))
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (lease_is_ours(f))
		give_way(f, g.nested);
	file_unlock(f, g);
}

void visibility_stop(void)
{
	sys_sigset signals;

	if (thread_one_gone(&watcher.thread))
		return;
	signals = sys_block_signals();
	atomic_store(&watcher.stop, true);
	file_for_each(visit_give_way, NULL);
	/* it may be about to begin */
	while (!thread_one_gone(&watcher.thread)) {
		pid_t tid = thread_one_id(&watcher.thread);

		if (tid && atomic_load(&watcher.held) > 0)
			file_for_each(visit_give_way, NULL);
		else if (tid)
			sys_raw(SYS_tgkill, sys_getpid(), tid, THREAD_SIGNAL, 0, 0, 0);
		sys_nap(100000);
	}
	atomic_store(&watcher.stop, false);
	sys_restore_signals(signals);
}
