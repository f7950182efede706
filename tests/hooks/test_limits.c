// SPDX-License-Identifier: Apache-2.0
/* Many descriptors, no descriptors left, many threads, and signals in the middle of a write. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

enum { MANY = 1000 };

static void raise_limit(void)
{
	struct rlimit limit;

	OK(getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_max < 2 * MANY)
		skip();
	limit.rlim_cur = 2 * MANY;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
}

static void many_files(void **state)
{
	static int fd[MANY];
	char name[16];

	(void)state;
	raise_limit();
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "f%u", i);
		fd[i] = open_new(name, i % 2 ? O_APPEND : 0);
	}
	for (unsigned round = 0; round < RECORDS; round++)
		for (unsigned i = 0; i < MANY; i++)
			write_records(fd[i], i + round, 1);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "f%u", i);
		if (i % 3 == 0)
			check_file(name, i, RECORDS);
		OK(close(fd[i]));
		check_file(name, i, RECORDS);
		OK(unlink(name));
	}
}

static void many_of_one(void **state)
{
	static int fd[MANY];

	(void)state;
	raise_limit();
	fd[0] = open_staged("a", 0);
	for (unsigned i = 1; i < MANY; i++)
		fd[i] = i % 2 ? OK(dup(fd[i - 1])) : OK(open("a", O_WRONLY | O_APPEND));
	for (unsigned i = 1; i < MANY; i++) {
		OK(lseek(fd[i], 0, SEEK_END));
		write_records(fd[i], RECORDS + i - 1, 1);
	}
	for (unsigned i = 0; i < MANY; i++)
		OK(close(fd[i]));
	check_file("a", 0, RECORDS + MANY - 1);
	OK(unlink("a"));
}

static void closefrom_to(int from, int to)
{
	for (int fd = from; fd < to; fd++)
		close(fd);
}

/* As many opens succeed as the limit allows: none of them is taken away by the library. */
static void none_left(void **state)
{
	enum { LIMIT = 64 };
	struct rlimit old, limit;
	static int fd[LIMIT];
	int count = 0, saved_errno, positional, append;

	(void)state;
	OK(getrlimit(RLIMIT_NOFILE, &old));
	limit = old;
	limit.rlim_cur = LIMIT;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	positional = open_staged("a", 0);
	append = open_staged("b", O_APPEND);
	OK(fdatasync(positional));
	write_records(positional, RECORDS, RECORDS);
	write_records(append, RECORDS, RECORDS);
	while (count < LIMIT && (fd[count] = open("c", O_RDWR | O_CREAT | O_CLOEXEC, 0644)) >= 0)
		count++;
	saved_errno = errno;
	assert_int_equal(count, LIMIT - 5); /* 0, 1, 2, and two files */
	assert_int_equal(saved_errno, EMFILE);
	FAILS(dup(positional), EMFILE);
	write_records(positional, 2 * RECORDS, RECORDS);
	write_records(append, 2 * RECORDS, RECORDS);
	write_records(fd[0], 0, RECORDS);
	OK(fsync(positional));
	while (count > 0)
		OK(close(fd[--count]));
	write_records(positional, 3 * RECORDS, RECORDS);
	OK(close(positional));
	OK(close(append));
	OK(setrlimit(RLIMIT_NOFILE, &old));
	check_file("a", 0, 4 * RECORDS);
	check_file("b", 0, 3 * RECORDS);
	check_file("c", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

enum { FORK_LIMIT = 64 };

static bool appends(int fd)
{
	char record[RECORD];

	record_fill(record, 0);
	for (int i = 0; i < 20; i++)
		if (write(fd, record, RECORD) != RECORD)
			return false;
	return true;
}

/* What the limit allows beside 0, 1, 2, `fd` and the two ends of a pipe. */
static bool takes_all(int fd)
{
	int count = 0;

	while (open("c", O_RDWR | O_CREAT | O_CLOEXEC, 0644) >= 0)
		count++;
	if (errno != EMFILE)
		return false;
	for (int other = 0; other < FORK_LIMIT; other++)
		if (fcntl(other, F_GETFD) < 0)
			return false;
	return count == FORK_LIMIT - 6 && appends(fd);
}

/* A child and its parent, while both live. */
static void none_left_after_a_fork(void **state)
{
	struct rlimit old, limit;
	int fd, ends[2], status;
	char all = '?';
	pid_t pid;

	(void)state;
	OK(getrlimit(RLIMIT_NOFILE, &old));
	limit = old;
	limit.rlim_cur = FORK_LIMIT;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	fd = open_staged("a", O_APPEND);
	OK(pipe2(ends, O_CLOEXEC));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		all = takes_all(fd) ? 'y' : 'n';
		CHILD(write(ends[1], &all, 1) == 1);
		for (;;)
			pause();
	}
	assert_true(pid > 0);
	assert_int_equal(read(ends[0], &all, 1), 1);
	OK(kill(pid, all == 'y' ? 0 : SIGKILL));
	assert_int_equal(all, 'y');
	assert_true(takes_all(fd));
	/* who has given its descriptors up lives on, and is found dead when it is */
	OK(kill(pid, SIGKILL));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(appends(fd));
	for (int other = fd + 1; other < FORK_LIMIT; other++)
		OK(close(other));
	OK(setrlimit(RLIMIT_NOFILE, &old));
	OK(close(fd));
	assert_int_equal(kernel_size("a"), (RECORDS + 60) * RECORD);
	OK(unlink("a"));
	OK(unlink("c"));
}

/* What the library holds for itself is given up for each of the calls that make descriptors. */
static int make_one(int how, int fd)
{
	int pair[2] = {-1, -1};

	switch (how) {
	case 0: return socket(AF_UNIX, SOCK_STREAM, 0);
	case 1: return eventfd(0, 0);
	case 2: return epoll_create1(0);
	case 3: return epoll_create(1);
	case 4: return dup(fd);
	case 5: return fcntl(fd, F_DUPFD, 0);
	case 6: return fcntl(fd, F_DUPFD_CLOEXEC, 0);
	case 7: return pipe(pair) < 0 ? -1 : pair[0];
	case 8: return pipe2(pair, O_CLOEXEC) < 0 ? -1 : pair[0];
	default: return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ? -1 : pair[0];
	}
}

static void none_left_for(int how, int first)
{
	enum { LIMIT = 64 };
	struct rlimit old, limit;
	int fds = how >= 7 ? 2 : 1;
	int count = 0, positional, append;

	OK(getrlimit(RLIMIT_NOFILE, &old));
	limit = old;
	limit.rlim_cur = LIMIT;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	positional = open_staged("a", 0);
	append = open_staged("b", O_APPEND);
	errno = 4242;
	while (count < LIMIT && make_one(how, 0) >= 0)
		count++;
	assert_int_equal(errno, EMFILE);
	assert_int_equal(count, (LIMIT - first - 2) / fds);
	write_records(positional, RECORDS, RECORDS);
	write_records(append, RECORDS, RECORDS);
	closefrom_to(append + 1, LIMIT);
	OK(close(positional));
	OK(close(append));
	OK(setrlimit(RLIMIT_NOFILE, &old));
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, 2 * RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void none_left_for_others(void **state)
{
	int first = OK(open("/dev/null", O_RDONLY));

	(void)state;
	OK(close(first));
	for (int how = 0; how < 10; how++)
		none_left_for(how, first);
}

static void accept_with_none_left(void **state)
{
	enum { LIMIT = 64 };
	struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "socket"};
	struct rlimit old, limit;
	int listener, callers[2], positional, first, count = 0;

	(void)state;
	OK(getrlimit(RLIMIT_NOFILE, &old));
	limit = old;
	limit.rlim_cur = LIMIT;
	OK(setrlimit(RLIMIT_NOFILE, &limit));
	listener = OK(socket(AF_UNIX, SOCK_STREAM, 0));
	OK(bind(listener, (struct sockaddr *)&name, sizeof name));
	OK(listen(listener, 8));
	for (int i = 0; i < 2; i++) {
		callers[i] = OK(socket(AF_UNIX, SOCK_STREAM, 0));
		OK(connect(callers[i], (struct sockaddr *)&name, sizeof name));
	}
	positional = open_staged("a", 0);
	first = positional + 1;
	/* by number: nothing of the library is given up for these */
	while (count < LIMIT && syscall(SYS_dup, 0) >= 0)
		count++;
	/* one that the program gives back, and one of the library's, if it has any */
	OK(close(first));
	OK(accept(listener, NULL, NULL));
	errno = 0;
	if (count < LIMIT - first)
		OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	else
		FAILS(accept4(listener, NULL, NULL, SOCK_CLOEXEC), EMFILE);
	closefrom_to(first, LIMIT);
	OK(close(positional));
	OK(close(listener));
	for (int i = 0; i < 2; i++)
		OK(close(callers[i]));
	OK(setrlimit(RLIMIT_NOFILE, &old));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("socket"));
}

