// SPDX-License-Identifier: Apache-2.0
/*
 * A signal handler between any two instructions of a write.  A tracer goes through the write of a staged file
 * one instruction at a time and lets the handler run after the first, in the next round after a later one,
 * and so on: what a storm of signals hits once in a hundred runs is hit every time.
 */
#include "hook_test.h"

#include <signal.h>
#include <sys/ptrace.h>

/* Numbers of records: those before the write that is gone through have 0 to RECORDS - 1. */
enum { INTERRUPTED = RECORDS, AFTER, HANDLERS = 10000, CHILDS = 20000, LAST = 30000, OTHERS = 40000 };
enum { FEW = 3, CUT = 5, MANY = 1500 }; /* MANY: more than fits into two blocks of 64 KiB */

/* Tells the tracer where the write begins and ends, and means nothing to a process that nobody traces. */
enum { MARK = SIGURG };

enum { NO_TRACER = 77 };

/* A write that takes longer has its signals blocked by then.  Of the tens of thousands of instructions of
 * other calls some must do. */
enum { STEPS_MOST = 500, STRIDE = 4999, STRIDES_MOST = 100000 };

/* What is gone through ... */
enum call { BY_WRITE, BY_WRITEV, BY_PWRITE, AMONG_OTHERS };
/* ... and what the handler does. */
enum does {
	DOES_NOTHING,
	DOES_WRITE,
	DOES_WRITE_MANY,
	DOES_WRITE_AT_ONCE, /* as much, and more than is staged */
	DOES_WRITE_SECOND,  /* through a description of its own, which appends */
	DOES_WRITE_COPY,    /* through another descriptor */
	DOES_TRUNCATE,
	DOES_SYNC,
	DOES_LOOK,
	DOES_OPEN_ANOTHER, /* where the file was: the write goes there if it comes later */
	DOES_PUT_ANOTHER,  /* by dup2 */
	DOES_FORK,         /* and then something by which staging areas that are not in use are given up */
	DOES_FORK_TWO,     /* the child goes on, and the handler waits for it */
	DOES_FORK_LATE,    /* the child goes on when the parent has long done with what it held */
	DOES_JUMP,         /* it does not return: whether the write was made cannot be known */
	DOES_DIE,          /* by SIGKILL, without a handler */
};

static enum does does;
static bool past_handlers; /* forks by the system call */
static int step_fd, late_pipe[2];
static pid_t late_child;
static volatile sig_atomic_t in_child;
static sigjmp_buf jump_env;

static void put_to(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

static void put(unsigned from, unsigned count) { put_to(step_fd, from, count); }

static void put_at_once(unsigned from, unsigned count)
{
	static char records[MANY * RECORD];

	for (unsigned i = 0; i < count; i++)
		record_fill(records + (size_t)i * RECORD, from + i);
	CHILD(write(step_fd, records, (size_t)count * RECORD) == (ssize_t)count * RECORD);
}

static void fork_in_handler(void)
{
	sigset_t all, old;
	int status;
	char byte;
	pid_t pid;

	CHILD(pipe(late_pipe) == 0);
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &old);
	pid = past_handlers ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (pid == 0) {
		if (does == DOES_FORK)
			_exit(0);
		CHILD(close(late_pipe[1]) == 0);
		if (does == DOES_FORK_LATE)
			CHILD(read(late_pipe[0], &byte, 1) == 0);
		in_child = 1;
	}
	sigprocmask(SIG_SETMASK, &old, NULL);
	CHILD(pid >= 0 && close(late_pipe[0]) == 0);
	if (pid > 0 && does == DOES_FORK_LATE)
		late_child = pid;
	else if (pid > 0)
		CHILD(close(late_pipe[1]) == 0 && waitpid(pid, &status, 0) == pid && status == 0);
}

