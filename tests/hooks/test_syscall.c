// SPDX-License-Identifier: Apache-2.0
/* The same calls by number, through the C library's syscall(). */
#include "hook_test.h"

#include <sys/mount.h> /* before the kernel's, for older C libraries */

#include <linux/fs.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

extern char **environ;

static char self[4096];

/* Numbers that some machines do not have. */
#ifdef SYS_open
enum { HAVE_OLD = 1 };
#else
enum { HAVE_OLD = 0 };
#define SYS_open -1
#define SYS_creat -1
#define SYS_dup2 -1
#define SYS_stat -1
#define SYS_lstat -1
#define SYS_rename -1
#define SYS_link -1
#define SYS_unlink -1
#define SYS_rmdir -1
#define SYS_chmod -1
#define SYS_chown -1
#define SYS_lchown -1
#define SYS_utime -1
#define SYS_utimes -1
#define SYS_futimesat -1
#define SYS_fork -1
#endif

/* As the other programs do it, only by number. */
static void put_records(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		assert_int_equal(OK(syscall(SYS_write, fd, record, RECORD)), RECORD);
	}
}

/* Opened and written by name, so that something is staged whatever becomes of the numbers. */
static int made(const char *path) { return open_staged(path, 0); }

static void child_puts(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(syscall(SYS_write, fd, record, RECORD) == RECORD);
	}
}

/* Every way to write, at once staged and read back in every way. */
static void reading_and_writing(void **state)
{
	char expected[5 * STAGED], back[5 * STAGED], record[RECORD];
	struct iovec two[2], in[2];
	int fd = made("a");
	size_t size = STAGED;

	(void)state;
	memset(expected, 0, sizeof expected);
	for (unsigned i = 0; i < 3 * RECORDS; i++)
		record_fill(expected + i * RECORD, i);
	put_records(fd, RECORDS, RECORDS);
	size += STAGED;
	two[0] = (struct iovec){.iov_base = expected + size, .iov_len = RECORD};
	two[1] = (struct iovec){.iov_base = expected + size + RECORD, .iov_len = RECORD};
	assert_int_equal(OK(syscall(SYS_writev, fd, two, 2)), 2 * RECORD);
	size += 2 * RECORD;
	/* rewritten in place, the position stays */
	record_fill(record, 77);
	memcpy(expected + RECORD, record, RECORD);
	assert_int_equal(OK(syscall(SYS_pwrite64, fd, record, RECORD, (long)RECORD)), RECORD);
	two[0] = (struct iovec){.iov_base = record, .iov_len = RECORD};
	memcpy(expected + 5 * RECORD, record, RECORD);
	assert_int_equal(OK(syscall(SYS_pwritev, fd, two, 1, 5L * RECORD, 0L)), RECORD);
	memcpy(expected + 7 * RECORD, record, RECORD);
	assert_int_equal(OK(syscall(SYS_pwritev2, fd, two, 1, 7L * RECORD, 0L, 0)), RECORD);
	memcpy(expected + size, record, RECORD);
	assert_int_equal(OK(syscall(SYS_pwritev2, fd, two, 1, -1L, -1L, 0)), RECORD);
	size += RECORD;
	memcpy(expected + size, record, RECORD);
	assert_int_equal(OK(syscall(SYS_pwritev2, fd, two, 1, -1L, -1L, RWF_DSYNC)), RECORD);
	size += RECORD;
	assert_int_equal(kernel_size("a"), size);
	for (int how = 0; how < 6; how++) {
		ssize_t n = 0;

		put_records(fd, 500, 3);
		for (unsigned i = 0; i < 3; i++, size += RECORD)
			record_fill(expected + size, 500 + i);
		memset(back, 0, sizeof back);
		in[0] = (struct iovec){.iov_base = back, .iov_len = 333};
		in[1] = (struct iovec){.iov_base = back + 333, .iov_len = sizeof back - 333};
		if (how == 0 || how == 2 || how == 5)
			assert_int_equal(OK(syscall(SYS_lseek, fd, 0L, SEEK_SET)), 0);
		switch (how) {
		case 0: n = OK(syscall(SYS_read, fd, back, sizeof back)); break;
		case 1: n = OK(syscall(SYS_pread64, fd, back, sizeof back, 0L)); break;
		case 2: n = OK(syscall(SYS_readv, fd, in, 2)); break;
		case 3: n = OK(syscall(SYS_preadv, fd, in, 2, 0L, 0L)); break;
		case 4: n = OK(syscall(SYS_preadv2, fd, in, 2, 0L, 0L, RWF_HIPRI)); break;
		case 5: n = OK(syscall(SYS_preadv2, fd, in, 2, -1L, -1L, 0)); break;
		}
		assert_int_equal(n, size);
		assert_memory_equal(back, expected, size);
		assert_int_equal(OK(syscall(SYS_lseek, fd, 0L, SEEK_CUR)), size);
	}
	put_records(fd, 600, 3);
	OK(syscall(SYS_close, fd));
	assert_int_equal(kernel_size("a"), size + 3 * RECORD);
	OK(unlink("a"));
}

