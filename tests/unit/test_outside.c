// SPDX-License-Identifier: Apache-2.0
/* Paths that have just led outside of all rules.  The clock is the test's. */
#include "rig.h"

#include "descriptors/outside.h"

#include <time.h>

enum { MS = 1000000 };

static uint64_t now_ns = 1000000000;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC_COARSE)
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000), .tv_nsec = now_ns % 1000000000};
	return 0;
}

static void test_counts_for_a_moment(void **state)
{
	(void)state;
	assert_false(outside_is("/srv/a"));
	outside_note("/srv/a");
	assert_true(outside_is("/srv/a"));
	assert_false(outside_is("/srv/b"));
	assert_false(outside_is("/srv/a/"));
	now_ns += 30 * MS;
	assert_true(outside_is("/srv/a"));
	now_ns += 25 * MS;
	assert_false(outside_is("/srv/a"));
	outside_note("/srv/a");
	assert_true(outside_is("/srv/a"));
}

/* A relative path leads elsewhere after a chdir. */
static void test_only_absolute_paths(void **state)
{
	(void)state;
	outside_note("a");
	assert_false(outside_is("a"));
	assert_false(outside_is(""));
}

/* Whatever shares a slot, no path counts that was not noted. */
static void test_many_paths(void **state)
{
	char path[32];
	int known = 0;

	(void)state;
	for (int i = 0; i < 1000; i++) {
		snprintf(path, sizeof path, "/srv/%d", i);
		outside_note(path);
		assert_true(outside_is(path));
	}
	for (int i = 0; i < 100000; i++) {
		snprintf(path, sizeof path, "/srv/%d", i);
		known += outside_is(path);
		assert_true(i < 1000 || !outside_is(path));
	}
	assert_in_range(known, 1, 64);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_counts_for_a_moment),
		TEST(test_only_absolute_paths),
		TEST(test_many_paths),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
