// SPDX-License-Identifier: Apache-2.0
/* fork, exec, spawn, exit: what another process sees, and what both write. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>

extern char **environ;
pid_t _Fork(void);

static char self[4096];

/* Our own program again, as "check FILE FROM COUNT": ends with 0 when the records are there. */
static char *check_arguments[] = {self, "check", "a", "0", NULL, NULL};

static char **checking(unsigned count)
{
	static char text[16];

	snprintf(text, sizeof text, "%u", count);
	check_arguments[4] = text;
	return check_arguments;
}

static int check_as_program(char **argv)
{
	size_t count = (size_t)atoi(argv[4]), size = count * RECORD;
	char *bytes = malloc(size + 1), record[RECORD];
	int fd = open(argv[2], O_RDONLY);

	if (fd < 0 || read(fd, bytes, size + 1) != (ssize_t)size)
		return 1;
	for (size_t i = 0; i < count; i++) {
		record_fill(record, (unsigned)i);
		if (memcmp(bytes + i * RECORD, record, RECORD) != 0)
			return 2;
	}
	return 0;
}

static void exec_by(int how)
{
	char **argv = checking(RECORDS), count[16];
	int fd, none;

	fflush(stdout);
	if (fork() != 0)
		return;
	fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	for (unsigned i = 0; i < RECORDS; i++) {
		char record[RECORD];

		record_fill(record, i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
	snprintf(count, sizeof count, "%u", RECORDS);
	switch (how) {
	case 0: execve(self, argv, environ); break;
	case 1: execv(self, argv); break;
	case 2: execvp(self, argv); break;
	case 3: execvpe(self, argv, environ); break;
	case 4: execl(self, self, "check", "a", "0", count, (char *)NULL); break;
	case 5: execlp(self, self, "check", "a", "0", count, (char *)NULL); break;
	case 6: execle(self, self, "check", "a", "0", count, (char *)NULL, environ); break;
	case 7:
		none = open(self, O_RDONLY | O_CLOEXEC);
		fexecve(none, argv, environ);
		break;
	case 8: execveat(AT_FDCWD, self, argv, environ, 0); break;
	}
	_exit(98);
}

static void executing(void **state)
{
	(void)state;
	for (int how = 0; how < 9; how++) {
		exec_by(how);
		check_exit(-1, 0);
		check_file("a", 0, RECORDS);
	}
	OK(unlink("a"));
}

static void exec_that_fails(void **state)
{
	int fd = open_staged("a", 0);
	char *argv[] = {"none", NULL};

	(void)state;
	FAILS(execv("./none", argv), ENOENT);
	write_records(fd, RECORDS, RECORDS);
	FAILS(execle("./none", "none", (char *)NULL, environ), ENOENT);
	write_records(fd, 2 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 3 * RECORDS);
	OK(unlink("a"));
}

static void spawning(void **state)
{
	int fd = open_staged("a", 0);
	char command[8192];
	FILE *pipe;
	pid_t pid;

	(void)state;
	fflush(stdout);
	assert_int_equal(posix_spawn(&pid, self, NULL, NULL, checking(RECORDS), environ), 0);
	check_exit(pid, 0);
	write_records(fd, RECORDS, RECORDS);
	assert_int_equal(posix_spawnp(&pid, self, NULL, NULL, checking(2 * RECORDS), environ), 0);
	check_exit(pid, 0);
	write_records(fd, 2 * RECORDS, RECORDS);
	snprintf(command, sizeof command, "'%s' check a 0 %u", self, 3 * RECORDS);
	assert_int_equal(system(command), 0);
	write_records(fd, 3 * RECORDS, RECORDS);
	snprintf(command, sizeof command, "'%s' check a 0 %u", self, 4 * RECORDS);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	assert_int_equal(pclose(pipe), 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	pid = vfork();
	if (pid == 0) {
		execv(self, checking(5 * RECORDS));
		_exit(97);
	}
	check_exit(pid, 0);
	write_records(fd, 5 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 6 * RECORDS);
	OK(unlink("a"));
}

/* A descriptor that the new program inherits: it writes where we stopped, and we where it stopped. */
static void inherited(void **state)
{
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC, 0644));
	char command[64];

	(void)state;
	write_records(fd, 0, RECORDS);
	snprintf(command, sizeof command, "head -c %d a >&%d", RECORD, fd);
	assert_int_equal(system(command), 0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), STAGED + RECORD);
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	fd = OK(open("a", O_RDWR));
	{
		size_t size;
		char *bytes = file_bytes("a", &size);

		assert_int_equal(size, 2 * STAGED + RECORD);
		check_records(bytes, 0, RECORDS);
		check_records(bytes + STAGED, 0, 1);
		check_records(bytes + STAGED + RECORD, RECORDS, RECORDS);
		free(bytes);
	}
	OK(close(fd));
	OK(unlink("a"));
}

