// SPDX-License-Identifier: Apache-2.0
/* ordered: nothing reaches a file before the log has it, also when the log, a file or the disk fails. */
#include "dead_arena.h"
#include "files/fdtable.h"
#include "files/workers.h"

#include "attach/attach.h"
#include "attach/watcher.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "descriptors/by_name.h"
#include "descriptors/fd.h"
#include "descriptors/io.h"
#include "flush/flush.h"
#include "flush/order_directory.h"
#include "flush/order_log.h"
#include "flush/order_loose.h"
#include "flush/ordered.h"
#include "flush/token.h"
#include "format/wal_scan.h"
#include "process/child.h"
#include "staging/order.h"
#include "staging/tail.h"
#include "sync/sync.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static uint8_t batch[WAL_BATCH_MOST] __attribute__((aligned(WAL_PAGE_BYTES)));

/* Threads that do nothing: the test ends epochs itself. */
static void leave_file(struct file *f) { (void)f; }
static void leave_all(void) {}

static uint64_t look_at_nothing(uint32_t pace_ms, bool *idle, bool *waits)
{
	*idle = *waits = false;
	return pace_ms * 1000000ull;
}

static void let_threads_rest(void)
{
	static const struct workers_jobs jobs = {
		.file = leave_file, .look = look_at_nothing, .tend = leave_all, .rest = leave_all};

	workers_set(&jobs);
}

static int set_up(void **state)
{
	struct statfs st;

	(void)state;
	rig_start("FASTWRITE_SYNC=ordered", "FASTWRITE_WRITERS=exclusive", "FASTWRITE_ORDERED_MS=60000",
	          NULL);
	let_threads_rest();
	assert_int_equal(statfs(rig_dir, &st), 0);
	return 0;
}

/* (a test that is skipped is torn down, too) */
static void needs_a_disk(void)
{
	struct statfs st;

	assert_int_equal(statfs(rig_dir, &st), 0);
	if (st.f_type == RIG_MAGIC_TMPFS) {
		print_message("skipped: no log on tmpfs; set TMPDIR to a directory on a disk\n");
		skip();
	}
}

/* A look at the file takes its lease away, and the next try for one comes later; a lease that took long is
 * followed by a pause. */
static void wait_for_lease(int fd)
{
	struct file *f = rig_file(fd);

	file_unlock(f, file_lock(f)); /* which the watcher may have */
	while (sys_now_ns() < f->lease.retry_ns || !ordered_pays(f->rule))
		sys_nap(1000000);
}

/* A file with its first epoch behind it.  (The next name that comes ends another one.) */
static int ready(const char *name)
{
	int fd = rig_open(name, O_RDWR);

	rig_put(fd, 0, 1000);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect(name, 1000);
	wait_for_lease(fd);
	return fd;
}

/* And n more bytes staged. */
static int staged(const char *name, size_t n)
{
	int fd = ready(name);

	rig_put(fd, 1000, n);
	rig_faults_clear();
	return fd;
}

/* At a position. */
static void put_at(int fd, uint64_t at, size_t n)
{
	uint8_t buf[128];

	rig_fill(buf, n, at);
	assert_int_equal(rig_pwrite(fd, buf, n, (off_t)at), (long)n);
}

/* "a" with 500 more bytes staged, "b" with 600. */
static void two_staged(int *fd, int *other)
{
	*other = ready("b");
	*fd = staged("a", 500);
	rig_put(*other, 1000, 600);
}

/* As the timer does; the file stays in the overlay for what comes. */
static void flush_now(int fd)
{
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	assert_int_equal(ordered_flush(f), 0);
	file_unlock(f, g);
}

static int open_log(void)
{
	DIR *dir = opendir(rig_path(".fastwrite"));
	const struct dirent *d;
	char path[800];
	int fd;

	assert_non_null(dir);
	while ((d = readdir(dir)) != NULL && (!strstr(d->d_name, ".journal") || strstr(d->d_name, "-unit-")))
		;
	assert_non_null(d);
	snprintf(path, sizeof path, "%s/%s", rig_path(".fastwrite"), d->d_name);
	closedir(dir);
	fd = open(path, O_RDONLY);
	assert_true(fd >= 0);
	return fd;
}

/* The log on the disk. */
static struct wal_scan scan_log(void)
{
	struct wal_scan s = {0};
	int fd = open_log();

	assert_int_equal(wal_scan_begin(&s, fd, batch), 0);
	close(fd);
	return s;
}

static void test_a_sync_asks_nobody(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	for (int i = 0; i < 3; i++)
		assert_int_equal(sync_file(fd, fdtable_get(fd), i % 2), 0);
	assert_int_equal(faults.fsync.calls + faults.fdatasync.calls, 0);
	assert_int_equal(rig_kernel_size("a"), 1000);
	/* an epoch is of all files: log, two files, and the log is void */
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fdatasync.calls, 4);
	rig_expect("a", 1500);
	rig_expect("b", 1600);
	assert_int_equal(scan_log().epochs, 0);
}

/* Too large for the overlay. */
static uint64_t put_large(int fd, uint64_t at)
{
	uint64_t n = rig_file(fd)->rule->set.mem_bytes / 8 + 1;
	uint8_t *bytes = malloc(n);

	assert_non_null(bytes);
	rig_fill(bytes, n, at);
	assert_int_equal(rig_pwrite(fd, bytes, n, (off_t)at), (long)n);
	free(bytes);
	return n;
}

static void test_a_large_write_comes_after_what_was_staged(void **state)
{
	int fd, other;
	uint64_t n;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	n = put_large(other, 1600);
	/* all of it is durable before, and the log cannot undo the write */
	rig_expect("a", 1500);
	rig_expect("b", 1600 + n);
	assert_int_equal(scan_log().epochs, 0);
	/* which no log has: it is synced when the program asks for it */
	rig_faults_clear();
	assert_int_equal(sync_file(other, fdtable_get(other), false), 0);
	assert_int_equal(faults.fdatasync.calls + faults.fsync.calls, 1);
	/* the next epoch waits for it, and then a sync asks nobody again */
	rig_put(fd, 1500, 10);
	assert_int_equal(rig_drain(fd), 0);
	rig_faults_clear();
	assert_int_equal(sync_file(other, fdtable_get(other), false), 0);
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
	assert_int_equal(faults.fdatasync.calls + faults.fsync.calls, 0);
}

/* Written, opened again for reading, closed, removed: the reader still has it. */
static void test_a_removed_file_that_is_read(void **state)
{
	char buf[3000];
	struct iovec iov = {.iov_base = buf, .iov_len = sizeof buf};
	struct by_name_unlink u;
	int fd, reader;

	(void)state;
	needs_a_disk();
	fd = rig_open("j", O_RDWR);
	rig_put(fd, 0, 3000);
	reader = rig_open("j", O_RDONLY);
	assert_int_equal(fd_close(fd), 0);
	by_name_unlink_prepare(&u, AT_FDCWD, rig_path("j"));
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&u, true);
	{
		long n = io_readv(reader, fdtable_get(reader), &iov, 1, 0);
		uint8_t want[3000];

		if (n == IO_PASS)
			n = pread(reader, buf, sizeof buf, 0);
		assert_int_equal(n, 3000);
		rig_fill(want, sizeof want, 0);
		assert_memory_equal(buf, want, sizeof want);
	}
}

static void test_a_log_that_cannot_be_written(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	for (int fails = 0; fails < 4; fails++) {
		rig_faults_clear();
		if (fails % 2)
			faults.pwritev = (struct fault){.at = 1, .error = EIO};
		else
			faults.fdatasync = (struct fault){.at = 1, .error = EIO};
		assert_int_equal(rig_drain(fd), -EIO);
		assert_int_equal(rig_kernel_size("a"), 1000);
		/* accepted bytes are not forgotten, and no more are accepted */
		rig_faults_clear();
		faults.fdatasync = (struct fault){.at = 1, .error = EIO};
		assert_int_equal(rig_write(fd, "x", 1), -EIO);
	}
	rig_faults_clear();
	rig_put(fd, 1500, 100);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1600);
	assert_int_equal(scan_log().epochs, 0);
}

static void test_a_file_that_cannot_be_written(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	/* the log's batch; then a file, also with the space of the log */
	faults.pwritev = (struct fault){.at = 2, .count = 2, .error = ENOSPC};
	assert_int_equal(ordered_barrier(NULL), -ENOSPC);
	/* both are in the log, until both are in the files */
	assert_int_equal(scan_log().epochs, 1);
	assert_true((rig_kernel_size("a") == 1000) != (rig_kernel_size("b") == 1000));
	assert_int_equal(ordered_barrier(NULL), 0);
	rig_expect("a", 1500);
	rig_expect("b", 1600);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(rig_drain(fd), 0);
}

/* For rig_stop: what is left in the log, `epochs` of them, is for recovery. */
static void leave_log(int fd, uint64_t epochs)
{
	char command[600];

	rig_faults_clear();
	rig_close(fd);
	attach_stop_all(BYPASS_EXEC);
	attach_resume_all(BYPASS_EXEC);
	assert_int_equal(scan_log().epochs, epochs);
	snprintf(command, sizeof command, "rm -r '%s'", rig_path(".fastwrite"));
	assert_int_equal(system(command), 0);
}

/* Nobody knows which of its bytes the kernel has dropped: the log stays for good. */
static void test_a_file_that_cannot_be_synced(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	faults.fdatasync = (struct fault){.at = 2, .error = EIO};
	(void)rig_drain(fd);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ordered_barrier(NULL), -EIO);
		assert_int_equal(scan_log().epochs, 1);
		assert_true(rig_write(fd, "x", 1) == -EIO || rig_write(other, "x", 1) == -EIO);
	}
	rig_close(fd);
	leave_log(other, 1);
}

/* A file that is staged after an epoch that failed cannot become durable before it. */
static void test_no_sync_succeeds_after_an_epoch_that_failed(void **state)
{
	int fd, other, third;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	third = rig_open("c", O_RDWR);
	rig_put(third, 0, 100);
	assert_int_equal(rig_drain(third), 0);
	rig_faults_clear();
	put_at(fd, 0, 100);
	faults.pwritev = (struct fault){.at = 1, .count = 100, .error = EIO};
	assert_int_equal(ordered_barrier(NULL), -EIO);
	put_at(third, 0, 100);
	assert_int_equal(sync_file(third, fdtable_get(third), false), -EIO);
	rig_faults_clear();
	assert_int_equal(ordered_barrier(NULL), 0);
	rig_put(third, 100, 100);
	assert_int_equal(sync_file(third, fdtable_get(third), false), 0);
	rig_expect("a", 1500);
	assert_int_equal(rig_drain(third), 0);
	rig_expect("c", 200);
}

/* What the kernel had before the attach is durable before the first epoch. */
static void test_older_bytes_are_synced_first(void **state)
{
	uint8_t old[1000];
	int fd;

	(void)state;
	needs_a_disk();
	fd = open(rig_path("a"), O_RDWR | O_CREAT, 0644);
	rig_fill(old, sizeof old, 0);
	assert_int_equal(write(fd, old, sizeof old), sizeof old);
	close(fd);
	fd = rig_open("a", O_RDWR);
	put_at(fd, 1000, 100);
	rig_faults_clear();
	faults.fdatasync = (struct fault){.at = 1, .error = EIO};
	assert_int_equal(rig_drain(fd), -EIO);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(rig_kernel_size("a"), 1000);
	rig_faults_clear();
	/* the kernel may have dropped them, and nothing that comes later counts */
	assert_int_equal(sync_file(fd, fdtable_get(fd), false), -EIO);
	assert_int_equal(rig_drain(fd), -EIO);
	assert_int_equal(rig_kernel_size("a"), 1000);
	leave_log(fd, 0);
}

/* Of a new file the kernel has the name only, which the sync of all names makes durable. */
static void test_new_files_are_synced_together(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	fd = rig_open("a", O_RDWR);
	other = rig_open("b", O_RDWR);
	rig_put(fd, 0, 1000);
	rig_put(other, 0, 500);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 0);
	rig_expect("b", 500);
	rig_expect("a", 1000);
}

static int visit_flags(void *ctx, const struct wal_item *item)
{
	if (item->type == WAL_SIZE)
		*(uint32_t *)ctx = item->size->flags;
	return 0;
}

/* Of the last size that the log has. */
static uint32_t flags_in_log(void)
{
	struct wal_scan s = {0};
	uint32_t flags = UINT32_MAX;
	int fd = open_log();

	assert_int_equal(wal_scan_begin(&s, fd, batch), 0);
	assert_int_equal(wal_scan_each(&s, visit_flags, &flags), 0);
	close(fd);
	return flags;
}

static void test_a_file_is_cut_in_its_epoch(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_int_equal(io_ftruncate(fd, 300), 0);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(io_lseek(fd, fdtable_get(fd), 300, SEEK_SET), 300);
	rig_put(fd, 300, 100);
	assert_int_equal(rig_kernel_size("a"), 1000);
	flush_now(fd);
	assert_int_equal(flags_in_log(), WAL_CUTS);
	rig_put(fd, 400, 100);
	flush_now(fd);
	assert_int_equal(flags_in_log(), 0);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 500);
}

