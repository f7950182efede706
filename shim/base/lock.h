// SPDX-License-Identifier: Apache-2.0
/*
 * lock: a 32-bit futex word that holds the owner's thread id; FUTEX_LOCK_PI when contended.
 *
 * Uncontended lock and unlock are one compare-and-swap each, without a system call.  By the owner's id a
 * signal handler sees that it interrupted the owner (LOCK_NESTED), and the kernel finds out that an owner is
 * dead.
 *
 * Taking it is an acquire, dropping it a release, and everything that a lock protects may be plain.  Where
 * the kernel hands the lock over, it does both: FUTEX_UNLOCK_PI and FUTEX_LOCK_PI change the word under a
 * lock of the kernel, by an operation with full order.  What a dead owner stored is visible when the kernel
 * says that it is dead.  lock_owner is relaxed: it only tells whether the owner is this thread.
 *
 * Lock order (outermost first; debug builds assert it):
 *   LOCK_ATTACH  one per process: fork, exec and attaching a file
 *   LOCK_FAMILY  one per family: processes join and leave
 *   LOCK_LEAD    one per log: its epoch
 *   LOCK_ORDER   one per log: names that come and go, and what the log says
 *   LOCK_FILE    one per file; never two at once
 *   LOCK_JOURNAL one per journal: the batch that is being filled
 *   LOCK_ARENA   one per arena: allocation of blocks and file entries
 *   LOCK_HASH    one per family: files by identity
 *   LOCK_POOL    one per family: structures of files, open file descriptions and processes
 *   LOCK_QUEUE   one per process: the queue of the worker threads
 */
#ifndef FASTWRITE_BASE_LOCK_H
#define FASTWRITE_BASE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum lock_rank {
	LOCK_ATTACH = 1,
	LOCK_FAMILY,
	LOCK_LEAD,
	LOCK_ORDER,
	LOCK_FILE,
	LOCK_JOURNAL,
	LOCK_ARENA,
	LOCK_HASH,
	LOCK_POOL,
	LOCK_QUEUE
};

struct lock {
	_Atomic uint32_t word; /* 0 free, else owner's thread id, FUTEX_WAITERS set when others sleep */
#ifdef __SANITIZE_THREAD__
	_Atomic uint32_t last; /* pid of the process that last released it */
#endif
};

/*
 * For the thread sanitizer, which sees no other process.  Acquiring a lock last held by another process
 * synchronises with all our earlier releases: the other process may have seen what they published.
 */
#ifdef __SANITIZE_THREAD__
void lock_taken(struct lock *l);
void lock_given(struct lock *l);
#else
static inline void lock_taken(struct lock *l) { (void)l; }
static inline void lock_given(struct lock *l) { (void)l; }
#endif

enum lock_result {
	LOCK_TAKEN,
	LOCK_NESTED,
	LOCK_INHERITED, /* taken; its owner died while holding it, its data may be half changed */
};

extern __thread uint32_t lock_tid; /* this thread's id, 0 = not known yet */
uint32_t lock_tid_slow(void);

static inline uint32_t lock_self(void)
{
	uint32_t tid = lock_tid;

	return __builtin_expect(tid != 0, 1) ? tid : lock_tid_slow();
}

static inline bool lock_try(struct lock *l, uint32_t tid)
{
	uint32_t expected = 0;

	if (!atomic_compare_exchange_strong_explicit(&l->word, &expected, tid, memory_order_acquire,
	                                             memory_order_relaxed))
		return false;
	lock_taken(l);
	return true;
}

/* The processor's hint for a spin loop. */
static inline void lock_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}
/* Thread id of the owner, 0 = none. */
uint32_t lock_owner(const struct lock *l);

/* Takes the lock.  LOCK_NESTED: this thread owns it already, because the caller runs in a signal handler that
 * interrupted the owner; the caller must not unlock. */
enum lock_result lock_take(struct lock *l, enum lock_rank rank);

/* Takes the lock if it is free. */
bool lock_take_free(struct lock *l, enum lock_rank rank);

void lock_drop_slow(struct lock *l);

static inline void lock_drop_fast(struct lock *l, uint32_t tid)
{
	uint32_t expected = tid;

	/* a signal handler forked, and this is the child: the parent owns the lock */
	if (__builtin_expect(*(volatile uint32_t *)&lock_tid != tid, 0))
		return;
	lock_given(l);
	if (!atomic_compare_exchange_strong_explicit(&l->word, &expected, 0, memory_order_release,
	                                             memory_order_relaxed))
		lock_drop_slow(l);
}

void lock_drop(struct lock *l, enum lock_rank rank);

/* In the child of a fork: the thread has a new id and owns none of the parent's locks. */
void lock_after_fork(void);

#endif
