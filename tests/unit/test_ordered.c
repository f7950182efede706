// SPDX-License-Identifier: Apache-2.0
/* ordered: nothing reaches a file before the log has it, also when the log, a file or the disk fails. */
#include "dead_arena.h"
#include "files/fdtable.h"

#include "attach/attach.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "descriptors/by_name.h"
#include "descriptors/fd.h"
#include "flush/flush.h"
#include "flush/order_directory.h"
#include "flush/ordered.h"
#include "format/wal_scan.h"
#include "staging/order.h"
#include "sync/sync.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static uint8_t batch[WAL_BATCH_MOST] __attribute__((aligned(WAL_PAGE_BYTES)));

static int set_up(void **state)
{
	struct statfs st;

	(void)state;
	rig_start("FASTWRITE_SYNC=ordered", "FASTWRITE_WRITERS=exclusive", "FASTWRITE_ORDERED_MS=60000",
	          NULL);
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

/* A file with its first epoch behind it.  (The next name that comes ends another one.) */
static int ready(const char *name)
{
	int fd = rig_open(name, O_RDWR);

	rig_put(fd, 0, 1000);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect(name, 1000);
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

/* "a" with 500 more bytes staged, "b" with 600. */
static void two_staged(int *fd, int *other)
{
	*other = ready("b");
	*fd = staged("a", 500);
	rig_put(*other, 1000, 600);
}

static int open_log(void)
{
	DIR *dir = opendir(rig_path(".fastwrite"));
	const struct dirent *d;
	char path[600];
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

static void test_a_large_write_comes_after_what_was_staged(void **state)
{
	static uint8_t large[200000];
	int fd, other;

	(void)state;
	needs_a_disk();
	two_staged(&fd, &other);
	rig_fill(large, sizeof large, 1600);
	assert_int_equal(rig_write(other, large, sizeof large), sizeof large);
	/* all of it is durable before, and the log cannot undo the write */
	rig_expect("a", 1500);
	rig_expect("b", 1600 + sizeof large);
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
	/* for rig_stop: what is left there is for recovery */
	rig_faults_clear();
	rig_close(fd);
	rig_close(other);
	attach_stop_all(BYPASS_EXEC);
	attach_resume_all(BYPASS_EXEC);
	assert_int_equal(scan_log().epochs, 1);
	{
		char command[400];

		snprintf(command, sizeof command, "rm -r '%s'", rig_path(".fastwrite"));
		assert_int_equal(system(command), 0);
	}
}

/* What the kernel had before the attach is durable before the first epoch. */
static void test_older_bytes_are_synced_first(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = rig_open("a", O_RDWR);
	rig_put(fd, 0, 1000);
	rig_faults_clear();
	faults.fsync = (struct fault){.at = 1, .error = EIO};
	assert_int_equal(rig_drain(fd), -EIO);
	assert_int_equal(scan_log().epochs, 0);
	assert_int_equal(rig_kernel_size("a"), 0);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 1);
	rig_expect("a", 1000);
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
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 400);
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

/* The thread that flushes comes back after an epoch, and new pages are staged. */
static void test_a_locked_file_keeps_its_lease(void **state)
{
	int fd;

	(void)state;
	needs_a_disk();
	fd = ready("a");
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0) {
		print_message("skipped: no leases on this file system\n");
		skip();
	}
	assert_int_equal(fcntl(fd, F_SETLEASE, F_UNLCK), 0);
	assert_int_equal(fd_before_lock(fd, false, LOCK_AT_OFFSET), 0);
	rig_put(fd, 1000, 500);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	assert_int_equal(flush_run(rig_file(fd), true), 0);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	rig_put(fd, 1500, 100);
	assert_int_equal(rig_kernel_size("a"), 1000);
	assert_int_equal(rig_drain(fd), 0);
	rig_expect("a", 1600);
	assert_null(rig_file(fd)->lease.on);
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
	h.origin.super_id += moves;
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
	h.origin.super_id++;
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
	/* the list of names, the log, the other file, and the log that is empty */
	assert_int_equal(faults.fdatasync.calls, 4);
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
	assert_false(ordered_directory_is_known(sys_dev_of_stat(dir), dir->st_ino));
	assert_true(
		ordered_directory_follows(rig_file(fd)->rule, sys_dev_of_stat(dir), dir->st_ino, rig_dir));
	assert_true(ordered_directory_is_known(sys_dev_of_stat(dir), dir->st_ino));
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
	assert_false(ordered_directory_is_known(sys_dev_of_stat(&dir), dir.st_ino));
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
	                                      "/other"));
	assert_false(ordered_directory_is_known(sys_dev_of_stat(&other), other.st_ino));
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.fsync.calls, 0);
	rig_expect("a", 1800);
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
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, rig_path("sub")));
	assert_false(order_directory_note(&d, sys_dev_of_stat(&other), other.st_ino, rig_path("other")));
	assert_true(order_directory_note_name(&d, rig_path("sub/name")));
	assert_false(order_directory_note_name(&d, rig_path("sub/further/name")));
	assert_false(order_directory_note_name(&d, rig_path("subway")));
	assert_int_equal(order_directory_sync(&d), 0);
	assert_int_equal(faults.fsync.calls, 1);
	assert_int_equal(order_directory_sync(&d), 0);
	assert_int_equal(faults.fsync.calls, 1);
	assert_true(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL));
	assert_int_equal(rmdir(rig_path("other")), 0);
	snprintf(from, sizeof from, "%s", rig_path("sub"));
	assert_int_equal(rename(from, rig_path("other")), 0);
	assert_int_equal(mkdir(rig_path("sub"), 0700), 0);
	assert_int_equal(order_directory_sync(&d), -ESTALE);
	assert_int_equal(faults.fsync.calls, 1);
	assert_false(order_directory_note(&d, sys_dev_of_stat(&sub), sub.st_ino, NULL));
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
	int fd;

	assert_null(by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name));
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
	assert_int_equal(faults.fdatasync.calls, 2);
	assert_int_equal(scan_log().absent.names, 1);
	assert_int_equal(fd_close(fd), 0);
	remove_it("j");
	assert_non_null(removal.name);
	assert_int_equal(faults.fdatasync.calls, 2);
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
	int fd;

	(void)state;
	needs_a_disk();
	transient();
	assert_null(by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name));
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

