// SPDX-License-Identifier: Apache-2.0
/* process_pages: exactly the words asked for become zeros, and whole pages of them are given back. */
#include "base/process_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { PAGES = 4, WORDS = PROCESS_PAGE / sizeof(uint64_t) };

static uint64_t table[PAGES * WORDS] __attribute__((aligned(PROCESS_PAGE)));

static bool is_in_memory(int page)
{
	unsigned char in = 0;

	assert_int_equal(mincore(&table[(size_t)page * WORDS], PROCESS_PAGE, &in), 0);
	return in & 1;
}

static void zero(size_t begin, size_t end)
{
	memset(table, 0xa5, sizeof table);
	process_pages_zero(&table[begin], &table[end]);
}

static void expect(size_t begin, size_t end)
{
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		assert_int_equal(table[i], i >= begin && i < end ? 0 : 0xa5a5a5a5a5a5a5a5);
}

static void test_words(void **state)
{
	const size_t at[] = {0,
	                     1,
	                     2,
	                     WORDS - 1,
	                     WORDS,
	                     WORDS + 1,
	                     2 * WORDS - 1,
	                     2 * WORDS,
	                     3 * WORDS,
	                     3 * WORDS + 1,
	                     PAGES * WORDS - 1,
	                     PAGES * WORDS};

	(void)state;
	for (size_t i = 0; i < sizeof at / sizeof *at; i++)
		for (size_t j = i; j < sizeof at / sizeof *at; j++) {
			zero(at[i], at[j]);
			expect(at[i], at[j]);
		}
}

static void test_pages(void **state)
{
	(void)state;
	zero(WORDS / 2, PAGES * WORDS - 1);
	assert_true(is_in_memory(0));
	assert_false(is_in_memory(1));
	assert_false(is_in_memory(2));
	assert_true(is_in_memory(3));
	expect(WORDS / 2, PAGES * WORDS - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_pages)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