/* Between the leader's cut and the write-back the program goes on. */
static int go_on_fd = -1;

static ssize_t pwritev_and_go_on(int fd, const struct iovec *iov, int count, off_t offset)
{
	int other = go_on_fd;

	go_on_fd = -1;
	if (other >= 0)
		rig_put(other, 1500, 200);
	return sys_kernel.pwritev(fd, iov, count, offset);
}

static void test_the_next_epoch_begins_beside_it(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	go_on_fd = fd;
	sys.pwritev = pwritev_and_go_on;
	/* (in this thread: the leader holds no file lock while it writes the log) */
	assert_int_equal(ordered_barrier(NULL), 0);
	sys.pwritev = rig_pwritev;
	assert_int_equal(go_on_fd, -1);
	rig_expect("a", 1700);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1700);
}

static void test_a_file_that_is_only_written(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = rig_open("log", O_WRONLY | O_APPEND);
	rig_faults_clear();
	for (uint64_t at = 0; at < 9000; at += 1000) {
		rig_put(fd, at, 1000);
		assert_int_equal(rig_kernel_size("log"), at / 3000 * 3000);
		if (at % 3000 == 2000)
			assert_int_equal(rig_drain(fd), 0);
	}
	rig_expect("log", 9000);
	/* it stays open: its number is low for one moment only, and a watcher sees one open */
	assert_int_equal(faults.open_own.calls, 1);
	assert_true(internal_fd_is(file_reader(rig_file(fd))));
	/* the library may not open it while the program has locks on it */
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	assert_int_equal(file_reader(rig_file(fd)), -1);
	rig_put(fd, 9000, 1000);
	rig_expect("log", 10000);
	assert_int_equal(faults.open_own.calls, 1);
}

/* Another thread closes the descriptor just before the kernel reads, and opens another file, which it writes.
 */
static ssize_t read_from_another(int fd, const struct iovec *iov, int count, off_t at)
{
	sys.preadv = sys_kernel.preadv;
	assert_int_equal(fd_close(fd), 0);
	assert_int_equal(rig_open("b", O_RDWR), fd);
	rig_put(fd, 0, 2000);
	return sys_kernel.preadv(fd, iov, count, at);
}

static void test_a_descriptor_is_replaced_before_a_read(void **state)
{
	uint8_t have[3000];
	int fd;

	(void)state;
	needs_a_disk();
	fd = rig_open("a", O_RDWR);
	rig_put(fd, 0, 20000);
	assert_int_equal(rig_drain(fd), 0);
	rig_put(fd, 20000, 100);
	assert_true(file_is_paged(rig_file(fd)));
	sys.preadv = read_from_another;
	assert_int_equal(io_read_at(fd, fdtable_get(fd), have, sizeof have, 0), 2000);
	assert_ptr_equal(sys.preadv, sys_kernel.preadv);
}

static void needs_leases(int fd)
{
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0) {
		print_message("skipped: no leases on this file system\n");
		skip();
	}
	assert_int_equal(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
}

/* "log", which the program can only write, and has locked; or skips. */
static int locked_log(int flags)
{
	int fd = rig_open("log", O_WRONLY | flags);

	needs_leases(fd);
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	return fd;
}

/* The same, 5,000 bytes long, with its end kept. */
static int log_with_an_end(void)
{
	int fd = locked_log(0);

	rig_put(fd, 0, 5000);
	assert_int_equal(rig_drain(fd), 0);
	assert_true(tail_reaches(rig_file(fd), 5000));
	return fd;
}

/* The library may not open it, and knows its end all the same, but not after a change by the kernel. */
static void test_a_locked_file_that_is_only_written(void **state)
{
	static uint8_t large[200000];
	int fd;

	(void)state;
	needs_a_disk();
	fd = locked_log(O_APPEND);
	rig_faults_clear();
	for (uint64_t at = 0; at < 30000; at += 1000) {
		rig_put(fd, at, 1000);
		assert_int_equal(rig_kernel_size("log"), at / 3000 * 3000);
		if (at % 3000 == 2000)
			assert_int_equal(rig_drain(fd), 0);
	}
	rig_expect("log", 30000);
	assert_int_equal(faults.open_own.calls, 0);
	rig_fill(large, sizeof large, 30000);
	assert_int_equal(rig_write(fd, large, sizeof large), sizeof large);
	rig_put(fd, 230000, 1000);
	assert_int_equal(rig_kernel_size("log"), 231000);
	rig_expect("log", 231000);
}

/* What was kept of the file is not what stands there now. */
static void test_an_end_that_is_not_kept_any_more(void **state)
{
	uint8_t byte = 'x';
	int fd;

	(void)state;
	needs_a_disk();
	fd = log_with_an_end();
	assert_false(tail_reaches(rig_file(fd), 5001));
	/* the next overlay uses it, once */
	rig_put(fd, 5000, 10);
	assert_false(tail_reaches(rig_file(fd), 5000));
	assert_int_equal(rig_drain(fd), 0);
	assert_true(tail_reaches(rig_file(fd), 5010));
	/* nobody can read this page, so the kernel writes */
	assert_int_equal(rig_pwrite(fd, &byte, 1, 100), 1);
	assert_false(tail_reaches(rig_file(fd), 5010));
	assert_int_equal(rig_kernel_size("log"), 5010);
	byte = rig_byte(100);
	assert_int_equal(rig_pwrite(fd, &byte, 1, 100), 1);
	rig_put(fd, 5010, 10);
	rig_expect("log", 5020);
}

/* Two descriptions get no lease, which would say whether another program has changed the file. */
static void test_an_end_without_a_lease(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = log_with_an_end();
	rig_open("log", O_WRONLY);
	rig_put(fd, 5000, 100);
	assert_int_equal(rig_kernel_size("log"), 5100);
	rig_expect("log", 5100);
}

/* Its open has broken the lease: nothing that is kept counts, whatever the file's times say. */
static void test_an_end_that_another_program_asked_for(void **state)
{
	int fd, status = -1;
	pid_t pid;

	(void)state;
	needs_a_disk();
	fd = locked_log(0);
	rig_put(fd, 0, 5000);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	pid = fork();
	if (pid == 0)
		_exit(open(rig_path("log"), O_RDWR | O_CLOEXEC) < 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	file_unlock(rig_file(fd), file_lock(rig_file(fd))); /* which the watcher has */
	assert_null(rig_file(fd)->lease.on);
	assert_false(tail_reaches(rig_file(fd), 5000));
	rig_expect("log", 5000);
}

/* The log has bytes of "a", which has a lease, and cannot be emptied: a replay would write them over those of
 * others. */
static int leased_beside_a_full_log(void)
{
	int fd, other;

	rig_config.rules[0].set.writers = WRITERS_AUTO;
	fd = ready("a");
	other = ready("b");
	rig_put(fd, 1000, 500);
	flush_now(fd);
	assert_int_equal(scan_log().epochs, 1);
	rig_put(other, 1000, 600);
	rig_faults_clear();
	faults.pwritev = (struct fault){.at = 1, .count = 100000, .error = EIO};
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	assert_true(ordered_holds(rig_file(fd)));
	return fd;
}

/* A process that leaves its namespaces ends the watcher: it does not wait for the log. */
static void test_the_watcher_ends_beside_a_full_log(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = leased_beside_a_full_log();
	watcher_stop();
	assert_null(rig_file(fd)->lease.on);
	assert_true(faults.pwritev.calls < 1000);
	faults.pwritev = (struct fault){0};
	assert_int_equal(ordered_barrier(NULL), 0);
	rig_expect("a", 1500);
	rig_expect("b", 1600);
}

static void test_another_program_waits_for_the_log(void **state)
{
	int status = -1;
	pid_t pid, ended = 0;

	(void)state;
	needs_a_disk();
	leased_beside_a_full_log();
	pid = fork();
	if (pid == 0)
		_exit(open(rig_path("a"), O_RDWR | O_CLOEXEC) < 0);
	/* the watcher has tried it again */
	while (__atomic_load_n(&faults.pwritev.calls, __ATOMIC_RELAXED) < 6 && ended == 0) {
		ended = waitpid(pid, &status, WNOHANG);
		sys_nap(1000000);
	}
	assert_int_equal(ended, 0);
	faults.pwritev = (struct fault){0};
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(ordered_barrier(NULL), 0);
	rig_expect("a", 1500);
	rig_expect("b", 1600);
}

/* Somebody else has written what is kept, and the file is as long as before. */
static void test_an_end_that_another_program_changes(void **state)
{
	uint8_t byte;
	int fd, raw;

	(void)state;
	needs_a_disk();
	fd = log_with_an_end();
	sys_nap(20000000); /* a tick of the kernel's clock */
	raw = open(rig_path("log"), O_RDWR);
	assert_int_equal(pwrite(raw, "x", 1, 4500), 1);
	close(raw);
	rig_put(fd, 5000, 100);
	assert_int_equal(rig_drain(fd), 0);
	raw = open(rig_path("log"), O_RDONLY);
	assert_int_equal(pread(raw, &byte, 1, 4500), 1);
	assert_int_equal(byte, 'x');
	close(raw);
}

static void test_a_file_that_cannot_be_read(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = rig_open("log", O_WRONLY);
	faults.open_own = (struct fault){.at = 1, .count = 1000, .error = EACCES};
	rig_put(fd, 0, 1000);
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(rig_file(fd)->why, BYPASS_RIGHTS);
	rig_expect("log", 1000);
}

/* "a", locked and staged under a lease, or skips. */
static int locked_and_leased(void)
{
	int fd = ready("a");

	needs_leases(fd);
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	rig_put(fd, 1000, 500);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	rig_faults_clear();
	return fd;
}

/* The thread that flushes comes back after an epoch, and new pages are staged. */
static void test_a_locked_file_keeps_its_lease(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = locked_and_leased();
	assert_int_equal(flush_run(rig_file(fd), true), 0);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	rig_put(fd, 1500, 100);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1600);
	assert_null(rig_file(fd)->lease.on);
}

/* Two connections of one program: there is no lease, and nothing waits. */
static void test_a_locked_file_that_is_open_twice(void **state)
{
	int fd, second;

	(void)state;
	needs_a_disk();
	fd = locked_and_leased();
	second = rig_open("a", O_RDWR);
	assert_null(rig_file(fd)->lease.on);
	assert_int_equal(fd_before_lock(second, false, LOCK_AT_OFFSET), 0);
	put_at(second, 1500, 100);
	put_at(fd, 1600, 100);
	assert_null(rig_file(fd)->lease.on);
	assert_int_equal(fd_close(second), 0);
	put_at(fd, 1700, 100);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(faults.fdatasync.calls, 0);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1800);
}

/* Another program has it open, too: everything goes to the kernel. */
static void test_a_locked_file_that_another_program_opens(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	fd = ready("a");
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	other = open(rig_path("a"), O_RDWR | O_CLOEXEC);
	rig_put(fd, 1000, 500);
	assert_int_equal(rig_kernel_size("a"), 1500);
	close(other);
}

static bool others_may_lock(const char *path, int cmd)
{
	struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		int fd = open(path, O_RDWR | O_CLOEXEC);

		if (cmd == 0)
			_exit(flock(fd, LOCK_EX | LOCK_NB) == 0);
		_exit(fcntl(fd, cmd, &all) == 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

/* The library keeps a copy of the descriptor.  A lock that the program takes then outlives the copy. */
static void test_a_locked_file_is_closed(void **state)
{
	struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[PATH_MAX];
	int fd;

	(void)state;
	needs_a_disk();
	fd = locked_and_leased();
	snprintf(path, sizeof path, "%s", rig_path("a"));
	assert_int_equal(fd_close(fd), 0);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_true(others_may_lock(path, 0));
	fd = rig_open("a", O_RDWR);
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	assert_int_equal(fcntl(fd, F_SETLK, &all), 0);
	attach_closed_due(rig_file(fd));
	assert_false(others_may_lock(path, F_SETLK));
	put_at(fd, 1500, 100);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(faults.fdatasync.calls, 0);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1600);
}

/* A copy would keep such a lock. */
static void test_a_locked_file_is_closed_with_its_lock(void **state)
{
	struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	char path[PATH_MAX];
	int fd;

	(void)state;
	needs_a_disk();
	fd = locked_and_leased();
	snprintf(path, sizeof path, "%s", rig_path("a"));
	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(fd_close(fd), 0);
	assert_true(others_may_lock(path, 0));
	assert_int_equal(rig_kernel_size("a"), 1500);
	fd = rig_open("a", O_RDWR);
	put_at(fd, 1500, 100);
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &all), 0);
	assert_int_equal(fd_close(fd), 0);
	assert_true(others_may_lock(path, F_SETLK));
	assert_int_equal(rig_kernel_size("a"), 1600);
}

