// SPDX-License-Identifier: Apache-2.0
/* vfork, clone, posix_spawn and exec: children that share our memory, and programs that inherit descriptors.
 */
#include "hook_test.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

extern char **environ;
pid_t __vfork(void);
/* glibc 2.39 */
__attribute__((weak)) int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                                      const posix_spawnattr_t *attr, char *const argv[], char *const env[]);
__attribute__((weak)) int pidfd_spawnp(int *pidfd, const char *path,
                                       const posix_spawn_file_actions_t *actions,
                                       const posix_spawnattr_t *attr, char *const argv[], char *const env[]);
int __clone(int (*start)(void *), void *stack, int flags, void *arg, ...);

static char self[4096];

/* ---- our own program again ---- */

/* "emit FROM COUNT": records to standard output; "check FILE FROM COUNT"; "atleast FILE COUNT": whole
 * records. */
static int as_program(int argc, char **argv)
{
	char record[RECORD], want[RECORD];
	unsigned count = (unsigned)atoi(argv[argc - 1]), n = 0;
	int fd = 1;

	if (strcmp(argv[1], "emit") == 0) {
		for (unsigned i = 0; i < count; i++) {
			record_fill(record, (unsigned)atoi(argv[2]) + i);
			if (write(1, record, RECORD) != RECORD)
				return 1;
		}
		return 0;
	}
	if (strcmp(argv[1], "leave") == 0) {
		fd = open(argv[2], O_WRONLY);
		write_records(fd, 0, count);
		raise(SIGKILL);
	}
	fd = open(argv[2], O_RDONLY);
	if (fd < 0)
		return 2;
	for (; read(fd, record, RECORD) == RECORD; n++) {
		record_fill(want, n);
		if (memcmp(record, want, RECORD) != 0)
			return 3;
	}
	return strcmp(argv[1], "check") == 0 ? n != count : n < count;
}

static char *emit_arguments[] = {self, "emit", NULL, NULL, NULL};
static char **emitting(unsigned from, unsigned count)
{
	static char text[2][16];

	snprintf(text[0], sizeof text[0], "%u", from);
	snprintf(text[1], sizeof text[1], "%u", count);
	emit_arguments[2] = text[0];
	emit_arguments[3] = text[1];
	return emit_arguments;
}

static char *check_arguments[] = {self, "check", "a", NULL, NULL};
static char **checking(unsigned count)
{
	static char text[16];

	snprintf(text, sizeof text, "%u", count);
	check_arguments[3] = text;
	return check_arguments;
}

/* In a child, of whatever kind. */
static void child_writes(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

/* ---- vfork ---- */

/* How a child of vfork is made; `what` is called in it, and it ends with _exit(0). */
typedef void child_main(int fd);

__attribute__((noinline)) static pid_t by_vfork(child_main *what, int fd)
{
	pid_t pid = vfork();

	if (pid == 0) {
		what(fd);
		_exit(0);
	}
	return pid;
}

__attribute__((noinline)) static pid_t by_vfork_alias(child_main *what, int fd)
{
	pid_t pid = __vfork();

	if (pid == 0) {
		what(fd);
		_exit(0);
	}
	return pid;
}

struct cloned {
	child_main *what;
	int fd;
};

static int cloned_main(void *arg)
{
	const struct cloned *c = arg;

	c->what(c->fd);
	return 0;
}

static char clone_stack[1 << 18] __attribute__((aligned(16)));

static pid_t by_clone_vfork(child_main *what, int fd)
{
	struct cloned c = {what, fd};

	return __clone(cloned_main, clone_stack + sizeof clone_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &c);
}

static pid_t by_clone_fork(child_main *what, int fd)
{
	struct cloned c = {what, fd};

	return clone(cloned_main, clone_stack + sizeof clone_stack, SIGCHLD, &c);
}

typedef pid_t way(child_main *what, int fd);
static way *const vforks[] = {by_vfork, by_vfork_alias, by_clone_vfork, by_clone_fork};
enum { WAYS = sizeof vforks / sizeof *vforks };

#define EACH_WAY(w) for (way *const *w = vforks; w < vforks + WAYS; w++)

static int other_fd;

static void writes_more(int fd) { child_writes(fd, RECORDS, RECORDS); }

/* The child has the same description: its bytes come behind ours, and ours behind its. */
static void writing_in_turns(void **state)
{
	(void)state;
	for (int append = 0; append < 2; append++)
		EACH_WAY(w)
		{
			int fd = open_staged("a", append ? O_APPEND : 0);

			check_exit((*w)(writes_more, fd), 0);
			assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 2 * STAGED);
			write_records(fd, 2 * RECORDS, RECORDS);
			OK(close(fd));
			check_file("a", 0, 3 * RECORDS);
			OK(unlink("a"));
		}
}

