// SPDX-License-Identifier: Apache-2.0
/* Files that the program has closed: what was written to them may still be staged, and a descriptor kept for
 * it. */
#include "hook_test.h"

#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <time.h>

enum { PAGE = 4096 };

static void close_staged(const char *path) { OK(close(open_staged(path, 0))); }

static off_t size_of(const char *path)
{
	struct stat st;

	OK(stat(path, &st));
	return st.st_size;
}

/* Longer than `lag_ms`: what was staged has been flushed, and the library's descriptor is closed. */
static void wait_for_the_flush(void)
{
	const struct timespec nap = {.tv_nsec = 400000000};

	nanosleep(&nap, NULL);
}

static void read_again(void **state)
{
	int fd;

	(void)state;
	close_staged("a");
	assert_int_equal(size_of("a"), STAGED);
	check_file("a", 0, RECORDS);
	fd = OK(open("a", O_RDWR | O_CLOEXEC));
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), 0);
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), STAGED);
	write_records(fd, RECORDS, 30);
	OK(close(fd));
	check_file("a", 0, RECORDS + 30);
	wait_for_the_flush();
	check_file("a", 0, RECORDS + 30);
	OK(unlink("a"));
	FAILS(open("a", O_RDONLY), ENOENT);
}

static void one_with_two_descriptions(void **state)
{
	int a = open_staged("a", 0), b = OK(open("a", O_RDWR | O_CLOEXEC)), copy = OK(dup(a));

	(void)state;
	OK(close(a));
	OK(lseek(b, 0, SEEK_END));
	write_records(b, RECORDS, 1);
	OK(close(b));
	write_records(copy, RECORDS, 2);
	OK(close(copy));
	FAILS(write(copy, "x", 1), EBADF);
	check_file("a", 0, RECORDS + 2);
	OK(unlink("a"));
}

/* As a database treats its rollback journal. */
static void many_lives(void **state)
{
	static char page[PAGE], back[3 * PAGE];

	(void)state;
	for (unsigned life = 0; life < 400; life++) {
		int fd = OK(open("journal", O_RDWR | O_CREAT | O_CLOEXEC, 0644));
		struct stat st;

		OK(fstat(fd, &st));
		assert_int_equal(st.st_size, life % 3 == 1 ? 3 * PAGE : 0);
		memset(page, (int)('a' + life % 26), sizeof page);
		OK(pwrite(fd, page, 512, 0));
		OK(fchown(fd, geteuid(), getegid()));
		for (int i = 0; i < 3; i++)
			OK(pwrite(fd, page, sizeof page, (off_t)i * PAGE));
		OK(fdatasync(fd));
		assert_int_equal(OK(pread(fd, back, sizeof back, 0)), sizeof back);
		for (size_t i = 0; i < sizeof back; i++)
			assert_int_equal(back[i], page[0]);
		if (life % 3 != 0)
			OK(ftruncate(fd, 0));
		OK(close(fd));
		assert_int_equal(size_of("journal"), life % 3 != 0 ? 0 : 3 * PAGE);
	}
	OK(unlink("journal"));
}