/* A reader is left, which may be about to take a lock. */
static void test_a_locked_file_is_closed_beside_a_reader(void **state)
{
	int fd, reader;

	(void)state;
	needs_a_disk();
	fd = locked_and_leased();
	reader = rig_open("a", O_RDONLY);
	assert_int_equal(fd_close(fd), 0);
	assert_int_equal(rig_kernel_size("a"), 1500);
	assert_int_equal(fd_close(reader), 0);
}

static void *lock_it(void *arg)
{
	assert_int_equal(fd_before_lock(*(int *)arg, false, LOCK_AT_OFFSET), 0);
	return NULL;
}

static void *write_it(void *arg)
{
	put_at(*(int *)arg, 1500, 100);
	return NULL;
}

static void *rest_it(void *arg)
{
	struct file *f = rig_file(*(int *)arg);
	struct file_guard g = file_lock(f);

	attach_closed_due(f);
	file_unlock(f, g);
	return NULL;
}

static bool somebody_waits(struct file *f)
{
	struct file_guard g = file_lock(f);
	bool waits = f->flush.idle_waiters > 0;

	file_unlock(f, g);
	return waits;
}

/* A thread writes through the copy: it stays until that is over. */
static void test_a_copy_in_use(void **state)
{
	void *(*const calls[])(void *) = {lock_it, rest_it, write_it};

	(void)state;
	needs_a_disk();
	for (int i = 0; i < 3; i++) {
		struct file_guard g;
		pthread_t thread;
		struct file *f;
		int fd, own;

		assert_int_equal(fd_close(locked_and_leased()), 0);
		fd = rig_open("a", O_RDWR);
		f = rig_file(fd);
		own = file_internal_fd(f);
		assert_true(own >= 0);
		g = file_lock(f);
		flush_token_take(f);
		file_unlock(f, g);
		assert_int_equal(pthread_create(&thread, NULL, calls[i], &fd), 0);
		if (calls[i] == write_it)
			assert_int_equal(pthread_join(thread, NULL), 0);
		else
			while (fcntl(own, F_GETFD) >= 0 && !somebody_waits(f))
				usleep(1000);
		assert_true(fcntl(own, F_GETFD) >= 0);
		g = file_lock(f);
		flush_token_give(f);
		file_unlock(f, g);
		if (calls[i] != write_it)
			assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(rig_drain(fd), 0);
		assert_int_equal(fd_close(fd), 0);
		assert_int_equal(unlink(rig_path("a")), 0);
	}
}

/* ---- a kill, and then a power loss while it is recovered ---- */

static char dead_log[PATH_MAX + 64];

static void change_header(const char *path, bool moves, bool marks)
{
	struct wal_header h;
	struct stat st;
	int fd = open(path, O_RDWR);

	if (fd < 0)
		return;
	assert_int_equal(pread(fd, &h, sizeof h, 0), sizeof h);
	assert_int_equal(fstat(fd, &st), 0);
	if (marks)
		h.ino = st.st_ino;
	h.origin.mount_id += moves;
	h.origin.super_id += h.origin.super_id < ORIGIN_KIND(0) && moves;
	h.checksum = wal_header_checksum(&h);
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), sizeof h);
	close(fd);
}

static void copy_log(void)
{
	static uint8_t page[WAL_PAGE_BYTES];
	int from = open_log(), to;
	ssize_t n;

	snprintf(dead_log, sizeof dead_log, "%s/8388608-unit-1.journal", rig_path(".fastwrite"));
	to = open(dead_log, O_RDWR | O_CREAT | O_TRUNC, 0600);
	assert_true(to >= 0);
	while ((n = read(from, page, sizeof page)) > 0)
		assert_int_equal(write(to, page, (size_t)n), n);
	close(from);
	close(to);
	change_header(dead_log, false, true);
}

/* What a kill at this moment leaves: copies of the arena and of the log. */
static void die_with_log(int fd)
{
	die_now(fd);
	copy_log();
}

static void lose_power(void)
{
	struct arena_header h;
	int fd = open(arena_path, O_RDWR);

	change_header(dead_log, true, false);
	if (fd < 0)
		return;
	assert_int_equal(pread(fd, &h, sizeof h, 0), (ssize_t)sizeof h);
	h.origin.mount_id++;
	h.origin.super_id += h.origin.super_id < ORIGIN_KIND(0);
	h.checksum = arena_header_checksum(&h);
	assert_int_equal(pwrite(fd, &h, sizeof h, 0), (ssize_t)sizeof h);
	close(fd);
}

static void recover_what_is_there(void)
{
	const struct recover_options opt = {0};
	struct recover_report report = {0};

	if (access(arena_path, F_OK) == 0)
		assert_int_equal(recover_path(arena_path, &opt, &report), 0);
	if (access(dead_log, F_OK) == 0)
		assert_int_equal(recover_path(dead_log, &opt, &report), 0);
	assert_int_equal(report.failed, 0);
}

static ino_t of_two[2];
static bool waited;

static void test_power_is_lost_in_the_recovery(void **state)
{
	unsigned long killed = 0, old = 0;

	needs_a_disk();
	for (unsigned long step = 1;; step++) {
		int other = ready("b"), fd = staged("a", 5000), status;
		bool done;
		pid_t pid;

		rig_put(other, 1000, 600);
		die_with_log(fd);
		pid = fork();
		if (pid == 0) {
			kill_arm(step);
			recover_what_is_there();
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		done = WIFEXITED(status);
		if (!done) {
			assert_int_equal(WTERMSIG(status), SIGKILL);
			killed++;
			lose_power();
			recover_what_is_there();
		}
		/* both, or none */
		if (rig_kernel_size("a") == 1000) {
			rig_expect("b", 1000);
			old++;
		} else {
			rig_expect("a", 6000);
			rig_expect("b", 1600);
		}
		/* what the recovery did not need, it put aside */
		snprintf(dead_log, sizeof dead_log, "rm -rf '%s/aside'", rig_path(".fastwrite"));
		assert_int_equal(system(dead_log), 0);
		rig_stop();
		set_up(state);
		if (done)
			break;
	}
#ifdef FASTWRITE_DEBUG
	assert_true(killed > 20);
	assert_in_range(old, 1, killed - 10);
#else
	(void)killed;
	(void)old;
#endif
}

/* "a", whose descriptor it returns, and "b" have staged bytes. */
static int stage_two(void)
{
	int other = ready("b"), fd = staged("a", 500);
	struct stat st;

	rig_put(other, 1000, 600);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(fstat(i ? other : fd, &st), 0);
		of_two[i] = st.st_ino;
	}
	waited = false;
	return fd;
}

static bool is_of_two(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && (st.st_ino == of_two[0] || st.st_ino == of_two[1]);
}

/* False: it has waited before. */
static bool wait_once_until(uint64_t ns)
{
	if (waited)
		return false;
	waited = true;
	while (sys_now_ns() < ns)
		sys_nap(10000000);
	return true;
}

/* In a recovery: the write to one of both files comes long after the log, and power goes at the next one. */
static ssize_t pwritev_late_and_ends(int fd, const struct iovec *iov, int count, off_t offset)
{
	uint64_t since_ns = sys_now_ns();

	if (!is_of_two(fd))
		return rig_pwritev(fd, iov, count, offset);
	if (!wait_once_until(since_ns + WAL_LATE_NS + 200000000))
		_exit(0);
	return rig_pwritev(fd, iov, count, offset);
}

static void test_power_is_lost_in_a_slow_recovery(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	needs_a_disk();
	die_with_log(stage_two());
	pid = fork();
	if (pid == 0) {
		sys.pwritev = pwritev_late_and_ends;
		recover_what_is_there();
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_not_equal(rig_kernel_size("a") == 1500, rig_kernel_size("b") == 1600);
	lose_power();
	recover_what_is_there();
	rig_expect("a", 1500);
	rig_expect("b", 1600);
	/* what the recovery did not need, it put aside */
	snprintf(dead_log, sizeof dead_log, "rm -rf '%s/aside'", rig_path(".fastwrite"));
	assert_int_equal(system(dead_log), 0);
}

/* The log is on a device so slow that its epoch is old when it counts, and a note takes longer than a change
 * of a file may come after its stamp. */
static int very_slow_fdatasync(int fd)
{
	static bool counts;

	sys_nap(counts ? 1200000000 : WAL_LATE_NS / 2 + 200000000);
	counts = true;
	return sys_kernel.fdatasync(fd);
}

static ssize_t pwritev_and_ends(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (!is_of_two(fd))
		return rig_pwritev(fd, iov, count, offset);
	(void)rig_pwritev(fd, iov, count, offset);
	_exit(0);
}

/* The recovery is killed then: the next one knows its changes. */
static void test_a_recovery_with_a_slow_log_is_killed(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	needs_a_disk();
	die_with_log(stage_two());
	pid = fork();
	if (pid == 0) {
		sys.fdatasync = very_slow_fdatasync;
		sys.pwritev = pwritev_and_ends;
		recover_what_is_there();
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	recover_what_is_there();
	rig_expect("a", 1500);
	rig_expect("b", 1600);
}

/* ---- files that come and go ---- */

static struct by_name_unlink removal;

/* A file that only staging knows is about to be removed; another one has changed before. */
static int removing(void)
{
	int other = ready("b"), fd = rig_open("j", O_RDWR);

	rig_put(fd, 0, 3000);
	rig_put(other, 1000, 600);
	assert_int_equal(fd_close(fd), 0);
	assert_int_equal(rig_kernel_size("j"), 0);
	rig_faults_clear();
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	return other;
}

static void test_a_file_that_is_removed_needs_no_log(void **state)
{
	(void)state;
	needs_a_disk();
	removing();
	assert_non_null(removal.name);
	/* the list of names, and the log */
	assert_int_equal(faults.fdatasync.calls, 2);
	assert_int_equal(faults.fsync.calls, 0);
	rig_expect("b", 1600);
	assert_int_equal(rig_kernel_size("j"), 0);
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&removal, true);
	assert_int_equal(ordered_barrier(NULL), 0);
	assert_int_equal(scan_log().absent.list, 0);
}

/* Recovery of a copy of the log, as after a power loss at this moment. */
static void recover_as_after_power_loss(void)
{
	copy_log();
	change_header(dead_log, true, false);
	arena_path[0] = '\0';
	recover_what_is_there();
}

/* Power is lost before the kernel has removed it: the log says that it is gone. */
static void test_power_is_lost_before_a_file_is_gone(void **state)
{
	(void)state;
	needs_a_disk();
	removing();
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	rig_expect("b", 1600);
	by_name_unlink_done(&removal, true);
}

/* ---- a directory that the program syncs ---- */

/* Staged in "a"; the directory of it, as the program syncs it. */
static int synced_directory(struct stat *dir)
{
	int fd = staged("a", 500);

	assert_int_equal(stat(rig_dir, dir), 0);
	assert_false(ordered_directory_is_known(sys_dev_of_stat(dir), dir->st_ino, 0));
	assert_true(
		ordered_directory_follows(rig_file(fd)->rule, sys_dev_of_stat(dir), dir->st_ino, rig_dir, 0));
	assert_true(ordered_directory_is_known(sys_dev_of_stat(dir), dir->st_ino, 0));
	rig_faults_clear();
	return fd;
}

static void test_an_epoch_syncs_the_directory(void **state)
{
	struct stat dir, other;
	int fd;

	(void)state;
	needs_a_disk();
	fd = synced_directory(&dir);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 1);
	/* nothing is staged: no epoch is due, and the program's sync asks the device */
	assert_false(ordered_directory_is_known(sys_dev_of_stat(&dir), dir.st_ino, 0));
	rig_put(fd, 1500, 100);
	assert_int_equal(rig_drain(fd), 0);
	rig_put(fd, 1600, 100);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 0);
	/* a second one is not known */
	assert_int_equal(stat(rig_path(".fastwrite"), &other), 0);
	rig_put(fd, 1700, 100);
	assert_true(ordered_directory_follows(rig_file(fd)->rule, sys_dev_of_stat(&other), other.st_ino,
	                                      "/other", 0));
	assert_false(ordered_directory_is_known(sys_dev_of_stat(&other), other.st_ino, 0));
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 0);
	rig_expect("a", 1800);
}

/* Staged in "a"; "c", of which nothing is staged, is about to be removed from the directory that is synced.
 */
static int removing_from_the_directory(void)
{
	struct stat dir;
	int fd = synced_directory(&dir), gone = rig_open("c", O_RDWR);

	rig_put(gone, 0, 100);
	assert_int_equal(rig_drain(gone), 0);
	assert_int_equal(rig_close(gone), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("c"));
	return fd;
}