static void on_step(int number)
{
	int before = errno, fd;
	char here[4096];
	struct stat st;
	char byte;

	(void)number;
	switch (does) {
	case DOES_NOTHING:
	case DOES_DIE: break;
	case DOES_WRITE: put(HANDLERS, FEW); break;
	case DOES_WRITE_MANY: put(HANDLERS, MANY); break;
	case DOES_WRITE_AT_ONCE: put_at_once(HANDLERS, MANY); break;
	case DOES_WRITE_SECOND:
	case DOES_WRITE_COPY:
		fd = does == DOES_WRITE_COPY ? dup(step_fd) : open("a", O_WRONLY | O_APPEND | O_CLOEXEC);
		put_to(fd, HANDLERS, FEW);
		CHILD(close(fd) == 0);
		break;
	case DOES_TRUNCATE:
		CHILD(ftruncate(step_fd, CUT * RECORD) == 0);
		/* (also of more than was there) */
		CHILD(pread(step_fd, here, sizeof here, CUT * RECORD) == 0);
		break;
	case DOES_SYNC: CHILD(fdatasync(step_fd) == 0); break;
	case DOES_LOOK:
		CHILD(fstat(step_fd, &st) == 0 && st.st_size >= STAGED);
		CHILD(pread(step_fd, &byte, 1, st.st_size - 1) == 1 && byte == '\n');
		break;
	case DOES_OPEN_ANOTHER:
		CHILD(close(step_fd) == 0);
		CHILD(open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) == step_fd);
		put(HANDLERS, RECORDS);
		break;
	case DOES_PUT_ANOTHER:
		fd = open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		CHILD(fd >= 0 && dup2(fd, step_fd) == step_fd && close(fd) == 0);
		put(HANDLERS, RECORDS);
		break;
	case DOES_JUMP: siglongjmp(jump_env, 1);
	case DOES_FORK:
		fork_in_handler();
		CHILD(getcwd(here, sizeof here) && rmdir(here) < 0);
		break;
	case DOES_FORK_TWO:
	case DOES_FORK_LATE: fork_in_handler(); break;
	}
	errno = before;
}

/* Others get the memory that the file had, and the child goes on where it was. */
static void let_child_go_on(void)
{
	int fd = open("b", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), status;

	CHILD(fd >= 0);
	put_to(fd, OTHERS, MANY);
	CHILD(close(late_pipe[1]) == 0 && waitpid(late_child, &status, 0) == late_child && status == 0);
	CHILD(close(fd) == 0);
}

/* A file that comes and goes, and what is asked about the one that stays, around its write. */
static ssize_t write_among_others(const char *record)
{
	char byte, name[] = "e0", moved[] = "f0";
	struct stat st;
	ssize_t r;
	int fd, copy;

	CHILD(fdatasync(step_fd) == 0);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	CHILD(fd >= 0);
	put_to(fd, 0, FEW);
	CHILD(fstat(step_fd, &st) == 0 && st.st_size >= STAGED);
	CHILD(lseek(step_fd, 0, SEEK_CUR) >= 0);
	CHILD(pread(step_fd, &byte, 1, STAGED - 1) == 1 && byte == '\n');
	r = write(step_fd, record, RECORD);
	copy = dup(step_fd);
	CHILD(copy >= 0 && close(copy) == 0 && close(fd) == 0);
	/* (the other process that a handler makes has done it, or will) */
	if (rename(name, moved) != 0 && errno != ENOENT)
		return -1;
	if (unlink(moved) != 0 && errno != ENOENT)
		return -1;
	return r;
}

/* The program that is gone through. */
static void be_stepped(int more, enum call call)
{
	struct sigaction action = {.sa_handler = on_step};
	char record[RECORD];
	struct iovec iov = {record, RECORD};
	volatile ssize_t r = RECORD;

	sigaction(SIGUSR1, &action, NULL);
	step_fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0644);
	CHILD(step_fd >= 0);
	put(0, RECORDS);
	record_fill(record, INTERRUPTED);
	if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
		_exit(NO_TRACER);
	if (sigsetjmp(jump_env, 1) == 0) {
		raw_call(SYS_kill, raw_call(SYS_getpid, 0, 0, 0, 0), MARK, 0, 0);
		switch (call) {
		case BY_WRITEV: r = writev(step_fd, &iov, 1); break;
		case BY_PWRITE: r = pwrite(step_fd, record, RECORD, STAGED); break;
		case AMONG_OTHERS: r = write_among_others(record); break;
		default: r = write(step_fd, record, RECORD);
		}
		raw_call(SYS_kill, raw_call(SYS_getpid, 0, 0, 0, 0), MARK, 0, 0);
	}
	CHILD(r == RECORD);
	if (call == BY_PWRITE && !(more & O_APPEND))
		CHILD(lseek(step_fd, 0, SEEK_END) >= 0);
	if (late_child && !in_child)
		let_child_go_on();
	put(in_child ? CHILDS : AFTER, FEW);
	if (!in_child) {
		CHILD(fdatasync(step_fd) == 0);
		put(LAST, FEW);
	}
	CHILD(close(step_fd) == 0);
	_exit(0);
}

static const char *own_path;