/* More names than the list has room for: the oldest goes, which the device knows by then. */
static void test_many_names_that_come_and_go(void **state)
{
	struct transient_name *name;
	uint64_t dev;

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
	(void)by_name_order_new(AT_FDCWD, rig_path("j"), &dev, &name);
	assert_null(name);
	(void)by_name_order_new(AT_FDCWD, rig_path("n5"), &dev, &name);
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
		TEST(test_a_log_that_cannot_be_written),
		TEST(test_a_file_that_cannot_be_written),
		TEST(test_older_bytes_are_synced_first),
		TEST(test_a_file_is_cut_in_its_epoch),
		TEST(test_the_next_epoch_begins_beside_it),
		TEST(test_a_file_that_is_only_written),
		TEST(test_a_file_that_cannot_be_read),
		TEST(test_a_locked_file_keeps_its_lease),
		TEST(test_power_is_lost_in_the_recovery),
		TEST(test_a_file_that_is_removed_needs_no_log),
		TEST(test_power_is_lost_before_a_file_is_gone),
		TEST(test_an_epoch_syncs_the_directory),
		TEST(test_a_directory_that_cannot_be_synced),
		TEST(test_a_directory_that_moves),
		TEST(test_the_log_has_space_for_a_full_disk),
		TEST(test_a_hole_after_the_log_gave_its_space),
		TEST(test_a_disk_that_stays_full),
		TEST(test_recovery_gets_the_space_of_the_log),
		TEST(test_a_removal_that_fails),
		TEST(test_a_name_that_comes_and_goes),
		TEST(test_power_is_lost_while_a_name_comes_and_goes),
		TEST(test_an_epoch_has_a_file_that_goes),
		TEST(test_a_barrier_in_the_middle_of_a_removal),
		TEST(test_a_name_that_comes_unseen),
		TEST(test_an_empty_file_under_a_transient_name),
		TEST(test_many_names_that_come_and_go),
		TEST(test_a_removed_file_that_is_read),
		/* last: its log stays broken */
		TEST(test_a_file_that_cannot_be_synced),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
