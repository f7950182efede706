// SPDX-License-Identifier: Apache-2.0
/*
 * overlay, between any two instructions of a write: a tracer goes through it one instruction at a time and
 * there kills the process, or lets a signal handler change the same file.
 */
#include "overlay_world.h"

#include <sched.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

/* Instructions from one stop to the next; each round begins at another one.  FASTWRITE_TEST_LONG: all. */
enum { STRIDE = 127, STEPS_MOST = 20000 };

/* A repeated string instruction counts as one step for each repetition. */
#define NO_STRINGS "glibc.cpu.x86_rep_movsb_threshold=1000000:glibc.cpu.x86_rep_stosb_threshold=1000000"

static sigjmp_buf jump_env;
static bool jumps;
static const struct op *nested_op;

static void on_signal(int number)
{
	(void)number;
	if (world_do(nested_op, true) != 0)
		_exit(2);
	bytes_apply(&world->model, nested_op);
	if (jumps)
		siglongjmp(jump_env, 1);
}

static void child_runs(const struct op *op)
{
	struct sigaction act = {.sa_handler = on_signal};

	sigfillset(&act.sa_mask);
	if (sigaction(SIGUSR1, &act, NULL) != 0 || ptrace(PTRACE_TRACEME, 0, 0, 0) != 0)
		_exit(3);
	world_fill(op, false);
	if (sigsetjmp(jump_env, 1) == 0) {
		raise(SIGSTOP);
		if (world_write(op, false) != 0)
			_exit(2);
		world->done_ops = 1;
	}
	raise(SIGSTOP);
	_exit(0);
}

static int wait_for(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static bool stopped_by(int status, int number) { return WIFSTOPPED(status) && WSTOPSIG(status) == number; }

/* Goes `steps` instructions far into the write.  False: it has ended before. */
static bool go_into(pid_t pid, unsigned steps)
{
	assert_true(stopped_by(wait_for(pid), SIGSTOP));
	while (steps-- > 0) {
		int status;

		assert_int_equal(ptrace(PTRACE_SINGLESTEP, pid, 0, 0), 0);
		status = wait_for(pid);
		assert_true(WIFSTOPPED(status));
		if (WSTOPSIG(status) == SIGSTOP)
			return false;
	}
	return true;
}

static void end(pid_t pid, int number)
{
	int status;

	assert_int_equal(ptrace(PTRACE_CONT, pid, 0, number), 0);
	status = wait_for(pid);
	if (stopped_by(status, SIGSTOP)) {
		assert_int_equal(ptrace(PTRACE_CONT, pid, 0, 0), 0);
		status = wait_for(pid);
	}
	if (number == SIGKILL)
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The file is what it was before the write, or after it. */
static void check_killed(const struct op *op)
{
	struct bytes *after = world_map(sizeof *after);

	*after = world->model;
	bytes_apply(after, op);
	if (world->done_ops > 0 || !world_recovers(&world->disk, &world->model)) {
		assert_true(world_recovers(&world->disk, after));
		world->model = *after;
	}
	assert_int_equal(overlay_rebuild(&world->overlay), 0);
	munmap(after, sizeof *after);
}

/* The nested change came before the write, or after it; or the handler has left the write for good. */
static void check_nested(const struct bytes *before, const struct op *op)
{
	struct bytes *late = world_map(sizeof *late);

	*late = *before;
	bytes_apply(late, op);
	bytes_apply(late, nested_op);
	if (!jumps)
		bytes_apply(&world->model, op);
	if (!world_shows(&world->model)) {
		assert_true(world_shows(late));
		world->model = *late;
	}
	munmap(late, sizeof *late);
}

/* The program and recovery still agree, and so they do after two more writes. */
static void check_goes_on(bool all_frames)
{
	world_check();
	for (int i = 0; i < 2; i++) {
		struct op op = {
			.kind = OP_WRITE, .offset = i ? 3000 : world->model.size, .n = 5000, .seed = 77};

		assert_int_equal(world_do(&op, false), 0);
		bytes_apply(&world->model, &op);
		world_check();
	}
	world_drain();
	assert_in_range(world_free_frames(), world_layout.frames - !all_frames, world_layout.frames);
}

static void prepare(void)
{
	const struct op ops[] = {{.kind = OP_WRITE, .offset = 0, .n = 2 * PAGES_BYTES + 500, .seed = 1},
	                         {.kind = OP_CUT},
	                         {.kind = OP_WRITE, .offset = 100, .n = PAGES_BYTES, .seed = 2},
	                         {.kind = OP_WRITE, .offset = 2 * PAGES_BYTES + 500, .n = 10, .seed = 3}};

	for (unsigned i = 0; i < sizeof ops / sizeof *ops; i++) {
		assert_int_equal(world_do(&ops[i], false), 0);
		bytes_apply(&world->model, &ops[i]);
	}
}

/* One stop.  False: the write has ended before. */
static bool stop_at(const struct op *op, unsigned steps)
{
	static struct bytes before;
	bool within;
	pid_t pid;

	world_begin(1);
	bytes_resize(&world->disk, 0);
	world->model = world->disk;
	world_attach();
	prepare();
	before = world->model;
	pid = fork();
	if (pid == 0)
		child_runs(op);
	assert_true(pid > 0);
	within = go_into(pid, steps);
	end(pid, !within ? 0 : nested_op ? SIGUSR1 : SIGKILL);
	if (!within)
		return false;
	if (nested_op)
		check_nested(&before, op);
	else
		check_killed(op);
	check_goes_on(nested_op && !jumps);
	return true;
}

static const struct op writes[] = {
	{.kind = OP_WRITE, .offset = 2 * PAGES_BYTES + 510, .n = 100, .seed = 11},       /* in place */
	{.kind = OP_WRITE, .offset = PAGES_BYTES, .n = PAGES_BYTES, .seed = 12},         /* a page */
	{.kind = OP_WRITE, .offset = 7, .n = 9, .seed = 13},                             /* a piece of one */
	{.kind = OP_WRITE, .offset = PAGES_BYTES + 9, .n = 2 * PAGES_BYTES, .seed = 14}, /* and the end */
	{.kind = OP_WRITE, .offset = 5 * PAGES_BYTES + 1, .n = 2 * PAGES_BYTES, .seed = 15}, /* with a gap */
};

static bool may_trace(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	print_message("a sanitizer's own instructions would be gone through\n");
	return false;
#else
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0 ? 0 : 1);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status != 0)
		print_message("nothing may be traced here\n");
	return status == 0;
#endif
}

