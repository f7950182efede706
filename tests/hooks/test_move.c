// SPDX-License-Identifier: Apache-2.0
/* Bytes that move around write and read: mappings, sendfile, splice, copies, streams on a descriptor, aio. */
#include "hook_test.h"

#include <aio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

static void mapping(void **state)
{
	int fd = open_staged("a", 0);
	char *map = OK((char *)mmap(NULL, STAGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));

	(void)state;
	check_records(map, 0, RECORDS);
	write_records(fd, RECORDS, RECORDS);
	OK(lseek(fd, 0, SEEK_SET));
	write_records(fd, 800, RECORDS);
	/* what is written shows in the mapping at once */
	check_records(map, 800, RECORDS);
	record_fill(map, 3);
	OK(msync(map, STAGED, MS_SYNC));
	OK(close(fd));
	OK(munmap(map, STAGED));
	fd = OK(open("a", O_RDONLY));
	map = OK((char *)mmap(NULL, 2 * STAGED, PROT_READ, MAP_PRIVATE, fd, 0));
	OK(close(fd));
	check_records(map, 3, 1);
	check_records(map + RECORD, 801, RECORDS - 1);
	check_records(map + STAGED, RECORDS, RECORDS);
	OK(munmap(map, 2 * STAGED));
	OK(unlink("a"));
}

/* Mapped first, staged never: and still right. */
static void mapped_before(void **state)
{
	int fd = open_new("a", 0);
	char *map;

	(void)state;
	OK(ftruncate(fd, STAGED));
	map = OK((char *)mmap(NULL, STAGED, PROT_READ, MAP_SHARED, fd, 0));
	for (unsigned i = 0; i < RECORDS; i++) {
		write_records(fd, i, 1);
		check_records(map, 0, i + 1);
	}
	OK(munmap(map, STAGED));
	OK(close(fd));
	OK(unlink("a"));
}

static int close_fd(int fd) { return close(fd); }
static int close_by_number(int fd) { return (int)syscall(SYS_close, fd); }
static int close_as_range(int fd) { return (int)syscall(SYS_close_range, fd, fd, 0); }
static int close_stream(int fd) { return fclose(fdopen(fd, "r+")); }

/* fd had the file "a" mapped, and names another file with staged bytes now. */
static void check_replaced(int fd)
{
	char *map = OK((char *)mmap(NULL, 2 * STAGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));

	check_records(map, 0, RECORDS);
	write_records(fd, RECORDS, RECORDS);
	check_records(map, 0, 2 * RECORDS);
	OK(munmap(map, 2 * STAGED));
	OK(close(fd));
	OK(unlink("b"));
}

static int open_mapped(void)
{
	int fd = open_new("a", 0);

	OK(ftruncate(fd, STAGED));
	for (int i = 0; i < 3; i++)
		OK(munmap(OK((char *)mmap(NULL, STAGED, PROT_WRITE, MAP_SHARED, fd, 0)), STAGED));
	return fd;
}

/* The descriptor of a mapped file gets another file. */
static void mapped_and_replaced(void **state)
{
	int (*const ways[])(int fd) = {close_fd, close_by_number, close_as_range, close_stream};

	(void)state;
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		int fd = open_mapped();

		if (ways[i](fd) < 0)
			continue; /* an old kernel has no close_range */
		check_replaced(open_staged("b", 0));
	}
	for (int way = 0; way < 2; way++) {
		int fd = open_mapped(), other = open_staged("b", 0);

		OK(way == 0 ? dup2(other, fd) : dup3(other, fd, O_CLOEXEC));
		OK(close(other));
		check_replaced(fd);
	}
	OK(unlink("a"));
}

