// SPDX-License-Identifier: Apache-2.0
/* Rarer forms of calls whose usual form another program tests: other names, fortified, for large files. */
#include "hook_test.h"

#include <aio.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/xattr.h>

int __close(int fd);
int __dup2(int oldfd, int newfd);
int __fcntl(int fd, int cmd, ...);
off_t __lseek(int fd, off_t offset, int whence);
int __dprintf_chk(int fd, int flag, const char *format, ...);
int __vdprintf_chk(int fd, int flag, const char *format, va_list args);

static void other_names(void **state)
{
	int fd = open_staged("a", 0), copy;

	(void)state;
	copy = OK(__dup2(fd, 77));
	assert_int_equal(OK(__lseek(copy, 0, SEEK_CUR)), STAGED);
	write_records(copy, RECORDS, RECORDS);
	OK(__close(fd));
	assert_int_equal(OK(__fcntl(copy, F_GETFL)) & O_ACCMODE, O_RDWR);
	assert_int_equal(OK(fcntl64(copy, F_GETFL)) & O_ACCMODE, O_RDWR);
	fd = OK(fcntl64(copy, F_DUPFD, 80));
	write_records(fd, 2 * RECORDS, RECORDS);
	OK(lockf64(fd, F_LOCK, 0));
	write_records(copy, 3 * RECORDS, RECORDS);
	OK(lockf64(fd, F_ULOCK, 0));
	check_file("a", 0, 4 * RECORDS);
	OK(__close(fd));
	OK(__close(copy));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

static int print_by(int (*print)(int, const char *, va_list), int fd, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = print(fd, format, args);
	va_end(args);
	return r;
}

static int fortified(int fd, const char *format, va_list args) { return __vdprintf_chk(fd, 1, format, args); }

static void printing(void **state)
{
	char record[RECORD];

	(void)state;
	for (int how = 0; how < 3; how++) {
		int fd = open_staged("a", 0);

		for (unsigned i = 0; i < RECORDS; i++) {
			record_fill(record, RECORDS + i);
			if (how == 0)
				assert_int_equal(__dprintf_chk(fd, 1, "%.*s", RECORD, record), RECORD);
			else
				assert_int_equal(
					print_by(how == 1 ? vdprintf : fortified, fd, "%.*s", RECORD, record),
					RECORD);
		}
		write_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 3 * RECORDS);
		OK(unlink("a"));
	}
}

static void reopening(void **state)
{
	char record[RECORD];
	FILE *(*const list[])(const char *, const char *, FILE *) = {freopen, freopen64};
	FILE *stream;

	(void)state;
	for (size_t how = 0; how < 2; how++) {
		int fd = open_staged("a", 0);

		stream = how ? fopen64("b", "w") : fopen("b", "w");
		assert_non_null(stream);
		stream = list[how]("a", "a", stream);
		assert_non_null(stream);
		for (unsigned i = 0; i < RECORDS; i++) {
			record_fill(record, RECORDS + i);
			assert_int_equal(fwrite(record, 1, RECORD, stream), RECORD);
		}
		assert_int_equal(fclose(stream), 0);
		assert_int_equal(OK(lseek(fd, 0, SEEK_END)), 2 * STAGED);
		write_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 3 * RECORDS);
		OK(unlink("a"));
		OK(unlink("b"));
	}
}

static void finish(struct aiocb *cb, ssize_t expected)
{
	const struct aiocb *list[1] = {cb};

	while (aio_error(cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	assert_int_equal(aio_return(cb), expected);
}

static void asynchronous(void **state)
{
	char record[RECORD], back[RECORD];
	struct aiocb cb, *one[1] = {&cb};
	struct aiocb64 cb64, *one64[1] = {&cb64};
	int fd;

	(void)state;
	for (int how = 0; how < 5; how++) {
		fd = open_staged("a", 0);
		record_fill(record, RECORDS);
		cb = (struct aiocb){
			.aio_fildes = fd, .aio_buf = record, .aio_nbytes = RECORD, .aio_offset = STAGED};
		cb.aio_lio_opcode = LIO_WRITE;
		memset(&cb64, 0, sizeof cb64);
		memcpy(&cb64, &cb, sizeof cb < sizeof cb64 ? sizeof cb : sizeof cb64);
		switch (how) {
		case 0: OK(aio_write64(&cb64)); break;
		case 1: OK(lio_listio(LIO_WAIT, one, 1, NULL)); break;
		case 2: OK(lio_listio64(LIO_WAIT, one64, 1, NULL)); break;
		default:
			/* reads see what is staged */
			cb.aio_buf = back;
			cb.aio_offset = STAGED - RECORD;
			memcpy(&cb64, &cb, sizeof cb);
			if (how == 3)
				OK(aio_read(&cb));
			else
				OK(aio_read64(&cb64));
		}
		if (how == 1 || how == 3)
			finish(&cb, RECORD);
		else
			finish((struct aiocb *)(void *)&cb64, RECORD);
		if (how >= 3)
			check_records(back, RECORDS - 1, 1);
		OK(lseek(fd, 0, SEEK_END));
		write_records(fd, how >= 3 ? RECORDS : RECORDS + 1, RECORDS);
		OK(close(fd));
		check_file("a", 0, how >= 3 ? 2 * RECORDS : 2 * RECORDS + 1);
		OK(unlink("a"));
	}
}

static void attributes(void **state)
{
	char value[8] = "";
	int fd = open_staged("a", 0);

	(void)state;
	OK(lchown("a", geteuid(), getegid()));
	if (fsetxattr(fd, "user.a", "1", 1, 0) < 0 && errno == EOPNOTSUPP) {
		print_message("no user attributes on this file system\n");
		close(fd);
		unlink("a");
		skip();
	}
	write_records(fd, RECORDS, RECORDS);
	OK(setxattr("a", "user.b", "22", 2, 0));
	write_records(fd, 2 * RECORDS, RECORDS);
	OK(lsetxattr("a", "user.c", "333", 3, 0));
	OK(close(fd));
	assert_int_equal(OK(getxattr("a", "user.b", value, sizeof value)), 2);
	assert_memory_equal(value, "22", 2);
	check_file("a", 0, 3 * RECORDS);
	OK(unlink("a"));
}

static void large(void **state)
{
	struct rlimit64 old, limit;
	int fd = open_staged("a", 0);
	char *map = OK((char *)mmap64(NULL, STAGED, PROT_READ, MAP_PRIVATE, fd, 0));

	(void)state;
	check_records(map, 0, RECORDS);
	OK(munmap(map, STAGED));
	OK(close(fd));
	fd = open_staged("b", 0);
	signal(SIGXFSZ, SIG_IGN);
	OK(prlimit64(0, RLIMIT_FSIZE, NULL, &old));
	limit = old;
	limit.rlim_cur = STAGED;
	OK(setrlimit64(RLIMIT_FSIZE, &limit));
	FAILS(write(fd, "x", 1), EFBIG);
	OK(prlimit64(0, RLIMIT_FSIZE, &old, NULL));
	write_records(fd, RECORDS, RECORDS);
	signal(SIGXFSZ, SIG_DFL);
	OK(close(fd));
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(other_names),  cmocka_unit_test(printing),   cmocka_unit_test(reopening),
		cmocka_unit_test(asynchronous), cmocka_unit_test(attributes), cmocka_unit_test(large),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
