// SPDX-License-Identifier: Apache-2.0
/* prealloc: room is reserved before bytes are accepted, and given back. */
#include "attach/stop.h"
#include "base/lease.h"
#include "files/fdtable.h"
#include "files/workers.h"
#include "rig.h"

#include "flush/prealloc.h"
#include "sync/sync.h"

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

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
	assert_true(rig_file(fd)->space.end >= 4096);
	assert_true(allocated("out") >= rig_file(fd)->space.end);
	assert_true(rig_entry(fd)->flags & ENTRY_PREALLOCATED);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
	assert_true(allocated("out") <= 8192);
}

/* The engine's threads have ended since the last write. */
static void test_trimmed_long_after_the_last_write(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_drain(fd), 0);
	for (int i = 0; i < 1000 && workers_tid() != 0; i++)
		sys_nap(10000000);
	assert_int_equal(workers_tid(), 0);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
	assert_true(allocated("out") <= 8192);
}

/* The file stays open, but nothing is written any more. */
static void test_trimmed_when_idle(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_drain(fd), 0);
	assert_true(allocated("out") > 8192);
	for (int i = 0; i < 500 && allocated("out") > 8192; i++)
		sys_nap(10000000);
	assert_true(allocated("out") <= 8192);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	rig_put(fd, 200, 100);
	assert_true(allocated("out") > 8192);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 300);
	assert_true(allocated("out") <= 8192);
}

/* As long as somebody else has the file nothing can be given back without a race with his appends: so that
 * little is reserved that may have to stay. */
static void test_little_stays_while_others_have_it(void **state)
{
	int fd = rig_open("out", O_WRONLY | O_APPEND);
	int ends[2];
	pid_t reader;
	char one;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	reader = fork();
	if (reader == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		open(rig_path("out"), O_RDONLY);
		close(fd);
		if (write(ends[1], "x", 1) == 1)
			pause();
		_exit(0);
	}
	assert_int_equal(read(ends[0], &one, 1), 1);
	rig_put(fd, 0, 16000);
	rig_put(fd, 16000, 100);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 16100);
	assert_true(allocated("out") <= 16384 + (64 << 10) + 4096);
	assert_int_equal(kill(reader, SIGKILL), 0);
	assert_int_equal(waitpid(reader, NULL, 0), reader);
	close(ends[0]);
	close(ends[1]);
}

/* The lease is gone when the space is to be given back: this process was stopped, and somebody may have
 * appended. */
static long lease_lost(int fd, int cmd, long arg)
{
	return cmd == F_GETLEASE ? F_UNLCK : sys_kernel.fcntl(fd, cmd, arg);
}

static void test_not_trimmed_when_the_lease_is_lost(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_drain(fd), 0);
	rig_faults_clear();
	sys.fcntl = lease_lost;
	assert_int_equal(rig_close(fd), 0);
	assert_int_equal(faults.ftruncate.calls, 0);
	rig_expect("out", 200);
}

/* A thread that writes past the lock (visibility = strict, while somebody else has the file) may append right
 * now. */
static void test_not_trimmed_under_a_write(void **state)
{
	int fd = rig_open("out", O_WRONLY);
	struct file *f;
	struct file_guard g;

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	f = rig_file(fd);
	assert_int_equal(rig_drain(fd), 0);
	assert_true(f->space.end > f->ksize);
	g = file_lock(f);
	atomic_store(&f->lease.pass, true);
	atomic_store(&f->inflight, 1);
	rig_faults_clear();
	prealloc_trim(f, fd);
	atomic_store(&f->inflight, 0);
	file_unlock(f, g);
	assert_int_equal(faults.ftruncate.calls, 0);
	assert_false(atomic_load(&f->lease.pass));
	rig_put(fd, 200, 100);
	assert_int_equal(rig_drain(fd), 0);
	assert_true(f->space.end > f->ksize);
	g = file_lock(f);
	prealloc_trim(f, fd);
	file_unlock(f, g);
	assert_int_equal(faults.ftruncate.calls, 1);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 300);
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
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(calls, 6);
	assert_true(rig_file(fd)->space.end <= 1 << 16);
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
	rig_drain(fd);
	rig_file(fd)->space.end = 0;
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

static const int space_errors[] = {ENOSPC, EDQUOT, EFBIG, EIO, EROFS};
enum { SPACE_ERRORS = sizeof space_errors / sizeof *space_errors };

/* Whatever reserving says: the kernel is asked about this very write, and its answer is the program's. */
static void test_every_error_is_the_kernels(void **state)
{
	(void)state;
	for (int i = 0; i < SPACE_ERRORS; i++) {
		int fd = rig_open("out", O_WRONLY | O_TRUNC);

		rig_put(fd, 0, 100);
		rig_put(fd, 100, 100);
		assert_int_equal(rig_drain(fd), 0);
		rig_file(fd)->space.end = 0;
		faults.fallocate = (struct fault){.at = 1, .count = 1000, .error = space_errors[i]};
		faults.writev = (struct fault){.at = 1, .error = space_errors[i]};
		assert_int_equal(rig_write(fd, "x", 1), -space_errors[i]);
		rig_expect("out", 200);
		faults.writev = (struct fault){.at = 0};
		rig_put(fd, 200, 100);
		rig_faults_clear();
		rig_put(fd, 300, 100);
		rig_put(fd, 400, 100);
		assert_int_equal(rig_close(fd), 0);
		rig_expect("out", 500);
	}
}

/* No arena: the file is written through, and all is well. */
static void test_no_room_for_an_arena(void **state)
{
	(void)state;
	for (int i = 0; i < SPACE_ERRORS; i++) {
		bool later;
		int fd;

		rig_stop();
		rig_start(NULL);
		fd = rig_open("out", O_WRONLY);
		faults.fallocate = (struct fault){.at = 1, .count = 1, .error = space_errors[i]};
		rig_put(fd, 0, 100);
		rig_put(fd, 100, 100);
		/* a limit of the program's own may go, and a disk may have room again */
		later = space_errors[i] == EFBIG || space_errors[i] == ENOSPC || space_errors[i] == EDQUOT;
		assert_int_equal(rig_file(fd)->mode, later ? FILE_PASSIVE : FILE_BYPASSED);
		assert_int_equal(rig_file(fd)->why, BYPASS_NO_ARENA);
		rig_put(fd, 200, 100);
		rig_expect("out", 300);
		for (uint64_t written = 300; later && written < 10000; written += 100)
			rig_put(fd, written, 100);
		assert_int_equal(rig_file(fd)->mode, later ? FILE_ATTACHED : FILE_BYPASSED);
		assert_int_equal(rig_close(fd), 0);
		/* the staging directory is gone, too (rig_stop looks), and the refusal is forgotten for the
		 * next */
		if (!later)
			attach_forget(true);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_ahead_and_trimmed),
		TEST(test_not_trimmed_under_a_write),
		TEST(test_trimmed_long_after_the_last_write),
		TEST(test_trimmed_when_idle),
		TEST(test_little_stays_while_others_have_it),
		TEST(test_not_trimmed_when_the_lease_is_lost),
		TEST(test_full_disk_reserves_less),
		TEST(test_full_disk),
		TEST(test_off),
		TEST(test_holes_stay),
		TEST(test_every_error_is_the_kernels),
		TEST(test_no_room_for_an_arena),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
