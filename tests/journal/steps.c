// SPDX-License-Identifier: Apache-2.0
/*
 * steps: does what its input says, line by line, and answers each line with the result, or -errno: the driver
 * knows what has returned when it kills the program.
 *
 *   open FD PATH FLAGS      FLAGS as in open(2), a number; the descriptor gets number FD
 *   write FD BYTE N         N times that byte
 *   pwrite FD BYTE N AT
 *   fsync FD, fdatasync FD, syncfs FD, sync, sync_call, syncfs_call FD (by syscall()), close FD, ftruncate FD
 * N rename PATH PATH, unlink PATH, fork (the child goes on with the input, the parent waits for it) threads K
 * N DIR         K threads, each N times: 512 bytes appended to DIR/t<i> and synced spin K DIR the same
 * without an end, while the input goes on; files of their own link PATH PATH, limit N (RLIMIT_FSIZE, the soft
 * one), limit_hard N member I                forks child I, which waits for what `in` tells it in I STEP...
 * what child I answers to that step; -EPIPE when it is dead slay I, dismiss I       kills it, lets it end pid
 * of the process rename_beside PATH PATH in another thread, which is not waited for
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

static long spin(long count, const char *dir)
{
	static struct job jobs[64];

	for (long i = 0; i < count; i++) {
		jobs[i].times = 1000000;
		snprintf(jobs[i].path, sizeof jobs[i].path, "%s/s%ld-%ld", dir, i, (long)getpid());
		pthread_create(&jobs[i].thread, NULL, append, &jobs[i]);
	}
	return 0;
}

static long threads(long count, long times, const char *dir)
{
	static struct job jobs[512];
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

enum { MEMBERS_MAX = 16 };
static struct member {
	pid_t pid;
	int to, from;
} members[MEMBERS_MAX];
static int input = 0, output = 1;

static long make_member(long i)
{
	struct member *m = &members[i];
	int to[2], from[2];

	if (pipe(to) != 0 || pipe(from) != 0)
		return -errno;
	m->pid = fork();
	if (m->pid == 0) {
		input = to[0];
		output = from[1];
		close(to[1]);
		close(from[0]);
		return 0;
	}
	close(to[0]);
	close(from[1]);
	m->to = to[1];
	m->from = from[0];
	return result(m->pid) < 0 ? -errno : 0;
}

static long ask_member(long i, const char *what)
{
	char answer[64];
	size_t n = 0;

	if (write(members[i].to, what, strlen(what)) < 0 || write(members[i].to, "\n", 1) < 0)
		return -errno;
	while (n + 1 < sizeof answer && read(members[i].from, answer + n, 1) == 1 && answer[n] != '\n')
		n++;
	answer[n] = '\0';
	return n ? strtol(answer, NULL, 10) : -EPIPE;
}

static long end_member(long i, bool slay)
{
	int status;

	if (slay)
		kill(members[i].pid, SIGKILL);
	close(members[i].to);
	close(members[i].from);
	return waitpid(members[i].pid, &status, 0) == members[i].pid ? 0 : -errno;
}

static void *rename_there(void *paths)
{
	char(*names)[512] = paths;

	rename(names[0], names[1]);
	return NULL;
}

static long rename_beside(const char *from, const char *to)
{
	static char names[2][512];
	pthread_t thread;

	strcpy(names[0], from);
	strcpy(names[1], to);
	return -pthread_create(&thread, NULL, rename_there, names);
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
	if (sscanf(line, "syncfs_call %ld", &fd) == 1)
		return result(syscall(SYS_syncfs, (int)fd));
	if (strcmp(line, "sync_call") == 0)
		return result(syscall(SYS_sync));
	if (strcmp(line, "sync") == 0) {
		sync();
		return 0;
	}
	if (sscanf(line, "close %ld", &fd) == 1)
		return result(close((int)fd));
	if (sscanf(line, "rename_beside %511s %511s", a, b) == 2)
		return rename_beside(a, b);
	if (sscanf(line, "rename %511s %511s", a, b) == 2)
		return result(rename(a, b));
	if (sscanf(line, "unlink %511s", a) == 1)
		return result(unlink(a));
	if (sscanf(line, "spin %ld %511s", &n, a) == 2)
		return spin(n, a);
	if (sscanf(line, "threads %ld %ld %511s", &n, &at, a) == 3)
		return threads(n, at, a);
	if (sscanf(line, "link %511s %511s", a, b) == 2)
		return result(link(a, b));
	if (sscanf(line, "limit %ld", &n) == 1)
		return result(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)n, RLIM_INFINITY}));
	if (sscanf(line, "limit_hard %ld", &n) == 1)
		return result(setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)n, (rlim_t)n}));
	if (strcmp(line, "pid") == 0)
		return getpid();
	if (sscanf(line, "member %ld", &n) == 1)
		return make_member(n);
	if (sscanf(line, "in %ld %n", &n, &status) == 1)
		return ask_member(n, line + status);
	if (sscanf(line, "slay %ld", &n) == 1)
		return end_member(n, true);
	if (sscanf(line, "dismiss %ld", &n) == 1)
		return end_member(n, false);
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
	int out;

	signal(SIGPIPE, SIG_IGN);
	/* byte by byte: a child must go on where its parent has read to */
	for (;;) {
		size_t n = 0;
		ssize_t r;

		while ((r = read(input, line + n, 1)) == 1 && line[n] != '\n' && n + 1 < sizeof line)
			n++;
		if (r <= 0)
			return 0;
		line[n] = '\0';
		out = output;
		n = (size_t)snprintf(answer, sizeof answer, "%ld\n", step(line));
		/* of a fork both answer, each to its own */
		if (out != output)
			continue;
		if (write(output, answer, n) != (ssize_t)n)
			return 2;
	}
}
