// SPDX-License-Identifier: Apache-2.0
/*
 * lock: one 32-bit word, owner's thread id inside, FUTEX_LOCK_PI underneath.
 *
 * Uncontended lock and unlock are one compare-and-swap each and no system call.  The owner's id in the word
 * tells a signal handler that it interrupted the owner (LOCK_NESTED), and lets the kernel name a dead owner.
 *
 * Lock order (outermost first; debug builds assert it):
 *   LOCK_ENGAGE  one of the process: fork, exec and the first engagement of a file
 *   LOCK_FAMILY  one of the family: members come and go
 *   LOCK_FILE    one per file; never two at once
 *   LOCK_JOURNAL one per journal: the batch that is being filled
 *   LOCK_ARENA   one per arena: block and slot allocation
 *   LOCK_HASH    one of the family: files by identity
 *   LOCK_POOL    one of the family: file and open file description structures, members
 *   LOCK_QUEUE   one of the process: the flush engine's queue
 */
#ifndef FASTWRITE_LOCK_H
#define FASTWRITE_LOCK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum lock_rank {
	LOCK_ENGAGE = 1,
	LOCK_FAMILY,
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
	_Atomic uint32_t last; /* member of the family that gave it back, + 1 */
#endif
};

/*
 * The thread sanitizer does not see what another process does with shared memory.  Who takes a lock that another
 * process had comes after everything that this one gave any lock back for, since the other one may have seen that.
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
	LOCK_INHERITED, /* taken; its last owner died with it, so what it protects may be half changed */
};

extern __thread uint32_t lock_tid; /* this thread's id, 0 = not asked for yet */
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

/* What a processor likes to hear between two looks at a word that another one will change. */
static inline void lock_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#else
	__asm__ volatile("yield");
#endif
}
/* The thread that owns it, 0 = none. */
uint32_t lock_owner(const struct lock *l);

/* Takes the lock, or returns LOCK_NESTED when this very thread owns it already: the caller runs in a signal
 * handler that interrupted the owner, and must not unlock. */
enum lock_result lock_take(struct lock *l, enum lock_rank rank);

void lock_drop_slow(struct lock *l);

static inline void lock_drop_fast(struct lock *l, uint32_t tid)
{
	uint32_t expected = tid;

	/* a handler that interrupted the owner has forked, and this is the child: the lock is the parent's */
	if (__builtin_expect(*(volatile uint32_t *)&lock_tid != tid, 0))
		return;
	lock_given(l);
	if (!atomic_compare_exchange_strong_explicit(&l->word, &expected, 0, memory_order_release,
	                                             memory_order_relaxed))
		lock_drop_slow(l);
}

void lock_drop(struct lock *l, enum lock_rank rank);

/* In the child of a fork: the calling thread has a new id, and no lock of the parent is ours. */
void lock_after_fork(void);

#endif
