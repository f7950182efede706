// SPDX-License-Identifier: Apache-2.0
/* cancel: makes calls that the library answers without the C library cancellation points, as POSIX
 * requires. */
#ifndef FASTWRITE_HOOKS_CANCEL_H
#define FASTWRITE_HOOKS_CANCEL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* A thread has called pthread_cancel. */
extern _Atomic bool cancel_used;

/* Called at the entry of a hook, where no lock is held. */
static inline void cancel_point(void)
{
	if (__builtin_expect(atomic_load_explicit(&cancel_used, memory_order_relaxed), 0))
		pthread_testcancel();
}

#endif
