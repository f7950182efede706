// SPDX-License-Identifier: Apache-2.0
/*
 * Does the same at each stage of a file's life under the adaptive policy, and prints what the calls returned.
 *
 *   stages PATH WHAT     WHAT: size (RLIMIT_FSIZE), descriptors (RLIMIT_NOFILE), cancel or closed (write
 * errors)
 *
 * The stages: just opened; a few writes; many small writes, which attach the file; looks after every write,
 * which detach it; many small writes again.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 100, FEW = 5, MANY = 20000, LOOKS = 3000 };

static const char *path;
static int fd, number;
static volatile sig_atomic_t signals;

static void on_signal(int signal)
{
	(void)signal;
	signals++;
}

static void check(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static ssize_t put(void)
{
	char line[LINE + 1];

	snprintf(line, sizeof line, "%099d\n", number++);
	return write(fd, line, LINE);
}

static void put_many(int count)
{
	for (int i = 0; i < count; i++)
		check(put() == LINE, "write");
}

static void look_after_each(int count)
{
	struct stat st;

	for (int i = 0; i < count; i++)
		check(put() == LINE && fstat(fd, &st) == 0 && st.st_size == (off_t)number * LINE, "fstat");
}

static void tell(const char *what, long r)
{
	printf(" %s %ld%s%s", what, r, r < 0 ? " " : "", r < 0 ? strerrorname_np(errno) : "");
}

/* The limit lies in the middle of the second write from now. */
static void limited_size(void)
{
	struct rlimit old, new;
	off_t end = lseek(fd, 0, SEEK_END);

	check(getrlimit(RLIMIT_FSIZE, &old) == 0, "getrlimit");
	new = (struct rlimit){(rlim_t)end + LINE + LINE / 2, old.rlim_max};
	check(setrlimit(RLIMIT_FSIZE, &new) == 0, "setrlimit");
	signals = 0;
	for (int i = 0; i < 4; i++)
		tell("write", put());
	tell("sync", fdatasync(fd));
	tell("truncate", ftruncate(fd, end + 10 * LINE));
	printf(" signals %d", (int)signals);
	check(setrlimit(RLIMIT_FSIZE, &old) == 0, "setrlimit");
	tell("cut", ftruncate(fd, end));
	tell("seek", lseek(fd, 0, SEEK_END));
	number = (int)(end / LINE);
}

/* Few are left: which numbers do the next ones get? */
static void limited_descriptors(void)
{
	struct rlimit old, new;
	int fds[8];

	check(getrlimit(RLIMIT_NOFILE, &old) == 0, "getrlimit");
	new = (struct rlimit){(rlim_t)fd + 5, old.rlim_max};
	check(setrlimit(RLIMIT_NOFILE, &new) == 0, "setrlimit");
	for (int i = 0; i < 8; i++) {
		fds[i] = i % 3 == 0   ? open(path, O_WRONLY | O_APPEND)
		         : i % 3 == 1 ? dup(fd)
		                      : open("/dev/null", 0);
		tell("open", fds[i]);
		tell("write", put());
	}
	for (int i = 0; i < 8; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	check(setrlimit(RLIMIT_NOFILE, &old) == 0, "setrlimit");
}

static void *write_until_cancelled(void *end)
{
	(void)end;
	for (;;)
		put();
	return NULL;
}

/* As a thread that is cancelled just before the call. */
static void *write_when_cancelled(void *end)
{
	pthread_cancel(pthread_self());
	put();
	*(int *)end = 1;
	return NULL;
}

static void *sync_when_cancelled(void *end)
{
	pthread_cancel(pthread_self());
	fsync(fd);
	*(int *)end = 1;
	return NULL;
}

static void cancelled(void)
{
	void *(*const threads[])(void *) = {write_when_cancelled, sync_when_cancelled};
	const struct timespec pause = {.tv_nsec = 1000000};
	pthread_t thread;
	struct stat st;
	void *how;
	int end;

	for (int i = 0; i < 2; i++) {
		int before = number;

		end = 0;
		check(pthread_create(&thread, NULL, threads[i], &end) == 0, "pthread_create");
		check(pthread_join(thread, &how) == 0, "pthread_join");
		printf(" cancelled %d, went on %d", how == PTHREAD_CANCELED, end);
		number = before;
	}
	/* somewhere in a write: whole writes have reached the file */
	check(pthread_create(&thread, NULL, write_until_cancelled, NULL) == 0, "pthread_create");
	nanosleep(&pause, NULL);
	pthread_cancel(thread);
	check(pthread_join(thread, &how) == 0, "pthread_join");
	check(fstat(fd, &st) == 0, "fstat");
	printf(" rest %d, position %d", (int)(st.st_size % LINE), lseek(fd, 0, SEEK_CUR) == st.st_size);
	number = (int)(st.st_size / LINE);
	tell("write", put());
}

/* Errors of writes, and what they leave behind. */
static void wrong(void)
{
	int reader = open(path, O_RDONLY);
	int full = open("/dev/full", O_WRONLY);
	const char *volatile nowhere = NULL;
	off_t at = lseek(fd, 0, SEEK_CUR);

	tell("read only", write(reader, "x", 1));
	tell("full", write(full, "x", 1));
	tell("no buffer", write(fd, nowhere, 10));
	tell("negative", pwrite(fd, "x", 1, -1));
	tell("beyond", pwrite(fd, "x", 1, INT64_MAX));
	tell("nothing", write(fd, "", 0));
	tell("closed", write(-1, "x", 1));
	tell("moved", (long)(lseek(fd, 0, SEEK_CUR) - at));
	close(reader);
	close(full);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*act)(void);
	} acts[] = {{"size", limited_size},
	            {"descriptors", limited_descriptors},
	            {"cancel", cancelled},
	            {"wrong", wrong}};
	void (*act)(void) = NULL;

	for (unsigned i = 0; argc == 4 && i < sizeof acts / sizeof acts[0]; i++)
		if (strcmp(argv[2], acts[i].name) == 0)
			act = acts[i].act;
	check(act != NULL, "arguments");
	signal(SIGXFSZ, on_signal);
	path = argv[1];
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	check(fd >= 0, "open");
	for (int stage = 0; stage < 6; stage++) {
		if (stage >= atoi(argv[3])) {
			printf("stage %d:", stage);
			act();
			printf("\n");
		}
		if (stage == 0)
			put_many(FEW);
		else if (stage == 2)
			look_after_each(LOOKS);
		else
			put_many(MANY);
	}
	check(close(fd) == 0, "close");
	return 0;
}