/* Nothing is staged in order after a fork: then the program that is gone through is one of its own. */
static bool needs_exec(void)
{
	const char *policy = getenv("FASTWRITE_SYNC");

	return policy && strcmp(policy, "ordered") == 0;
}

static void exec_stepped(int more, enum call call)
{
	char texts[4][12];
	const int numbers[] = {more, call, does, past_handlers};

	for (int i = 0; i < 4; i++)
		snprintf(texts[i], sizeof texts[i], "%d", numbers[i]);
	execl(own_path, own_path, texts[0], texts[1], texts[2], texts[3], (char *)NULL);
	_exit(1);
}

static int wait_for(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, __WALL), pid);
	return status;
}

static bool stopped_by(int status, int number) { return WIFSTOPPED(status) && WSTOPSIG(status) == number; }

/* Lets the handler run after so many instructions.  False: the write was over before. */
static bool step(int more, enum call call, unsigned steps)
{
	bool over = false;
	size_t size;
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (needs_exec())
			exec_stepped(more, call);
		be_stepped(more, call);
	}
	status = wait_for(pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NO_TRACER) {
		print_message("nothing may be traced here\n");
		skip();
	}
	if (!stopped_by(status, MARK))
		fail_msg("the program to go through ends with %#x", (unsigned)status);
	OK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL));
	for (unsigned i = 0; i < steps && !over; i++) {
		OK(ptrace(PTRACE_SINGLESTEP, pid, 0, 0));
		status = wait_for(pid);
		over = stopped_by(status, MARK);
		assert_true(over || stopped_by(status, SIGTRAP));
	}
	if (does == DOES_DIE) {
		OK(kill(pid, SIGKILL));
		status = wait_for(pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		/* brings its bytes back: nothing looks for them while the file is created or removed */
		free(file_bytes("a", &size));
		clean_up();
		return !over;
	}
	OK(ptrace(PTRACE_CONT, pid, 0, over ? 0 : SIGUSR1));
	while (WIFSTOPPED(status = wait_for(pid)))
		/* what the children of its handler tell it, and the end of the write */
		OK(ptrace(PTRACE_CONT, pid, 0,
		          stopped_by(status, MARK) || stopped_by(status, SIGTRAP) ? 0 : WSTOPSIG(status)));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("it ends with %#x when the handler comes after instruction %u", (unsigned)status,
		         steps);
	return !over;
}

/* Records as a row of first number and count. */
struct stretch {
	unsigned from, count;
};

static bool is_row(const char *bytes, size_t size, const struct stretch *row)
{
	char record[RECORD];
	size_t at = 0;

	for (; row->count > 0; row++)
		for (unsigned i = 0; i < row->count; i++, at += RECORD) {
			record_fill(record, row->from + i);
			if (at + RECORD > size || memcmp(bytes + at, record, RECORD) != 0)
				return false;
		}
	return at == size;
}

static void print_row(const char *bytes, size_t size)
{
	unsigned expected = ~0u;

	for (size_t at = 0; at < size; at += RECORD) {
		unsigned number = (unsigned)atoi(bytes + at);

		if (number != expected)
			print_message("%s%u-", at > 0 ? "... " : "", number);
		expected = number + 1;
	}
	print_message("%u, %zu bytes\n", expected - 1, size);
}

/* Both files, one after the other. */
static char *all_bytes(size_t *size)
{
	size_t first, second = 0;
	char *bytes = file_bytes("a", &first), *more = NULL;

	if (access("b", F_OK) == 0) {
		more = file_bytes("b", &second);
		bytes = realloc(bytes, first + second + 1);
		memcpy(bytes + first, more, second);
		free(more);
		OK(unlink("b"));
	}
	OK(unlink("a"));
	*size = first + second;
	return bytes;
}

/* The write was made before the handler ran or after it: whole, once in each process that goes on, and
 * nowhere else. */
