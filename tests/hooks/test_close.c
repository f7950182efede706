// SPDX-License-Identifier: Apache-2.0
/* lseek, duplicates, status flags, and every way to close. */
#include "hook_test.h"

#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4
#endif
int close_range(unsigned from, unsigned to, int flags);
void closefrom(int from);

static void seeking(void **state)
{
	int fd = open_staged("a", 0);

	(void)state;
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED);
	assert_int_equal(OK(lseek64(fd, 0, SEEK_END)), STAGED);
	assert_int_equal(OK(lseek(fd, -RECORD, SEEK_CUR)), STAGED - RECORD);
	write_records(fd, 99, 1);
	write_records(fd, 100, 1);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED + RECORD);
	assert_int_equal(OK(lseek(fd, 0, SEEK_DATA)), 0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_HOLE)), STAGED + RECORD);
	FAILS(lseek(fd, -1, SEEK_SET), EINVAL);
	FAILS(lseek(fd, STAGED + RECORD, SEEK_DATA), ENXIO);
	FAILS(lseek(fd, 0, 99), EINVAL);
	assert_int_equal(OK(lseek(fd, 1 << 20, SEEK_SET)), 1 << 20);
	write_records(fd, 1, 2);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), (1 << 20) + 2 * RECORD);
	OK(close(fd));
	OK(unlink("a"));
}

/* One description, several descriptors: they share the position, and the bytes. */
static void duplicates(void **state)
{
	int fd = open_staged("a", 0);
	int copies[5];
	unsigned n = RECORDS;

	(void)state;
	copies[0] = OK(dup(fd));
	copies[1] = OK(dup2(fd, 100));
	copies[2] = OK(dup3(fd, 101, O_CLOEXEC));
	copies[3] = OK(fcntl(fd, F_DUPFD, 50));
	copies[4] = OK(fcntl(fd, F_DUPFD_CLOEXEC, 60));
	assert_int_equal(copies[1], 100);
	assert_int_equal(copies[2], 101);
	assert_int_equal(fcntl(100, F_GETFD), 0);
	assert_int_equal(fcntl(101, F_GETFD), FD_CLOEXEC);
	for (int round = 0; round < 10; round++)
		for (int i = 0; i < 5; i++)
			write_records(copies[i], n++, 1);
	OK(close(fd));
	for (int i = 0; i < 5; i++) {
		write_records(copies[i], n++, 1);
		assert_int_equal(OK(lseek(copies[i], 0, SEEK_CUR)), n * RECORD);
		OK(close(copies[i]));
	}
	check_file("a", 0, n);
	FAILS(dup(fd), EBADF);
	FAILS(dup2(fd, 100), EBADF);
	FAILS(fcntl(fd, F_DUPFD, 0), EBADF);
	OK(unlink("a"));
}