static void opening(void **state)
{
	struct open_how how = {.flags = O_RDWR | O_CREAT | O_TRUNC, .mode = 0640};
	struct {
		struct file_handle head;
		char room[128];
	} handle = {.head.handle_bytes = 128};
	int here = OK(open(".", O_RDONLY | O_DIRECTORY));
	struct stat st;

	(void)state;
	for (int by = 0; by < 6; by++) {
		int old = made("a"), fd = -1, mount;

		/* what truncates must not leave what was staged before it */
		switch (by) {
		case 0: fd = OK(syscall(SYS_openat, AT_FDCWD, "a", O_RDWR | O_TRUNC)); break;
		case 1: fd = OK(syscall(SYS_openat2, here, "a", &how, sizeof how)); break;
		case 2:
			how.resolve = RESOLVE_BENEATH;
			fd = OK(syscall(SYS_openat2, here, "a", &how, sizeof how));
			break;
		case 3:
			if (name_to_handle_at(here, "a", &handle.head, &mount, 0) < 0 ||
			    (fd = (int)syscall(SYS_open_by_handle_at, here, &handle.head, O_RDWR | O_TRUNC)) <
			            0)
				print_message("no open_by_handle_at: %s\n", strerror(errno));
			break;
		case 4:
			if (HAVE_OLD)
				fd = OK(syscall(SYS_open, "a", O_RDWR | O_TRUNC, 0));
			break;
		case 5:
			if (HAVE_OLD)
				fd = OK(syscall(SYS_creat, "a", 0600));
			break;
		}
		OK(syscall(SYS_close, old));
		if (fd >= 0) {
			assert_int_equal(kernel_size("a"), 0);
			put_records(fd, 0, RECORDS);
			OK(syscall(SYS_fstat, fd, &st));
			assert_int_equal(st.st_size, STAGED);
			OK(syscall(SYS_close, fd));
			check_file("a", 0, RECORDS);
		}
		OK(unlink("a"));
	}
	FAILS(syscall(SYS_openat2, here, "none", &how, 3), EINVAL);
	OK(close(here));
}

