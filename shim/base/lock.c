// SPDX-License-Identifier: Apache-2.0
/* lock: see base/lock.h. */
#include "base/lock.h"

#include "base/sys.h"
#include "process/family.h"

#include <assert.h>
#include <linux/futex.h>

__thread uint32_t lock_tid;

/* The kernel hands the lock over where the thread sanitizer cannot see it. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define KERNEL_GAVE(l) __tsan_acquire(l)
#define KERNEL_TAKES(l) __tsan_release(l)

static char any_lock;

void lock_taken(struct lock *l)
{
	uint32_t last = atomic_load_explicit(&l->last, memory_order_relaxed);

	if (last != 0 && last != family_me + 1)
		__tsan_acquire(&any_lock);
}

void lock_given(struct lock *l)
{
	atomic_store_explicit(&l->last, family_me + 1, memory_order_relaxed);
	__tsan_release(&any_lock);
}
#else
#define KERNEL_GAVE(l) (void)(l)
#define KERNEL_TAKES(l) (void)(l)
#endif

/* of one pause instruction each, some 40 ns: about as long as going to sleep and waking up takes */
enum { SPINS_MAX = 1000 };

#ifdef FASTWRITE_DEBUG
static __thread uint32_t held_ranks; /* bit r: a lock of rank r is held by this thread */

static void rank_enter(enum lock_rank rank)
{
	/* a lock may only be taken while nothing of its own or a later rank is held */
	assert((held_ranks >> rank) == 0);
	held_ranks |= 1u << rank;
}

static void rank_leave(enum lock_rank rank)
{
	assert(held_ranks & (1u << rank));
	held_ranks &= ~(1u << rank);
}
#else
static void rank_enter(enum lock_rank rank) { (void)rank; }
static void rank_leave(enum lock_rank rank) { (void)rank; }
#endif

uint32_t lock_tid_slow(void) { return lock_tid = (uint32_t)sys_gettid(); }

void lock_after_fork(void)
{
	lock_tid = 0;
#ifdef FASTWRITE_DEBUG
	held_ranks = 0;
#endif
}

uint32_t lock_owner(const struct lock *l)
{
	return atomic_load_explicit(&l->word, memory_order_relaxed) & FUTEX_TID_MASK;
}

static long try_pi(_Atomic uint32_t *word)
{
	return sys_raw(SYS_futex, (long)word, FUTEX_TRYLOCK_PI, 0, 0, 0, 0);
}

/* What the kernel says of an owner: there is no thread of this number, or it is one of its own.  (A filter of system calls
 * may say -EPERM of everything.) */
static bool says_gone(long r)
{
	_Atomic uint32_t nobodys = 0;

	return r == -ESRCH || (r == -EPERM && try_pi(&nobodys) == 0);
}

/* The kernel judges a word of our own that this thread has. */
static bool is_gone(uint32_t tid)
{
	_Atomic uint32_t word = tid;

	return says_gone(try_pi(&word));
}

enum lock_result lock_take(struct lock *l, enum lock_rank rank)
{
	uint32_t tid = lock_self();

	/* Held for tens of nanoseconds by a writer, again and again: sleeping would make it hand the lock over to a
	 * thread that has yet to wake up, and stall both.  Who finds others asleep queues up behind them. */
	for (int spins = 0; spins < SPINS_MAX; spins++) {
		uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);

		if (word == 0 && lock_try(l, tid)) {
			rank_enter(rank);
			return LOCK_TAKEN;
		}
		if ((word & FUTEX_TID_MASK) == tid)
			return LOCK_NESTED;
		if (word & FUTEX_WAITERS)
			break;
		lock_pause();
	}
	for (;;) {
		long r = sys_raw(SYS_futex, (long)&l->word, FUTEX_LOCK_PI, 0, 0, 0, 0);

		if (r < 0 && r != -EDEADLK) {
			/*
			 * The owner's thread is gone and nobody slept: take its place by hand.  What it published is whole
			 * (see staging/stage.h); the rest it never acknowledged.  But another one may have been here first: what
			 * the word says by now is not what the kernel judged.  So that owner must be gone for sure, then
			 * nobody may sleep, to whom the kernel hands the lock over; and in one step, for who comes in between
			 * must not think that all is well.
			 */
			uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);

			if (word == 0) {
				if (lock_try(l, tid))
					break;
				continue;
			}
			if (!says_gone(r) || !is_gone(word & FUTEX_TID_MASK))
				continue; /* also -EINTR and -EAGAIN */
			r = try_pi(&l->word);
			if (says_gone(r)) {
				if (!atomic_compare_exchange_strong(&l->word, &word, tid))
					continue;
				lock_taken(l);
				rank_enter(rank);
				return LOCK_INHERITED;
			}
		}
		if (r == 0) {
			uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);

			KERNEL_GAVE(l);
			lock_taken(l);
			if (!(word & FUTEX_OWNER_DIED))
				break;
			/* the flag is for us alone: the next one finds everything in order */
			while (!atomic_compare_exchange_weak(&l->word, &word,
			                                     word & ~(uint32_t)FUTEX_OWNER_DIED))
				;
			rank_enter(rank);
			return LOCK_INHERITED;
		}
		if (r == -EDEADLK)
			return LOCK_NESTED;
	}
	rank_enter(rank);
	return LOCK_TAKEN;
}

void lock_drop_slow(struct lock *l)
{
	uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);

	/* FUTEX_OWNER_DIED stays behind when the kernel handed us a dead owner's lock: it is only a flag */
	if (!(word & FUTEX_WAITERS) && atomic_compare_exchange_strong(&l->word, &word, 0))
		return;
	KERNEL_TAKES(l);
	sys_raw(SYS_futex, (long)&l->word, FUTEX_UNLOCK_PI, 0, 0, 0, 0);
}

void lock_drop(struct lock *l, enum lock_rank rank)
{
	rank_leave(rank);
	lock_drop_fast(l, lock_self());
}
