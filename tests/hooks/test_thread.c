// SPDX-License-Identifier: Apache-2.0
/* Signal handlers that do anything, threads that end anywhere, small stacks, cancellation. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

/* what longjmp is in programs built with _FORTIFY_SOURCE */
void __longjmp_chk(jmp_buf env, int value) __attribute__((noreturn));

/* ---- help ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The thread sanitizer is killed by one that comes late, without the library, too. */
#ifdef __SANITIZE_THREAD__
#define AFTER_ALARMS SIG_IGN
#else
#define AFTER_ALARMS SIG_DFL
#endif

/* FASTWRITE_TEST_LONG=1: longer.  (test_step lets a handler run at each place.) */
static double storm_seconds(void) { return is_long() ? 2.0 : 0.6; }

static void alarms(unsigned microseconds, void (*handler)(int), int flags)
{
	struct itimerval often = {{0, microseconds}, {0, microseconds}};
	struct sigaction action = {.sa_handler = handler, .sa_flags = flags};

	if (handler)
		sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	if (!handler)
		signal(SIGALRM, AFTER_ALARMS);
}

/* Threads made in between get none of them. */
static void block_alarms(int how)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	pthread_sigmask(how, &set, NULL);
}

static unsigned next_random(unsigned *state)
{
	*state = *state * 1103515245u + 12345u;
	return *state >> 16;
}

/* Writes one whole record or says no. */
static bool put(int fd, unsigned number)
{
	char record[RECORD];

	record_fill(record, number);
	return write(fd, record, RECORD) == RECORD;
}

/*
 * The file holds whole records, those of each writer (number / WRITER_SPAN) in their order, each at most
 * once. count[w]: how many there are of writer w; last[w]: one more than the number of the last.
 */
enum { WRITER_SPAN = 1000000, WRITTEN_MOST = 300000, WRITERS_MAX = 80 };
struct census {
	unsigned count[WRITERS_MAX], last[WRITERS_MAX];
};

static void take_census(const char *path, struct census *c)
{
	size_t size;
	char *bytes = file_bytes(path, &size);

	memset(c, 0, sizeof *c);
	assert_int_equal(size % RECORD, 0);
	for (size_t at = 0; at < size; at += RECORD) {
		unsigned number = (unsigned)atoi(bytes + at), writer = number / WRITER_SPAN;

		assert_true(writer < WRITERS_MAX);
		check_records(bytes + at, number, 1);
		if (c->count[writer] > 0 && number % WRITER_SPAN < c->last[writer])
			fail_msg("record %u comes after %u", number, c->last[writer] - 1);
		c->count[writer]++;
		c->last[writer] = number % WRITER_SPAN + 1;
	}
	free(bytes);
}

/* ---- handlers that do anything ---- */

static struct {
	int fd[3];              /* appended to; written at its position; written by pwrite */
	unsigned handler[2][3]; /* records of the handlers in each: of the first, and of one that interrupted
	                           it */
	unsigned state, runs, failed;
	bool forks;
	volatile unsigned depth;
} storm;

/* Where the handler's records are in the third file; the program's come before. */
enum { HANDLER_PLACE = 1 << 24, PROGRAM_PLACES = 1000 };

static void storm_write(unsigned depth, unsigned which)
{
	unsigned n = storm.handler[depth][which];
	char record[RECORD];
	ssize_t r;

	record_fill(record, (depth + 1) * WRITER_SPAN + n);
	if (which == 2)
		r = pwrite(storm.fd[2], record, RECORD, (depth + 1) * HANDLER_PLACE + (off_t)n * RECORD);
	else
		r = write(storm.fd[which], record, RECORD);
	if (r == RECORD)
		storm.handler[depth][which]++;
	else
		storm.failed++;
}