static void go_through(const struct op *nested, bool jump)
{
	unsigned stride = getenv("FASTWRITE_TEST_LONG") ? 1 : STRIDE, first = 1;

	if (!may_trace())
		skip();
	nested_op = nested;
	jumps = jump;
	for (unsigned i = 0; i < sizeof writes / sizeof *writes; i++) {
		unsigned steps = first++ % stride + 1;

		while (steps < STEPS_MOST && stop_at(&writes[i], steps))
			steps += stride;
		assert_in_range(steps, 100, STEPS_MOST);
	}
}

static void test_it_is_killed(void **state)
{
	(void)state;
	go_through(NULL, false);
}

#define NESTED_TEST(name, jump, ...) \
	static void name(void **state) \
	{ \
		static const struct op op = {__VA_ARGS__}; \
\
		(void)state; \
		go_through(&op, jump); \
	}

NESTED_TEST(test_handler_overwrites, false, .kind = OP_WRITE, .offset = 50, .n = 2 * PAGES_BYTES + 700,
            .seed = 21)
NESTED_TEST(test_handler_appends, false, .kind = OP_WRITE, .offset = 2 * PAGES_BYTES + 510, .n = 99,
            .seed = 22)
NESTED_TEST(test_handler_writes_behind, false, .kind = OP_WRITE, .offset = 4 * PAGES_BYTES, .n = 5,
            .seed = 23)
NESTED_TEST(test_handler_cuts_off, false, .kind = OP_TRUNCATE, .n = PAGES_BYTES + 5)
NESTED_TEST(test_handler_writes_back, false, .kind = OP_DONE)
NESTED_TEST(test_handler_leaves, true, .kind = OP_WRITE, .offset = 2 * PAGES_BYTES + 510, .n = 99, .seed = 24)

int main(int argc, char **argv)
{
	cpu_set_t one;

	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_is_killed),     cmocka_unit_test(test_handler_overwrites),
		cmocka_unit_test(test_handler_appends),  cmocka_unit_test(test_handler_writes_behind),
		cmocka_unit_test(test_handler_cuts_off), cmocka_unit_test(test_handler_writes_back),
		cmocka_unit_test(test_handler_leaves),
	};

	if (argc == 1) {
		char *again[] = {argv[0], (char[]){"again"}, NULL};

		setenv("GLIBC_TUNABLES", NO_STRINGS, 1);
		execv("/proc/self/exe", again);
		return 1;
	}
	/* tracer and traced process take turns: on one processor a step costs a fraction */
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
