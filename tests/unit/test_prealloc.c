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

/* ---- prealloc_mode = zero ---- */

static int zero_file(uint64_t *end)
{
	int fd;

	rig_config.rules[0].set.prealloc_mode = PREALLOC_ZERO;
	rig_config.rules[0].set.writers = WRITERS_EXCLUSIVE;
	fd = rig_open("out", O_RDWR | O_APPEND);
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	*end = 200;
	rig_faults_clear();
	return fd;
}

static void sync_one(int fd, uint64_t *end)
{
	rig_put(fd, *end, 100);
	*end += 100;
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
}

static bool engine_has_come(int fd)
{
	struct file_guard g = file_lock(rig_file(fd));
	bool idle = !rig_file(fd)->space.zero_wanted && !rig_file(fd)->flush.busy;

	file_unlock(rig_file(fd), g);
	return idle;
}

static void wait_for_engine(int fd)
{
	for (int i = 0; i < 12000 && !engine_has_come(fd); i++)
		usleep(5000);
	assert_true(engine_has_come(fd));
}

static void test_zeros(void **state)
{
	uint64_t end;
	int fd = zero_file(&end);

	(void)state;
	sync_one(fd, &end);
	wait_for_engine(fd);
	assert_true(rig_kernel_size("out") >= 1 << 20);
	assert_int_equal(rig_kernel_size("out"), rig_file(fd)->space.zero_end);
	assert_true(rig_entry(fd)->flags & ENTRY_PADDED);
	assert_int_equal(rig_entry(fd)->size, end);
	assert_int_equal(rig_entry(fd)->padded_end, rig_file(fd)->space.zero_end);
	sync_one(fd, &end);
	assert_int_equal(rig_entry(fd)->size, end);
	assert_true(rig_kernel_size("out") >= 1 << 20);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", end);
	assert_false(rig_entry(fd)->flags & ENTRY_PADDED);
	sync_one(fd, &end);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", end);
	assert_true(allocated("out") <= 8192);
}

static void *die_with_lock(void *lock)
{
	lock_take(lock, LOCK_FILE);
	return NULL;
}

/* The file is repaired with zeros behind its end: what comes next goes before them. */
static void test_zeros_and_a_dead_owner(void **state)
{
	uint64_t end;
	int fd = zero_file(&end);

	(void)state;
	for (int i = 0; i < 3; i++) {
		pthread_t thread;

		sync_one(fd, &end);
		wait_for_engine(fd);
		assert_true(rig_file(fd)->space.zero_end > end);
		rig_put(fd, end, 100);
		end += 100;
		assert_int_equal(pthread_create(&thread, NULL, die_with_lock, &rig_file(fd)->lock), 0);
		pthread_join(thread, NULL);
		rig_put(fd, end, 100);
		end += 100;
		assert_false(rig_file(fd)->needs_repair);
	}
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", end);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", end);
}

/* A program that looks after every sync has nothing of them. */
static void test_zeros_that_are_of_no_use(void **state)
{
	uint64_t end;
	int fd = zero_file(&end);

	(void)state;
	for (int i = 0; i < 20; i++) {
		sync_one(fd, &end);
		wait_for_engine(fd);
		assert_int_equal(rig_drain(fd), 0);
		rig_expect("out", end);
	}
	sync_one(fd, &end);
	assert_false(rig_file(fd)->space.zero_wanted);
	rig_expect("out", end);
	assert_int_equal(rig_close(fd), 0);
}

/* What goes wrong with the zeros is nobody's business but ours. */
static void test_zeros_that_fail(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		uint64_t end;
		int fd;

		rig_stop();
		rig_start(NULL);
		fd = zero_file(&end);
		switch (how) {
		case 0: faults.fallocate = (struct fault){.at = 1, .count = 100, .error = ENOSPC}; break;
		case 1: faults.pwritev = (struct fault){.at = 2, .count = 1, .error = EIO}; break;
		case 2: faults.pwritev = (struct fault){.at = 5, .count = 1, .error = ENOSPC}; break;
		case 3: faults.pwritev = (struct fault){.at = 3, .count = 4, .most = 1000}; break;
		}
		sync_one(fd, &end);
		assert_true(rig_file(fd)->mode == FILE_ATTACHED);
		wait_for_engine(fd);
		assert_true(how == 0 ? faults.fallocate.calls > 0 : faults.pwritev.calls >= 2);
		rig_faults_clear();
		for (int i = 0; i < 5; i++)
			sync_one(fd, &end);
		assert_int_equal(rig_drain(fd), 0);
		rig_expect("out", end);
		assert_int_equal(rig_close(fd), 0);
		rig_expect("out", end);
	}
}

/* As a signal handler drains that has interrupted the holder of the lock, while the engine is at it. */
static void test_zeros_and_a_signal_handler(void **state)
{
	uint64_t end;
	int fd = zero_file(&end);

	int with_zeros = 0;

	(void)state;
	/* longer and longer: on a busy machine the worker thread needs its time */
	for (int round = 0; round < 30 || (with_zeros == 0 && round < 300); round++) {
		struct file *f = rig_file(fd);
		struct file_guard g;

		g = file_lock(f);
		f->space.zero_wasted = 0;
		file_unlock(f, g);
		sync_one(fd, &end);
		usleep((useconds_t)(round * 100));
		rig_put(fd, end, 100);
		end += 100;
		g = file_lock(f);
		{
			struct file_guard inner = file_lock(f);

			assert_true(f->nested);
			with_zeros += f->space.zero_end > 0;
			assert_int_equal(flush_drain(f), 0);
			assert_int_equal(f->space.zero_end, 0);
			assert_int_equal(rig_kernel_size("out"), end);
			file_unlock(f, inner);
		}
		file_unlock(f, g);
	}
	assert_true(with_zeros > 0);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", end);
}

/* Others may have the file: nothing stands ahead. */
static void test_no_zeros_for_others_to_append_to(void **state)
{
	uint64_t end;
	int fd = zero_file(&end);

	(void)state;
	rig_config.rules[0].set.writers = WRITERS_AUTO;
	sync_one(fd, &end);
	wait_for_engine(fd);
	rig_expect("out", end);
	rig_config.rules[0].set.writers = WRITERS_EXCLUSIVE;
	rig_file(fd)->shared = true; /* by a fork */
	sync_one(fd, &end);
	wait_for_engine(fd);
	rig_expect("out", end);
	rig_file(fd)->shared = false;
	assert_int_equal(rig_close(fd), 0);
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
		TEST(test_zeros),
		TEST(test_zeros_and_a_dead_owner),
		TEST(test_zeros_that_are_of_no_use),
		TEST(test_zeros_that_fail),
		TEST(test_zeros_and_a_signal_handler),
		TEST(test_no_zeros_for_others_to_append_to),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