/* What has this number in the child is another file. */
static void redirects(int fd)
{
	CHILD(dup2(other_fd, fd) == fd);
	child_writes(fd, 0, RECORDS);
	CHILD(close(fd) == 0);
	CHILD(open("c", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) == fd);
	child_writes(fd, 0, RECORDS);
	CHILD(lseek(fd, 0, SEEK_CUR) == STAGED);
	CHILD(fsync(fd) == 0);
}

static void another_file_of_this_number(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0);

		other_fd = open_new("b", 0);
		check_exit((*w)(redirects, fd), 0);
		write_records(fd, RECORDS, RECORDS);
		assert_int_equal(OK(lseek(other_fd, 0, SEEK_CUR)), STAGED);
		write_records(other_fd, RECORDS, RECORDS);
		OK(close(fd));
		OK(close(other_fd));
		check_file("a", 0, 2 * RECORDS);
		check_file("b", 0, 2 * RECORDS);
		check_file("c", 0, RECORDS);
		OK(unlink("a"));
		OK(unlink("b"));
		OK(unlink("c"));
	}
}

static void opens_and_leaves_open(int fd)
{
	(void)fd;
	CHILD(open("b", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) == other_fd);
	child_writes(other_fd, 0, 1);
}

/* A number that the child used is free in the parent. */
static void open_in_the_child_only(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0);

		other_fd = OK(dup(fd));
		OK(close(other_fd));
		check_exit((*w)(opens_and_leaves_open, fd), 0);
		FAILS(write(other_fd, "x", 1), EBADF);
		assert_int_equal(OK(open("c", O_WRONLY | O_CREAT | O_CLOEXEC, 0644)), other_fd);
		write_records(other_fd, 0, RECORDS);
		OK(close(other_fd));
		OK(close(fd));
		check_file("a", 0, RECORDS);
		check_file("b", 0, 1);
		check_file("c", 0, RECORDS);
		OK(unlink("a"));
		OK(unlink("b"));
		OK(unlink("c"));
	}
}

static void takes_every_number(int fd)
{
	struct rlimit limit;

	CHILD(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	if (limit.rlim_cur > 5000)
		limit.rlim_cur = 5000;
	for (int n = fd + 1; n < (int)limit.rlim_cur; n++)
		CHILD(dup2(other_fd, n) == n);
	child_writes(fd, RECORDS, RECORDS);
	closefrom(fd + 1);
	CHILD(write(fd + 1, "x", 1) == -1 && errno == EBADF);
}

/* No descriptor of the library is in the child's way, and none is lost to the parent by what the child does.
 */
static void every_number_in_the_child(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0);

		other_fd = OK(open("/dev/null", O_WRONLY | O_CLOEXEC));
		check_exit((*w)(takes_every_number, fd), 0);
		write_records(fd, 2 * RECORDS, 10 * RECORDS);
		OK(close(other_fd));
		OK(close(fd));
		check_file("a", 0, 12 * RECORDS);
		OK(unlink("a"));
	}
}

static void truncates(int fd)
{
	CHILD(ftruncate(fd, RECORD) == 0);
	CHILD(lseek(fd, RECORD, SEEK_SET) == RECORD);
}

static void moves(int fd) { CHILD(lseek(fd, 2 * STAGED, SEEK_SET) == 2 * STAGED); }

static void sets_append(int fd)
{
	CHILD(fcntl(fd, F_SETFL, O_APPEND) == 0);
	CHILD(lseek(fd, 0, SEEK_SET) == 0);
}

/* Offset and flags belong to the description, so these are changed for the parent as well. */
static void changing_the_description(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0);
		char *bytes;
		size_t size;

		check_exit((*w)(truncates, fd), 0);
		write_records(fd, 1, RECORDS);
		check_exit((*w)(moves, fd), 0);
		write_records(fd, 0, RECORDS);
		OK(close(fd));
		bytes = file_bytes("a", &size);
		assert_int_equal(size, 3 * STAGED);
		check_records(bytes, 0, RECORDS + 1);
		for (size_t at = STAGED + RECORD; at < 2 * STAGED; at++)
			assert_int_equal(bytes[at], 0);
		check_records(bytes + 2 * STAGED, 0, RECORDS);
		free(bytes);
		fd = open_staged("a", 0);
		check_exit((*w)(sets_append, fd), 0);
		write_records(fd, RECORDS, RECORDS);
		assert_true(OK(fcntl(fd, F_GETFL)) & O_APPEND);
		OK(close(fd));
		check_file("a", 0, 2 * RECORDS);
		OK(unlink("a"));
	}
}

