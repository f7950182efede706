// SPDX-License-Identifier: Apache-2.0
/*
 * What reads and writes a file where no call is seen: mappings, descriptors that came by other ways, rings;
 * made by this process or by a relative, under this name or another.  `outside` is a directory that the
 * library leaves alone.
 */
#include "hook_test.h"

#include <liburing.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { SIZE = 4096, PIECE = 4, PIECES = 16 };

/* Two processes take turns. */
static int to_child[2], to_parent[2];

static void tell(int fd) { CHILD(write(fd, "x", 1) == 1); }
static void hear(int fd)
{
	char c;

	CHILD(read(fd, &c, 1) == 1);
}

static pid_t child(void)
{
	pid_t pid;

	assert_int_equal(pipe(to_child) | pipe(to_parent), 0);
	fflush(stdout);
	pid = fork();
	CHILD(close(pid == 0 ? to_child[1] : to_child[0]) == 0);
	CHILD(close(pid == 0 ? to_parent[0] : to_parent[1]) == 0);
	return pid;
}

static void child_ends(pid_t pid)
{
	check_exit(pid, 0);
	OK(close(to_child[1]));
	OK(close(to_parent[0]));
}

static void make(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0644);

	CHILD(fd >= 0 && ftruncate(fd, SIZE) == 0 && close(fd) == 0);
}

static char *map(const char *path, int prot)
{
	int fd = open(path, prot & PROT_WRITE ? O_RDWR : O_RDONLY);
	char *at = mmap(NULL, SIZE, prot, MAP_SHARED, fd, 0);

	CHILD(fd >= 0 && at != MAP_FAILED && close(fd) == 0);
	return at;
}

/* So many small writes that they would be staged. */
static void write_pieces(int fd)
{
	for (int i = 0; i < PIECES; i++)
		CHILD(pwrite(fd, "AAAA", PIECE, i * PIECE) == PIECE);
}

static bool all_written(const char *bytes)
{
	for (int i = 0; i < PIECES * PIECE; i++)
		if (bytes[i] != 'A')
			return false;
	return true;
}

static void read_all(int fd, char *bytes) { CHILD(pread(fd, bytes, PIECES * PIECE, 0) == PIECES * PIECE); }

/* "later" was written behind the eighth byte after everything else. */
static void check_later(const char *path)
{
	int fd = open(path, O_RDONLY);
	char bytes[PIECES * PIECE];

	read_all(fd, bytes);
	assert_memory_equal(bytes, "AAAAAAAAlaterAAA", 16);
	OK(close(fd));
}

/* First, for nothing has been opened here: a relative stages, and is asked about. */
static void relative_of_a_newcomer(void **state)
{
	char bytes[STAGED];
	struct stat st;
	pid_t pid;
	int fd;

	(void)state;
	pid = child();
	if (pid == 0) {
		fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0644);
		write_records(fd, 0, RECORDS);
		tell(to_parent[1]);
		hear(to_child[0]);
		_exit(0);
	}
	hear(to_parent[0]);
	OK(stat("a", &st));
	assert_int_equal(st.st_size, STAGED);
	fd = OK(open("a", O_RDONLY));
	assert_int_equal(OK(read(fd, bytes, sizeof bytes)), STAGED);
	check_records(bytes, 0, RECORDS);
	OK(close(fd));
	tell(to_child[1]);
	child_ends(pid);
	OK(unlink("a"));
}

static void mapped_by_a_relative(void **state)
{
	pid_t pid;
	int fd;

	(void)state;
	make("a");
	pid = child();
	if (pid == 0) {
		char *at = map("a", PROT_READ | PROT_WRITE);

		tell(to_parent[1]);
		hear(to_child[0]);
		CHILD(all_written(at));
		memcpy(at + 8, "later", 5);
		_exit(0);
	}
	hear(to_parent[0]);
	fd = OK(open("a", O_RDWR));
	write_pieces(fd);
	tell(to_child[1]);
	child_ends(pid);
	OK(close(fd));
	check_later("a");
	OK(unlink("a"));
}

/* The file is staged here when a relative maps it, who has never had it open. */
static void mapped_while_staged(void **state)
{
	pid_t pid;
	int fd;

	(void)state;
	make("a");
	fd = OK(open("a", O_RDWR | O_CLOEXEC));
	pid = child();
	if (pid == 0) {
		char *at;

		CHILD(close(fd) == 0);
		hear(to_child[0]);
		at = map("a", PROT_READ | PROT_WRITE);
		CHILD(all_written(at));
		tell(to_parent[1]);
		hear(to_child[0]);
		CHILD(memcmp(at + 8, "BBBB", PIECE) == 0);
		memcpy(at + 8, "later", 5);
		_exit(0);
	}
	write_pieces(fd);
	tell(to_child[1]);
	hear(to_parent[0]);
	assert_int_equal(OK(pwrite(fd, "BBBB", PIECE, 8)), PIECE);
	tell(to_child[1]);
	child_ends(pid);
	OK(close(fd));
	check_later("a");
	OK(unlink("a"));
}

enum { BY_RENAME, BY_LINK, BY_NUMBER, NAMES };

