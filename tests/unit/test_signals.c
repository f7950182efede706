// SPDX-License-Identifier: Apache-2.0
/* signals: what comes in a short section runs after it, once, with its information; handlers stay the
 * program's. */
#include "base/signals.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { EARLY = SIGUSR1, QUEUED = SIGUSR2, VALUE = 4711, SEEN_MOST = 16 };

static struct {
	volatile int count, numbers[SEEN_MOST], values[SEEN_MOST];
	volatile uint32_t states[SEEN_MOST];
} seen;

static void note(int number, int value)
{
	int i = seen.count++;

	if (i < SEEN_MOST) {
		seen.numbers[i] = number;
		seen.values[i] = value;
		seen.states[i] = signals_state;
	}
}

static void plain(int number) { note(number, 0); }

static void informed(int number, siginfo_t *info, void *context)
{
	(void)context;
	note(number, info->si_value.sival_int);
}

/* As the hook of sigaction does. */
static int set(int number, const struct sigaction *act, struct sigaction *old)
{
	return signals_action(number, act, old, true, sigaction);
}

static void set_informed(int number, int flags)
{
	struct sigaction act = {.sa_sigaction = informed, .sa_flags = SA_SIGINFO | flags};

	assert_int_equal(set(number, &act, NULL), 0);
}

static void send_value(int number, int value)
{
	assert_int_equal(sigqueue(getpid(), number, (union sigval){.sival_int = value}), 0);
}

static void mask_is_empty(void)
{
	sigset_t now, empty;

	sigemptyset(&empty);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &now), 0);
	assert_memory_equal(&now, &empty, 8);
}

static int begin(void **state)
{
	(void)state;
	seen.count = 0;
	return 0;
}

/* No handler is caught in a process with a sanitizer: it has handlers of its own. */
static void needs_short_sections(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	print_message("skipped: there are no short sections under this sanitizer\n");
	skip();
#endif
}

/* A handler from before signals_catch, as Python's of SIGINT. */
static int catch_early(void **state)
{
	struct sigaction act = {.sa_handler = plain};

	(void)state;
	sigaction(EARLY, &act, NULL);
	signals_catch();
	return 0;
}

static void test_early_handler_is_caught(void **state)
{
	struct sigaction kernel, shown;
	sys_sigset before;

	(void)state;
	needs_short_sections();
	assert_int_equal(sigaction(EARLY, NULL, &kernel), 0);
	assert_int_equal(set(EARLY, NULL, &shown), 0);
	assert_ptr_not_equal(kernel.sa_handler, plain);
	assert_ptr_equal(shown.sa_handler, plain);
	assert_int_equal(shown.sa_flags & SA_SIGINFO, 0);
	assert_ptr_equal(signals_handler(EARLY, kernel.sa_handler), plain);
	before = signals_hold_short();
	raise(EARLY);
	assert_int_equal(seen.count, 0);
	signals_release(before);
	assert_int_equal(seen.count, 1);
	assert_int_equal(seen.states[0], SIGNALS_FREE);
	mask_is_empty();
}

/* It would come again while it is sent. */
static void test_signal_that_does_not_block_itself(void **state)
{
	sys_sigset before;

	(void)state;
	needs_short_sections();
	set_informed(QUEUED, SA_NODEFER);
	before = signals_hold_short();
	send_value(QUEUED, VALUE);
	assert_int_equal(seen.count, 0);
	signals_release(before);
	assert_int_equal(seen.count, 1);
	assert_int_equal(seen.values[0], VALUE);
	mask_is_empty();
}

