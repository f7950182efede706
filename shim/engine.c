// SPDX-License-Identifier: Apache-2.0
/* engine: see engine.h. */
#include "engine.h"

#include "flush.h"
#include "log.h"
#include "stage.h"
#include "sync.h"
#include "sys.h"

#include <limits.h>
#include <pthread.h>
#include <unistd.h>

enum { IDLE_EXIT_MS = 1000, STACK_BYTES = 128 * 1024, QUEUE_DEEP = 2, RUNS_MAX = 8 };

static struct {
	struct lock lock; /* LOCK_QUEUE: everything below */
	struct file *first, *last;
	uint32_t depth;
	uint32_t threads;        /* running */
	uint32_t sleepers;       /* of these asleep */
	_Atomic uint32_t events; /* futex */
	_Atomic uint32_t tid;    /* of the thread that leases name, 0 = none runs */
	_Atomic bool armed;      /* the timer ticks, or has been told to */
	uint32_t pace_ms;
} engine = {.pace_ms = 100};

static __thread bool is_engine;

bool engine_is_self(void) { return is_engine; }

pid_t engine_tid(void) { return (pid_t)atomic_load(&engine.tid); }

void engine_set_pace(uint32_t lag_ms) { engine.pace_ms = lag_ms ? lag_ms : 1; }

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
		engine.first = f->queue_next;
		if (!engine.first)
			engine.last = NULL;
		engine.depth--;
		f->queue_next = NULL;
		atomic_store(&f->queued, 0);
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
	}
	engine_kick(f);
}

/* Flushes what is sealed; for the timer, everything that was staged when it looked. */
static void flush_file(struct file *f)
{
	struct file_guard g = file_lock(f);

	if (f->mode == FILE_ENGAGED && f->arena && !atomic_load(&f->busy)) {
		if (f->lag_due && f->current) {
			stage_seal(f);
			f->lag_seq = f->tail->meta->seq;
		}
		f->lag_due = false;
		flush_runs(f);
	}
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

static void visit_file(struct file *f, void *ctx)
{
	struct due *d = ctx;
	uint64_t relaxed = f->relaxed_due_ns;
	struct file_guard g;

	if (atomic_load_explicit(&f->mode, memory_order_relaxed) != FILE_ENGAGED && relaxed == 0)
		return;
	g = file_lock(f);
	if (f->mode == FILE_ENGAGED && f->head) {
		uint64_t deadline = f->head->opened_ns + f->rule->set.lag_ms * 1000000ull;

		if (deadline <= d->now) {
			f->lag_due = true;
			engine_kick(f);
			/* a flush that failed, or one under way, is looked at again */
			deadline = d->now + f->rule->set.lag_ms * 1000000ull;
		}
		note_deadline(d, deadline);
	}
	if (f->relaxed_due_ns) {
		if (f->relaxed_due_ns <= d->now)
			sync_relaxed_due(f);
		else
			note_deadline(d, f->relaxed_due_ns);
	}
	file_unlock(f, g);
}

/* Milliseconds until the next look, or IDLE_EXIT_MS with *idle when nothing is staged anywhere. */
static uint64_t timer_scan(bool *idle)
{
	struct due d = {.now = sys_now_ns(), .next = UINT64_MAX};
	uint64_t pace = engine.pace_ms;
	uint64_t wait;

	file_for_each(visit_file, &d);
	*idle = d.next == UINT64_MAX;
	if (*idle)
		return IDLE_EXIT_MS;
	wait = d.next > d.now ? (d.next - d.now) / 1000000 + 1 : 1;
	return wait < pace ? wait : pace;
}

static void sleep_ms(uint32_t seen, uint64_t ms)
{
	struct timespec t = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};

	sys_futex_wait((uint32_t *)&engine.events, seen, &t);
}

/* Takes the signals of broken leases out of the queue: they were answered by lease_drop. */
static void drain_signals(void)
{
	sys_sigset all = ~(sys_sigset)0;
	struct timespec none = {0};

	while (sys_raw(SYS_rt_sigtimedwait, (long)&all, 0, (long)&none, sizeof all, 0, 0) > 0)
		;
}

/*
 * True when this thread may end: nothing came in since.  The thread whose id the leases name goes last.  The
 * id is withdrawn before `armed` is looked at for the last time, and engine_arm sets `armed` before it looks at
 * the id: so either we stay, or it starts a new thread.
 */
static bool try_leave(void)
{
	bool leave;

	lock_take(&engine.lock, LOCK_QUEUE);
	leave = !engine.first && (engine.threads == 1 || engine_tid() != (pid_t)lock_self());
	if (leave && engine.threads == 1) {
		atomic_store(&engine.tid, 0);
		if (atomic_load(&engine.armed)) {
			atomic_store(&engine.tid, lock_self());
			leave = false;
		}
	}
	if (leave)
		engine.threads--;
	lock_drop(&engine.lock, LOCK_QUEUE);
	return leave;
}

