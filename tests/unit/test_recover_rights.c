// SPDX-License-Identifier: Apache-2.0
/* recover_rights: which groups a user has, and that root has his rights and no others until it takes its own
 * back. */
#include "rig.h"

#include "recovery/rights.h"

#include <grp.h>
#include <linux/capability.h>
#include <sys/fsuid.h>
#include <sys/prctl.h>

enum { USER = 4711, GROUP = 4712, SECOND = 4713, THIRD = 4714 };

static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\n"
			     "short:x\n"
			     "bad:x:47x:1::/:/bin/sh\n"
			     "other:x:4711000:9::/:/bin/sh\n"
			     "user:x:4711:4712:A user:/:/bin/sh\n"
			     "alias:x:4711:1:The same:/:/bin/sh\n"
			     "last:x:4720:4721";
static const char group[] = "root:x:0:\n"
			    "own:x:4712:user\n"
			    "second:x:4713:a,user\n"
			    "longer:x:5000:users,auser,use\n"
			    "bad:x:no:user\n"
			    "none\n"
			    "huge:x:4294967295:user\n"
			    "third:x:4714:user,b";

static int ask(uint32_t uid, uint32_t *groups)
{
	return recover_rights_groups(uid, passwd, sizeof passwd - 1, group, sizeof group - 1, groups);
}

static void test_groups(void **state)
{
	uint32_t groups[RECOVER_GROUPS_MAX];

	(void)state;
	assert_int_equal(ask(USER, groups), 3);
	assert_int_equal(groups[0], GROUP);
	assert_int_equal(groups[1], SECOND);
	assert_int_equal(groups[2], THIRD);
	assert_int_equal(ask(4720, groups), 1);
	assert_int_equal(groups[0], 4721);
	assert_int_equal(ask(47, groups), 0);
	assert_int_equal(ask(471, groups), 0);
	assert_int_equal(recover_rights_groups(USER, NULL, 0, NULL, 0, groups), 0);
}

static void test_cut_anywhere(void **state)
{
	uint32_t groups[RECOVER_GROUPS_MAX];

	(void)state;
	for (size_t n = 0; n < sizeof passwd; n++) {
		char *copy = malloc(n + 1); /* of this size, so that the sanitizer sees a byte too far */

		memcpy(copy, passwd, n);
		assert_in_range(recover_rights_groups(USER, copy, n, copy, n, groups), 0, 1);
		free(copy);
	}
}

static void test_more_groups_than_room(void **state)
{
	static char many[400 * 16];
	uint32_t groups[RECOVER_GROUPS_MAX];
	size_t n = 0;

	(void)state;
	for (int i = 0; i < 400; i++)
		n += (size_t)snprintf(many + n, sizeof many - n, "g:x:%d:user\n", 6000 + i);
	assert_int_equal(recover_rights_groups(USER, passwd, sizeof passwd - 1, many, n, groups),
	                 RECOVER_GROUPS_MAX);
}

/* ---- with the system's calls ---- */

static int open_ours(int dirfd, const char *path, int flags, mode_t mode)
{
	if (strcmp(path, "/etc/passwd") == 0)
		path = rig_path("passwd");
	else if (strcmp(path, "/etc/group") == 0)
		path = rig_path("group");
	return sys_kernel.openat(dirfd, path, flags, mode);
}

static void put(const char *name, const char *text)
{
	int fd = open(rig_path(name), O_WRONLY | O_CREAT, 0644);

	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
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
	put("passwd", passwd);
	put("group", group);
	sys.openat = open_ours;
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

static void test_unknown_user(void **state)
{
	struct recover_rights r;
	gid_t now[256];

	(void)state;
	if (geteuid() != 0)
		skip();
	assert_int_equal(recover_rights_take(&r, 99), 0);
	assert_int_equal(setfsuid((uid_t)-1), 99);
	assert_int_equal(setfsgid((gid_t)-1), 65534);
	assert_int_equal(getgroups(256, now), 0);
	recover_rights_drop(&r);
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
		cmocka_unit_test(test_groups),
		cmocka_unit_test(test_cut_anywhere),
		cmocka_unit_test(test_more_groups_than_room),
		TEST(test_rights),
		TEST(test_unknown_user),
		TEST(test_root_stays_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