static void descriptors(void **state)
{
	int fd = made("a"), copies[4], far[2];
	struct flock lock = {.l_type = F_WRLCK};

	(void)state;
	copies[0] = OK(syscall(SYS_dup, fd));
	put_records(copies[0], RECORDS, 1);
	copies[1] = OK(syscall(SYS_dup3, fd, 40, O_CLOEXEC));
	put_records(copies[1], RECORDS + 1, 1);
	copies[2] = OK(syscall(SYS_fcntl, fd, F_DUPFD, 50));
	put_records(copies[2], RECORDS + 2, 1);
	copies[3] = HAVE_OLD ? OK(syscall(SYS_dup2, fd, 60)) : OK(dup2(fd, 60));
	put_records(copies[3], RECORDS + 3, 1);
	put_records(fd, RECORDS + 4, 1);
	assert_int_equal(OK(syscall(SYS_fcntl, fd, F_GETFL)) & O_ACCMODE, O_RDWR);
	assert_int_equal(OK(syscall(SYS_fcntl, fd, F_GETOWN)), 0);
	OK(syscall(SYS_fcntl, fd, F_SETLK, &lock));
	assert_int_equal(kernel_size("a"), STAGED + 5 * RECORD);
	put_records(fd, RECORDS + 5, 1);
	OK(syscall(SYS_flock, fd, LOCK_EX));
	assert_int_equal(kernel_size("a"), STAGED + 6 * RECORD);
	/* a range that nothing of the library's may fall to */
	far[0] = OK(dup2(fd, 70));
	far[1] = OK(dup2(fd, 71));
	OK(syscall(SYS_close_range, 70, ~0U, 0));
	FAILS(syscall(SYS_write, far[0], "", 1), EBADF);
	FAILS(syscall(SYS_write, far[1], "", 1), EBADF);
	put_records(fd, RECORDS + 6, 14);
	for (int i = 0; i < 4; i++) {
		OK(syscall(SYS_close, copies[i]));
		FAILS(syscall(SYS_close, copies[i]), EBADF);
	}
	OK(syscall(SYS_close, fd));
	FAILS(syscall(SYS_fcntl, fd, F_GETFD), EBADF);
	FAILS(syscall(SYS_dup, fd), EBADF);
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

/* Whatever asks for the size is told about what is staged. */
static void looking(void **state)
{
	struct statx stx;
	struct stat st;
	int fd = made("a");
	unsigned n = RECORDS;

	(void)state;
	for (int how = 0; how < 5; how++) {
		switch (how) {
		case 0: OK(syscall(SYS_fstat, fd, &st)); break;
		case 1: OK(syscall(SYS_newfstatat, AT_FDCWD, "a", &st, 0)); break;
		case 2:
			OK(syscall(SYS_statx, AT_FDCWD, "a", 0, STATX_SIZE, &stx));
			st.st_size = (off_t)stx.stx_size;
			break;
		case 3:
			if (HAVE_OLD)
				OK(syscall(SYS_stat, "a", &st));
			else
				OK(stat("a", &st));
			break;
		case 4:
			if (HAVE_OLD)
				OK(syscall(SYS_lstat, "a", &st));
			else
				OK(lstat("a", &st));
			break;
		}
		assert_int_equal(st.st_size, n * RECORD);
		put_records(fd, n, 3);
		n += 3;
	}
	OK(syscall(SYS_close, fd));
	check_file("a", 0, n);
	FAILS(syscall(SYS_statx, AT_FDCWD, "none", 0, STATX_SIZE, &stx), ENOENT);
	OK(unlink("a"));
}

static void syncing(void **state)
{
	int fd = made("a");
	unsigned n = RECORDS;

	(void)state;
	for (int how = 0; how < 5; how++) {
		switch (how) {
		case 0: OK(syscall(SYS_fsync, fd)); break;
		case 1: OK(syscall(SYS_fdatasync, fd)); break;
		case 2: OK(syscall(SYS_syncfs, fd)); break;
		case 3: OK(syscall(SYS_sync_file_range, fd, 0L, 0L, 2)); break;
		case 4: OK(syscall(SYS_sync)); break;
		}
		assert_int_equal(kernel_size("a"), n * RECORD);
		put_records(fd, n, 3);
		n += 3;
	}
	OK(syscall(SYS_close, fd));
	check_file("a", 0, n);
	FAILS(syscall(SYS_fsync, fd), EBADF);
	OK(unlink("a"));
}

static void sizes(void **state)
{
	struct rlimit old, limit;
	struct rlimit64 old64;
	int fd = made("a");

	(void)state;
	OK(syscall(SYS_ftruncate, fd, (long)RECORD));
	assert_int_equal(kernel_size("a"), RECORD);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), RECORD);
	put_records(fd, 1, RECORDS);
	OK(syscall(SYS_truncate, "a", 2L * RECORD));
	assert_int_equal(kernel_size("a"), 2 * RECORD);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), 2 * RECORD);
	put_records(fd, 2, RECORDS);
	OK(syscall(SYS_fallocate, fd, 0, 0L, 3L * STAGED));
	assert_int_equal(kernel_size("a"), 3 * STAGED);
	OK(syscall(SYS_ftruncate, fd, 2L * RECORD + STAGED));
	put_records(fd, RECORDS + 2, RECORDS);
	signal(SIGXFSZ, SIG_IGN);
	OK(getrlimit(RLIMIT_FSIZE, &old));
	limit = old;
	limit.rlim_cur = 2 * STAGED + 2 * RECORD;
	OK(syscall(SYS_setrlimit, RLIMIT_FSIZE, &limit));
	FAILS(syscall(SYS_write, fd, "x", 1), EFBIG);
	OK(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &old, &old64));
	assert_int_equal(old64.rlim_cur, limit.rlim_cur);
	/* what was accepted under the higher limit stays accepted */
	put_records(fd, 2 * RECORDS + 2, RECORDS);
	limit.rlim_cur = RECORD;
	OK(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &limit, NULL));
	assert_int_equal(kernel_size("a"), 3 * STAGED + 2 * RECORD);
	OK(syscall(SYS_prlimit64, 0, RLIMIT_FSIZE, &old, NULL));
	signal(SIGXFSZ, SIG_DFL);
	OK(syscall(SYS_close, fd));
	check_file("a", 0, 3 * RECORDS + 2);
	OK(unlink("a"));
}

