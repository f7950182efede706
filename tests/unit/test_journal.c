// SPDX-License-Identifier: Apache-2.0
/* journal: what goes to the log and what to the file, and failures of either. */
#include "descriptors/fd.h"
#include "files/fdtable.h"
#include "rig.h"

#include "sync/journal.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <pthread.h>
#include <time.h>

static int fd;
static uint64_t written;

static int set_up(void **state)
{
	(void)state;
	rig_start("FASTWRITE_SYNC=journal", "FASTWRITE_JOURNAL=1M", "FASTWRITE_WRITERS=exclusive", NULL);
	written = 0;
	return 0;
}

static void skip_without_disk(void)
{
	if (rig_on_tmpfs()) {
		print_message("skipped: no journal on tmpfs; set TMPDIR to a directory on a disk\n");
		skip();
	}
}

static int put_and_sync(size_t n)
{
	rig_put(fd, written, n);
	written += n;
	return sync_file(fd, fdtable_get(fd), true);
}

static uint32_t state_now(void) { return atomic_load(&rig_file(fd)->arena->journal.state); }

/* Syncs until the journal takes them. */
static void start(void)
{
	struct timespec nap = {.tv_nsec = 1000000};

	fd = rig_open("out", O_WRONLY);
	rig_put(fd, 0, 10);
	written = 10;
	for (int i = 0; i < 10000 && (!rig_file(fd)->arena || state_now() != JOURNAL_READY); i++) {
		assert_int_equal(put_and_sync(10), 0);
		nanosleep(&nap, NULL);
	}
	assert_int_equal(state_now(), JOURNAL_READY);
	assert_int_equal(put_and_sync(10), 0);
	rig_file(fd)->arena->journal.by_fdatasync = false; /* so that each write is one call */
	rig_faults_clear();
}

static void expect_calls(int journal, int fsyncs, int fdatasyncs)
{
	assert_int_equal(faults.pwritev2.calls, journal);
	assert_int_equal(faults.fsync.calls, fsyncs);
	assert_int_equal(faults.fdatasync.calls, fdatasyncs);
}

static void test_one_write_per_sync(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	for (int i = 0; i < 20; i++)
		assert_int_equal(put_and_sync(1000), 0);
	expect_calls(20, 0, 0);
	/* no two batches share a sector of a device with sectors of 4 KiB */
	assert_int_equal(rig_file(fd)->arena->journal.unit, 4096);
	/* nothing new: nothing to do */
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	expect_calls(20, 0, 0);
	assert_true(rig_kernel_size("out") < written);
	/* the journal says first that the file changes */
	rig_drain(fd);
	rig_expect("out", written);
	expect_calls(21, 0, 0);
	/* flushed, but it had been in the journal */
	assert_int_equal(put_and_sync(1000), 0);
	expect_calls(22, 0, 0);
}

static void test_what_was_not_in_the_journal_goes_to_the_file(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	rig_put(fd, written, 500);
	written += 500;
	rig_drain(fd);
	/* that it changes */
	expect_calls(1, 0, 0);
	assert_int_equal(put_and_sync(10), 0);
	/* the file, and one write that makes its entries void */
	expect_calls(2, 0, 1);
	assert_false(journal_file_counts(rig_file(fd)));
	assert_int_equal(put_and_sync(10), 0);
	expect_calls(3, 0, 1);
}

static void test_much_goes_to_the_file(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	for (int i = 0; i < 10; i++) {
		rig_put(fd, written, 30000);
		written += 30000;
	}
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_int_equal(faults.fdatasync.calls, 1);
	rig_expect("out", written);
}

static void test_a_short_write_is_continued(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	faults.pwritev2 = (struct fault){.at = 1, .count = 1, .most = 512};
	assert_int_equal(put_and_sync(3000), 0);
	assert_int_equal(faults.pwritev2.calls, 2);
	assert_int_equal(state_now(), JOURNAL_READY);
}

static void test_without_a_journal_the_file_is_synced(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	faults.pwritev2 = (struct fault){.at = 1, .count = 1, .error = EIO, .then = EIO};
	/* the bytes are durable all the same, and the journal, whose entries cannot be made void, is gone */
	assert_int_equal(put_and_sync(100), 0);
	assert_true(faults.fdatasync.calls > 0);
	assert_int_equal(state_now(), JOURNAL_OFF);
	rig_expect("out", written);
	assert_false(journal_file_counts(rig_file(fd)));
	{
		char command[400];

		snprintf(command, sizeof command, "! ls '%s/.fastwrite' | grep -q journal", rig_dir);
		assert_int_equal(system(command), 0);
	}
	assert_int_equal(put_and_sync(100), 0);
}

static void test_a_failed_sync_of_the_file_is_told_and_entries_stay(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	assert_int_equal(put_and_sync(100), 0);
	rig_put(fd, written, 500);
	written += 500;
	rig_drain(fd);
	faults.fdatasync = (struct fault){.at = 1, .count = 1, .error = EIO};
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), -EIO);
	assert_true(journal_file_counts(rig_file(fd)));
	/* the kernel has forgotten, and says that all is well */
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), -EIO);
	assert_int_equal(faults.fdatasync.calls, 1);
	assert_true(journal_file_counts(rig_file(fd)));
	assert_true(atomic_load(&rig_file(fd)->arena->journal.keep));
	/* so that it can be removed at the end of this test */
	atomic_store(&rig_file(fd)->arena->journal.keep, false);
	rig_file(fd)->journal.failed = 0;
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	assert_false(journal_file_counts(rig_file(fd)));
}

