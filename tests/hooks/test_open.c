// SPDX-License-Identifier: Apache-2.0
/* Every way to open a file: what is written is there, under the right name and with the right mode. */
#include "hook_test.h"

#include <pthread.h>

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dirfd, const char *path, int flags);
int __openat64_2(int dirfd, const char *path, int flags);
int __open(const char *path, int flags, ...);
int __open64(const char *path, int flags, ...);

enum { NEW = O_RDWR | O_CREAT | O_EXCL };

/* The file is as big as what was written, at once for a reader, and after close. */
static void use(int fd, const char *path, mode_t mode)
{
	struct stat st;

	write_records(fd, 0, RECORDS);
	check_file(path, 0, RECORDS);
	write_records(fd, RECORDS, RECORDS);
	OK(fstat(fd, &st));
	assert_int_equal(st.st_size, 2 * STAGED);
	if (mode)
		assert_int_equal(st.st_mode & 07777, mode);
	OK(close(fd));
	check_file(path, 0, 2 * RECORDS);
	OK(unlink(path));
}

static void with_mode(void **state)
{
	(void)state;
	umask(022);
	use(OK(open("a", NEW, 0666)), "a", 0644);
	use(OK(open64("a", NEW, 0600)), "a", 0600);
	use(OK(__open("a", NEW, 0640)), "a", 0640);
	use(OK(__open64("a", NEW, 0604)), "a", 0604);
	use(OK(openat(AT_FDCWD, "a", NEW, 0666)), "a", 0644);
	use(OK(openat64(AT_FDCWD, "a", NEW, 0666)), "a", 0644);
	use(OK(creat("a", 0606)), "a", 0604);
	use(OK(creat64("a", 0660)), "a", 0640);
}

static void make(const char *path) { OK(close(OK(open(path, NEW, 0644)))); }

static void fortified(void **state)
{
	(void)state;
	make("a");
	use(OK(__open_2("a", O_RDWR)), "a", 0);
	make("a");
	use(OK(__open64_2("a", O_RDWR)), "a", 0);
	make("a");
	use(OK(__openat_2(AT_FDCWD, "a", O_RDWR)), "a", 0);
	make("a");
	use(OK(__openat64_2(AT_FDCWD, "a", O_RDWR)), "a", 0);
}

static void below_a_directory(void **state)
{
	int dir;

	(void)state;
	OK(mkdir("d", 0755));
	dir = OK(open("d", O_RDONLY | O_DIRECTORY));
	use(OK(openat(dir, "a", NEW, 0644)), "d/a", 0644);
	use(OK(openat64(dir, "a", NEW, 0644)), "d/a", 0644);
	make("d/a");
	use(OK(__openat_2(dir, "a", O_RDWR)), "d/a", 0);
	OK(close(dir));
	OK(rmdir("d"));
}

static void through_a_link(void **state)
{
	int fd;

	(void)state;
	make("a");
	OK(symlink("a", "l"));
	fd = OK(open("l", O_RDWR));
	write_records(fd, 0, RECORDS);
	check_file("l", 0, RECORDS);
	check_file("a", 0, RECORDS);
	OK(close(fd));
	OK(unlink("l"));
	OK(unlink("a"));
}

static void temporary(int (*make_one)(char *), const char *pattern)
{
	char path[64];

	snprintf(path, sizeof path, "%s", pattern);
	use(OK(make_one(path)), path, 0600);
}

static void temporary_files(void **state)
{
	char path[64];

	(void)state;
	temporary(mkstemp, "aXXXXXX");
	temporary(mkstemp64, "aXXXXXX");
	strcpy(path, "aXXXXXX");
	use(OK(mkostemp(path, O_APPEND | O_CLOEXEC)), path, 0600);
	strcpy(path, "aXXXXXX");
	use(OK(mkostemp64(path, O_CLOEXEC)), path, 0600);
	strcpy(path, "aXXXXXX.log");
	use(OK(mkstemps(path, 4)), path, 0600);
	strcpy(path, "aXXXXXX.log");
	use(OK(mkstemps64(path, 4)), path, 0600);
	strcpy(path, "aXXXXXX.log");
	use(OK(mkostemps(path, 4, O_CLOEXEC)), path, 0600);
	strcpy(path, "aXXXXXX.log");
	use(OK(mkostemps64(path, 4, O_APPEND)), path, 0600);
}

static void without_a_name(void **state)
{
	char bytes[STAGED];
	int fd = open(".", O_TMPFILE | O_RDWR, 0600);

	(void)state;
	if (fd < 0) {
		print_message("no O_TMPFILE on this file system\n");
		skip();
	}
	write_records(fd, 0, RECORDS);
	assert_int_equal(OK(pread(fd, bytes, sizeof bytes, 0)), STAGED);
	check_records(bytes, 0, RECORDS);
	OK(close(fd));
}

static void truncating(void **state)
{
	int first, second;
	struct stat st;

	(void)state;
	first = open_staged("a", 0);
	second = OK(open("a", O_WRONLY | O_TRUNC));
	OK(fstat(first, &st));
	assert_int_equal(st.st_size, 0);
	write_records(second, 500, RECORDS);
	check_file("a", 500, RECORDS);
	/* the first one stands where it stood */
	assert_int_equal(OK(lseek(first, 0, SEEK_CUR)), STAGED);
	write_records(first, 500 + RECORDS, RECORDS);
	check_file("a", 500, 2 * RECORDS);
	OK(close(OK(creat("a", 0644))));
	OK(fstat(first, &st));
	assert_int_equal(st.st_size, 0);
	OK(close(first));
	OK(close(second));
	OK(stat("a", &st));
	assert_int_equal(st.st_size, 0);
	OK(unlink("a"));
}

