// SPDX-License-Identifier: Apache-2.0
/*
 * steps: does what its input says, line by line, and answers each line with the result, or -errno: the driver knows
 * what has returned when it kills the program.
 *
 *   open FD PATH FLAGS      FLAGS as in open(2), a number; the descriptor gets number FD
 *   write FD BYTE N         N times that byte
 *   pwrite FD BYTE N AT
 *   fsync FD, fdatasync FD, syncfs FD, close FD, ftruncate FD N
 *   rename PATH PATH, unlink PATH, fork (the child goes on with the input, the parent waits for it)
 *   threads K N DIR         K threads, each N times: 512 bytes appended to DIR/t<i> and synced
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char block[1 << 20];

static long result(long r) { return r < 0 ? -errno : r; }

struct job {
	pthread_t thread;
	char path[512];
	long times, done;
};

static void *append(void *arg)
{
	struct job *j = arg;
	int fd = open(j->path, O_WRONLY | O_CREAT | O_APPEND, 0644);
	char record[512];

	for (long i = 0; fd >= 0 && i < j->times; i++) {
		memset(record, 'a' + (int)(i % 26), sizeof record);
		if (write(fd, record, sizeof record) != (ssize_t)sizeof record || fsync(fd) != 0)
			break;
		j->done++;
	}
	return NULL;
}

static long threads(long count, long times, const char *dir)
{
	static struct job jobs[64];
	long done = 0;

	for (long i = 0; i < count; i++) {
		jobs[i].times = times;
		snprintf(jobs[i].path, sizeof jobs[i].path, "%s/t%ld", dir, i);
		pthread_create(&jobs[i].thread, NULL, append, &jobs[i]);
	}
	for (long i = 0; i < count; i++) {
		pthread_join(jobs[i].thread, NULL);
		done += jobs[i].done;
	}
	return done;
}

static long step(char *line)
{
	char a[512], b[512], byte;
	long fd, n, at;
	int status;

	if (sscanf(line, "open %ld %511s %ld", &fd, a, &n) == 3) {
		int got = open(a, (int)n, 0644);

		if (got < 0 || got == fd)
			return result(got);
		dup2(got, (int)fd);
		close(got);
		return fd;
	}
	if (sscanf(line, "write %ld %c %ld", &fd, &byte, &n) == 3) {
		memset(block, byte, (size_t)n);
		return result(write((int)fd, block, (size_t)n));
	}
	if (sscanf(line, "pwrite %ld %c %ld %ld", &fd, &byte, &n, &at) == 4) {
		memset(block, byte, (size_t)n);
		return result(pwrite((int)fd, block, (size_t)n, at));
	}
	if (sscanf(line, "ftruncate %ld %ld", &fd, &n) == 2)
		return result(ftruncate((int)fd, n));
	if (sscanf(line, "fsync %ld", &fd) == 1)
		return result(fsync((int)fd));
	if (sscanf(line, "fdatasync %ld", &fd) == 1)
		return result(fdatasync((int)fd));
	if (sscanf(line, "syncfs %ld", &fd) == 1)
		return result(syncfs((int)fd));
	if (sscanf(line, "close %ld", &fd) == 1)
		return result(close((int)fd));
	if (sscanf(line, "rename %511s %511s", a, b) == 2)
		return result(rename(a, b));
	if (sscanf(line, "unlink %511s", a) == 1)
		return result(unlink(a));
	if (sscanf(line, "threads %ld %ld %511s", &n, &at, a) == 3)
		return threads(n, at, a);
	if (strncmp(line, "fork", 4) == 0) {
		pid_t child = fork();

		if (child <= 0)
			return result(child);
		waitpid(child, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
	}
	return -ENOSYS;
}

int main(void)
{
	char line[2048], answer[64];

	/* byte by byte: a child must go on where its parent has read to */
	for (;;) {
		size_t n = 0;
		ssize_t r;

		while ((r = read(0, line + n, 1)) == 1 && line[n] != '\n' && n + 1 < sizeof line)
			n++;
		if (r <= 0)
			return 0;
		line[n] = '\0';
		n = (size_t)snprintf(answer, sizeof answer, "%ld\n", step(line));
		if (write(1, answer, n) != (ssize_t)n)
			return 2;
	}
}
