// SPDX-License-Identifier: Apache-2.0
/* Threads that the program did not make must not be felt through its signals. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* siginterrupt */

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

static volatile int plain_count, info_count, info_value;

static void plain(int number)
{
	(void)number;
	plain_count++;
}

static void informed(int number, siginfo_t *info, void *context)
{
	(void)number;
	(void)context;
	info_count++;
	info_value = info->si_value.sival_int;
}

/* The thread sanitizer calls handlers when it likes. */
static void needs_signals(void)
{
#ifdef __SANITIZE_THREAD__
	print_message("skipped: the sanitizer calls handlers later\n");
	skip();
#endif
}

/* What a program has set it finds again, before a file is staged and after it. */
static void check_handlers(void)
{
	struct sigaction act = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO | SA_RESTART}, old;
	void (*was)(int);

	plain_count = info_count = 0;
	sigaddset(&act.sa_mask, SIGTERM);
	OK(sigaction(SIGUSR2, &act, NULL));
	OK(sigaction(SIGUSR2, NULL, &old));
	assert_ptr_equal(old.sa_sigaction, informed);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_RESTART | (int)SA_RESETHAND),
	                 SA_SIGINFO | SA_RESTART);
	assert_int_equal(sigismember(&old.sa_mask, SIGTERM), 1);
	OK(sigqueue(getpid(), SIGUSR2, (union sigval){.sival_int = 4711}));
	assert_int_equal(info_count, 1);
	assert_int_equal(info_value, 4711);

	was = signal(SIGUSR2, plain);
	assert_ptr_equal((void *)was, (void *)informed);
	OK(sigaction(SIGUSR2, NULL, &old));
	assert_ptr_equal(old.sa_handler, plain);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_RESTART), SA_RESTART);
	assert_int_equal(sigismember(&old.sa_mask, SIGUSR2), 1);
	OK(siginterrupt(SIGUSR2, 1));
	OK(sigaction(SIGUSR2, NULL, &old));
	assert_int_equal(old.sa_flags & SA_RESTART, 0);
	assert_ptr_equal(signal(SIGUSR2, plain), plain);
	OK(sigaction(SIGUSR2, NULL, &old));
	assert_int_equal(old.sa_flags & SA_RESTART, 0);
	OK(siginterrupt(SIGUSR2, 0));
	raise(SIGUSR2);
	assert_int_equal(plain_count, 1);
	assert_ptr_equal(signal(SIGUSR2, SIG_IGN), plain);
	raise(SIGUSR2);
	assert_int_equal(plain_count, 1);
	assert_ptr_equal(signal(SIGUSR2, SIG_DFL), SIG_IGN);
	FAILS(sigaction(SIGKILL, &act, NULL), EINVAL);
	FAILS(sigaction(1000, &act, NULL), EINVAL);
	errno = 0;
	assert_ptr_equal(signal(SIGKILL, plain), SIG_ERR);
	assert_int_equal(errno, EINVAL);
}

static void handlers_are_the_programs(void **state)
{
	int fd;

	(void)state;
	needs_signals();
	signal(SIGUSR1, plain);
	check_handlers();
	fd = open_staged("c", 0);
	check_handlers();
	assert_ptr_equal(signal(SIGUSR1, plain), plain);
	raise(SIGUSR1);
	assert_int_equal(plain_count, 2);
	OK(close(fd));
	OK(unlink("c"));
}

typedef void (*handler)(int number);
handler __sysv_signal(int number, handler set);
handler bsd_signal(int number, handler set) __attribute__((weak));
int __sigaction(int number, const struct sigaction *act, struct sigaction *old) __attribute__((weak));
static handler (*const old_ways[])(int number, handler set) = {bsd_signal, ssignal, sysv_signal,
                                                               __sysv_signal, sigset};

/* Rare functions, and those that a program does not call by this name: each has its own rules, and all agree
 * about what the handler is. */
