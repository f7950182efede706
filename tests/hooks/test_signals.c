// SPDX-License-Identifier: Apache-2.0
/* Threads that the program did not make must not be felt through its signals. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>

/* What each thread has of it comes out of its stack, also in those of the library: nothing would be staged if
 * they could not be made. */
static __thread volatile char much[1 << 20];

static void *wait_for_ever(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static void nap(int milliseconds)
{
	struct timespec t = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

	nanosleep(&t, NULL);
}

/* Blocked by every thread and pending for the process: there until the program asks for it. */
static void stay_pending(void **state)
{
	static const int numbers[] = {SIGUSR1, SIGIO, SIGTERM, 63, 64};
	struct timespec soon = {.tv_sec = 5};
	sigset_t set, before;
	int fd;

	(void)state;
	sigemptyset(&set);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		sigaddset(&set, numbers[i]);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
	fd = open_staged("a", O_APPEND);
	much[sizeof much - 1] = 1;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		OK(kill(getpid(), numbers[i]));
	/* bytes are flushed and leases come and go meanwhile */
	for (unsigned i = 1; i <= 3; i++) {
		nap(150);
		write_records(fd, i * RECORDS, RECORDS);
	}
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		int got = sigtimedwait(&set, NULL, &soon);

		if (got < 0)
			fail_msg("signal %zu of those sent is missing", i);
		sigdelset(&set, got);
	}
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		sigaddset(&set, numbers[i]);
	soon = (struct timespec){0};
	FAILS(sigtimedwait(&set, NULL, &soon), EAGAIN);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
	OK(close(fd));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

/* The C library makes every thread of the process follow, and waits for each. */
static void change_of_user(void **state)
{
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		pthread_t thread;
		char record[RECORD];
		int fd;

		alarm(120);
		CHILD(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
		fd = open("b", O_WRONLY | O_CREAT | O_TRUNC, 0644);
		CHILD(fd >= 0);
		for (unsigned i = 0; i < 2 * RECORDS; i++) {
			record_fill(record, i);
			CHILD(write(fd, record, RECORD) == RECORD);
			if (i % RECORDS == RECORDS / 2)
				CHILD(setuid(getuid()) == 0 && setgid(getgid()) == 0);
		}
		CHILD(close(fd) == 0);
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("b"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stay_pending),
		cmocka_unit_test(change_of_user),
	};

	close_inherited();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
