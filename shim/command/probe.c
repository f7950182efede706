// SPDX-License-Identifier: Apache-2.0
/* cli_probe: what making 4 KiB durable costs in a directory, by each method. */
#include "command/command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum {
	RECORD = 4096,
	ZEROS = 4 << 20, /* of the file that is written over */
	ROUNDS = 400,
	WARM_UP = 4,
	MILLISECONDS = 1500, /* for all rounds */
};

enum after { NOTHING, FSYNC, FDATASYNC };

static const struct method {
	const char *name;
	int flags; /* of open */
	bool append;
	enum after after;
} methods[] = {
	{"append, fsync", 0, true, FSYNC},
	{"append, fdatasync", 0, true, FDATASYNC},
	{"written zeros, fdatasync", 0, false, FDATASYNC},
	{"written zeros, O_DSYNC", O_DSYNC, false, NOTHING},
	{"written zeros, O_DIRECT|O_DSYNC", O_DIRECT | O_DSYNC, false, NOTHING},
};
enum { METHODS = sizeof methods / sizeof *methods };

struct probe {
	char dir[PATH_MAX];
	bool memory; /* nothing is durable there */
	int fd[METHODS];
	int error[METHODS]; /* errno, 0 = measured */
	double us[METHODS][ROUNDS];
	int rounds;
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* One file for all methods that append, one for those that write over. */
static int open_file(const struct probe *p, const void *zeros, bool append, char *path)
{
	int fd;

	if ((size_t)snprintf(path, PATH_MAX, "%s/.fastwrite-probe-XXXXXX", p->dir) >= PATH_MAX) {
		errno = ENAMETOOLONG;
		return -1;
	}
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0) {
		path[0] = '\0';
		return -1;
	}
	for (int at = 0; !append && at < ZEROS; at += RECORD) {
		ssize_t n = pwrite(fd, zeros, RECORD, at);

		if (n != RECORD) {
			errno = n < 0 ? errno : ENOSPC;
			close(fd);
			return -1;
		}
	}
	if (fsync(fd) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static double one(const struct method *m, int fd, const void *record, int round)
{
	double begin = now_us();
	ssize_t n = m->append ? write(fd, record, RECORD)
	                      : pwrite(fd, record, RECORD, (off_t)round * RECORD % ZEROS);
	int r = m->after == FSYNC ? fsync(fd) : m->after == FDATASYNC ? fdatasync(fd) : 0;

	if (n == RECORD && r == 0)
		return now_us() - begin;
	errno = n >= 0 && n < RECORD ? ENOSPC : errno;
	return -1;
}

/* Taking turns, so that what else the machine does meets all alike. */
static void measure(struct probe *p, const void *record)
{
	double end = now_us() + MILLISECONDS * 1e3;
	int round = 0;

	for (; round < ROUNDS + WARM_UP && now_us() < end; round++) {
		for (int m = 0; m < METHODS; m++) {
			double us = p->error[m] ? 0 : one(&methods[m], p->fd[m], record, round);

			if (us < 0)
				p->error[m] = errno;
			else if (round >= WARM_UP)
				p->us[m][round - WARM_UP] = us;
		}
	}
	p->rounds = round > WARM_UP ? round - WARM_UP : 0;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(struct probe *p, int m)
{
	qsort(p->us[m], (size_t)p->rounds, sizeof(double), compare);
	return p->us[m][p->rounds / 2];
}

/* 0, or the errno of what could not be done. */
static int run(struct probe *p)
{
	char paths[2][PATH_MAX] = {"", ""};
	int files[2] = {-1, -1};
	void *record = aligned_alloc(RECORD, RECORD);
	int error = record ? 0 : ENOMEM;

	if (record)
		memset(record, 0, RECORD);
	for (int i = 0; !error && i < 2; i++) {
		files[i] = open_file(p, record, i == 0, paths[i]);
		error = files[i] < 0 ? errno : 0;
	}
	for (int m = 0; m < METHODS; m++)
		p->fd[m] = -1;
	for (int m = 0; !error && m < METHODS; m++) {
		p->fd[m] = open(paths[methods[m].append ? 0 : 1],
		                O_RDWR | O_CLOEXEC | methods[m].flags | (methods[m].append ? O_APPEND : 0));
		p->error[m] = p->fd[m] < 0 ? errno : 0;
	}
	if (!error)
		measure(p, record);
	for (int m = 0; m < METHODS; m++)
		if (p->fd[m] >= 0)
			close(p->fd[m]);
	for (int i = 0; i < 2; i++) {
		if (files[i] >= 0)
			close(files[i]);
		if (paths[i][0])
			unlink(paths[i]);
	}
	free(record);
	return error ? error : p->rounds == 0 ? ETIMEDOUT : 0;
}

static bool in_memory(const char *dir)
{
	struct statfs st;

	return statfs(dir, &st) == 0 && (st.f_type == 0x01021994 || (unsigned)st.f_type == 0x858458f6u);
}

/* -1 when nothing could be measured. */
static int cheapest(const struct probe *p, const double *us)
{
	int best = -1;

	for (int m = 0; m < METHODS; m++)
		if (!p->error[m] && (best < 0 || us[m] < us[best]))
			best = m;
	return best;
}

static void print_text(const struct probe *p, const double *us, int best)
{
	printf("\nprobe %s: 4 KiB made durable, median of %d, in microseconds\n", p->dir, p->rounds);
	for (int m = 0; m < METHODS; m++) {
		if (p->error[m])
			printf("  %-33s %s\n", methods[m].name, strerror(p->error[m]));
		else
			printf("  %-33s %6.0f\n", methods[m].name, us[m]);
	}
	if (p->memory)
		printf("  in memory: nothing is durable here\n");
	else if (best >= 0)
		printf("  cheapest: %s\n", methods[best].name);
}

static void print_json(struct json *j, const struct probe *p, const double *us, int best)
{
	json_open(j, NULL, '{');
	json_text(j, "directory", p->dir);
	json_bool(j, "durable", !p->memory);
	json_number(j, "rounds", p->rounds);
	json_open(j, "methods", '[');
	for (int m = 0; m < METHODS; m++) {
		json_open(j, NULL, '{');
		json_text(j, "name", methods[m].name);
		if (p->error[m])
			json_text(j, "error", strerror(p->error[m]));
		else
			json_number(j, "median_us", (long long)(us[m] + 0.5));
		json_close(j, '}');
	}
	json_close(j, ']');
	json_text(j, "cheapest", best < 0 || p->memory ? NULL : methods[best].name);
	json_close(j, '}');
}

int cli_probe(const char *dir, struct json *j)
{
	static struct probe p;
	double us[METHODS] = {0};
	sigset_t all, before;
	int error, best;

	memset(&p, 0, sizeof p);
	error = -cli_canonical(dir, p.dir);
	if (error == 0) {
		/* its files shall be gone whoever stops it */
		sigfillset(&all);
		sigprocmask(SIG_BLOCK, &all, &before);
		error = run(&p);
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	if (error != 0) {
		cli_error("%s: cannot measure there: %s", dir, strerror(error));
		return CLI_FAILED;
	}
	p.memory = in_memory(p.dir);
	for (int m = 0; m < METHODS; m++)
		us[m] = p.error[m] ? 0 : median(&p, m);
	best = cheapest(&p, us);
	if (j)
		print_json(j, &p, us, best);
	else
		print_text(&p, us, best);
	return CLI_OK;
}