static char *mapping;
static void maps(int fd)
{
	mapping = mmap(NULL, STAGED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHILD(mapping != MAP_FAILED);
}

/* A mapping that the child makes is the parent's. */
static void mapped_by_the_child(void **state)
{
	int fd = open_staged("a", 0);
	char record[RECORD];

	(void)state;
	check_exit(by_vfork(maps, fd), 0);
	OK(lseek(fd, 0, SEEK_SET));
	for (unsigned i = 0; i < RECORDS; i++) {
		record_fill(record, 1000 + i);
		assert_int_equal(OK(write(fd, record, RECORD)), RECORD);
		assert_memory_equal(mapping + i * RECORD, record, RECORD);
	}
	OK(munmap(mapping, STAGED));
	OK(close(fd));
	check_file("a", 1000, RECORDS);
	OK(unlink("a"));
}

static void limits_itself(int fd)
{
	struct rlimit limit = {.rlim_cur = RECORD, .rlim_max = RLIM_INFINITY};

	signal(SIGXFSZ, SIG_IGN);
	CHILD(setrlimit(RLIMIT_FSIZE, &limit) == 0);
	CHILD(write(fd, "x", 1) == -1 && errno == EFBIG);
	limit.rlim_cur = limit.rlim_max;
	CHILD(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void limits_of_the_child(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0);

		check_exit((*w)(limits_itself, fd), 0);
		write_records(fd, RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 2 * RECORDS);
		OK(unlink("a"));
	}
}

static sigset_t child_mask;
static volatile sig_atomic_t handled;
static void count_signal(int number)
{
	(void)number;
	handled++;
}
static void looks_at_signals(int fd)
{
	(void)fd;
	CHILD(sigprocmask(SIG_BLOCK, NULL, &child_mask) == 0);
	CHILD(raise(SIGUSR1) == 0);
	CHILD(handled == 1);
}

static void signals_of_the_child(void **state)
{
	struct sigaction action = {.sa_handler = count_signal}, before;
	sigset_t mask, now;
	int fd = open_staged("a", 0);

	(void)state;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR2);
	assert_int_equal(sigprocmask(SIG_BLOCK, &mask, NULL), 0);
	assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
	handled = 0;
	check_exit(by_vfork(looks_at_signals, fd), 0);
	assert_true(sigismember(&child_mask, SIGUSR2) && !sigismember(&child_mask, SIGUSR1));
	assert_int_equal(sigprocmask(SIG_BLOCK, NULL, &now), 0);
	for (int n = 1; n < NSIG; n++)
		assert_int_equal(sigismember(&now, n), sigismember(&child_mask, n));
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(handled, 2);
	assert_int_equal(sigprocmask(SIG_UNBLOCK, &mask, NULL), 0);
	assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
	OK(close(fd));
	OK(unlink("a"));
}

static void kills_itself(int fd)
{
	child_writes(fd, RECORDS, RECORDS);
	raise(SIGKILL);
}

static void a_killed_child(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0), status;
		pid_t pid = (*w)(kills_itself, fd);

		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		write_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 3 * RECORDS);
		OK(unlink("a"));
	}
}

static void vforks_again(int fd)
{
	int status;
	pid_t pid;

	child_writes(fd, RECORDS, 1);
	pid = vfork();
	if (pid == 0) {
		child_writes(fd, RECORDS + 1, 1);
		_exit(5);
	}
	CHILD(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5);
	child_writes(fd, RECORDS + 2, 1);
}

static void forks(int fd)
{
	int status;
	pid_t pid;

	child_writes(fd, RECORDS, 1);
	pid = fork();
	if (pid == 0) {
		child_writes(fd, RECORDS + 1, 1);
		_exit(5);
	}
	CHILD(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 5);
	child_writes(fd, RECORDS + 2, 1);
}

static void children_of_children(void **state)
{
	(void)state;
	for (int deep = 0; deep < 2; deep++)
		EACH_WAY(w)
		{
			int fd = open_staged("a", 0);

			check_exit((*w)(deep ? forks : vforks_again, fd), 0);
			write_records(fd, RECORDS + 3, RECORDS);
			OK(close(fd));
			check_file("a", 0, 2 * RECORDS + 3);
			OK(unlink("a"));
		}
}

/* A grandchild outlives its parent and writes to the description that it has from it. */
static int turn[2];
static void leaves_a_fork_behind(int fd)
{
	char go;

	if (fork() == 0) {
		CHILD(read(turn[0], &go, 1) == 1);
		child_writes(fd, 2 * RECORDS, RECORDS);
		_exit(0);
	}
}