static bool is_leader(void) { return engine_tid() == (pid_t)lock_self(); }

static void fall_asleep(uint32_t seen, uint64_t until_ns)
{
	uint64_t now = sys_now_ns();

	lock_take(&engine.lock, LOCK_QUEUE);
	engine.sleepers++;
	lock_drop(&engine.lock, LOCK_QUEUE);
	sleep_ms(seen, until_ns > now ? (until_ns - now) / 1000000 + 1 : 1);
	lock_take(&engine.lock, LOCK_QUEUE);
	engine.sleepers--;
	lock_drop(&engine.lock, LOCK_QUEUE);
}

static void *engine_main(void *arg)
{
	const uint64_t patience = IDLE_EXIT_MS * 1000000ull;
	uint64_t next_scan = 0;
	uint64_t last_work = sys_now_ns();
	bool idle = false;

	(void)arg;
	is_engine = true;
	lock_take(&engine.lock, LOCK_QUEUE);
	if (engine_tid() == 0)
		atomic_store(&engine.tid, lock_self());
	lock_drop(&engine.lock, LOCK_QUEUE);
	for (;;) {
		uint32_t seen = atomic_load(&engine.events);
		struct file *f = queue_pop();
		uint64_t now;

		if (f) {
			flush_file(f);
			drain_signals();
		}
		now = sys_now_ns();
		/* one thread keeps the time; while it ticks, engine_arm has nothing to do */
		if (is_leader() && (now >= next_scan || (idle && atomic_load(&engine.armed)))) {
			atomic_store(&engine.armed, false);
			next_scan = now + timer_scan(&idle) * 1000000;
			if (!idle)
				atomic_store(&engine.armed, true);
		}
		if (f || (is_leader() && !idle))
			last_work = now;
		if (f)
			continue;
		if (now - last_work >= patience && try_leave())
			return NULL;
		fall_asleep(seen, is_leader() ? next_scan : now + patience);
	}
}

static size_t stack_size(void)
{
	long least = sysconf(_SC_THREAD_STACK_MIN); /* includes the static TLS of the program */

	return STACK_BYTES + (least > 0 ? (size_t)least : PTHREAD_STACK_MIN);
}

/* Called with all signals blocked, which the new thread inherits. */
static int thread_make(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	r = pthread_attr_init(&attr);
	if (r == 0) {
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_attr_setstacksize(&attr, stack_size());
		r = pthread_create(&thread, &attr, engine_main, NULL);
		pthread_attr_destroy(&attr);
	}
	return -r;
}

/* One more thread unless `most` run already. */
static int thread_add(uint32_t most)
{
	sys_sigset signals = sys_block_signals();
	bool make;
	int r = 0;

	lock_take(&engine.lock, LOCK_QUEUE);
	make = engine.threads < most;
	if (make)
		engine.threads++;
	lock_drop(&engine.lock, LOCK_QUEUE);
	if (make) {
		r = thread_make();
		if (r < 0) {
			lock_take(&engine.lock, LOCK_QUEUE);
			engine.threads--;
			lock_drop(&engine.lock, LOCK_QUEUE);
		}
	}
	sys_restore_signals(signals);
	return r;
}

int engine_start(void)
{
	int r = thread_add(1);

	/* its id is needed for leases */
	while (r == 0 && engine_tid() == 0)
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	return r;
}

void engine_kick(struct file *f)
{
	bool deep, asleep;

	if (atomic_exchange(&f->queued, 1))
		return;
	lock_take(&engine.lock, LOCK_QUEUE);
	f->queue_next = NULL;
	if (engine.last)
		engine.last->queue_next = f;
	else
		engine.first = f;
	engine.last = f;
	engine.depth++;
	deep = engine.depth > QUEUE_DEEP && engine.threads < ENGINE_THREADS_MAX;
	asleep = engine.sleepers > 0;
	lock_drop(&engine.lock, LOCK_QUEUE);
	if (asleep)
		wake(1);
	else
		atomic_fetch_add(&engine.events, 1);
	if (deep)
		thread_add(ENGINE_THREADS_MAX);
}

void engine_arm(void)
{
	if (!atomic_load_explicit(&engine.armed, memory_order_relaxed) &&
	    !atomic_exchange(&engine.armed, true)) {
		if (engine_tid() == 0)
			engine_start();
		wake(ENGINE_THREADS_MAX);
	}
}

void engine_after_fork(void)
{
	engine.lock.word = 0;
	engine.first = engine.last = NULL;
	engine.depth = 0;
	engine.threads = engine.sleepers = 0;
	engine.tid = 0;
	engine.armed = false;
	is_engine = false;
}