static void old_names(void **state)
{
	struct sigaction act = {.sa_handler = plain}, old;
	int fd;

	(void)state;
	needs_signals();
	fd = open_staged("i", 0);
	for (size_t i = 0; i < sizeof old_ways / sizeof *old_ways; i++) {
		if (!old_ways[i])
			continue;
		plain_count = 0;
		assert_ptr_equal(signal(SIGUSR1, SIG_DFL), SIG_DFL);
		assert_ptr_equal(old_ways[i](SIGUSR1, plain), SIG_DFL);
		OK(sigaction(SIGUSR1, NULL, &old));
		assert_ptr_equal(old.sa_handler, plain);
		raise(SIGUSR1);
		assert_int_equal(plain_count, 1);
		signal(SIGUSR1, SIG_DFL);
	}
	if (__sigaction) {
		OK(__sigaction(SIGUSR1, &act, NULL));
		OK(__sigaction(SIGUSR1, NULL, &old));
		assert_ptr_equal(old.sa_handler, plain);
		signal(SIGUSR1, SIG_DFL);
	}
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("i", 0, 2 * RECORDS);
	OK(unlink("i"));
}

/* The child has this process's memory, but handlers of its own. */
static void handlers_of_a_child(void **state)
{
	struct sigaction act = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO};
	int fd, status;
	pid_t pid;

	(void)state;
	needs_signals();
	fd = open_staged("d", 0);
	plain_count = info_count = 0;
	signal(SIGUSR1, plain);
	signal(SIGUSR2, plain);
	pid = vfork();
	if (pid == 0) {
		signal(SIGUSR1, SIG_DFL);
		sigaction(SIGUSR2, &act, NULL);
		raise(SIGUSR2);
		_exit(3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 3 << 8);
	assert_int_equal(info_count, 1);
	raise(SIGUSR1);
	raise(SIGUSR2);
	assert_int_equal(plain_count, 2);
	assert_int_equal(info_count, 1);
	assert_ptr_equal(signal(SIGUSR1, SIG_DFL), plain);
	assert_ptr_equal(signal(SIGUSR2, SIG_DFL), plain);
	OK(close(fd));
	OK(unlink("d"));
}

enum { PAGE = 4096, STORM = 3000 };
static int storm_fd;
static volatile int storm_seen, storm_wrong;

/* Writes and looks at the file that the interrupted call writes to. */
static void storm_handler(int number)
{
	int before = errno, seen = storm_seen, back = -1;
	struct stat st;

	(void)number;
	storm_wrong +=
		seen > 0 && (pread(storm_fd, &back, sizeof back, 2 * PAGE) != sizeof back || back != seen);
	seen++;
	storm_wrong += pwrite(storm_fd, &seen, sizeof seen, 2 * PAGE) != sizeof seen;
	storm_wrong += fstat(storm_fd, &st) != 0 || st.st_size < 2 * PAGE + (off_t)sizeof seen;
	storm_wrong += seen % 16 == 0 && fdatasync(storm_fd) != 0;
	storm_seen = seen;
	errno = before;
}

static void *send_storm(void *arg)
{
	pthread_t target = *(pthread_t *)arg;

	for (int i = 1; i <= STORM; i++) {
		pthread_kill(target, SIGUSR1);
		while (storm_seen < i)
			;
	}
	return NULL;
}

/* Each call and each handler's call is whole, wherever the signal comes. */
static void handlers_that_write(void **state)
{
	pthread_t self = pthread_self(), thread;
	int last, count = 0;

	(void)state;
	needs_signals();
	storm_fd = open_staged("e", 0);
	signal(SIGUSR1, storm_handler);
	assert_int_equal(pthread_create(&thread, NULL, send_storm, &self), 0);
	while (storm_seen < STORM) {
		struct stat st;
		int back;

		count++;
		assert_int_equal(pwrite(storm_fd, &count, sizeof count, PAGE), sizeof count);
		assert_int_equal(pread(storm_fd, &back, sizeof back, PAGE), sizeof back);
		assert_int_equal(back, count);
		assert_int_equal(fstat(storm_fd, &st), 0);
		/* the file grows: at its end, too */
		assert_int_equal(pwrite(storm_fd, &count, sizeof count, 3 * PAGE + count % 1000 * 5),
		                 sizeof count);
	}
	assert_int_equal(pthread_join(thread, NULL), 0);
	signal(SIGUSR1, SIG_DFL);
	assert_int_equal(storm_wrong, 0);
	assert_int_equal(pread(storm_fd, &last, sizeof last, 2 * PAGE), sizeof last);
	assert_int_equal(last, STORM);
	OK(close(storm_fd));
	storm_fd = OK(open("e", O_RDONLY));
	assert_int_equal(pread(storm_fd, &last, sizeof last, 2 * PAGE), sizeof last);
	assert_int_equal(last, STORM);
	assert_int_equal(pread(storm_fd, &last, sizeof last, PAGE), sizeof last);
	assert_int_equal(last, count);
	OK(close(storm_fd));
	OK(unlink("e"));
}

