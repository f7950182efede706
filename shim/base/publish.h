// SPDX-License-Identifier: Apache-2.0
/*
 * publish: a compare-and-swap by the holder of a lock.
 *
 * Only a signal handler of this thread may also write the word.  So one instruction that no signal can split
 * is enough, without a bus lock.  Other threads and processes may read it: on x86-64 every store is a
 * release.
 */
#ifndef FASTWRITE_BASE_PUBLISH_H
#define FASTWRITE_BASE_PUBLISH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

static inline bool publish_swap(_Atomic uint64_t *word, uint64_t expected, uint64_t desired)
{
/* the thread sanitizer must see the operation */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	bool equal;

	__asm__ volatile("cmpxchgq %3, %1"
	                 : "=@cce"(equal), "+m"(*word), "+a"(expected)
	                 : "r"(desired)
	                 : "memory");
	return equal;
#else
	return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_release,
	                                               memory_order_relaxed);
#endif
}

static inline bool publish_swap_32(_Atomic uint32_t *word, uint32_t expected, uint32_t desired)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	bool equal;

	__asm__ volatile("cmpxchgl %3, %1"
	                 : "=@cce"(equal), "+m"(*word), "+a"(expected)
	                 : "r"(desired)
	                 : "memory");
	return equal;
#else
	return atomic_compare_exchange_strong_explicit(word, &expected, desired, memory_order_release,
	                                               memory_order_relaxed);
#endif
}

#endif
