// SPDX-License-Identifier: Apache-2.0
/*
 * Members of a family write to files that only they have open.  Then their parent hands these files to a
 * process outside of the family.
 *
 *   starter WRITER HAND_OVER MEMBERS ROUNDS [stop]
 *
 * WRITER: p (at positions), a (O_APPEND) or s (a stream).  HAND_OVER: system, popen, spawn, fork, vfork,
 * lock, close or exit.  Member i writes to the file "i".  The first five start a shell that appends to each
 * file.  lock and close give a lock back, exit ends the parent; then the parent's standard output says so.
 * stop: the members are stopped meanwhile.  The members end when standard input does.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMBERS_MAX = 8, FIRST_LINES = 3000, LINES = 7, LINE = 100 };

extern char **environ;
static const char append_hello[] = "for f in [0-9]; do echo hello >> $f; done";
static struct member {
	pid_t pid;
	int ask, answer;
} members[MEMBERS_MAX];
static int count;

static void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		_exit(1);
	}
}

static void write_lines(const char *how, FILE *stream, int fd, int lines)
{
	static int number;
	char line[LINE + 1];

	for (int i = 0; i < lines; i++) {
		snprintf(line, sizeof line, "%099d\n", number++);
		if (*how == 's')
			check(fwrite(line, LINE, 1, stream) == 1 && fflush(stream) == 0, "fwrite");
		else
			check(write(fd, line, LINE) == LINE, "write");
	}
}

static void work(int index, const char *how, int ask, int answer)
{
	char name[] = {(char)('0' + index), '\0'};
	int fd = open(name, O_RDWR | O_CREAT | (*how == 'a' ? O_APPEND : 0), 0644);
	FILE *stream = *how == 's' ? fdopen(fd, "r+") : NULL;
	char lines;

	check(fd >= 0 && (*how != 's' || stream), "open");
	for (int round = 0; read(ask, &lines, 1) == 1; round++) {
		write_lines(how, stream, fd, round ? LINES : FIRST_LINES);
		check(write(answer, "", 1) == 1, "answer");
	}
	/* the parent has gone: wait for the test's end, with the file still open */
	while (read(0, &lines, 1) > 0)
		;
	_exit(0);
}

static void add_member(const char *how)
{
	struct member *m = &members[count];
	int ask[2], answer[2];

	check(pipe(ask) == 0 && pipe(answer) == 0, "pipe");
	m->ask = ask[1];
	m->answer = answer[0];
	m->pid = fork();
	check(m->pid >= 0, "fork");
	if (m->pid == 0) {
		for (int i = 0; i <= count; i++)
			close(members[i].ask);
		work(count, how, ask[0], answer[1]);
	}
	close(ask[0]);
	close(answer[1]);
	count++;
}

static void ask(int i) { check(write(members[i].ask, "", 1) == 1, "ask"); }

static void take_answer(int i)
{
	char byte;

	check(read(members[i].answer, &byte, 1) == 1, "a member's answer");
}

/* All write at the same time; in the first round one after the other, since staging does not begin while it
 * begins in another member. */
static void ask_members(void)
{
	static int begun;

	for (int i = 0; i < count; i++) {
		ask(i);
		if (!begun)
			take_answer(i);
	}
	for (int i = 0; begun && i < count; i++)
		take_answer(i);
	begun = 1;
}

static void signal_members(int number, int event)
{
	for (int i = 0; i < count; i++) {
		check(kill(members[i].pid, number) == 0, "kill");
		check(waitpid(members[i].pid, NULL, event) == members[i].pid, "waitpid");
	}
}

static void start(const char *how)
{
	char *argv[] = {"sh", "-c", (char *)append_hello, NULL};
	int status = -1;
	pid_t pid;

	if (strcmp(how, "system") == 0) {
		check(system(append_hello) == 0, "system");
		return;
	}
	if (strcmp(how, "popen") == 0) {
		FILE *stream = popen(append_hello, "r");

		check(stream && pclose(stream) == 0, "popen");
		return;
	}
	if (strcmp(how, "spawn") == 0)
		check(posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0, "posix_spawn");
	else
		pid = *how == 'v' ? vfork() : fork();
	if (pid == 0) {
		execv("/bin/sh", argv);
		_exit(127);
	}
	check(waitpid(pid, &status, 0) == pid && status == 0, "the shell");
}

static void hand_over(const char *how)
{
	int lock = -1;

	if (strcmp(how, "lock") == 0 || strcmp(how, "close") == 0) {
		lock = open("lock", O_RDWR | O_CREAT, 0644);
		check(flock(lock, LOCK_EX) == 0, "flock");
	}
	ask_members();
	if (lock >= 0 && strcmp(how, "lock") == 0)
		check(flock(lock, LOCK_UN) == 0, "flock");
	if (lock >= 0)
		close(lock);
	if (lock >= 0)
		check(write(1, "\n", 1) == 1, "write");
}

int main(int argc, char **argv)
{
	int members_wanted = argc > 4 ? atoi(argv[3]) : 0;
	int rounds = argc > 4 ? atoi(argv[4]) : 0;
	char byte;

	check(members_wanted > 0 && members_wanted <= MEMBERS_MAX, "arguments");
	while (count < members_wanted)
		add_member(argv[1]);
	if (strcmp(argv[2], "exit") == 0) {
		ask_members();
		_exit(0);
	}
	for (int round = 0; round < rounds; round++) {
		if (strcmp(argv[2], "lock") == 0 || strcmp(argv[2], "close") == 0) {
			hand_over(argv[2]);
			check(read(0, &byte, 1) == 1, "the test");
			continue;
		}
		ask_members();
		if (argc > 5)
			signal_members(SIGSTOP, WUNTRACED);
		start(argv[2]);
		if (argc > 5)
			signal_members(SIGCONT, WCONTINUED);
	}
	for (int i = 0; i < count; i++)
		close(members[i].ask);
	while (wait(NULL) > 0)
		;
	return 0;
}
