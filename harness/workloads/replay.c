// SPDX-License-Identifier: Apache-2.0
/*
 * lab-replay: makes the calls on files again that another program was seen to make, by as many processes and
 * threads, with idle loops in place of the program's own work between them.  Written by harness/ab/twin.py,
 * which has the same format in Python.
 *
 *   lab-replay SCRIPT TALLY THINK NODE [timed]
 *
 * SCRIPT: header, nodes, operations, paths (struct head and on).  A node is what one thread of one program
 * image does.  TALLY is a file of struct tally, shared by all processes.  THINK is how many turns of a loop
 * stand for a nanosecond of the program's own work.  NODE is where to begin.  `timed` adds up the time of
 * each kind of call, which itself costs time.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x315941504c455246u /* "FREPLAY1" */

enum kind {
	OPEN,
	CLOSE,
	WRITE,
	PWRITE,
	READ,
	PREAD,
	SEEK,
	STAT,
	FSYNC,
	FDATASYNC,
	TRUNCATE,
	LOCK,
	UNLOCK,
	RENAME,
	UNLINK,
	STAT_PATH,
	SPIN,
	SLEEP,
	FORK,
	THREAD,
	EXEC,
	WAIT,
	KINDS
};

struct head {
	uint64_t magic, nodes, descriptions, operations, buffer_bytes, paths_at;
};
struct node {
	uint64_t first, count;
};
struct operation {
	uint32_t kind, description;
	int64_t a, b;
};
struct tally {
	_Atomic uint64_t done, failed, count[KINDS], ns[KINDS];
};
_Static_assert(sizeof(struct head) == 48 && sizeof(struct node) == 16 && sizeof(struct operation) == 24,
               "as in twin.py");

static const struct head *head;
static const struct node *nodes;
static const struct operation *operations;
static const char *paths;
static struct tally *tally;
static char **arguments;
static double think;
static int timed;
static int *fds;
static pid_t *pids;
static pthread_t *threads;
static char *buffer;

static void fail(const char *what)
{
	fprintf(stderr, "lab-replay: %s: %s\n", what, strerror(errno));
	_exit(2);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *map_file(const char *path, int how, size_t *size)
{
	int fd = open(path, (how & PROT_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC);
	struct stat st;
	void *at;

	if (fd < 0 || fstat(fd, &st) != 0)
		fail(path);
	at = mmap(NULL, (size_t)st.st_size, how, how & PROT_WRITE ? MAP_SHARED : MAP_PRIVATE, fd, 0);
	if (at == MAP_FAILED)
		fail(path);
	close(fd);
	*size = (size_t)st.st_size;
	return at;
}

static void *table(size_t bytes)
{
	void *at = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("memory");
	return at;
}

/* By turns of a loop and not by the clock: on a busy machine a program's own work takes longer, too. */
static void spin(int64_t ns)
{
	uint64_t turns = (uint64_t)((double)ns * think);

	for (uint64_t i = 0; i < turns; i++)
		__asm__ volatile("" : "+r"(i));
}

static void nap(int64_t ns)
{
	struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

	while (nanosleep(&t, &t) != 0 && errno == EINTR)
		;
}

static int lock_file(int fd, short type)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET};

	return fcntl(fd, F_SETLK, &lock) == 0 || errno == EAGAIN || errno == EACCES;
}

static void run(uint64_t index);

static void *thread_main(void *index)
{
	run((uint64_t)(uintptr_t)index);
	return NULL;
}

static void exec_node(uint64_t index)
{
	char number[32];
	char *argv[] = {arguments[0], arguments[1],           arguments[2], arguments[3],
	                number,       timed ? "timed" : NULL, NULL};

	snprintf(number, sizeof number, "%llu", (unsigned long long)index);
	execv("/proc/self/exe", argv);
	fail("exec");
}

static int start(const struct operation *op)
{
	uint64_t child = (uint64_t)op->a;

	if (op->kind == EXEC)
		exec_node(child);
	if (op->kind == THREAD)
		return pthread_create(&threads[child], NULL, thread_main, (void *)(uintptr_t)child) == 0;
	pids[child] = fork();
	if (pids[child] == 0) {
		run(child);
		_exit(0);
	}
	return pids[child] > 0;
}