static void a_fork_that_stays(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_staged("a", 0), done[2];

		OK(pipe2(turn, O_CLOEXEC));
		OK(pipe2(done, O_CLOEXEC));
		check_exit((*w)(leaves_a_fork_behind, fd), 0);
		write_records(fd, RECORDS, RECORDS);
		OK(close(done[1]));
		assert_int_equal(OK(write(turn[1], "x", 1)), 1);
		{
			char end;

			/* the last other holder of this end is the grandchild */
			assert_int_equal(OK(read(done[0], &end, 1)), 0);
		}
		write_records(fd, 3 * RECORDS, RECORDS);
		OK(close(fd));
		check_file("a", 0, 4 * RECORDS);
		OK(close(turn[0]));
		OK(close(turn[1]));
		OK(close(done[0]));
		OK(unlink("a"));
	}
}

/* ---- clones that share more than the library follows ---- */

static int shared_main(void *arg)
{
	const struct cloned *c = arg;

	c->what(c->fd);
	syscall(SYS_exit, 0);
	return 0;
}

static void writes_and_opens(int fd)
{
	child_writes(fd, RECORDS, RECORDS);
	child_writes(open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), 0, RECORDS);
}

/* In a process of its own, since the library gives up in it. */
static void sharing(int flags)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		struct cloned c = {writes_and_opens, 0};
		int status;

		c.fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		child_writes(c.fd, 0, RECORDS);
		pid = clone(shared_main, clone_stack + sizeof clone_stack, flags | SIGCHLD, &c);
		CHILD(pid > 0);
		CHILD(waitpid(pid, &status, 0) == pid && status == 0);
		child_writes(c.fd, 2 * RECORDS, RECORDS);
		if (flags & CLONE_FILES)
			child_writes(c.fd + 1, RECORDS, RECORDS);
		else
			CHILD(write(c.fd + 1, "x", 1) == -1 && errno == EBADF);
		CHILD(close(c.fd) == 0);
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 3 * RECORDS);
	check_file("b", 0, flags & CLONE_FILES ? 2 * RECORDS : RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void clones_that_share(void **state)
{
	(void)state;
	sharing(CLONE_VM);
	sharing(CLONE_FILES);
	sharing(CLONE_VM | CLONE_FILES);
	sharing(CLONE_VM | CLONE_FILES | CLONE_VFORK);
	sharing(CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_FS);
	FAILS(clone(shared_main, NULL, SIGCHLD, NULL), EINVAL);
}

/* ---- programs that inherit ---- */

static void becomes_emitter(int fd)
{
	CHILD(dup2(fd, 1) == 1);
	execv(self, emitting(RECORDS, RECORDS));
	CHILD(0);
}

static void becomes_emitter_later(int fd)
{
	char *none[] = {"none", NULL};

	CHILD(dup2(fd, 1) == 1);
	CHILD(execv("./none", none) == -1 && errno == ENOENT);
	CHILD(execve("/", none, environ) == -1 && errno == EACCES);
	execvp(self, emitting(RECORDS, RECORDS));
	CHILD(0);
}

static void clears_cloexec(int fd)
{
	char **emit = emitting(RECORDS, RECORDS), number[16];

	CHILD(fcntl(fd, F_SETFD, 0) == 0);
	snprintf(number, sizeof number, "%d", fd);
	execlp("sh", "sh", "-c", "\"$0\" emit \"$1\" \"$2\" >&\"$3\"", self, emit[2], emit[3], number,
	       (char *)NULL);
	CHILD(0);
}

/* A CLOEXEC descriptor that the child makes the standard output of a program: all three write at one offset.
 */
static void redirected(void **state)
{
	static child_main *const hows[] = {becomes_emitter, becomes_emitter_later, clears_cloexec};

	(void)state;
	for (size_t how = 0; how < sizeof hows / sizeof *hows; how++)
		EACH_WAY(w)
		{
			int fd = open_staged("a", 0);

			check_exit((*w)(hows[how], fd), 0);
			assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 2 * STAGED);
			write_records(fd, 2 * RECORDS, RECORDS);
			OK(close(fd));
			check_file("a", 0, 3 * RECORDS);
			OK(unlink("a"));
		}
}

/* A descriptor that nothing has asked about yet is inherited as well. */
static void redirected_early(void **state)
{
	(void)state;
	EACH_WAY(w)
	{
		int fd = open_new("a", 0);

		write_records(fd, 0, 1);
		check_exit((*w)(becomes_emitter, fd), 0);
		write_records(fd, 2 * RECORDS, RECORDS);
		OK(close(fd));
		fd = OK(open("a", O_RDONLY));
		{
			size_t size;
			char *bytes = file_bytes("a", &size);

			assert_int_equal(size, (1 + 2 * RECORDS) * RECORD);
			check_records(bytes, 0, 1);
			check_records(bytes + RECORD, RECORDS, 2 * RECORDS);
			free(bytes);
		}
		OK(close(fd));
		OK(unlink("a"));
	}
}

