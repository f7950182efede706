// SPDX-License-Identifier: Apache-2.0
/* log: the formatter, the rate limit, and that a message harms nothing. */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Descriptor 2 is a pipe while a test captures it. */
static int saved_stderr = -1;
static int pipe_read = -1;
static char captured[64 * 1024];

static void capture_begin(void)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	assert_true(fcntl(ends[0], F_SETPIPE_SZ, sizeof(captured)) > 0);
	assert_int_equal(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
	saved_stderr = dup(2);
	assert_int_equal(dup2(ends[1], 2), 2);
	close(ends[1]);
	pipe_read = ends[0];
}

static const char *capture_end(void)
{
	ssize_t n = read(pipe_read, captured, sizeof(captured) - 1);

	captured[n > 0 ? n : 0] = '\0';
	dup2(saved_stderr, 2);
	close(saved_stderr);
	close(pipe_read);
	return captured;
}

static unsigned count(const char *text, const char *part)
{
	unsigned n = 0;

	for (; (text = strstr(text, part)) != NULL; text++)
		n++;
	return n;
}

/* Waits for a fresh second, so that the rate limit starts anew and the test does not straddle two. */
static int set_up(void **state)
{
	struct timespec now;

	(void)state;
	clock_gettime(CLOCK_MONOTONIC, &now);
	struct timespec rest = {.tv_nsec = 1000000000 - now.tv_nsec};
	nanosleep(&rest, NULL);
	log_set_level(LOG_DEBUG);
	log_set_sink(NULL);
	return 0;
}

#define CHECK(expected, ...) \
	do { \
		char buf[128]; \
		size_t n = log_format(buf, sizeof(buf), __VA_ARGS__); \
		assert_string_equal(buf, expected); \
		assert_int_equal(n, strlen(expected)); \
	} while (0)

static void test_format(void **state)
{
	(void)state;
	CHECK("", "%s", "");
	CHECK("plain", "plain");
	CHECK("a b c", "a %s c", "b");
	CHECK("0 -1 2147483647 -2147483648", "%d %d %d %d", 0, -1, INT_MAX, INT_MIN);
	CHECK("-9223372036854775808", "%ld", LONG_MIN);
	CHECK("-9223372036854775808", "%lld", LLONG_MIN);
	CHECK("4294967295 18446744073709551615", "%u %lu", UINT_MAX, ULONG_MAX);
	CHECK("18446744073709551615", "%llu", ULLONG_MAX);
	CHECK("18446744073709551615", "%zu", (size_t)-1);
	CHECK("0 ff deadbeef ffffffffffffffff", "%x %x %x %lx", 0u, 0xffu, 0xdeadbeefu, ULONG_MAX);
	CHECK("100%", "%d%%", 100);
	CHECK("x", "%c", 'x');
	const char *volatile none = NULL; /* volatile: else the compiler warns of what is meant here */
	CHECK("(null)", "%s", none);
	/* the arguments behind each other keep their order across sizes */
	CHECK("1 2 3 four 5", "%d %lu %llu %s %u", 1, 2ul, 3ull, "four", 5u);
}

static void test_format_agrees_with_libc(void **state)
{
	(void)state;
	static const long long values[] = {0, 1, 9, 10, 99, 100, 255, 256, 4096, INT_MAX, LLONG_MAX, -1, -10};

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		char ours[128], theirs[128];
		log_format(ours, sizeof(ours), "%lld|%llu|%llx|%d|%u", values[i], values[i], values[i],
		           (int)values[i], (unsigned)values[i]);
		snprintf(theirs, sizeof(theirs), "%lld|%llu|%llx|%d|%u", values[i], values[i], values[i],
		         (int)values[i], (unsigned)values[i]);
		assert_string_equal(ours, theirs);
	}
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
static void test_format_unknown_conversion(void **state)
{
	(void)state;
	CHECK("a %(bad format)", "a %f %s", 1.0, (const char *)1); /* the second is never looked at */
	CHECK("a%(bad format)", "a%");
}
#pragma GCC diagnostic pop

static void test_format_truncates(void **state)
{
	char buf[8];

	(void)state;
	memset(buf, 'Z', sizeof(buf));
	assert_int_equal(log_format(buf, 5, "%s", "123456789"), 4);
	assert_string_equal(buf, "1234");
	assert_int_equal(buf[5], 'Z');
	assert_int_equal(log_format(buf, 1, "%d", 12345), 0);
	assert_string_equal(buf, "");
	assert_int_equal(log_format(buf, sizeof(buf), "%lu", 12345678ul), 7);
	assert_string_equal(buf, "1234567");
}

static void test_line(void **state)
{
	(void)state;
	capture_begin();
	log_warn("file %s: error %d", "/data/x", 28);
	assert_string_equal(capture_end(), "fastwrite: file /data/x: error 28\n");
}

