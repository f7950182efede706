// SPDX-License-Identifier: Apache-2.0
/* The kernel's asynchronous I/O: libaio, and rings made in every way. */
#include "hook_test.h"

#include <libaio.h>
#include <liburing.h>

/* in newer or older versions of liburing only */
__attribute__((weak)) int io_uring_setup(unsigned entries, struct io_uring_params *params);
__attribute__((weak)) int io_uring_queue_init_mem(unsigned entries, struct io_uring *ring,
                                                  struct io_uring_params *params, void *memory, size_t size);

static void finish(io_context_t context, long expected)
{
	struct io_event event;

	assert_int_equal(io_getevents(context, 1, 1, &event, NULL), 1);
	assert_int_equal(event.res, expected);
}

static void submitting(void **state)
{
	struct iocb *volatile nowhere = (struct iocb *)8;

	(void)state;
	for (int by_number = 0; by_number < 2; by_number++) {
		char record[RECORD], back[RECORD];
		io_context_t context = NULL;
		struct iocb one, *list[1] = {&one};
		int fd = open_staged("a", 0), other = open_staged("b", 0);

		assert_int_equal(io_setup(4, &context), 0);
		/* reads see what is staged */
		io_prep_pread(&one, fd, back, RECORD, STAGED - RECORD);
		if (by_number)
			assert_int_equal(OK(syscall(SYS_io_submit, context, 1L, list)), 1);
		else
			assert_int_equal(OK(io_submit(context, 1, list)), 1);
		finish(context, RECORD);
		check_records(back, RECORDS - 1, 1);
		/* writes come behind what was written before them, and before what is written after */
		write_records(other, RECORDS, RECORDS);
		record_fill(record, 7);
		io_prep_pwrite(&one, other, record, RECORD, 3 * RECORD);
		if (by_number)
			assert_int_equal(OK(syscall(SYS_io_submit, context, 1L, list)), 1);
		else
			assert_int_equal(OK(io_submit(context, 1, list)), 1);
		finish(context, RECORD);
		assert_int_equal(kernel_size("b"), 2 * STAGED);
		assert_int_equal(OK(pread(other, back, RECORD, 3 * RECORD)), RECORD);
		check_records(back, 7, 1);
		record_fill(record, 3);
		assert_int_equal(OK(pwrite(other, record, RECORD, 3 * RECORD)), RECORD);
		write_records(other, 2 * RECORDS, RECORDS);
		/* what is wrong is for the kernel to say */
		assert_int_equal(io_submit(context, 0, list), 0);
		assert_int_equal(io_submit(context, 1, (struct iocb **)nowhere), -EFAULT);
		list[0] = nowhere;
		assert_int_equal(io_submit(context, 1, list), -EFAULT);
		assert_int_equal(io_submit(NULL, 1, list), -EINVAL);
		assert_int_equal(io_destroy(context), 0);
		OK(close(fd));
		OK(close(other));
		check_file("a", 0, RECORDS);
		check_file("b", 0, 3 * RECORDS);
		OK(unlink("a"));
		OK(unlink("b"));
	}
}

