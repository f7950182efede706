// SPDX-License-Identifier: Apache-2.0
/* sync: which call goes to the device under which policy, and failures that are told once. */
#include "attach/stop.h"
#include "files/fdtable.h"
#include "rig.h"

#include "attach/attach.h"
#include "descriptors/by_name.h"
#include "sync/sync.h"

#include <fcntl.h>

static int staged_file(enum sync_policy policy)
{
	int fd;

	rig_config.rules[0].set.sync = policy;
	fd = rig_open("out", O_WRONLY);
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 900);
	rig_faults_clear();
	return fd;
}

static void expect_calls(int fsyncs, int fdatasyncs)
{
	assert_int_equal(faults.fsync.calls, fsyncs);
	assert_int_equal(faults.fdatasync.calls, fdatasyncs);
}

static void test_fdatasync(void **state)
{
	int fd = staged_file(SYNC_FDATASYNC);

	(void)state;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	rig_expect("out", 1000);
	expect_calls(1, 0); /* the file is new: its name must be durable, too */
	rig_put(fd, 1000, 10);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	expect_calls(1, 2);
	rig_expect("out", 1010);
}

static void test_fsync(void **state)
{
	int fd = staged_file(SYNC_FSYNC);

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	expect_calls(3, 1);
}

static void test_off(void **state)
{
	int fd = staged_file(SYNC_OFF);

	(void)state;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	rig_expect("out", 1000); /* in the kernel, that much is promised */
	expect_calls(0, 0);
}

static void test_relaxed(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.relaxed_ms = 30;
	fd = staged_file(SYNC_RELAXED);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	rig_expect("out", 1000);
	expect_calls(0, 0);
	for (int i = 0; i < 12000 && faults.fsync.calls + faults.fdatasync.calls == 0; i++)
		usleep(5000);
	assert_int_equal(faults.fsync.calls + faults.fdatasync.calls, 1);
}

static void test_relaxed_at_close(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.relaxed_ms = 60000;
	fd = staged_file(SYNC_RELAXED);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	expect_calls(0, 0);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(faults.fsync.calls + faults.fdatasync.calls, 1);
}

static int relaxed_file(void)
{
	int fd;

	rig_config.rules[0].set.relaxed_ms = 60000;
	fd = staged_file(SYNC_RELAXED);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	expect_calls(0, 0);
	return fd;
}

/* A durable name without durable bytes would cost what it stood for before. */
static void test_relaxed_before_rename(void **state)
{
	struct by_name_rename move;

	(void)state;
	relaxed_file();
	by_name_rename_prepare(&move, AT_FDCWD, rig_path("out"), AT_FDCWD, "/nowhere", false);
	by_name_rename_done(&move, false);
	expect_calls(1, 0);
}

static void test_relaxed_before_link(void **state)
{
	struct by_name_link l;

	(void)state;
	relaxed_file();
	by_name_link_prepare(&l, AT_FDCWD, rig_path("out"), false, AT_FDCWD, "/nowhere/b");
	expect_calls(1, 0);
}

/* Also of a file that is written through by now. */
static void test_relaxed_given_back_before_rename(void **state)
{
	struct by_name_rename move;
	int fd = relaxed_file();

	(void)state;
	assert_int_equal(by_name_detach_fd(fd), 0);
	by_name_rename_prepare(&move, AT_FDCWD, rig_path("out"), AT_FDCWD, "/nowhere", false);
	by_name_rename_done(&move, false);
	expect_calls(1, 0);
}

/* At exit, and before another program takes the place of this one, which will not remember. */
static void test_relaxed_at_the_end(void **state)
{
	(void)state;
	relaxed_file();
	attach_stop_all(BYPASS_EXEC);
	expect_calls(1, 0);
	attach_resume_all(BYPASS_EXEC);
}

static void test_relaxed_given_back_at_the_end(void **state)
{
	int fd = relaxed_file();
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	(void)state;
	assert_int_equal(attach_bypass(f, BYPASS_MMAP), 0);
	file_unlock(f, g);
	attach_stop_all(BYPASS_EXEC);
	expect_calls(1, 0);
	attach_resume_all(BYPASS_EXEC);
}

