// SPDX-License-Identifier: Apache-2.0
/* pool: see pages/pool.h. */
#include "pages/pool.h"

static _Atomic uint32_t *link_of(const struct pool *p, uint32_t number)
{
	return (_Atomic uint32_t *)(void *)(p->things + (size_t)(number - 1) * p->stride);
}

void pool_init(struct pool *p, void *things, size_t stride, uint32_t count)
{
	p->head = 0;
	p->fresh = 0;
	p->count = count;
	p->things = things;
	p->stride = stride;
}

static uint32_t take_fresh(struct pool *p)
{
	uint32_t fresh = atomic_load_explicit(&p->fresh, memory_order_relaxed);

	while (fresh < p->count)
		if (atomic_compare_exchange_weak(&p->fresh, &fresh, fresh + 1))
			return fresh + 1;
	return 0;
}

uint32_t pool_take(struct pool *p)
{
	uint64_t head = atomic_load_explicit(&p->head, memory_order_acquire);

	while ((uint32_t)head != 0) {
		/* the link may be anything if another thread has just taken the thing; then the tag differs
		 */
		uint32_t next = atomic_load_explicit(link_of(p, (uint32_t)head), memory_order_relaxed);
		uint64_t desired = ((head >> 32) + 1) << 32 | next;

		if (atomic_compare_exchange_weak_explicit(&p->head, &head, desired, memory_order_acq_rel,
		                                          memory_order_acquire))
			return (uint32_t)head;
	}
	return take_fresh(p);
}

void pool_give(struct pool *p, uint32_t number)
{
	uint64_t head = atomic_load_explicit(&p->head, memory_order_relaxed);
	uint64_t desired;

	do {
		atomic_store_explicit(link_of(p, number), (uint32_t)head, memory_order_relaxed);
		desired = (head & ~0xffffffffull) | number;
	} while (!atomic_compare_exchange_weak_explicit(&p->head, &head, desired, memory_order_release,
	                                                memory_order_relaxed));
}