static void move_in(int how, const char *from, const char *to)
{
	switch (how) {
	case BY_RENAME: CHILD(rename(from, to) == 0); break;
	case BY_LINK: CHILD(link(from, to) == 0 && unlink(from) == 0); break;
	default: CHILD(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0) == 0); break;
	}
}

static void mapped_under_another_name(void **state)
{
	(void)state;
	for (int how = 0; how < NAMES; how++) {
		char *at;
		int fd;

		make("outside/a");
		at = map("outside/a", PROT_READ | PROT_WRITE);
		move_in(how, "outside/a", "a");
		fd = OK(open("a", O_RDWR));
		write_pieces(fd);
		assert_true(all_written(at));
		memcpy(at + 8, "later", 5);
		OK(munmap(at, SIZE));
		OK(close(fd));
		check_later("a");
		OK(unlink("a"));
	}
}

/* A relative opens it under a name that no rule has, before or after it became one, and somebody gives it
 * another. */
static void opened_under_another_name(void **state)
{
	(void)state;
	for (int round = 0; round < 2 * NAMES; round++) {
		int how = round / 2, before = -1, fd;
		char bytes[PIECES * PIECE];
		pid_t pid;

		make("outside/a");
		if (round % 2)
			before = OK(open("outside/a", O_RDWR));
		pid = child();
		if (pid == 0) {
			fd = before >= 0 ? before : open("outside/a", O_RDWR);
			write_pieces(fd);
			move_in(how, "outside/a", "a");
			tell(to_parent[1]);
			hear(to_child[0]);
			read_all(fd, bytes);
			CHILD(memcmp(bytes, "BBBB", PIECE) == 0);
			CHILD(pwrite(fd, "later", 5, 8) == 5);
			_exit(0);
		}
		if (before >= 0)
			OK(close(before));
		hear(to_parent[0]);
		fd = OK(open("a", O_RDWR));
		write_pieces(fd);
		assert_int_equal(OK(pwrite(fd, "BBBB", PIECE, 0)), PIECE);
		tell(to_child[1]);
		child_ends(pid);
		assert_int_equal(OK(pwrite(fd, "AAAA", PIECE, 0)), PIECE);
		OK(close(fd));
		check_later("a");
		OK(unlink("a"));
	}
}

static void name_it(int fd, int empty)
{
	char link[64];

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	/* (AT_EMPTY_PATH is for CAP_DAC_READ_SEARCH) */
	if (!empty || linkat(fd, "", AT_FDCWD, "a", AT_EMPTY_PATH) < 0)
		CHILD(linkat(AT_FDCWD, link, AT_FDCWD, "a", AT_SYMLINK_FOLLOW) == 0);
}

/* Made without a name, which it gets before or after the fork. */
static void nameless(void **state)
{
	(void)state;
	for (int round = 0; round < 4; round++) {
		int fd = OK(open(".", O_TMPFILE | O_RDWR, 0644)), other;
		char bytes[PIECES * PIECE];
		pid_t pid;

		if (round < 2)
			name_it(fd, round % 2);
		pid = child();
		if (round >= 2 && pid != 0) {
			name_it(fd, round % 2);
			tell(to_child[1]);
		}
		if (pid == 0) {
			if (round >= 2)
				hear(to_child[0]);
			CHILD(close(fd) == 0);
			other = open("a", O_RDWR);
			write_pieces(other);
			tell(to_parent[1]);
			hear(to_child[0]);
			_exit(0);
		}
		hear(to_parent[0]);
		read_all(fd, bytes);
		assert_true(all_written(bytes));
		assert_int_equal(OK(pwrite(fd, "later", 5, 8)), 5);
		tell(to_child[1]);
		child_ends(pid);
		OK(close(fd));
		check_later("a");
		OK(unlink("a"));
	}
}

union control {
	char bytes[CMSG_SPACE(sizeof(int))];
	struct cmsghdr header;
};