/* An epoch has the file, so its removal waits for the device; the directory alone has to be synced for it. */
static void test_a_removal_from_the_directory(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = removing_from_the_directory();
	assert_null(removal.name);
	assert_non_null(removal.ordered);
	rig_faults_clear();
	assert_int_equal(unlink(rig_path("c")), 0);
	by_name_unlink_done(&removal, true);
	/* nothing is due that would sync it */
	assert_false(ordered_names_follow(rig_file(fd)->rule));
	rig_put(fd, 1500, 100);
	assert_true(ordered_names_follow(rig_file(fd)->rule));
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 1);
	assert_true(ordered_names_follow(rig_file(fd)->rule));
}

/* ---- what the kernel has ---- */

/* With the largest write that the overlay takes nothing goes to the kernel. */
static void test_a_write_of_many_pages_is_staged(void **state)
{
	static uint8_t bytes[100000];
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_true(sizeof bytes <= rig_file(fd)->rule->set.mem_bytes / 8);
	rig_fill(bytes, sizeof bytes, 1500);
	assert_int_equal(rig_pwrite(fd, bytes, sizeof bytes, 1500), sizeof bytes);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1500 + sizeof bytes);
}

/* The first one is durable before the kernel has the second one. */
static void test_large_writes_are_in_order(void **state)
{
	const struct rule *rule;
	int fd, other;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	rule = rig_file(fd)->rule;
	put_large(fd, 1500);
	assert_true(order_loose_any(rule));
	assert_int_equal(ordered_barrier(rule), 0);
	assert_false(order_loose_any(rule));
}

/* Nothing is staged after it, and yet an epoch comes. */
static void test_an_epoch_has_what_the_kernel_has(void **state)
{
	const struct rule *rule;
	int fd;

	(void)state;
	needs_a_disk();
	fd = ready("a");
	rule = rig_file(fd)->rule;
	assert_int_equal(ordered_barrier(rule), 0);
	assert_false(order_loose_any(rule));
	ordered_call_begin(rule, rig_file(fd)->dev, false);
	ordered_call_end(rule, rig_file(fd)->dev, false);
	assert_true(ordered_tend(0) < sys_now_ns() + rule->set.ordered_ms * 1000000ull);
	assert_true(order_loose_any(rule));
	ordered_tend(UINT64_MAX - 1);
	assert_false(order_loose_any(rule));
	assert_true(ordered_tend(UINT64_MAX - 1) == UINT64_MAX);
}

/* ---- a call that another thread acts on before it has returned ---- */

/* Two epochs, of which the second one begins after the kernel has done it. */
static void epochs_beside_a_call(int fd)
{
	const struct rule *rule = rig_file(fd)->rule;

	for (int i = 0; i < 2; i++) {
		rig_put(fd, 1500 + 100 * (uint64_t)i, 100);
		assert_int_equal(rig_drain(fd), 0);
		assert_true(order_loose_any(rule));
	}
}

static void epoch_after_the_call(int fd)
{
	const struct rule *rule = rig_file(fd)->rule;

	assert_true(order_loose_any(rule));
	put_at(fd, 1700, 100);
	assert_int_equal(rig_drain(fd), 0);
	assert_false(order_loose_any(rule));
}

static void test_a_file_is_made_late(void **state)
{
	struct fd_open op;
	int fd, made;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_int_equal(rig_drain(fd), 0);
	fd_open_prepare(&op, AT_FDCWD, rig_path("late"), O_WRONLY | O_CREAT);
	made = open(rig_path("late"), O_WRONLY | O_CREAT, 0600);
	epochs_beside_a_call(fd);
	fd_opened(&op, made);
	fd_open_end(&op);
	epoch_after_the_call(fd);
}

static void test_a_file_gets_a_name_late(void **state)
{
	struct by_name_link l;
	char other[600];
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_int_equal(rig_drain(fd), 0);
	snprintf(other, sizeof other, "%s/late", rig_dir);
	by_name_link_prepare(&l, AT_FDCWD, rig_path("a"), false, AT_FDCWD, other);
	assert_int_equal(link(rig_path("a"), other), 0);
	epochs_beside_a_call(fd);
	by_name_link_done(&l, AT_FDCWD, other, true);
	epoch_after_the_call(fd);
}

static void test_a_removal_from_the_directory_is_late(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = removing_from_the_directory();
	rig_faults_clear();
	for (int i = 1; i <= 3; i++) {
		rig_put(fd, 1400 + 100 * (uint64_t)i, 100);
		assert_int_equal(rig_drain(fd), 0);
		assert_int_equal(faults.fsync.calls, i);
		if (i == 1)
			assert_int_equal(unlink(rig_path("c")), 0);
		if (i == 2)
			by_name_unlink_done(&removal, true);
	}
	rig_put(fd, 1800, 100);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 3);
}

/* Before an open that may cut or make a file of the rule.  (A lease is all that keeps others out.) */
static void opens(struct fd_open *op, const char *path, int flags)
{
	rig_config.rules[0].set.writers = WRITERS_AUTO;
	fd_open_prepare(op, AT_FDCWD, path, flags);
	rig_config.rules[0].set.writers = WRITERS_EXCLUSIVE;
}

/* The epoch behind the open syncs the file system. */
static void check_open_counts(struct fd_open *op, int fd)
{
	fd_open_end(op);
	epoch_after_the_call(fd);
}

/* Of files that nobody has staged, and of names that the path does not tell. */
static void test_opens_that_cut_or_make(void **state)
{
	char old[600], to_old[600], to_none[600], temporary[600];
	struct fd_open op;
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_int_equal(rig_drain(fd), 0);
	snprintf(old, sizeof old, "%s/old", rig_dir);
	snprintf(to_old, sizeof to_old, "%s-link", rig_dir);
	snprintf(to_none, sizeof to_none, "%s-dangles", rig_dir);
	snprintf(temporary, sizeof temporary, "%s/tXXXXXX", rig_dir);
	assert_int_equal(close(open(old, O_WRONLY | O_CREAT, 0600)), 0);
	assert_int_equal(symlink(old, to_old), 0);
	assert_int_equal(symlink(rig_path("none"), to_none), 0);
	rig_put(fd, 1500, 100);
	opens(&op, old, O_WRONLY | O_TRUNC);
	rig_expect("a", 1600);
	check_open_counts(&op, fd);
	opens(&op, to_old, O_WRONLY | O_TRUNC);
	check_open_counts(&op, fd);
	opens(&op, to_none, O_WRONLY | O_CREAT);
	check_open_counts(&op, fd);
	opens(&op, NULL, O_RDWR | O_CREAT | O_EXCL);
	fd_open_temporary(&op, temporary);
	check_open_counts(&op, fd);
	opens(&op, NULL, O_RDWR | O_CREAT);
	fd_open_unnamed(&op);
	check_open_counts(&op, fd);
	unlink(to_old);
	unlink(to_none);
}

/* The child of a fork has none of the other threads' calls. */
static void test_a_fork_beside_a_call(void **state)
{
	(void)state;
	order_loose_begin();
	order_loose_begin();
	order_loose_forget();
	order_loose_end();
	assert_false(order_loose_is_coming());
	order_loose_begin();
	assert_true(order_loose_is_coming());
	order_loose_end();
	assert_false(order_loose_is_coming());
}

static void test_a_directory_that_cannot_be_synced(void **state)
{
	struct stat dir;
	int fd;

	(void)state;
	needs_a_disk();
	fd = synced_directory(&dir);
	faults.fsync = (struct fault){.at = 1, .count = 1, .error = EIO};
	assert_int_equal(rig_drain(fd), -EIO);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 2);
	rig_expect("a", 1500);
}

static void test_a_directory_that_moves(void **state)
{
	struct order_directory d = {0};
	struct stat sub, other;
	char from[PATH_MAX];

	(void)state;
	assert_int_equal(mkdir(rig_path("sub"), 0700), 0);
	assert_int_equal(mkdir(rig_path("other"), 0700), 0);
	assert_int_equal(stat(rig_path("sub"), &sub), 0);
	assert_int_equal(stat(rig_path("other"), &other), 0);
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, rig_path("sub"), 0));
	assert_false(order_directory_note(&d, sys_dev_of_stat(&other), other.st_ino, rig_path("other"), 0));
	assert_true(order_directory_note_name(&d, rig_path("sub/name")));
	assert_false(order_directory_note_name(&d, rig_path("sub/further/name")));
	assert_false(order_directory_note_name(&d, rig_path("subway")));
	assert_int_equal(order_directory_sync(&d), 0);
	assert_int_equal(faults.fsync.calls, 1);
	/* a directory in it comes */
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, rig_path("sub"), 2));
	assert_int_equal(order_directory_sync(&d), 0);
	assert_false(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL, 3));
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL, 2));
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, rig_path("sub"), 0));
	assert_int_equal(order_directory_sync(&d), 0);
	rig_faults_clear();
	assert_true(order_directory_note_name(&d, rig_path("sub/name")));
	assert_int_equal(order_directory_sync(&d), 0);
	assert_int_equal(order_directory_sync(&d), 0);
	assert_int_equal(faults.fsync.calls, 1);
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL, 0));
	assert_int_equal(rmdir(rig_path("other")), 0);
	snprintf(from, sizeof from, "%s", rig_path("sub"));
	assert_int_equal(rename(from, rig_path("other")), 0);
	assert_int_equal(mkdir(rig_path("sub"), 0700), 0);
	assert_int_equal(order_directory_sync(&d), -ESTALE);
	assert_int_equal(faults.fsync.calls, 1);
	assert_false(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL, 0));
	assert_int_equal(rmdir(rig_path("sub")), 0);
	assert_int_equal(rmdir(rig_path("other")), 0);
}

/* ---- space ---- */

enum { SPARE_LEAST = 256 << 10 };

static uint64_t spare_of_log(void)
{
	int fd = open_log();
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	close(fd);
	return (uint64_t)st.st_blocks * 512 - (uint64_t)st.st_size;
}

/* "a" with 500 bytes staged that have no space of their own. */
static int spared(void)
{
	int fd = ready("a");
	struct stat st;

	if (spare_of_log() < SPARE_LEAST) {
		print_message("skipped: a log has no spare space on this file system\n");
		skip();
	}
	rig_faults_clear();
	rig_put(fd, 1000, 9000);
	assert_int_equal(faults.fallocate.calls, 0);
	assert_int_equal(stat(rig_path("a"), &st), 0);
	assert_true(st.st_blocks * 512 <= 4096);
	return fd;
}

static void test_the_log_has_space_for_a_full_disk(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = spared();
	/* the log is written, and then the file is not */
	faults.pwritev = (struct fault){.at = 2, .count = 1, .error = ENOSPC};
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 10000);
	assert_int_equal(faults.ftruncate.calls, 1);
	assert_true(spare_of_log() < SPARE_LEAST);
	rig_put(fd, 10000, 9000);
	assert_int_equal(faults.fallocate.calls, 1);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 19000);
}

/* A hole has no space.  The first write to it may not rely on what the log had. */
static void test_a_hole_after_the_log_gave_its_space(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = spared();
	rig_put(fd, 1000000, 100);
	assert_int_equal(faults.fallocate.calls, 0);
	faults.pwritev = (struct fault){.at = 2, .count = 1, .error = ENOSPC};
	assert_int_equal(rig_drain(fd), 0);
	rig_faults_clear();
	faults.fallocate = (struct fault){.at = 1, .count = 1000, .error = ENOSPC};
	rig_put(fd, 500000, 100);
	assert_true(faults.fallocate.calls > 0);
	assert_false(file_is_paged(rig_file(fd)));
}

static void test_a_disk_that_stays_full(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = spared();
	faults.pwritev = (struct fault){.at = 2, .count = 1000, .error = ENOSPC};
	assert_int_equal(rig_drain(fd), -ENOSPC);
	assert_int_equal(rig_kernel_size("a"), 1000);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 10000);
}

static ino_t log_ino;
static int given_back;

static int ftruncate_and_note(int fd, off_t length)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_ino == log_ino)
		given_back++;
	else
		assert_int_equal(given_back, 1);
	return rig_ftruncate(fd, length);
}

static void test_recovery_gets_the_space_of_the_log(void **state)
{
	struct stat st;
	int fd;

	(void)state;
	needs_a_disk();
	fd = spared();
	rig_put(fd, 10000, 9000);
	faults.pwritev = (struct fault){.at = 2, .count = 1000, .error = EIO};
	assert_int_equal(rig_drain(fd), -EIO);
	copy_log();
	assert_int_equal(stat(dead_log, &st), 0);
	log_ino = st.st_ino;
	given_back = 0;
	sys.ftruncate = ftruncate_and_note;
	rig_faults_clear();
	change_header(dead_log, true, false);
	arena_path[0] = '\0';
	recover_what_is_there();
	sys.ftruncate = rig_ftruncate;
	rig_expect("a", 19000);
	assert_int_equal(given_back, 1);
}

static void remove_it(const char *name)
{
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path(name));
	assert_int_equal(unlink(rig_path(name)), 0);
	by_name_unlink_done(&removal, true);
}

