// SPDX-License-Identifier: Apache-2.0
/* engine: see flush/engine.h. */
#include "flush/engine.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/thread.h"
#include "flush/flush.h"
#include "staging/attach.h"
#include "staging/stage.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>

enum { IDLE_EXIT_MS = 1000, WATCH_MS = 1000, QUEUE_DEEP = 2, RUNS_MAX = 8, LOCK_TRIES = 200, TIDS_MAX = 16 };

static struct {
	struct lock lock; /* LOCK_QUEUE: everything below */
	struct file *first, *last;
	_Atomic uint32_t depth;
	struct thread_one leader;        /* keeps the time, and is whom leases name; the last to go */
	uint32_t helpers;                /* others that run */
	uint32_t sleepers;               /* of all these asleep */
	_Atomic uint32_t events;         /* futex */
	_Atomic bool armed;              /* the timer ticks, or has been told to */
	_Atomic bool stopping;           /* engine_stop is under way: all leave, none starts */
	_Atomic uint32_t tids[TIDS_MAX]; /* of helpers that run or have just ended */
	uint32_t device_speed_ms;
} engine = {.device_speed_ms = 100};

static __thread bool is_engine, is_leader;

bool engine_is_self(void) { return is_engine; }

pid_t engine_tid(void) { return thread_one_id(&engine.leader); }

void engine_set_pace(uint32_t lag_ms) { engine.device_speed_ms = lag_ms ? lag_ms : 1; }

static void wake(int count)
{
	atomic_fetch_add(&engine.events, 1);
	sys_futex_wake((uint32_t *)&engine.events, count);
}

static struct file *queue_pop(void)
{
	struct file *f;

	lock_take(&engine.lock, LOCK_QUEUE);
	f = engine.first;
	if (f) {
		engine.first = file_local(f)->queue_next;
		if (!engine.first)
			engine.last = NULL;
		engine.depth--;
		file_local(f)->queue_next = NULL;
		atomic_store(&file_local(f)->queued, 0);
	}
	lock_drop(&engine.lock, LOCK_QUEUE);
	return f;
}

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
		if (atomic_load_explicit(&engine.depth, memory_order_relaxed) > 0)
			break; /* others may be overdue */
	}
	engine_kick(f);
}