/* The kernel calls the handlers of all pending signals, each before the last has begun. */
static void test_several_at_once(void **state)
{
	static const int numbers[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGWINCH, SIGIO};
	enum { COUNT = sizeof numbers / sizeof *numbers };
	sigset_t all, open;
	sys_sigset before;

	(void)state;
	needs_short_sections();
	sigfillset(&all);
	sigemptyset(&open);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	for (int i = 0; i < COUNT; i++) {
		set_informed(numbers[i], i % 2 ? SA_NODEFER : 0);
		send_value(numbers[i], VALUE + numbers[i]);
	}
	before = signals_hold_short();
	pthread_sigmask(SIG_SETMASK, &open, NULL);
	assert_int_equal(seen.count, 0);
	assert_int_equal(signals_state, SIGNALS_BLOCKED);
	signals_release(before);
	assert_int_equal(seen.count, COUNT);
	for (int i = 0; i < COUNT; i++) {
		assert_int_equal(seen.values[i] - VALUE, seen.numbers[i]);
		assert_int_equal(seen.states[i], SIGNALS_FREE);
	}
	mask_is_empty();
}

static void test_sections_within_sections(void **state)
{
	sys_sigset outer, inner, third;

	(void)state;
	needs_short_sections();
	set_informed(QUEUED, 0);
	outer = signals_hold_short();
	inner = signals_hold_short();
	third = signals_hold(); /* from here on really */
	send_value(QUEUED, VALUE);
	assert_int_equal(signals_state, SIGNALS_BLOCKED);
	signals_release(third);
	signals_release(inner);
	assert_int_equal(seen.count, 0);
	signals_release(outer);
	assert_int_equal(seen.count, 1);
	outer = signals_hold();
	inner = signals_hold_short();
	send_value(QUEUED, VALUE);
	signals_release(inner);
	assert_int_equal(seen.count, 1);
	signals_release(outer);
	assert_int_equal(seen.count, 2);
	mask_is_empty();
}

static void test_hardened_after_a_signal(void **state)
{
	sys_sigset before;

	(void)state;
	needs_short_sections();
	set_informed(QUEUED, 0);
	before = signals_hold_short();
	send_value(QUEUED, VALUE);
	signals_harden();
	send_value(QUEUED, VALUE + 1);
	assert_int_equal(seen.count, 0);
	signals_release(before);
	assert_int_equal(seen.count, 2);
	mask_is_empty();
}

static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* It ends the process, as it does where signals are blocked.  A signal that somebody sends is none. */
static void test_fault(void **state)
{
	sys_sigset before;
	char *page;
	pid_t pid;

	(void)state;
	needs_short_sections();
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(page, MAP_FAILED);
	set_informed(SIGSEGV, 0);
	pid = fork();
	if (pid == 0) {
		(void)signals_hold_short();
		*(volatile char *)page = 1;
		_exit(0);
	}
	assert_int_equal(WTERMSIG(status_of(pid)), SIGSEGV);
	before = signals_hold_short();
	kill(getpid(), SIGSEGV);
	assert_int_equal(seen.count, 0);
	signals_release(before);
	assert_int_equal(seen.count, 1);
	set(SIGSEGV, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
	munmap(page, 4096);
}

static void test_handlers_come_and_go(void **state)
{
	struct sigaction plain_act = {.sa_handler = plain, .sa_flags = SA_RESTART}, old;
	struct sigaction none = {.sa_handler = SIG_IGN};

	(void)state;
	needs_short_sections();
	set_informed(QUEUED, SA_ONSTACK);
	assert_int_equal(set(QUEUED, &plain_act, &old), 0);
	assert_ptr_equal(old.sa_sigaction, informed);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_ONSTACK), SA_SIGINFO | SA_ONSTACK);
	assert_int_equal(set(QUEUED, &none, &old), 0);
	assert_ptr_equal(old.sa_handler, plain);
	assert_int_equal(old.sa_flags & (SA_SIGINFO | SA_RESTART), SA_RESTART);
	assert_int_equal(set(QUEUED, &plain_act, &old), 0);
	assert_ptr_equal(old.sa_handler, SIG_IGN);
	/* in a child with this process's memory: nothing of it may stay here */
	none.sa_handler = (void (*)(int))(uintptr_t)informed;
	assert_int_equal(signals_action(QUEUED, &none, &old, false, sigaction), 0);
	assert_ptr_equal(old.sa_handler, plain);
	assert_int_equal(set(QUEUED, NULL, &old), 0);
	assert_ptr_equal(old.sa_handler, none.sa_handler);
	plain_act.sa_handler = SIG_DFL;
	assert_int_equal(set(QUEUED, &plain_act, NULL), 0);
	assert_int_equal(set(SIGKILL, &plain_act, NULL), -1);
}