static void readers(void **state)
{
	char bytes[STAGED];
	int before, writer, after;

	(void)state;
	make("a");
	before = OK(open("a", O_RDONLY));
	writer = OK(open("a", O_WRONLY));
	write_records(writer, 0, RECORDS);
	assert_int_equal(OK(read(before, bytes, sizeof bytes)), STAGED);
	check_records(bytes, 0, RECORDS);
	assert_int_equal(OK(read(before, bytes, sizeof bytes)), 0);
	write_records(writer, RECORDS, RECORDS);
	after = OK(open("a", O_RDONLY));
	assert_int_equal(OK(pread(after, bytes, sizeof bytes, STAGED)), STAGED);
	check_records(bytes, RECORDS, RECORDS);
	assert_int_equal(OK(read(before, bytes, sizeof bytes)), STAGED);
	check_records(bytes, RECORDS, RECORDS);
	write_records(writer, 2 * RECORDS, RECORDS);
	assert_int_equal(OK(lseek(after, 0, SEEK_END)), 3 * STAGED);
	OK(close(before));
	OK(close(after));
	OK(close(writer));
	check_file("a", 0, 3 * RECORDS);
	OK(unlink("a"));
}

static const char *volatile nowhere; /* NULL, but the compiler does not know */

static void as_refused(void **state)
{
	(void)state;
	FAILS(open("none", O_RDWR), ENOENT);
	FAILS(open(nowhere, O_RDWR), EFAULT);
	FAILS(openat(-1, "none", O_RDWR | O_CREAT, 0644), EBADF);
	make("a");
	FAILS(open("a", NEW, 0644), EEXIST);
	FAILS(open("a/b", O_RDWR), ENOTDIR);
	FAILS(open(".", O_RDWR), EISDIR);
	OK(unlink("a"));
}

static int second_by_open(int fd, const char *path)
{
	(void)fd;
	return open(path, O_RDONLY | O_CLOEXEC);
}

static int second_by_number(int fd, const char *path)
{
	(void)fd;
	return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
}

static int second_by_copy(int fd, const char *path)
{
	(void)path;
	return dup(fd);
}

static int second_by_stream(int fd, const char *path)
{
	FILE *stream = fopen(path, "r");
	int copy = stream ? dup(fileno(stream)) : -1;

	(void)fd;
	if (stream)
		fclose(stream);
	return copy;
}

static int second_by_process(int fd, const char *path)
{
	int self = (int)syscall(SYS_pidfd_open, getpid(), 0), copy;

	(void)path;
	copy = (int)syscall(SYS_pidfd_getfd, self, fd, 0);
	close(self);
	/* (a sandbox may forbid it) */
	return copy >= 0 ? copy : dup(fd);
}

/* The file is new, and has two descriptors before its first write. */
static void second_before_the_first_write(void **state)
{
	static int (*const ways[])(int fd, const char *path) = {
		second_by_open, second_by_number, second_by_copy, second_by_stream, second_by_process};
	int other = open_staged("b", 0);

	(void)state;
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++)
		for (int i = 0; i < 3; i++) {
			char record[RECORD] = "";
			int fd, second;

			write_records(other, (unsigned)i, 1);
			fd = OK(open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
			second = ways[way](fd, "a");
			assert_true(second >= 0);
			write_records(fd, 0, 3);
			assert_int_equal(pread(second, record, RECORD, 2 * RECORD), RECORD);
			check_records(record, 2, 1);
			OK(close(fd));
			OK(close(second));
			OK(unlink("a"));
		}
	OK(close(other));
	OK(unlink("b"));
}

/* O_ACCMODE asks for both rights and gives none. */
static void with_no_access(void **state)
{
	int other = open_staged("b", 0), fd = OK(open("a", O_ACCMODE | O_CREAT | O_CLOEXEC, 0644));
	char byte = 'x';

	(void)state;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(write(fd, &byte, 1), -1);
		assert_int_equal(errno, EBADF);
		assert_int_equal(pwrite(fd, &byte, 1, 0), -1);
		assert_int_equal(errno, EBADF);
		assert_int_equal(read(fd, &byte, 1), -1);
		assert_int_equal(errno, EBADF);
	}
	OK(close(fd));
	OK(close(other));
	OK(unlink("a"));
	OK(unlink("b"));
}

enum { MAKES = 500 };

/* Makes the file, which the other thread makes and removes, too. */
static void *make_and_remove(void *failed)
{
	for (int i = 0; i < MAKES; i++) {
		int fd = open("a", O_RDWR | O_CREAT | O_CLOEXEC, 0644);

		if (fd < 0 || write(fd, "x", 1) != 1 || close(fd) < 0 ||
		    (unlink("a") < 0 && errno != ENOENT)) {
			*(int *)failed = errno;
			break;
		}
	}
	return NULL;
}

/* An open that found no file, and finds one when it makes it. */
static void two_threads_make_it(void **state)
{
	int other = open_staged("b", 0), failed[2] = {0, 0};
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, make_and_remove, &failed[1]), 0);
	make_and_remove(&failed[0]);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(failed[0], 0);
	assert_int_equal(failed[1], 0);
	OK(close(other));
	OK(unlink("b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(with_mode),         cmocka_unit_test(fortified),
		cmocka_unit_test(below_a_directory), cmocka_unit_test(through_a_link),
		cmocka_unit_test(temporary_files),   cmocka_unit_test(without_a_name),
		cmocka_unit_test(truncating),        cmocka_unit_test(readers),
		cmocka_unit_test(as_refused),        cmocka_unit_test(second_before_the_first_write),
		cmocka_unit_test(with_no_access),    cmocka_unit_test(two_threads_make_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
