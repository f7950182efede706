// SPDX-License-Identifier: Apache-2.0
/* page_index, and the pool that it takes its nodes from. */
#include "pages/page_index.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 400, THREADS = 4, TURNS = 20000, THINGS = 64 };

static struct page_node nodes_memory[NODES];
static struct pool nodes;
static struct page_index x;

static void begin(uint32_t count)
{
	/* (nodes that were used before are not zeros) */
	memset(nodes_memory, 0xa5, sizeof nodes_memory);
	pool_init(&nodes, nodes_memory, sizeof *nodes_memory, count);
	x.root = 0;
}

static uint32_t free_nodes(void)
{
	static uint32_t taken[NODES + 1];
	uint32_t n = 0;

	while ((taken[n] = pool_take(&nodes)) != 0)
		n++;
	for (uint32_t i = 0; i < n; i++)
		pool_give(&nodes, taken[i]);
	return n;
}

static void put(uint64_t page, uint32_t value)
{
	_Atomic uint32_t *slot = page_index_slot(&x, &nodes, page, true);

	assert_non_null(slot);
	*slot = value;
}

static uint32_t get(uint64_t page)
{
	_Atomic uint32_t *slot = page_index_slot(&x, &nodes, page, false);

	return slot ? *slot : 0;
}

static const uint64_t far_pages[] = {
	0, 1, 63, 64, 4095, 4096, 1 << 18, 1ull << 24, 1ull << 30, 1ull << 36, 1ull << 48, (1ull << 51) - 1};
enum { FAR = sizeof far_pages / sizeof *far_pages };

static void test_slots(void **state)
{
	uint64_t page = 0;

	(void)state;
	begin(NODES);
	assert_null(page_index_slot(&x, &nodes, 0, false));
	/* the largest first, and the smallest first: the tree grows at its root, and below it */
	for (int order = 0; order < 2; order++) {
		for (unsigned i = 0; i < FAR; i++)
			put(far_pages[order ? FAR - 1 - i : i], i + 1 + (uint32_t)order);
		for (unsigned i = 0; i < FAR; i++)
			assert_int_equal(get(far_pages[order ? FAR - 1 - i : i]), i + 1 + order);
		assert_int_equal(get(2), 0);
		assert_int_equal(get(1ull << 40), 0);
		page = 0;
		for (unsigned i = 0; i < FAR; i++, page++) {
			assert_non_null(page_index_next(&x, &nodes, &page));
			assert_int_equal(page, far_pages[i]);
		}
		assert_null(page_index_next(&x, &nodes, &page));
		page_index_clear(&x, &nodes);
		assert_int_equal(free_nodes(), NODES);
		assert_int_equal(get(0), 0);
		page = 0;
		assert_null(page_index_next(&x, &nodes, &page));
	}
}

/* Random pages against a plain table. */
static void test_random_slots(void **state)
{
	static uint32_t plain[1 << 13];
	const uint64_t most = sizeof plain / sizeof *plain;

	(void)state;
	begin(NODES);
	srandom(7);
	memset(plain, 0, sizeof plain);
	for (int i = 0; i < 20000; i++) {
		uint64_t page = (uint64_t)random() % most, next = page;
		uint32_t value = random() % 3 == 0 ? 0 : (uint32_t)i + 1;
		_Atomic uint32_t *slot;

		put(page, value);
		plain[page] = value;
		page = next = (uint64_t)random() % most;
		assert_int_equal(get(page), plain[page]);
		slot = page_index_next(&x, &nodes, &next);
		while (page < most && plain[page] == 0)
			page++;
		if (page == most) {
			assert_null(slot);
			continue;
		}
		assert_non_null(slot);
		assert_int_equal(next, page);
		assert_int_equal(*slot, plain[page]);
	}
	page_index_clear(&x, &nodes);
	assert_int_equal(free_nodes(), NODES);
}

static void test_no_node_left(void **state)
{
	(void)state;
	begin(3);
	put(64 * 64 + 1, 5);
	assert_null(page_index_slot(&x, &nodes, 64 * 2, true));
	assert_null(page_index_slot(&x, &nodes, 1ull << 40, true));
	assert_int_equal(get(64 * 64 + 1), 5);
	page_index_clear(&x, &nodes);
	assert_int_equal(free_nodes(), 3);
}

static void test_too_far(void **state)
{
	(void)state;
	begin(NODES);
	assert_null(page_index_slot(&x, &nodes, 1ull << 54, true));
	assert_null(page_index_slot(&x, &nodes, UINT64_MAX, false));
	page_index_clear(&x, &nodes);
}

/* ---- the pool ---- */

static struct pool pool;
static uint32_t things[THINGS];
static _Atomic uint32_t holders[THINGS + 1];

static void *take_and_give(void *arg)
{
	unsigned seed = (unsigned)(uintptr_t)arg;

	for (int i = 0; i < TURNS; i++) {
		uint32_t mine[8], n = 0;

		while (n < 8 && (mine[n] = pool_take(&pool)) != 0) {
			if (atomic_fetch_add(&holders[mine[n]], 1) != 0)
				return "held twice";
			n++;
		}
		while (n > 0) {
			uint32_t one = mine[(unsigned)rand_r(&seed) % n], last = mine[--n];

			for (uint32_t k = 0; k < n; k++)
				if (mine[k] == one)
					mine[k] = last;
			atomic_fetch_sub(&holders[one], 1);
			pool_give(&pool, one);
		}
	}
	return NULL;
}

static void test_pool_of_threads(void **state)
{
	pthread_t threads[THREADS];
	uint32_t n = 0;

	(void)state;
	pool_init(&pool, things, sizeof *things, THREADS * 8 - 5);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, (void *)(i + 1)), 0);
	for (int i = 0; i < THREADS; i++) {
		void *said;

		assert_int_equal(pthread_join(threads[i], &said), 0);
		assert_null(said);
	}
	while (pool_take(&pool) != 0)
		n++;
	assert_int_equal(n, THREADS * 8 - 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slots),           cmocka_unit_test(test_random_slots),
		cmocka_unit_test(test_no_node_left),    cmocka_unit_test(test_too_far),
		cmocka_unit_test(test_pool_of_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
