// SPDX-License-Identifier: Apache-2.0
/*
 * life DIRECTORY LOG SEED FIRST_FILE [OPTION...]
 *
 * One life of a program that is going to be killed, and started again on the same files.  It opens the files
 * f<FIRST_FILE>, ... in DIRECTORY, writes to them until it is killed, and keeps a log of its writes in LOG.
 * LOG is mapped shared: it survives the kill.  tests/lib/kill_model.py reads it, and life.py says what the
 * files must hold.
 *
 * wait           says in LOG that the files are open, and waits for the word to go on
 * child          forks a worker after the first writes; the worker has all files open and does nothing
 * shared=PATH    appends records to this file, too; id=N and next=N: the writer's number, and its next
 * record's line=PATH      writes behind the end of this file, too, without O_APPEND; in the log it is file 99
 * orderly        ends by exit at SIGTERM
 *
 * Ends with status 3 when a call fails, with 4 for wrong usage.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OPS_MAX = 1 << 15, LENGTH_MAX = 32768, REGION = 150000, RECORD = 64, FORK_AFTER = 60 };
enum kind { SEQUENTIAL = 0, APPEND = 1, POSITIONAL = 2, NUMBERED = 3 };
enum word { WAIT = 0, GO = 1, EMPTY_AND_GO = 2 };
enum role { UNSYNCED, SYNCED, END, REGION_OF_RECORDS, ROLES };

/* As in tests/kill/workload.c: kill_model.py reads both. */
struct op {
	uint32_t file;
	uint32_t kind;
	uint64_t offset;
	uint32_t length;
	uint32_t seed;
	_Atomic uint32_t state; /* 0 empty, 1 begun, 2 returned */
	uint32_t writer;
};

struct log {
	_Atomic uint32_t used;
	_Atomic uint32_t opened; /* the files are open */
	_Atomic uint32_t go;     /* enum word, written by the test */
	_Atomic uint32_t pid;    /* in the program's own pid namespace */
	_Atomic uint32_t worker;
	uint32_t pad[3];
	struct op ops[OPS_MAX];
};

struct random {
	uint64_t state;
};

enum { LINE_FILE = 99 };

static struct log *ops_log;
static uint32_t writer;
static volatile sig_atomic_t stopping;

static uint32_t next(struct random *r, uint32_t below)
{
	r->state = r->state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(r->state >> 33) % below;
}

static void die(const char *what)
{
	fprintf(stderr, "life: %s: %s\n", what, strerror(errno));
	_exit(3);
}

static void nap(long us)
{
	struct timespec t = {.tv_nsec = us * 1000};

	nanosleep(&t, NULL);
}

/* The same as Op.content() in tests/lib/kill_model.py. */
static void fill(uint8_t *to, uint32_t length, uint32_t seed)
{
	for (uint32_t i = 0; i < length; i++)
		to[i] = (uint8_t)((seed + i * 7 + (i >> 8) * 13) % 251);
}

static struct op *begin(uint32_t file, enum kind kind, uint64_t offset, uint32_t length, uint32_t seed)
{
	uint32_t at = atomic_load(&ops_log->used);
	struct op *o;

	while (at >= OPS_MAX) /* full: wait for the kill */
		pause();
	o = &ops_log->ops[at];
	o->file = file;
	o->kind = kind;
	o->offset = offset;
	o->length = length;
	o->seed = seed;
	o->writer = writer;
	atomic_store(&o->state, 1);
	atomic_store(&ops_log->used, at + 1);
	return o;
}

static void put(int fd, uint32_t file, enum kind kind, uint64_t offset, uint32_t length, uint32_t seed)
{
	static uint8_t buffer[LENGTH_MAX];
	struct op *o = begin(file, kind, offset, length, seed);
	ssize_t n;

	fill(buffer, length, seed);
	n = kind == POSITIONAL ? pwrite(fd, buffer, length, (off_t)offset) : write(fd, buffer, length);
	if (n != (ssize_t)length)
		die("write");
	atomic_store(&o->state, 2);
}

static void put_numbered(int fd, uint32_t number)
{
	char text[RECORD + 1];
	struct op *o = begin(0, NUMBERED, number, RECORD, 1);
	int used = snprintf(text, sizeof text, "record %02u %08u ", writer, number);

	memset(text + used, '.', RECORD - (size_t)used);
	text[RECORD - 1] = '\n';
	if (write(fd, text, RECORD) != RECORD)
		die("write of a numbered record");
	atomic_store(&o->state, 2);
}

static uint32_t some_length(struct random *r)
{
	switch (next(r, 32)) {
	case 0: return 1 + next(r, LENGTH_MAX - 1);
	case 1:
	case 2: return 1 + next(r, 5000);
	default: return 1 + next(r, 300);
	}
}

