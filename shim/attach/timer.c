// SPDX-License-Identifier: Apache-2.0
/* timer: see attach/timer.h. */
#include "attach/timer.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/family.h"
#include "files/workers.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "staging/stage.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>

enum { WATCH_MS = 1000, RUNS_MAX = 8 };

static bool more_to_flush(const struct file *f)
{
	return f->mode == FILE_ATTACHED && f->arena && f->head && !atomic_load(&f->flush.busy) &&
	       (f->head->meta->seq <= f->flush.lag_seq || flush_worth(f));
}

/* Flushes several runs without dropping the lock in between, so that the device is busy.  At most RUNS_MAX:
 * other files wait for this thread. */
static void flush_runs(struct file *f)
{
	for (int runs = 0; runs < RUNS_MAX; runs++) {
		if (flush_run(f, false) < 0 || !more_to_flush(f))
			return;
		if (f->flush.idle_waiters > 0)
			return; /* the waiting threads drain the rest themselves */
		if (workers_busy())
			break; /* other files may be overdue */
	}
	workers_kick(f);
}

/* A file system that somebody has frozen would keep this thread waiting below, and with it all threads that
 * wait for the lock of f. */
static void wait_thawed(struct file *f)
{
	struct file_guard g = file_lock(f);
	int fd = f->mode == FILE_ATTACHED ? flush_program_fd(f) : -1;

	file_unlock(f, g);
	if (fd >= 0)
		sys_wait_thawed(fd);
}

/* Flushes sealed blocks, or everything that is staged if the flush is due. */
static void look_after(struct file *f)
{
	struct file_guard g;

	wait_thawed(f);
	g = file_lock(f);
	if (!f->nested && file_flusher_died(f))
		file_repair(f);
	if (f->mode == FILE_ATTACHED && file_is_paged(f) &&
	    (file_is_due(f, DUE_FLUSH, sys_now_ns()) || flush_worth(f)))
		ordered_flush(f); /* it reports an error */
	if (file_local(f)->refs && f->mode == FILE_ATTACHED && f->arena && !atomic_load(&f->flush.busy) &&
	    flush_possible(f)) {
		if (file_is_due(f, DUE_FLUSH, sys_now_ns())) {
			stage_seal(f);
			if (f->tail)
				f->flush.lag_seq = f->tail->meta->seq;
		}
		flush_runs(f);
		/* after an error, try less often */
		if (f->flush.error && file_is_staged(f))
			f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	}
	attach_as_wanted(f);
	if (file_is_due(f, DUE_SYNC, sys_now_ns()))
		sync_relaxed_due(f);
	if (file_is_due(f, DUE_CLOSED, sys_now_ns()))
		attach_closed_due(f);
	if (file_is_due(f, DUE_JOURNAL, sys_now_ns()) && file_local(f)->refs)
		journal_file_rest(f);
	file_unlock(f, g);
}

struct look {
	uint64_t now;
	uint64_t next; /* earliest deadline */
};

/* Does not take the file's lock: its owner may be in the kernel with the file, and others must not wait for
 * that. */
static void visit_file(struct file *f, void *ctx)
{
	struct look *l = ctx;
	bool attached = atomic_load_explicit(&f->mode, memory_order_relaxed) == FILE_ATTACHED;
	bool kick = f->flush.flags_left || (attached && f->wanted);

	/* (a dead process may hold the lock) */
	if (attached && f->shared)
		kick |= f->needs_repair || file_flusher_died(f) || lock_owner(&f->lock) != 0;
	for (int i = 0; i < DUE_COUNT; i++) {
		uint64_t due = atomic_load_explicit(&f->due[i], memory_order_relaxed);

		if (!due)
			continue;
		kick |= due <= l->now;
		if (due < l->next)
			l->next = due;
	}
	if (kick)
		workers_kick(f);
}

static void visit_shared(struct file *f, void *ctx)
{
	if (f->shared && atomic_load_explicit(&f->mode, memory_order_relaxed) == FILE_ATTACHED)
		*(bool *)ctx = true;
}

/* True if a thread of the program still runs.  If none does, the process is to end, and no thread of ours may
 * keep it alive. */
static bool program_runs(void)
{
	unsigned count = thread_of_program_count();
	char exe[8];

	/* A main thread that has called pthread_exit is counted but does not run: it has no memory any
	 * more. */
	return count > 1 || (count == 1 && sys.readlinkat(AT_FDCWD, "/proc/self/exe", exe, sizeof exe) >= 0);
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
	struct look l = {.now = sys_now_ns(), .next = UINT64_MAX};
	uint64_t least = pace_ms * 125000ull; /* shortest time between two looks */
	uint64_t most = pace_ms * 750000ull;
	uint64_t wait, due;

	file_for_each(visit_file, &l);
	due = ordered_tend(l.now);
	if (due < l.next)
		l.next = due;
	*waits = *idle = l.next == UINT64_MAX;
	/* another process may be killed with bytes staged in a file that we have, too */
	if (*idle && family_watches()) {
		*idle = false;
		return WATCH_MS * 1000000ull;
	}
	if (*idle)
		return WORKERS_IDLE_MS * 1000000ull;
	wait = l.next > l.now ? l.next - l.now : 0;
	/* With many files something is always due soon: wait a little, then look at all of them. */
	if (wait < least)
		wait = least;
	return wait < most ? wait : most;
}

static void tend(void)
{
	attach_tend();
	ordered_write_owed();
}

void timer_set(void)
{
	static const struct workers_jobs jobs = {
		.file = look_after, .look = look, .tend = tend, .rest = attach_retire_idle};

	workers_set(&jobs);
}