static int (*fdatasync_before)(int);

/* As another thread does during the sync. */
static int close_during_sync(int n)
{
	int r = fdatasync_before(n);

	sys.fdatasync = fdatasync_before;
	assert_int_equal(fd_close(fd), 0);
	return r;
}

static int close_before_sync(int n)
{
	sys.fdatasync = fdatasync_before;
	assert_int_equal(fd_close(fd), 0);
	return fdatasync_before(n);
}

/* Syncs the file itself by a number that another thread closes then; `fd` becomes another one. */
static int sync_and_close(int (*closes)(int))
{
	struct fd_copy copy;
	int other, r;

	skip_without_disk();
	start();
	fd_dup_begin(&copy, fd);
	other = dup(fd);
	fd_dup_done(&copy, other);
	rig_put(fd, written, 500);
	written += 500;
	rig_drain(fd);
	fdatasync_before = sys.fdatasync;
	sys.fdatasync = closes;
	r = put_and_sync(10);
	fd = other;
	return r;
}

static void test_a_number_that_is_closed_during_its_sync(void **state)
{
	(void)state;
	assert_int_equal(sync_and_close(close_during_sync), 0);
	/* a replay would write over what was synced; the number may have been another file's */
	assert_false(journal_file_counts(rig_file(fd)));
	assert_int_equal(faults.fdatasync.calls, 2);
}

static void test_a_number_that_is_closed_before_its_sync(void **state)
{
	(void)state;
	assert_int_equal(sync_and_close(close_before_sync), -EBADF);
	assert_int_equal(rig_file(fd)->journal.failed, 0);
	assert_int_equal(sync_file(fd, fdtable_get(fd), true), 0);
	assert_false(journal_file_counts(rig_file(fd)));
}

static void test_halves_change(void **state)
{
	(void)state;
	skip_without_disk();
	start();
	for (int i = 0; i < 400; i++)
		assert_int_equal(put_and_sync(5000), 0);
	assert_int_equal(state_now(), JOURNAL_READY);
	/* a third of them at least could use it */
	assert_true(faults.pwritev2.calls > 133);
	assert_true(faults.fdatasync.calls > 0);
	rig_drain(fd);
	rig_expect("out", written);
}

static void test_a_name_that_changes(void **state)
{
	struct file *f;
	struct file_guard g;

	(void)state;
	skip_without_disk();
	start();
	assert_int_equal(put_and_sync(100), 0);
	f = rig_file(fd);
	assert_true(journal_file_counts(f));
	g = file_lock(f);
	assert_int_equal(journal_retire(f), 0);
	file_unlock(f, g);
	assert_false(journal_file_counts(f));
	/* the sync, that the file changes, and the void entry */
	expect_calls(3, 0, 1);
	rig_expect("out", written);
}

enum { THREADS = 8, TIMES = 50 };

static void *sync_thread(void *arg)
{
	int mine = *(int *)arg;
	uint8_t buf[256];

	for (uint64_t i = 0; i < TIMES; i++) {
		rig_fill(buf, sizeof buf, i * sizeof buf);
		if (rig_write(mine, buf, sizeof buf) != (long)sizeof buf ||
		    sync_file(mine, fdtable_get(mine), true) != 0)
			return arg;
	}
	return NULL;
}

static void test_threads_share_writes(void **state)
{
	pthread_t threads[THREADS];
	int fds[THREADS];
	char name[16];

	(void)state;
	skip_without_disk();
	start();
	for (int i = 0; i < THREADS; i++) {
		snprintf(name, sizeof name, "t%d", i);
		fds[i] = rig_open(name, O_WRONLY);
	}
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, sync_thread, &fds[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	for (int i = 0; i < THREADS; i++) {
		rig_drain(fds[i]);
		snprintf(name, sizeof name, "t%d", i);
		rig_expect(name, (uint64_t)TIMES * 256);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_write_per_sync, set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_what_was_not_in_the_journal_goes_to_the_file, set_up,
	                                        rig_tear_down),
		cmocka_unit_test_setup_teardown(test_much_goes_to_the_file, set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_a_short_write_is_continued, set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_without_a_journal_the_file_is_synced, set_up,
	                                        rig_tear_down),
		cmocka_unit_test_setup_teardown(test_a_failed_sync_of_the_file_is_told_and_entries_stay,
	                                        set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_a_number_that_is_closed_during_its_sync, set_up,
	                                        rig_tear_down),
		cmocka_unit_test_setup_teardown(test_a_number_that_is_closed_before_its_sync, set_up,
	                                        rig_tear_down),
		cmocka_unit_test_setup_teardown(test_halves_change, set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_a_name_that_changes, set_up, rig_tear_down),
		cmocka_unit_test_setup_teardown(test_threads_share_writes, set_up, rig_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