static int open_file(const char *directory, uint32_t file, enum role role)
{
	static const int flags[ROLES] = {
		[UNSYNCED] = O_WRONLY | O_APPEND,
		[SYNCED] = O_WRONLY | O_APPEND,
		[END] = O_WRONLY,
		[REGION_OF_RECORDS] = O_RDWR,
	};
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/f%u", directory, file);
	fd = open(path, flags[role] | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		die(path);
	return fd;
}

static void wait_for_the_word(const int *fds)
{
	uint32_t word;

	atomic_store(&ops_log->opened, 1);
	while ((word = atomic_load(&ops_log->go)) == WAIT)
		nap(500);
	for (int i = 0; word == EMPTY_AND_GO && i < ROLES; i++)
		if (ftruncate(fds[i], 0) != 0)
			die("ftruncate");
}

/* Holds every file open and does nothing, as a worker that waits for requests.  SIGTERM ends it in order. */
static void fork_worker(void)
{
	sigset_t term;
	pid_t pid;
	int number;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pid = fork();
	if (pid < 0)
		die("fork");
	if (pid > 0) {
		atomic_store(&ops_log->worker, (uint32_t)pid);
		return;
	}
	if (sigprocmask(SIG_BLOCK, &term, NULL) != 0 || sigwait(&term, &number) != 0)
		die("sigwait");
	exit(0);
}

static void stop(int number)
{
	(void)number;
	stopping = 1;
}

static off_t end_of(int fd)
{
	off_t end = lseek(fd, 0, SEEK_END);

	if (end < 0)
		die("lseek");
	return end;
}

struct work {
	int fds[ROLES];
	uint32_t first;  /* number of the first file */
	int shared;      /* -1: none */
	uint32_t number; /* of the next record there */
	int line;        /* -1: none */
	int with_worker;
};

static void put_behind(int fd, off_t *end, struct random *r, int sync)
{
	uint32_t length = 1 + next(r, 300);

	put(fd, LINE_FILE, SEQUENTIAL, (uint64_t)*end, length, 1 + next(r, 1u << 30));
	*end += length;
	if (sync && fsync(fd) != 0)
		die("fsync");
}

static void write_until_stopped(struct random *r, struct work *w)
{
	const int *fds = w->fds;
	off_t end = end_of(fds[END]), line_end = w->line < 0 ? 0 : end_of(w->line);
	uint8_t back[64];

	for (uint32_t turn = 0; !stopping; turn++) {
		enum role role = next(r, ROLES);
		uint32_t length = some_length(r), seed = 1 + next(r, 1u << 30), at = next(r, REGION);
		enum kind kind = role == END ? SEQUENTIAL : role == REGION_OF_RECORDS ? POSITIONAL : APPEND;

		put(fds[role], w->first + role, kind, kind == SEQUENTIAL ? (uint64_t)end : at, length, seed);
		if (role == END)
			end += length;
		if (role == SYNCED && turn % 8 == 0 && fdatasync(fds[role]) != 0)
			die("fdatasync");
		if (role == END && turn % 32 == 0 && fsync(fds[role]) != 0)
			die("fsync");
		if (role == REGION_OF_RECORDS && turn % 16 == 0 &&
		    pread(fds[role], back, sizeof back, at) < 0)
			die("pread");
		if (w->shared >= 0 && turn % 2)
			put_numbered(w->shared, w->number++);
		if (w->line >= 0 && turn % 4 == 0)
			put_behind(w->line, &line_end, r, turn % 64 == 0);
		if (w->with_worker && turn == FORK_AFTER)
			fork_worker();
		if (turn % 8 == 7)
			nap(200); /* the files are to be read whole after every round */
	}
}

static struct log *map_log(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	void *map;

	if (fd < 0 || ftruncate(fd, sizeof(struct log)) != 0)
		die(path);
	map = mmap(NULL, sizeof(struct log), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		die("mmap");
	close(fd);
	return map;
}

static int open_given(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC);

	if (fd < 0)
		die(path);
	return fd;
}

/* What follows NAME= in an option, or NULL. */
static const char *value_of(const char *option, const char *name)
{
	size_t length = strlen(name);

	return strncmp(option, name, length) == 0 && option[length] == '=' ? option + length + 1 : NULL;
}

int main(int argc, char **argv)
{
	struct work w = {.shared = -1, .line = -1};
	struct random r;
	const char *value;
	int waits = 0;

	if (argc < 5)
		return 4;
	w.first = (uint32_t)atoi(argv[4]);
	for (int i = 5; i < argc; i++) {
		if (strcmp(argv[i], "wait") == 0)
			waits = 1;
		else if (strcmp(argv[i], "child") == 0)
			w.with_worker = 1;
		else if (strcmp(argv[i], "orderly") == 0)
			signal(SIGTERM, stop);
		else if ((value = value_of(argv[i], "id")))
			writer = (uint32_t)atoi(value);
		else if ((value = value_of(argv[i], "next")))
			w.number = (uint32_t)atoi(value);
		else if ((value = value_of(argv[i], "shared")))
			w.shared = open_given(value, O_WRONLY | O_APPEND);
		else if ((value = value_of(argv[i], "line")))
			w.line = open_given(value, O_WRONLY);
		else
			return 4;
	}
	ops_log = map_log(argv[2]);
	atomic_store(&ops_log->pid, (uint32_t)getpid());
	r.state = strtoull(argv[3], NULL, 10) * 977 + 1;
	next(&r, 2);
	for (uint32_t i = 0; i < ROLES; i++)
		w.fds[i] = open_file(argv[1], w.first + i, i);
	if (waits)
		wait_for_the_word(w.fds);
	write_until_stopped(&r, &w);
	return 0;
}