/* What is staged lies under the hole, not over it. */
static void holes(void **state)
{
	char zeros[RECORD] = {0}, back[RECORD];
	int fd = made("a");

	(void)state;
	if (syscall(SYS_fallocate, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3L * RECORD,
	            (long)RECORD) < 0) {
		assert_int_equal(errno, EOPNOTSUPP);
		print_message("no holes on this file system\n");
		skip();
	}
	OK(syscall(SYS_close, fd));
	fd = OK(open("a", O_RDONLY));
	assert_int_equal(OK(pread(fd, back, RECORD, 3 * RECORD)), RECORD);
	assert_memory_equal(back, zeros, RECORD);
	OK(close(fd));
	OK(unlink("a"));
}

static void one_name(int how)
{
	int fd = made("a"), here = OK(open(".", O_RDONLY | O_DIRECTORY)), other;

	switch (how) {
	case 0: OK(syscall(SYS_renameat, here, "a", here, "b")); break;
	case 1: OK(syscall(SYS_renameat2, here, "a", here, "b", 0)); break;
	case 2:
		OK(close(OK(open("b", O_WRONLY | O_CREAT, 0600))));
		OK(syscall(SYS_renameat2, here, "a", here, "b", 2 /* RENAME_EXCHANGE */));
		assert_int_equal(kernel_size("b"), STAGED);
		OK(unlink("a"));
		break;
	case 3:
		OK(syscall(SYS_linkat, here, "a", here, "b", 0));
		assert_int_equal(kernel_size("b"), STAGED);
		put_records(fd, RECORDS, RECORDS);
		OK(syscall(SYS_unlinkat, here, "a", 0));
		assert_int_equal(kernel_size("b"), 2 * STAGED);
		break;
	case 4: OK(syscall(SYS_rename, "a", "b")); break;
	case 5:
		OK(syscall(SYS_link, "a", "b"));
		assert_int_equal(kernel_size("b"), STAGED);
		put_records(fd, RECORDS, RECORDS);
		OK(syscall(SYS_unlink, "a"));
		assert_int_equal(kernel_size("b"), 2 * STAGED);
		break;
	case 6:
		/* onto a file that is staged itself */
		other = made("b");
		OK(syscall(SYS_rename, "a", "b"));
		put_records(other, RECORDS, 1);
		OK(syscall(SYS_close, other));
		break;
	}
	if (how != 3 && how != 5) {
		assert_int_equal(kernel_size("b"), STAGED);
		put_records(fd, RECORDS, RECORDS);
	}
	OK(syscall(SYS_close, fd));
	assert_int_equal(kernel_size("b"), 2 * STAGED);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("b"));
	OK(close(here));
}