/* The file "j", of 3000 staged bytes, made under a transient name. */
static int make_transient(void)
{
	struct transient_name *name;
	uint64_t dev;
	bool sure;
	int fd;

	assert_non_null(by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name, &sure));
	assert_non_null(name);
	fd = rig_open("j", O_RDWR);
	ordered_named(name);
	rig_put(fd, 0, 3000);
	return fd;
}

/* The name of "j" is transient. */
static int transient(void)
{
	int other = removing();

	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&removal, true);
	rig_faults_clear();
	return other;
}

static void test_a_name_that_comes_and_goes(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = transient();
	for (unsigned i = 0; i < 20; i++) {
		fd = make_transient();
		rig_put(other, 1600 + i * 100, 100);
		assert_int_equal(sync_file(fd, fdtable_get(fd), false), 0);
		assert_int_equal(fd_close(fd), 0);
		assert_int_equal(rig_kernel_size("j"), 0);
		remove_it("j");
		assert_non_null(removal.name);
	}
	assert_int_equal(faults.fdatasync.calls + faults.fsync.calls, 0);
	assert_int_equal(rig_drain(other), 0);
	rig_expect("b", 3600);
	assert_int_equal(scan_log().absent.names, 1);
}

/* A thread that runs in the middle of the leader's call for the file with this inode. */
static struct beside {
	ino_t ino;
	void *(*run)(void *all_well);
	bool all_well;
} beside;

static void run_beside(int fd)
{
	void *(*run)(void *all_well) = beside.run;
	struct timespec until;
	pthread_t thread;
	struct stat st;

	if (!run || fstat(fd, &st) != 0 || st.st_ino != beside.ino)
		return;
	beside.run = NULL;
	assert_int_equal(pthread_create(&thread, NULL, run, &beside.all_well), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 60;
	/* (it hangs when it waits for the leader) */
	assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

static int fdatasync_beside(int fd)
{
	run_beside(fd);
	return rig_fdatasync(fd);
}

static ssize_t pwritev_beside(int fd, const struct iovec *iov, int count, off_t offset)
{
	run_beside(fd);
	return rig_pwritev(fd, iov, count, offset);
}

/* An epoch in which "b" gets its bytes 1600 to 1700, and the thread. */
static void end_epoch_beside(int other, void *(*run)(void *all_well))
{
	struct stat st;

	rig_put(other, 1600, 100);
	assert_int_equal(fstat(other, &st), 0);
	beside = (struct beside){.ino = st.st_ino, .run = run};
	sys.fdatasync = fdatasync_beside;
	sys.pwritev = pwritev_beside;
	flush_now(other);
	sys.fdatasync = rig_fdatasync;
	sys.pwritev = rig_pwritev;
	assert_null(beside.run);
	assert_true(beside.all_well);
}

static void *come_and_go(void *all_well)
{
	int fd = make_transient();

	fd_close(fd);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	*(bool *)all_well = removal.name && unlink(rig_path("j")) == 0;
	by_name_unlink_done(&removal, true);
	return NULL;
}

static void test_a_name_comes_and_goes_beside_a_write_back(void **state)
{
	int other;

	(void)state;
	needs_a_disk();
	other = transient();
	end_epoch_beside(other, come_and_go);
	assert_int_equal(rig_drain(other), 0);
	rig_expect("b", 1700);
	assert_int_equal(access(rig_path("j"), F_OK), -1);
}

static int written_beside;

/* In a page of the epoch that is being written back. */
static void *write_and_read(void *all_well)
{
	uint8_t buf[100], want[100];

	rig_put(written_beside, 1700, 100);
	rig_fill(want, sizeof want, 1650);
	*(bool *)all_well = io_read_at(written_beside, fdtable_get(written_beside), buf, sizeof buf, 1650) ==
	                            sizeof buf &&
	                    memcmp(buf, want, sizeof buf) == 0;
	return NULL;
}

static void test_a_write_beside_a_write_back(void **state)
{
	(void)state;
	needs_a_disk();
	written_beside = transient();
	end_epoch_beside(written_beside, write_and_read);
	assert_int_equal(rig_kernel_size("b"), 1700);
	assert_int_equal(rig_drain(written_beside), 0);
	rig_expect("b", 1800);
}

/* Wherever power is lost, the name is there or not as the last epoch has it. */
static void test_power_is_lost_while_a_name_comes_and_goes(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = transient();
	fd = make_transient();
	/* (the kernel has it already) */
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(fd_close(fd), 0);
	rig_stop();

	set_up(state);
	other = transient();
	fd = make_transient();
	rig_put(other, 1600, 100);
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(scan_log().absent.names, 0);
	recover_as_after_power_loss();
	rig_expect("j", 3000);
	rig_expect("b", 1700);
	assert_int_equal(fd_close(fd), 0);
}

/* An epoch has the file: its removal is a barrier, after which the log says nothing of names. */
static void test_an_epoch_has_a_file_that_goes(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = transient();
	fd = make_transient();
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");
	assert_null(removal.name);
	assert_int_equal(scan_log().absent.list, 0);
	/* one epoch, and it says so again */
	rig_faults_clear();
	fd = make_transient();
	assert_int_equal(faults.fdatasync.calls, 1);
	assert_int_equal(scan_log().absent.names, 1);
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");
	assert_non_null(removal.name);
	assert_int_equal(faults.fdatasync.calls, 1);
}

/* An epoch has 3000 bytes of "j", whose name is transient; the directory is known.  Returns "b". */
static int in_an_epoch(int *fd)
{
	int other = transient();
	struct stat dir;

	assert_int_equal(stat(rig_dir, &dir), 0);
	ordered_directory_follows(rig_file(other)->rule, sys_dev_of_stat(&dir), dir.st_ino, rig_dir, 0);
	*fd = make_transient();
	flush_now(*fd);
	assert_int_equal(rig_kernel_size("j"), 3000);
	return other;
}

/*
 * Of "j" an epoch has 3000 bytes, and 1000 more are staged; of "b" 100 more.  The log gets all of them, and
 * "j" is about to go.  Returns "b".
 */
static int going(void)
{
	int fd, other = in_an_epoch(&fd);

	rig_put(fd, 3000, 1000);
	rig_put(other, 1600, 100);
	assert_int_equal(fd_close(fd), 0);
	rig_faults_clear();
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	/* that of transient() and that of "j" are in the files, and stay until a checkpoint */
	assert_int_equal(scan_log().epochs, 3);
	assert_int_equal(scan_log().absent.names, 1);
	return other;
}

static void gone(void)
{
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&removal, true);
}

/* Its removal waits for the log, and for no file. */
static void test_a_removal_after_an_epoch(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = going();
	assert_int_equal(faults.fdatasync.calls, 1);
	assert_int_equal(rig_kernel_size("j"), 3000);
	assert_int_equal(rig_kernel_size("b"), 1600);
	gone();
	assert_int_equal(faults.fdatasync.calls, 1);
	assert_int_equal(faults.fsync.calls, 0);
	assert_true(ordered_names_follow(rig_file(other)->rule));
	/* the name comes and goes as before */
	fd = make_transient();
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");
	assert_non_null(removal.name);
	assert_int_equal(faults.fdatasync.calls, 1);
	ordered_write_owed();
	rig_expect("b", 1700);
	assert_int_equal(faults.fsync.calls, 0);
	assert_int_equal(faults.fdatasync.calls, 1);
	/* the removal comes to the device before the log ends */
	assert_int_equal(ordered_barrier(NULL), 0);
	assert_int_equal(faults.fsync.calls, 1);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(access(rig_path("j"), F_OK), -1);
}

/* Power is lost while the device has the file, has it no more, or has a new one. */
static void test_power_is_lost_in_a_removal_after_an_epoch(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	going();
	recover_as_after_power_loss();
	rig_expect("j", 4000);
	rig_expect("b", 1700);
	gone();
	rig_stop();

	set_up(state);
	going();
	gone();
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
	rig_expect("b", 1700);
	rig_stop();

	set_up(state);
	going();
	gone();
	fd = make_transient();
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
	rig_expect("b", 1700);
	assert_int_equal(fd_close(fd), 0);
}

/* The process is killed before the removal, or after it: the arena has what is right. */
static void test_a_kill_in_a_removal_after_an_epoch(void **state)
{
	int other;

	(void)state;
	needs_a_disk();
	other = going();
	die_with_log(other);
	recover_what_is_there();
	rig_expect("j", 4000);
	rig_expect("b", 1700);
	gone();
	rig_stop();

	set_up(state);
	other = going();
	gone();
	die_with_log(other);
	recover_what_is_there();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
	rig_expect("b", 1700);
}

/* It dies then: of a file without a name nothing is missed. */
static void expect_no_orphan(int other)
{
	die_with_log(other);
	recover_what_is_there();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
	rig_expect("b", 1700);
}

/* The process is killed after the removal, in a drain that another thread has begun before it. */
static void test_a_kill_in_a_drain_beside_a_removal(void **state)
{
	struct file_guard g;
	struct file *f;
	int other;

	(void)state;
	needs_a_disk();
	other = going();
	f = file_find(removal.dev, removal.ino);
	assert_non_null(f);
	faults.pwritev = (struct fault){.at = 1, .count = 100, .error = EIO};
	g = file_lock(f);
	assert_int_equal(flush_drain(f), -EIO);
	file_unlock(f, g);
	rig_faults_clear();
	assert_int_equal(rig_kernel_size("j"), 3000);
	assert_int_equal(unlink(rig_path("j")), 0);
	expect_no_orphan(other);
	by_name_unlink_done(&removal, true);
}

static uint32_t flags_of_removal(void)
{
	const struct file *f = file_find(removal.dev, removal.ino);

	assert_non_null(f);
	return arena_entry_at(f->arena, (uint32_t)f->entry)->flags;
}

/* Another thread's removal of the same file comes too late, and ends first. */
static void test_two_removals_of_a_file(void **state)
{
	struct by_name_unlink late;
	int other;

	(void)state;
	needs_a_disk();
	other = going();
	by_name_unlink_prepare(&late, AT_FDCWD, rig_path("j"));
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&late, false);
	expect_no_orphan(other);
	by_name_unlink_done(&removal, true);
}

/* Another thread opens the file before the program has removed it: it reads what was written. */
static void test_a_file_is_opened_beside_its_removal(void **state)
{
	struct stat st;
	int fd, other;

	(void)state;
	needs_a_disk();
	going();
	fd = rig_open("j", O_RDWR);
	gone();
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 4000);
	assert_int_equal(fd_close(fd), 0);
	rig_stop();

	set_up(state);
	other = going();
	fd = rig_open("j", O_RDWR);
	faults.pwritev = (struct fault){.at = 1, .count = 100, .error = EIO};
	gone();
	rig_faults_clear();
	expect_no_orphan(other);
}

/* The same, and the library hears of the descriptor after the removal. */
static void test_a_removal_in_the_middle_of_an_open(void **state)
{
	struct fd_open op;
	struct stat st;
	int fd;

	(void)state;
	needs_a_disk();
	going();
	fd_open_prepare(&op, AT_FDCWD, rig_path("j"), O_RDONLY);
	fd = open(rig_path("j"), O_RDONLY);
	assert_true(fd >= 0);
	gone();
	if (fd_open_concerns(&op))
		fd_opened(&op, fd);
	fd_open_end(&op);
	assert_int_equal(fstat(fd, &st) == 0 ? st.st_size : -1, 4000);
	assert_int_equal(fd_close(fd), 0);
}

/* Another thread gives a file a second name at this moment. */
static void test_no_removal_begins_beside_a_link(void **state)
{
	struct by_name_link l;
	int fd;

	(void)state;
	needs_a_disk();
	in_an_epoch(&fd);
	rig_put(fd, 3000, 1000);
	assert_int_equal(fd_close(fd), 0);
	by_name_link_prepare(&l, AT_FDCWD, rig_path("b"), false, AT_FDCWD, "/nowhere/b");
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_null(removal.name);
	by_name_unlink_done(&removal, false);
	by_name_link_done(&l, AT_FDCWD, rig_path("b"), false);
	rig_expect("j", 4000);
}

/* Somebody else has moved the file: recovery would not find it where it was, and it is there. */
static void test_a_file_is_removed_from_another_place(void **state)
{
	char from[PATH_MAX];
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	fd = make_transient();
	assert_int_equal(fd_close(fd), 0);
	snprintf(from, sizeof from, "%s", rig_path("j"));
	assert_int_equal(rename(from, rig_path("k")), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("k"));
	assert_null(removal.name);
	assert_false(flags_of_removal() & ENTRY_REMOVED);
	assert_int_equal(unlink(rig_path("k")), 0);
	by_name_unlink_done(&removal, true);
}

static volatile sig_atomic_t signals_seen;
static void note_signal(int number) { signals_seen += number == SIGUSR1; }

/* No handler leaves a removal for good. */
static void test_signals_wait_for_a_removal(void **state)
{
	struct sigaction act = {.sa_handler = note_signal}, old;

	(void)state;
	needs_a_disk();
	assert_int_equal(sigaction(SIGUSR1, &act, &old), 0);
	signals_seen = 0;
	going();
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(signals_seen, 0);
	gone();
	assert_int_equal(signals_seen, 1);
	assert_int_equal(sigaction(SIGUSR1, &old, NULL), 0);
}

