// SPDX-License-Identifier: Apache-2.0
/* Descriptors that come by handle, by message, from another process, and shared memory by name. */
#include "hook_test.h"

#include <linux/openat2.h>
#include <signal.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

/* in newer C libraries only; the library has it always */
__attribute__((weak)) int openat2(int dirfd, const char *path, struct open_how *how, size_t size);
int pidfd_getfd(int pidfd, int fd, unsigned flags);

/* Opens "a" again by other means, cutting it off or not. */
static int by_handle(int more)
{
	struct {
		struct file_handle head;
		char room[128];
	} handle = {.head.handle_bytes = 128};
	int here = OK(open(".", O_RDONLY | O_DIRECTORY)), mount, fd = -1;

	if (name_to_handle_at(here, "a", &handle.head, &mount, 0) == 0)
		fd = open_by_handle_at(here, &handle.head, O_RDWR | more);
	OK(close(here));
	return fd;
}

static int by_openat2(int more)
{
	struct open_how how = {.flags = (uint64_t)(O_RDWR | more)};

	if (!openat2) {
		errno = ENOSYS;
		return -1;
	}
	return openat2(AT_FDCWD, "a", &how, sizeof how);
}

/* Two descriptions of one file: each sees what the other wrote. */
static void second_description(int (*again)(int more))
{
	char back[RECORD];
	int fd = open_staged("a", 0), other;

	errno = 4242;
	other = again(0);
	if (other < 0) {
		assert_true(errno == ENOSYS || errno == EPERM || errno == EOPNOTSUPP);
		print_message("not here: %s\n", strerror(errno));
		OK(close(fd));
		OK(unlink("a"));
		return;
	}
	assert_int_equal(errno, 4242);
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(OK(pread(other, back, RECORD, 2 * STAGED - RECORD)), RECORD);
	check_records(back, 2 * RECORDS - 1, 1);
	OK(lseek(other, 0, SEEK_END));
	write_records(other, 2 * RECORDS, RECORDS);
	assert_int_equal(OK(pread(fd, back, RECORD, 3 * STAGED - RECORD)), RECORD);
	check_records(back, 3 * RECORDS - 1, 1);
	write_records(other, 3 * RECORDS, RECORDS);
	OK(close(other));
	other = OK(again(O_TRUNC));
	OK(close(fd));
	assert_int_equal(kernel_size("a"), 0);
	write_records(other, 0, RECORDS);
	OK(close(other));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

static void handles(void **state)
{
	(void)state;
	second_description(by_handle);
	second_description(by_openat2);
}

static void handles_that_fail(void **state)
{
	struct open_how how = {.flags = O_RDONLY};
	struct file_handle none = {.handle_bytes = 0};

	(void)state;
	assert_int_equal(open_by_handle_at(-1, &none, O_RDONLY), -1);
	if (openat2) {
		FAILS(openat2(AT_FDCWD, "none", &how, sizeof how), ENOENT);
		FAILS(openat2(AT_FDCWD, "none", &how, 1), EINVAL);
	}
}

/* ---- messages ---- */

struct parcel {
	struct mmsghdr message;
	struct iovec iov;
	char byte;
	char control[CMSG_SPACE(2 * sizeof(int))] __attribute__((aligned(8)));
};

static void wrap(struct parcel *p)
{
	memset(p, 0, sizeof *p);
	p->byte = 'x';
	p->iov = (struct iovec){.iov_base = &p->byte, .iov_len = 1};
	p->message.msg_hdr = (struct msghdr){.msg_iov = &p->iov,
	                                     .msg_iovlen = 1,
	                                     .msg_control = p->control,
	                                     .msg_controllen = sizeof p->control};
}

static void put_in(struct parcel *p, int first, int second)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)p->control;
	int both[2] = {first, second};

	wrap(p);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof both);
	memcpy(CMSG_DATA(c), both, sizeof both);
}

static int take_out(const struct parcel *p)
{
	int both[2];

	memcpy(both, CMSG_DATA((const struct cmsghdr *)(const void *)p->control), sizeof both);
	close(both[0]);
	return both[1];
}

/* A descriptor goes to a child that was there before: one offset for both from then on. */
static void sending(void **state)
{
	(void)state;
	for (int many = 0; many < 2; many++) {
		int ends[2], fd;
		struct parcel p;
		pid_t pid;

		OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			char record[RECORD];

			wrap(&p);
			if (many)
				CHILD(recvmmsg(ends[1], &p.message, 1, 0, NULL) == 1);
			else
				CHILD(recvmsg(ends[1], &p.message.msg_hdr, 0) == 1);
			fd = take_out(&p);
			for (unsigned i = RECORDS; i < 2 * RECORDS; i++) {
				record_fill(record, i);
				CHILD(write(fd, record, RECORD) == RECORD);
			}
			_exit(0);
		}
		fd = open_staged("a", 0);
		put_in(&p, ends[1], fd);
		if (many)
			assert_int_equal(OK(sendmmsg(ends[0], &p.message, 1, 0)), 1);
		else
			assert_int_equal(OK(sendmsg(ends[0], &p.message.msg_hdr, 0)), 1);
		check_exit(pid, 0);
		write_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 3 * RECORDS);
		OK(close(ends[0]));
		OK(close(ends[1]));
		OK(unlink("a"));
	}
}

