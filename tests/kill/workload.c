// SPDX-License-Identifier: Apache-2.0
/*
 * workload DIR LOG NAME SEED [SECONDS]
 *
 * Writes to files in DIR and keeps a log of it in LOG, a file that is mapped shared, so that the log survives
 * whatever kills this program: before each write what is about to be written, after it that it returned.  The
 * log is read by tests/lib/kill_model.py, which says what the files must hold.
 *
 * Ends with status 3 when a call fails, with 4 for wrong usage.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OPS_MAX = 1 << 17, THREADS_MAX = 8, LENGTH_MAX = 32768, RECORD = 64 };

/* One write.  kind 0: to `offset`; 1: at the end of the file, by O_APPEND; 4: the file is made; 5: it is
 * removed.  The content follows from seed. */
struct op {
	uint32_t file;
	uint32_t kind;
	uint64_t offset;
	uint32_t length;
	uint32_t seed;          /* 0: all bytes 'a' */
	_Atomic uint32_t state; /* 0 empty, 1 begun, 2 returned */
	uint32_t thread;
};

struct log {
	_Atomic uint32_t used;
	uint32_t pad[7];
	struct op ops[OPS_MAX];
};

static struct log *ops_log;
static const char *dir;
static double seconds;

struct random {
	uint64_t state;
};

static uint32_t next(struct random *r, uint32_t below)
{
	r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(r->state >> 33) % below;
}

static void die(const char *what)
{
	fprintf(stderr, "workload: %s: %s\n", what, strerror(errno));
	_exit(3);
}

/* The same as pattern() in tests/lib/kill_model.py. */
static void fill(uint8_t *to, uint32_t length, uint32_t seed)
{
	if (seed == 0) {
		memset(to, 'a', length);
		return;
	}
	for (uint32_t i = 0; i < length; i++)
		to[i] = (uint8_t)((seed + i * 7 + (i >> 8) * 13) % 251);
}

static int open_file(uint32_t file, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/f%u", dir, file);
	fd = open(path, flags | O_CREAT, 0644);
	if (fd < 0)
		die(path);
	return fd;
}

static struct op *begin(uint32_t thread, uint32_t file, uint32_t kind, uint64_t offset, uint32_t length,
                        uint32_t seed)
{
	uint32_t at = atomic_fetch_add(&ops_log->used, 1);
	struct op *o = &ops_log->ops[at];

	if (at >= OPS_MAX) {
		for (;;) /* full: wait to be killed */
			pause();
	}
	o->file = file;
	o->kind = kind;
	o->offset = offset;
	o->length = length;
	o->seed = seed;
	o->thread = thread;
	atomic_store(&o->state, 1);
	return o;
}

static void put(int fd, uint32_t thread, uint32_t file, uint32_t kind, uint64_t offset, uint32_t length,
                uint32_t seed)
{
	static __thread uint8_t buffer[LENGTH_MAX + 4096] __attribute__((aligned(4096)));
	struct op *o = begin(thread, file, kind, offset, length, seed);
	ssize_t n;

	fill(buffer, length, seed);
	n = kind == 2 ? pwrite(fd, buffer, length, (off_t)offset) : write(fd, buffer, length);
	if (n != (ssize_t)length)
		die("write");
	atomic_store(&o->state, 2);
}