static void child_puts(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

enum {
	BY_INIT,
	BY_PARAMS,
	BY_MEMORY,
	BY_SETUP,
	BY_NUMBER,
	BY_ITSELF, /* a system call that nobody can see */
	WAYS
};

/* A ring to work with, or -errno, -EOPNOTSUPP when this liburing does not have it. */
static int make_ring(int how, struct io_uring *ring)
{
	static char memory[1 << 16] __attribute__((aligned(1 << 12)));
	struct io_uring_params params = {0};
	int fd;

	switch (how) {
	case BY_INIT: return io_uring_queue_init(8, ring, 0);
	case BY_PARAMS: return io_uring_queue_init_params(8, ring, &params);
	case BY_MEMORY:
		if (!io_uring_queue_init_mem)
			return -EOPNOTSUPP;
		fd = io_uring_queue_init_mem(8, ring, &params, memory, sizeof memory);
		return fd < 0 ? fd : 0;
	case BY_SETUP:
		if (!io_uring_setup)
			return -EOPNOTSUPP;
		fd = io_uring_setup(8, &params);
		break;
	case BY_NUMBER:
		fd = (int)syscall(SYS_io_uring_setup, 8, &params);
		fd = fd < 0 ? -errno : fd;
		break;
	default: fd = (int)raw_call(SYS_io_uring_setup, 8, (long)&params, 0, 0); break;
	}
	return fd < 0 ? fd : io_uring_queue_mmap(fd, &params, ring);
}

static void complete(struct io_uring *ring, int expected)
{
	struct io_uring_cqe *cqe;

	CHILD(io_uring_submit(ring) == 1);
	CHILD(io_uring_wait_cqe(ring, &cqe) == 0);
	CHILD(cqe->res == expected);
	io_uring_cqe_seen(ring, cqe);
}

static void with_ring(int how)
{
	char record[RECORD], back[RECORD];
	struct io_uring ring;
	int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), later, r;
	struct stat st;

	if (how != BY_ITSELF)
		child_puts(fd, 0, RECORDS);
	errno = 4242;
	r = make_ring(how, &ring);
	if (r < 0) {
		/* refused: then nothing changes */
		CHILD(r == -EPERM || r == -ENOSYS || r == -EOPNOTSUPP);
		printf("# way %d: %s\n", how, strerror(-r));
		fflush(stdout);
		if (how == BY_ITSELF)
			child_puts(fd, 0, RECORDS);
		child_puts(fd, RECORDS, 2 * RECORDS);
		_exit(0);
	}
	CHILD(how == BY_NUMBER || errno == 4242);
	if (how == BY_ITSELF)
		child_puts(fd, 0, RECORDS);
	io_uring_prep_read(io_uring_get_sqe(&ring), fd, back, RECORD, STAGED - RECORD);
	complete(&ring, RECORD);
	record_fill(record, RECORDS - 1);
	CHILD(memcmp(back, record, RECORD) == 0);
	/* from now on both ways reach the kernel in their order */
	child_puts(fd, RECORDS, RECORDS);
	record_fill(record, 7);
	io_uring_prep_write(io_uring_get_sqe(&ring), fd, record, RECORD, 2 * STAGED - RECORD);
	complete(&ring, RECORD);
	record_fill(record, 2 * RECORDS - 1);
	CHILD(pwrite(fd, record, RECORD, 2 * STAGED - RECORD) == RECORD);
	child_puts(fd, 2 * RECORDS, RECORDS);
	CHILD(raw_call(SYS_fstat, fd, (long)&st, 0, 0) == 0 && st.st_size == 3 * STAGED);
	/* also for files that are opened later */
	later = open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	child_puts(later, 0, RECORDS);
	CHILD(raw_call(SYS_fstat, later, (long)&st, 0, 0) == 0 && st.st_size == STAGED);
	CHILD(close(later) == 0 && unlink("b") == 0);
	_exit(0);
}

static void rings(void **state)
{
	(void)state;
	for (int how = 0; how < WAYS; how++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0)
			with_ring(how);
		check_exit(pid, 0);
		check_file("a", 0, 3 * RECORDS);
		OK(unlink("a"));
	}
}

/* The ring as it is, before anything is done with it. */
static void rings_alone(void **state)
{
	(void)state;
	for (int by_number = 0; by_number < 2; by_number++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			struct io_uring_params params = {0};
			int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
			bool made = false;
			struct stat st;

			child_puts(fd, 0, RECORDS);
			if (by_number)
				made = syscall(SYS_io_uring_setup, 8, &params) >= 0;
			else
				made = io_uring_setup && io_uring_setup(8, &params) >= 0;
			child_puts(fd, RECORDS, RECORDS);
			CHILD(raw_call(SYS_fstat, fd, (long)&st, 0, 0) == 0);
			CHILD(!made || st.st_size == 2 * STAGED);
			_exit(0);
		}
		check_exit(pid, 0);
		check_file("a", 0, 2 * RECORDS);
		OK(unlink("a"));
	}
}

/* A file that is staged when a ring is found that nobody saw made, while another file is looked at. */
static void ring_found_late(void **state)
{
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct io_uring_params params = {0};
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), other;
		struct stat st;

		child_puts(fd, 0, RECORDS);
		raw_call(SYS_io_uring_setup, 8, (long)&params, 0, 0);
		other = open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		child_puts(other, 0, RECORDS);
		/* the first one follows when the timer looks */
		do {
			usleep(1000);
			CHILD(raw_call(SYS_fstat, fd, (long)&st, 0, 0) == 0);
		} while (st.st_size != STAGED);
		CHILD(unlink("b") == 0);
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(submitting),
		cmocka_unit_test(rings),
		cmocka_unit_test(rings_alone),
		cmocka_unit_test(ring_found_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