static void replacing(void **state)
{
	int a = open_staged("a", 0);
	int b = open_staged("b", 0);

	(void)state;
	FAILS(dup3(a, a, 0), EINVAL);
	assert_int_equal(OK(dup2(a, a)), a);
	/* a failing dup2 closes nothing */
	FAILS(dup2(999, b), EBADF);
	write_records(b, RECORDS, 1);
	OK(dup2(a, b));
	check_file("b", 0, RECORDS + 1);
	write_records(b, RECORDS, 5);
	write_records(a, RECORDS + 5, 5);
	OK(close(a));
	write_records(b, RECORDS + 10, 5);
	OK(close(b));
	check_file("a", 0, RECORDS + 15);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* What was not replaced or closed still shares its position, and what is staged, with its duplicate. */
static bool both_go_on(int fd, int copy, unsigned *n)
{
	char record[RECORD];

	for (unsigned round = 0; round < 10; round++)
		for (int i = 0; i < 2; i++) {
			record_fill(record, (*n)++);
			if (write(i ? fd : copy, record, RECORD) != RECORD)
				return false;
		}
	return true;
}

/* A number above the limit, bad flags: the descriptor stays what it was. */
static void not_replaced(void **state)
{
	int fd = open_staged("a", 0);
	int high = OK(fcntl(fd, F_DUPFD, 200));
	int other = open_staged("b", 0);
	unsigned n = RECORDS;
	struct rlimit limit;
	rlim_t before;

	(void)state;
	FAILS(dup3(other, high, O_APPEND), EINVAL);
	FAILS(dup3(high, high, 0), EINVAL);
	assert_true(both_go_on(fd, high, &n));
	OK(getrlimit(RLIMIT_NOFILE, &limit));
	before = limit.rlim_cur;
	limit.rlim_cur = (rlim_t)high;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	FAILS(dup2(other, high), EBADF);
	assert_true(both_go_on(fd, high, &n));
	FAILS(dup3(other, high, O_CLOEXEC), EBADF);
	FAILS(syscall(SYS_dup3, other, high, 0), EBADF);
#ifdef SYS_dup2
	FAILS(syscall(SYS_dup2, other, high), EBADF);
#endif
	assert_true(both_go_on(fd, high, &n));
	limit.rlim_cur = before;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	OK(close(fd));
	write_records(high, n, 1);
	OK(close(high));
	check_file("a", 0, n + 1);
	OK(close(other));
	check_file("b", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static bool forbid(long number, int error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* A sandbox refuses calls that could not fail otherwise; an old kernel lacks some. */
static void refused(void **state)
{
	unsigned n = 0;
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int other = open("/dev/null", O_RDONLY);
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0644);
		int copy = dup(fd);

		CHILD(both_go_on(fd, copy, &n));
		CHILD(forbid(SYS_close_range, ENOSYS) && forbid(SYS_dup3, EPERM));
#ifdef SYS_dup2
		CHILD(forbid(SYS_dup2, EPERM));
#endif
		CHILD(close_range((unsigned)copy, (unsigned)copy, 0) == -1 && errno == ENOSYS);
		CHILD(both_go_on(fd, copy, &n));
		CHILD(dup2(other, copy) == -1 && errno == EPERM);
		CHILD(both_go_on(fd, copy, &n));
		CHILD(dup3(other, copy, O_CLOEXEC) == -1 && errno == EPERM);
		CHILD(both_go_on(fd, copy, &n));
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 80);
	OK(unlink("a"));
}

/* Without close_range the C library closes what /proc lists. */
static void refused_all(void **state)
{
	struct rlimit few = {.rlim_cur = 64, .rlim_max = 64};
	pid_t pid;

	(void)state;
	if (!dlsym(RTLD_DEFAULT, "closefrom")) {
		print_message("skipped: this C library has no closefrom\n");
		skip();
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC, 0644);
		unsigned n = 0;

		CHILD(dup2(fd, 200) == 200 && dup2(fd, 203) == 203);
		CHILD(dup2(open("/dev/null", O_RDONLY), 205) == 205);
		CHILD(both_go_on(fd, 203, &n));
		CHILD(forbid(SYS_close_range, ENOSYS));
		closefrom(201);
		CHILD(fcntl(203, F_GETFD) == -1 && errno == EBADF);
		CHILD(fcntl(205, F_GETFD) == -1 && errno == EBADF);
		CHILD(both_go_on(fd, 200, &n));
		/* nor when there is no number left to list them with */
		CHILD(setrlimit(RLIMIT_NOFILE, &few) == 0);
		while (dup(fd) >= 0)
			;
		CHILD(errno == EMFILE);
		closefrom(fd + 1);
		CHILD(fcntl(fd + 1, F_GETFD) == -1 && fcntl(200, F_GETFD) == -1);
		CHILD(both_go_on(fd, fd, &n));
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 60);
	OK(unlink("a"));
}

static void over_stdout(void **state)
{
	int saved, fd;

	(void)state;
	fflush(stdout);
	saved = OK(dup(1));
	fd = open_staged("a", 0);
	OK(dup2(fd, 1));
	OK(close(fd));
	write_records(1, RECORDS, RECORDS);
	OK(dup2(saved, 1));
	OK(close(saved));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

static void status_flags(void **state)
{
	int fd = open_new("a", 0);
	int plain = OK(fcntl(fd, F_GETFL));
	char bytes[RECORD];

	(void)state;
	write_records(fd, 0, RECORDS);
	assert_int_equal(OK(fcntl(fd, F_GETFL)), plain);
	OK(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
	assert_int_equal(OK(fcntl(fd, F_GETFL)), plain | O_APPEND | O_NONBLOCK);
	OK(lseek(fd, 0, SEEK_SET));
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(OK(fcntl(fd, F_GETFL)), plain | O_APPEND | O_NONBLOCK);
	OK(fcntl(fd, F_SETFL, 0));
	assert_int_equal(OK(fcntl(fd, F_GETFL)), plain);
	assert_int_equal(OK(pread(fd, bytes, RECORD, STAGED)), RECORD);
	check_records(bytes, RECORDS, 1);
	OK(lseek(fd, 0, SEEK_SET));
	write_records(fd, 0, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	FAILS(fcntl(fd, F_GETFL), EBADF);
	OK(unlink("a"));
}

static volatile sig_atomic_t lease_broken_fd;

static void lease_broken(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	lease_broken_fd = info->si_fd;
}

/* The library leases files, too: the program must neither see that nor lose a lease of its own. */
static void leases(void **state)
{
	struct sigaction act = {.sa_sigaction = lease_broken, .sa_flags = SA_SIGINFO}, before;
	int number = SIGRTMIN + 3, fd;
	struct f_owner_ex owner = {0};
	pid_t pid;

	(void)state;
	assert_int_equal(sigaction(number, &act, &before), 0);
	for (int late = 0; late < 2; late++) {
		unsigned n = 0;

		fd = open_new("a", O_APPEND);
		if (late) {
			write_records(fd, RECORDS * n++, RECORDS);
			assert_int_equal(OK(fcntl(fd, F_GETLEASE)), F_UNLCK);
			write_records(fd, RECORDS * n++, RECORDS);
			assert_int_equal(OK(fcntl(fd, F_GETSIG)), 0);
			write_records(fd, RECORDS * n++, RECORDS);
			assert_int_equal(OK(fcntl(fd, F_GETOWN)), 0);
			write_records(fd, RECORDS * n++, RECORDS);
		}
		OK(fcntl(fd, F_SETSIG, number));
		if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0) {
			OK(close(fd));
			OK(unlink("a"));
			print_message("SKIP reason: no leases here\n");
			skip();
		}
		for (int i = 0; i < 10; i++) {
			write_records(fd, RECORDS * n++, RECORDS);
			OK(fsync(fd));
		}
		assert_int_equal(OK(fcntl(fd, F_GETLEASE)), F_WRLCK);
		assert_int_equal(OK(fcntl(fd, F_GETSIG)), number);
		OK(fcntl(fd, F_GETOWN_EX, &owner));
		assert_int_equal(owner.pid, getpid());
		lease_broken_fd = -1;
		fflush(stdout);
		pid = fork();
		if (pid == 0)
			_exit(open("a", O_RDONLY) < 0);
		while (lease_broken_fd < 0)
			usleep(1000);
		assert_int_equal(lease_broken_fd, fd);
		OK(fcntl(fd, F_SETLEASE, F_UNLCK));
		check_exit(pid, 0);
		OK(close(fd));
		check_file("a", 0, RECORDS * n);
		OK(unlink("a"));
	}
	assert_int_equal(sigaction(number, &before, NULL), 0);
}

static void ranges(void **state)
{
	int a = open_staged("a", 0), b = open_staged("b", 0);
	int high_a = OK(dup2(a, 200)), high_b = OK(dup2(b, 201));
	struct stat st;

	(void)state;
	OK(close_range(200, 201, CLOSE_RANGE_CLOEXEC));
	assert_int_equal(fcntl(200, F_GETFD), FD_CLOEXEC);
	write_records(high_a, RECORDS, 1);
	write_records(high_b, RECORDS, 1);
	OK(close(a));
	OK(close(b));
	OK(close_range(200, 200, 0));
	FAILS(write(200, "x", 1), EBADF);
	check_file("a", 0, RECORDS + 1);
	write_records(high_b, RECORDS + 1, 1);
	closefrom(200);
	FAILS(write(201, "x", 1), EBADF);
	FAILS(fstat(201, &st), EBADF);
	check_file("b", 0, RECORDS + 2);
	FAILS(close_range(10, 5, 0), EINVAL);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* Daemons close all numbers there are; the library's own must outlive it, and the program not notice them. */
static void all_of_them(void **state)
{
	int keep = OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	long most = sysconf(_SC_OPEN_MAX);

	(void)state;
	write_records(keep, 0, RECORDS);
	for (int fd = 3; fd < most && fd < 70000; fd++)
		if (fd != keep)
			close(fd);
	write_records(keep, RECORDS, RECORDS);
	OK(fsync(keep));
	OK(close_range((unsigned)keep + 1, ~0u, 0));
	write_records(keep, 2 * RECORDS, RECORDS);
	closefrom(keep + 1);
	write_records(keep, 3 * RECORDS, RECORDS);
	check_file("a", 0, 4 * RECORDS);
	OK(close(keep));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

/* What is closed is closed, and never open. */
static void not_open(void **state)
{
	char byte;
	int fd = open_staged("a", 0);

	(void)state;
	OK(close(fd));
	FAILS(close(fd), EBADF);
	FAILS(write(fd, "x", 1), EBADF);
	FAILS(pwrite(fd, "x", 1, 0), EBADF);
	FAILS(read(fd, &byte, 1), EBADF);
	FAILS(lseek(fd, 0, SEEK_CUR), EBADF);
	FAILS(fsync(fd), EBADF);
	FAILS(ftruncate(fd, 0), EBADF);
	FAILS(write(-1, "x", 1), EBADF);
	FAILS(close(-1), EBADF);
	/* a descriptor of the library is none of the program's */
	fd = open_staged("a", 0);
	for (int i = fd + 1; i < 3000; i++) {
		FAILS(close(i), EBADF);
		FAILS(dup(i), EBADF);
		FAILS(fcntl(i, F_GETFL), EBADF);
	}
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

/* Any number that is free for the program natively is free for it here. */
static void high_numbers(void **state)
{
	struct rlimit limit;
	int fd = open_staged("a", 0);

	(void)state;
	OK(getrlimit(RLIMIT_NOFILE, &limit));
	for (int to = 10; (rlim_t)to < limit.rlim_cur && to < 5000; to++) {
		assert_int_equal(OK(dup2(fd, to)), to);
		OK(close(to));
	}
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* first: while the library has nothing open yet */
		cmocka_unit_test(leases),      cmocka_unit_test(seeking),      cmocka_unit_test(duplicates),
		cmocka_unit_test(replacing),   cmocka_unit_test(over_stdout),  cmocka_unit_test(status_flags),
		cmocka_unit_test(ranges),      cmocka_unit_test(not_open),     cmocka_unit_test(high_numbers),
		cmocka_unit_test(all_of_them), cmocka_unit_test(not_replaced), cmocka_unit_test(refused),
		cmocka_unit_test(refused_all),
	};

	close_inherited();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
