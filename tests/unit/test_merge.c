// SPDX-License-Identifier: Apache-2.0
/* merge: against a byte array that the extents are painted into one after another. */
#include "flush/merge.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct arena_extent pieces[MERGE_MAX];

static struct arena_extent get(const void *ctx, uint32_t i) { return ((const struct arena_extent *)ctx)[i]; }

/* Every byte of the file comes from the newest extent that holds it, at its place in the block. */
static void check(const struct arena_extent *extents, uint32_t count, uint64_t file_bytes)
{
	uint32_t *want = calloc(file_bytes, sizeof *want);
	uint32_t *have = calloc(file_bytes, sizeof *have);
	uint32_t n = merge_extents(get, extents, count, pieces);
	uint64_t end = 0;

	for (uint32_t i = 0; i < count; i++)
		for (uint32_t b = 0; b < extents[i].length; b++)
			want[extents[i].offset + b] = extents[i].pos + b + 1;
	assert_true(n <= 2 * count);
	for (uint32_t i = 0; i < n; i++) {
		assert_true(pieces[i].length > 0);
		assert_true(i == 0 || pieces[i].offset >= end);
		end = pieces[i].offset + pieces[i].length;
		assert_true(end <= file_bytes);
		for (uint32_t b = 0; b < pieces[i].length; b++)
			have[pieces[i].offset + b] = pieces[i].pos + b + 1;
	}
	assert_memory_equal(want, have, file_bytes * sizeof *want);
	free(want);
	free(have);
}

static void test_newest_wins(void **state)
{
	const struct arena_extent extents[] = {
		{.offset = 0, .pos = 0, .length = 100},
		{.offset = 40, .pos = 100, .length = 20},
		{.offset = 50, .pos = 120, .length = 70},
	};

	(void)state;
	check(extents, 3, 200);
	assert_int_equal(merge_extents(get, extents, 3, pieces), 3);
	assert_int_equal(pieces[1].length, 10);
}

static void test_covered_and_empty_ones_vanish(void **state)
{
	const struct arena_extent extents[] = {
		{.offset = 10, .pos = 0, .length = 5},
		{.offset = 3, .pos = 5, .length = 0},
		{.offset = 0, .pos = 5, .length = 50},
	};

	(void)state;
	assert_int_equal(merge_extents(get, extents, 3, pieces), 1);
	check(extents, 3, 60);
}

static void test_random(void **state)
{
	static struct arena_extent extents[ARENA_EXTENTS_MAX];

	(void)state;
	srand(5);
	for (int turn = 0; turn < 1500; turn++) {
		uint32_t count = 1 + (uint32_t)rand() % (turn % 50 == 0 ? ARENA_EXTENTS_MAX : 12);
		uint32_t pos = 0;

		for (uint32_t i = 0; i < count; i++) {
			extents[i] = (struct arena_extent){.offset = (uint64_t)(rand() % 900),
			                                   .pos = pos,
			                                   .length = (uint32_t)(rand() % 100)};
			pos += extents[i].length;
		}
		check(extents, count, 1000);
	}
}

/* The most pieces that can come out: a long extent under short ones with gaps. */
static void test_most_pieces(void **state)
{
	static struct arena_extent extents[ARENA_EXTENTS_MAX];

	(void)state;
	extents[0] = (struct arena_extent){.offset = 0, .length = 4 * ARENA_EXTENTS_MAX};
	for (uint32_t i = 1; i < ARENA_EXTENTS_MAX; i++)
		extents[i] = (struct arena_extent){.offset = 4ull * i - 2, .pos = 60000 + i, .length = 1};
	assert_int_equal(merge_extents(get, extents, ARENA_EXTENTS_MAX, pieces), 2 * ARENA_EXTENTS_MAX - 1);
	check(extents, ARENA_EXTENTS_MAX, 4 * ARENA_EXTENTS_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_newest_wins),
		cmocka_unit_test(test_covered_and_empty_ones_vanish),
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_most_pieces),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
