// SPDX-License-Identifier: Apache-2.0
/* Truncation, allocation, the size limit, the stat family. */
#include "hook_test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

int __xstat(int version, const char *path, struct stat *out);
int __xstat64(int version, const char *path, struct stat64 *out);
int __lxstat(int version, const char *path, struct stat *out);
int __lxstat64(int version, const char *path, struct stat64 *out);
int __fxstat(int version, int fd, struct stat *out);
int __fxstat64(int version, int fd, struct stat64 *out);
int __fxstatat(int version, int dirfd, const char *path, struct stat *out, int flags);
int __fxstatat64(int version, int dirfd, const char *path, struct stat64 *out, int flags);

static off_t size_of(const char *path)
{
	struct stat st;

	OK(stat(path, &st));
	return st.st_size;
}

static void truncating(void **state)
{
	int fd = open_staged("a", 0);

	(void)state;
	OK(ftruncate(fd, 5 * RECORD));
	check_file("a", 0, 5);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED);
	OK(lseek(fd, 5 * RECORD, SEEK_SET));
	write_records(fd, 5, RECORDS);
	OK(ftruncate64(fd, 10 * RECORD));
	check_file("a", 0, 10);
	OK(lseek(fd, 0, SEEK_END));
	write_records(fd, 10, RECORDS);
	OK(truncate("a", 15 * RECORD));
	check_file("a", 0, 15);
	OK(lseek(fd, 0, SEEK_END));
	write_records(fd, 15, RECORDS);
	OK(truncate64("a", 20 * RECORD));
	check_file("a", 0, 20);
	OK(lseek(fd, 0, SEEK_END));
	write_records(fd, 20, RECORDS);
	OK(ftruncate(fd, 1 << 20));
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), 1 << 20);
	FAILS(ftruncate(fd, -1), EINVAL);
	FAILS(truncate("none", 0), ENOENT);
	OK(close(fd));
	assert_int_equal(size_of("a"), 1 << 20);
	OK(unlink("a"));
}

/* A size that the file system refuses changes nothing. */
static void refused(void **state)
{
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	int r;

	(void)state;
	write_records(fd, 0, RECORDS);
	errno = 0;
	r = ftruncate(fd, INT64_MAX);
	if (r == 0) { /* (the file system takes any size) */
		OK(ftruncate(fd, STAGED));
	} else {
		assert_int_equal(errno, EFBIG);
	}
	assert_int_equal(size_of("a"), STAGED);
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

static void allocating(void **state)
{
	int fd = open_staged("a", 0);
	char bytes[STAGED];

	(void)state;
	if (fallocate(fd, 0, 0, 1 << 16) < 0 && errno == EOPNOTSUPP) {
		print_message("no fallocate on this file system\n");
		close(fd);
		unlink("a");
		skip();
	}
	assert_int_equal(size_of("a"), 1 << 16);
	write_records(fd, RECORDS, RECORDS);
	OK(fallocate64(fd, FALLOC_FL_KEEP_SIZE, 1 << 16, 1 << 20));
	assert_int_equal(size_of("a"), 1 << 16);
	write_records(fd, 2 * RECORDS, RECORDS);
	assert_int_equal(OK(posix_fallocate(fd, 0, 1 << 17)), 0);
	assert_int_equal(size_of("a"), 1 << 17);
	write_records(fd, 3 * RECORDS, RECORDS);
	assert_int_equal(OK(posix_fallocate64(fd, 0, 1 << 18)), 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	OK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * STAGED, STAGED));
	assert_int_equal(OK(pread(fd, bytes, STAGED, 4 * STAGED)), STAGED);
	for (int i = 0; i < STAGED; i++)
		assert_int_equal(bytes[i], 0);
	assert_int_equal(OK(pread(fd, bytes, STAGED, 3 * STAGED)), STAGED);
	check_records(bytes, 3 * RECORDS, RECORDS);
	FAILS(fallocate(fd, 0, -1, 10), EINVAL);
	assert_int_equal(posix_fallocate(-1, 0, 10), EBADF);
	OK(close(fd));
	assert_int_equal(size_of("a"), 1 << 18);
	OK(unlink("a"));
}

static const char *volatile nowhere; /* NULL, but the compiler does not know */