/* The child opens the file, and its descriptor arrives while we stage on it. */
static void receiving(void **state)
{
	(void)state;
	for (int how = 0; how < 4; how++) {
		int ends[2], pipes[2], fd, other;
		char back[RECORD];
		struct parcel p;
		pid_t pid;

		OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
		OK(pipe(pipes));
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			char record[RECORD];

			close(pipes[1]); /* the end of the parent is an end of file */
			CHILD(read(pipes[0], record, 1) == 1);
			/* unseen, so that only its arrival tells of it */
			other = (int)raw_call(SYS_openat, AT_FDCWD, (long)"a", O_RDWR, 0);
			CHILD(other >= 0);
			put_in(&p, ends[1], other);
			CHILD(raw_call(SYS_sendmsg, ends[1], (long)&p.message.msg_hdr, 0, 0) == 1);
			_exit(0);
		}
		fd = open_staged("a", 0);
		OK(write(pipes[1], "x", 1));
		check_exit(pid, 0);
		write_records(fd, RECORDS, RECORDS);
		wrap(&p);
		switch (how) {
		case 0: assert_int_equal(OK(recvmsg(ends[0], &p.message.msg_hdr, 0)), 1); break;
		case 1: assert_int_equal(OK(recvmmsg(ends[0], &p.message, 1, 0, NULL)), 1); break;
		case 2: assert_int_equal(OK(syscall(SYS_recvmsg, ends[0], &p.message.msg_hdr, 0)), 1); break;
		case 3:
			assert_int_equal(OK(syscall(SYS_recvmmsg, ends[0], &p.message, 1, 0, NULL)), 1);
			break;
		}
		other = take_out(&p);
		write_records(fd, 2 * RECORDS, RECORDS);
		assert_int_equal(OK(pread(other, back, RECORD, 3 * STAGED - RECORD)), RECORD);
		check_records(back, 3 * RECORDS - 1, 1);
		OK(lseek(other, 0, SEEK_END));
		write_records(other, 3 * RECORDS, RECORDS);
		assert_int_equal(OK(pread(fd, back, RECORD, 4 * STAGED - RECORD)), RECORD);
		check_records(back, 4 * RECORDS - 1, 1);
		OK(close(fd));
		OK(close(other));
		check_file("a", 0, 4 * RECORDS);
		for (int i = 0; i < 2; i++) {
			OK(close(ends[i]));
			OK(close(pipes[i]));
		}
		OK(unlink("a"));
	}
}

/* Messages without descriptors, cut short, or wrong come through as they are. */
static void plain_messages(void **state)
{
	struct parcel p;
	int ends[2], fd = open_staged("a", 0);

	(void)state;
	OK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
	wrap(&p);
	p.message.msg_hdr.msg_control = NULL;
	p.message.msg_hdr.msg_controllen = 0;
	assert_int_equal(OK(sendmsg(ends[0], &p.message.msg_hdr, 0)), 1);
	assert_int_equal(OK(recvmsg(ends[1], &p.message.msg_hdr, 0)), 1);
	FAILS(sendmsg(ends[0], (struct msghdr *)8, 0), EFAULT);
	FAILS(recvmsg(ends[0], (struct msghdr *)8, MSG_DONTWAIT), EFAULT);
	put_in(&p, fd, -1);
	FAILS(sendmsg(ends[0], &p.message.msg_hdr, 0), EBADF);
	put_in(&p, fd, fd);
	((struct cmsghdr *)(void *)p.control)->cmsg_len = 1 << 20;
	FAILS(sendmsg(ends[0], &p.message.msg_hdr, 0), EINVAL);
	FAILS(recvmsg(ends[1], &p.message.msg_hdr, MSG_DONTWAIT), EAGAIN);
	/* no room for what comes */
	put_in(&p, fd, fd);
	assert_int_equal(OK(sendmsg(ends[0], &p.message.msg_hdr, 0)), 1);
	wrap(&p);
	p.message.msg_hdr.msg_controllen = CMSG_LEN(0);
	assert_int_equal(OK(recvmsg(ends[1], &p.message.msg_hdr, 0)), 1);
	assert_true(p.message.msg_hdr.msg_flags & MSG_CTRUNC);
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(close(ends[0]));
	OK(close(ends[1]));
	OK(unlink("a"));
}

/* ---- from another process ---- */

