// SPDX-License-Identifier: Apache-2.0
/* flush: failures keep the bytes, order is kept, the program's description is left as it was. */
#include "attach/stop.h"
#include "rig.h"

#include <signal.h>

static int staged_file(int flags, uint64_t n)
{
	int fd = rig_open("out", flags);

	rig_put(fd, 0, 100);
	rig_put(fd, 100, n - 100);
	assert_int_equal(rig_kernel_size("out"), 100);
	rig_faults_clear();
	return fd;
}

static void test_settle(void **state)
{
	int fd = staged_file(O_WRONLY, 9000);
	struct file *f = rig_file(fd);

	(void)state;
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", 9000);
	assert_null(f->head);
	assert_int_equal(f->ksize, 9000);
	assert_int_equal(DONE_SEQ(rig_entry(fd)->done), f->arena->header->live.next_seq);
	assert_int_equal(f->arena->free_count, f->arena->block_count);
	rig_put(fd, 9000, 10);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 9010);
}

static void test_failure_keeps_the_bytes(void **state)
{
	const int errors[] = {EIO, ENOSPC, EDQUOT};

	(void)state;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		int fd = staged_file(O_WRONLY | O_TRUNC, 9000);

		faults.pwritev = (struct fault){.at = 1, .count = 3, .error = errors[i]};
		assert_int_equal(rig_drain(fd), -errors[i]);
		assert_int_equal(rig_file(fd)->flush.error, -errors[i]);
		assert_non_null(rig_file(fd)->head);
		/* the write that meets it is told, and is not accepted */
		assert_int_equal(rig_write(fd, "x", 1), -errors[i]);
		faults.pwritev.at = 0;
		rig_put(fd, 9000, 10);
		assert_int_equal(rig_file(fd)->flush.error, 0);
		assert_int_equal(rig_close(fd), 0);
		rig_expect("out", 9010);
	}
}

/* The kernel must not cut the file: the bytes would come back with the next flush. */
static void test_failure_refuses_an_open_that_cuts(void **state)
{
	int fd = staged_file(O_WRONLY | O_TRUNC, 9000);
	struct fd_open op;

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 1000, .error = ENOSPC};
	fd_open_prepare(&op, AT_FDCWD, rig_path("out"), O_WRONLY | O_TRUNC);
	assert_int_equal(op.error, -ENOSPC);
	fd_open_end(&op);
	fd_open_prepare(&op, AT_FDCWD, rig_path("out"), O_WRONLY);
	assert_int_equal(op.error, 0);
	fd_open_end(&op);
	rig_faults_clear();
	fd_open_prepare(&op, AT_FDCWD, rig_path("out"), O_WRONLY | O_TRUNC);
	assert_int_equal(op.error, 0);
	fd_open_end(&op);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 9000);
}

static void test_short_writes_and_interruptions(void **state)
{
	int fd = staged_file(O_WRONLY, 30000);

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 30, .most = 999};
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", 30000);
	rig_put(fd, 30000, 3000);
	faults.pwritev = (struct fault){.at = 1, .count = 4, .error = EINTR};
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("out", 33000);
}

static void test_o_direct_refused_everywhere(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	rig_config.rules[0].set.flush = FLUSH_DIRECT;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 30000);
	rig_faults_clear();
	faults.pwritev = (struct fault){.at = 2, .error = EINVAL};
	assert_int_equal(rig_drain(fd), 0);
	assert_false(rig_file(fd)->flush.direct_ok);
	rig_expect("out", 30100);
	rig_put(fd, 30100, 30000);
	faults.pwritev = (struct fault){.at = 0};
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.pwritev.calls, 1); /* in one piece */
	rig_expect("out", 60100);
}

/* No description of our own is opened.  The program's is used, and is left as it was. */
static void test_through_the_programs_description(void **state)
{
	int fd;

	(void)state;
	rig_config.rules[0].set.flush = FLUSH_DIRECT;
	rig_config.rules[0].set.writers = WRITERS_EXCLUSIVE;
	fd = rig_open("out", O_WRONLY | O_APPEND);
	rig_put(fd, 0, 100);
	faults.open_own = (struct fault){.at = 1, .count = 100, .error = EMFILE};
	rig_put(fd, 100, 30000);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.open_own.calls, 0);
	assert_int_equal(file_internal_fd(rig_file(fd)), -1);
	rig_expect("out", 30100);
	assert_int_equal(fcntl(fd, F_GETFL) & (O_APPEND | O_DIRECT), O_APPEND);
	rig_put(fd, 30100, 500);
	faults.pwritev = (struct fault){.at = 1, .error = EIO};
	assert_int_equal(rig_drain(fd), -EIO);
	assert_int_equal(fcntl(fd, F_GETFL) & (O_APPEND | O_DIRECT), O_APPEND);
	faults.pwritev.at = 0;
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 30600);
}

