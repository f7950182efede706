// SPDX-License-Identifier: Apache-2.0
/* Every form of write and read, on a file with staged bytes. */
#include "hook_test.h"

ssize_t __read_chk(int fd, void *buf, size_t size, size_t room);
ssize_t __pread_chk(int fd, void *buf, size_t size, off_t offset, size_t room);
ssize_t __pread64_chk(int fd, void *buf, size_t size, off_t offset, size_t room);
ssize_t __write(int fd, const void *buf, size_t size);
ssize_t __read(int fd, void *buf, size_t size);
ssize_t __pread64(int fd, void *buf, size_t size, off64_t offset);
ssize_t __pwrite64(int fd, const void *buf, size_t size, off64_t offset);

static char record[RECORD];

/* The record in two pieces, one of them empty in between. */
static struct iovec *pieces(unsigned number)
{
	static struct iovec iov[3];

	record_fill(record, number);
	iov[0] = (struct iovec){.iov_base = record, .iov_len = 33};
	iov[1] = (struct iovec){.iov_base = NULL, .iov_len = 0};
	iov[2] = (struct iovec){.iov_base = record + 33, .iov_len = RECORD - 33};
	return iov;
}

static void streams(void **state)
{
	int fd = open_new("a", 0);
	unsigned n = 0;

	(void)state;
	for (int round = 0; round < 20; round++) {
		record_fill(record, n++);
		assert_int_equal(OK(write(fd, record, RECORD)), RECORD);
		record_fill(record, n++);
		assert_int_equal(OK(__write(fd, record, RECORD)), RECORD);
		assert_int_equal(OK(writev(fd, pieces(n++), 3)), RECORD);
		assert_int_equal(OK(pwritev2(fd, pieces(n++), 3, -1, 0)), RECORD);
		assert_int_equal(OK(pwritev64v2(fd, pieces(n++), 3, -1, 0)), RECORD);
	}
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), n * RECORD);
	OK(close(fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

static void positions(void **state)
{
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;

	(void)state;
	for (int round = 0; round < 20; round++) {
		record_fill(record, n);
		assert_int_equal(OK(pwrite(fd, record, RECORD, n * RECORD)), RECORD);
		n++;
		record_fill(record, n);
		assert_int_equal(OK(pwrite64(fd, record, RECORD, n * RECORD)), RECORD);
		n++;
		record_fill(record, n);
		assert_int_equal(OK(__pwrite64(fd, record, RECORD, n * RECORD)), RECORD);
		n++;
		assert_int_equal(OK(pwritev(fd, pieces(n), 3, n * RECORD)), RECORD);
		n++;
		assert_int_equal(OK(pwritev64(fd, pieces(n), 3, n * RECORD)), RECORD);
		n++;
		assert_int_equal(OK(pwritev2(fd, pieces(n), 3, n * RECORD, 0)), RECORD);
		n++;
		assert_int_equal(OK(pwritev64v2(fd, pieces(n), 3, n * RECORD, RWF_DSYNC)), RECORD);
		n++;
	}
	/* none of them moved it */
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED);
	OK(close(fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

static void overwriting(void **state)
{
	char bytes[STAGED];
	int fd = open_staged("a", 0);

	(void)state;
	for (int i = RECORDS - 1; i >= 0; i--) {
		record_fill(record, 700 + (unsigned)i);
		assert_int_equal(OK(pwrite(fd, record, RECORD, i * RECORD)), RECORD);
	}
	assert_int_equal(OK(pread(fd, bytes, sizeof bytes, 0)), STAGED);
	check_records(bytes, 700, RECORDS);
	/* in the middle of what is there, across two records */
	assert_int_equal(OK(pwrite(fd, "ABCDEF", 6, RECORD - 3)), 6);
	assert_int_equal(OK(pwrite(fd, "xy", 2, RECORD - 1)), 2);
	assert_int_equal(OK(pread(fd, bytes, 6, RECORD - 3)), 6);
	assert_memory_equal(bytes, "ABxyEF", 6);
	OK(close(fd));
	OK(unlink("a"));
}

/* Reads what was just staged with each form in turn. */
static void reads(void **state)
{
	char bytes[2 * RECORD];
	struct iovec iov[2] = {{bytes, 40}, {bytes + 40, RECORD - 40}};
	int fd = open_new("a", 0);
	unsigned n = 0;

	(void)state;
#define CHECK(call) \
	do { \
		off_t at = n * RECORD; \
		write_records(fd, n, 2); \
		OK(lseek(fd, at, SEEK_SET)); \
		memset(bytes, 0, sizeof bytes); \
		assert_int_equal(OK(call), RECORD); \
		check_records(bytes, n, 1); \
		OK(lseek(fd, 0, SEEK_END)); \
		n += 2; \
	} while (0)
	for (int round = 0; round < 10; round++) {
		CHECK(read(fd, bytes, RECORD));
		CHECK(__read(fd, bytes, RECORD));
		CHECK(__read_chk(fd, bytes, RECORD, sizeof bytes));
		CHECK(readv(fd, iov, 2));
		CHECK(pread(fd, bytes, RECORD, at));
		CHECK(pread64(fd, bytes, RECORD, at));
		CHECK(__pread64(fd, bytes, RECORD, at));
		CHECK(__pread_chk(fd, bytes, RECORD, at, sizeof bytes));
		CHECK(__pread64_chk(fd, bytes, RECORD, at, sizeof bytes));
		CHECK(preadv(fd, iov, 2, at));
		CHECK(preadv64(fd, iov, 2, at));
		CHECK(preadv2(fd, iov, 2, at, 0));
		CHECK(preadv64v2(fd, iov, 2, at, 0));
		CHECK(preadv2(fd, iov, 2, -1, 0));
	}
#undef CHECK
	OK(close(fd));
	check_file("a", 0, n);
	OK(unlink("a"));
}

/* A short read at the end, and none behind it. */
static void end_of_file(void **state)
{
	char bytes[RECORD];
	int fd = open_staged("a", 0);

	(void)state;
	assert_int_equal(OK(pread(fd, bytes, RECORD, STAGED - 30)), 30);
	assert_int_equal(OK(pread(fd, bytes, RECORD, STAGED)), 0);
	assert_int_equal(OK(read(fd, bytes, RECORD)), 0);
	/* a hole reads as zeros */
	record_fill(record, 1);
	assert_int_equal(OK(pwrite(fd, record, RECORD, 100000)), RECORD);
	assert_int_equal(OK(pread(fd, bytes, RECORD, 50000)), RECORD);
	for (int i = 0; i < RECORD; i++)
		assert_int_equal(bytes[i], 0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), 100000 + RECORD);
	OK(close(fd));
	OK(unlink("a"));
}

/* Sizes around pages and blocks, large ones in between. */
static void sizes(void **state)
{
	static const size_t list[] = {1,     2,     511,    4095,   4096,   4097,   8192, 32767, 65535,
	                              65536, 65537, 131071, 131072, 131073, 200000, 7,    100};
	static char big[200000], back[200000];
	int fd = open_new("a", 0);
	size_t total = 0, at = 0;

	(void)state;
	for (int round = 0; round < 6; round++)
		for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
			memset(big, 'a' + (int)((i + (size_t)round) % 26), list[i]);
			assert_int_equal(OK(write(fd, big, list[i])), list[i]);
			total += list[i];
		}
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), total);
	for (int round = 0; round < 6; round++)
		for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
			memset(big, 'a' + (int)((i + (size_t)round) % 26), list[i]);
			assert_int_equal(OK(pread(fd, back, list[i], (off_t)at)), list[i]);
			assert_memory_equal(big, back, list[i]);
			at += list[i];
		}
	OK(close(fd));
	OK(unlink("a"));
}

static void appends(void **state)
{
	int fd = open_staged("a", O_APPEND);
	int second = OK(open("a", O_WRONLY | O_APPEND));
	unsigned n = RECORDS;

	(void)state;
	for (int round = 0; round < 10; round++) {
		write_records(fd, n++, 1);
		OK(lseek(fd, 0, SEEK_SET)); /* makes no difference */
		write_records(second, n++, 1);
		write_records(fd, n++, 1);
		assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), n * RECORD);
		/* the kernel appends whatever the offset says, and so must we */
		record_fill(record, n++);
		assert_int_equal(OK(pwrite(fd, record, RECORD, 0)), RECORD);
	}
	OK(close(fd));
	write_records(second, n++, 1);
	OK(close(second));
	check_file("a", 0, n);
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams), cmocka_unit_test(positions),   cmocka_unit_test(overwriting),
		cmocka_unit_test(reads),   cmocka_unit_test(end_of_file), cmocka_unit_test(sizes),
		cmocka_unit_test(appends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