static void check_step(unsigned steps)
{
	unsigned many = does == DOES_WRITE_MANY || does == DOES_WRITE_AT_ONCE   ? MANY
	                : does == DOES_OPEN_ANOTHER || does == DOES_PUT_ANOTHER ? RECORDS
	                                                                        : FEW;
	const struct stretch before = {0, RECORDS}, it = {INTERRUPTED, 1}, rest = {AFTER, FEW},
			     last = {LAST, FEW}, handlers = {HANDLERS, many}, childs = {CHILDS, FEW},
			     others = {OTHERS, MANY};
	const struct stretch plain[] = {before, it, rest, last, {0}};
	const struct stretch write_then[] = {before, it, handlers, rest, last, {0}};
	const struct stretch then_write[] = {before, handlers, it, rest, last, {0}};
	const struct stretch once[] = {before, it, childs, rest, last, {0}};
	const struct stretch twice[] = {before, it, childs, it, rest, last, {0}};
	const struct stretch late_once[] = {before, it, childs, rest, last, others, {0}};
	const struct stretch late_twice[] = {before, it, it, childs, rest, last, others, {0}};
	const struct stretch cut = {0, CUT};
	const struct stretch cut_off[] = {cut, rest, last, {0}};
	const struct stretch cut_then_write[] = {cut, it, rest, last, {0}};
	const struct stretch left_before[] = {before, rest, last, {0}};
	const struct stretch died_then[] = {before, it, {0}};
	const struct stretch died_before[] = {before, {0}};
	const struct stretch *made = plain, *later = plain;
	size_t size;
	char *bytes;

	/* who ends well leaves no staging area behind */
	if (does != DOES_DIE && access(".fastwrite", F_OK) == 0)
		fail_msg("something is left when the handler comes after instruction %u", steps);
	bytes = all_bytes(&size);

	if (does == DOES_TRUNCATE) {
		made = cut_off;
		later = cut_then_write;
	} else if ((does >= DOES_WRITE && does <= DOES_WRITE_COPY) || does == DOES_OPEN_ANOTHER ||
	           does == DOES_PUT_ANOTHER) {
		made = write_then;
		later = then_write;
	} else if (does == DOES_FORK_TWO) {
		made = once;
		later = twice;
	} else if (does == DOES_FORK_LATE) {
		made = late_once;
		later = late_twice;
	} else if (does == DOES_JUMP) {
		later = left_before;
	} else if (does == DOES_DIE) {
		made = died_then;
		later = died_before;
	}
	if (!is_row(bytes, size, made) && !is_row(bytes, size, later)) {
		print_row(bytes, size);
		fail_msg("the files are wrong when the handler comes after instruction %u", steps);
	}
	free(bytes);
}

/* FASTWRITE_TEST_LONG=1: after each instruction; else after some, others in the next of these tests, and in
 * each run. */
static unsigned few(unsigned *first)
{
	const unsigned every = needs_exec() ? 30 : 10; /* a program of its own takes three times as long */
	static unsigned tests;

	if (is_long())
		return 1;
	*first += (begin_of_run() + tests++) % every;
	return every;
}

static void go_through(int more, enum call call, enum does what, bool raw)
{
	unsigned steps = 1, stride = call == AMONG_OTHERS ? STRIDE : few(&steps);
	unsigned most = call == AMONG_OTHERS ? STRIDES_MOST : STEPS_MOST;

	does = what;
	past_handlers = raw;
	while (step(more, call, steps) && steps < most) {
		check_step(steps);
		steps += stride;
	}
	assert_true(steps > stride);
	unlink("a");
	unlink("b");
}

#define STEP_TEST(name, more, call, what, raw) \
	static void name(void **state) \
	{ \
		(void)state; \
		go_through(more, call, what, raw); \
	}