/* The log says that the file goes, and is broken.  The removal fails, too. */
/* The log says that the file is gone, and it goes: the epoch is written back when there is space. */
static void test_a_removal_beside_a_full_disk(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = ready("b");
	fd = rig_open("j", O_RDWR);
	rig_put(fd, 0, 3000);
	rig_put(other, 1000, 600);
	assert_int_equal(fd_close(fd), 0);
	rig_faults_clear();
	/* the list of names, the log, "b", also with the space of the log */
	faults.pwritev = (struct fault){.at = 3, .count = 2, .error = ENOSPC};
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	assert_int_equal(rig_kernel_size("b"), 1000);
	assert_int_equal(scan_log().epochs, 1);
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&removal, true);
	assert_int_equal(rig_drain(other), 0);
	rig_expect("b", 1600);
	assert_int_equal(ordered_barrier(NULL), 0);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(access(rig_path("j"), F_OK), -1);
}

/* ---- epochs stay in the log until a checkpoint ---- */

/* Three epochs: "a" has 1500 bytes then, of which the device may have 1000. */
static int three_epochs(void)
{
	int fd = ready("a");

	rig_faults_clear();
	for (unsigned i = 0; i < 3; i++) {
		rig_put(fd, 1000 + i * 200, i < 2 ? 200 : 100);
		flush_now(fd);
		assert_int_equal(scan_log().epochs, i + 1);
	}
	assert_int_equal(faults.fdatasync.calls, 3);
	rig_expect("a", 1500);
	return fd;
}

static void test_a_checkpoint_is_of_many_epochs(void **state)
{
	(void)state;
	needs_a_disk();
	three_epochs();
	assert_int_equal(ordered_barrier(NULL), 0);
	/* the file, and the log that is empty */
	assert_int_equal(faults.fdatasync.calls, 5);
	assert_int_equal(scan_log().epochs, 0);
}

static void test_power_is_lost_before_a_checkpoint(void **state)
{
	(void)state;
	needs_a_disk();
	three_epochs();
	assert_int_equal(truncate(rig_path("a"), 1000), 0);
	recover_as_after_power_loss();
	rig_expect("a", 1500);
}

/* What the program closes is synced before the library forgets it. */
static void test_a_file_leaves_before_a_checkpoint(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	ready("b");
	fd = three_epochs();
	assert_int_equal(rig_close(fd), 0);
	/* the file, and the log that is empty */
	assert_int_equal(faults.fdatasync.calls, 5);
	assert_int_equal(scan_log().epochs, 0);
}

static void test_a_file_that_leaves_cannot_be_synced(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	other = ready("b");
	fd = three_epochs();
	faults.fdatasync = (struct fault){.at = 1, .error = EIO};
	rig_close(fd);
	rig_faults_clear();
	assert_int_equal(ordered_barrier(NULL), -EIO);
	assert_int_equal(scan_log().epochs, 3);
	rig_put(other, 1000, 100);
	assert_int_equal(rig_drain(other), -EIO);
	leave_log(other, 3);
}

/* The new program may change the files: no epoch may come back over that. */
static void test_a_program_is_started(void **state)
{
	(void)state;
	needs_a_disk();
	assert_int_equal(fcntl(three_epochs(), F_SETFD, FD_CLOEXEC), 0);
	child_spawn_prepare(false);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(faults.fdatasync.calls, 5);
}

static struct file *detached;

static int fsync_detaches(int fd)
{
	struct file *f = detached;
	struct file_guard g;

	if (f) {
		detached = NULL;
		g = file_lock(f);
		attach_closed_due(f);
		assert_null(f->arena);
		file_unlock(f, g);
	}
	return rig_fsync(fd);
}

/* The timer detaches the file that goes, of which no epoch in the log has anything, before the log gets its
 * name. */
static void test_a_file_is_detached_while_it_goes(void **state)
{
	struct stat dir;
	int fd, other;

	(void)state;
	needs_a_disk();
	other = in_an_epoch(&fd);
	detached = rig_file(fd);
	assert_int_equal(fd_close(fd), 0);
	assert_int_equal(ordered_barrier(NULL), 0);
	rig_put(other, 1600, 100);
	flush_now(other);
	assert_int_equal(stat(rig_dir, &dir), 0);
	ordered_directory_follows(rig_file(other)->rule, sys_dev_of_stat(&dir), dir.st_ino, rig_dir, 0);
	sys.fsync = fsync_detaches;
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	sys.fsync = rig_fsync;
	assert_null(detached);
	gone();
	rig_expect("b", 1700);
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
}

static void test_an_idle_log_is_emptied(void **state)
{
	uint64_t now, due;

	(void)state;
	needs_a_disk();
	three_epochs();
	now = sys_now_ns();
	due = ordered_tend(now);
	assert_true(due > now && due <= now + 60000000000ull);
	assert_int_equal(scan_log().epochs, 3);
	assert_true(ordered_tend(due) == UINT64_MAX);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(faults.fdatasync.calls, 5);
}

/* Pages of "a" that take so many percent of the log. */
static void put_percent(int fd, uint64_t log_bytes, unsigned percent)
{
	uint64_t bytes = log_bytes / 100 * percent / 4096 * 4096;
	uint8_t page[4096];

	for (uint64_t at = 0; at < bytes; at += sizeof page) {
		rig_fill(page, sizeof page, at);
		assert_int_equal(io_write_at(fd, fdtable_get(fd), page, sizeof page, (off_t)at), sizeof page);
	}
}

/* "a", of which the log has so many percent of itself, in one epoch.  It is as long as `most` percent. */
static int logged_percent(unsigned percent, unsigned most, uint64_t *log_bytes)
{
	int fd;

	ready("b");
	*log_bytes = scan_log().header.bytes;
	/* (a large append goes to the file, and not to the log) */
	fd = open(rig_path("a"), O_WRONLY | O_CREAT, 0644);
	assert_int_equal(ftruncate(fd, (off_t)(*log_bytes / 100 * most / 4096 * 4096)), 0);
	close(fd);
	fd = rig_open("a", O_RDWR);
	rig_put(fd, 0, 1000);
	assert_int_equal(rig_drain(fd), 0);
	put_percent(fd, *log_bytes, percent);
	flush_now(fd);
	assert_int_equal(scan_log().epochs, 1);
	return fd;
}

/* A second epoch makes the log more than half full. */
static void test_a_log_is_half_full(void **state)
{
	uint64_t bytes;
	int fd;

	(void)state;
	needs_a_disk();
	fd = logged_percent(30, 40, &bytes);
	put_percent(fd, bytes, 40);
	rig_faults_clear();
	flush_now(fd);
	assert_int_equal(faults.fdatasync.calls, 1);
	ordered_tend(sys_now_ns());
	/* the file, and the log that is empty */
	assert_int_equal(faults.fdatasync.calls, 3);
	assert_int_equal(scan_log().epochs, 0);
	rig_expect("a", bytes / 100 * 40 / 4096 * 4096);
}

static int fdatasync_slow(int fd)
{
	sys_nap(5000000);
	return rig_fdatasync(fd);
}

/* On a slow device the next checkpoint is smaller. */
static void test_a_slow_checkpoint(void **state)
{
	struct order_log *l;
	struct settings *set;
	uint64_t bytes;
	int fd;

	(void)state;
	needs_a_disk();
	fd = ready("a");
	set = (struct settings *)(uintptr_t)&rig_file(fd)->rule->set;
	l = order_log_of(rig_file(fd)->arena);
	rig_put(fd, 1000, 100);
	flush_now(fd);
	bytes = l->wal->end;
	set->ordered_ms = 1;
	sys.fdatasync = fdatasync_slow;
	ordered_tend(sys_now_ns() + 1000000000);
	sys.fdatasync = rig_fdatasync;
	set->ordered_ms = 60000;
	assert_int_equal(l->wal->end, WAL_BATCHES_AT);
	assert_int_equal(l->most, bytes / 2);
	/* it is due, and takes less than that */
	rig_put(fd, 1100, 100);
	flush_now(fd);
	ordered_tend(sys_now_ns());
	assert_int_equal(l->wal->end, WAL_BATCHES_AT);
	assert_int_equal(l->most, bytes / 2 * 2);
}

/* A checkpoint has failed, and an epoch does not fit behind those that are there. */
static void test_a_log_is_full(void **state)
{
	struct order_log *l;
	uint64_t bytes;
	int fd;

	(void)state;
	needs_a_disk();
	fd = logged_percent(20, 20, &bytes);
	l = order_log_of(rig_file(fd)->arena);
	l->wal->header.bytes = l->wal->end + WAL_HEAD_MAX;
	put_percent(fd, bytes, 10);
	rig_faults_clear();
	flush_now(fd);
	l->wal->header.bytes = bytes;
	/* the file and the log that is empty, and the log */
	assert_int_equal(faults.fdatasync.calls, 3);
	rig_expect("a", bytes / 100 * 20 / 4096 * 4096);
}

/* Recovery has room for all pages. */
static void test_a_kill_with_a_log_of_many_epochs(void **state)
{
	struct wal_scan s = {0};
	uint64_t bytes;
	int fd, log;

	(void)state;
	needs_a_disk();
	fd = logged_percent(40, 45, &bytes);
	put_percent(fd, bytes, 45);
	die_with_log(fd);
	log = open(dead_log, O_RDONLY);
	assert_true(log >= 0);
	recover_what_is_there();
	rig_expect("a", bytes / 100 * 45 / 4096 * 4096);
	assert_int_equal(wal_scan_begin(&s, log, batch), 0);
	/* it had one more epoch, before they went to the file */
	assert_int_equal(s.header.first, scan_log().header.first + scan_log().epochs + 1);
	close(log);
}

/* ---- large appends ---- */

enum { LARGE = 400 << 10, SMALL_LOG = 100 << 10 };

static void append_to(int fd, uint64_t from, uint64_t to)
{
	uint8_t page[4096];

	for (uint64_t at = from; at < to; at += sizeof page) {
		size_t n = to - at < sizeof page ? to - at : sizeof page;

		rig_fill(page, n, at);
		assert_int_equal(io_write_at(fd, fdtable_get(fd), page, n, (off_t)at), (long)n);
	}
}

/* "a" with a large append staged, behind 1000 bytes that it has. */
static int appended(void)
{
	int fd;

	fd = ready("a");
	append_to(fd, 1000, LARGE);
	rig_faults_clear();
	return fd;
}

/* It is in the file, and another one is staged. */
static int appended_again(void)
{
	int fd = appended();

	flush_now(fd);
	append_to(fd, LARGE, 2 * LARGE);
	return fd;
}

static uint64_t log_end(int fd) { return order_log_of(rig_file(fd)->arena)->wal->end; }

static void test_a_large_append_is_written_once(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	flush_now(fd);
	/* the size, the file, and the epoch */
	assert_int_equal(faults.fdatasync.calls, 3);
	assert_int_equal(scan_log().epochs, 2);
	assert_true(log_end(fd) < SMALL_LOG);
	rig_expect("a", LARGE);
	append_to(fd, LARGE, 2 * LARGE);
	rig_faults_clear();
	flush_now(fd);
	assert_int_equal(faults.fdatasync.calls, 2);
	assert_true(log_end(fd) < SMALL_LOG);
	recover_as_after_power_loss();
	rig_expect("a", 2 * LARGE);
}

static ino_t ino_of_a;

/* The log as it is before the file is synced, or while a write to it comes. */
static int fdatasync_copies_log(int fd)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_ino == ino_of_a)
		copy_log();
	return rig_fdatasync(fd);
}

static void flush_and_copy_log(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	ino_of_a = st.st_ino;
	dead_log[0] = '\0';
	sys.fdatasync = fdatasync_copies_log;
	flush_now(fd);
	sys.fdatasync = rig_fdatasync;
	assert_int_not_equal(dead_log[0], '\0');
	change_header(dead_log, true, false);
	arena_path[0] = '\0';
	recover_what_is_there();
}

/* Power is lost when the file has it, and not the log: both stand as before. */
static void test_power_is_lost_in_a_large_append(void **state)
{
	int fd, other;

	(void)state;
	needs_a_disk();
	other = ready("b");
	fd = appended();
	rig_put(other, 1000, 600);
	flush_and_copy_log(fd);
	assert_int_equal(rig_kernel_size("a"), 1000);
	rig_expect("a", 1000);
}

