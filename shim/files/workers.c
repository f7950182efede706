// SPDX-License-Identifier: Apache-2.0
/* workers: see files/workers.h. */
#include "files/workers.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"

#include <fcntl.h>

enum { IDLE_EXIT_MS = WORKERS_IDLE_MS, QUEUE_DEEP = 2, TIDS_MAX = 16 };

static PROCESS_DATA struct {
	struct lock lock; /* LOCK_QUEUE: everything below */
	struct file *first, *last;
	_Atomic uint32_t depth;
	struct thread_one leader;        /* keeps the time and gets the lease signals; ends last */
	uint32_t helpers;                /* other threads that run */
	uint32_t sleepers;               /* threads asleep, leader included */
	_Atomic uint32_t events;         /* futex */
	_Atomic bool armed;              /* the timer runs, or has been told to */
	_Atomic bool stopping;           /* workers_stop is under way: all threads end, none starts */
	_Atomic uint32_t tids[TIDS_MAX]; /* of helpers that run or have just ended */
	uint32_t pace_ms;
} workers = {.pace_ms = 100};

static const struct workers_jobs *_Atomic jobs;
static __thread bool is_worker, is_leader;

void workers_set(const struct workers_jobs *set) { atomic_store_explicit(&jobs, set, memory_order_release); }

bool workers_is_self(void) { return is_worker; }

void workers_apart(void (*act)(void *ctx), void *ctx)
{
	if (is_worker)
		sys_apart(act, ctx);
	else
		act(ctx);
}

pid_t workers_tid(void) { return thread_one_id(&workers.leader); }

void workers_set_interval(uint32_t lag_ms) { workers.pace_ms = lag_ms ? lag_ms : 1; }

static void wake(int count)
{
	atomic_fetch_add(&workers.events, 1);
	sys_futex_wake((uint32_t *)&workers.events, count);
}

static struct file *queue_pop(void)
{
	struct file *f;

	lock_take(&workers.lock, LOCK_QUEUE);
	f = workers.first;
	if (f) {
		workers.first = file_local(f)->queue_next;
		if (!workers.first)
			workers.last = NULL;
		workers.depth--;
		file_local(f)->queue_next = NULL;
		atomic_store(&file_local(f)->queued, 0);
	}
	lock_drop(&workers.lock, LOCK_QUEUE);
	return f;
}

static void sleep_ns(uint32_t seen, uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	sys_futex_wait((uint32_t *)&workers.events, seen, &t);
}

static bool leader_needed(void)
{
	bool needed;

	lock_take(&workers.lock, LOCK_QUEUE);
	needed = workers.first || workers.helpers > 0 ||
	         (atomic_load(&workers.armed) && !atomic_load(&workers.stopping));
	lock_drop(&workers.lock, LOCK_QUEUE);
	return needed;
}

static bool helper_leaves(void)
{
	bool leaves;

	lock_take(&workers.lock, LOCK_QUEUE);
	leaves = !workers.first;
	if (leaves)
		workers.helpers--;
	lock_drop(&workers.lock, LOCK_QUEUE);
	return leaves;
}

/* True if this thread may end: no work came in since. */
static bool try_leave(void)
{
	return is_leader ? thread_one_leave(&workers.leader, leader_needed) : helper_leaves();
}

static void fall_asleep(uint32_t seen, uint64_t until_ns)
{
	uint64_t now = sys_now_ns();

	lock_take(&workers.lock, LOCK_QUEUE);
	workers.sleepers++;
	lock_drop(&workers.lock, LOCK_QUEUE);
	sleep_ns(seen, until_ns > now ? until_ns - now : 0);
	lock_take(&workers.lock, LOCK_QUEUE);
	workers.sleepers--;
	lock_drop(&workers.lock, LOCK_QUEUE);
}

static void note_helper(void)
{
	lock_take(&workers.lock, LOCK_QUEUE);
	for (int i = 0; i < TIDS_MAX; i++) {
		uint32_t tid = workers.tids[i];

		if (tid == 0 || !thread_lives(tid)) {
			workers.tids[i] = lock_self();
			break;
		}
	}
	lock_drop(&workers.lock, LOCK_QUEUE);
}

