// SPDX-License-Identifier: Apache-2.0
/* lock: see base/lock.h. */
#include "base/lock.h"

#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"

#include <assert.h>
#include <linux/futex.h>

__thread uint32_t lock_tid;

/* The kernel hands the lock over; the thread sanitizer does not see that. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define KERNEL_GAVE(l) __tsan_acquire(l)
#define KERNEL_TAKES(l) __tsan_release(l)

static char any_lock;
static _Atomic uint32_t process_id;

static uint32_t this_process(void)
{
	uint32_t pid = process_id;

	if (pid == 0)
		process_id = pid = (uint32_t)sys_getpid();
	return pid;
}

void lock_taken(struct lock *l)
{
	uint32_t last = atomic_load_explicit(&l->last, memory_order_relaxed);

	if (last != 0 && last != this_process())
		__tsan_acquire(&any_lock);
}

void lock_given(struct lock *l)
{
	atomic_store_explicit(&l->last, this_process(), memory_order_relaxed);
	__tsan_release(&any_lock);
}
#else
#define KERNEL_GAVE(l) (void)(l)
#define KERNEL_TAKES(l) (void)(l)
#endif

/* one pause instruction each, some 40 ns; together about the time of a sleep and a wake-up */
enum { SPINS_MAX = 1000 };

#ifdef FASTWRITE_DEBUG
static __thread uint32_t held_ranks; /* bit r: a lock of rank r is held by this thread */

static void rank_enter(enum lock_rank rank)
{
	/* the thread holds no lock of this rank or a later one */
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

PROCESS_CODE uint32_t lock_tid_slow(void) { return lock_tid = (uint32_t)sys_gettid(); }

PROCESS_CODE void lock_after_fork(void)
{
	lock_tid = 0;
#ifdef __SANITIZE_THREAD__
	process_id = 0;
#endif
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

/* The kernel's answer about an owner means: no such thread, or a kernel thread.  (A seccomp filter may answer
 * -EPERM to every call.) */
static bool says_gone(long r)
{
	_Atomic uint32_t nobodys = 0;

	return r == -ESRCH || (r == -EPERM && try_pi(&nobodys) == 0);
}

/* Asks the kernel about the owner `tid`, by a word that only this thread uses. */
static bool is_gone(uint32_t tid)
{
	_Atomic uint32_t word = tid;

	return says_gone(try_pi(&word));
}

PROCESS_CODE enum lock_result lock_take(struct lock *l, enum lock_rank rank)
{
	uint32_t tid = lock_self();

	/* A writer holds the lock for tens of nanoseconds at a time.  If we slept, its unlock would hand the
	 * lock to a thread that has yet to wake up, and both would stall.  So spin, unless other threads
	 * sleep already. */
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
	/* (a thread that waits is in no short section any more) */
	signals_harden();
	for (;;) {
		long r = sys_raw(SYS_futex, (long)&l->word, FUTEX_LOCK_PI, 0, 0, 0, 0);

		if (r < 0 && r != -EDEADLK) {
			/*
			 * The owner is dead and no thread slept: replace it by hand.  All that it published
			 * is whole (see staging/stage.h); it acknowledged nothing else.  Another thread may
			 * have replaced it first, so the word may name an owner that the kernel has not
			 * judged.  Three things make this safe: the kernel says that this owner is dead; no
			 * thread sleeps, to which the kernel would hand the lock; and one compare-and-swap
			 * takes the lock, so that no other thread sees it free.
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
			/* clear the flag: the next owner finds the data repaired */
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

bool lock_take_free(struct lock *l, enum lock_rank rank)
{
	if (!lock_try(l, lock_self()))
		return false;
	rank_enter(rank);
	return true;
}

void lock_drop_slow(struct lock *l)
{
	uint32_t word = atomic_load_explicit(&l->word, memory_order_relaxed);

	/* the word may still have FUTEX_OWNER_DIED, if the kernel handed us a dead owner's lock; that is only
	 * a flag */
	if (!(word & FUTEX_WAITERS) && atomic_compare_exchange_strong(&l->word, &word, 0))
		return;
	KERNEL_TAKES(l);
	sys_raw(SYS_futex, (long)&l->word, FUTEX_UNLOCK_PI, 0, 0, 0, 0);
}

PROCESS_CODE void lock_drop(struct lock *l, enum lock_rank rank)
{
	rank_leave(rank);
	lock_drop_fast(l, lock_self());
}
