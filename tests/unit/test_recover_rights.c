// SPDX-License-Identifier: Apache-2.0
/* recover_rights: root has the rights of a user and no others until it takes its own back. */
#include "rig.h"

#include "foreign/rights.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

enum { USER = 4711, GROUP = 4712, SECOND = 4713, THIRD = 4714 };

static int groups_of(uint32_t uid, uint32_t *groups)
{
	if (uid != USER)
		return 0;
	groups[0] = GROUP;
	groups[1] = SECOND;
	groups[2] = THIRD;
	return 3;
}

static uint64_t effective(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	assert_int_equal(syscall(SYS_capget, &header, data), 0);
	return (uint64_t)data[1].effective << 32 | data[0].effective;
}

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	recover_rights_groups = groups_of;
	return 0;
}

static void test_rights(void **state)
{
	struct recover_rights r;
	gid_t before[256], now[256];
	uint64_t had = effective();
	int n, signal_now = 0;

	(void)state;
	if (geteuid() != 0)
		skip();
	n = getgroups(256, before);
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGUSR2);
	assert_int_equal(recover_rights_take(&r, USER), 0);
	assert_int_equal(setfsuid((uid_t)-1), USER);
	assert_int_equal(setfsgid((gid_t)-1), GROUP);
	assert_int_equal(getgroups(256, now), 3);
	assert_int_equal(effective(), 0);
	recover_rights_drop(&r);
	assert_int_equal(setfsuid((uid_t)-1), 0);
	assert_int_equal(setfsgid((gid_t)-1), getegid());
	assert_int_equal(getgroups(256, now), n);
	assert_memory_equal(before, now, (size_t)n * sizeof *now);
	assert_int_equal(effective(), had);
	/* the program's: its core dumps, and its way to end with its parent */
	assert_int_equal(prctl(PR_GET_DUMPABLE), 1);
	assert_int_equal(prctl(PR_GET_PDEATHSIG, &signal_now), 0);
	assert_int_equal(signal_now, SIGUSR2);
	prctl(PR_SET_PDEATHSIG, 0);
}

static void check_no_groups(uint32_t uid)
{
	struct recover_rights r;
	gid_t now[256];

	assert_int_equal(recover_rights_take(&r, uid), 0);
	assert_int_equal(setfsuid((uid_t)-1), uid);
	assert_int_equal(setfsgid((gid_t)-1), 65534);
	assert_int_equal(getgroups(256, now), 0);
	recover_rights_drop(&r);
}

static void test_unknown_user(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	check_no_groups(99);
}

/* The library reads no /etc/passwd. */
static void test_no_lookup(void **state)
{
	(void)state;
	if (geteuid() != 0)
		skip();
	recover_rights_groups = NULL;
	check_no_groups(USER);
}

static void test_root_stays_root(void **state)
{
	struct recover_rights r;
	uint64_t had = effective();

	(void)state;
	assert_int_equal(recover_rights_take(&r, 0), 0);
	assert_false(r.changed);
	assert_int_equal(effective(), had);
	recover_rights_drop(&r);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_rights),
		TEST(test_unknown_user),
		TEST(test_no_lookup),
		TEST(test_root_stays_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
