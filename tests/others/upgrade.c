// SPDX-License-Identifier: Apache-2.0
/*
 * Appends records to a file; reads commands, answers each with one line.
 *
 *   upgrade NAME FILE
 *
 * put N        N records "NAME NUMBER" of 64 bytes; the answer is "put" and the pid
 * sync         fdatasync
 * fork NAME    a child under that name goes on with the commands until `end`; it answers
 * exec NAME    the same, and the child starts this program anew
 * clean NAME   as exec, with an empty environment
 * end          ends this process
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 64 };

static const char *name;
static int number;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Byte by byte: the rest is for others. */
static int read_line(char *line, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && read(STDIN_FILENO, line + n, 1) == 1 && line[n] != '\n')
		n++;
	line[n] = '\0';
	return n > 0;
}

static void answer(const char *what)
{
	char line[64];
	int n = snprintf(line, sizeof line, "%s %d\n", what, (int)getpid());

	if (write(STDOUT_FILENO, line, (size_t)n) != n)
		fail("answer");
}

static void put(int fd, int count)
{
	for (int i = 0; i < count; i++) {
		char text[RECORD + 1];
		int n = snprintf(text, sizeof text, "%s %06d ", name, number++);

		memset(text + n, '.', RECORD - (size_t)n);
		text[RECORD - 1] = '\n';
		if (write(fd, text, RECORD) != RECORD)
			fail("write");
	}
}

static void start(const char *how, const char *child, char **argv)
{
	char *arguments[] = {argv[0], (char *)child, argv[2], NULL}, *none[] = {NULL};
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	if (pid > 0) {
		waitpid(pid, NULL, 0);
		answer("over");
		return;
	}
	if (strcmp(how, "exec") == 0)
		execv(argv[0], arguments);
	else if (strcmp(how, "clean") == 0)
		execve(argv[0], arguments, none);
	else {
		name = strdup(child);
		number = 0;
		answer("fork");
		return;
	}
	fail(how);
}

int main(int argc, char **argv)
{
	char line[64], child[32], how[16];
	int count, fd = argc == 3 ? open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;

	if (fd < 0)
		fail("open");
	name = argv[1];
	answer("ready");
	while (read_line(line, sizeof line) && strcmp(line, "end") != 0) {
		if (sscanf(line, "put %d", &count) == 1) {
			put(fd, count);
			answer("put");
		} else if (strcmp(line, "sync") == 0 && fdatasync(fd) == 0) {
			answer("sync");
		} else if (sscanf(line, "%15s %31s", how, child) == 2) {
			start(how, child, argv);
		} else {
			fail(line);
		}
	}
	return 0;
}
