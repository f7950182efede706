// SPDX-License-Identifier: Apache-2.0
/* timer: see attach/timer.h. */
#include "attach/timer.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/family.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "staging/stage.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>

enum { WATCH_MS = 1000, RUNS_MAX = 8, LOCK_TRIES = 200 };

static bool more_to_flush(const struct file *f)
{
	return f->mode == FILE_ENGAGED && f->arena && f->head && !atomic_load(&f->busy) &&
	       (f->head->meta->seq <= f->lag_seq || flush_worth(f));
}

/* One run after the other, without letting go of the lock in between, so that the device has something to do; but
 * not for ever, since other files wait for this thread. */
static void flush_runs(struct file *f)
{
	for (int runs = 0; runs < RUNS_MAX; runs++) {
		if (flush_run(f, false) < 0 || !more_to_flush(f))
			return;
		if (f->idle_waiters > 0)
			return; /* they settle the rest themselves */
		if (workers_busy())
			break; /* others may be overdue */
	}
	workers_kick(f);
}

/* Flushes what is sealed; for the timer, everything that was staged when it looked. */
static void look_after(struct file *f)
{
	struct file_guard g = file_lock(f);

	if (!g.nested && file_flusher_died(f))
		file_repair(f);
	if (file_local(f)->refs && f->mode == FILE_ENGAGED && f->arena && !atomic_load(&f->busy) &&
	    flush_possible(f)) {
		if (f->lag_due) {
			stage_seal(f);
			if (f->tail)
				f->lag_seq = f->tail->meta->seq;
		}
		f->lag_due = false;
		flush_runs(f);
	}
	if (f->bypass_wanted)
		attach_bypass(f, f->bypass_wanted, false);
	else if (f->release_wanted)
		detach_file(f, false);
	if (f->zero_wanted && file_local(f)->refs)
		flush_zeros(f);
	if (f->relaxed_due_ns && f->relaxed_due_ns <= sys_now_ns())
		sync_relaxed_due(f);
	if (file_local(f)->refs && journal_file_idle_at(f) <= sys_now_ns())
		journal_file_rest(f);
	file_unlock(f, g);
}

struct due {
	uint64_t now;
	uint64_t next; /* earliest deadline that lies in the future */
};

static void note_deadline(struct due *d, uint64_t deadline)
{
	if (deadline < d->next)
		d->next = deadline;
}

/* Writers have the lock for nanoseconds.  Whoever has it longer is in the kernel with the file, and other files
 * must not wait for that. */
static bool lock_soon(struct file *f)
{
	uint32_t tid = lock_self();

	for (int i = 0; i < LOCK_TRIES; i++) {
		if (lock_try(&f->lock, tid)) {
			f->pinned = NULL;
			return true;
		}
		lock_pause();
	}
	return false;
}

/* Early enough that the flush, behind those of other files, is over in time. */
static uint64_t lag_ns(const struct file *f) { return f->rule->set.lag_ms * 750000ull; }
/* Until a file that could not be dealt with is looked at again, and between any two looks. */
static uint64_t step_ns(uint32_t lag_ms) { return lag_ms * 125000ull; }

static void visit_file(struct file *f, void *ctx)
{
	struct due *d = ctx;
	uint64_t relaxed = atomic_load_explicit(&f->relaxed_due_ns, memory_order_relaxed);

	if (atomic_load_explicit(&f->flags_left, memory_order_relaxed))
		workers_kick(f); /* taking the lock is enough */
	if (atomic_load_explicit(&f->mode, memory_order_relaxed) != FILE_ENGAGED && relaxed == 0)
		return;
	if (!lock_soon(f)) {
		/* or its holder has died: look_after finds out */
		if (f->shared)
			workers_kick(f);
		note_deadline(d, d->now);
		return;
	}
	if (f->damaged || file_flusher_died(f))
		workers_kick(f);
	if (f->mode == FILE_ENGAGED && f->head) {
		uint64_t deadline = f->head->opened_ns + lag_ns(f);

		if (deadline <= d->now) {
			f->lag_due = true;
			workers_kick(f);
			/* one that is under way is looked at again soon, one that fails less often */
			deadline = d->now + (f->error ? lag_ns(f) : step_ns(f->rule->set.lag_ms));
		}
		note_deadline(d, deadline);
	}
	if (f->bypass_wanted || f->release_wanted)
		workers_kick(f);
	if (journal_file_idle_at(f) <= d->now)
		workers_kick(f);
	note_deadline(d, journal_file_idle_at(f) > d->now ? journal_file_idle_at(f) : d->now + lag_ns(f));
	if (f->relaxed_due_ns && file_fd(f) >= 0) {
		if (f->relaxed_due_ns <= d->now)
			workers_kick(f);
		note_deadline(d, f->relaxed_due_ns);
	}
	lock_drop_fast(&f->lock, lock_self());
}

static void visit_shared(struct file *f, void *ctx)
{
	if (f->shared && atomic_load_explicit(&f->mode, memory_order_relaxed) == FILE_ENGAGED)
		*(bool *)ctx = true;
}

/*
 * Threads of the program: with none left the process is to end, and nothing of ours may keep it.  Asked without a
 * descriptor: the program's next one must have the lowest number, and this thread runs beside it.
 */
static bool program_runs(void)
{
	struct statx st;
	char exe[8];
	uint32_t count;

	/* . and .. and one directory per thread */
	if (sys.statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &st) < 0 || st.stx_nlink < 2)
		return false;
	count = st.stx_nlink - 2;
	/* a leader that has called pthread_exit counts, but does not run: it has no memory any more */
	if (sys.readlinkat(AT_FDCWD, "/proc/self/exe", exe, sizeof exe) < 0)
		count--;
	return count > thread_count();
}

static bool family_watches(void)
{
	bool any = false;

	if (family_is_shared())
		file_for_each(visit_shared, &any);
	return any && program_runs();
}

static uint64_t look(uint32_t pace_ms, bool *idle, bool *waits)
{
	struct due d = {.now = sys_now_ns(), .next = UINT64_MAX};
	uint64_t least = step_ns(pace_ms);
	uint64_t most = pace_ms * 750000ull;
	uint64_t wait;

	file_for_each(visit_file, &d);
	*waits = *idle = d.next == UINT64_MAX;
	/* another member may be killed with bytes staged in a file that we have, too */
	if (*idle && family_watches()) {
		*idle = false;
		return WATCH_MS * 1000000ull;
	}
	if (*idle)
		return WORKERS_IDLE_MS * 1000000ull;
	wait = d.next > d.now ? d.next - d.now : 0;
	/* with many files something is always about to be due: look at all of them, now and then */
	if (wait < least)
		wait = least;
	return wait < most ? wait : most;
}

void timer_set(void)
{
	static const struct workers_jobs jobs = {
		.file = look_after, .look = look, .tend = attach_tend, .rest = attach_retire_idle};

	workers_set(&jobs);
}