static void mapped_and_renamed(void **state)
{
	int fd = open_mapped();
	char *map;

	(void)state;
	OK(rename("a", "b"));
	map = OK((char *)mmap(NULL, STAGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	for (unsigned i = 0; i < RECORDS; i++) {
		write_records(fd, i, 1);
		check_records(map, 0, i + 1);
	}
	OK(munmap(map, STAGED));
	OK(close(fd));
	OK(unlink("b"));
}

static void sending(void **state)
{
	int from = open_staged("a", 0), to = open_staged("b", 0);
	off_t at = 0;

	(void)state;
	assert_int_equal(OK(sendfile(to, from, &at, STAGED)), STAGED);
	assert_int_equal(at, STAGED);
	write_records(from, RECORDS, RECORDS);
	assert_int_equal(OK(sendfile64(to, from, &at, STAGED)), STAGED);
	assert_int_equal(OK(lseek(to, 0, SEEK_CUR)), 3 * STAGED);
	write_records(to, 0, RECORDS);
	OK(close(from));
	OK(close(to));
	check_file("a", 0, 2 * RECORDS);
	OK(truncate("b", 3 * STAGED));
	from = OK(open("b", O_RDONLY));
	OK(close(from));
	{
		size_t size;
		char *bytes = file_bytes("b", &size);

		assert_int_equal(size, 3 * STAGED);
		check_records(bytes, 0, RECORDS);
		check_records(bytes + STAGED, 0, 2 * RECORDS);
		free(bytes);
	}
	OK(unlink("a"));
	OK(unlink("b"));
}

static int passed_on(int fd)
{
	char byte = 'x', room[CMSG_SPACE(sizeof fd)] __attribute__((aligned(8)));
	struct iovec iov = {&byte, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int pair[2];

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	OK(sendmsg(pair[0], &m, 0));
	m.msg_controllen = sizeof room;
	OK(recvmsg(pair[1], &m, MSG_CMSG_CLOEXEC));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	OK(close(pair[0]));
	OK(close(pair[1]));
	return fd;
}

/* What reads by itself goes on where the last read came to, on a descriptor for reading alone, too. */
static void from_the_position(void **state)
{
	int from = open_staged("a", 0), to = open_new("b", 0), ends[2], fd, copy;
	char record[RECORD];

	(void)state;
	fd = OK(open("a", O_RDONLY | O_CLOEXEC));
	OK(pipe(ends));
	for (unsigned n = 0; n < 8; n += 2) {
		write_records(from, RECORDS + 2 * n, 4);
		assert_int_equal(OK(read(fd, record, RECORD)), RECORD);
		check_records(record, n, 1);
		copy = -1;
		switch (n / 2) {
		case 0: assert_int_equal(OK(sendfile(ends[1], fd, NULL, RECORD)), RECORD); break;
		case 1: assert_int_equal(OK(splice(fd, NULL, ends[1], NULL, RECORD, 0)), RECORD); break;
		case 2: copy = passed_on(fd); break;
		default: assert_int_equal(OK(copy_file_range(fd, NULL, to, NULL, RECORD, 0)), RECORD);
		}
		if (n == 6)
			break;
		/* (by a system call that the library does not see: a descriptor that was passed is another
		 * process's) */
		assert_int_equal(raw_call(SYS_read, copy >= 0 ? copy : ends[0], (long)record, RECORD, 0),
		                 RECORD);
		check_records(record, n + 1, 1);
		if (copy >= 0)
			OK(close(copy));
	}
	OK(close(ends[0]));
	OK(close(ends[1]));
	OK(close(from));
	OK(close(fd));
	OK(close(to));
	check_file("b", 7, 1);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void splicing(void **state)
{
	int from = open_staged("a", 0), to = open_new("b", 0);
	int ends[2];
	off_t at = 0;

	(void)state;
	write_records(to, 0, RECORDS);
	OK(pipe(ends));
	assert_int_equal(OK(splice(from, &at, ends[1], NULL, STAGED, 0)), STAGED);
	OK(lseek(to, 0, SEEK_SET));
	assert_int_equal(OK(splice(ends[0], NULL, to, NULL, STAGED, 0)), STAGED);
	write_records(to, RECORDS, RECORDS);
	OK(close(ends[0]));
	OK(close(ends[1]));
	OK(close(from));
	OK(close(to));
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void copying(void **state)
{
	int from = open_staged("a", 0), to = open_new("b", 0);

	(void)state;
	write_records(to, 0, RECORDS);
	OK(lseek(from, 0, SEEK_SET));
	OK(lseek(to, 0, SEEK_SET));
	assert_int_equal(OK(copy_file_range(from, NULL, to, NULL, STAGED, 0)), STAGED);
	write_records(to, RECORDS, RECORDS);
	write_records(from, RECORDS, RECORDS);
	OK(close(from));
	OK(close(to));
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void streams(void **state)
{
	char record[RECORD];
	int fd = open_staged("a", 0);
	FILE *stream;

	(void)state;
	for (unsigned i = 0; i < RECORDS; i++) {
		record_fill(record, RECORDS + i);
		assert_int_equal(dprintf(fd, "%.*s", RECORD, record), RECORD);
	}
	check_file("a", 0, 2 * RECORDS);
	write_records(fd, 2 * RECORDS, RECORDS);
	stream = fdopen(fd, "r+");
	assert_non_null(stream);
	for (unsigned i = 0; i < RECORDS; i++) {
		record_fill(record, 3 * RECORDS + i);
		assert_int_equal(fwrite(record, 1, RECORD, stream), RECORD);
	}
	assert_int_equal(fflush(stream), 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	check_file("a", 0, 5 * RECORDS);
	assert_int_equal(fclose(stream), 0);
	FAILS(close(fd), EBADF);

	/* a stream of its own, while another descriptor has bytes staged */
	fd = OK(open("a", O_WRONLY | O_APPEND));
	write_records(fd, 5 * RECORDS, RECORDS);
	stream = fopen("a", "a");
	assert_non_null(stream);
	for (unsigned i = 0; i < RECORDS; i++) {
		record_fill(record, 6 * RECORDS + i);
		assert_int_equal(fwrite(record, 1, RECORD, stream), RECORD);
	}
	assert_int_equal(fclose(stream), 0);
	write_records(fd, 7 * RECORDS, RECORDS);
	check_file("a", 0, 8 * RECORDS);
	stream = fopen("a", "w");
	assert_non_null(stream);
	assert_int_equal(fclose(stream), 0);
	write_records(fd, 0, RECORDS);
	OK(close(fd));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

static void asynchronous(void **state)
{
	char record[RECORD];
	int fd = open_staged("a", 0);
	struct aiocb cb = {.aio_fildes = fd, .aio_buf = record, .aio_nbytes = RECORD, .aio_offset = STAGED};
	const struct aiocb *list[1] = {&cb};

	(void)state;
	record_fill(record, RECORDS);
	OK(aio_write(&cb));
	while (aio_error(&cb) == EINPROGRESS)
		aio_suspend(list, 1, NULL);
	assert_int_equal(aio_return(&cb), RECORD);
	OK(lseek(fd, 0, SEEK_END));
	write_records(fd, RECORDS + 1, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS + 1);
	OK(unlink("a"));
}

static void asking(void **state)
{
	int fd = open_staged("a", 0), waiting = -1;

	(void)state;
	OK(lseek(fd, 0, SEEK_SET));
	OK(ioctl(fd, FIONREAD, &waiting));
	assert_int_equal(waiting, STAGED);
	OK(close(fd));
	OK(unlink("a"));
}

/* Behind what is staged: the range counts from the position, or from the end. */
static void a_lock_is_looked_for(void **state)
{
	struct flock there = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)2 * RECORDS * RECORD, .l_len = 10};
	int fd = open_staged("a", 0), other = OK(open("a", O_RDWR | O_CLOEXEC));

	(void)state;
	OK(fcntl(other, F_OFD_SETLK, &there));
	for (int i = 0; i < 4; i++) {
		struct flock asked = {.l_type = F_WRLCK, .l_whence = i % 2 ? SEEK_END : SEEK_CUR, .l_len = 1};

		write_records(fd, RECORDS + (unsigned)i * RECORDS / 4, RECORDS / 4);
		asked.l_start = (off_t)(3 - i) * RECORDS / 4 * RECORD;
		OK(fcntl(fd, i < 2 ? F_GETLK : F_OFD_GETLK, &asked));
		assert_int_equal(asked.l_type, F_WRLCK);
		assert_int_equal(asked.l_start, there.l_start);
	}
	OK(close(other));
	check_file("a", 0, 2 * RECORDS);
	OK(close(fd));
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(from_the_position),    /* (before a mapping: then nothing is in order) */
		cmocka_unit_test(a_lock_is_looked_for), /* (before a mapping: then nothing is in order) */
		cmocka_unit_test(mapping),
		cmocka_unit_test(mapped_before),
		cmocka_unit_test(mapped_and_replaced),
		cmocka_unit_test(mapped_and_renamed),
		cmocka_unit_test(sending),
		cmocka_unit_test(splicing),
		cmocka_unit_test(copying),
		cmocka_unit_test(streams),
		cmocka_unit_test(asynchronous),
		cmocka_unit_test(asking),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
