// SPDX-License-Identifier: Apache-2.0
/* buffer: see base/buffer.h. */
#include "base/buffer.h"

#include "base/process_pages.h"
#include "base/sys.h"

#include <limits.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

enum { COUNT = 32 };
_Static_assert(BUFFER_BYTES >= PATH_MAX, "a path fits");

static alignas(64) uint8_t buffers[COUNT][BUFFER_BYTES];
static PROCESS_DATA _Atomic uint32_t taken; /* bit i: buffers[i] */
_Static_assert(COUNT == 32, "one bit each");

static void *map(void)
{
	for (;;) {
		void *p = sys.mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		                   -1, 0);

		if (!sys_is_error(p))
			return p;
		if (atomic_load(&taken) != UINT32_MAX)
			return NULL;
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
}

void *buffer_take(void)
{
	for (;;) {
		uint32_t seen = atomic_load_explicit(&taken, memory_order_relaxed);
		void *mapped;

		while (seen != UINT32_MAX) {
			int i = __builtin_ctz(~seen);

			if (atomic_compare_exchange_weak_explicit(&taken, &seen, seen | 1u << i,
			                                          memory_order_acquire, memory_order_relaxed))
				return buffers[i];
		}
		mapped = map();
		if (mapped)
			return mapped;
	}
}

void buffer_give(void *buffer)
{
	size_t at = (size_t)((uint8_t *)buffer - buffers[0]);

	if (at < sizeof buffers)
		atomic_fetch_and_explicit(&taken, ~(1u << at / BUFFER_BYTES), memory_order_release);
	else
		sys.munmap(buffer, BUFFER_BYTES);
}
