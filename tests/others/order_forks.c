// SPDX-License-Identifier: Apache-2.0
/*
 * A program that forks, on one file: reads commands, answers each with one line.
 *
 *   order_forks PATH cloexec|inherit
 *
 * put           appends a record; the answer is the size of the file
 * sync          fdatasync
 * open          another open of the file, closed again
 * fork stay     a child that waits for its end
 * fork put      the same, after it has appended a record by the descriptor of its parent
 * fork again    a child that writes the last record again and again
 * fork exec     a child that starts `sleep`
 * fork threads  as "stay", while a thread of the parent appends
 * fork go       the child goes on with the commands, and the parent ends
 * fork leave    the same, but the parent starts `sleep`
 * rights        another group
 * exec          tries to start a program that is not there
 * kill          ends the last child
 * numbers       opens until no descriptor is left, and closes what it has opened
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 100 };

static int fd;
static off_t end;
static _Atomic bool stop;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void put(void)
{
	char text[RECORD + 1];

	snprintf(text, sizeof text, "%0*ld\n", RECORD - 1, (long)(end / RECORD));
	if (pwrite(fd, text, RECORD, end) != RECORD)
		fail("pwrite");
	end += RECORD;
}

static void *put_until_stopped(void *arg)
{
	do
		put();
	while (!atomic_load(&stop));
	return arg;
}

/* What a child does before it waits for its end. */
enum child { STAYS, PUTS, PUTS_AGAIN };

static pid_t fork_once(enum child what)
{
	int ends[2];
	char done;
	pid_t pid;

	if (pipe2(ends, O_CLOEXEC) < 0 || (pid = fork()) < 0)
		fail("fork");
	if (pid == 0) {
		if (what == PUTS)
			put();
		if (write(ends[1], "x", 1) != 1)
			fail("write");
		while (what == PUTS_AGAIN) {
			end -= RECORD;
			put();
		}
		for (;;)
			pause();
	}
	close(ends[1]);
	if (read(ends[0], &done, 1) != 1)
		fail("read");
	close(ends[0]);
	if (what == PUTS)
		end += RECORD;
	return pid;
}

static void sleep_instead(void)
{
	/* (its output would keep the pipe of the one that waits for ours) */
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	execlp("sleep", "sleep", "1000", (char *)NULL);
	_exit(127);
}

static pid_t fork_and_exec(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid == 0)
		sleep_instead();
	return pid;
}

static pid_t fork_beside_a_thread(void)
{
	pthread_t thread;
	pid_t pid;

	atomic_store(&stop, false);
	if (pthread_create(&thread, NULL, put_until_stopped, NULL))
		fail("pthread_create");
	pid = fork_once(STAYS);
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
	return pid;
}

static void use_all_numbers(void)
{
	enum { LIMIT = 64 };
	struct rlimit old, limit;
	int opened[LIMIT], count = 0;

	if (getrlimit(RLIMIT_NOFILE, &old))
		fail("getrlimit");
	limit = old;
	limit.rlim_cur = LIMIT;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		fail("setrlimit");
	while (count < LIMIT && (opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		count++;
	while (count > 0)
		close(opened[--count]);
	if (setrlimit(RLIMIT_NOFILE, &old))
		fail("setrlimit");
}

int main(int argc, char **argv)
{
	char line[100];
	pid_t child = 0;
	int other;

	if (argc != 3)
		return 2;
	fd = open(argv[1], O_RDWR | O_CREAT | (strcmp(argv[2], "cloexec") == 0 ? O_CLOEXEC : 0), 0644);
	if (fd < 0)
		fail(argv[1]);
	while (fgets(line, sizeof line, stdin)) {
		if (strcmp(line, "put\n") == 0) {
			put();
		} else if (strcmp(line, "sync\n") == 0) {
			if (fdatasync(fd) < 0)
				fail("fdatasync");
		} else if (strcmp(line, "open\n") == 0) {
			other = open(argv[1], O_RDONLY | O_CLOEXEC);
			if (other < 0 || close(other) < 0)
				fail("open");
		} else if (strcmp(line, "fork stay\n") == 0) {
			child = fork_once(STAYS);
		} else if (strcmp(line, "fork put\n") == 0) {
			child = fork_once(PUTS);
		} else if (strcmp(line, "fork again\n") == 0) {
			child = fork_once(PUTS_AGAIN);
		} else if (strcmp(line, "fork exec\n") == 0) {
			child = fork_and_exec();
		} else if (strcmp(line, "fork threads\n") == 0) {
			child = fork_beside_a_thread();
		} else if (strcmp(line, "fork go\n") == 0 || strcmp(line, "fork leave\n") == 0) {
			child = fork();
			if (child < 0)
				fail("fork");
			if (child > 0 && line[5] == 'l')
				sleep_instead();
			if (child > 0)
				_exit(0);
		} else if (strcmp(line, "rights\n") == 0) {
			if (setgid(1) < 0)
				fail("setgid");
		} else if (strcmp(line, "numbers\n") == 0) {
			use_all_numbers();
		} else if (strcmp(line, "exec\n") == 0) {
			execl("/nowhere/program", "program", (char *)NULL);
		} else if (strcmp(line, "kill\n") == 0) {
			if (kill(child, SIGKILL) < 0 || waitpid(child, NULL, 0) != child)
				fail("kill");
		} else {
			return 3;
		}
		printf("%ld\n", (long)end);
		fflush(stdout);
	}
	return 0;
}