/* Flushes what is sealed; for the timer, everything that was staged when it looked. */
static void flush_file(struct file *f)
{
	struct file_guard g = file_lock(f);

	if (!g.nested && family_flusher_died(f))
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
		engine_kick(f); /* taking the lock is enough */
	if (atomic_load_explicit(&f->mode, memory_order_relaxed) != FILE_ENGAGED && relaxed == 0)
		return;
	if (!lock_soon(f)) {
		/* or its holder has died: flush_file finds out */
		if (f->shared)
			engine_kick(f);
		note_deadline(d, d->now);
		return;
	}
	if (f->damaged || family_flusher_died(f))
		engine_kick(f);
	if (f->mode == FILE_ENGAGED && f->head) {
		uint64_t deadline = f->head->opened_ns + lag_ns(f);

		if (deadline <= d->now) {
			f->lag_due = true;
			engine_kick(f);
			/* one that is under way is looked at again soon, one that fails less often */
			deadline = d->now + (f->error ? lag_ns(f) : step_ns(f->rule->set.lag_ms));
		}
		note_deadline(d, deadline);
	}
	if (f->bypass_wanted || f->release_wanted)
		engine_kick(f);
	if (journal_file_idle_at(f) <= d->now)
		engine_kick(f);
	note_deadline(d, journal_file_idle_at(f) > d->now ? journal_file_idle_at(f) : d->now + lag_ns(f));
	if (f->relaxed_due_ns && file_fd(f) >= 0) {
		if (f->relaxed_due_ns <= d->now)
			engine_kick(f);
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

static bool engine_watches(void)
{
	bool any = false;

	if (family_is_shared())
		file_for_each(visit_shared, &any);
	return any && program_runs();
}

/* Nanoseconds until the next look.  *waits: nothing is staged anywhere, so that who stages must wake us; *idle: and
 * there is nothing else to watch. */
static uint64_t timer_scan(bool *idle, bool *waits)
{
	struct due d = {.now = sys_now_ns(), .next = UINT64_MAX};
	uint64_t least = step_ns(engine.device_speed_ms);
	uint64_t most = engine.device_speed_ms * 750000ull;
	uint64_t wait;

	file_for_each(visit_file, &d);
	*waits = *idle = d.next == UINT64_MAX;
	/* another member may be killed with bytes staged in a file that we have, too */
	if (*idle && engine_watches()) {
		*idle = false;
		return WATCH_MS * 1000000ull;
	}
	if (*idle)
		return IDLE_EXIT_MS * 1000000ull;
	wait = d.next > d.now ? d.next - d.now : 0;
	/* with many files something is always about to be due: look at all of them, now and then */
	if (wait < least)
		wait = least;
	return wait < most ? wait : most;
}

static void sleep_ns(uint32_t seen, uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	sys_futex_wait((uint32_t *)&engine.events, seen, &t);
}

static bool leader_needed(void)
{
	bool needed;

	lock_take(&engine.lock, LOCK_QUEUE);
	needed = engine.first || engine.helpers > 0 ||
	         (atomic_load(&engine.armed) && !atomic_load(&engine.stopping));
	lock_drop(&engine.lock, LOCK_QUEUE);
	return needed;
}

static bool helper_leaves(void)
{
	bool leaves;

	lock_take(&engine.lock, LOCK_QUEUE);
	leaves = !engine.first;
	if (leaves)
		engine.helpers--;
	lock_drop(&engine.lock, LOCK_QUEUE);
	return leaves;
}

/* True when this thread may end: nothing came in since. */
static bool try_leave(void)
{
	return is_leader ? thread_one_leave(&engine.leader, leader_needed) : helper_leaves();
}

static void fall_asleep(uint32_t seen, uint64_t until_ns)
{
	uint64_t now = sys_now_ns();

	lock_take(&engine.lock, LOCK_QUEUE);
	engine.sleepers++;
	lock_drop(&engine.lock, LOCK_QUEUE);
	sleep_ns(seen, until_ns > now ? until_ns - now : 0);
	lock_take(&engine.lock, LOCK_QUEUE);
	engine.sleepers--;
	lock_drop(&engine.lock, LOCK_QUEUE);
}

static void note_helper(void)
{
	lock_take(&engine.lock, LOCK_QUEUE);
	for (int i = 0; i < TIDS_MAX; i++) {
		uint32_t tid = engine.tids[i];

		if (tid == 0 || !thread_lives(tid)) {
			engine.tids[i] = lock_self();
			break;
		}
	}
	lock_drop(&engine.lock, LOCK_QUEUE);
}

static void work(void)
{
	const uint64_t patience = IDLE_EXIT_MS * 1000000ull;
	uint64_t next_scan = 0;
	uint64_t last_work = sys_now_ns();
	bool idle = false;
	bool waits = false;

	is_engine = true;
	for (;;) {
		uint32_t seen = atomic_load(&engine.events);
		struct file *f = queue_pop();
		uint64_t now;

		attach_tend();
		if (f)
			flush_file(f);
		now = sys_now_ns();
		/* one thread keeps the time; while it ticks, engine_arm has nothing to do */
		if (is_leader && (now >= next_scan || (waits && atomic_load(&engine.armed)))) {
			uint64_t wait;

			atomic_store(&engine.armed, false);
			wait = timer_scan(&idle, &waits);
			next_scan = now + wait;
			if (!waits)
				atomic_store(&engine.armed, true);
		}
		if (f || (is_leader && !idle))
			last_work = now;
		if (f)
			continue;
		if (is_leader && idle && now - last_work >= patience && !atomic_load(&engine.stopping))
			attach_retire_idle();
		if ((now - last_work >= patience || atomic_load(&engine.stopping)) && try_leave())
			return;
		fall_asleep(seen, is_leader ? next_scan : now + patience);
	}
}

static void *lead(void *arg)
{
	(void)arg;
	is_leader = true;
	thread_one_begin(&engine.leader);
	work();
	return NULL;
}

static void *help(void *arg)
{
	(void)arg;
	thread_begin();
	note_helper();
	work();
	return NULL;
}

/* One more thread unless enough run already. */
static void helper_add(void)
{
	sys_sigset signals = sys_block_signals();
	bool make;

	lock_take(&engine.lock, LOCK_QUEUE);
	make = engine.helpers < ENGINE_THREADS_MAX - 1 && !atomic_load(&engine.stopping);
	if (make)
		engine.helpers++;
	lock_drop(&engine.lock, LOCK_QUEUE);
	if (make && thread_make(help) < 0) {
		lock_take(&engine.lock, LOCK_QUEUE);
		engine.helpers--;
		lock_drop(&engine.lock, LOCK_QUEUE);
	}
	sys_restore_signals(signals);
}

int engine_start(void)
{
	int r = atomic_load(&engine.stopping) ? -EAGAIN : thread_one_need(&engine.leader, lead);

	return r < 0 ? r : 0;
}

uint32_t engine_threads(void)
{
	uint32_t n;

	lock_take(&engine.lock, LOCK_QUEUE);
	n = engine.helpers + (engine_tid() != 0);
	lock_drop(&engine.lock, LOCK_QUEUE);
	return n;
}

static bool all_gone(void)
{
	for (int i = 0; i < TIDS_MAX; i++) {
		uint32_t tid = atomic_load(&engine.tids[i]);

		if (tid != 0 && thread_lives(tid))
			return false;
	}
	return engine_threads() == 0 && thread_one_gone(&engine.leader);
}

void engine_stop(void)
{
	uint64_t give_up = sys_now_ns() + 1000000000u;

	atomic_store(&engine.stopping, true);
	do {
		wake(ENGINE_THREADS_MAX);
		sys_nap(50000);
	} while (!all_gone() && sys_now_ns() < give_up);
}

int engine_resume(void)
{
	atomic_store(&engine.stopping, false);
	/* whatever the timer had to look after is found when it starts anew */
	atomic_store(&engine.armed, true);
	return engine_start();
}

void engine_nudge(void) { wake(ENGINE_THREADS_MAX); }

void engine_kick(struct file *f)
{
	bool deep, asleep;

	if (atomic_exchange(&file_local(f)->queued, 1))
		return;
	lock_take(&engine.lock, LOCK_QUEUE);
	file_local(f)->queue_next = NULL;
	if (engine.last)
		file_local(engine.last)->queue_next = f;
	else
		engine.first = f;
	engine.last = f;
	engine.depth++;
	deep = engine.depth > QUEUE_DEEP && engine.helpers < ENGINE_THREADS_MAX - 1;
	asleep = engine.sleepers > 0;
	lock_drop(&engine.lock, LOCK_QUEUE);
	if (asleep)
		wake(1);
	else
		atomic_fetch_add(&engine.events, 1);
	if (deep)
		helper_add();
}

bool engine_arm(void)
{
	if (!atomic_load_explicit(&engine.armed, memory_order_relaxed) &&
	    !atomic_exchange(&engine.armed, true)) {
		if (engine_start() < 0) {
			atomic_store(&engine.armed, false);
			return false;
		}
		wake(ENGINE_THREADS_MAX);
	}
	return true;
}

void engine_fork_prepare(void) { lock_take(&engine.lock, LOCK_QUEUE); }
void engine_fork_parent(void) { lock_drop(&engine.lock, LOCK_QUEUE); }

void engine_after_fork(void)
{
	/* free, or held by a thread that this process does not have */
	if (!lock_try(&engine.lock, lock_self()))
		engine.lock.word = lock_self();
	engine.first = engine.last = NULL;
	engine.depth = 0;
	engine.helpers = engine.sleepers = 0;
	lock_drop_fast(&engine.lock, lock_self());
	thread_one_after_fork(&engine.leader);
	engine.armed = engine.stopping = false;
	for (int i = 0; i < TIDS_MAX; i++)
		engine.tids[i] = 0;
	is_engine = is_leader = false;
}