static void test_levels(void **state)
{
	(void)state;
	log_set_level(LOG_WARN);
	capture_begin();
	log_error("one");
	log_warn("two");
	log_info("three");
	log_debug("four");
	log_line(LOG_OFF, "five");
	assert_string_equal(capture_end(), "fastwrite: one\nfastwrite: two\n");
	assert_true(log_enabled(LOG_WARN));
	assert_false(log_enabled(LOG_INFO));

	log_set_level(LOG_OFF);
	capture_begin();
	log_error("one");
	assert_string_equal(capture_end(), "");
}

static void test_line_stays_one_line(void **state)
{
	char longest[4 * LOG_LINE_MAX];

	(void)state;
	capture_begin();
	log_warn("a%sb", "\n\r\t\x1b\x7f");
	assert_string_equal(capture_end(), "fastwrite: a?????b\n");

	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	capture_begin();
	log_warn("%s", longest);
	const char *line = capture_end();
	assert_true(strlen(line) < LOG_LINE_MAX);
	assert_true(strlen(line) > LOG_LINE_MAX - 10);
	assert_int_equal(line[strlen(line) - 1], '\n');
}

static void test_rate_limit(void **state)
{
	(void)state;
	capture_begin();
	for (int i = 0; i < 1000; i++)
		log_warn("message %d", i);
	const char *text = capture_end();
	assert_int_equal(count(text, "message "), LOG_BURST);
	assert_non_null(strstr(text, "message 0\n"));
	assert_non_null(strstr(text, "message 9\n"));

	set_up(state); /* the next second */
	capture_begin();
	log_warn("later");
	log_warn("again");
	assert_string_equal(capture_end(),
	                    "fastwrite: 990 messages dropped\nfastwrite: later\nfastwrite: again\n");
}

static void test_suppressed_levels_cost_no_budget(void **state)
{
	(void)state;
	log_set_level(LOG_WARN);
	capture_begin();
	for (int i = 0; i < 100; i++)
		log_info("quiet");
	log_warn("heard");
	assert_string_equal(capture_end(), "fastwrite: heard\n");
}

static void test_errno_is_kept(void **state)
{
	(void)state;
	int closed = dup(2);
	close(2);
	errno = ENOSPC;
	log_error("nobody hears this");
	int after = errno;
	dup2(closed, 2);
	close(closed);
	assert_int_equal(after, ENOSPC);
}

static void test_closed_pipe_does_not_kill(void **state)
{
	sigset_t pending, mask;
	int ends[2];

	(void)state;
	signal(SIGPIPE, SIG_DFL);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	int before = dup(2);
	dup2(ends[1], 2);
	close(ends[0]);
	close(ends[1]);
	log_error("into the void"); /* SIGPIPE would end the test program here */
	dup2(before, 2);
	close(before);
	sigpending(&pending);
	assert_false(sigismember(&pending, SIGPIPE));
	sigprocmask(SIG_BLOCK, NULL, &mask);
	assert_false(sigismember(&mask, SIGPIPE));
}

static void test_pending_sigpipe_stays_pending(void **state)
{
	sigset_t set, pending;
	int ends[2];
	struct timespec now = {0};

	(void)state;
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	sigprocmask(SIG_BLOCK, &set, NULL);
	raise(SIGPIPE);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	int before = dup(2);
	dup2(ends[1], 2);
	close(ends[0]);
	close(ends[1]);
	log_error("into the void");
	dup2(before, 2);
	close(before);
	sigpending(&pending);
	int kept = sigismember(&pending, SIGPIPE);
	sigtimedwait(&set, NULL, &now);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	assert_int_equal(kept, 1);
}

static char sunk[256];

static void sink(const char *line, size_t size) { memcpy(sunk + strlen(sunk), line, size); }

static void test_sink(void **state)
{
	(void)state;
	capture_begin();
	log_set_sink(sink);
	log_warn("elsewhere");
	log_set_sink(NULL);
	assert_string_equal(capture_end(), "");
	assert_string_equal(sunk, "fastwrite: elsewhere\n");
}

/* ---- the system's log ---- */

static char socket_path[64];
static int listener = -1;

static int listen_up(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};

	snprintf(socket_path, sizeof socket_path, "/tmp/fastwrite-log-%d", (int)getpid());
	snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
	listener = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
	log_set_syslog(socket_path);
	return set_up(state);
}

static int listen_down(void **state)
{
	(void)state;
	close(listener);
	unlink(socket_path);
	log_set_target(LOG_TO_STDERR);
	log_set_syslog(NULL);
	return 0;
}

