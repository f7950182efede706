// SPDX-License-Identifier: Apache-2.0
/* prealloc: room is reserved before bytes are accepted, and given back. */
#include "rig.h"

#include "prealloc.h"

#include <sys/stat.h>

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	rig_stop();
	return 0;
}

static uint64_t allocated(const char *name)
{
	struct stat st;

	assert_int_equal(stat(rig_path(name), &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

static void test_ahead_and_trimmed(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_true(rig_file(fd)->prealloc_end >= 4096);
	assert_true(allocated("out") >= rig_file(fd)->prealloc_end);
	assert_true(rig_slot(fd)->flags & SLOT_PREALLOCATED);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
	assert_true(allocated("out") <= 8192);
}

static void test_full_disk_reserves_less(void **state)
{
	int fd = rig_open("out", O_WRONLY);
	int calls;

	(void)state;
	rig_put(fd, 0, 100);
	/* the arena's own first; then a few attempts, each for half as much */
	faults.fallocate = (struct fault){.at = 2, .count = 4, .error = ENOSPC};
	faults.fallocate.calls = 0;
	rig_put(fd, 100, 100);
	calls = faults.fallocate.calls;
	assert_int_equal(rig_file(fd)->mode, FILE_ENGAGED);
	assert_int_equal(calls, 6);
	assert_true(rig_file(fd)->prealloc_end <= 1 << 16);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
}

/* Not even what is needed can be had: the kernel takes the write, or says why not; staged bytes stay safe. */
static void test_full_disk(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	rig_settle(fd);
	rig_file(fd)->prealloc_end = 0;
	faults.fallocate = (struct fault){.at = 1, .count = 1000, .error = ENOSPC};
	faults.fallocate.calls = 0;
	faults.writev = (struct fault){.at = 1, .error = ENOSPC};
	faults.writev.calls = 0;
	assert_int_equal(rig_write(fd, "x", 1), -ENOSPC);
	rig_expect("out", 200);
	faults.writev.at = 0;
	rig_put(fd, 200, 100);
	rig_expect("out", 300); /* by the kernel at once */
	rig_faults_clear();
	assert_int_equal(rig_close(fd), 0);
}

static void test_off(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_config.rules[0].set.prealloc_mode = PREALLOC_OFF;
	rig_put(fd, 0, 100);
	faults.fallocate = (struct fault){.at = 0};
	rig_put(fd, 100, 5000);
	assert_int_equal(faults.fallocate.calls, 1); /* the arena's */
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 5100);
}

static void test_holes_stay(void **state)
{
	int fd = rig_open("out", O_RDWR);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_pwrite(fd, "far", 3, 50 << 20), 3);
	assert_int_equal(rig_pwrite(fd, "in", 2, 20 << 20), 2);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(rig_kernel_size("out"), (50 << 20) + 3);
	assert_true(allocated("out") < 4 << 20);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_ahead_and_trimmed), TEST(test_full_disk_reserves_less),
		TEST(test_full_disk),         TEST(test_off),
		TEST(test_holes_stay),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