/* The new program goes on writing while we do: what each tells the other to write comes in that order. */
static void taking_turns_with_a_program(void **state)
{
	static char *argv[] = {"sh", "-c", "while read n; do \"$0\" emit $n 1; echo done >&9; done", self,
	                       NULL};
	posix_spawn_file_actions_t actions;
	int fd = open_staged("a", 0), to[2], from[2];
	char line[16];
	pid_t pid;

	(void)state;
	OK(pipe2(to, O_CLOEXEC));
	OK(pipe2(from, O_CLOEXEC));
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, to[0], 0), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, fd, 1), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, from[1], 9), 0);
	assert_int_equal(posix_spawnp(&pid, "sh", &actions, NULL, argv, environ), 0);
	assert_int_equal(posix_spawn_file_actions_destroy(&actions), 0);
	OK(close(to[0]));
	OK(close(from[1]));
	for (unsigned i = RECORDS; i < RECORDS + 10; i += 2) {
		write_records(fd, i, 1);
		snprintf(line, sizeof line, "%u\n", i + 1);
		assert_int_equal(OK(write(to[1], line, strlen(line))), strlen(line));
		assert_true(OK(read(from[0], line, sizeof line)) > 0);
	}
	OK(close(to[1]));
	check_exit(pid, 0);
	OK(close(from[0]));
	OK(close(fd));
	check_file("a", 0, RECORDS + 10);
	OK(unlink("a"));
}

static void spawned_with_actions(void **state)
{
	posix_spawn_file_actions_t actions;
	int fd = open_staged("a", 0);
	pid_t pid;

	(void)state;
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, fd, 7), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, 7, 1), 0);
	assert_int_equal(posix_spawn(&pid, self, &actions, NULL, emitting(RECORDS, RECORDS), environ), 0);
	write_records(fd, 9000, 0);
	check_exit(pid, 0);
	write_records(fd, 2 * RECORDS, RECORDS);
	/* the set of actions may be used again */
	assert_int_equal(posix_spawnp(&pid, self, &actions, NULL, emitting(3 * RECORDS, RECORDS), environ),
	                 0);
	check_exit(pid, 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	assert_int_equal(posix_spawn_file_actions_destroy(&actions), 0);
	OK(close(fd));
	check_file("a", 0, 5 * RECORDS);
	OK(unlink("a"));
}

/* On an older C library there is none, or one that says so. */
static void spawned_by_pidfd(void **state)
{
	posix_spawn_file_actions_t actions;
	int fd, pidfd, r;
	siginfo_t info;

	(void)state;
	if (!pidfd_spawn || !pidfd_spawnp) {
		print_message("this C library has no pidfd_spawn\n");
		skip();
	}
	fd = open_staged("a", 0);
	assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
	assert_int_equal(posix_spawn_file_actions_adddup2(&actions, fd, 1), 0);
	for (unsigned n = 1; n <= 3; n += 2) {
		r = (n == 1 ? pidfd_spawn : pidfd_spawnp)(&pidfd, self, &actions, NULL,
		                                          emitting(n * RECORDS, RECORDS), environ);
		if (r == ENOSYS) {
			OK(close(fd));
			OK(unlink("a"));
			print_message("this C library has no pidfd_spawn\n");
			skip();
		}
		assert_int_equal(r, 0);
		OK(waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED));
		assert_int_equal(info.si_status, 0);
		OK(close(pidfd));
		write_records(fd, (n + 1) * RECORDS, RECORDS);
	}
	assert_int_equal(posix_spawn_file_actions_destroy(&actions), 0);
	OK(close(fd));
	check_file("a", 0, 5 * RECORDS);
	OK(unlink("a"));
}

static void by_system(void **state)
{
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	char command[8192];
	FILE *pipe;

	(void)state;
	write_records(fd, 0, RECORDS);
	snprintf(command, sizeof command, "'%s' emit %d %d >&%d", self, RECORDS, RECORDS, fd);
	assert_int_equal(system(command), 0);
	write_records(fd, 2 * RECORDS, RECORDS);
	snprintf(command, sizeof command, "'%s' emit %d %d >&%d", self, 3 * RECORDS, RECORDS, fd);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_int_equal(pclose(pipe), 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 5 * RECORDS);
}

/* ---- other threads go on ---- */

enum { WRITERS = 3, CHILDREN = 60 };
static atomic_bool stop;
static unsigned written[WRITERS];
static int common_fd;

static void *writer(void *arg)
{
	unsigned which = (unsigned)(uintptr_t)arg;
	char name[8], record[RECORD];
	int fd;

	snprintf(name, sizeof name, "w%u", which);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (which == 1 ? O_APPEND : 0), 0644);
	while (!atomic_load(&stop)) {
		record_fill(record, written[which]);
		if (write(fd, record, RECORD) != RECORD)
			break;
		record_fill(record, 1000000 * (which + 1) + written[which]);
		if (write(common_fd, record, RECORD) != RECORD)
			break;
		written[which]++;
	}
	close(fd);
	return NULL;
}