/* An epoch of this log has made the file shorter: its pages would come over the append. */
static void test_a_large_append_after_a_cut(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	flush_now(fd);
	assert_int_equal(io_ftruncate(fd, 1000), 0);
	append_to(fd, 1000, 2000);
	flush_now(fd);
	append_to(fd, 2000, LARGE);
	flush_now(fd);
	assert_true(log_end(fd) > LARGE);
	rig_expect("a", LARGE);
	recover_as_after_power_loss();
	rig_expect("a", LARGE);
	/* the next log knows nothing of that */
	assert_int_equal(ordered_barrier(NULL), 0);
	append_to(fd, LARGE, 2 * LARGE);
	flush_now(fd);
	assert_true(log_end(fd) < SMALL_LOG);
	recover_as_after_power_loss();
	rig_expect("a", 2 * LARGE);
}

/* The disk is full in the middle of it: the log has all of it, and the file gets the log's space. */
static void test_a_large_append_to_a_full_disk(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	/* the size; the second piece of the file */
	faults.pwritev = (struct fault){.at = 3, .error = ENOSPC};
	flush_now(fd);
	assert_true(log_end(fd) > LARGE - 4096);
	rig_expect("a", LARGE);
	recover_as_after_power_loss();
	rig_expect("a", LARGE);
}

static void test_a_large_append_whose_size_cannot_be_logged(void **state)
{
	struct file_guard g;
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	faults.pwritev = (struct fault){.at = 1, .error = EIO};
	g = file_lock(rig_file(fd));
	assert_int_equal(ordered_flush(rig_file(fd)), -EIO);
	file_unlock(rig_file(fd), g);
	assert_int_equal(rig_kernel_size("a"), 1000);
	/* the next try needs it, too */
	rig_faults_clear();
	flush_and_copy_log(fd);
	rig_expect("a", 1000);
}

/* The first write to "a" takes until recovery would take the file for changed by others. */
static ssize_t pwritev_late(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct stat st;

	if (fstat(fd, &st) != 0 || st.st_ino != ino_of_a)
		return rig_pwritev(fd, iov, count, offset);
	ino_of_a = 0;
	while (sys_now_ns() < order_logs[0].logged_ns + WAL_LATE_NS / 4 * 3)
		sys_nap(10000000);
	return rig_pwritev(fd, iov, count, offset);
}

static void test_a_large_append_to_a_slow_disk(void **state)
{
	struct order_log *l;
	struct stat st;
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended_again();
	l = order_log_of(rig_file(fd)->arena);
	assert_ptr_equal(l, &order_logs[0]);
	assert_int_equal(fstat(fd, &st), 0);
	ino_of_a = st.st_ino;
	l->logged_ns = sys_now_ns() - WAL_LATE_NS / 5 * 2;
	sys.pwritev = pwritev_late;
	flush_now(fd);
	sys.pwritev = rig_pwritev;
	/* the log has it instead */
	assert_true(log_end(fd) > LARGE - 4096);
	rig_expect("a", 2 * LARGE);
	recover_as_after_power_loss();
	rig_expect("a", 2 * LARGE);
}

/* Recovery would take "a" for changed by others, when it is to cut it to the size that the log says. */
static void test_a_large_append_long_after_its_size(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended_again();
	rig_faults_clear();
	flush_now(fd);
	/* the file, and the epoch */
	assert_int_equal(faults.fdatasync.calls, 2);
	append_to(fd, 2 * LARGE, 3 * LARGE);
	order_log_of(rig_file(fd)->arena)->logged_ns -= WAL_LATE_NS;
	rig_faults_clear();
	flush_now(fd);
	/* the size before them */
	assert_int_equal(faults.fdatasync.calls, 3);
	rig_expect("a", 3 * LARGE);
}

/* The write-back to "a" takes until recovery would take the file for changed by others. */
static ssize_t pwritev_too_late(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_ino == ino_of_a)
		order_logs[0].logged_ns -= WAL_LATE_NS;
	return rig_pwritev(fd, iov, count, offset);
}

static void test_a_slow_write_back(void **state)
{
	struct stat st;
	int fd;

	(void)state;
	needs_a_disk();
	fd = staged("a", 500);
	assert_ptr_equal(order_log_of(rig_file(fd)->arena), &order_logs[0]);
	flush_now(fd);
	assert_int_equal(scan_log().epochs, 1);
	rig_put(fd, 1500, 100);
	assert_int_equal(fstat(fd, &st), 0);
	ino_of_a = st.st_ino;
	sys.pwritev = pwritev_too_late;
	flush_now(fd);
	sys.pwritev = rig_pwritev;
	ino_of_a = 0;
	/* the log needs neither any more */
	assert_int_equal(scan_log().epochs, 0);
	rig_expect("a", 1600);
}

/* The write-back to the first of two files comes so late that its time is far from that of the epoch, and
 * that to the other one fails. */
static ssize_t pwritev_late_and_fails(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (!is_of_two(fd))
		return rig_pwritev(fd, iov, count, offset);
	if (!wait_once_until(order_logs[0].logged_ns + WAL_LATE_NS + 200000000))
		return -EIO;
	return rig_pwritev(fd, iov, count, offset);
}

/* The epoch is in one file and not in the other one: recovery must bring it to both. */
static void test_power_is_lost_in_a_late_write_back(void **state)
{
	struct file_guard g;
	int fd;

	(void)state;
	needs_a_disk();
	fd = stage_two();
	assert_ptr_equal(order_log_of(rig_file(fd)->arena), &order_logs[0]);
	sys.pwritev = pwritev_late_and_fails;
	g = file_lock(rig_file(fd));
	assert_int_equal(ordered_flush(rig_file(fd)), -EIO);
	file_unlock(rig_file(fd), g);
	sys.pwritev = rig_pwritev;
	assert_int_not_equal(rig_kernel_size("a") == 1500, rig_kernel_size("b") == 1600);
	recover_as_after_power_loss();
	rig_expect("a", 1500);
	rig_expect("b", 1600);
}

/* The log says that no file has the name, and recovery must be able to remove it. */
static void test_a_large_append_under_a_transient_name(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	fd = make_transient();
	append_to(fd, 3000, LARGE);
	flush_now(fd);
	assert_true(log_end(fd) > LARGE);
	recover_as_after_power_loss();
	rig_expect("j", LARGE);
}

/* It is not known which header the device has: the one that empties the log, perhaps. */
static void test_a_large_append_behind_an_unsure_header(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended_again();
	order_log_of(rig_file(fd)->arena)->wal->unsure = true;
	rig_faults_clear();
	flush_now(fd);
	/* the header, the size, the file, and the epoch */
	assert_int_equal(faults.fdatasync.calls, 4);
	rig_expect("a", 2 * LARGE);
}

static void test_a_large_append_that_cannot_be_synced(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	faults.fdatasync = (struct fault){.at = 2, .error = EIO};
	assert_int_equal(ordered_barrier(NULL), -EIO);
	assert_int_equal(scan_log().epochs, 1);
	assert_int_equal(rig_write(fd, "x", 1), -EIO);
	recover_as_after_power_loss();
	rig_expect("a", 1000);
	leave_log(fd, 1);
}

/* The epoch is tried again when the file has the append already. */
static void test_a_large_append_and_a_log_that_fails(void **state)
{
	struct file_guard g;
	int fd;

	(void)state;
	needs_a_disk();
	fd = appended();
	faults.fdatasync = (struct fault){.at = 3, .error = EIO};
	g = file_lock(rig_file(fd));
	assert_int_equal(ordered_flush(rig_file(fd)), -EIO);
	file_unlock(rig_file(fd), g);
	assert_int_equal(rig_kernel_size("a"), LARGE);
	rig_faults_clear();
	append_to(fd, LARGE, LARGE + 500);
	flush_now(fd);
	assert_true(log_end(fd) < SMALL_LOG);
	recover_as_after_power_loss();
	rig_expect("a", LARGE + 500);
}

static sem_t in_write, may_write;

/* The leader's write to the file that goes waits. */
static ssize_t pwritev_waits(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_ino == removal.ino) {
		sem_post(&in_write);
		sem_wait(&may_write);
	}
	return rig_pwritev(fd, iov, count, offset);
}

static void *write_owed(void *arg)
{
	ordered_write_owed();
	return arg;
}

/* The program removes the file while it is written back, and the log is half full: the removal comes to the
 * device before the log is emptied. */
static void test_a_removal_beside_the_write_back(void **state)
{
	struct order_log *l;
	pthread_t leader;
	uint64_t bytes;

	(void)state;
	needs_a_disk();
	l = order_log_of(rig_file(going())->arena);
	bytes = l->wal->header.bytes;
	l->wal->header.bytes = l->wal->end;
	assert_int_equal(sem_init(&in_write, 0, 0) + sem_init(&may_write, 0, 0), 0);
	sys.pwritev = pwritev_waits;
	assert_int_equal(pthread_create(&leader, NULL, write_owed, NULL), 0);
	assert_int_equal(sem_wait(&in_write), 0);
	gone();
	assert_int_equal(sem_post(&may_write), 0);
	assert_int_equal(pthread_join(leader, NULL), 0);
	sys.pwritev = rig_pwritev;
	assert_int_equal(faults.fsync.calls, 0);
	ordered_tend(sys_now_ns());
	l->wal->header.bytes = bytes;
	rig_expect("b", 1700);
	assert_int_equal(faults.fsync.calls, 1);
	assert_int_equal(l->wal->end, WAL_BATCHES_AT);
}