static void fetching(void **state)
{
	(void)state;
	for (int by_number = 0; by_number < 2; by_number++) {
		int pipes[2], back_pipe[2], fd, other, theirs = -1, pidfd;
		char back[RECORD];
		pid_t pid;

		OK(pipe(pipes));
		OK(pipe(back_pipe));
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			char byte;

			close(pipes[1]);
			CHILD(read(pipes[0], &byte, 1) == 1);
			theirs = open("a", O_RDWR);
			CHILD(write(back_pipe[1], &theirs, sizeof theirs) == sizeof theirs);
			CHILD(read(pipes[0], &byte, 1) == 1);
			_exit(0);
		}
		pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
		fd = open_staged("a", 0);
		OK(write(pipes[1], "x", 1));
		assert_int_equal(OK(read(back_pipe[0], &theirs, sizeof theirs)), sizeof theirs);
		write_records(fd, RECORDS, RECORDS);
		other = (int)(by_number ? syscall(SYS_pidfd_getfd, pidfd, theirs, 0)
		                        : pidfd_getfd(pidfd, theirs, 0));
		if (other < 0) {
			assert_true(errno == EPERM || errno == ENOSYS);
			print_message("not here: %s\n", strerror(errno));
		} else {
			write_records(fd, 2 * RECORDS, RECORDS);
			assert_int_equal(OK(pread(other, back, RECORD, 3 * STAGED - RECORD)), RECORD);
			check_records(back, 3 * RECORDS - 1, 1);
			OK(close(other));
		}
		OK(write(pipes[1], "x", 1));
		check_exit(pid, 0);
		OK(close(fd));
		OK(close(pidfd));
		for (int i = 0; i < 2; i++) {
			OK(close(pipes[i]));
			OK(close(back_pipe[i]));
		}
		OK(unlink("a"));
	}
	FAILS(pidfd_getfd(-1, 0, 0), EBADF);
}

/* Whoever watches files this way gets descriptors on them with the events. */
static void watching(void **state)
{
	(void)state;
	for (int by_number = 0; by_number < 2; by_number++) {
		struct fanotify_event_metadata event;
		char back[RECORD];
		int fd, group;
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid != 0) {
			check_exit(pid, 0);
			continue;
		}
		/* in a child, which from then on stages nothing */
		fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0600);
		for (unsigned i = 0; i < RECORDS; i++) {
			record_fill(back, i);
			CHILD(write(fd, back, RECORD) == RECORD);
		}
		group = (int)(by_number
		                      ? syscall(SYS_fanotify_init,
		                                FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, O_RDWR)
		                      : fanotify_init(FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK, O_RDWR));
		if (group < 0) {
			print_message("no fanotify: %s\n", strerror(errno));
			_exit(0);
		}
		CHILD(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, "a") == 0);
		record_fill(back, RECORDS);
		CHILD(write(fd, back, RECORD) == RECORD);
		CHILD(read(group, &event, sizeof event) == sizeof event);
		record_fill(back, RECORDS + 1);
		CHILD(write(fd, back, RECORD) == RECORD);
		memset(back, 0, RECORD);
		CHILD(pread(event.fd, back, RECORD, STAGED + RECORD) == RECORD);
		CHILD(atoi(back) == RECORDS + 1);
		CHILD(unlink("a") == 0);
		_exit(0);
	}
}

/* ---- shared memory ---- */

static void shared_memory(void **state)
{
	char name[64], path[80], back[RECORD];
	struct stat st;
	int fd, other;

	(void)state;
	snprintf(name, sizeof name, "/fastwrite-test-%d", (int)getpid());
	snprintf(path, sizeof path, "/dev/shm%s", name);
	fd = OK(shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600));
	OK(close(fd));
	fd = OK(open(path, O_RDWR));
	write_records(fd, 0, RECORDS);
	other = OK(shm_open(name, O_RDWR, 0));
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(OK(pread(other, back, RECORD, 2 * STAGED - RECORD)), RECORD);
	check_records(back, 2 * RECORDS - 1, 1);
	OK(close(other));
	other = OK(shm_open(name, O_RDWR | O_TRUNC, 0));
	OK(close(fd));
	assert_int_equal(kernel_size(path), 0);
	write_records(other, 0, RECORDS);
	OK(shm_unlink(name));
	assert_int_equal(raw_call(SYS_fstat, other, (long)&st, 0, 0), 0);
	assert_int_equal(st.st_size, STAGED);
	write_records(other, RECORDS, RECORDS);
	assert_int_equal(OK(pread(other, back, RECORD, 2 * STAGED - RECORD)), RECORD);
	check_records(back, 2 * RECORDS - 1, 1);
	OK(close(other));
	FAILS(shm_unlink(name), ENOENT);
	FAILS(shm_open("/a/b", O_RDONLY, 0), EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handles),   cmocka_unit_test(handles_that_fail), cmocka_unit_test(sending),
		cmocka_unit_test(receiving), cmocka_unit_test(plain_messages),    cmocka_unit_test(fetching),
		cmocka_unit_test(watching),  cmocka_unit_test(shared_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