static unsigned child_count;
static void writes_to_common(int fd) { child_writes(fd, 9000000 + child_count++, 1); }

static void check_common(unsigned children)
{
	unsigned next[10] = {0};
	size_t size;
	char *bytes = file_bytes("a", &size);

	assert_int_equal(size % RECORD, 0);
	for (size_t at = 0; at < size; at += RECORD) {
		unsigned number = (unsigned)atoi(bytes + at), who = number / 1000000;

		check_records(bytes + at, who * 1000000 + next[who]++, 1);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		assert_int_equal(next[i + 1], written[i]);
	assert_int_equal(next[9], children);
	free(bytes);
}

/* Each on its own file and all on a common one, into which the children write, too: every record is there
 * once, and those of one writer are in order. */
static void children_among_writers(void **state)
{
	pthread_t threads[WRITERS];

	(void)state;
	common_fd = open_new("a", O_APPEND);
	atomic_store(&stop, false);
	memset(written, 0, sizeof written);
	child_count = 0;
	for (uintptr_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, writer, (void *)i), 0);
	for (unsigned i = 0; i < CHILDREN; i++) {
		check_exit((i & 1 ? by_vfork : by_clone_vfork)(writes_to_common, common_fd), 0);
		usleep(500);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < WRITERS; i++) {
		char name[8];

		pthread_join(threads[i], NULL);
		snprintf(name, sizeof name, "w%u", i);
		assert_true(written[i] > 0);
		check_file(name, 0, written[i]);
		OK(unlink(name));
	}
	OK(close(common_fd));
	check_common(CHILDREN);
	OK(unlink("a"));
}

static atomic_uint vforked;
static void *vforker(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		char *argv[] = {"true", NULL};
		int status;
		pid_t pid = vfork();

		if (pid == 0) {
			execvp("true", argv);
			_exit(1);
		}
		if (waitpid(pid, &status, 0) != pid || status != 0)
			return (void *)1;
		atomic_fetch_add(&vforked, 1);
	}
	return NULL;
}

/* Several threads make children at once. */
static void vforks_at_once(void **state)
{
	pthread_t threads[3];
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;
	void *bad;

	(void)state;
	atomic_store(&stop, false);
	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, vforker, NULL), 0);
	while (atomic_load(&vforked) < 60)
		write_records(fd, n++, 1);
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++) {
		pthread_join(threads[i], &bad);
		assert_null(bad);
	}
	write_records(fd, n, RECORDS);
	OK(close(fd));
	check_file("a", 0, n + RECORDS);
	OK(unlink("a"));
}

/* ---- exec ---- */

/* Counted by writers after each write that returned; outlives the exec. */
static _Atomic unsigned *acknowledged;

static void *acknowledging_writer(void *arg)
{
	char record[RECORD];

	(void)arg;
	for (unsigned n = 0;; n++) {
		record_fill(record, n);
		if (write(common_fd, record, RECORD) != RECORD)
			_exit(96);
		atomic_store(acknowledged, n + 1);
	}
	return NULL;
}

/* Other threads are inside write when the process becomes another program: nothing that was told is lost. */
static void exec_among_writers(void **state)
{
	(void)state;
	acknowledged = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned i = 0; i < 20; i++) {
		pid_t pid;

		fflush(stdout);
		atomic_store(acknowledged, 0);
		pid = fork();
		if (pid == 0) {
			char *none[] = {"none", NULL};
			pthread_t thread;

			common_fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (i & 1 ? O_APPEND : 0),
			                 0644);
			CHILD(pthread_create(&thread, NULL, acknowledging_writer, NULL) == 0);
			while (atomic_load(acknowledged) < 100 + i)
				sched_yield();
			CHILD(execv("./none", none) == -1 && errno == ENOENT);
			while (atomic_load(acknowledged) < 200 + i)
				sched_yield();
			execl("/bin/true", "true", (char *)NULL);
			_exit(98);
		}
		check_exit(pid, 0);
		{
			size_t size;
			char *bytes = file_bytes("a", &size);

			/* the last one may have been in the kernel, which stops between two pages */
			assert_in_range(size / RECORD, atomic_load(acknowledged),
			                atomic_load(acknowledged) + 1);
			check_records(bytes, 0, (unsigned)(size / RECORD));
			free(bytes);
		}
	}
	OK(munmap((void *)acknowledged, 4096));
	OK(unlink("a"));
}

static volatile unsigned handler_at;
static void exec_in_handler(int number)
{
	struct itimerval none = {0};
	char count[16];

	(void)number;
	setitimer(ITIMER_REAL, &none, NULL); /* it would go on in the new program */
	snprintf(count, sizeof count, "%u", handler_at);
	execl(self, self, "atleast", "a", count, (char *)NULL);
	_exit(97);
}