static void child_writes(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		CHILD(write(fd, record, RECORD) == RECORD);
	}
}

static void ending(void (*end)(int), int by_signal)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

		child_writes(fd, 0, RECORDS);
		end(7);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (by_signal)
		assert_true(WIFSIGNALED(status));
	else
		assert_int_equal(WEXITSTATUS(status), 7);
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

static void endings(void **state)
{
	(void)state;
	ending(_exit, 0);
	ending(_Exit, 0);
	ending(quick_exit, 0);
	ending(exit, 0);
}

static int late_fd;
static void late(void) { child_writes(late_fd, RECORDS, RECORDS); }

/* Exit handlers that ran before ours still write after it; bytes count all the same. */
static void late_writes(void **state)
{
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		atexit(late);
		late_fd = open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		child_writes(late_fd, 0, RECORDS);
		exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

/* Parent and child share the position; each sees what the other wrote. */
static void both_write_by(pid_t (*split)(void))
{
	int fd = open_staged("a", 0);
	pid_t pid;

	fflush(stdout);
	pid = split();
	if (pid == 0) {
		char bytes[STAGED];

		CHILD(lseek(fd, 0, SEEK_CUR) == STAGED);
		CHILD(pread(fd, bytes, STAGED, 0) == STAGED);
		child_writes(fd, RECORDS, RECORDS);
		_exit(0);
	}
	check_exit(pid, 0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 2 * STAGED);
	write_records(fd, 2 * RECORDS, RECORDS);
	pid = split();
	if (pid == 0) {
		child_writes(fd, 3 * RECORDS, RECORDS);
		CHILD(close(fd) == 0);
		_exit(0);
	}
	check_exit(pid, 0);
	write_records(fd, 4 * RECORDS, RECORDS);
	OK(close(fd));
	check_file("a", 0, 5 * RECORDS);
	/* a file opened after the fork is staged in both */
	pid = split();
	if (pid == 0) {
		fd = open("b", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
		child_writes(fd, 0, RECORDS);
		_exit(0);
	}
	fd = open_staged("c", 0);
	check_exit(pid, 0);
	OK(close(fd));
	check_file("b", 0, RECORDS);
	check_file("c", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

static void both_write(void **state)
{
	(void)state;
	both_write_by(fork);
	both_write_by(_Fork);
}

/* Both append without turns: every record is there once and whole, those of one process in their order. */
static void both_append(void **state)
{
	enum { EACH = 2000 };
	int fd = open_staged("a", O_APPEND);
	unsigned next[2] = {1000000, 2000000};
	size_t size;
	char *bytes;
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	child_writes(fd, pid == 0 ? 1000000 : 2000000, EACH);
	if (pid == 0)
		_exit(0);
	check_exit(pid, 0);
	OK(close(fd));
	bytes = file_bytes("a", &size);
	assert_int_equal(size, STAGED + 2 * EACH * RECORD);
	check_records(bytes, 0, RECORDS);
	for (size_t at = STAGED; at < size; at += RECORD) {
		unsigned who = atoi(bytes + at) >= 2000000;

		check_records(bytes + at, next[who]++, 1);
	}
	free(bytes);
	OK(unlink("a"));
}

/* The thread sanitizer does not take all its locks for a fork (gcc 12: that of its list of stacks): what
 * another thread holds of them at that moment the child waits for, for ever. */
static void skip_under_tsan(void)
{
#ifdef __SANITIZE_THREAD__
	print_message("a child of a fork among threads may hang in the thread sanitizer\n");
	skip();
#endif
}

enum { WRITERS = 3, FORKS = 40 };
static atomic_bool stop;
static unsigned written[WRITERS];

static void *writer(void *arg)
{
	unsigned which = (unsigned)(uintptr_t)arg;
	char name[8];
	int fd;

	snprintf(name, sizeof name, "w%u", which);
	fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	while (!atomic_load(&stop)) {
		char record[RECORD];

		record_fill(record, written[which]);
		if (write(fd, record, RECORD) != RECORD)
			break;
		/* afresh now and then: a file that was open at a fork is not staged any more */
		if (++written[which] % 50 == 0) {
			close(fd);
			fd = open(name, O_RDWR | O_APPEND | O_CLOEXEC);
		}
	}
	close(fd);
	return NULL;
}

static void fork_among_threads(void **state)
{
	/* the kernel copies descriptors before it copies memory: the more of it, the more the others open in
	 * between */
	enum { BALLAST = 64 << 20 };
	void *ballast = mmap(NULL, BALLAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t threads[WRITERS];

	(void)state;
	skip_under_tsan();
	assert_true(ballast != MAP_FAILED);
	madvise(ballast, BALLAST, MADV_NOHUGEPAGE);
	memset(ballast, 1, BALLAST);
	fflush(stdout);
	for (uintptr_t i = 0; i < WRITERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, writer, (void *)i), 0);
	for (unsigned i = 0; i < FORKS; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			int fd = open("c", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

			child_writes(fd, 0, RECORDS);
			CHILD(close(fd) == 0);
			_exit(0);
		}
		check_exit(pid, 0);
		check_file("c", 0, RECORDS);
		usleep(1000);
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
	OK(munmap(ballast, BALLAST));
	OK(unlink("c"));
}

enum { FLUSHED = 20000 };
static _Atomic pid_t forker;
static _Atomic bool flushing;

/* The thread sleeps in the kernel.  (Without that file system the fork has half a second to get there.) */
static bool sleeps(pid_t thread)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)thread);
	f = fopen(path, "r");
	if (!f) {
		usleep(500000);
		return true;
	}
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'S';
}

/* What fflush(NULL) calls while it has the lock of all streams: writes when the other thread forks. */
static ssize_t flush_slowly(void *fd, const char *bytes, size_t size)
{
	(void)bytes;
	atomic_store(&flushing, true);
	while (atomic_load(&forker) == 0)
		usleep(1000);
	/* (its first sleeps may be for what the library waits for) */
	for (int i = 0; i < 20; i++) {
		while (!sleeps(atomic_load(&forker)))
			usleep(1000);
		usleep(1000);
	}
	write_records(*(int *)fd, RECORDS, FLUSHED);
	return (ssize_t)size;
}

static void *flushes_all(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)fflush(NULL);
}

/* fork waits for the lock of all streams, which another thread keeps while it writes. */
static void fork_while_all_streams_are_flushed(void **state)
{
	int fd = open("f", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	FILE *slow = fopencookie(&fd, "w", (cookie_io_functions_t){.write = flush_slowly});
	pthread_t flusher;
	void *result;
	pid_t pid;

	(void)state;
	skip_under_tsan();
	write_records(fd, 0, RECORDS);
	assert_non_null(slow);
	assert_int_equal(fputc('x', slow), 'x');
	assert_int_equal(pthread_create(&flusher, NULL, flushes_all, NULL), 0);
	while (!atomic_load(&flushing))
		usleep(1000);
	atomic_store(&forker, (pid_t)syscall(SYS_gettid));
	pid = fork();
	if (pid == 0)
		_exit(0);
	check_exit(pid, 0);
	assert_int_equal(pthread_join(flusher, &result), 0);
	assert_null(result);
	OK(fclose(slow));
	OK(close(fd));
	check_file("f", 0, RECORDS + FLUSHED);
	OK(unlink("f"));
}

enum { CLOSED = 8, CLOSING_FORKS = 40 };
static int closed[CLOSED];
static atomic_bool may_close;

static void *close_all(void *arg)
{
	while (!atomic_load(&may_close))
		;
	for (int i = 0; i < CLOSED; i++) {
		usleep(50);
		close(closed[i]);
	}
	return arg;
}

/* What another thread closes meanwhile has neither parent nor child in the end.  Its place in the staging
 * area must not stay taken, or that could not be removed (tests/test_hooks.py looks).  Nobody sees the files
 * being removed. */
static void close_among_forks(void **state)
{
	enum { BALLAST = 16 << 20 };
	void *ballast = mmap(NULL, BALLAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	skip_under_tsan();
	assert_true(ballast != MAP_FAILED);
	madvise(ballast, BALLAST, MADV_NOHUGEPAGE);
	memset(ballast, 1, BALLAST);
	fflush(stdout);
	for (unsigned i = 0; i < CLOSING_FORKS; i++) {
		pthread_t thread;
		char name[16];
		pid_t pid;

		atomic_store(&may_close, false);
		assert_int_equal(pthread_create(&thread, NULL, close_all, NULL), 0);
		for (int j = 0; j < CLOSED; j++) {
			snprintf(name, sizeof name, "x%u-%d", i, j);
			closed[j] = open_staged(name, 0);
		}
		atomic_store(&may_close, true);
		pid = fork();
		if (pid == 0)
			_exit(0);
		check_exit(pid, 0);
		pthread_join(thread, NULL);
		for (int j = 0; j < CLOSED; j++) {
			snprintf(name, sizeof name, "x%u-%d", i, j);
			check_file(name, 0, RECORDS);
		}
	}
	for (unsigned i = 0; i < CLOSING_FORKS * CLOSED; i++) {
		char name[16];

		snprintf(name, sizeof name, "x%u-%u", i / CLOSED, i % CLOSED);
		assert_int_equal(raw_call(SYS_unlinkat, AT_FDCWD, (long)name, 0, 0), 0);
	}
	OK(munmap(ballast, BALLAST));
}

/* The child appends to what it has opened alone; the parent cuts the file off without having been told of it.
 */
static void cut_by_the_parent(void **state)
{
	int up[2], down[2], fd;
	char byte;
	pid_t pid;

	(void)state;
	OK(close(open_staged("b", 0)));
	assert_int_equal(pipe(up) | pipe(down), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		fd = open("a", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
		child_writes(fd, RECORDS, RECORDS);
		CHILD(write(up[1], "x", 1) == 1 && read(down[0], &byte, 1) == 1);
		child_writes(fd, 0, RECORDS);
		_exit(0);
	}
	assert_int_equal(read(up[0], &byte, 1), 1);
	fd = OK(open("a", O_WRONLY | O_APPEND | O_CLOEXEC));
	OK(ftruncate(fd, 0));
	assert_int_equal(write(down[1], "x", 1), 1);
	check_exit(pid, 0);
	OK(close(fd));
	close(up[0]), close(up[1]), close(down[0]), close(down[1]);
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

/* A child that has ended was the last one to write a file that is still being read: whoever finds that out
 * gives back its place in the staging area, too (tests/test_hooks.py looks). */
static void read_after_the_writer(void **state)
{
	int fd = open_staged("a", 0), other = open_staged("b", 0), again, ready[2];
	char *map, byte;
	pid_t pid;

	(void)state;
	OK(pipe(ready));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		child_writes(fd, RECORDS, RECORDS);
		CHILD(write(ready[1], "x", 1) == 1);
		pause();
		_exit(0);
	}
	assert_int_equal(read(ready[0], &byte, 1), 1);
	OK(close(ready[0]));
	OK(close(ready[1]));
	OK(close(fd));
	fd = OK(open("a", O_RDONLY | O_CLOEXEC));
	OK(kill(pid, SIGKILL));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	/* whoever opens what is written through looks for the dead */
	map = mmap(NULL, STAGED, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
	assert_true(map != MAP_FAILED);
	again = OK(open("b", O_RDWR | O_CLOEXEC));
	write_records(again, 0, 2);
	OK(close(again));
	OK(close(fd));
	OK(munmap(map, STAGED));
	OK(close(other));
	check_file("a", 0, 2 * RECORDS);
	check_file("b", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
}

static int handled = -1; /* a descriptor that the handlers write to */

static void handle(void)
{
	if (handled >= 0)
		assert_int_equal(write(handled, "h", 1), 1);
}

/* The handlers of the program write to the file: once before the fork, once on each side. */
static void handlers_write(void **state)
{
	struct stat st;
	pid_t pid;

	(void)state;
	assert_int_equal(pthread_atfork(handle, handle, handle), 0);
	handled = open_staged("a", O_APPEND);
	assert_int_equal(fstat(handled, &st), 0);
	pid = fork();
	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	off_t before = st.st_size;
	assert_int_equal(fstat(handled, &st), 0);
	assert_int_equal(st.st_size - before, 3);
	assert_int_equal(close(handled), 0);
	handled = -1;
	OK(unlink("a"));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(executing),
		cmocka_unit_test(exec_that_fails),
		cmocka_unit_test(spawning),
		cmocka_unit_test(inherited),
		cmocka_unit_test(endings),
		cmocka_unit_test(late_writes),
		cmocka_unit_test(both_write),
		cmocka_unit_test(both_append),
		cmocka_unit_test(fork_among_threads),
		cmocka_unit_test(fork_while_all_streams_are_flushed),
		cmocka_unit_test(close_among_forks),
		cmocka_unit_test(cut_by_the_parent),
		cmocka_unit_test(read_after_the_writer),
		cmocka_unit_test(handlers_write),
	};

	if (argc == 5 && strcmp(argv[1], "check") == 0)
		return check_as_program(argv);
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