enum { THREADS = 8, EACH = 2000 };
static int shared_fd;

static void *append_records(void *arg)
{
	unsigned from = (unsigned)(uintptr_t)arg * 100000;
	char record[RECORD];

	for (unsigned i = 0; i < EACH; i++) {
		record_fill(record, from + i);
		if (write(shared_fd, record, RECORD) != RECORD)
			return (void *)1;
	}
	return NULL;
}

static void append_together(int more)
{
	pthread_t threads[THREADS];
	unsigned next[THREADS] = {0};
	size_t size;
	char *bytes;

	shared_fd = open_new("a", more);
	for (uintptr_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, append_records, (void *)i), 0);
	for (unsigned i = 0; i < THREADS; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	OK(close(shared_fd));
	bytes = file_bytes("a", &size);
	assert_int_equal(size, THREADS * EACH * RECORD);
	for (size_t at = 0; at < size; at += RECORD) {
		unsigned who = (unsigned)atoi(bytes + at) / 100000;

		assert_true(who < THREADS);
		check_records(bytes + at, who * 100000 + next[who]++, 1);
	}
	free(bytes);
	OK(unlink("a"));
}

static void threads_append(void **state)
{
	(void)state;
	append_together(O_APPEND);
}

/* One description, no O_APPEND: the kernel moves its position with every write, one at a time. */
static void threads_share_a_position(void **state)
{
	(void)state;
	append_together(0);
}