static void on_storm(int number)
{
	int before = errno, fd;
	unsigned what = next_random(&storm.state) % 32, depth = storm.depth++;
	sigset_t all, old;
	struct stat st;
	pid_t pid;

	(void)number;
	storm.runs++;
	switch (what) {
	case 0:
		fd = dup(storm.fd[0]);
		storm.failed += fd < 0 || close(fd) != 0;
		break;
	case 1: storm.failed += lseek(storm.fd[1], 0, SEEK_CUR) < 0; break;
	case 2: storm.failed += fdatasync(storm.fd[what % 3]) != 0; break;
	case 3: storm.failed += stat("b", &st) != 0; break;
	case 4: storm.failed += fstat(storm.fd[2], &st) != 0; break;
	case 5:
		fd = open("e", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		for (unsigned i = 0; i < 5; i++)
			storm.failed += !put(fd, i);
		storm.failed += fd < 0 || close(fd) != 0;
		break;
	case 6:
		/* (the C library's fork waits for itself when it is interrupted by another) */
		if (!storm.forks || next_random(&storm.state) % 16)
			break;
		sigfillset(&all);
		pthread_sigmask(SIG_BLOCK, &all, &old);
		pid = fork();
		if (pid == 0)
			_exit(0);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		storm.failed += pid < 0 || waitpid(pid, NULL, 0) != pid;
		break;
	default: storm_write(depth, what % 3);
	}
	storm.depth = depth;
	errno = before;
}

static atomic_bool storm_over;

static void *send_signals(void *thread)
{
	unsigned state = 4711;

	while (!atomic_load(&storm_over)) {
		struct timespec t = {.tv_nsec = 1000 + next_random(&state) % 100000};

		pthread_kill(*(pthread_t *)thread, SIGUSR1);
		nanosleep(&t, NULL);
	}
	return NULL;
}

static void check_places(unsigned rounds)
{
	size_t size;
	char *bytes = file_bytes("c", &size);
	unsigned places = rounds < PROGRAM_PLACES ? rounds : PROGRAM_PLACES;

	for (unsigned i = 0; i < places; i++) {
		/* the last round that came by */
		unsigned last = (rounds - 1 - i) / PROGRAM_PLACES * PROGRAM_PLACES + i;

		check_records(bytes + (size_t)i * RECORD, last, 1);
	}
	for (unsigned d = 0; d < 2; d++)
		if (storm.handler[d][2] > 0)
			check_records(bytes + (d + 1) * HANDLER_PLACE, (d + 1) * WRITER_SPAN,
			              storm.handler[d][2]);
	free(bytes);
}

static void storm_of_signals(bool forks)
{
	struct sigaction action = {.sa_handler = on_storm, .sa_flags = SA_RESTART};
	pthread_t me = pthread_self(), sender;
	char record[RECORD];
	unsigned rounds = 0;
	struct census c;
	double end;

	memset(&storm, 0, sizeof storm);
	storm.state = 42;
	storm.forks = forks;
	storm.fd[0] = open_new("a", O_APPEND);
	storm.fd[1] = open_new("b", 0);
	storm.fd[2] = open_new("c", 0);
	sigaction(SIGUSR1, &action, NULL);
	atomic_store(&storm_over, false);
	block_alarms(SIG_BLOCK);
	assert_int_equal(pthread_create(&sender, NULL, send_signals, &me), 0);
	block_alarms(SIG_UNBLOCK);
	alarms(150, on_storm, SA_RESTART);
	for (end = now() + storm_seconds(); now() < end || storm.runs < 200;) {
		for (int i = 0; i < 50 && rounds < WRITTEN_MOST; i++, rounds++) {
			assert_true(put(storm.fd[0], rounds));
			assert_true(put(storm.fd[1], rounds));
			record_fill(record, rounds);
			assert_int_equal(pwrite(storm.fd[2], record, RECORD,
			                        (off_t)(rounds % PROGRAM_PLACES) * RECORD),
			                 RECORD);
		}
	}
	alarms(0, NULL, 0);
	atomic_store(&storm_over, true);
	pthread_join(sender, NULL);
	signal(SIGUSR1, SIG_DFL);
	assert_int_equal(storm.failed, 0);
	for (int i = 0; i < 3; i++)
		OK(close(storm.fd[i]));
	for (int i = 0; i < 2; i++) {
		take_census(i ? "b" : "a", &c);
		assert_int_equal(c.count[0], rounds);
		assert_int_equal(c.count[1], storm.handler[0][i]);
		assert_int_equal(c.count[2], storm.handler[1][i]);
		OK(unlink(i ? "b" : "a"));
	}
	check_places(rounds);
	OK(unlink("c"));
	unlink("e");
}

static void handlers_do_anything(void **state)
{
	(void)state;
	storm_of_signals(false);
}

static void handlers_fork(void **state)
{
	(void)state;
	storm_of_signals(true);
}

/* ---- write is async-signal-safe ---- */

static volatile sig_atomic_t safe_done;

static void on_safe(int number)
{
	int before = errno, fd;

	(void)number;
	if (safe_done)
		return;
	fd = open("s", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (unsigned i = 0; i < RECORDS; i++)
		CHILD(put(fd, i));
	CHILD(close(fd) == 0);
	safe_done = 1;
	errno = before;
}

static void *wait_for_ever(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

/* The handler interrupts malloc, and its first writes are the first ones of the process: whatever the library
 * then needs, memory and threads, it must get without malloc. */
static void interrupt_malloc(bool second)
{
	enum { ROUNDS = 40, PIECES = 64, AFTER = 2000 };

	fflush(stdout);
	for (unsigned round = 0; round < ROUNDS; round++) {
		pid_t pid = fork();

		if (pid == 0) {
			static void *piece[PIECES];
			unsigned random = round, after = 0;
			pthread_t thread;

			/* with a second thread there are locks */
			block_alarms(SIG_BLOCK);
			if (second)
				CHILD(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
			block_alarms(SIG_UNBLOCK);
			safe_done = 0;
			alarms(1000 + round * 17, on_safe, SA_RESTART);
			/* malloc notices by itself when something was wrong */
			while (!safe_done || after++ < AFTER) {
				unsigned which = next_random(&random) % PIECES;

				free(piece[which]);
				piece[which] = malloc(2000 + next_random(&random) % 30000);
			}
			_exit(0);
		}
		check_exit(pid, 0);
		check_file("s", 0, RECORDS);
		OK(unlink("s"));
	}
}

/* Comes first: nothing is there yet that the C library could take a new thread's memory from. */
static void handlers_interrupt_malloc_at_first(void **state)
{
	(void)state;
	interrupt_malloc(false);
	interrupt_malloc(true);
}

static void handlers_interrupt_malloc(void **state)
{
	(void)state;
	interrupt_malloc(true);
}

/* ---- handlers that do not return ---- */

static sigjmp_buf jump_env;
static volatile sig_atomic_t jump_ok;
static volatile unsigned jumps;
static int jump_fd, jump_how;
static unsigned jump_records;

enum { JUMP_PLAIN, JUMP_WRITING, JUMP_INSIDE, JUMP_CONTEXT, JUMP_EXIT };
static ucontext_t jump_context;

static void on_jump(int number)
{
	int before = errno;

	(void)number;
	if (!jump_ok)
		return;
	if (jump_how == JUMP_WRITING && put(jump_fd, WRITER_SPAN + jump_records))
		jump_records++;
	if (jump_how == JUMP_INSIDE) {
		sigjmp_buf inside;
		volatile int rounds = 0;

		/* not out of the write: it goes on when the handler returns */
		if (sigsetjmp(inside, 1) < 3) {
			if (put(jump_fd, WRITER_SPAN + jump_records))
				jump_records++;
			rounds++;
			siglongjmp(inside, rounds);
		}
		jumps++;
		errno = before;
		return;
	}
	jump_ok = 0;
	jumps++;
	errno = before;
	if (jump_how == JUMP_CONTEXT)
		setcontext(&jump_context);
	switch (jumps % 4) {
	case 0: longjmp(jump_env, 1);
	case 1: _longjmp(jump_env, 1);
	case 2: __longjmp_chk(jump_env, 1);
	default: siglongjmp(jump_env, 1);
	}
}

/* Another thread's writes to the same file must not wait for one that was left. */
static void *other_writer(void *arg)
{
	unsigned n = 0;

	(void)arg;
	while (!atomic_load(&storm_over)) {
		struct timespec t = {.tv_nsec = 50000};

		if (!put(jump_fd, 2 * WRITER_SPAN + n))
			return (void *)1;
		n++;
		nanosleep(&t, NULL);
	}
	return (void *)(uintptr_t)(n + 2);
}

static void leave_writes(int how, bool alternate)
{
	static char stack[64 << 10];
	stack_t other = {.ss_sp = stack, .ss_size = sizeof stack}, none = {.ss_flags = SS_DISABLE};
	volatile unsigned written = 0;
	struct census c;
	pthread_t thread;
	double end = now() + storm_seconds();
	void *result;

	jump_how = how;
	jump_records = 0;
	jumps = 0;
	jump_ok = 0;
	jump_fd = open_new("a", O_APPEND);
	atomic_store(&storm_over, false);
	block_alarms(SIG_BLOCK);
	assert_int_equal(pthread_create(&thread, NULL, other_writer, NULL), 0);
	block_alarms(SIG_UNBLOCK);
	if (alternate)
		sigaltstack(&other, NULL);
	alarms(100, on_jump, alternate ? SA_ONSTACK : 0);
	while (now() < end || jumps < 100) {
		if (how == JUMP_CONTEXT)
			getcontext(&jump_context);
		else
			sigsetjmp(jump_env, 1);
		block_alarms(SIG_UNBLOCK);
		jump_ok = 1;
		for (int i = 0; i < 200 && jump_ok && written < WRITTEN_MOST; i++) {
			unsigned n = written;

			/* before the call: whether it had written when it was left cannot be known */
			written = n + 1;
			if (!put(jump_fd, n))
				break;
		}
		jump_ok = 0;
	}
	alarms(0, NULL, 0);
	sigaltstack(&none, NULL);
	atomic_store(&storm_over, true);
	pthread_join(thread, &result);
	assert_true((uintptr_t)result > 1);
	assert_true(put(jump_fd, written));
	OK(close(jump_fd));
	take_census("a", &c);
	assert_int_equal(c.last[0], written + 1);
	assert_true(c.count[0] + (how == JUMP_INSIDE ? 0 : jumps) >= written + 1);
	assert_int_equal(c.count[1], jump_records);
	assert_int_equal(c.count[2], (uintptr_t)result - 2);
	assert_true(jumps >= 100);
	OK(unlink("a"));
}

static void left_by_longjmp(void **state)
{
	(void)state;
	NOT_WITH_TSAN("does not notice that a handler is left by a jump");
	leave_writes(JUMP_PLAIN, false);
	leave_writes(JUMP_PLAIN, true);
}

static void left_after_a_write(void **state)
{
	(void)state;
	NOT_WITH_TSAN("does not notice that a handler is left by a jump");
	leave_writes(JUMP_WRITING, false);
	leave_writes(JUMP_WRITING, true);
}

static void left_by_setcontext(void **state)
{
	(void)state;
	NOT_WITH_TSAN("does not notice that a handler is left by a jump");
	leave_writes(JUMP_CONTEXT, false);
}

static void jumps_inside_a_handler(void **state)
{
	(void)state;
	leave_writes(JUMP_INSIDE, false);
	leave_writes(JUMP_INSIDE, true);
}

/* A write that waits in the kernel is left; the descriptor is as usable as ever. */
static void a_waiting_write_is_left(void **state)
{
	static char bytes[1 << 17];
	int fd, copy;

	(void)state;
	NOT_WITH_TSAN("does not notice that a handler is left by a jump");
	OK(mkfifo("p", 0600));
	fd = OK(open("p", O_RDWR | O_CLOEXEC));
	jump_how = JUMP_PLAIN;
	jumps = 0;
	alarms(20000, on_jump, 0);
	if (sigsetjmp(jump_env, 1) == 0) {
		jump_ok = 1;
		for (;;)
			if (write(fd, bytes, sizeof bytes) < 0)
				break;
	}
	alarms(0, NULL, 0);
	assert_int_equal(jumps, 1);
	FAILS(fsync(fd), EINVAL);
	copy = OK(dup(fd));
	assert_int_equal(OK(read(copy, bytes, sizeof bytes)), 1 << 16);
	OK(close(copy));
	OK(close(fd));
	OK(unlink("p"));
}

static void *fill_pipe(void *arg)
{
	static char bytes[1 << 18];

	return (void *)(uintptr_t)(write(*(int *)arg, bytes, sizeof bytes) != sizeof bytes);
}

/* A thread waited in a write to a pipe whose number is another file's by now, one of no rule: that is used as
 * ever. */
static void a_number_is_used_again_while_a_write_waits(void **state)
{
	char beyond[64], drained[4096];
	pthread_t thread;
	size_t size = 0;
	void *failed;
	int reader, full, fd, there = 0;

	(void)state;
	OK(mkfifo("pipe", 0600));
	reader = OK(open("pipe", O_RDWR | O_NONBLOCK));
	full = OK(open("pipe", O_WRONLY));
	OK(pthread_create(&thread, NULL, fill_pipe, &full));
	while (there < fcntl(reader, F_GETPIPE_SZ)) {
		usleep(1000);
		OK(ioctl(reader, FIONREAD, &there));
	}
	OK(close(full));
	snprintf(beyond, sizeof beyond, "/tmp/fastwrite-number-%d", getpid());
	fd = OK(open(beyond, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	assert_int_equal(fd, full);
	while (size < 1 << 18) {
		ssize_t n = read(reader, drained, sizeof drained);

		size += n > 0 ? (size_t)n : 0;
	}
	OK(pthread_join(thread, &failed));
	assert_null(failed);
	alarm(120);
	for (int i = 0; i < 3; i++)
		assert_int_equal(write(fd, "1234567890", 10), 10);
	alarm(0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), 30);
	OK(close(fd));
	OK(close(reader));
	OK(unlink(beyond));
	OK(unlink("pipe"));
}

/* Nor does anybody wait for one. */
static void a_write_waits(void **state)
{
	static char bytes[1 << 18];
	struct timespec t = {.tv_nsec = 50000000};
	int fd, copy, got = 0;
	pthread_t thread;
	void *failed;

	(void)state;
	OK(mkfifo("p", 0600));
	fd = OK(open("p", O_RDWR | O_CLOEXEC));
	assert_int_equal(pthread_create(&thread, NULL, fill_pipe, &fd), 0);
	nanosleep(&t, NULL);
	FAILS(fdatasync(fd), EINVAL);
	copy = OK(dup(fd));
	while (got < (int)sizeof bytes)
		got += (int)OK(read(copy, bytes, sizeof bytes));
	pthread_join(thread, &failed);
	assert_null(failed);
	OK(close(copy));
	OK(close(fd));
	OK(unlink("p"));
}

/* ---- threads that end ---- */

static void on_exit_signal(int number)
{
	(void)number;
	pthread_exit(NULL);
}

static atomic_uint end_written[WRITERS_MAX];

static void *write_for_ever(void *arg)
{
	unsigned who = (unsigned)(uintptr_t)arg;

	for (unsigned n = 0; n < WRITTEN_MOST; n++) {
		if (!put(jump_fd, who * WRITER_SPAN + n))
			return (void *)1;
		atomic_store(&end_written[who], n + 1);
	}
	/* on a busy machine the one who ends us comes late */
	return wait_for_ever(NULL);
}

static void *write_asynchronously(void *arg)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	return write_for_ever(arg);
}

/* Each record whose write had returned is there; one more may be. */
static void end_threads(void *(*body)(void *), bool by_signal)
{
	enum { THREADS = 60 };
	struct sigaction action = {.sa_handler = on_exit_signal};
	struct census c;

	sigaction(SIGUSR1, &action, NULL);
	jump_fd = open_new("a", O_APPEND);
	for (uintptr_t i = 1; i <= THREADS; i++) {
		struct timespec t = {.tv_nsec = 100000 + (long)i * 20000};
		pthread_t thread;
		void *result;

		atomic_store(&end_written[i], 0);
		assert_int_equal(pthread_create(&thread, NULL, body, (void *)i), 0);
		while (atomic_load(&end_written[i]) == 0)
			sched_yield();
		nanosleep(&t, NULL);
		if (by_signal)
			pthread_kill(thread, SIGUSR1);
		else
			pthread_cancel(thread);
		pthread_join(thread, &result);
		assert_ptr_equal(result, by_signal ? NULL : PTHREAD_CANCELED);
		assert_true(put(jump_fd, (unsigned)i));
	}
	OK(fdatasync(jump_fd));
	OK(close(jump_fd));
	take_census("a", &c);
	assert_int_equal(c.count[0], THREADS);
	for (int i = 1; i <= THREADS; i++) {
		unsigned sure = atomic_load(&end_written[i]);

		assert_int_equal(c.last[i], c.count[i]);
		assert_in_range(c.count[i], sure, sure + 1);
	}
	OK(unlink("a"));
	signal(SIGUSR1, SIG_DFL);
}

static void cancelled(void **state)
{
	(void)state;
	end_threads(write_for_ever, false);
}

static void cancelled_anywhere(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	print_message("a thread that is cancelled within the thread sanitizer leaves its locks behind\n");
	skip();
#endif
	end_threads(write_asynchronously, false);
}

static void exit_in_a_handler(void **state)
{
	(void)state;
	end_threads(write_for_ever, true);
}

/* Each of these is a cancellation point. */
enum {
	BY_READ,
	BY_PREAD,
	BY_READV,
	BY_PWRITE,
	BY_WRITEV,
	BY_PWRITEV,
	BY_FSYNC,
	BY_FDATASYNC,
	BY_PUTC,
	BY_GETC,
	BY_ALL
};
static atomic_int point_ready;
static FILE *point_stream;

static void *call_for_ever(void *arg)
{
	char record[RECORD];
	struct iovec iov = {record, RECORD};

	record_fill(record, 7);
	for (;;) {
		ssize_t r = 0;

		switch ((int)(uintptr_t)arg) {
		case BY_READ: r = read(jump_fd, record, 0); break;
		case BY_PREAD: r = pread(jump_fd, record, RECORD, 0); break;
		case BY_READV: r = readv(jump_fd, &iov, 0); break;
		case BY_PWRITE: r = pwrite(jump_fd, record, RECORD, 0); break;
		case BY_WRITEV: r = writev(jump_fd, &iov, 1); break;
		case BY_PWRITEV: r = pwritev(jump_fd, &iov, 1, 0); break;
		case BY_FSYNC: r = fsync(jump_fd); break;
		case BY_FDATASYNC: r = fdatasync(jump_fd); break;
		case BY_PUTC: r = putc('x', point_stream) == 'x' ? fflush(point_stream) : -1; break;
		case BY_GETC:
			if (getc(point_stream) == EOF)
				rewind(point_stream);
			break;
		}
		if (r < 0)
			return NULL;
		atomic_fetch_add(&point_ready, 1);
	}
}

static void cancellation_points(void **state)
{
	(void)state;
	for (uintptr_t how = 0; how < BY_ALL; how++) {
		pthread_t thread;
		void *result;

		jump_fd = open_staged("a", 0);
		point_stream = fdopen(jump_fd, "r+");
		assert_non_null(point_stream);
		setvbuf(point_stream, NULL, _IONBF, 0);
		atomic_store(&point_ready, 0);
		assert_int_equal(pthread_create(&thread, NULL, call_for_ever, (void *)how), 0);
		while (atomic_load(&point_ready) < 20)
			sched_yield();
		pthread_cancel(thread);
		pthread_join(thread, &result);
		assert_ptr_equal(result, PTHREAD_CANCELED);
		OK(fclose(point_stream));
		OK(unlink("a"));
	}
}

/* The calls of a stream with the mode "c" are none. */
static void *put_when_cancelled(void *arg)
{
	(void)arg;
	pthread_cancel(pthread_self());
	for (unsigned i = 0; i < RECORDS; i++)
		if (putc('x', point_stream) != 'x' || fflush(point_stream) != 0)
			return (void *)1;
	rewind(point_stream);
	return (void *)(getc(point_stream) == EOF ? 1UL : 2UL);
}

static void stream_without_points(void **state)
{
	pthread_t thread;
	void *result;

	(void)state;
	jump_fd = open_staged("a", 0);
	point_stream = fopen("a", "r+c");
	assert_non_null(point_stream);
	assert_int_equal(pthread_create(&thread, NULL, put_when_cancelled, NULL), 0);
	pthread_join(thread, &result);
	assert_ptr_equal(result, (void *)2);
	OK(fclose(point_stream));
	OK(close(jump_fd));
	OK(unlink("a"));
}

static void *reopen_when_cancelled(void *arg)
{
	(void)arg;
	if (fputs("buffered", point_stream) < 0)
		return (void *)1;
	pthread_cancel(pthread_self());
	point_stream = freopen("a", "r", point_stream);
	return (void *)2;
}

static void stream_reopened_when_cancelled(void **state)
{
	pthread_t thread;
	void *result;

	(void)state;
	point_stream = fopen("a", "w");
	assert_non_null(point_stream);
	for (unsigned i = 0; i < RECORDS; i++)
		assert_true(fputs("staged", point_stream) >= 0 && fflush(point_stream) == 0);
	assert_int_equal(pthread_create(&thread, NULL, reopen_when_cancelled, NULL), 0);
	pthread_join(thread, &result);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	assert_int_equal(ftrylockfile(point_stream), 0);
	funlockfile(point_stream);
	OK(fclose(point_stream));
	OK(unlink("a"));
}

static void *write_while_disabled(void *arg)
{
	(void)arg;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	atomic_store(&point_ready, 1);
	while (atomic_load(&point_ready) == 1)
		sched_yield();
	for (unsigned i = 0; i < RECORDS; i++)
		if (!put(jump_fd, i))
			return (void *)1;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	put(jump_fd, RECORDS); /* is never made */
	return (void *)2;
}

static void cancellation_disabled(void **state)
{
	pthread_t thread;
	void *result;

	(void)state;
	jump_fd = open_new("a", 0);
	atomic_store(&point_ready, 0);
	assert_int_equal(pthread_create(&thread, NULL, write_while_disabled, NULL), 0);
	while (atomic_load(&point_ready) == 0)
		sched_yield();
	pthread_cancel(thread);
	atomic_store(&point_ready, 2);
	pthread_join(thread, &result);
	assert_ptr_equal(result, PTHREAD_CANCELED);
	OK(close(jump_fd));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

/* ---- small stacks ---- */

static int small_shared;

static void *write_on_little(void *arg)
{
	unsigned who = (unsigned)(uintptr_t)arg;
	char name[16];
	int fd;

	for (unsigned i = 0; i < 5; i++)
		if (!put(small_shared, who * 100 + i))
			return (void *)1;
	if (who % 50)
		return NULL;
	/* engaging, reading, syncing and closing on it, too */
	name[0] = 'f';
	name[1] = (char)('a' + who / 50 % 26);
	name[2] = (char)('a' + who / 50 / 26);
	name[3] = '\0';
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (unsigned i = 0; i < RECORDS; i++)
		if (!put(fd, i))
			return (void *)2;
	if (fdatasync(fd) != 0 || lseek(fd, 0, SEEK_SET) != 0 || read(fd, name, 4) != 4 || close(fd) != 0)
		return (void *)3;
	return NULL;
}

static void thousands_of_small_threads(void **state)
{
	enum { THREADS = 2000 };
	static pthread_t threads[THREADS];
	static unsigned next[THREADS];
	pthread_attr_t attr;
	char *bytes, name[4] = "fxx";
	size_t size;
	int made = 0;

	(void)state;
	pthread_attr_init(&attr);
	assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)sysconf(_SC_THREAD_STACK_MIN)), 0);
	small_shared = open_new("a", O_APPEND);
	memset(next, 0, sizeof next);
	while (made < THREADS &&
	       pthread_create(&threads[made], &attr, write_on_little, (void *)(uintptr_t)made) == 0)
		made++;
	pthread_attr_destroy(&attr);
	assert_int_equal(made, THREADS);
	for (int i = 0; i < THREADS; i++) {
		void *failed;

		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	OK(close(small_shared));
	bytes = file_bytes("a", &size);
	assert_int_equal(size, THREADS * 5 * RECORD);
	for (size_t at = 0; at < size; at += RECORD) {
		unsigned who = (unsigned)atoi(bytes + at) / 100;

		check_records(bytes + at, who * 100 + next[who]++, 1);
	}
	free(bytes);
	for (int i = 0; i < THREADS / 50; i++) {
		name[1] = (char)('a' + i % 26);
		name[2] = (char)('a' + i / 26);
		check_file(name, 0, RECORDS);
		OK(unlink(name));
	}
	OK(unlink("a"));
}

static volatile int small_result;

static void on_little(int number)
{
	int fd = open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	char byte;

	(void)number;
	small_result = 1;
	for (unsigned i = 0; i < RECORDS; i++)
		if (!put(fd, i) || !put(jump_fd, RECORDS + i))
			return;
	small_result = fsync(fd) == 0 && fsync(jump_fd) == 0 && pread(fd, &byte, 1, 0) == 1 && close(fd) == 0
	                       ? 2
	                       : 3;
}

/* As small as a handler's stack is when somebody thought about what the kernel and a few calls need. */
static void small_handler_stack(void **state)
{
	enum { PAGE = 4096, FOR_CALLS = 8 << 10 };
	struct sigaction action = {.sa_handler = on_little, .sa_flags = SA_ONSTACK};
	/* (sysconf knows it from glibc 2.34 on, the kernel tells it from 5.14 on; 0: not told) */
	size_t told = getauxval(AT_MINSIGSTKSZ), usual = (size_t)MINSIGSTKSZ;
	size_t least = told > usual ? told : usual;
	size_t size = (least + FOR_CALLS + PAGE - 1) / PAGE * PAGE;
	stack_t stack = {.ss_size = size}, none = {.ss_flags = SS_DISABLE};
	char *memory = mmap(NULL, PAGE + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(memory != MAP_FAILED);
	OK(mprotect(memory + PAGE, size, PROT_READ | PROT_WRITE));
	stack.ss_sp = memory + PAGE;
	OK(sigaltstack(&stack, NULL));
	sigaction(SIGUSR1, &action, NULL);
	jump_fd = open_staged("a", O_APPEND);
	small_result = 0;
	raise(SIGUSR1);
	assert_int_equal(small_result, 2);
	OK(sigaltstack(&none, NULL));
	signal(SIGUSR1, SIG_DFL);
	munmap(memory, PAGE + size);
	OK(close(jump_fd));
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(handlers_interrupt_malloc_at_first),
		cmocka_unit_test(handlers_do_anything),
		cmocka_unit_test(handlers_fork),
		cmocka_unit_test(handlers_interrupt_malloc),
		cmocka_unit_test(left_by_longjmp),
		cmocka_unit_test(left_after_a_write),
		cmocka_unit_test(left_by_setcontext),
		cmocka_unit_test(jumps_inside_a_handler),
		cmocka_unit_test(a_waiting_write_is_left),
		cmocka_unit_test(a_write_waits),
		cmocka_unit_test(a_number_is_used_again_while_a_write_waits),
		cmocka_unit_test(cancelled),
		cmocka_unit_test(cancelled_anywhere),
		cmocka_unit_test(exit_in_a_handler),
		cmocka_unit_test(cancellation_points),
		cmocka_unit_test(stream_without_points),
		cmocka_unit_test(stream_reopened_when_cancelled),
		cmocka_unit_test(cancellation_disabled),
		cmocka_unit_test(thousands_of_small_threads),
		cmocka_unit_test(small_handler_stack),
	};

	close_inherited();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
