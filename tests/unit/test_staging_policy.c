// SPDX-License-Identifier: Apache-2.0
/* When staging pays: rent before the attach, credit after it.  Times are given, not measured: the clock of
 * the library stands still. */
#include "rig.h"

#include <time.h>

#include "staging/staging_policy.h"

enum { US = 1000, NOW_S = 1000000 };

static int fd = -1;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	if (clock != CLOCK_MONOTONIC)
		return (int)syscall(SYS_clock_gettime, clock, now);
	*now = (struct timespec){.tv_sec = NOW_S};
	return 0;
}

/* `begin` of a call that has taken so many nanoseconds by now. */
static uint64_t took(uint64_t ns) { return sys_now_ns() - ns; }

static int set_up(void **state)
{
	(void)state;
	rig_start("FASTWRITE_ADAPT=on", NULL);
	fd = rig_open("out", O_RDWR);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	rig_close(fd);
	return rig_tear_down(NULL);
}

/* Number of calls of this length until the file is to be attached. */
static int calls_until_attached(struct file *f, uint64_t ns)
{
	int calls = 0;

	for (; !staging_policy_attaches(f); calls++) {
		assert_true(calls < 1 << 20);
		staging_policy_written(f, ns ? took(ns) : 0);
	}
	staging_policy_restart(f);
	return calls;
}

static void test_cheap_writes_are_many(void **state)
{
	(void)state;
	assert_int_equal(calls_until_attached(rig_file(fd), 1 * US), 250);
}

static void test_dear_writes_are_few(void **state)
{
	(void)state;
	assert_int_equal(calls_until_attached(rig_file(fd), 60 * US), 5);
}

static void test_one_slow_call_proves_nothing(void **state)
{
	(void)state;
	assert_int_equal(calls_until_attached(rig_file(fd), 100000 * US), 4);
}

static void test_each_try_is_twice_as_dear(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	staging_policy_gave_back(f);
	assert_int_equal(calls_until_attached(f, 60 * US), 9);
	staging_policy_later(f);
	assert_int_equal(calls_until_attached(f, 60 * US), 17);
}

static void attach(struct file *f)
{
	f->mode = FILE_ATTACHED; /* as far as the policy looks */
	staging_policy_attached(f, took(100 * US));
}

static void detach(struct file *f)
{
	f->mode = FILE_PASSIVE;
	f->writes = 0;
}

static void stage(struct file *f, uint64_t writes)
{
	f->writes = writes;
	staging_policy_saved(f);
	f->writes = 0;
}

static void test_credit_ends(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	attach(f);
	assert_false(staging_policy_gives_back(f));
	for (int i = 0; i < 2; i++)
		staging_policy_cost(f, took(100 * US), 100 * US);
	assert_false(staging_policy_gives_back(f));
	staging_policy_pays(f);
	for (int i = 0; i < 3; i++)
		staging_policy_cost(f, took(100 * US), 100 * US);
	assert_true(staging_policy_gives_back(f));
	detach(f);
}

/* A write of 1 us (not measured) pays for itself, and a drain of 16 us for 16 of them. */
static void test_staged_writes_give_credit(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	attach(f);
	for (int i = 0; i < 1000; i++) {
		stage(f, 17);
		staging_policy_cost(f, took(100 * US), STAGING_SYNC_COST_MOST);
		assert_false(staging_policy_gives_back(f));
	}
	for (int i = 0; i < 20; i++) {
		stage(f, 2);
		staging_policy_cost(f, took(100 * US), STAGING_SYNC_COST_MOST);
	}
	assert_true(staging_policy_gives_back(f));
	detach(f);
}

/* O_DIRECT, 60 us a write.  A drain into the page cache takes 5 us, and leaves one such write to the sync. */
static void test_a_direct_write_for_each_sync_gains_nothing(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	for (int i = 0; i < 100; i++)
		staging_policy_written(f, took(60 * US));
	staging_policy_restart(f);
	attach(f);
	for (int i = 0; i < 200; i++) {
		stage(f, 3);
		staging_policy_drained_direct(f, took(5 * US));
		assert_false(staging_policy_gives_back(f));
	}
	for (int i = 0; i < 200; i++) {
		stage(f, 1);
		staging_policy_drained_direct(f, took(5 * US));
	}
	assert_true(staging_policy_gives_back(f));
	detach(f);
}

/* A processor that was busy has made the kernel's writes look dear, 100 us each.  A drain of 20 us contains
 * at least one such write, so none costs more. */
static void test_a_drain_bounds_what_a_write_costs(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	for (int i = 0; i < 100; i++)
		staging_policy_written(f, took(100 * US));
	staging_policy_restart(f);
	attach(f);
	for (int i = 0; i < 200 && !staging_policy_gives_back(f); i++) {
		stage(f, 1);
		staging_policy_drained(f, took((20 + (uint64_t)i % 10) * US), STAGING_COST_MOST);
	}
	assert_true(staging_policy_gives_back(f));
	detach(f);
}

/* However long staging has paid: credit is never more than what an attach costs. */
static void test_credit_is_limited(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	attach(f);
	stage(f, 1 << 30);
	for (int i = 0; i < 3; i++)
		staging_policy_cost(f, took(100000 * US), STAGING_COST_MOST);
	assert_true(staging_policy_gives_back(f));
	detach(f);
}

/* adapt = off: the second small write attaches, and nothing detaches. */
static void test_without_measurement(void **state)
{
	struct file *f;

	(void)state;
	rig_close(fd);
	rig_tear_down(NULL);
	rig_start(NULL);
	fd = rig_open("out", O_RDWR);
	f = rig_file(fd);
	assert_int_equal(staging_policy_clock(f), 0);
	assert_int_equal(calls_until_attached(f, 0), 1);
	attach(f);
	for (int i = 0; i < 1000; i++)
		staging_policy_cost(f, staging_policy_clock(f), STAGING_COST_MOST);
	assert_false(staging_policy_gives_back(f));
	detach(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
		TEST(test_cheap_writes_are_many),
		TEST(test_dear_writes_are_few),
		TEST(test_one_slow_call_proves_nothing),
		TEST(test_each_try_is_twice_as_dear),
		TEST(test_credit_ends),
		TEST(test_a_direct_write_for_each_sync_gains_nothing),
		TEST(test_staged_writes_give_credit),
		TEST(test_a_drain_bounds_what_a_write_costs),
		TEST(test_credit_is_limited),
		TEST(test_without_measurement),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