/* What was written through a descriptor that is closed can be synced by one that only reads. */
static void test_relaxed_by_a_reader(void **state)
{
	int fd, reader;

	(void)state;
	rig_config.rules[0].set.relaxed_ms = 60000;
	fd = staged_file(SYNC_RELAXED);
	reader = rig_open("out", O_RDONLY);
	assert_non_null(fdtable_get(reader));
	assert_int_equal(rig_close(fd), 0);
	expect_calls(0, 0);
	assert_int_equal(sync_file(reader, fdtable_get(reader), true), 0);
	expect_calls(0, 0);
	assert_int_equal(rig_close(reader), 0);
	expect_calls(1, 0);
}

static void test_relaxed_by_a_reader_in_time(void **state)
{
	int fd, reader;

	(void)state;
	rig_config.rules[0].set.relaxed_ms = 30;
	fd = staged_file(SYNC_RELAXED);
	reader = rig_open("out", O_RDONLY);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(sync_file(reader, fdtable_get(reader), true), 0);
	for (int i = 0; i < 12000 && faults.fsync.calls + faults.fdatasync.calls == 0; i++)
		usleep(5000);
	expect_calls(1, 0);
}

/* A handler that interrupted a write ends the program.  The block of that write stays until it is over. */
static void test_relaxed_in_a_handler(void **state)
{
	int fd = relaxed_file();
	struct file *f = rig_file(fd);
	struct file_guard interrupted, g;

	(void)state;
	rig_put(fd, 1000, 100);
	interrupted = file_lock(f);
	g = file_lock(f);
	assert_int_equal(attach_bypass(f, BYPASS_EXEC), 0);
	sync_relaxed_due(f);
	expect_calls(1, 0);
	rig_expect("out", 1100);
	assert_int_equal(f->mode, FILE_ATTACHED);
	file_unlock(f, g);
	file_unlock(f, interrupted);
	rig_put(fd, 1100, 100);
	/* (the write has bypassed the file, or the timer just now) */
	g = file_lock(f);
	assert_int_equal(f->mode, FILE_BYPASSED);
	assert_int_equal(f->why, BYPASS_EXEC);
	file_unlock(f, g);
	rig_expect("out", 1200);
}

/* Who has no descriptor leaves it to those of the family who have. */
static void test_relaxed_without_a_descriptor(void **state)
{
	int fd = relaxed_file();
	struct file *f = rig_file(fd);
	struct ofd_local *local = ofd_local(fdtable_get(fd));
	struct ofd_local was = *local;
	struct file_guard g = file_lock(f);

	(void)state;
	local->fd = -1;
	local->refs = 0;
	sync_relaxed_due(f);
	*local = was;
	expect_calls(0, 0);
	assert_int_not_equal(f->due[DUE_SYNC], 0);
	file_unlock(f, g);
}

static void test_background_failure_is_told_once(void **state)
{
	int fd = staged_file(SYNC_RELAXED);
	struct file *f = rig_file(fd);
	struct file_guard g;

	(void)state;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	faults.fsync = (struct fault){.at = 1, .error = EIO};
	faults.fdatasync = (struct fault){.at = 1, .error = EIO};
	g = file_lock(f);
	sync_relaxed_due(f);
	file_unlock(f, g);
	rig_faults_clear();
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), -EIO);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
}

/* As the kernel does it: who was there, or came before anybody was told. */
static void test_background_failure_is_told_to_each(void **state)
{
	int fd = staged_file(SYNC_RELAXED);
	struct file *f = rig_file(fd);
	int other = rig_open("out", O_RDONLY), early, late;
	struct file_guard g;

	(void)state;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	faults.fsync = (struct fault){.at = 1, .error = EIO};
	g = file_lock(f);
	sync_relaxed_due(f);
	file_unlock(f, g);
	rig_faults_clear();
	early = rig_open("out", O_RDWR);
	assert_int_equal(sync_file(other, fdtable_get(other), false), -EIO);
	late = rig_open("out", O_RDWR);
	assert_int_equal(sync_file(late, fdtable_get(late), true), 0);
	assert_int_equal(sync_file(early, fdtable_get(early), true), -EIO);
	assert_int_equal(sync_file(early, fdtable_get(early), true), 0);
	assert_int_equal(sync_file(other, fdtable_get(other), true), 0);
	/* also when the file is written through by now */
	g = file_lock(f);
	assert_int_equal(attach_bypass(f, BYPASS_IOCTL), 0);
	file_unlock(f, g);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), -EIO);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(rig_close(late), 0);
}