static void names(void **state)
{
	(void)state;
	for (int how = 0; how < (HAVE_OLD ? 7 : 4); how++)
		one_name(how);
	/* staging must not keep the directory; in a child, whose first staged file decides where that lies */
	for (int how = 0; how < (HAVE_OLD ? 2 : 1); how++) {
		pid_t pid;

		OK(mkdir("d", 0755));
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = open("d/a", O_RDWR | O_CREAT | O_CLOEXEC, 0600);

			child_puts(fd, 0, RECORDS);
			CHILD(syscall(SYS_unlinkat, AT_FDCWD, "d/a", 0) == 0);
			CHILD(syscall(SYS_close, fd) == 0);
			CHILD((how ? syscall(SYS_rmdir, "d")
			           : syscall(SYS_unlinkat, AT_FDCWD, "d", AT_REMOVEDIR)) == 0);
			_exit(0);
		}
		check_exit(pid, 0);
	}
	FAILS(syscall(SYS_unlinkat, AT_FDCWD, "d", AT_REMOVEDIR), ENOENT);
}

/* Nothing may reach the file after these that was written before: times would change. */
static void attributes(void **state)
{
	const struct timespec then[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	struct timeval then_tv[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	struct utimbuf then_buf = {1000, 1000};
	struct stat st;

	(void)state;
	for (int how = 0; how < (HAVE_OLD ? 5 : 2); how++) {
		int fd = made("a");

		switch (how) {
		case 0: OK(syscall(SYS_utimensat, AT_FDCWD, "a", then, 0)); break;
		case 1: OK(syscall(SYS_utimensat, fd, NULL, then, 0)); break;
		case 2: OK(syscall(SYS_utime, "a", &then_buf)); break;
		case 3: OK(syscall(SYS_utimes, "a", then_tv)); break;
		case 4: OK(syscall(SYS_futimesat, AT_FDCWD, "a", then_tv)); break;
		}
		OK(syscall(SYS_close, fd));
		OK(stat("a", &st));
		assert_int_equal(st.st_mtime, 1000);
		check_file("a", 0, RECORDS);
		OK(unlink("a"));
	}
}

static void rights(void **state)
{
	struct {
		uint64_t value;
		uint32_t size, flags;
	} value = {.value = (uint64_t)(uintptr_t) "1", .size = 1};
	uint64_t attributes[3] = {0};
	int fd = made("a");
	unsigned n = RECORDS;

	(void)state;
	for (int how = 0; how < 17; how++) {
		bool optional = false;
		long r = 0;

		errno = 0;
		switch (how) {
		case 0: r = syscall(SYS_fchmod, fd, 04711); break;
		case 1: r = syscall(SYS_fchmodat, AT_FDCWD, "a", 0600); break;
		case 2: r = syscall(SYS_fchown, fd, geteuid(), -1); break;
		case 3: r = syscall(SYS_fchownat, AT_FDCWD, "a", geteuid(), -1, 0); break;
		case 4: r = syscall(SYS_fchownat, fd, "", geteuid(), -1, AT_EMPTY_PATH); break;
		case 5: optional = true, r = syscall(SYS_setxattr, "a", "user.a", "1", 1, 0); break;
		case 6: optional = true, r = syscall(SYS_lsetxattr, "a", "user.b", "1", 1, 0); break;
		case 7: optional = true, r = syscall(SYS_fsetxattr, fd, "user.c", "1", 1, 0); break;
		case 8: optional = true, r = syscall(SYS_removexattr, "a", "user.a"); break;
		case 9: optional = true, r = syscall(SYS_lremovexattr, "a", "user.b"); break;
		case 10: optional = true, r = syscall(SYS_fremovexattr, fd, "user.c"); break;
		/* newer than some headers, and than some kernels */
		case 11: optional = true, r = syscall(452 /* fchmodat2 */, AT_FDCWD, "a", 0600, 0); break;
		case 12:
			optional = true, r = syscall(463 /* setxattrat */, fd, "", AT_EMPTY_PATH, "user.d",
			                             &value, sizeof value);
			break;
		case 13:
			optional = true, r = syscall(466 /* removexattrat */, AT_FDCWD, "a", 0, "user.d");
			break;
		case 14:
			optional = true,
			r = syscall(469 /* file_setattr */, AT_FDCWD, "a", &attributes, sizeof attributes, 0);
			break;
		case 15: optional = !HAVE_OLD, r = syscall(SYS_chmod, "a", 0640); break;
		case 16: optional = !HAVE_OLD, r = syscall(SYS_chown, "a", geteuid(), -1); break;
		}
		if (r < 0 && optional)
			print_message("%d: %s\n", how, strerror(errno));
		else if (r < 0)
			fail_msg("%d: %s", how, strerror(errno));
		if (r == 0)
			assert_int_equal(kernel_size("a"), n * RECORD);
		put_records(fd, n, 4);
		n += 4;
	}
	if (HAVE_OLD) {
		OK(syscall(SYS_lchown, "a", geteuid(), -1));
		assert_int_equal(kernel_size("a"), n * RECORD);
		put_records(fd, n, 4);
		n += 4;
	}
	/* refused, since it is no swap space; but it might have been */
	assert_int_equal(syscall(SYS_swapon, "a", 0), -1);
	assert_int_equal(kernel_size("a"), n * RECORD);
	OK(syscall(SYS_close, fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

static void moving(void **state)
{
	int fd = made("a"), out = OK(open("b", O_RDWR | O_CREAT | O_TRUNC, 0600)), pipes[2], left = 0;
	long page = sysconf(_SC_PAGESIZE);
	char *map, back[RECORD];
	off_t zero = 0;

	(void)state;
	OK(syscall(SYS_lseek, fd, 0L, SEEK_SET));
	OK(syscall(SYS_ioctl, fd, FIONREAD, &left));
	assert_int_equal(left, STAGED);
	OK(close(fd));
	fd = made("a");
	assert_int_equal(OK(syscall(SYS_sendfile, out, fd, &zero, (long)STAGED)), STAGED);
	OK(close(fd));
	check_file("b", 0, RECORDS);
	fd = made("a");
	zero = 0;
	assert_int_equal(OK(syscall(SYS_copy_file_range, fd, &zero, out, NULL, (long)STAGED, 0)), STAGED);
	assert_int_equal(kernel_size("b"), 2 * STAGED);
	OK(close(fd));
	fd = made("a");
	OK(pipe(pipes));
	zero = RECORD;
	assert_int_equal(OK(syscall(SYS_splice, fd, &zero, pipes[1], NULL, (long)RECORD, 0)), RECORD);
	assert_int_equal(read(pipes[0], back, RECORD), RECORD);
	check_records(back, 1, 1);
	OK(close(pipes[0]));
	OK(close(pipes[1]));
	OK(close(fd));
	/* all six arguments: a mapping that begins behind the first page */
	fd = made("c");
	put_records(fd, RECORDS, 100);
	map = (char *)OK(syscall(SYS_mmap, NULL, page, PROT_READ, MAP_SHARED, fd, page));
	check_records(map + RECORD - page % RECORD, (unsigned)(page / RECORD) + 1, 10);
	OK(munmap(map, (size_t)page));
	put_records(fd, RECORDS + 100, 1);
	OK(close(fd));
	check_file("c", 0, RECORDS + 101);
	OK(close(out));
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

static int sent_to_child(bool many)
{
	int ends[2], fd = made("a"), status;
	char control[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8))) = {0}, byte = 'x';
	struct iovec iov = {.iov_base = &byte, .iov_len = 1};
	struct mmsghdr message = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
	struct cmsghdr *c = (struct cmsghdr *)(void *)control;
	pid_t pid;

	/* the child is there first, so that only the message hands the file over */
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	OK(close(fd));
	fflush(stdout);
	pid = fork();
	message.msg_hdr.msg_control = control;
	message.msg_hdr.msg_controllen = sizeof control;
	if (pid == 0) {
		char record[RECORD];

		if (many)
			CHILD(syscall(SYS_recvmmsg, ends[1], &message, 1, 0, NULL) == 1);
		else
			CHILD(syscall(SYS_recvmsg, ends[1], &message.msg_hdr, 0) == 1);
		memcpy(&fd, CMSG_DATA(c), sizeof fd);
		record_fill(record, RECORDS);
		CHILD(write(fd, record, RECORD) == RECORD);
		_exit(0);
	}
	fd = made("a");
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (many)
		assert_int_equal(OK(syscall(SYS_sendmmsg, ends[0], &message, 1, 0)), 1);
	else
		assert_int_equal(OK(syscall(SYS_sendmsg, ends[0], &message.msg_hdr, 0)), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	OK(close(ends[0]));
	OK(close(ends[1]));
	return fd;
}

static void messages(void **state)
{
	(void)state;
	for (int many = 0; many < 2; many++) {
		int fd = sent_to_child(many);

		/* one offset for both */
		put_records(fd, RECORDS + 1, RECORDS);
		OK(close(fd));
		check_file("a", 0, 2 * RECORDS + 1);
		OK(unlink("a"));
	}
}

/* ---- processes ---- */

static long raw_fork(int how)
{
	struct clone_args args = {.exit_signal = SIGCHLD};

	switch (how) {
	case 0: return syscall(SYS_clone, (long)SIGCHLD, NULL, NULL, NULL, NULL);
	case 1: return syscall(SYS_clone3, &args, sizeof args);
	default: return syscall(SYS_fork);
	}
}

/* Both write through one description, one after the other. */
static void forking(void **state)
{
	(void)state;
	for (int how = 0; how < (HAVE_OLD ? 3 : 2); how++) {
		int fd = made("a"), own;
		long pid;

		fflush(stdout);
		pid = raw_fork(how);
		if (pid == 0) {
			child_puts(fd, RECORDS, RECORDS);
			own = open("b", O_RDWR | O_CREAT | O_TRUNC, 0600);
			child_puts(own, 0, RECORDS);
			syscall(SYS_exit_group, 3);
		}
		if (pid < 0 && errno == ENOSYS)
			print_message("way %d: no such system call\n", how);
		else
			check_exit((pid_t)OK(pid), 3);
		if (pid < 0)
			write_records(fd, RECORDS, RECORDS);
		else
			check_file("b", 0, RECORDS);
		put_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 3 * RECORDS);
		OK(unlink("a"));
		unlink("b");
	}
}

#if defined(__x86_64__)
/* What a child on a stack of its own returns to: it has no C to go on with. */
__asm__(".text\nchild_entry:\n\tmov $231, %eax\n\tmov $9, %edi\n\tsyscall\n");
extern char child_entry[];

static void own_stack(void **state)
{
	static char stack[4096] __attribute__((aligned(16)));
	int fd = made("a");
	void *entry = child_entry;
	int status;
	long pid;

	(void)state;
	memcpy(stack + 2048, &entry, sizeof entry);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		/* from here on nothing of this process is staged */
		pid = syscall(SYS_clone, (long)(CLONE_VM | CLONE_VFORK | SIGCHLD), stack + 2048, NULL, NULL,
		              NULL);
		CHILD(pid > 0);
		CHILD(waitpid((pid_t)pid, &status, 0) == pid && WEXITSTATUS(status) == 9);
		child_puts(fd, RECORDS, RECORDS);
		_exit(0);
	}
	check_exit((pid_t)pid, 0);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}
#endif

/* Our own program as "check COUNT". */
static int check_as_program(int count)
{
	char bytes[4 * STAGED], record[RECORD];
	int fd = open("a", O_RDONLY);

	if (fd < 0 || read(fd, bytes, sizeof bytes) != count * RECORD)
		return 1;
	for (int i = 0; i < count; i++) {
		record_fill(record, (unsigned)i);
		if (memcmp(bytes + i * RECORD, record, RECORD) != 0)
			return 2;
	}
	return 0;
}

static void executing(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
			char count[16];
			char *argv[] = {self, "check", count, NULL};
			/* without the library, which would bring what is missing into the file */
			char *env[] = {"LD_PRELOAD=", "FASTWRITE_INHERIT=0", NULL};

			child_puts(fd, 0, RECORDS);
			CHILD(syscall(SYS_execve, "./none", argv, environ) == -1 && errno == ENOENT);
			child_puts(fd, RECORDS, RECORDS);
			snprintf(count, sizeof count, "%u", 2 * RECORDS);
			if (how)
				syscall(SYS_execve, self, argv, env);
			else
				syscall(SYS_execveat, AT_FDCWD, self, argv, env, 0);
			_exit(98);
		}
		check_exit(pid, 0);
		OK(unlink("a"));
	}
}

static void ending(void **state)
{
	(void)state;
	for (int how = 0; how < 2; how++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

			child_puts(fd, 0, RECORDS);
			syscall(how ? SYS_exit_group : SYS_exit, 5);
		}
		check_exit(pid, 5);
		assert_int_equal(kernel_size("a"), STAGED);
		check_file("a", 0, RECORDS);
		OK(unlink("a"));
	}
}

