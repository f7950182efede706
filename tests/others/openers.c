// SPDX-License-Identifier: Apache-2.0
/*
 * Does who opens a file find every byte that a write had returned for before?
 *
 *   openers write TABLE PATH HOW PAUSE_US     HOW: any of a (O_APPEND), p (pwrite), f (fork first), d (dup),
 *                                             k (another thread forks, and the file is opened anew at times)
 *   openers open TABLE PATH TRIES HOW         HOW: r (O_RDONLY), w (O_RDWR), n (O_NONBLOCK), m (mmap),
 *                                             s (goes on until half of TRIES have met staged bytes)
 *
 * The writer writes records until the other one is done, and counts them in TABLE, a file that both map.  The
 * other one opens the file again and again, and prints: tries, how often the size had been behind just before
 * (that is: bytes were staged), stale views, how often O_NONBLOCK was told to come again, and the longest
 * open in microseconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 64 };

struct table {
	_Atomic uint64_t written; /* records */
	_Atomic int done;
};

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static struct table *map_table(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	struct table *t;

	if (fd < 0 || ftruncate(fd, sizeof *t) < 0)
		fail(path);
	t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		fail("mmap");
	close(fd);
	return t;
}

static void fill(char *record, uint64_t number)
{
	char text[32];
	int n = snprintf(text, sizeof text, "%012llu ", (unsigned long long)number);

	for (int i = 0; i < RECORD - 1; i++)
		record[i] = text[i % n];
	record[RECORD - 1] = '\n';
}

/* Children that live for a while, with whatever was open when they were made. */
static void *fork_again_and_again(void *arg)
{
	struct table *t = arg;

	while (!t->done) {
		pid_t pid = fork();

		if (pid == 0) {
			usleep(5000);
			_exit(0);
		}
		usleep(20000);
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
	}
	return NULL;
}

static int run_writer(struct table *t, const char *path, const char *how, int pause_us)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | (strchr(how, 'a') ? O_APPEND : 0), 0644);
	char record[RECORD];
	pthread_t forker;

	if (fd < 0)
		fail(path);
	if (strchr(how, 'k'))
		pthread_create(&forker, NULL, fork_again_and_again, t);
	if (strchr(how, 'f')) {
		pid_t pid;

		fill(record, 0);
		for (int i = 0; i < 3; i++)
			if (write(fd, record, RECORD) != RECORD)
				fail("write");
		pid = fork();
		if (pid == 0) {
			while (!t->done)
				usleep(10000);
			_exit(0);
		}
		if (ftruncate(fd, 0) < 0)
			fail("ftruncate");
	}
	if (strchr(how, 'd')) {
		int copy = dup(fd);

		close(fd);
		fd = copy;
	}
	for (uint64_t n = 0; !t->done; n++) {
		ssize_t r;

		fill(record, n);
		r = strchr(how, 'p') ? pwrite(fd, record, RECORD, (off_t)n * RECORD)
		                     : write(fd, record, RECORD);
		if (r != RECORD)
			fail("write");
		t->written = n + 1;
		if (pause_us)
			usleep((unsigned)pause_us);
		if (strchr(how, 'k') && n % 40 == 39) {
			if (close(fd) < 0 || (fd = open(path, O_WRONLY | O_APPEND)) < 0)
				fail("opening it anew");
		}
	}
	if (close(fd) < 0)
		fail("close");
	if (strchr(how, 'k'))
		pthread_join(forker, NULL);
	while (wait(NULL) > 0)
		;
	printf("%llu\n", (unsigned long long)t->written);
	return 0;
}

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000;
}

/* False when record `number` is not there. */
static int has_record(int fd, uint64_t number, int mapped)
{
	char want[RECORD], have[RECORD];
	struct stat st;

	fill(want, number);
	if (mapped) {
		const char *bytes;
		int same;

		if (fstat(fd, &st) < 0 || (uint64_t)st.st_size < (number + 1) * RECORD)
			return 0;
		bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
		if (bytes == MAP_FAILED)
			fail("mmap");
		same = memcmp(bytes + number * RECORD, want, RECORD) == 0;
		munmap((void *)(uintptr_t)bytes, (size_t)st.st_size);
		return same;
	}
	return pread(fd, have, RECORD, (off_t)number * RECORD) == RECORD && memcmp(have, want, RECORD) == 0;
}

static int run_opener(struct table *t, const char *path, int tries, const char *how)
{
	int flags = (strchr(how, 'w') ? O_RDWR : O_RDONLY) | (strchr(how, 'n') ? O_NONBLOCK : 0);
	uint64_t behind = 0, stale = 0, again = 0, longest = 0;
	unsigned seed = 1;
	int i;

	while (t->written < 100)
		usleep(1000);
	/* s: where the two wait for each other's processor, more of them find nothing staged */
	for (i = 0; i < tries || (strchr(how, 's') && behind < (uint64_t)tries / 2 && i < 8 * tries); i++) {
		uint64_t written = t->written, from, took;
		struct stat st;
		int fd;

		if (stat(path, &st) < 0)
			fail("stat");
		behind += (uint64_t)st.st_size < written * RECORD;
		from = now_us();
		while ((fd = open(path, flags)) < 0 && errno == EAGAIN) {
			again++;
			usleep(100);
		}
		if (fd < 0)
			fail(path);
		took = now_us() - from;
		if (took > longest)
			longest = took;
		/* the first, one in the middle, and the last that must be there */
		if (!has_record(fd, 0, strchr(how, 'm') != NULL) ||
		    !has_record(fd, written / 2, strchr(how, 'm') != NULL) ||
		    !has_record(fd, written - 1, strchr(how, 'm') != NULL))
			stale++;
		close(fd);
		usleep(500 + (unsigned)rand_r(&seed) % 3000);
	}
	t->done = 1;
	printf("%d %llu %llu %llu %llu\n", i, (unsigned long long)behind, (unsigned long long)stale,
	       (unsigned long long)again, (unsigned long long)longest);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 6 && strcmp(argv[1], "write") == 0)
		return run_writer(map_table(argv[2]), argv[3], argv[4], atoi(argv[5]));
	if (argc == 6 && strcmp(argv[1], "open") == 0)
		return run_opener(map_table(argv[2]), argv[3], atoi(argv[4]), argv[5]);
	return 2;
}
