// SPDX-License-Identifier: Apache-2.0
/* watcher: see attach/watcher.h. */
#include "attach/watcher.h"

#include "attach/attach.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/fdtable.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/prealloc.h"
#include "flush/visibility.h"
#include "sync/journal_file.h"

#include <fcntl.h>

enum {
	TICK_MS = 100,
	QUIET_TICKS = 10, /* ticks without a lease until the watcher ends */
	RETRY_FIRST_US = 500,
	RETRY_MOST_US = 16000,
};

static PROCESS_DATA struct {
	struct thread_one thread;
	_Atomic bool stop;
} watcher;

static _Atomic bool refusal_said;

/* The file is open elsewhere: sets when to ask for the lease again. */
static void back_off(struct file *f)
{
	struct arena_entry *entry = visibility_entry(f);

	if (!f->lease.wait_us)
		f->lease.wait_us = RETRY_FIRST_US;
	else if (f->lease.wait_us < RETRY_MOST_US)
		f->lease.wait_us *= 2;
	f->lease.retry_ns = sys_now_ns() + f->lease.wait_us * 1000ull;
	if (entry && !(atomic_fetch_or(&entry->flags, ENTRY_BUSY_SEEN) & ENTRY_BUSY_SEEN))
		atomic_fetch_add(&f->arena->header->live.through[BYPASS_LEASE_BUSY], 1);
	visibility_show(f, ENTRY_LEASE_BUSY);
}

static bool same_file(const struct file *f, uint64_t dev, uint64_t ino)
{
	return f->dev == dev && f->ino == ino;
}

/* File lock held: the log cannot be emptied, and a replay would write what it has over what others write. */
static bool keeps_others_out(const struct file *f)
{
	return ordered_holds(f) && visibility_is_breaking(f) && !atomic_load(&watcher.stop);
}

/* File lock held.  Drains the file, then drops the lease, so that the open can go on.  Bytes that cannot be
 * written (e.g. the disk is full) would not become visible by waiting.  But as long as a replay would write
 * what the log has over theirs, others wait, until the kernel takes the lease.  False: f has become another
 * file, or keeps it. */
static bool give_way(struct file *f, bool to_others)
{
	uint64_t dev = f->dev, ino = f->ino;
	bool held = false, is_same;

	if (file_needs_lease(f))
		held = ordered_hold(f) == 0;
	else
		flush_drain(f);
	/* (the lock may have been free) */
	is_same = same_file(f, dev, ino) && !(to_others && !held && keeps_others_out(f));
	if (is_same && held && flush_is_kept(f)) {
		/* The lease ends with our copy of the descriptor.  As long as that is open, no process can
		 * start the file as a program. */
		visibility_forget(f);
		(void)detach_file(f);
		if (flush_kept_fd(f) >= 0)
			lease_drop(flush_kept_fd(f));
	} else if (is_same) {
		journal_retire(f);
		visibility_drop(f);
	}
	if (held)
		ordered_hold_cancel(f);
	return is_same;
}

/* The same; the next try for a lease comes later. */
static void give_way_to_others(struct file *f)
{
	if (give_way(f, true) && f->mode == FILE_ATTACHED)
		back_off(f);
}

/* The same for a file in order, so that this process can open it once more. */
static void give_way_to_own(struct file *f)
{
	uint64_t begin = sys_now_ns();

	(void)give_way(f, false);
	ordered_paid(f->rule, begin);
}

static bool answer_file(struct file *f)
{
	struct file_guard g;
	bool answered = false;

	if (!atomic_load(&f->lease.on))
		return false;
	g = file_lock(f);
	if (visibility_lease_is_ours(f) && !visibility_lease_seen(f)) {
		give_way_to_others(f);
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

/* Nothing is staged, and the log has nothing of the file. */
static void visit_rest(struct file *f, void *ctx)
{
	uint32_t tid = lock_self();

	(void)ctx;
	if (!atomic_load(&f->lease.on) || !lock_try(&f->lock, tid))
		return;
	if (file_needs_lease(f) && visibility_lease_is_ours(f) && !file_is_staged(f) && !ordered_holds(f))
		visibility_drop(f);
	lock_drop_fast(&f->lock, tid);
}

/* The kernel names the descriptor by which the lease was taken.  It may be closed by now, or refer to another
 * file. */
static void answer(const siginfo_t *info)
{
	struct ofd *o = info->si_code > 0 ? fdtable_get(info->si_fd) : NULL;

	if (!o || !answer_file(atomic_load(&o->file)))
		file_for_each(visit_answer, NULL);
}

static bool any_held(void) { return atomic_load(&visibility_leases) > 0; }

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
		else if (r == 0 && any_held()) {
			/* when too many signals are queued, the kernel sends SIGIO instead */
			file_for_each(visit_answer, NULL);
			file_for_each(visit_rest, NULL);
		}
		quiet = atomic_load(&visibility_leases) > 0 ? 0 : quiet + (r == 0);
		if ((quiet >= QUIET_TICKS || atomic_load(&watcher.stop)) &&
		    thread_one_leave(&watcher.thread, any_held))
			return NULL;
	}
}

/* Counts one more lease and makes sure that the watcher runs.  Its thread id, or -errno. */
static int need_watcher(void)
{
	int r;

	atomic_fetch_add(&visibility_leases, 1);
	r = thread_one_need(&watcher.thread, watch);
	if (r < 0)
		atomic_fetch_sub(&visibility_leases, 1);
	return r;
}