static void work(void)
{
	const uint64_t patience = IDLE_EXIT_MS * 1000000ull;
	uint64_t next_scan = 0;
	uint64_t last_work = sys_now_ns();
	bool idle = false;
	bool waits = false;

	is_worker = true;
	for (;;) {
		uint32_t seen = atomic_load(&workers.events);
		struct file *f = queue_pop();
		uint64_t now;

		jobs->tend();
		if (f)
			jobs->file(f);
		now = sys_now_ns();
		/* one thread keeps the time; while it ticks, workers_arm has nothing to do */
		if (is_leader && (now >= next_scan || (waits && atomic_load(&workers.armed)))) {
			uint64_t wait;

			atomic_store(&workers.armed, false);
			/* (the look reads deadlines by relaxed loads, see workers_arm) */
			atomic_thread_fence(memory_order_seq_cst);
			wait = jobs->look(workers.pace_ms, &idle, &waits);
			next_scan = now + wait;
			if (!waits)
				atomic_store(&workers.armed, true);
		}
		if (f || (is_leader && !idle))
			last_work = now;
		if (f)
			continue;
		if (is_leader && idle && now - last_work >= patience && !atomic_load(&workers.stopping))
			jobs->rest();
		if ((now - last_work >= patience || atomic_load(&workers.stopping)) && try_leave())
			return;
		fall_asleep(seen, is_leader ? next_scan : now + patience);
	}
}

static void *lead(void *arg)
{
	(void)arg;
	is_leader = true;
	thread_one_begin(&workers.leader);
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

/* Starts one more thread, unless enough run already. */
static void helper_add(void)
{
	sys_sigset signals = signals_block();
	bool make;

	lock_take(&workers.lock, LOCK_QUEUE);
	make = workers.helpers < WORKERS_MAX - 1 && !atomic_load(&workers.stopping);
	if (make)
		workers.helpers++;
	lock_drop(&workers.lock, LOCK_QUEUE);
	if (make && thread_make(help) < 0) {
		lock_take(&workers.lock, LOCK_QUEUE);
		workers.helpers--;
		lock_drop(&workers.lock, LOCK_QUEUE);
	}
	sys_restore_signals(signals);
}

int workers_start(void)
{
	int r = atomic_load(&workers.stopping) ? -EAGAIN : thread_one_need(&workers.leader, lead);

	return r < 0 ? r : 0;
}

uint32_t workers_threads(void)
{
	uint32_t n;

	lock_take(&workers.lock, LOCK_QUEUE);
	n = workers.helpers + (workers_tid() != 0);
	lock_drop(&workers.lock, LOCK_QUEUE);
	return n;
}

static bool all_gone(void)
{
	for (int i = 0; i < TIDS_MAX; i++) {
		uint32_t tid = atomic_load(&workers.tids[i]);

		if (tid != 0 && thread_lives(tid))
			return false;
	}
	return workers_threads() == 0 && thread_one_gone(&workers.leader);
}

void workers_stop(void)
{
	uint64_t give_up = sys_now_ns() + 1000000000u;

	atomic_store(&workers.stopping, true);
	do {
		wake(WORKERS_MAX);
		sys_nap(50000);
	} while (!all_gone() && sys_now_ns() < give_up);
}

int workers_resume(void)
{
	atomic_store(&workers.stopping, false);
	/* the timer finds its work when it starts anew */
	atomic_store(&workers.armed, true);
	return workers_start();
}

void workers_nudge(void) { wake(WORKERS_MAX); }

void workers_kick(struct file *f)
{
	bool deep, asleep;

	if (atomic_exchange(&file_local(f)->queued, 1))
		return;
	lock_take(&workers.lock, LOCK_QUEUE);
	file_local(f)->queue_next = NULL;
	if (workers.last)
		file_local(workers.last)->queue_next = f;
	else
		workers.first = f;
	workers.last = f;
	workers.depth++;
	deep = workers.depth > QUEUE_DEEP && workers.helpers < WORKERS_MAX - 1;
	asleep = workers.sleepers > 0;
	lock_drop(&workers.lock, LOCK_QUEUE);
	if (asleep)
		wake(1);
	else
		atomic_fetch_add(&workers.events, 1);
	if (deep)
		helper_add();
}

bool workers_busy(void) { return atomic_load_explicit(&workers.depth, memory_order_relaxed) > 0; }

bool workers_arm(void)
{
	/* In one order with the caller's store of a deadline (seq_cst): either this load finds `false`, or
	 * the look that follows the store of `false` finds the deadline. */
	if (!atomic_load(&workers.armed) && !atomic_exchange(&workers.armed, true)) {
		signals_harden();
		if (workers_start() < 0) {
			atomic_store(&workers.armed, false);
			return false;
		}
		wake(WORKERS_MAX);
	}
	return true;
}

PROCESS_CODE void workers_after_fork(void)
{
	/* The lock is free, or held by a thread that this process does not have.  (A fork cannot wait for it
	 * and keep it: it next waits for the lock of all streams, and the thread that has that may write.) */
	if (!lock_try(&workers.lock, lock_self()))
		workers.lock.word = lock_self();
	workers.first = workers.last = NULL;
	workers.depth = 0;
	workers.helpers = workers.sleepers = 0;
	lock_drop_fast(&workers.lock, lock_self());
	thread_one_after_fork(&workers.leader);
	workers.armed = workers.stopping = false;
	for (int i = 0; i < TIDS_MAX; i++)
		workers.tids[i] = 0;
	is_worker = is_leader = false;
}