static void *storm(void *arg)
{
	pthread_t thread = *(pthread_t *)arg;

	for (int i = 0; i < 2000; i++)
		pthread_kill(thread, i % 2 ? EARLY : QUEUED);
	return NULL;
}

/* Each section begins and ends in order, whenever signals come. */
static void test_storm(void **state)
{
	pthread_t self = pthread_self(), thread;
	bool ends = false;

	(void)state;
	needs_short_sections();
	set_informed(QUEUED, 0);
	assert_int_equal(pthread_create(&thread, NULL, storm, &self), 0);
	while (!ends) {
		sys_sigset before = signals_hold_short();
		int count = seen.count;

		for (volatile int i = 0; i < 50; i++)
			;
		if (count % 3 == 0)
			signals_harden();
		assert_int_equal(seen.count, count);
		signals_release(before);
		ends = pthread_tryjoin_np(thread, NULL) == 0;
	}
	assert_true(seen.count > 0);
	assert_int_equal(signals_state, SIGNALS_FREE);
	mask_is_empty();
}

/* A handler that cannot be called later as it would be now ends short sections. */
static void test_refused(void **state)
{
	static const struct {
		int number, flags;
	} refused[] = {{QUEUED, (int)SA_RESETHAND}, {40, 0}, {34, 0}, {64, 0}, {SIGCONT, 0}, {SIGTSTP, 0}};

	(void)state;
	needs_short_sections();
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
		struct sigaction act = {.sa_handler = plain, .sa_flags = refused[i].flags}, kernel;
		sys_sigset before;
		pid_t pid = fork();

		if (pid != 0) {
			assert_int_equal(status_of(pid), 0);
			continue;
		}
		if (set(refused[i].number, &act, NULL) != 0 ||
		    sigaction(refused[i].number, NULL, &kernel) != 0 || kernel.sa_handler != plain ||
		    signals_caught)
			_exit(1);
		before = signals_hold_short();
		raise(refused[i].number);
		if (signals_state != SIGNALS_BLOCKED || seen.count != 0)
			_exit(2);
		signals_release(before);
		_exit(seen.count == 1 ? 0 : 3);
	}
	assert_true(signals_caught);
}

/* Signals are blocked in a section, with a section in between. */
static void test_blocked_in_a_section(void **state)
{
	sys_sigset outer, all, inner;

	(void)state;
	needs_short_sections();
	outer = signals_hold_short();
	all = signals_block();
	inner = signals_hold();
	raise(EARLY);
	signals_release(inner);
	sys_restore_signals(all);
	assert_int_equal(seen.count, 0);
	signals_release(outer);
	assert_int_equal(seen.count, 1);
	mask_is_empty();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_early_handler_is_caught, begin),
		cmocka_unit_test_setup(test_signal_that_does_not_block_itself, begin),
		cmocka_unit_test_setup(test_several_at_once, begin),
		cmocka_unit_test_setup(test_sections_within_sections, begin),
		cmocka_unit_test_setup(test_blocked_in_a_section, begin),
		cmocka_unit_test_setup(test_hardened_after_a_signal, begin),
		cmocka_unit_test_setup(test_fault, begin),
		cmocka_unit_test_setup(test_handlers_come_and_go, begin),
		cmocka_unit_test_setup(test_storm, begin),
		cmocka_unit_test_setup(test_refused, begin),
	};

	return cmocka_run_group_tests(tests, catch_early, NULL);
}