static void send_fd(int socket, int fd)
{
	union control control = {.header = {.cmsg_len = CMSG_LEN(sizeof fd),
	                                    .cmsg_level = SOL_SOCKET,
	                                    .cmsg_type = SCM_RIGHTS}};
	struct iovec iov = {"x", 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

	memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
	CHILD(sendmsg(socket, &m, 0) == 1);
}

static int receive_fd(int socket)
{
	union control control;
	char c;
	struct iovec iov = {&c, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	int fd;

	CHILD(recvmsg(socket, &m, 0) == 1);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
	return fd;
}

/* A descriptor from a message, which came before the fork. */
static void received_before(void **state)
{
	int pair[2], fd, other;
	char bytes[PIECES * PIECE];
	pid_t pid;

	(void)state;
	make("a");
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	fd = OK(open("a", O_RDWR));
	send_fd(pair[0], fd);
	OK(close(fd));
	fd = receive_fd(pair[1]);
	pid = child();
	if (pid == 0) {
		CHILD(close(fd) == 0);
		other = open("a", O_RDWR);
		write_pieces(other);
		tell(to_parent[1]);
		hear(to_child[0]);
		_exit(0);
	}
	hear(to_parent[0]);
	read_all(fd, bytes);
	assert_true(all_written(bytes));
	assert_int_equal(OK(pwrite(fd, "later", 5, 8)), 5);
	tell(to_child[1]);
	child_ends(pid);
	OK(close(fd));
	OK(close(pair[0]));
	OK(close(pair[1]));
	check_later("a");
	OK(unlink("a"));
}

/* One that a relative gets, while nobody has the file open in a way that is known. */
static void received_by_a_relative(void **state)
{
	int pair[2], fd;
	pid_t pid;

	(void)state;
	OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid = child();
	if (pid == 0) {
		char bytes[PIECES * PIECE];

		fd = receive_fd(pair[1]);
		tell(to_parent[1]);
		hear(to_child[0]);
		read_all(fd, bytes);
		CHILD(all_written(bytes));
		CHILD(pwrite(fd, "later", 5, 8) == 5);
		_exit(0);
	}
	make("a");
	fd = OK(open("a", O_RDWR));
	send_fd(pair[0], fd);
	OK(close(fd));
	hear(to_parent[0]);
	fd = OK(open("a", O_RDWR));
	write_pieces(fd);
	tell(to_child[1]);
	child_ends(pid);
	OK(close(fd));
	OK(close(pair[0]));
	OK(close(pair[1]));
	check_later("a");
	OK(unlink("a"));
}

static int through_ring(struct io_uring *ring)
{
	struct io_uring_cqe *done;
	int result;

	CHILD(io_uring_submit(ring) == 1 && io_uring_wait_cqe(ring, &done) == 0);
	result = done->res;
	io_uring_cqe_seen(ring, done);
	return result;
}

/* A relative makes a ring, before the file is staged here or while it is. */
static void ring_of_a_relative(void **state)
{
	(void)state;
	for (int staged = 0; staged < 2; staged++) {
		bool *made = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		pid_t pid;
		int fd;

		make("a");
		pid = child();
		if (pid == 0) {
			char bytes[PIECES * PIECE];
			struct io_uring ring;

			fd = open("a", O_RDWR);
			hear(to_child[0]);
			*made = io_uring_queue_init(8, &ring, 0) == 0;
			tell(to_parent[1]);
			hear(to_child[0]);
			if (!*made)
				_exit(0);
			io_uring_prep_read(io_uring_get_sqe(&ring), fd, bytes, sizeof bytes, 0);
			CHILD(through_ring(&ring) == sizeof bytes && all_written(bytes));
			io_uring_prep_write(io_uring_get_sqe(&ring), fd, "later", 5, 8);
			CHILD(through_ring(&ring) == 5);
			_exit(0);
		}
		fd = OK(open("a", O_RDWR));
		if (staged)
			for (int i = 0; i < PIECES; i++)
				assert_int_equal(OK(pwrite(fd, "BBBB", PIECE, i * PIECE)), PIECE);
		tell(to_child[1]);
		hear(to_parent[0]);
		write_pieces(fd);
		tell(to_child[1]);
		child_ends(pid);
		OK(close(fd));
		if (*made)
			check_later("a");
		else
			print_message("no io_uring here\n");
		OK(unlink("a"));
		OK(munmap(made, SIZE));
	}
}

/* With the relative its ring is gone, and with that the reason. */
static void after_the_ring(void **state)
{
	int fd = open_staged("a", 0);

	(void)state;
	OK(close(fd));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

/* Somebody without the library opens the file. */
static void check_kernel(const char *path)
{
	int fd = (int)raw_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY, 0);
	char bytes[STAGED];

	assert_true(fd >= 0);
	assert_int_equal(raw_call(SYS_pread64, fd, (long)bytes, sizeof bytes, 0), STAGED);
	check_records(bytes, 0, RECORDS);
	raw_call(SYS_close, fd, 0, 0, 0);
}

/* Others learn from memory that a relative shares with them what is written here. */
static void memory_of_a_relative(void **state)
{
	pid_t pid;
	int fd;

	(void)state;
	make("index");
	pid = child();
	if (pid == 0) {
		map("index", PROT_READ | PROT_WRITE);
		tell(to_parent[1]);
		hear(to_child[0]);
		_exit(0);
	}
	hear(to_parent[0]);
	fd = open_staged("a", 0);
	check_kernel("a");
	tell(to_child[1]);
	child_ends(pid);
	OK(close(fd));
	OK(unlink("a"));
	OK(unlink("index"));
}

static int make_outside(void **state)
{
	(void)state;
	return mkdir("outside", 0755);
}

static int remove_outside(void **state)
{
	(void)state;
	return rmdir("outside");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(relative_of_a_newcomer),    cmocka_unit_test(mapped_by_a_relative),
		cmocka_unit_test(mapped_while_staged),       cmocka_unit_test(mapped_under_another_name),
		cmocka_unit_test(opened_under_another_name), cmocka_unit_test(nameless),
		cmocka_unit_test(received_before),           cmocka_unit_test(received_by_a_relative),
		cmocka_unit_test(ring_of_a_relative),        cmocka_unit_test(after_the_ring),
		cmocka_unit_test(memory_of_a_relative),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, make_outside, remove_outside);
}