/* An epoch in the log has the file that goes, and the last one nothing new of it. */
static void test_a_file_of_an_earlier_epoch_goes(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	in_an_epoch(&fd);
	assert_int_equal(fd_close(fd), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	recover_as_after_power_loss();
	rig_expect("j", 3000);
	rig_faults_clear();
	gone();
	/* (what has no name needs no sync) */
	assert_int_equal(faults.fdatasync.calls + faults.fsync.calls, 0);
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
	rig_faults_clear();
	assert_int_equal(ordered_barrier(NULL), 0);
	assert_int_equal(faults.fsync.calls, 1);
}

static void test_a_removal_after_an_epoch_that_fails(void **state)
{
	int other;

	(void)state;
	needs_a_disk();
	other = going();
	by_name_unlink_done(&removal, false);
	rig_expect("j", 4000);
	rig_expect("b", 1700);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(scan_log().absent.list, 0);
	assert_int_equal(rig_drain(other), 0);
}

/* The timer detaches the file before the program removes it: the next epoch needs the removal all the same.
 */
static void test_a_file_is_detached_before_its_removal(void **state)
{
	struct file_guard g;
	int fd, other;
	struct file *f;

	(void)state;
	needs_a_disk();
	other = in_an_epoch(&fd);
	f = rig_file(fd);
	assert_int_equal(fd_close(fd), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	g = file_lock(f);
	attach_closed_due(f);
	assert_null(f->arena);
	file_unlock(f, g);
	gone();
	rig_faults_clear();
	rig_put(other, 1600, 100);
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(faults.fsync.calls, 1);
	rig_expect("b", 1700);
}

/* Nothing is left but an epoch that is to be written back. */
static void test_a_log_ends_after_a_removal(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	assert_int_equal(rig_close(in_an_epoch(&fd)), 0);
	assert_int_equal(fd_close(fd), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	gone();
	assert_true(attach_retire_dir(rig_path(".fastwrite")));
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), -1);
}

/* Somebody gives the file another name before the program removes it. */
static void test_a_file_with_another_name_stays(void **state)
{
	char from[PATH_MAX];
	int other;

	(void)state;
	needs_a_disk();
	other = going();
	snprintf(from, sizeof from, "%s", rig_path("j"));
	assert_int_equal(link(from, rig_path("k")), 0);
	gone();
	assert_int_equal(rig_drain(other), 0);
	rig_expect("k", 4000);
	rig_expect("b", 1700);
}

/* The file is written back before the program removes it. */
static void test_a_write_back_before_the_removal(void **state)
{
	(void)state;
	needs_a_disk();
	going();
	ordered_write_owed();
	rig_expect("j", 4000);
	rig_expect("b", 1700);
	gone();
	recover_as_after_power_loss();
	assert_int_equal(access(rig_path("j"), F_OK), -1);
	assert_int_equal(access(rig_path(".fastwrite/orphans"), F_OK), -1);
}

/* Another thread's barrier comes between the note of a removal and the removal: the log is void, and the file
 * must have its bytes if power is lost before it goes. */
static void test_a_barrier_in_the_middle_of_a_removal(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	fd = make_transient();
	assert_int_equal(fd_close(fd), 0);
	by_name_unlink_prepare(&removal, AT_FDCWD, rig_path("j"));
	assert_non_null(removal.name);
	assert_int_equal(ordered_barrier(NULL), 0);
	assert_int_equal(scan_log().absent.list, 0);
	rig_expect("j", 3000);
	assert_int_equal(unlink(rig_path("j")), 0);
	by_name_unlink_done(&removal, true);
	/* what no log says is synced with the next epoch */
	rig_faults_clear();
	fd = make_transient();
	assert_int_equal(scan_log().absent.names, 1);
	assert_int_equal(fd_close(fd), 0);
}

/* A child of the program makes an empty file under such a name: the next epoch has it. */
static void test_a_name_that_comes_unseen(void **state)
{
	int other, fd;

	(void)state;
	needs_a_disk();
	other = transient();
	fd = open(rig_path("j"), O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	close(fd);
	rig_put(other, 1600, 100);
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(scan_log().absent.names, 0);
	recover_as_after_power_loss();
	assert_int_equal(rig_kernel_size("j"), 0);
	assert_int_equal(unlink(rig_path("j")), 0);
	rig_put(other, 1700, 100);
	assert_int_equal(rig_drain(other), 0);
	assert_int_equal(scan_log().absent.names, 1);
}

/* A file that is made and not written: the timer ends an epoch for it. */
static void test_an_empty_file_under_a_transient_name(void **state)
{
	struct transient_name *name;
	uint64_t dev;
	bool sure;
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	assert_non_null(by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name, &sure));
	fd = rig_open("j", O_RDWR);
	ordered_named(name);
	assert_int_equal(scan_log().absent.names, 1);
	(void)fd;
	assert_true(ordered_tend(0) < UINT64_MAX);
	assert_true(ordered_tend(UINT64_MAX - 1) == UINT64_MAX);
	assert_int_equal(scan_log().absent.names, 0);
	assert_int_equal(scan_log().absent.list, 1);
	recover_as_after_power_loss();
	assert_int_equal(rig_kernel_size("j"), 0);
}

/* `name` is made, and is young. */
static int make_young(const char *name)
{
	int fd = rig_open(name, O_RDWR);
	const struct file *f = rig_file(fd);

	assert_true(young_is(f->dev, f->ino));
	return fd;
}

/* The file at fd is not young, and its first write finds it under this name. */
static void expect_found(int fd, const char *name)
{
	const struct file *f = rig_file(fd);

	assert_false(young_is(f->dev, f->ino));
	rig_put(fd, 0, 100);
	assert_string_equal(rig_entry(fd)->path, rig_path(name));
	assert_int_equal(fd_close(fd), 0);
	remove_it(name);
}

static void rename_it(const char *from, const char *to)
{
	struct by_name_rename r;
	char target[512];

	strcpy(target, rig_path(to));
	by_name_rename_prepare(&r, AT_FDCWD, rig_path(from), AT_FDCWD, target, false);
	assert_int_equal(rename(rig_path(from), target), 0);
	by_name_rename_done(&r, true);
}

/* A file that was just made, until another descriptor or another name may have come. */
static void test_a_young_file(void **state)
{
	const struct file *f;
	int fd, other;

	(void)state;
	needs_a_disk();
	transient();
	fd = make_young("j");
	f = rig_file(fd);
	rig_put(fd, 0, 100);
	assert_string_equal(rig_entry(fd)->path, rig_path("j"));
	assert_false(young_is(f->dev, f->ino));
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");

	fd = make_young("j");
	other = rig_open("b", O_RDWR);
	expect_found(fd, "j");
	assert_int_equal(fd_close(other), 0);

	fd = make_young("j");
	rename_it("j", "k");
	expect_found(fd, "k");

	fd = make_young("j");
	sys_nap(2ull * YOUNG_NS);
	expect_found(fd, "j");
}

/* Opens a new file as the hook does.  Something happens after the path has been found. */
static int open_after(void (*between)(void), const char *name)
{
	struct fd_open op;
	char path[512];
	int fd;

	strcpy(path, name);
	fd_open_prepare(&op, AT_FDCWD, path, O_RDWR | O_CREAT);
	assert_non_null(op.name);
	op.exclusive = true;
	between();
	fd = open(path, O_RDWR | O_CREAT | fd_open_exclusive(&op), 0644);
	assert_true(fd >= 0);
	(void)fd_open_concerns(&op);
	op.looks = op.unresolved = false;
	fd_opened(&op, fd);
	fd_open_end(&op);
	return fd;
}

static void nothing(void) {}
static char outside[] = "/tmp/fastwrite-outside-XXXXXX";
static void leave(void) { assert_int_equal(chdir(outside), 0); }
static void directory_moves(void)
{
	rename_it("sub", "moved");
	assert_int_equal(symlink("moved", rig_path("sub")), 0);
}

/* The path of the program leads elsewhere when the kernel follows it. */
static void test_a_path_that_changes(void **state)
{
	const struct file *f;
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	assert_non_null(mkdtemp(outside));
	assert_int_equal(chdir(rig_dir), 0);
	fd = open_after(nothing, "j");
	f = rig_file(fd);
	assert_true(young_is(f->dev, f->ino));
	assert_null(young_path());
	rig_put(fd, 0, 100);
	assert_string_equal(rig_entry(fd)->path, rig_path("j"));
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");
	fd = open_after(leave, "j");
	assert_null(fdtable_get(fd));
	assert_int_equal(unlink("j"), 0);
	assert_int_equal(chdir("/"), 0);
	assert_int_equal(rmdir(outside), 0);
}

static void test_a_directory_that_moves_below_an_open(void **state)
{
	struct stat st;
	int fd, other;

	(void)state;
	needs_a_disk();
	other = ready("b");
	assert_int_equal(mkdir(rig_path("sub"), 0755), 0);
	assert_int_equal(stat(rig_path("sub"), &st), 0);
	(void)ordered_directory_follows(rig_file(other)->rule, sys_dev_of_stat(&st), st.st_ino,
	                                rig_path("sub"), 0);
	fd = rig_open("sub/j", O_RDWR);
	rig_put(fd, 0, 100);
	assert_int_equal(fd_close(fd), 0);
	remove_it("sub/j");
	fd = open_after(nothing, rig_path("sub/j"));
	assert_string_equal(young_path(), rig_path("sub/j"));
	assert_int_equal(fd_close(fd), 0);
	remove_it("sub/j");
	fd = open_after(directory_moves, rig_path("sub/j"));
	expect_found(fd, "moved/j");
}

/* More names than the list has room for: the oldest goes, which the device knows by then. */
static void test_many_names_that_come_and_go(void **state)
{
	struct transient_name *name;
	uint64_t dev;
	bool sure;

	(void)state;
	needs_a_disk();
	transient();
	for (unsigned i = 0; i < WAL_NAMES_MAX + 3; i++) {
		char path[16];
		int fd;

		snprintf(path, sizeof path, "n%u", i);
		fd = rig_open(path, O_RDWR);
		rig_put(fd, 0, 100);
		assert_int_equal(fd_close(fd), 0);
		remove_it(path);
		assert_non_null(removal.name);
		assert_int_equal(scan_log().absent.list, 2 + i);
	}
	assert_int_equal(scan_log().absent.names, (1u << WAL_NAMES_MAX) - 1);
	(void)by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name, &sure);
	assert_null(name);
	(void)by_name_order_new(AT_FDCWD, rig_path("n5"), &dev, &name, &sure);
	assert_non_null(name);
	ordered_named(name);
}

/* The removal fails: the file is what it was, and no log removes it. */
static void test_a_removal_that_fails(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	removing();
	assert_int_equal(scan_log().absent.names, 1);
	by_name_unlink_done(&removal, false);
	assert_int_equal(scan_log().absent.list, 0);
	rig_expect("j", 3000);
	fd = rig_open("j", O_RDWR);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("j", 3000);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_sync_asks_nobody),
		TEST(test_a_large_write_comes_after_what_was_staged),
		TEST(test_a_write_of_many_pages_is_staged),
		TEST(test_large_writes_are_in_order),
		TEST(test_an_epoch_has_what_the_kernel_has),
		TEST(test_a_log_that_cannot_be_written),
		TEST(test_a_file_that_cannot_be_written),
		TEST(test_no_sync_succeeds_after_an_epoch_that_failed),
		TEST(test_new_files_are_synced_together),
		TEST(test_a_file_is_cut_in_its_epoch),
		TEST(test_the_next_epoch_begins_beside_it),
		TEST(test_a_file_that_is_only_written),
		TEST(test_a_locked_file_that_is_only_written),
		TEST(test_an_end_that_is_not_kept_any_more),
		TEST(test_an_end_without_a_lease),
		TEST(test_an_end_that_another_program_asked_for),
		TEST(test_another_program_waits_for_the_log),
		TEST(test_the_watcher_ends_beside_a_full_log),
		TEST(test_an_end_that_another_program_changes),
		TEST(test_a_descriptor_is_replaced_before_a_read),
		TEST(test_a_file_that_cannot_be_read),
		TEST(test_a_locked_file_keeps_its_lease),
		TEST(test_a_locked_file_that_is_open_twice),
		TEST(test_a_locked_file_that_another_program_opens),
		TEST(test_a_locked_file_is_closed),
		TEST(test_a_locked_file_is_closed_with_its_lock),
		TEST(test_a_locked_file_is_closed_beside_a_reader),
		TEST(test_a_copy_in_use),
		TEST(test_power_is_lost_in_the_recovery),
		TEST(test_a_file_that_is_removed_needs_no_log),
		TEST(test_power_is_lost_before_a_file_is_gone),
		TEST(test_an_epoch_syncs_the_directory),
		TEST(test_a_removal_from_the_directory),
		TEST(test_a_file_is_made_late),
		TEST(test_a_file_gets_a_name_late),
		TEST(test_a_removal_from_the_directory_is_late),
		TEST(test_opens_that_cut_or_make),
		TEST(test_a_fork_beside_a_call),
		TEST(test_a_directory_that_cannot_be_synced),
		TEST(test_a_directory_that_moves),
		TEST(test_the_log_has_space_for_a_full_disk),
		TEST(test_a_hole_after_the_log_gave_its_space),
		TEST(test_a_disk_that_stays_full),
		TEST(test_recovery_gets_the_space_of_the_log),
		TEST(test_a_removal_that_fails),
		TEST(test_a_removal_beside_a_full_disk),
		TEST(test_a_name_that_comes_and_goes),
		TEST(test_a_name_comes_and_goes_beside_a_write_back),
		TEST(test_a_write_beside_a_write_back),
		TEST(test_power_is_lost_while_a_name_comes_and_goes),
		TEST(test_an_epoch_has_a_file_that_goes),
		TEST(test_a_removal_after_an_epoch),
		TEST(test_power_is_lost_in_a_removal_after_an_epoch),
		TEST(test_a_kill_in_a_removal_after_an_epoch),
		TEST(test_a_kill_in_a_drain_beside_a_removal),
		TEST(test_two_removals_of_a_file),
		TEST(test_a_checkpoint_is_of_many_epochs),
		TEST(test_power_is_lost_before_a_checkpoint),
		TEST(test_a_file_leaves_before_a_checkpoint),
		TEST(test_a_program_is_started),
		TEST(test_a_file_is_detached_while_it_goes),
		TEST(test_an_idle_log_is_emptied),
		TEST(test_a_removal_beside_the_write_back),
		TEST(test_a_log_is_half_full),
		TEST(test_a_slow_checkpoint),
		TEST(test_a_log_is_full),
		TEST(test_a_kill_with_a_log_of_many_epochs),
		TEST(test_a_file_of_an_earlier_epoch_goes),
		TEST(test_a_file_is_opened_beside_its_removal),
		TEST(test_a_removal_in_the_middle_of_an_open),
		TEST(test_no_removal_begins_beside_a_link),
		TEST(test_a_file_is_removed_from_another_place),
		TEST(test_signals_wait_for_a_removal),
		TEST(test_a_removal_after_an_epoch_that_fails),
		TEST(test_a_write_back_before_the_removal),
		TEST(test_a_file_is_detached_before_its_removal),
		TEST(test_a_log_ends_after_a_removal),
		TEST(test_a_file_with_another_name_stays),
		TEST(test_a_barrier_in_the_middle_of_a_removal),
		TEST(test_a_name_that_comes_unseen),
		TEST(test_an_empty_file_under_a_transient_name),
		TEST(test_a_young_file),
		TEST(test_a_path_that_changes),
		TEST(test_a_directory_that_moves_below_an_open),
		TEST(test_many_names_that_come_and_go),
		TEST(test_a_removed_file_that_is_read),
		TEST(test_a_large_append_is_written_once),
		TEST(test_power_is_lost_in_a_large_append),
		TEST(test_a_large_append_after_a_cut),
		TEST(test_a_large_append_to_a_full_disk),
		TEST(test_a_large_append_whose_size_cannot_be_logged),
		TEST(test_a_large_append_and_a_log_that_fails),
		TEST(test_a_large_append_to_a_slow_disk),
		TEST(test_a_large_append_long_after_its_size),
		TEST(test_power_is_lost_in_a_late_write_back),
		TEST(test_power_is_lost_in_a_slow_recovery),
		TEST(test_a_recovery_with_a_slow_log_is_killed),
		TEST(test_a_slow_write_back),
		TEST(test_a_large_append_under_a_transient_name),
		TEST(test_a_large_append_behind_an_unsure_header),
		/* last: their logs stay broken */
		TEST(test_older_bytes_are_synced_first),
		TEST(test_a_file_that_cannot_be_synced),
		TEST(test_a_large_append_that_cannot_be_synced),
		TEST(test_a_file_that_leaves_cannot_be_synced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
