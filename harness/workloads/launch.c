// SPDX-License-Identifier: Apache-2.0
/*
 * lab-launch: runs one command and says what it took, without a large parent in the figures.
 *
 *   lab-launch --result FILE [--stdout FILE] [--stderr FILE] [--env NAME=VALUE]... [--times N] \
 *              -- CMD [ARGUMENT...]
 *
 * The time is from the fork to the end of CMD, of all N runs one after another, which end with the first that
 * fails; processor time and memory are of the last.  FILE gets one JSON object; the variables are set for CMD
 * only. Processes that CMD leaves behind come to this one, are killed and counted.  Its own exit status is 0
 * whatever CMD's was, and 2 when it cannot do its work.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { VARIABLES_MAX = 64, CANNOT_EXECUTE = 127 };

struct order {
	const char *result, *in, *out, *err;
	char *variables[VARIABLES_MAX];
	int variable_count, times;
	char **command;
};

static void fail(const char *what)
{
	fprintf(stderr, "lab-launch: %s: %s\n", what, strerror(errno));
	exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void redirect(const char *path, int to)
{
	int fd;

	if (!path)
		return;
	fd = open(path, (to ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY) | O_CLOEXEC, 0644);
	if (fd < 0 || dup2(fd, to) < 0)
		_exit(CANNOT_EXECUTE);
}

/* `failed` closes at the exec; when there is none it tells errno. */
static void become(const struct order *order, int failed)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	redirect(order->in, 0);
	redirect(order->out, 1);
	redirect(order->err, 2);
	for (int i = 0; i < order->variable_count; i++)
		putenv(order->variables[i]);
	execvp(order->command[0], order->command);
	if (write(failed, &errno, sizeof errno) != sizeof errno)
		_exit(CANNOT_EXECUTE);
	_exit(CANNOT_EXECUTE);
}

/* What is below this process now that CMD has ended. */
static int kill_rest(void)
{
	char path[64], line[64];
	int count = 0;
	FILE *children;

	snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
	for (;;) {
		int found = 0, pid;

		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		children = fopen(path, "re");
		if (!children)
			return count;
		while (fscanf(children, "%63s", line) == 1) {
			pid = atoi(line);
			if (pid > 1 && kill(pid, SIGKILL) == 0) {
				found++;
				waitpid(pid, NULL, 0);
			}
		}
		fclose(children);
		if (!found)
			return count;
		count += found;
	}
}

static struct order parse(int argc, char **argv)
{
	static const struct option options[] = {{"result", required_argument, NULL, 'r'},
	                                        {"stdin", required_argument, NULL, 'i'},
	                                        {"stdout", required_argument, NULL, 'o'},
	                                        {"stderr", required_argument, NULL, 'e'},
	                                        {"env", required_argument, NULL, 'v'},
	                                        {"times", required_argument, NULL, 't'},
	                                        {NULL, 0, NULL, 0}};
	struct order order = {.times = 1};
	int c;

	while ((c = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		if (c == 'r')
			order.result = optarg;
		else if (c == 'i')
			order.in = optarg;
		else if (c == 'o')
			order.out = optarg;
		else if (c == 'e')
			order.err = optarg;
		else if (c == 'v' && order.variable_count < VARIABLES_MAX)
			order.variables[order.variable_count++] = optarg;
		else if (c == 't')
			order.times = atoi(optarg);
		else
			exit(2);
	}
	order.command = argv + optind;
	if (!order.result || !order.command[0] || order.times < 1) {
		fputs("usage: lab-launch --result FILE [--stdin FILE] [--stdout FILE] [--stderr FILE] "
		      "[--env NAME=VALUE] [--times N] -- CMD\n",
		      stderr);
		exit(2);
	}
	return order;
}

/* One run of CMD, adding to ns and left; its status as wait4 gives it. */
static int run(const struct order *order, struct rusage *usage, uint64_t *ns, int *left)
{
	int status, failed[2];
	uint64_t begin;
	pid_t pid;

	if (pipe2(failed, O_CLOEXEC) != 0)
		fail("pipe");
	begin = now_ns();
	pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0)
		become(order, failed[1]);
	close(failed[1]);
	if (read(failed[0], &errno, sizeof errno) == sizeof errno)
		fail(order->command[0]);
	while (wait4(pid, &status, 0, usage) < 0)
		if (errno != EINTR)
			fail("wait4");
	*ns += now_ns() - begin;
	close(failed[0]);
	*left += kill_rest();
	return status;
}

int main(int argc, char **argv)
{
	struct order order = parse(argc, argv);
	struct rusage usage;
	uint64_t ns = 0;
	int status = 0, left = 0;
	FILE *result;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
		fail("prctl");
	for (int i = 0; i < order.times && status == 0; i++)
		status = run(&order, &usage, &ns, &left);
	result = fopen(order.result, "we");
	if (!result)
		fail(order.result);
	fprintf(result,
	        "{\"seconds\": %.9f, \"status\": %d, \"signal\": %d, \"max_rss_kb\": %ld, "
	        "\"user_seconds\": %ld.%06ld, \"system_seconds\": %ld.%06ld, \"left\": %d}\n",
	        (double)ns / 1e9, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
	        WIFSIGNALED(status) ? WTERMSIG(status) : 0, usage.ru_maxrss, (long)usage.ru_utime.tv_sec,
	        (long)usage.ru_utime.tv_usec, (long)usage.ru_stime.tv_sec, (long)usage.ru_stime.tv_usec,
	        left);
	if (fclose(result) != 0)
		fail(order.result);
	return 0;
}
