// SPDX-License-Identifier: Apache-2.0
/*
 * How old is the oldest byte that a write has returned for and that another process cannot see yet?
 *
 *   lag write TABLE DIRECTORY FILES PAUSE_US MILLISECONDS BUSY   the writer, under the library or not
 *   lag watch TABLE DIRECTORY FILES                              the other process
 *
 * The writer appends records to FILES files in turn, pausing after each round, and notes in TABLE (a file
 * that both map) when each write returned; BUSY more threads write to files of their own as fast as they can.
 * The watcher looks at the sizes until the writer is done, and prints the greatest age in microseconds, how
 * often it looked, and how often it saw less than was written.
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
#include <time.h>
#include <unistd.h>

enum { RECORD = 100, RING = 8192 };

struct entry {
	_Atomic uint64_t written; /* records */
	_Atomic uint64_t at[RING];
};

struct table {
	_Atomic int ready, done;
	struct entry files[];
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static struct table *map_table(const char *path, int files)
{
	size_t size = sizeof(struct table) + (size_t)files * sizeof(struct entry);
	int fd = open(path, O_RDWR | O_CREAT, 0600);
	struct table *t;

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
		fail(path);
	t = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		fail("mmap");
	close(fd);
	return t;
}

static int open_file(const char *directory, const char *kind, int number, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/%s%d", directory, kind, number);
	fd = open(path, flags, 0644);
	if (fd < 0)
		fail(path);
	return fd;
}

static _Atomic int busy_stop;
static const char *busy_directory;

static void *busy(void *arg)
{
	int fd = open_file(busy_directory, "busy", (int)(intptr_t)arg, O_WRONLY | O_CREAT | O_TRUNC);
	static const char bytes[4096];

	for (uint64_t i = 0; !busy_stop; i++) {
		/* the same 64 MiB over and over: the disk must not fill up */
		if (pwrite(fd, bytes, sizeof bytes, (off_t)(i % 16384 * sizeof bytes)) != sizeof bytes)
			fail("pwrite");
	}
	close(fd);
	return NULL;
}

static void rounds(struct table *t, const int *fds, int files, int pause_us, uint64_t until)
{
	char record[RECORD];

	memset(record, 'r', sizeof record);
	while (now_ns() < until) {
		for (int i = 0; i < files; i++) {
			struct entry *e = &t->files[i];
			uint64_t n = e->written;

			if (write(fds[i], record, RECORD) != RECORD)
				fail("write");
			e->at[n % RING] = now_ns();
			e->written = n + 1;
		}
		if (pause_us)
			usleep((unsigned)pause_us);
	}
}

static int run_writer(struct table *t, char **argv)
{
	int files = atoi(argv[4]), threads = atoi(argv[7]);
	int *fds = calloc((size_t)files, sizeof *fds);
	pthread_t ids[16];

	for (int i = 0; i < files; i++)
		fds[i] = open_file(argv[3], "f", i, O_WRONLY | O_CREAT | O_TRUNC | (i % 2 ? O_APPEND : 0));
	busy_directory = argv[3];
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], NULL, busy, (void *)(intptr_t)i);
	t->ready = 1;
	rounds(t, fds, files, atoi(argv[5]), now_ns() + (uint64_t)atoi(argv[6]) * 1000000u);
	/* what was written last becomes visible without anything more being done */
	usleep(500000);
	t->done = 1;
	busy_stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	for (int i = 0; i < files; i++)
		close(fds[i]);
	return 0;
}

static int run_watcher(struct table *t, char **argv)
{
	int files = atoi(argv[4]);
	int *fds = calloc((size_t)files, sizeof *fds);
	uint64_t worst = 0, looks = 0, behind = 0;

	while (!t->ready)
		usleep(1000);
	for (int i = 0; i < files; i++)
		fds[i] = open_file(argv[3], "f", i, O_RDONLY);
	while (!t->done) {
		for (int i = 0; i < files; i++) {
			struct entry *e = &t->files[i];
			uint64_t now = now_ns(), written = e->written, seen, at;
			struct stat st;

			if (fstat(fds[i], &st) < 0)
				fail("fstat");
			seen = (uint64_t)st.st_size / RECORD;
			looks++;
			if (seen >= written)
				continue;
			if (written - seen >= RING) {
				fprintf(stderr, "%llu records behind\n",
				        (unsigned long long)(written - seen));
				return 1;
			}
			behind++;
			at = e->at[seen % RING];
			if (now > at && now - at > worst)
				worst = now - at;
		}
		usleep(200);
	}
	printf("%llu %llu %llu\n", (unsigned long long)worst / 1000, (unsigned long long)looks,
	       (unsigned long long)behind);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 8 && strcmp(argv[1], "write") == 0)
		return run_writer(map_table(argv[2], atoi(argv[4])), argv);
	if (argc == 5 && strcmp(argv[1], "watch") == 0)
		return run_watcher(map_table(argv[2], atoi(argv[4])), argv);
	return 2;
}
