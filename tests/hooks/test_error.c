// SPDX-License-Identifier: Apache-2.0
/* What the kernel refuses is refused, with the same error, also in the middle of staging. */
#include "hook_test.h"

#include <limits.h>
#include <signal.h>
#include <sys/mman.h>

static void *volatile nowhere; /* NULL, but the compiler does not know */

static void bad_buffers(void **state)
{
	struct iovec iov[2] = {{"x", 1}, {NULL, 10}};
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;

	(void)state;
	for (int round = 0; round < 3; round++) {
		FAILS(write(fd, nowhere, RECORD), EFAULT);
		write_records(fd, n++, 1);
		FAILS(pwrite(fd, nowhere, RECORD, 0), EFAULT);
		write_records(fd, n++, 1);
		FAILS(writev(fd, nowhere, 2), EFAULT);
		write_records(fd, n++, 1);
		FAILS(preadv(fd, nowhere, 1, 0), EFAULT);
		write_records(fd, n++, 1);
		FAILS(pread(fd, nowhere, RECORD, 0), EFAULT);
		write_records(fd, n++, 1);
	}
	/* nothing at all is no error, wherever it points */
	assert_int_equal(OK(write(fd, nowhere, 0)), 0);
	assert_int_equal(OK(writev(fd, iov, 0)), 0);
	write_records(fd, n++, 1);
	OK(close(fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

enum { PAGE = 65536 }; /* of any machine */

static int forbid(char *page) { return mprotect(page, PAGE, PROT_READ); }
static int forbid_all(char *page) { return mprotect(page, PAGE, PROT_NONE); }
static int forbid_with_key(char *page) { return pkey_mprotect(page, PAGE, PROT_READ, -1); }
static int forbid_by_number(char *page) { return (int)syscall(SYS_mprotect, page, PAGE, PROT_READ); }
static int forbid_with_key_by_number(char *page)
{
	return (int)syscall(SYS_pkey_mprotect, page, PAGE, PROT_READ, -1);
}

static int map_over(char *page)
{
	return mmap(page, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page ? 0 : -1;
}

static int map_over_by_number(char *page)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;

	return (char *)syscall(SYS_mmap, page, PAGE, PROT_READ, flags, -1, 0) == page ? 0 : -1;
}

/* Behind the end of a file nothing can be written, whatever the mapping allows. */
static int map_file_over(char *page)
{
	int fd = OK(memfd_create("empty", MFD_CLOEXEC));
	int prot = PROT_READ | PROT_WRITE;
	bool there = mmap(page, PAGE, prot, MAP_PRIVATE | MAP_FIXED, fd, 0) == page;

	OK(close(fd));
	return there ? 0 : -1;
}

/* A garbage collector protects memory that was read into before, and waits for the error. */
static void protected_buffers(void **state)
{
	static int (*const ways[])(char *) = {
		forbid,   forbid_all,         forbid_with_key, forbid_by_number, forbid_with_key_by_number,
		map_over, map_over_by_number, map_file_over,
	};
	char *page = OK((char *)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int fd = open_staged("a", 0);
	char record[RECORD];

	(void)state;
	record_fill(record, 0);
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
		/* (staged again: the library may have written it to the file meanwhile) */
		assert_int_equal(OK(pwrite(fd, record, RECORD, 0)), RECORD);
		for (int k = 0; k < 2; k++) {
			assert_int_equal(OK(pread(fd, page, RECORD, 0)), RECORD);
			check_records(page, 0, 1);
		}
		/* (aarch64 has no protection keys before Linux 6.12) */
		if (ways[i](page) < 0) {
			assert_int_equal(errno, ENOSYS);
			continue;
		}
		FAILS(pread(fd, page, RECORD, 0), EFAULT);
		OK((char *)mmap(page, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
		                -1, 0));
	}
	OK(close(fd));
	OK(munmap(page, PAGE));
	OK(unlink("a"));
}

static void bad_vectors(void **state)
{
	static struct iovec many[1025];
	volatile int negative = -1; /* the compiler would warn */
	char record[RECORD];
	struct iovec iov[2] = {{record, RECORD}, {record, (size_t)-1}};
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;

	(void)state;
	for (int round = 0; round < 3; round++) {
		FAILS(writev(fd, iov, negative), EINVAL);
		FAILS(writev(fd, iov, 2), EINVAL);
		write_records(fd, n++, 1);
		FAILS(writev(fd, many, 1025), EINVAL);
		FAILS(pwritev(fd, iov, 1, -5), EINVAL);
		write_records(fd, n++, 1);
		FAILS(pwrite(fd, record, RECORD, -1), EINVAL);
		FAILS(pread(fd, record, RECORD, -1), EINVAL);
		write_records(fd, n++, 1);
		FAILS(pwritev2(fd, iov, 1, 0, 0x40000000), EOPNOTSUPP);
		write_records(fd, n++, 1);
	}
	OK(close(fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

/* The kernel looks at the whole length of one buffer before it cuts the length to what a call can take. */
static void lengths_beyond_memory(void **state)
{
	const volatile size_t lengths[] = {SSIZE_MAX, SIZE_MAX};
	struct iovec iov[2] = {{"hello", 5}, {(void *)-409600L, 0}};
	char record[RECORD];
	struct stat st;

	(void)state;
	for (int staged = 0; staged < 2; staged++) {
		int fd = staged ? open_staged("a", 0) : open_new("a", 0);

		for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
			OK(lseek(fd, 0, SEEK_SET));
			FAILS(read(fd, record, lengths[i]), EFAULT);
			FAILS(write(fd, record, lengths[i]), EFAULT);
			FAILS(pread(fd, record, lengths[i], 0), EFAULT);
			FAILS(pwrite(fd, record, lengths[i], 0), EFAULT);
			assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 0);
			write_records(fd, 0, 1);
		}
		FAILS(pread(fd, record, 10, INT64_MAX - 5), EINVAL);
		FAILS(writev(fd, iov, 2), EFAULT);
		FAILS(pwritev(fd, iov, 2, 0), EFAULT);
		OK(fstat(fd, &st));
		assert_int_equal(st.st_size, staged ? STAGED : RECORD);
		write_records(fd, 1, 1);
		OK(close(fd));
		check_file("a", 0, staged ? RECORDS : 2);
	}
	OK(unlink("a"));
}

static void wrong_access(void **state)
{
	char record[RECORD];
	int fd = open_staged("a", 0);
	int reader = OK(open("a", O_RDONLY)), writer = OK(open("a", O_WRONLY));

	(void)state;
	FAILS(write(reader, "x", 1), EBADF);
	FAILS(pwrite(reader, "x", 1, 0), EBADF);
	FAILS(ftruncate(reader, 0), EINVAL);
	FAILS(read(writer, record, RECORD), EBADF);
	FAILS(pread(writer, record, RECORD, 0), EBADF);
	write_records(fd, RECORDS, RECORDS);
	FAILS(write(reader, "x", 1), EBADF);
	OK(close(reader));
	OK(close(writer));
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

static void direct(void **state)
{
	static char buffer[2 * 4096] __attribute__((aligned(4096)));
	int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0644);
	char *back;
	size_t size;

	(void)state;
	if (fd < 0) {
		assert_int_equal(errno, EINVAL);
		print_message("no O_DIRECT on this file system\n");
		skip();
	}
	for (int i = 0; i < 50; i++) {
		memset(buffer, 'a' + i % 26, 4096);
		assert_int_equal(OK(write(fd, buffer, 4096)), 4096);
	}
	if (write(fd, buffer, 100) == 100) {
		print_message("this file system takes any size with O_DIRECT\n");
		close(fd);
		unlink("a");
		skip();
	}
	assert_int_equal(errno, EINVAL);
	FAILS(write(fd, buffer + 1, 4096), EINVAL);
	FAILS(pwrite(fd, buffer, 4096, 100), EINVAL);
	memset(buffer, 'Z', 4096);
	assert_int_equal(OK(write(fd, buffer, 4096)), 4096);
	FAILS(write(fd, buffer, 4095), EINVAL);
	assert_int_equal(OK(fcntl(fd, F_GETFL)) & O_DIRECT, O_DIRECT);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 51 * 4096);
	assert_int_equal(OK(pread(fd, buffer + 4096, 4096, 49 * 4096)), 4096);
	assert_int_equal(buffer[4096], 'a' + 49 % 26);
	/* without it any size will do */
	OK(fcntl(fd, F_SETFL, 0));
	for (int i = 0; i < 10; i++)
		assert_int_equal(OK(write(fd, "0123456789", 10)), 10);
	OK(close(fd));
	back = file_bytes("a", &size);
	assert_int_equal(size, 51 * 4096 + 100);
	for (size_t i = 0; i < 51 * 4096; i++)
		if (back[i] != (i / 4096 == 50 ? 'Z' : (char)('a' + i / 4096 % 26)))
			fail_msg("byte %zu is wrong", i);
	assert_memory_equal(back + 51 * 4096, "0123456789", 10);
	free(back);
	OK(unlink("a"));
}

/* Files that are never staged: what is not regular, what does not match. */
static void others(void **state)
{
	char byte;
	int ends[2], fd;

	(void)state;
	OK(pipe(ends));
	for (int i = 0; i < 10; i++)
		assert_int_equal(OK(write(ends[1], "x", 1)), 1);
	assert_int_equal(OK(read(ends[0], &byte, 1)), 1);
	FAILS(lseek(ends[0], 0, SEEK_CUR), ESPIPE);
	FAILS(pwrite(ends[1], "x", 1, 0), ESPIPE);
	OK(close(ends[0]));
	signal(SIGPIPE, SIG_IGN);
	FAILS(write(ends[1], "x", 1), EPIPE);
	signal(SIGPIPE, SIG_DFL);
	OK(close(ends[1]));
	OK(mkfifo("p", 0600));
	fd = OK(open("p", O_RDWR | O_NONBLOCK));
	for (int i = 0; i < 10; i++)
		assert_int_equal(OK(write(fd, "x", 1)), 1);
	OK(close(fd));
	OK(unlink("p"));
	fd = OK(open("/dev/null", O_RDWR));
	for (int i = 0; i < 10; i++)
		assert_int_equal(OK(write(fd, "x", 1)), 1);
	OK(close(fd));
	fd = OK(open("/dev/full", O_WRONLY));
	for (int i = 0; i < 3; i++)
		FAILS(write(fd, "x", 1), ENOSPC);
	OK(close(fd));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_buffers),  cmocka_unit_test(protected_buffers),
		cmocka_unit_test(bad_vectors),  cmocka_unit_test(lengths_beyond_memory),
		cmocka_unit_test(wrong_access), cmocka_unit_test(direct),
		cmocka_unit_test(others),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
