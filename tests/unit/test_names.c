// SPDX-License-Identifier: Apache-2.0
/* names: which files are arenas and journals, and the order of their times. */
#include "foreign/names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_forms(void **state)
{
	(void)state;
	assert_true(names_is_arena("x.arena"));
	assert_false(names_is_arena(".arena"));
	assert_false(names_is_arena("x.arena2"));
	assert_true(names_is_journal("x.journal"));
	assert_true(names_is_ours("12-some-rule-1f.arena", ".arena"));
	assert_false(names_is_ours("012-rule-1f.arena", ".arena"));
	assert_false(names_is_ours("12-rule-1F.arena", ".arena"));
	assert_false(names_is_ours("12-rule-1f.arena", ".journal"));
	assert_false(names_is_ours("rule-1f.arena", ".arena"));
	assert_true(names_is_staging_dir("/a/.fastwrite"));
	assert_true(names_is_staging_dir("/a/.fastwrite/"));
	assert_true(names_is_staging_dir(".fastwrite"));
	assert_false(names_is_staging_dir("/a/x.fastwrite"));
}

static void test_time(void **state)
{
	(void)state;
	assert_int_equal(names_time("12-rule-1f.arena"), 0x1f);
	assert_int_equal(names_time("12-rule-18ab3.journal"), 0x18ab3);
	assert_int_equal(names_time("other.arena"), 0);
}

static void expect(const struct name_list *l, uint32_t from, uint32_t count)
{
	assert_int_equal(l->count, count);
	for (uint32_t i = 0; i < count; i++)
		assert_int_equal(l->entries[i].made, from + i);
}

/* The oldest names in their order, whatever order the directory has; then the next ones. */
static void test_oldest_first(void **state)
{
	struct name_list *l = calloc(1, sizeof *l);
	enum { ALL = 100, ROOM = 30 };

	(void)state;
	l->room = ROOM;
	for (uint32_t from = 1, n; from <= ALL; from += n) {
		n = ALL + 1 - from < ROOM ? ALL + 1 - from : ROOM;
		l->count = 0;
		l->over = false;
		for (uint32_t i = 0; i < ALL; i++) {
			char name[64];

			snprintf(name, sizeof name, "7-rule-%x.arena", i * 37 % ALL + 1);
			names_put(l, name);
		}
		expect(l, from, n);
		assert_int_equal(l->over, from + n <= ALL);
		l->last = l->entries[l->count - 1];
	}
	free(l);
}

/* Names of another form come first; names with one time are in the order of the alphabet. */
static void test_ties(void **state)
{
	static const char *const names[] = {"8-b-5.arena", "z.arena", "8-a-5.arena", "a.arena"};
	struct name_list *l = calloc(1, sizeof *l);

	(void)state;
	l->room = NAMES_MAX;
	for (int i = 0; i < 4; i++)
		names_put(l, names[i]);
	assert_string_equal(l->entries[0].name, "a.arena");
	assert_string_equal(l->entries[1].name, "z.arena");
	assert_string_equal(l->entries[2].name, "8-a-5.arena");
	assert_string_equal(l->entries[3].name, "8-b-5.arena");
	free(l);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_time),
		cmocka_unit_test(test_oldest_first),
		cmocka_unit_test(test_ties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