static pthread_barrier_t begin;

static void *first_records(void *arg)
{
	char record[RECORD];

	pthread_barrier_wait(&begin);
	for (unsigned i = 0; i < 6; i++) {
		record_fill(record, (unsigned)(uintptr_t)arg * 100 + i);
		if (write(shared_fd, record, RECORD) != RECORD)
			return (void *)1;
	}
	return NULL;
}

/* The first writes of all, while the library finds out what the descriptor is; something is staged beside it.
 */
static void threads_begin_together(void **state)
{
	enum { FEW = 4, ROUNDS = 300 };
	int other = open_staged("other", 0);
	pthread_t threads[FEW];
	size_t size;

	(void)state;
	OK(pthread_barrier_init(&begin, NULL, FEW));
	for (unsigned round = 0; round < ROUNDS; round++) {
		shared_fd = OK(open("a", O_WRONLY | O_CREAT, 0644));
		for (uintptr_t i = 0; i < FEW; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, first_records, (void *)i), 0);
		for (unsigned i = 0; i < FEW; i++) {
			void *failed;

			pthread_join(threads[i], &failed);
			assert_null(failed);
		}
		OK(close(shared_fd));
		free(file_bytes("a", &size));
		if (size != FEW * 6 * RECORD)
			fail_msg("round %u: %zu bytes", round, size);
		OK(unlink("a"));
	}
	pthread_barrier_destroy(&begin);
	OK(close(other));
	OK(unlink("other"));
}