STEP_TEST(nothing_is_done, 0, BY_WRITE, DOES_NOTHING, false)
STEP_TEST(it_writes, 0, BY_WRITE, DOES_WRITE, false)
STEP_TEST(it_appends, O_APPEND, BY_WRITE, DOES_WRITE, false)
STEP_TEST(it_writes_much, 0, BY_WRITE, DOES_WRITE_MANY, false)
STEP_TEST(it_appends_much, O_APPEND, BY_WRITE, DOES_WRITE_MANY, false)
STEP_TEST(it_writes_at_once, 0, BY_WRITE, DOES_WRITE_AT_ONCE, false)
STEP_TEST(it_appends_at_once, O_APPEND, BY_WRITE, DOES_WRITE_AT_ONCE, false)
STEP_TEST(it_appends_by_itself, O_APPEND, BY_WRITE, DOES_WRITE_SECOND, false)
STEP_TEST(it_writes_to_a_copy, 0, BY_WRITE, DOES_WRITE_COPY, false)
STEP_TEST(it_truncates, O_APPEND, BY_WRITE, DOES_TRUNCATE, false)
STEP_TEST(it_syncs, 0, BY_WRITE, DOES_SYNC, false)
STEP_TEST(it_looks, O_APPEND, BY_WRITE, DOES_LOOK, false)
STEP_TEST(it_opens_another, 0, BY_WRITE, DOES_OPEN_ANOTHER, false)
STEP_TEST(it_puts_another_there, 0, BY_WRITE, DOES_PUT_ANOTHER, false)
STEP_TEST(it_puts_another_there_while_appending, O_APPEND, BY_WRITE, DOES_PUT_ANOTHER, false)
STEP_TEST(it_forks, 0, BY_WRITE, DOES_FORK, false)
STEP_TEST(it_forks_while_appending, O_APPEND, BY_WRITE, DOES_FORK, false)
STEP_TEST(both_go_on, 0, BY_WRITE, DOES_FORK_TWO, false)
STEP_TEST(both_go_on_appending, O_APPEND, BY_WRITE, DOES_FORK_TWO, false)
STEP_TEST(child_goes_on_late, 0, BY_WRITE, DOES_FORK_LATE, false)
STEP_TEST(it_forks_by_system_call, 0, BY_WRITE, DOES_FORK, true)
STEP_TEST(both_go_on_by_system_call, O_APPEND, BY_WRITE, DOES_FORK_TWO, true)
STEP_TEST(child_goes_on_late_by_system_call, 0, BY_WRITE, DOES_FORK_LATE, true)
STEP_TEST(it_jumps_away, 0, BY_WRITE, DOES_JUMP, false)
STEP_TEST(it_jumps_away_from_an_append, O_APPEND, BY_WRITE, DOES_JUMP, false)
STEP_TEST(it_is_killed, 0, BY_WRITE, DOES_DIE, false)
STEP_TEST(it_is_killed_appending, O_APPEND, BY_WRITE, DOES_DIE, false)
STEP_TEST(vector_then_write, 0, BY_WRITEV, DOES_WRITE, false)
STEP_TEST(vector_then_both, 0, BY_WRITEV, DOES_FORK_TWO, false)
STEP_TEST(vector_then_another, 0, BY_WRITEV, DOES_OPEN_ANOTHER, false)
STEP_TEST(positioned_then_both, O_APPEND, BY_PWRITE, DOES_FORK_TWO, false)
STEP_TEST(positioned_then_late_by_system_call, O_APPEND, BY_PWRITE, DOES_FORK_LATE, true)
STEP_TEST(others_then_write, O_APPEND, AMONG_OTHERS, DOES_WRITE, false)
STEP_TEST(others_then_both, 0, AMONG_OTHERS, DOES_FORK_TWO, false)
STEP_TEST(others_then_both_by_system_call, O_APPEND, AMONG_OTHERS, DOES_FORK_TWO, true)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_done),
		cmocka_unit_test(it_writes),
		cmocka_unit_test(it_appends),
		cmocka_unit_test(it_writes_much),
		cmocka_unit_test(it_appends_much),
		cmocka_unit_test(it_writes_at_once),
		cmocka_unit_test(it_appends_at_once),
		cmocka_unit_test(it_appends_by_itself),
		cmocka_unit_test(it_writes_to_a_copy),
		cmocka_unit_test(it_truncates),
		cmocka_unit_test(it_syncs),
		cmocka_unit_test(it_looks),
		cmocka_unit_test(it_opens_another),
		cmocka_unit_test(it_puts_another_there),
		cmocka_unit_test(it_puts_another_there_while_appending),
		cmocka_unit_test(it_forks),
		cmocka_unit_test(it_forks_while_appending),
		cmocka_unit_test(both_go_on),
		cmocka_unit_test(both_go_on_appending),
		cmocka_unit_test(child_goes_on_late),
		cmocka_unit_test(it_forks_by_system_call),
		cmocka_unit_test(both_go_on_by_system_call),
		cmocka_unit_test(child_goes_on_late_by_system_call),
		cmocka_unit_test(it_jumps_away),
		cmocka_unit_test(it_jumps_away_from_an_append),
		cmocka_unit_test(vector_then_write),
		cmocka_unit_test(vector_then_both),
		cmocka_unit_test(vector_then_another),
		cmocka_unit_test(positioned_then_both),
		cmocka_unit_test(positioned_then_late_by_system_call),
		cmocka_unit_test(others_then_write),
		cmocka_unit_test(others_then_both),
		cmocka_unit_test(others_then_both_by_system_call),
		cmocka_unit_test(it_is_killed),
		cmocka_unit_test(it_is_killed_appending),
	};

	own_path = argv[0];
	close_inherited();
	if (argc == 5) {
		does = (enum does)atoi(argv[3]);
		past_handlers = atoi(argv[4]);
		be_stepped(atoi(argv[1]), (enum call)atoi(argv[2]));
	}
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
