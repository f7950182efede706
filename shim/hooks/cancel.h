// SPDX-License-Identifier: Apache-2.0
/* cancel: calls that are answered without the C library are cancellation points all the same. */
#ifndef FASTWRITE_CANCEL_H
#define FASTWRITE_CANCEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Somebody called pthread_cancel. */
extern _Atomic bool cancel_used;

/* At the entry of a hook, where nothing is held. */
static inline void cancel_point(void)
{
	if (__builtin_expect(atomic_load_explicit(&cancel_used, memory_order_relaxed), 0))
		pthread_testcancel();
}

#endif