static int storm_fd;
static unsigned by_handler;

static void on_alarm(int number)
{
	int before = errno;
	char record[RECORD];

	(void)number;
	record_fill(record, 1000000 + by_handler);
	if (write(storm_fd, record, RECORD) == RECORD)
		by_handler++;
	errno = before;
}

/* A handler writes to the very file whose write it interrupted: every record is there, whole, and once. */
static void storm(int more)
{
	const struct itimerval often = {{0, 200}, {0, 200}}, never = {0};
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	const unsigned enough_records = is_long() ? 400000 : 80000;
	struct timespec now, end;
	unsigned by_program = 0, seen_program = 0, seen_handler = 0;
	char record[RECORD], *bytes;
	size_t size;

	by_handler = 0;
	storm_fd = open_new("a", more);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += 2;
	do {
		for (int i = 0; i < 100; i++) {
			record_fill(record, by_program);
			assert_int_equal(write(storm_fd, record, RECORD), RECORD);
			by_program++;
		}
		if (by_program % 10000 == 0)
			assert_int_equal(fdatasync(storm_fd), 0);
		clock_gettime(CLOCK_MONOTONIC, &now);
		/* (on a busy machine the handlers come late) */
	} while (by_program < 900000 &&
	         (by_handler <= 50 ||
	          (by_program < enough_records &&
	           (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec)))));
	setitimer(ITIMER_REAL, &never, NULL);
	signal(SIGALRM, SIG_DFL);
	OK(close(storm_fd));
	assert_true(by_handler > 50);
	bytes = file_bytes("a", &size);
	assert_int_equal(size, ((size_t)by_program + by_handler) * RECORD);
	for (size_t at = 0; at < size; at += RECORD) {
		if (atoi(bytes + at) >= 1000000)
			check_records(bytes + at, 1000000 + seen_handler++, 1);
		else
			check_records(bytes + at, seen_program++, 1);
	}
	assert_int_equal(seen_program, by_program);
	assert_int_equal(seen_handler, by_handler);
	free(bytes);
	OK(unlink("a"));
}

static void signals_appending(void **state)
{
	(void)state;
	storm(O_APPEND);
}

static void signals_at_a_position(void **state)
{
	(void)state;
	storm(0);
}

static _Atomic bool enough;

static void *append_until(void *path)
{
	int fd = open(path, O_WRONLY | O_APPEND);

	while (fd >= 0 && !atomic_load(&enough)) {
		if (write(fd, "line of text\n", 13) != 13)
			return NULL;
		for (volatile int i = 0; i < 300; i++)
			;
	}
	return close(fd) == 0 ? path : NULL;
}

/* No open of the program's own fails because the file is just being flushed. */
static void opened_while_it_is_flushed(void **state)
{
	static char path[] = "a";
	pthread_t thread;
	void *result;

	(void)state;
	OK(close(open_new(path, 0)));
	atomic_store(&enough, false);
	assert_int_equal(pthread_create(&thread, NULL, append_until, path), 0);
	for (int i = is_long() ? 0 : 1400; i < 2000; i++) {
		OK(close(OK(open(path, O_RDONLY | O_NONBLOCK))));
		usleep(50);
	}
	atomic_store(&enough, true);
	pthread_join(thread, &result);
	assert_non_null(result);
	OK(unlink(path));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* first: while the library has nothing open yet */
		cmocka_unit_test(none_left),
		cmocka_unit_test(none_left_after_a_fork),
		cmocka_unit_test(none_left_for_others),
		cmocka_unit_test(accept_with_none_left),
		cmocka_unit_test(many_files),
		cmocka_unit_test(many_of_one),
		cmocka_unit_test(opened_while_it_is_flushed),
		cmocka_unit_test(threads_append),
		cmocka_unit_test(threads_share_a_position),
		cmocka_unit_test(threads_begin_together),
		cmocka_unit_test(signals_appending),
		cmocka_unit_test(signals_at_a_position),
	};

	close_inherited();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