enum { SEQUENTIAL = 0, APPEND = 1, POSITIONAL = 2, MADE = 4, REMOVED = 5 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Without SECONDS: `count` turns; with it: until the time is over. */
static int more(uint32_t turn, uint32_t count)
{
	static double end;

	if (seconds <= 0)
		return turn < count;
	if (end == 0)
		end = now() + seconds;
	return now() < end;
}

/* Sizes that split over block ends, with many small ones for the fast path. */
static uint32_t some_length(struct random *r, uint32_t turn)
{
	if (turn == 0)
		return 100; /* the one that passes through: never cut in two by the kernel */
	switch (next(r, 4)) {
	case 0: return 1 + next(r, 300);
	case 1: return 20000 + next(r, LENGTH_MAX - 20000);
	default: return 1 + next(r, 9000);
	}
}

static void sequential(struct random *r, uint32_t thread, int flags, uint32_t count)
{
	int fd = open_file(thread, O_WRONLY | flags);
	uint64_t at = 0;

	for (uint32_t turn = 0; more(turn, count); turn++) {
		uint32_t length = some_length(r, turn);

		put(fd, thread, thread, flags & O_APPEND ? APPEND : SEQUENTIAL, at, length,
		    1 + next(r, 1u << 30));
		at += length;
	}
	if (close(fd) != 0)
		die("close");
}

/* Every byte the same, so that done and not done look alike. */
static void same_bytes(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(thread, O_WRONLY | O_APPEND);

	for (uint32_t turn = 0; more(turn, count); turn++)
		put(fd, thread, thread, APPEND, 0, turn == 0 ? 100 : 4000 + next(r, 25000), 0);
	if (close(fd) != 0)
		die("close");
}

static void positional(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(thread, O_RDWR);

	for (uint32_t turn = 0; more(turn, count); turn++) {
		uint32_t length = some_length(r, turn);
		uint64_t at = turn == 0 ? 0 : next(r, 200000);

		put(fd, thread, thread, POSITIONAL, at, length, 1 + next(r, 1u << 30));
		if (turn % 8 == 7) {
			uint8_t back[64];

			if (pread(fd, back, sizeof back, (off_t)at) < 0)
				die("pread");
		}
	}
	if (close(fd) != 0)
		die("close");
}

static void direct(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(thread, O_WRONLY | O_DIRECT);
	uint64_t at = 0;

	for (uint32_t turn = 0; more(turn, count); turn++) {
		uint32_t length = turn == 0 ? 4096 : 4096 * (1 + next(r, 6));

		put(fd, thread, thread, SEQUENTIAL, at, length, 1 + next(r, 1u << 30));
		at += length;
	}
	if (close(fd) != 0)
		die("close");
}

static void synced(struct random *r, uint32_t thread, uint32_t count)
{
	uint64_t at = 0;

	for (uint32_t turn = 0; more(turn, count);) {
		int fd = open_file(thread, O_WRONLY);

		if (lseek(fd, (off_t)at, SEEK_SET) < 0)
			die("lseek");
		for (uint32_t i = 0; i < 9 && more(turn, count); i++, turn++) {
			uint32_t length = some_length(r, turn == 0 || i == 0 ? 0 : turn);

			put(fd, thread, thread, SEQUENTIAL, at, length, 1 + next(r, 1u << 30));
			at += length;
			if (turn % 5 == 4 && (turn & 1 ? fsync(fd) : fdatasync(fd)) != 0)
				die("fsync");
		}
		if (close(fd) != 0)
			die("close");
	}
}

/* Few writes, which grow the file by most of what the least arena holds. */
static void large(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(thread, O_RDWR);
	uint64_t at = 0;

	for (uint32_t turn = 0; more(turn, count); turn++) {
		uint32_t length = turn % 10 == 0 ? some_length(r, turn) : LENGTH_MAX;

		put(fd, thread, thread, SEQUENTIAL, at, length, 1 + next(r, 1u << 30));
		at += length;
		if (turn % 10 == 9 && fdatasync(fd) != 0)
			die("fdatasync");
	}
	if (close(fd) != 0)
		die("close");
}

/* A child that ends comes in between, with time to notice that. */
static void forks(struct random *r, uint32_t thread, uint32_t count)
{
	enum { EVERY = 8, NOTICED_US = 15000 };
	int fd = open_file(thread, O_RDWR);

	for (uint32_t turn = 0; more(turn, count); turn++) {
		pid_t child = turn % EVERY == EVERY - 1 ? fork() : -1;

		if (child == 0)
			_exit(0);
		if (child > 0 && waitpid(child, NULL, 0) != child)
			die("waitpid");
		if (turn >= EVERY - 1 && (turn + 1) % EVERY < 3)
			usleep(NOTICED_US);
		put(fd, thread, thread, POSITIONAL, next(r, 200000), some_length(r, turn),
		    1 + next(r, 1u << 30));
	}
	if (close(fd) != 0)
		die("close");
}

/* A sync after each write, with time for a journal to be made at the beginning. */
static void journaled(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(thread, O_WRONLY);
	uint64_t at = 0;

	for (uint32_t turn = 0; more(turn, count); turn++) {
		uint32_t length = 1 + next(r, 3000);

		put(fd, thread, thread, SEQUENTIAL, at, length, 1 + next(r, 1u << 30));
		at += length;
		if (fdatasync(fd) != 0)
			die("fdatasync");
		if (turn >= 9 && turn < 16)
			usleep(5000);
	}
	if (close(fd) != 0)
		die("close");
}

/* More open files than there are blocks: each write takes a block away from another file. */
static void stealing(struct random *r, uint32_t thread, uint32_t files, uint32_t rounds)
{
	int fds[64];
	uint64_t at[64] = {0};

	for (uint32_t i = 0; i < files; i++)
		fds[i] = open_file(thread * 64 + i, O_WRONLY | (i % 2 ? O_APPEND : 0));
	for (uint32_t turn = 0; more(turn, rounds); turn++) {
		for (uint32_t i = 0; i < files; i++) {
			uint32_t length = turn == 0 ? 100 : 1 + next(r, 3000);

			put(fds[i], thread, thread * 64 + i, i % 2 ? APPEND : SEQUENTIAL, at[i], length,
			    1 + next(r, 1u << 30));
			at[i] += length;
		}
	}
	for (uint32_t i = 0; i < files; i++)
		if (close(fds[i]) != 0)
			die("close");
}

static void sync_directory(void)
{
	int fd = open(dir, O_RDONLY);

	if (fd < 0 || fsync(fd) != 0 || close(fd) != 0)
		die(dir);
}

/* As a database does: a file is made, written and removed, for each change of another one.  In every second
 * turn it lives longer than an epoch of sync = ordered. */
static void transactions(struct random *r, uint32_t thread, uint32_t count)
{
	uint32_t data = 2 * thread, journal = data + 1;
	int fd = open_file(data, O_RDWR);
	char path[4096];

	snprintf(path, sizeof path, "%s/f%u", dir, journal);
	for (uint32_t turn = 0; more(turn, count); turn++) {
		struct op *o = begin(thread, journal, MADE, 0, 0, 0);
		int other = open_file(journal, O_RDWR);

		atomic_store(&o->state, 2);
		put(other, thread, journal, POSITIONAL, 0, 3000, 1 + next(r, 1u << 30));
		if (fdatasync(other) != 0)
			die("fdatasync");
		sync_directory();
		if (turn % 2 == 1)
			usleep(10000);
		put(other, thread, journal, POSITIONAL, 2000, 2000, 1 + next(r, 1u << 30));
		put(fd, thread, data, POSITIONAL, turn * 1000, 1500, 1 + next(r, 1u << 30));
		if (fdatasync(fd) != 0 || close(other) != 0)
			die("fdatasync");
		o = begin(thread, journal, REMOVED, 0, 0, 0);
		if (unlink(path) != 0)
			die(path);
		atomic_store(&o->state, 2);
	}
	if (close(fd) != 0)
		die("close");
}

/* Threads that append whole records to one file, each through a description of its own. */
static void records(struct random *r, uint32_t thread, uint32_t count)
{
	int fd = open_file(0, O_WRONLY | O_APPEND);
	char text[RECORD + 1];

	(void)r;
	for (uint32_t turn = 0; more(turn, count); turn++) {
		struct op *o = begin(thread, 0, 3, turn, RECORD, 0);

		snprintf(text, sizeof text, "record %02u %08u ", thread, turn);
		memset(text + strlen(text), '.', RECORD - strlen(text));
		text[RECORD - 1] = '\n';
		if (write(fd, text, RECORD) != RECORD)
			die("write");
		atomic_store(&o->state, 2);
	}
	if (close(fd) != 0)
		die("close");
}

struct job {
	const char *name;
	uint64_t seed;
	uint32_t thread;
};

static void run(const struct job *j)
{
	struct random r = {j->seed * 977 + j->thread * 131 + 1};

	next(&r, 2);
	if (strcmp(j->name, "sequential") == 0)
		sequential(&r, j->thread, 0, 26);
	else if (strcmp(j->name, "append") == 0)
		sequential(&r, j->thread, O_APPEND, 26);
	else if (strcmp(j->name, "same") == 0)
		same_bytes(&r, j->thread, 22);
	else if (strcmp(j->name, "positional") == 0)
		positional(&r, j->thread, 34);
	else if (strcmp(j->name, "direct") == 0)
		direct(&r, j->thread, 24);
	else if (strcmp(j->name, "synced") == 0)
		synced(&r, j->thread, 24);
	else if (strcmp(j->name, "journaled") == 0)
		journaled(&r, j->thread, 40);
	else if (strcmp(j->name, "forks") == 0)
		forks(&r, j->thread, 20);
	else if (strcmp(j->name, "large") == 0)
		large(&r, j->thread, 26);
	else if (strcmp(j->name, "stealing") == 0)
		stealing(&r, j->thread, 17, 3);
	else if (strcmp(j->name, "transactions") == 0)
		transactions(&r, j->thread, 8);
	else if (strcmp(j->name, "records") == 0)
		records(&r, j->thread, 100);
	else
		_exit(4);
}

static void *thread_main(void *arg)
{
	const struct job *j = arg;
	static const char *const mixture[] = {"append", "positional", "direct", "sequential"};
	struct job mine = *j;

	if (strcmp(j->name, "mixed") == 0)
		mine.name = mixture[j->thread % 4];
	run(&mine);
	return NULL;
}

int main(int argc, char **argv)
{
	struct job jobs[THREADS_MAX];
	pthread_t threads[THREADS_MAX];
	uint32_t count = 1;
	char name[64];
	char *colon;
	int fd;

	if (argc < 5 || strlen(argv[3]) >= sizeof name)
		return 4;
	dir = argv[1];
	strcpy(name, argv[3]);
	colon = strchr(name, ':'); /* NAME:THREADS */
	if (colon) {
		*colon = '\0';
		count = (uint32_t)atoi(colon + 1);
	}
	if (count < 1 || count > THREADS_MAX)
		return 4;
	seconds = argc > 5 ? atof(argv[5]) : 0;
	fd = open(argv[2], O_RDWR | O_CREAT, 0644);
	if (fd < 0 || ftruncate(fd, sizeof *ops_log) != 0)
		die(argv[2]);
	ops_log = mmap(NULL, sizeof *ops_log, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ops_log == MAP_FAILED)
		die("mmap");
	for (uint32_t i = 0; i < count; i++) {
		jobs[i] = (struct job){name, strtoull(argv[4], NULL, 10), i};
		if (count > 1 && pthread_create(&threads[i], NULL, thread_main, &jobs[i]) != 0)
			die("pthread_create");
	}
	if (count == 1)
		thread_main(&jobs[0]);
	else
		for (uint32_t i = 0; i < count; i++)
			pthread_join(threads[i], NULL);
	return 0;
}
