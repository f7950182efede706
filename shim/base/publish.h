// SPDX-License-Identifier: Apache-2.0
/*
 * publish: a compare-and-swap by the holder of a lock.
 *
 * Only a signal handler of this thread may also write the word.  So one instruction that no signal can split
 * is enough, without a bus lock.  Other threads and processes may read it: on x86-64 every store is a
 * release.  Elsewhere it is a compare-and-swap with release: what the word publishes is visible before it. It
 * acquires nothing, since the holder of the lock has acquired all that it compares with.
 *
 * One other writer exists: a recoverer outside of the family sets COMMIT_SEALED (format/takeover_format.h).
 */
#ifndef FASTWRITE_BASE_PUBLISH_H
#define FASTWRITE_BASE_PUBLISH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define PUBLISH_SWAP(name, type) \
	static inline bool name(_Atomic type *word, type expected, type desired) \
	{ \
		bool equal; \
\
		__asm__ volatile("cmpxchg %3, %1" \
		                 : "=@cce"(equal), "+m"(*word), "+a"(expected) \
		                 : "r"(desired) \
		                 : "memory"); \
		return equal; \
	}
#else
/* (the thread sanitizer must see the operation) */
#define PUBLISH_SWAP(name, type) \
	static inline bool name(_Atomic type *word, type expected, type desired) \
	{ \
		return atomic_compare_exchange_strong_explicit(word, &expected, desired, \
		                                               memory_order_release, memory_order_relaxed); \
	}
#endif

PUBLISH_SWAP(publish_swap, uint64_t)
PUBLISH_SWAP(publish_swap_32, uint32_t)

#endif