static const char *heard(void)
{
	static char text[2048];
	ssize_t n = recv(listener, text, sizeof text - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return text;
}

static const char *expected(int priority, const char *text)
{
	static char line[256];
	char program[16];

	prctl(PR_GET_NAME, program);
	snprintf(line, sizeof line, "<%d>fastwrite[%d]: %s: %s", priority, (int)getpid(), program, text);
	return line;
}

static void test_syslog_gets_errors_and_warnings(void **state)
{
	(void)state;
	capture_begin();
	log_error("first"); /* (nobody has asked for it) */
	assert_string_equal(heard(), "");
	log_set_target(LOG_TO_SYSLOG);
	log_error("an error %d", 28);
	assert_string_equal(heard(), expected(11, "an error 28"));
	log_warn("a\nwarning");
	assert_string_equal(heard(), expected(12, "a?warning"));
	log_info("chatter");
	assert_string_equal(heard(), "");
	log_set_target(LOG_TO_BOTH);
	log_warn("for all");
	assert_string_equal(heard(), expected(12, "for all"));
	assert_string_equal(capture_end(), "fastwrite: first\nfastwrite: chatter\nfastwrite: for all\n");
}

static void test_syslog_counts_what_was_dropped(void **state)
{
	unsigned lines = 0, said = 0;

	log_set_target(LOG_TO_SYSLOG);
	for (int i = 0; i < 2 * LOG_BURST; i++)
		log_warn("one of many");
	while (*heard() != '\0')
		lines++;
	assert_int_equal(lines, LOG_BURST);
	set_up(state);
	log_warn("later");
	for (const char *line; *(line = heard()) != '\0';)
		said += strcmp(line, expected(12, "10 messages dropped")) == 0;
	assert_int_equal(said, 1);
}

/* The listener is behind: the line goes to descriptor 2, and nobody waits. */
static void test_a_full_queue_stops_nobody(void **state)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int sender = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	(void)state;
	snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
	while (sendto(sender, "x", 1, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof at) == 1)
		;
	assert_int_equal(errno, EAGAIN);
	log_set_target(LOG_TO_SYSLOG);
	capture_begin();
	log_warn("nobody reads");
	assert_string_equal(capture_end(), "fastwrite: nobody reads\n");
	while (*heard() == 'x')
		;
	log_warn("somebody reads");
	assert_string_equal(heard(), expected(12, "somebody reads"));
	close(sender);
}

static void test_nobody_listens(void **state)
{
	(void)state;
	log_set_target(LOG_TO_SYSLOG);
	close(listener);
	capture_begin();
	log_warn("refused"); /* the name is there still */
	unlink(socket_path);
	log_warn("missing");
	assert_string_equal(capture_end(), "fastwrite: refused\nfastwrite: missing\n");
	listener = -1;
}

/* Descriptor numbers, errno and pending signals are as before; also without room for a high number, and for
 * any at all: then the line goes to descriptor 2. */
static void test_syslog_leaves_no_trace(void **state)
{
	struct rlimit old, limit;
	int next = dup(0), limits[] = {0, next + 3, next + 2}; /* (two are the capture's) */
	sigset_t pending, all;

	(void)state;
	close(next);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
	log_set_target(LOG_TO_SYSLOG);
	sigfillset(&all);
	for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
		capture_begin();
		limit = old;
		if (limits[i])
			limit.rlim_cur = (rlim_t)limits[i];
		setrlimit(RLIMIT_NOFILE, &limit);
		errno = ENOTTY;
		log_warn("trace");
		assert_int_equal(errno, ENOTTY);
		setrlimit(RLIMIT_NOFILE, &old);
		assert_string_equal(capture_end(), limits[i] ? "fastwrite: trace\n" : "");
		assert_string_equal(heard(), limits[i] ? "" : expected(12, "trace"));
	}
	sigpending(&pending);
	assert_int_equal(sigisemptyset(&pending), 1);
	assert_int_equal(dup(0), next);
	close(next);
}

static void on_signal(int number)
{
	(void)number;
	log_warn("from a handler");
}

static void test_syslog_in_a_signal_handler(void **state)
{
	(void)state;
	log_set_target(LOG_TO_SYSLOG);
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
	assert_string_equal(heard(), expected(12, "from a handler"));
	signal(SIGUSR1, SIG_DFL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
#define LISTENING(name) cmocka_unit_test_setup_teardown(name, listen_up, listen_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_format),
		cmocka_unit_test(test_format_agrees_with_libc),
		cmocka_unit_test(test_format_unknown_conversion),
		cmocka_unit_test(test_format_truncates),
		TEST(test_line),
		TEST(test_levels),
		TEST(test_line_stays_one_line),
		TEST(test_rate_limit),
		TEST(test_suppressed_levels_cost_no_budget),
		TEST(test_errno_is_kept),
		TEST(test_closed_pipe_does_not_kill),
		TEST(test_pending_sigpipe_stays_pending),
		TEST(test_sink),
		LISTENING(test_syslog_gets_errors_and_warnings),
		LISTENING(test_syslog_counts_what_was_dropped),
		LISTENING(test_a_full_queue_stops_nobody),
		LISTENING(test_nobody_listens),
		LISTENING(test_syslog_leaves_no_trace),
		LISTENING(test_syslog_in_a_signal_handler),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