static void other_names(void **state)
{
	int fd;

	(void)state;
	close_staged("a");
	OK(rename("a", "b"));
	check_file("b", 0, RECORDS);
	close_staged("a");
	OK(link("a", "c"));
	OK(unlink("a"));
	check_file("c", 0, RECORDS);
	close_staged("a");
	OK(rename("b", "a"));
	check_file("a", 0, RECORDS);
	close_staged("b");
	OK(unlink("b"));
	fd = OK(open("b", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
	assert_int_equal(size_of("b"), 0);
	write_records(fd, 7, 5);
	OK(close(fd));
	wait_for_the_flush();
	check_file("b", 7, 5);
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

static void made_shorter(void **state)
{
	int fd;

	(void)state;
	close_staged("a");
	OK(truncate("a", 3 * RECORD));
	check_file("a", 0, 3);
	close_staged("a");
	fd = OK(open("a", O_WRONLY | O_TRUNC | O_CLOEXEC));
	assert_int_equal(size_of("a"), 0);
	write_records(fd, 5, RECORDS);
	OK(ftruncate(fd, 2 * RECORD));
	OK(ftruncate(fd, RECORD));
	OK(close(fd));
	check_file("a", 5, 1);
	wait_for_the_flush();
	check_file("a", 5, 1);
	OK(unlink("a"));
}

extern char **environ;

/* This program again, with these arguments.  (A fork would share the files, and nothing would stay after a
 * close.) */
static int run_again(const char *what, const char *argument)
{
	char *const args[] = {"test_closed", (char *)what, (char *)argument, NULL};
	int status;
	pid_t pid;

	assert_int_equal(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* In such a program: 1 if somebody else has a lock on the file. */
static int find_lock(const char *what, const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	if (fd < 0)
		return 2;
	if (strcmp(what, "flock") == 0)
		return flock(fd, LOCK_EX | LOCK_NB) != 0;
	return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

static bool others_find_it_locked(const char *path, bool whole)
{
	int found = run_again(whole ? "flock" : "fcntl", path);

	assert_in_range(found, 0, 1);
	return found == 1;
}

/* The library's descriptor neither drops the program's lock nor keeps it. */
static void locks(void **state)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
	int fd;

	(void)state;
	close_staged("a");
	fd = OK(open("a", O_RDWR | O_CLOEXEC));
	OK(pwrite(fd, "x", 1, 0));
	OK(fcntl(fd, F_SETLK, &lock));
	OK(pwrite(fd, "y", 1, 1));
	wait_for_the_flush();
	assert_true(others_find_it_locked("a", false));
	OK(close(fd));
	assert_false(others_find_it_locked("a", false));
	fd = open_staged("b", 0);
	OK(flock(fd, LOCK_EX));
	write_records(fd, RECORDS, 1);
	assert_true(others_find_it_locked("b", true));
	OK(close(fd));
	assert_false(others_find_it_locked("b", true));
	OK(unlink("a"));
	OK(unlink("b"));
}

/* The lock is taken through a descriptor that only reads, opened before the close or after it. */
static void locks_of_readers(void **state)
{
	(void)state;
	for (int before = 0; before < 2; before++) {
		struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
		int fd = open_staged("a", 0), reader = -1;

		if (before)
			reader = OK(open("a", O_RDONLY | O_CLOEXEC));
		OK(close(fd));
		if (!before)
			reader = OK(open("a", O_RDONLY | O_CLOEXEC));
		OK(fcntl(reader, F_SETLK, &lock));
		wait_for_the_flush();
		assert_true(others_find_it_locked("a", false));
		check_file("a", 0, RECORDS);
		OK(close(reader));
		OK(unlink("a"));
	}
}

/* With `reader` a descriptor that only reads is opened beside the writer, and returned. */
static int write_program(const char *path, bool reader)
{
	int beside = -1, fd = OK(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0755));

	OK(write(fd, "#!/bin/sh\n", 10));
	for (int i = 0; i < RECORDS; i++)
		OK(write(fd, "# a line of the program\n", 24));
	OK(write(fd, "exit 7\n", 7));
	if (reader)
		beside = OK(open(path, O_RDONLY | O_CLOEXEC));
	OK(close(fd));
	return beside;
}

/* A file that is open for writing cannot be started. */
static void start(bool reader)
{
	char *const args[] = {"./program", NULL};
	int beside[3];
	pid_t pid;

	beside[0] = write_program("program", reader);
	assert_int_equal(WEXITSTATUS(system("./program")), 7);
	beside[1] = write_program("program", reader);
	assert_int_equal(posix_spawn(&pid, "./program", NULL, NULL, args, environ), 0);
	check_exit(pid, 7);
	beside[2] = write_program("program", reader);
	pid = vfork();
	if (pid == 0) {
		execv("./program", args);
		_exit(1);
	}
	check_exit(pid, 7);
	for (int i = 0; reader && i < 3; i++)
		OK(close(beside[i]));
	OK(unlink("program"));
}

static void started(void **state)
{
	(void)state;
	start(false);
}

static void started_beside_a_reader(void **state)
{
	(void)state;
	start(true);
}

/* The rest forks, and runs in a program of its own each: the files of a process that has forked are shared.
 */

static void start_from_a_fork(bool reader)
{
	char *const args[] = {"./program", NULL};
	int beside = write_program("program", reader);
	pid_t pid = fork();

	if (pid == 0) {
		execv("./program", args);
		_exit(1);
	}
	check_exit(pid, 7);
	if (reader)
		OK(close(beside));
	OK(unlink("program"));
}

static void forked_starts(void) { start_from_a_fork(false); }
static void forked_starts_beside_a_reader(void) { start_from_a_fork(true); }

static bool is_open_somewhere(ino_t ino)
{
	for (int fd = 0; fd < 5000; fd++) {
		struct stat st;

		if (syscall(SYS_fstat, fd, &st) == 0 && st.st_ino == ino)
			return true;
	}
	return false;
}

/* A child changes the file, so that it is not staged any more; nothing keeps it open in the parent. */
static void forked_nothing_is_left_open(void)
{
	struct stat st;
	pid_t pid;
	int fd;

	close_staged("a");
	fd = OK(open("a", O_RDWR | O_CLOEXEC));
	OK(fstat(fd, &st));
	pid = fork();
	if (pid == 0)
		_exit(unlink("a") == 0 ? 0 : 1);
	check_exit(pid, 0);
	assert_true(is_open_somewhere(st.st_ino));
	OK(close(fd));
	for (int i = 0; i < 60000 && is_open_somewhere(st.st_ino); i++)
		usleep(1000);
	assert_false(is_open_somewhere(st.st_ino));
}

/* What was reserved behind the end goes back. */
static void space(void **state)
{
	struct stat st;
	int fd;

	(void)state;
	fd = open_staged("a", 0);
	OK(ftruncate(fd, 2 * PAGE));
	OK(close(fd));
	wait_for_the_flush();
	OK(stat("a", &st));
	for (int i = 0; i < 60000 && st.st_blocks > 16 * PAGE / 512; i++) {
		usleep(1000);
		OK(stat("a", &st));
	}
	assert_int_equal(st.st_size, 2 * PAGE);
	assert_in_range(st.st_blocks, 1, 16 * PAGE / 512);
	OK(unlink("a"));
}

/* A child reads and writes what its parent has closed, and the parent after it. */
static void forked_child_reads_and_writes(void)
{
	int fd;
	pid_t pid;

	close_staged("a");
	pid = fork();
	if (pid == 0) {
		check_file("a", 0, RECORDS);
		fd = OK(open("a", O_WRONLY | O_CLOEXEC));
		OK(lseek(fd, 0, SEEK_END));
		write_records(fd, RECORDS, RECORDS);
		_exit(0);
	}
	check_exit(pid, 0);
	check_file("a", 0, 2 * RECORDS);
	OK(unlink("a"));
}

static void many_files(void **state)
{
	enum { FILES = 200 };
	char path[16];

	(void)state;
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "f%d", i);
		close_staged(path);
	}
	for (int i = 0; i < FILES; i++) {
		snprintf(path, sizeof path, "f%d", i);
		check_file(path, 0, RECORDS);
		OK(unlink(path));
	}
}

/* All descriptors below the limit are the program's. */
static void few_descriptors(void **state)
{
	enum { LIMIT = 64 };
	struct rlimit before, few;
	int fds[LIMIT], count = 0, highest = dup(0);
	char path[16];

	(void)state;
	close(highest);
	OK(getrlimit(RLIMIT_NOFILE, &before));
	few = before;
	few.rlim_cur = LIMIT;
	OK(setrlimit(RLIMIT_NOFILE, &few));
	for (int i = 0; i < 40; i++) {
		snprintf(path, sizeof path, "f%d", i);
		close_staged(path);
	}
	/* (the library gives them back in any order) */
	for (highest = 0; count < LIMIT && (fds[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;
	     count++)
		highest = fds[count] > highest ? fds[count] : highest;
	assert_int_equal(highest, LIMIT - 1);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	for (int i = 0; i < 40; i++) {
		snprintf(path, sizeof path, "f%d", i);
		check_file(path, 0, RECORDS);
		OK(unlink(path));
	}
	OK(setrlimit(RLIMIT_NOFILE, &before));
}

/* Closed with dup2, by a range, and by a stream. */
static void other_ways_to_close(void **state)
{
	int fd = open_staged("a", 0), other = open_staged("b", 0);
	FILE *stream;

	(void)state;
	OK(dup2(other, fd));
	check_file("a", 0, RECORDS);
	OK((int)syscall(SYS_close_range, (unsigned)other, (unsigned)other, 0));
	OK(close(fd));
	check_file("b", 0, RECORDS);
	stream = fdopen(open_staged("c", 0), "r+");
	assert_non_null(stream);
	assert_int_equal(fclose(stream), 0);
	check_file("c", 0, RECORDS);
	OK(unlink("a"));
	OK(unlink("b"));
	OK(unlink("c"));
}

static _Atomic bool over;

static void *open_and_close(void *arg)
{
	(void)arg;
	while (!over) {
		int fd = open("a", O_RDWR | O_CLOEXEC);

		assert_true(fd >= 0);
		assert_int_equal(pwrite(fd, "z", 1, 0), 1);
		assert_int_equal(close(fd), 0);
	}
	return NULL;
}

/* One thread opens and closes the file all the time, another one writes to it. */
static void beside_a_thread(void **state)
{
	pthread_t thread;
	int fd = open_staged("a", 0);
	char first;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, open_and_close, NULL), 0);
	do /* until it has begun */
		assert_int_equal(OK(pread(fd, &first, 1, 0)), 1);
	while (first != 'z');
	for (unsigned i = 0; i < 3000; i++) {
		write_records(fd, RECORDS + i, 1);
		if (i % 100 == 99) {
			OK(close(fd));
			fd = OK(open("a", O_RDWR | O_CLOEXEC));
			OK(lseek(fd, 0, SEEK_END));
		}
	}
	over = true;
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(OK(pread(fd, &first, 1, 0)), 1);
	assert_int_equal(first, 'z');
	OK(pwrite(fd, "0", 1, 0));
	OK(close(fd));
	check_file("a", 0, RECORDS + 3000);
	OK(unlink("a"));
}

static const struct {
	const char *name;
	void (*run)(void);
} forked[] = {
	{"child", forked_child_reads_and_writes},
	{"start", forked_starts},
	{"start-reader", forked_starts_beside_a_reader},
	{"open", forked_nothing_is_left_open},
};

static void of_programs_that_fork(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof forked / sizeof *forked; i++)
		assert_int_equal(run_again(forked[i].name, NULL), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(read_again),
		cmocka_unit_test(one_with_two_descriptions),
		cmocka_unit_test(many_lives),
		cmocka_unit_test(other_names),
		cmocka_unit_test(made_shorter),
		cmocka_unit_test(space),
		cmocka_unit_test(many_files),
		cmocka_unit_test(few_descriptors),
		cmocka_unit_test(other_ways_to_close),
		cmocka_unit_test(beside_a_thread),
		cmocka_unit_test(locks),
		cmocka_unit_test(locks_of_readers),
		cmocka_unit_test(started),
		cmocka_unit_test(started_beside_a_reader),
		cmocka_unit_test(of_programs_that_fork),
	};

	if (argc > 2)
		return find_lock(argv[1], argv[2]);
	for (size_t i = 0; argc > 1 && i < sizeof forked / sizeof *forked; i++)
		if (strcmp(argv[1], forked[i].name) == 0) {
			forked[i].run();
			return 0;
		}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