static void vfork_in_handler(int number)
{
	char record[RECORD];
	pid_t pid;

	(void)number;
	pid = vfork();
	if (pid == 0) {
		record_fill(record, 9999);
		_exit(write(other_fd, record, RECORD) != RECORD);
	}
	waitpid(pid, NULL, 0);
	handled++;
}

static void arm(void (*handler)(int), long usec, bool again)
{
	struct itimerval timer = {.it_value = {.tv_usec = usec}};
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};

	if (again)
		timer.it_interval = timer.it_value;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

/* A handler that interrupted write on the same file becomes another program. */
static void exec_from_a_handler(void **state)
{
	(void)state;
	for (int i = 0; i < 30; i++) {
		pid_t pid;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
			char record[RECORD];

			arm(exec_in_handler, 2000 + 317 * i, true);
			for (;; handler_at++) {
				record_fill(record, handler_at);
				CHILD(write(fd, record, RECORD) == RECORD);
			}
		}
		check_exit(pid, 0);
	}
	OK(unlink("a"));
}

/* A handler that interrupted write on a file makes children that write to the same description. */
static void vfork_from_a_handler(void **state)
{
	unsigned n = 0, from_handler = 0;
	char *bytes;
	size_t size;

	(void)state;
	handled = 0;
	other_fd = open_new("a", 0);
	arm(vfork_in_handler, 1000, true);
	while (handled < 50 && n < 1000000)
		write_records(other_fd, n++ % 9000, 1);
	arm(SIG_IGN, 0, false);
	OK(close(other_fd));
	bytes = file_bytes("a", &size);
	assert_int_equal(size % RECORD, 0);
	for (size_t at = 0, i = 0; at < size; at += RECORD) {
		if (atoi(bytes + at) == 9999) {
			check_records(bytes + at, 9999, 1);
			from_handler++;
		} else {
			check_records(bytes + at, (unsigned)(i++ % 9000), 1);
		}
	}
	assert_int_equal(size / RECORD, n + from_handler);
	assert_int_equal(from_handler, handled);
	free(bytes);
	OK(unlink("a"));
}

static void fill_arguments(char **argv, size_t count, size_t each)
{
	char *long_one = malloc(each);

	memset(long_one, 'x', each - 1);
	long_one[each - 1] = '\0';
	for (size_t i = 0; i < count; i++)
		argv[i] = long_one;
	argv[count] = NULL;
}

/* Whatever the reason: the program goes on as before. */
static void failing_execs(void **state)
{
	enum { MANY = 200 };
	char *huge[MANY + 1], *none[] = {"none", NULL};
	int fd = open_staged("a", 0), keep = OK(open("b", O_RDWR | O_CREAT | O_TRUNC, 0644));
	unsigned n = RECORDS;
	pid_t pid;

	(void)state;
	write_records(keep, 0, RECORDS);
	fill_arguments(huge, MANY, 100000);
	for (int vforking = 0; vforking < 2; vforking++) {
		pid = vforking ? vfork() : 0;
		if (pid == 0) {
			for (int i = 0; i < 3; i++) {
				CHILD(execv("./none", none) == -1 && errno == ENOENT);
				CHILD(execvp("no-such-program-anywhere", none) == -1 && errno == ENOENT);
				CHILD(execve("/bin/true", huge, environ) == -1 && errno == E2BIG);
				CHILD(execve("/bin/true", none, huge) == -1 && errno == E2BIG);
				CHILD(execl("/", "none", (char *)NULL) == -1 && errno == EACCES);
				CHILD(execveat(AT_FDCWD, "a", none, environ, 0) == -1 && errno == EACCES);
				CHILD(fexecve(-1, none, environ) == -1 && errno == EINVAL);
				child_writes(fd, n++, 1);
				child_writes(keep, n - 1, 1);
			}
			if (vforking)
				_exit(0);
		} else {
			check_exit(pid, 0);
		}
		write_records(fd, n, RECORDS);
		write_records(keep, n, RECORDS);
		n += RECORDS;
	}
	assert_int_equal(posix_spawn(&pid, "/bin/true", NULL, NULL, huge, environ), E2BIG);
	write_records(fd, n, RECORDS);
	OK(close(fd));
	OK(close(keep));
	check_file("a", 0, n + RECORDS);
	check_file("b", 0, n);
	free(huge[0]);
	OK(unlink("a"));
	OK(unlink("b"));
}

static void in_a_child(void (*become)(int fd))
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

		child_writes(fd, 0, RECORDS);
		become(fd);
		_exit(98);
	}
	check_exit(pid, 0);
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