/* What has nothing to do with files comes through unharmed. */
static void others(void **state)
{
	struct timespec none = {0};
	int word = 5;

	(void)state;
	assert_int_equal(OK(syscall(SYS_getpid)), getpid());
	FAILS(syscall(100000L), ENOSYS);
	FAILS(syscall(-1L), ENOSYS);
	FAILS(syscall(SYS_futex, &word, 128, 6, &none, NULL, 0), EAGAIN);
	/* six arguments of which the last two are looked at */
	FAILS(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &none, (void *)8), EFAULT);
	FAILS(syscall(SYS_write, -1, "x", 1), EBADF);
	FAILS(syscall(SYS_read, -1, &word, 1), EBADF);
	FAILS(syscall(SYS_openat, AT_FDCWD, "none/none", O_RDONLY), ENOENT);
}

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* All pages that were written are the kernel's, who may have them on the disk already (O_DIRECT). */
static void cached(void **state)
{
	enum { PAGES = 32 };
	struct {
		uint64_t offset, length;
	} all = {0, 0};
	struct {
		uint64_t cached, dirty, writeback, evicted, evicted_lately;
	} is = {0, 0, 0, 0, 0};
	int fd = open_staged("a", 0);

	(void)state;
	write_records(fd, RECORDS, PAGES * 4096 / RECORD - RECORDS);
	if (syscall(SYS_cachestat, fd, &all, &is, 0L) < 0) {
		assert_int_equal(errno, ENOSYS);
		print_message("this kernel has no cachestat\n");
		skip();
	}
	assert_true(is.cached > 0);
	assert_int_equal(kernel_size("a"), PAGES * 4096 / RECORD * RECORD);
	OK(close(fd));
	OK(unlink("a"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reading_and_writing),
		cmocka_unit_test(opening),
		cmocka_unit_test(descriptors),
		cmocka_unit_test(looking),
		cmocka_unit_test(syncing),
		cmocka_unit_test(cached),
		cmocka_unit_test(sizes),
		cmocka_unit_test(holes),
		cmocka_unit_test(names),
		cmocka_unit_test(attributes),
		cmocka_unit_test(rights),
		cmocka_unit_test(moving),
		cmocka_unit_test(messages),
		cmocka_unit_test(forking),
#if defined(__x86_64__)
		cmocka_unit_test(own_stack),
#endif
		cmocka_unit_test(executing),
		cmocka_unit_test(ending),
		cmocka_unit_test(others),
	};

	if (argc == 3 && strcmp(argv[1], "check") == 0)
		return check_as_program(atoi(argv[2]));
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