static int cancel_fd, cancel_unhandled, cancel_masked, cancel_failed;

/* Runs in the thread that was cancelled: nothing of the call that it was in holds it up. */
static void after_cancel(void *arg)
{
	int before = plain_count;
	sigset_t mask;

	(void)arg;
	cancel_failed += pwrite(cancel_fd, "end", 3, 0) != 3;
	raise(SIGUSR1);
	cancel_unhandled += plain_count == before;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	cancel_masked += sigismember(&mask, SIGTERM);
}

static void *write_for_ever(void *arg)
{
	static const char page[4096];

	pthread_cleanup_push(after_cancel, NULL);
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (unsigned i = 0;; i++) {
		pwrite(cancel_fd, page, sizeof page, (off_t)(i % 16 + 1) * 4096);
		*(volatile int *)arg = 1;
	}
	pthread_cleanup_pop(0);
}

/* The cancellation is a signal, which unwinds the thread wherever it is. */
static void cancelled_at_any_moment(void **state)
{
	enum { THREADS = 100 };
	char back[3];

	(void)state;
	needs_signals();
	cancel_fd = open_staged("h", 0);
	signal(SIGUSR1, plain);
	for (int i = 0; i < THREADS; i++) {
		volatile int writes = 0;
		pthread_t thread;

		assert_int_equal(pthread_create(&thread, NULL, write_for_ever, (void *)&writes), 0);
		while (!writes)
			;
		pthread_cancel(thread);
		assert_int_equal(pthread_join(thread, NULL), 0);
		assert_int_equal(pread(cancel_fd, back, sizeof back, 0), sizeof back);
		assert_memory_equal(back, "end", sizeof back);
	}
	assert_int_equal(cancel_failed, 0);
	assert_int_equal(cancel_unhandled, 0);
	assert_int_equal(cancel_masked, 0);
	signal(SIGUSR1, SIG_DFL);
	OK(close(cancel_fd));
	OK(unlink("h"));
}

/* The kernel forgets such a handler at its first signal. */
static void handler_for_once(void **state)
{
	struct sigaction act = {.sa_handler = plain, .sa_flags = (int)SA_RESETHAND}, old;
	int fd;

	(void)state;
	needs_signals();
	fd = open_staged("f", 0);
	plain_count = 0;
	OK(sigaction(SIGUSR1, &act, NULL));
	write_records(fd, RECORDS, RECORDS);
	raise(SIGUSR1);
	assert_int_equal(plain_count, 1);
	OK(sigaction(SIGUSR1, NULL, &old));
	assert_ptr_equal(old.sa_handler, SIG_DFL);
	signal(SIGUSR2, plain);
	write_records(fd, 2 * RECORDS, RECORDS);
	raise(SIGUSR2);
	assert_int_equal(plain_count, 2);
	signal(SIGUSR2, SIG_DFL);
	OK(close(fd));
	check_file("f", 0, 3 * RECORDS);
	OK(unlink("f"));
}

/* By the system call: the library does not see the handler itself. */
static void handler_by_number(void **state)
{
	struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} own, back;
	int fd;

	(void)state;
	needs_signals();
	fd = open_staged("g", 0);
	plain_count = 0;
	signal(SIGUSR1, plain);
	OK(syscall(SYS_rt_sigaction, SIGUSR1, NULL, &own, 8));
	OK(syscall(SYS_rt_sigaction, SIGUSR2, &own, NULL, 8));
	OK(syscall(SYS_rt_sigaction, SIGUSR1, &own, &back, 8));
	assert_memory_equal(&own, &back, sizeof own);
	write_records(fd, RECORDS, RECORDS);
	raise(SIGUSR1);
	assert_int_equal(plain_count, 1);
	signal(SIGUSR2, SIG_DFL);
	signal(SIGUSR1, SIG_DFL);
	OK(close(fd));
	check_file("g", 0, 2 * RECORDS);
	OK(unlink("g"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stay_pending),
		cmocka_unit_test(change_of_user),
		cmocka_unit_test(handlers_are_the_programs),
		cmocka_unit_test(handlers_of_a_child),
		cmocka_unit_test(handlers_that_write),
		/* the last: from here on signals are blocked in each section */
		cmocka_unit_test(cancelled_at_any_moment),
		cmocka_unit_test(handler_for_once),
		cmocka_unit_test(handler_by_number),
		cmocka_unit_test(old_names),
	};

	close_inherited();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