static void become_script(int fd)
{
	static const char text[] = "#!/bin/sh\n"
				   "test $(wc -c < a) = 2000 && test \"$1\" = argument\n";
	char *argv[] = {"script", "argument", NULL};
	int script = open("script", O_RDWR | O_CREAT | O_TRUNC, 0755);

	(void)fd;
	CHILD(write(script, text, strlen(text)) == (ssize_t)strlen(text));
	CHILD(close(script) == 0);
	/* the interpreter opens it by /dev/fd, so it stays open */
	script = open("script", O_RDONLY);
	CHILD(unlink("script") == 0);
	fexecve(script, argv, environ);
}

static void become_by_path(int fd)
{
	char path[4200], *slash;

	(void)fd;
	snprintf(path, sizeof path, "/nonexistent:%s", self);
	slash = strrchr(path, '/');
	*slash = '\0';
	CHILD(setenv("PATH", path, 1) == 0);
	execvp(slash + 1, checking(RECORDS));
}

static void become_after_closing(int fd)
{
	(void)fd;
	closefrom(3);
	execv(self, checking(RECORDS));
}

static void become_after_closing_range(int fd)
{
	(void)fd;
	close_range(3, ~0u, 0);
	execv(self, checking(RECORDS));
}

static void become_after_closing_each(int fd)
{
	(void)fd;
	for (int n = 3; n < 5000; n++)
		close(n);
	CHILD(write(fd, "x", 1) == -1 && errno == EBADF);
	execv(self, checking(RECORDS));
}

static void become_without_environment(int fd)
{
	(void)fd;
	execve(self, checking(RECORDS), NULL);
}

static void become_after_clearenv(int fd)
{
	(void)fd;
	clearenv();
	execv(self, checking(RECORDS));
}

static void becoming(void **state)
{
	(void)state;
	in_a_child(become_script);
	in_a_child(become_by_path);
	in_a_child(become_after_closing);
	in_a_child(become_after_closing_range);
	in_a_child(become_after_closing_each);
	in_a_child(become_without_environment);
	in_a_child(become_after_clearenv);
}

/* Another program is killed, and this one opens a file in the same directory: that recovers what the other
 * one had staged.  This one has locked the recovered file, and loses no lock.  (The other program begins
 * after the file has been opened here: for 50 ms after a look that finds a living process there is no other
 * look.) */
static void locks_outlive_a_recovery(void **state)
{
	char *leaving[] = {self, "leave", "a", "200", NULL};
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	pid_t pid;
	int fd, other, status, go[2];
	char c;

	(void)state;
	OK(close(open_new("a", 0)));
	OK(close(open_new("b", 0)));
	assert_int_equal(pipe(go), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		CHILD(close(go[1]) == 0 && read(go[0], &c, 1) == 0);
		execv(self, leaving);
	}
	fd = OK(open("a", O_RDWR));
	OK(fcntl(fd, F_SETLK, &lock));
	close(go[0]);
	close(go[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	other = OK(open("b", O_RDWR));
	write_records(other, 0, 10);
	OK(close(other));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		CHILD(raw_call(SYS_fcntl, fd, F_GETLK, (long)&lock, 0) == 0);
		CHILD(lock.l_type == F_WRLCK && lock.l_pid == getppid());
		leave();
	}
	check_exit(pid, 0);
	OK(close(fd));
	check_file("a", 0, 200);
	OK(unlink("a"));
	OK(unlink("b"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writing_in_turns),
		cmocka_unit_test(another_file_of_this_number),
		cmocka_unit_test(open_in_the_child_only),
		cmocka_unit_test(every_number_in_the_child),
		cmocka_unit_test(changing_the_description),
		cmocka_unit_test(mapped_by_the_child),
		cmocka_unit_test(limits_of_the_child),
		cmocka_unit_test(signals_of_the_child),
		cmocka_unit_test(a_killed_child),
		cmocka_unit_test(children_of_children),
		cmocka_unit_test(a_fork_that_stays),
		cmocka_unit_test(clones_that_share),
		cmocka_unit_test(redirected),
		cmocka_unit_test(redirected_early),
		cmocka_unit_test(taking_turns_with_a_program),
		cmocka_unit_test(spawned_with_actions),
		cmocka_unit_test(spawned_by_pidfd),
		cmocka_unit_test(by_system),
		cmocka_unit_test(children_among_writers),
		cmocka_unit_test(vforks_at_once),
		cmocka_unit_test(exec_among_writers),
		cmocka_unit_test(exec_from_a_handler),
		cmocka_unit_test(vfork_from_a_handler),
		cmocka_unit_test(failing_execs),
		cmocka_unit_test(locks_outlive_a_recovery),
		cmocka_unit_test(becoming),
	};

	if (argc >= 4)
		return as_program(argc, argv);
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
