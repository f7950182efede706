// SPDX-License-Identifier: Apache-2.0
/* buffer: see base/buffer.h. */
#include "base/buffer.h"

#include "base/process_pages.h"
#include "base/sys.h"

#include <limits.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { COUNT = 32, LARGE_COUNT = 8 };
_Static_assert(BUFFER_BYTES >= PATH_MAX, "a path fits");

/* Buffers of one size, and of each the thread that has it; 0: none. */
struct pool {
	uint8_t *first;
	_Atomic uintptr_t *owners;
	size_t bytes, count;
};

static alignas(64) uint8_t buffers[COUNT][BUFFER_BYTES], large_buffers[LARGE_COUNT][BUFFER_LARGE_BYTES];
static PROCESS_DATA _Atomic uintptr_t owners[COUNT], large_owners[LARGE_COUNT];

/* Its address stands for a thread: it costs no system call, and in the child of a fork the thread that forked
 * still has it.  So a handler that forks leaves the child the buffers of what it interrupted. */
static __thread uint8_t mark;

static struct pool small(void) { return (struct pool){buffers[0], owners, BUFFER_BYTES, COUNT}; }
static struct pool large(void)
{
	return (struct pool){large_buffers[0], large_owners, BUFFER_LARGE_BYTES, LARGE_COUNT};
}

/* NULL: all are in use. */
static void *take_fixed(struct pool p)
{
	for (size_t i = 0; i < p.count; i++) {
		uintptr_t nobody = 0;

		if (atomic_load_explicit(&p.owners[i], memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong_explicit(&p.owners[i], &nobody, (uintptr_t)&mark,
		                                            memory_order_acquire, memory_order_relaxed))
			return p.first + i * p.bytes;
	}
	return NULL;
}

static void *take(struct pool p)
{
	for (;;) {
		void *buffer = take_fixed(p);

		if (buffer)
			return buffer;
		buffer = sys.mmap(NULL, p.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (!sys_is_error(buffer))
			return buffer;
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
	}
}

static void give(struct pool p, void *buffer)
{
	size_t at = (size_t)((uint8_t *)buffer - p.first);

	if (at < p.count * p.bytes)
		atomic_store_explicit(&p.owners[at / p.bytes], 0, memory_order_release);
	else
		sys.munmap(buffer, p.bytes);
}

PROCESS_CODE static void keep_own(struct pool p)
{
	for (size_t i = 0; i < p.count; i++)
		if (atomic_load(&p.owners[i]) != 0 && atomic_load(&p.owners[i]) != (uintptr_t)&mark)
			atomic_store(&p.owners[i], 0);
}

void *buffer_take(void) { return take(small()); }
void buffer_give(void *buffer) { give(small(), buffer); }
void *buffer_take_large(void) { return take(large()); }
void buffer_give_large(void *buffer) { give(large(), buffer); }

PROCESS_CODE void buffer_fork_child(void)
{
	keep_own(small());
	keep_own(large());
}