static void say_refusal(const struct file *f, int error)
{
	if (!atomic_exchange(&refusal_said, true))
		log_warn("rule %s: %s, but no lease can be had on %s: %s (error %d); such files are bypassed",
		         f->rule->name,
		         file_needs_lease(f) ? "writers = exclusive is not set" : "visibility = strict",
		         visibility_entry(f) ? visibility_entry(f)->path : "a file",
		         error == EACCES ? "it belongs to another user"
		                         : "its file system has no leases that others respect",
		         error);
}

int watcher_hold(struct file *f, struct ofd *o)
{
	/* its rule promises that nobody else has it open */
	bool promised = file_is_ordered(f) && !file_needs_lease(f), staged;
	uint32_t changes = atomic_load(&fdtable_changes);
	int r;

	if (f->lease.on)
		return 1;
	signals_harden();
	if (family_set_count(&o->holders) > 1)
		return -BYPASS_FORK; /* opened while another thread forked */
	/* (The program may be about to have a second description, or none.  Or a thread writes through our
	 * copy of a descriptor, which would have to be closed.) */
	if (promised && (fdtable_is_changing() || (atomic_load(&f->flush.busy) && file_has_own_fd(f))))
		return 1;
	/* (Bytes may be staged without a lease.  The kernel takes it from a process that is stopped for too
	 * long.  Or the bytes could not be written when the file was opened elsewhere.  A file in order was
	 * open twice.) */
	staged = file_is_staged(f);
	if (f->nested || (staged && !promised) || (f->lease.wait_us && sys_now_ns() < f->lease.retry_ns))
		return 0;
	if (file_needs_lease(f) && atomic_load(&f->flush.busy))
		return 0;
	if (!visibility_stop_passing(f))
		return 0;
	if (!f->lease.proves) {
		if (!visibility_for_journal(f))
			say_refusal(f, EOPNOTSUPP);
		return -BYPASS_NO_LEASE;
	}
	flush_close_internal(f);
	f->no_internal_fd = true;
	r = need_watcher();
	if (r == -EDEADLK)
		return 0; /* in a signal handler: a later write tries again */
	if (r < 0)
		return -BYPASS_NO_THREAD;
	r = lease_take_for(ofd_fd(o), r);
	if (r < 0) {
		atomic_fetch_sub(&visibility_leases, 1);
		if (r != -EAGAIN) {
			if (!visibility_for_journal(f))
				say_refusal(f, -r);
			return -BYPASS_NO_LEASE;
		}
		if (promised && fdtable_has_changed(changes))
			return 1;
		back_off(f);
		return 0;
	}
	atomic_store_explicit(&f->lease.on, o, memory_order_relaxed);
	f->lease.seen_ns = sys_now_ns();
	visibility_show(f, ENTRY_LEASED);
	if (journal_file_is(f))
		journaled_asked(f);
	journal_file_changed(f);
	/* other processes may have written, and cut off the space that we had reserved */
	if (!staged)
		attach_refresh(f, ofd_fd(o));
	if (file_needs_lease(f))
		f->order.fresh = true;
	if (f->lease.wait_us)
		prealloc_again(f, ofd_fd(o));
	f->lease.wait_us = 0;
	return 1;
}

void watcher_before_open(uint64_t dev, uint64_t ino)
{
	struct file_guard g;
	struct file *f = file_find(dev, ino);

	if (!f || !atomic_load(&f->lease.on))
		return;
	g = file_lock(f);
	if (visibility_lease_is_ours(f) && same_file(f, dev, ino)) {
		if (file_needs_lease(f))
			give_way_to_own(f);
		/* (the program alone has it open, also when it has it open twice) */
		else if (file_is_ordered(f) && visibility_lease_intact(f))
			visibility_drop(f);
		else
			give_way_to_others(f);
	}
	file_unlock(f, g);
}

void watcher_fork(struct file *f)
{
	if (!visibility_is(f) || f->mode == FILE_BYPASSED)
		return;
	/* (it is staged again only when no other process has it, see attach/attach.c) */
	if (file_is_ordered(f) && f->mode == FILE_PASSIVE)
		return;
	if (visibility_for_journal(f)) {
		/* staged like any other file from now on; its syncs go to the file */
		journal_retire(f);
		if (f->lease.on && flush_drain(f) < 0)
			attach_bypass(f, BYPASS_FORK);
		visibility_drop(f);
		visibility_not_for_journal(f);
		return;
	}
	attach_bypass(f, BYPASS_FORK);
	visibility_drop(f);
}

PROCESS_CODE void watcher_after_fork(void)
{
	thread_one_after_fork(&watcher.thread);
	visibility_leases = 0;
	watcher.stop = false;
}

static void visit_give_way(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	if (!atomic_load(&f->lease.on))
		return;
	g = file_lock(f);
	if (visibility_lease_is_ours(f))
		give_way_to_others(f);
	file_unlock(f, g);
}

void watcher_stop(void)
{
	sys_sigset signals;

	if (thread_one_gone(&watcher.thread))
		return;
	signals = signals_block();
	atomic_store(&watcher.stop, true);
	file_for_each(visit_give_way, NULL);
	/* the thread may be about to begin */
	while (!thread_one_gone(&watcher.thread)) {
		pid_t tid = thread_one_id(&watcher.thread);

		if (tid && atomic_load(&visibility_leases) > 0)
			file_for_each(visit_give_way, NULL);
		else if (tid)
			sys_raw(SYS_tgkill, sys_getpid(), tid, THREAD_SIGNAL, 0, 0, 0);
		sys_nap(100000);
	}
	atomic_store(&watcher.stop, false);
	sys_restore_signals(signals);
}