/* Whether the call did what the recorded one did. */
static int perform(const struct operation *op)
{
	int fd = fds[op->description];
	struct stat st;

	switch ((enum kind)op->kind) {
	case OPEN:
		fds[op->description] = open(paths + op->a, (int)op->b, 0666);
		return fds[op->description] >= 0;
	case CLOSE: fds[op->description] = -1; return close(fd) == 0;
	case WRITE: return write(fd, buffer, (size_t)op->a) == op->a;
	case PWRITE: return pwrite(fd, buffer, (size_t)op->a, op->b) == op->a;
	case READ: return read(fd, buffer, (size_t)op->a) >= 0;
	case PREAD: return pread(fd, buffer, (size_t)op->a, op->b) >= 0;
	case SEEK: return lseek(fd, op->a, SEEK_SET) == op->a;
	case STAT: return fstat(fd, &st) == 0;
	case FSYNC: return fsync(fd) == 0;
	case FDATASYNC: return fdatasync(fd) == 0;
	case TRUNCATE: return ftruncate(fd, op->a) == 0;
	case LOCK:
		return op->a ? flock(fd, LOCK_EX | LOCK_NB) == 0 || errno == EWOULDBLOCK
		             : lock_file(fd, F_WRLCK);
	case UNLOCK: return op->a ? flock(fd, LOCK_UN) == 0 : lock_file(fd, F_UNLCK);
	case RENAME: return rename(paths + op->a, paths + op->b) == 0;
	case UNLINK: return unlink(paths + op->a) == 0;
	case STAT_PATH: return stat(paths + op->a, &st) == 0;
	case FORK:
	case THREAD:
	case EXEC: return start(op);
	case WAIT: return pids[op->a] <= 0 || waitpid(pids[op->a], NULL, 0) >= 0;
	case SPIN:
	case SLEEP:
	case KINDS: break;
	}
	return 0;
}

static void run(uint64_t index)
{
	const struct operation *op = operations + nodes[index].first, *end = op + nodes[index].count;
	uint64_t done = 0, begin;

	for (; op < end; op++) {
		if (op->kind == SPIN) {
			spin(op->a);
			continue;
		}
		if (op->kind == SLEEP) {
			nap(op->a);
			continue;
		}
		begin = timed ? now_ns() : 0;
		if (!perform(op))
			atomic_fetch_add(&tally->failed, 1);
		if (timed) {
			atomic_fetch_add(&tally->ns[op->kind], now_ns() - begin);
			atomic_fetch_add(&tally->count[op->kind], 1);
		}
		done++;
	}
	for (op = operations + nodes[index].first; op < end; op++)
		if (op->kind == THREAD && threads[op->a])
			pthread_join(threads[op->a], NULL);
	atomic_fetch_add(&tally->done, done);
}

int main(int argc, char **argv)
{
	size_t size, tally_size;
	const char *script;
	uint64_t node;

	if (argc < 5)
		return 2;
	arguments = argv;
	think = strtod(argv[3], NULL);
	node = strtoull(argv[4], NULL, 10);
	timed = argc > 5;
	script = map_file(argv[1], PROT_READ, &size);
	tally = map_file(argv[2], PROT_READ | PROT_WRITE, &tally_size);
	head = (const struct head *)(const void *)script;
	if (size < sizeof *head || head->magic != MAGIC || head->paths_at > size ||
	    tally_size < sizeof *tally || node >= head->nodes)
		fail("not a script of this program");
	nodes = (const struct node *)(const void *)(script + sizeof *head);
	operations = (const struct operation *)(const void *)(nodes + head->nodes);
	paths = script + head->paths_at;
	fds = table((head->descriptions + 1) * sizeof *fds);
	pids = table(head->nodes * sizeof *pids);
	threads = table(head->nodes * sizeof *threads);
	buffer = table(head->buffer_bytes);
	run(node);
	return 0;
}
