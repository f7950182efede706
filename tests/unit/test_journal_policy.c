// SPDX-License-Identifier: Apache-2.0
/* Whether the journal pays for a file.  Syncs are not made; the library's clock shows what each would take.
 */
#include "rig.h"

#include <time.h>

#include "staging/staging_policy.h"
#include "sync/journal_policy.h"

enum { US = 1000, MANY = 10000 };

static int fd = -1;
static uint64_t now_ns = 1000000 * US;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){.tv_sec = (time_t)(now_ns / 1000000000),
	                         .tv_nsec = (long)(now_ns % 1000000000)};
	return 0;
}

static void begin(const char *adapt)
{
	rig_start("FASTWRITE_SYNC=journal", adapt, NULL);
	fd = rig_open("out", O_RDWR);
}

static int set_up(void **state)
{
	(void)state;
	begin("FASTWRITE_ADAPT=on");
	return 0;
}

static int set_up_fixed(void **state)
{
	(void)state;
	begin("FASTWRITE_ADAPT=off");
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	rig_close(fd);
	return rig_tear_down(NULL);
}

/* Percent of `syncs` that the journal answers, if it and the device take so many microseconds. */
static int by_journal(int syncs, uint64_t journal_us, uint64_t device_us, bool shared)
{
	struct file *f = rig_file(fd);
	int answered = 0;

	for (int i = 0; i < syncs; i++) {
		bool device = !journal_policy_uses(f);

		now_ns += (device ? device_us : journal_us) * US;
		journal_policy_synced(f, device, shared && !device);
		answered += !device;
	}
	return answered * 100 / syncs;
}

static void test_the_quicker_way_answers(void **state)
{
	(void)state;
	assert_in_range(by_journal(MANY, 180, 350, false), 96, 99);
}

static void test_the_device_answers_where_it_is_quicker(void **state)
{
	(void)state;
	assert_in_range(by_journal(MANY, 340, 240, false), 1, 4);
}

static void test_the_better_way_may_change(void **state)
{
	(void)state;
	by_journal(MANY, 340, 240, false);
	assert_in_range(by_journal(2 * MANY, 180, 350, false), 70, 99);
	assert_in_range(by_journal(2 * MANY, 340, 240, false), 1, 30);
}

static void test_a_write_for_several_threads_is_kept(void **state)
{
	(void)state;
	assert_int_equal(by_journal(MANY, 340, 240, true), 100);
}

static void test_one_slow_sync_changes_nothing(void **state)
{
	(void)state;
	by_journal(MANY, 180, 350, false);
	for (int i = 0; i < 100; i++) {
		by_journal(1, 100000, 350, false);
		assert_in_range(by_journal(100, 180, 350, false), 80, 100);
	}
}

static void test_without_adapting_the_journal_answers(void **state)
{
	(void)state;
	assert_int_equal(by_journal(MANY, 340, 240, false), 100);
}

/* A file without a lease, or before there is a journal. */
static void test_where_the_journal_cannot_nothing_is_tried(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	for (int i = 0; i < MANY; i++) {
		now_ns += 100 * US;
		journal_policy_synced(f, true, false);
		assert_true(journal_policy_uses(f));
	}
}

static void test_nothing_is_staged_for_the_device(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	while (journal_policy_uses(f))
		by_journal(1, 340, 240, false);
	assert_true(staging_policy_gives_back(f));
	staging_policy_wanted(f);
	assert_false(staging_policy_attaches(f));
	staging_policy_restart(f);
	while (!journal_policy_uses(f))
		by_journal(1, 340, 240, false);
	assert_false(staging_policy_gives_back(f));
	assert_true(staging_policy_attaches(f));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
		TEST(test_the_quicker_way_answers),
		TEST(test_the_device_answers_where_it_is_quicker),
		TEST(test_the_better_way_may_change),
		TEST(test_a_write_for_several_threads_is_kept),
		TEST(test_one_slow_sync_changes_nothing),
		TEST(test_where_the_journal_cannot_nothing_is_tried),
		TEST(test_nothing_is_staged_for_the_device),
		cmocka_unit_test_setup_teardown(test_without_adapting_the_journal_answers, set_up_fixed,
	                                        tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