static void test_failure_is_reported(void **state)
{
	int fd = staged_file(SYNC_FSYNC);

	(void)state;
	faults.fsync = (struct fault){.at = 1, .error = EIO};
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), -EIO);
	/* bytes that cannot be written: the device is not even asked */
	rig_put(fd, 1000, 10);
	rig_faults_clear();
	faults.pwritev = (struct fault){.at = 1, .error = ENOSPC};
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), -ENOSPC);
	expect_calls(0, 0);
}

static void give_names(void)
{
	char from[512];
	const char *to;
	struct by_name_rename move;

	snprintf(from, sizeof from, "%s", rig_path("out"));
	to = rig_path("other");
	by_name_rename_prepare(&move, AT_FDCWD, from, AT_FDCWD, to, false);
	assert_int_equal(rename(from, to), 0);
	by_name_rename_done(&move, true);
}

/* The file is not known while it gets its name: later, its first sync is an fsync all the same. */
static void test_renamed_while_unknown(void **state)
{
	int fd = staged_file(SYNC_FDATASYNC);

	(void)state;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(rig_close(fd), 0);
	give_names();
	fd = rig_open("other", O_RDWR);
	rig_faults_clear();
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	expect_calls(1, 0);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	expect_calls(1, 1);
	assert_int_equal(rig_close(fd), 0);
}

static int rename_meanwhile(int fd)
{
	sys.fsync = sys_kernel.fsync;
	give_names();
	return sys.fsync(fd);
}

/* The device was asked before the name was given: that has to be synced, too. */
static void test_renamed_during_a_sync(void **state)
{
	int fd = staged_file(SYNC_FDATASYNC);

	(void)state;
	sys.fsync = rename_meanwhile;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_true(atomic_load(&fdtable_get(fd)->file)->sync.full);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_false(atomic_load(&fdtable_get(fd)->file)->sync.full);
	assert_int_equal(rig_close(fd), 0);
}

static int chmod_meanwhile(int fd)
{
	sys.fsync = sys_kernel.fsync;
	file_attributes_changed();
	return sys.fsync(fd);
}

/* The sync that is under way does not cover it. */
static void test_attributes_changed_during_a_sync(void **state)
{
	int fd = staged_file(SYNC_FDATASYNC);
	struct file *f = atomic_load(&fdtable_get(fd)->file);

	(void)state;
	sys.fsync = chmod_meanwhile;
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_false(f->sync.full);
	assert_true(file_attributes_due(f));
	/* less than what is due */
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	assert_true(file_attributes_due(f));
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_false(file_attributes_due(f));
	assert_int_equal(rig_close(fd), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_fdatasync),
		TEST(test_renamed_while_unknown),
		TEST(test_renamed_during_a_sync),
		TEST(test_attributes_changed_during_a_sync),
		TEST(test_fsync),
		TEST(test_off),
		TEST(test_relaxed),
		TEST(test_relaxed_at_close),
		TEST(test_relaxed_before_rename),
		TEST(test_relaxed_before_link),
		TEST(test_relaxed_given_back_before_rename),
		TEST(test_relaxed_at_the_end),
		TEST(test_relaxed_given_back_at_the_end),
		TEST(test_relaxed_by_a_reader),
		TEST(test_relaxed_by_a_reader_in_time),
		TEST(test_relaxed_in_a_handler),
		TEST(test_relaxed_without_a_descriptor),
		TEST(test_background_failure_is_told_once),
		TEST(test_background_failure_is_told_to_each),
		TEST(test_failure_is_reported),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
