// SPDX-License-Identifier: Apache-2.0
/*
 * pool: numbers 1 to `count` of things in shared memory, each free or taken.  Lock-free: any process of the
 * family and any signal handler may take and give.  A process that is killed just before it gives something
 * back, or a handler that leaves the interrupted code for good there, loses that one thing.
 *
 * The first 32-bit word of a free thing links it to the next one.  Things that were never taken are counted
 * only, so that their memory is not touched.
 */
#ifndef FASTWRITE_PAGES_POOL_H
#define FASTWRITE_PAGES_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool {
	_Atomic uint64_t head;  /* number of the first free thing; above it a tag that every take changes */
	_Atomic uint32_t fresh; /* the numbers above were never taken */
	uint32_t count;
	uint8_t *things;
	size_t stride;
};

void pool_init(struct pool *p, void *things, size_t stride, uint32_t count);

/* A number, or 0 if none is free. */
uint32_t pool_take(struct pool *p);
void pool_give(struct pool *p, uint32_t number);

/* More than a quarter of the things was never needed. */
static inline bool pool_is_ample(const struct pool *p)
{
	return atomic_load_explicit(&p->fresh, memory_order_relaxed) < p->count - p->count / 4;
}

#endif
