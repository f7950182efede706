// SPDX-License-Identifier: Apache-2.0
/* meta: an answer about a file that was given while bytes were staged is not the last word. */
#include "rig.h"

#include "descriptors/by_name.h"

static int staged_file(void)
{
	int fd = rig_open("out", O_WRONLY);

	rig_put(fd, 0, 100);
	rig_put(fd, 100, 900);
	assert_int_equal(rig_kernel_size("out"), 100);
	return fd;
}

static void test_staged_bytes_are_settled(void **state)
{
	int fd = staged_file();
	struct file *f = rig_file(fd);
	uint32_t releases = by_name_detaches();

	(void)state;
	assert_true(by_name_outdated(releases));
	assert_true(by_name_drain_identity(f->dev, f->ino, releases));
	assert_int_equal(rig_kernel_size("out"), 1000);
}

/* The timer was quicker: what the kernel said before is outdated all the same. */
static void test_settled_meanwhile(void **state)
{
	int fd = staged_file();
	struct file *f = rig_file(fd);
	uint32_t releases = by_name_detaches();

	(void)state;
	assert_int_equal(rig_drain(fd), 0);
	assert_true(by_name_outdated(releases));
	assert_true(by_name_drain_identity(f->dev, f->ino, releases));
}

static void test_given_back_meanwhile(void **state)
{
	int fd = staged_file();
	struct file *f = rig_file(fd);
	uint32_t releases = by_name_detaches();

	(void)state;
	assert_int_equal(by_name_detach_fd(fd), 0);
	assert_int_equal(f->mode, FILE_PASSIVE);
	assert_true(by_name_idle());
	assert_true(by_name_outdated(releases));
	assert_true(by_name_drain_identity(f->dev, f->ino, releases));
}

static void test_other_files_are_asked_once(void **state)
{
	int fd = staged_file();
	struct file *f = rig_file(fd);
	uint32_t releases = by_name_detaches();

	(void)state;
	assert_false(by_name_drain_identity(f->dev, f->ino + 1, releases));
	assert_int_equal(rig_kernel_size("out"), 100);
	rig_close(fd);
	assert_false(by_name_outdated(by_name_detaches()));
}

/* syncfs reports what could not be written, unless it is on another file system. */
static void test_syncfs_is_told(void **state)
{
	int fd = staged_file();
	int elsewhere = open("/proc/self/stat", O_RDONLY);

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 1000, .error = ENOSPC};
	assert_int_equal(by_name_drain_for_syncfs(fd), -ENOSPC);
	assert_int_equal(by_name_drain_for_syncfs(elsewhere), 0);
	assert_int_equal(rig_kernel_size("out"), 100);
	rig_faults_clear();
	assert_int_equal(by_name_drain_for_syncfs(elsewhere), 0);
	rig_expect("out", 1000);
	assert_int_equal(by_name_drain_for_syncfs(fd), 0);
	close(elsewhere);
}

/* A call that would put newer bytes below those that cannot be written must fail. */
static void test_unmodelled_calls_are_told(void **state)
{
	int fd = staged_file();

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 1000, .error = ENOSPC};
	assert_int_equal(fd_use_unmodelled(fd, BYPASS_SPLICE), -ENOSPC);
	assert_int_equal(by_name_map(fd, true), -ENOSPC);
	assert_int_equal(rig_kernel_size("out"), 100);
	rig_faults_clear();
	assert_int_equal(by_name_map(fd, true), 0);
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(fd_use_unmodelled(fd, BYPASS_SPLICE), 0);
	rig_expect("out", 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_syncfs_is_told, rig_set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_staged_bytes_are_settled, rig_set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_settled_meanwhile, rig_set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_given_back_meanwhile, rig_set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_other_files_are_asked_once, rig_set_up, rig_tear_down),
		/* last: this process never stages the file's number again */
		cmocka_unit_test_setup_teardown(test_unmodelled_calls_are_told, rig_set_up, rig_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