static void looking(void **state)
{
	int fd = open_new("a", 0);
	unsigned n = 0;
	struct stat st;
	struct stat64 st64;
	struct statx stx;

	(void)state;
#define LOOK(call, member) \
	do { \
		write_records(fd, n, 3); \
		n += 3; \
		OK(call); \
		assert_int_equal(member, n *RECORD); \
	} while (0)
	for (int round = 0; round < 5; round++) {
		LOOK(stat("a", &st), st.st_size);
		LOOK(stat64("a", &st64), st64.st_size);
		LOOK(lstat("a", &st), st.st_size);
		LOOK(lstat64("a", &st64), st64.st_size);
		LOOK(fstat(fd, &st), st.st_size);
		LOOK(fstat64(fd, &st64), st64.st_size);
		LOOK(fstatat(AT_FDCWD, "a", &st, 0), st.st_size);
		LOOK(fstatat(fd, "", &st, AT_EMPTY_PATH), st.st_size);
		LOOK(fstatat64(AT_FDCWD, "a", &st64, AT_SYMLINK_NOFOLLOW), st64.st_size);
		LOOK(__xstat(1, "a", &st), st.st_size);
		LOOK(__xstat64(1, "a", &st64), st64.st_size);
		LOOK(__lxstat(1, "a", &st), st.st_size);
		LOOK(__lxstat64(1, "a", &st64), st64.st_size);
		LOOK(__fxstat(1, fd, &st), st.st_size);
		LOOK(__fxstat64(1, fd, &st64), st64.st_size);
		LOOK(__fxstatat(1, AT_FDCWD, "a", &st, 0), st.st_size);
		LOOK(__fxstatat64(1, AT_FDCWD, "a", &st64, 0), st64.st_size);
		LOOK(statx(AT_FDCWD, "a", 0, STATX_SIZE, &stx), (off_t)stx.stx_size);
		LOOK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx), (off_t)stx.stx_size);
	}
#undef LOOK
	FAILS(stat("none", &st), ENOENT);
	FAILS(fstat(-1, &st), EBADF);
	FAILS(stat(nowhere, &st), EFAULT);
	OK(close(fd));
	OK(unlink("a"));
}

static volatile sig_atomic_t signalled;
static void on_signal(int number) { signalled = number; }

/* Writing up to the limit and one byte beyond; the kernel cuts the write that crosses it. */
static void limited(void **state)
{
	struct rlimit old, limit;
	char record[RECORD];
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;

	(void)state;
	NOT_WITH_TSAN(TSAN_HOLDS_BACK);
	signal(SIGXFSZ, on_signal);
	OK(getrlimit(RLIMIT_FSIZE, &old));
	limit = old;
	limit.rlim_cur = 100 * RECORD + 30;
	OK(setrlimit(RLIMIT_FSIZE, &limit));
	signalled = 0;
	while (n < 100)
		write_records(fd, n++, 1);
	record_fill(record, n);
	assert_int_equal(OK(write(fd, record, RECORD)), 30);
	assert_int_equal(signalled, 0);
	FAILS(write(fd, record, RECORD), EFBIG);
	assert_int_equal(signalled, SIGXFSZ);
	FAILS(pwrite(fd, record, RECORD, 1 << 20), EFBIG);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 100 * RECORD + 30);
	OK(setrlimit(RLIMIT_FSIZE, &old));
	OK(lseek(fd, 100 * RECORD, SEEK_SET));
	write_records(fd, n, RECORDS);
	OK(close(fd));
	signal(SIGXFSZ, SIG_DFL);
	check_file("a", 0, 100 + RECORDS);
	OK(unlink("a"));
}

/* The file system may have no files as large: the kernel says so, and the bytes before are as they were. */
static void too_far(void **state)
{
	static const off_t far = 1L << 46;
	char record[RECORD];
	int fd = open_new("b", 0);
	ssize_t native, got;
	int error;

	(void)state;
	record_fill(record, 0);
	errno = 0;
	native = pwrite(fd, record, RECORD, far); /* a first write is not staged */
	error = errno;
	OK(close(fd));
	OK(unlink("b"));
	fd = open_staged("a", 0);
	errno = 0;
	got = pwrite(fd, record, RECORD, far);
	assert_int_equal(got, native);
	assert_int_equal(errno, error);
	assert_int_equal(OK(pwrite(fd, record, RECORD, 0)), RECORD);
	OK(ftruncate(fd, RECORDS * RECORD));
	OK(fsync(fd));
	OK(close(fd));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

/* A limit that comes when bytes are staged already does not take them back. */
static void limited_later(void **state)
{
	struct rlimit old, limit;
	int fd = open_staged("a", 0);

	(void)state;
	signal(SIGXFSZ, on_signal);
	OK(prlimit(0, RLIMIT_FSIZE, NULL, &old));
	limit = old;
	limit.rlim_cur = RECORD;
	OK(prlimit(0, RLIMIT_FSIZE, &limit, NULL));
	FAILS(write(fd, "x", 1), EFBIG);
	OK(close(fd));
	OK(prlimit(0, RLIMIT_FSIZE, &old, NULL));
	signal(SIGXFSZ, SIG_DFL);
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(truncating), cmocka_unit_test(refused), cmocka_unit_test(allocating),
		cmocka_unit_test(looking),    cmocka_unit_test(limited), cmocka_unit_test(limited_later),
		cmocka_unit_test(too_far),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