static void test_overwritten_in_order(void **state)
{
	int fd = rig_open("out", O_RDWR);
	uint8_t buf[3000], want[3000], have[3000];

	(void)state;
	rig_put(fd, 0, 3000);
	/* one range again and again, over several blocks */
	for (int i = 0; i < 100; i++) {
		memset(buf, i, sizeof buf);
		assert_int_equal(rig_pwrite(fd, buf, sizeof buf, 0), sizeof buf);
	}
	assert_int_equal(rig_close(fd), 0);
	memset(want, 99, sizeof want);
	fd = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(fd, have, sizeof have), sizeof have);
	close(fd);
	assert_memory_equal(have, want, sizeof want);
}

static void test_close_that_cannot_write_keeps_the_bytes(void **state)
{
	int fd = staged_file(O_WRONLY, 9000);
	char command[400];

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 100, .error = ENOSPC};
	assert_int_equal(rig_close(fd), -ENOSPC);
	rig_faults_clear();
	/* the arena stays, for a recovery after the end of the process */
	attach_stop_all(BYPASS_EXEC);
	attach_resume_all(BYPASS_EXEC);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), 0);
	snprintf(command, sizeof command, "test $(ls %s/.fastwrite/*.arena | wc -l) = 1", rig_dir);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof command, "rm -r %s/.fastwrite", rig_dir);
	assert_int_equal(system(command), 0);
}

static void test_hand_over_moves_the_offset(void **state)
{
	int fd = staged_file(O_RDWR, 5000);
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	(void)state;
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 100);
	assert_int_equal(flush_drain_and_reposition(f), 0);
	file_unlock(f, g);
	assert_int_equal(lseek(fd, 0, SEEK_CUR), 5000);
	rig_put(fd, 5000, 10);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 5010);
}

static int interrupted_fd;

/* While a flush writes without the lock, a write of the program is interrupted by a handler that takes the
 * lock, too. */
static ssize_t interrupting_pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct file *f = rig_file(interrupted_fd);

	sys.pwritev = sys_kernel.pwritev;
	rig_put(interrupted_fd, 9000, 500);
	assert_true(lock_try(&f->lock, lock_self()));
	file_unlock(f, file_lock(f));
	assert_non_null(f->pinned);
	lock_drop_fast(&f->lock, lock_self());
	return sys_kernel.pwritev(fd, iov, count, offset);
}

/* The flusher has its lock again: the interrupted write copies nothing any more, and its block can be freed.
 * Otherwise a drain would wait for that for ever, which the alarm ends. */
static void test_drain_after_an_interrupted_write(void **state)
{
	int fd = staged_file(O_WRONLY, 9000);
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);
	sigset_t only;

	(void)state;
	interrupted_fd = fd;
	sys.pwritev = interrupting_pwritev;
	stage_seal(f);
	assert_int_equal(flush_run(f, false), 0);
	/* (the lock blocks all signals) */
	sigemptyset(&only);
	sigaddset(&only, SIGALRM);
	sigprocmask(SIG_UNBLOCK, &only, NULL);
	alarm(60);
	assert_int_equal(flush_drain(f), 0);
	alarm(0);
	assert_null(f->head);
	file_unlock(f, g);
	rig_expect("out", 9500);
	assert_int_equal(rig_close(fd), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_settle),
		TEST(test_failure_keeps_the_bytes),
		TEST(test_failure_refuses_an_open_that_cuts),
		TEST(test_short_writes_and_interruptions),
		TEST(test_o_direct_refused_everywhere),
		TEST(test_through_the_programs_description),
		TEST(test_overwritten_in_order),
		TEST(test_hand_over_moves_the_offset),
		TEST(test_drain_after_an_interrupted_write),
		/* last: it leaves an arena that this process never gives up */
		TEST(test_close_that_cannot_write_keeps_the_bytes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
