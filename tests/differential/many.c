// SPDX-License-Identifier: Apache-2.0
/*
 * many: other threads, signal handlers, and several writers at once.  What they do at the same time must lead
 * to the same bytes in every order, or be judged here.
 */
#include "machine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WRITERS_MAX = 4, RECORD_MIN = 16, RECORD_MAX = 4096 };

/* ---- one operation in another thread ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread[THREADS];
	bool running[THREADS];
	const struct op *due[THREADS];
} threads = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* In a child there are none. */
void threads_forget(void)
{
	memset(&threads, 0, sizeof threads);
	pthread_mutex_init(&threads.lock, NULL);
	pthread_cond_init(&threads.changed, NULL);
}

static void *work(void *which)
{
	long i = (long)which;

	for (;;) {
		const struct op *op;

		pthread_mutex_lock(&threads.lock);
		while (!threads.due[i])
			pthread_cond_wait(&threads.changed, &threads.lock);
		op = threads.due[i];
		pthread_mutex_unlock(&threads.lock);
		fresh_errno();
		kind_of(op)->run(op->a);
		pthread_mutex_lock(&threads.lock);
		threads.due[i] = NULL;
		pthread_cond_broadcast(&threads.changed);
		pthread_mutex_unlock(&threads.lock);
	}
	return NULL;
}

void threads_run(const struct op *op)
{
	long i = op->thread;

	if (!threads.running[i]) {
		if (pthread_create(&threads.thread[i], NULL, work, (void *)i) != 0)
			unexpected("no thread");
		threads.running[i] = true;
	}
	pthread_mutex_lock(&threads.lock);
	threads.due[i] = op;
	pthread_cond_broadcast(&threads.changed);
	while (threads.due[i])
		pthread_cond_wait(&threads.changed, &threads.lock);
	pthread_mutex_unlock(&threads.lock);
}

/* ---- signal handlers that write ---- */

static struct {
	int fd;
	size_t size;
	uint64_t seed;
	off_t offset; /* -1: at the position */
	volatile sig_atomic_t count, good;
} handler;

static void on_signal(int number)
{
	int before = errno;
	unsigned char record[1024];
	ssize_t r;

	(void)number;
	fill(record, handler.size, handler.seed + (uint64_t)handler.count);
	if (handler.offset < 0)
		r = write(handler.fd, record, handler.size);
	else
		r = pwrite(handler.fd, record, handler.size,
		           handler.offset + (off_t)handler.count * (off_t)handler.size);
	handler.good += r == (ssize_t)handler.size;
	handler.count++;
	errno = before;
}

static void arm(int fd, long size, long seed, off_t offset)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

	handler.fd = fd;
	handler.size = size < 1 ? 1 : size > 1024 ? 1024 : (size_t)size;
	handler.seed = (uint64_t)seed;
	handler.offset = offset;
	handler.count = handler.good = 0;
	sigaction(SIGUSR1, &action, NULL);
}

/* slot size seed */
void op_sigwrite(const long *a)
{
	arm(fd_of(a[0]), a[1], a[2], -1);
	fresh_errno();
	pthread_kill(pthread_self(), SIGUSR1);
	say(" %d %d", (int)handler.good, errno);
}

struct sender {
	pthread_t to;
	int count;
};

static void *send_signals(void *what)
{
	const struct sender *s = what;

	for (int i = 0; i < s->count; i++) {
		pthread_kill(s->to, SIGUSR1);
		while (handler.count == i)
			sched_yield();
	}
	return NULL;
}

static bool appends(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & (O_APPEND | O_DIRECT));
}

/* slot size count signals seed: the handler writes far away in the same file, whenever it is called */
void op_storm(const long *a)
{
	struct sender sender = {.to = pthread_self(), .count = (int)a[3]};
	size_t n = a[1] < 1 ? 1 : a[1] > 8192 ? 8192 : (size_t)a[1];
	int fd = fd_of(a[0]);
	pthread_t thread;
	long total = 0;

	if (fd < 0 || appends(fd) || lseek(fd, 0, SEEK_CUR) > 1 << 20) {
		say(" no");
		return;
	}
	arm(fd, a[1] % 700, a[4], 3 << 20);
	if (pthread_create(&thread, NULL, send_signals, &sender) != 0)
		unexpected("no thread");
	for (long i = 0; i < a[2]; i++) {
		fill(buffer_here(), n, (uint64_t)(a[4] - i));
		total += write(fd, buffer_here(), n) == (ssize_t)n;
	}
	while (handler.count < sender.count)
		sched_yield();
	pthread_join(thread, NULL);
	one_limit_signal(); /* those of handlers that interrupt each other may fall together */
	say(" %ld %d", total, (int)handler.good);
}

/* ---- at once ---- */

struct runner {
	int fd;
	unsigned char *buffer;
	size_t size;
	long first, step, count;
	long seed;
	long good;
};

static void *run_stripe(void *what)
{
	struct runner *r = what;

	for (long i = r->first; i < r->count; i += r->step) {
		fill(r->buffer, r->size, (uint64_t)(r->seed + i));
		r->good += pwrite(r->fd, r->buffer, r->size, i * (off_t)r->size) == (ssize_t)r->size;
	}
	return NULL;
}

/* slot size count writers seed (negative writers: children): each writes its own records */
void op_race(const long *a)
{
	static unsigned char buffers[WRITERS_MAX][RECORD_MAX];
	struct runner r[WRITERS_MAX];
	pthread_t thread[WRITERS_MAX];
	pid_t child[WRITERS_MAX];
	long n = labs(a[3]) < 1 ? 1 : labs(a[3]) > WRITERS_MAX ? WRITERS_MAX : labs(a[3]);
	size_t size = a[1] < 1 ? 1 : a[1] > RECORD_MAX ? RECORD_MAX : (size_t)a[1];
	int fd = fd_of(a[0]), status;
	long good = 0;

	if (fd < 0 || appends(fd)) {
		say(" no");
		return;
	}
	for (long i = 0; i < n; i++) {
		r[i] = (struct runner){fd, buffers[i], size, i, n, a[2], a[4], 0};
		if (a[3] > 0) {
			if (pthread_create(&thread[i], NULL, run_stripe, &r[i]) != 0)
				unexpected("no thread");
			continue;
		}
		child[i] = fork();
		if (child[i] == 0) {
			run_stripe(&r[i]);
			_exit((int)r[i].good & 127);
		}
	}
	for (long i = 0; i < n; i++) {
		if (a[3] > 0) {
			pthread_join(thread[i], NULL);
			good += r[i].good;
		} else {
			good += waitpid(child[i], &status, 0) == child[i] && WIFEXITED(status)
			                ? WEXITSTATUS(status)
			                : -1000;
		}
	}
	say(" %ld", good);
}

/* Records of a writer: number, place in its order, then a pattern of both. */
static void record(unsigned char *to, size_t size, uint32_t writer, uint32_t turn)
{
	fill(to, size, ((uint64_t)writer << 32 | turn) + 99);
	memcpy(to, &writer, sizeof writer);
	memcpy(to + sizeof writer, &turn, sizeof turn);
}

static void *run_records(void *what)
{
	struct runner *r = what;

	for (long i = 0; i < r->count; i++) {
		record(r->buffer, r->size, (uint32_t)r->first, (uint32_t)i);
		r->good += write(r->fd, r->buffer, r->size) == (ssize_t)r->size;
	}
	return NULL;
}

/* Every record whole, once, and in the order of its writer. */
static void judge(const char *path, size_t size, long writers, long count)
{
	uint32_t next[WRITERS_MAX] = {0};
	unsigned char seen[RECORD_MAX], want[RECORD_MAX];
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	long n = 0;

	for (; read(fd, seen, size) == (ssize_t)size; n++) {
		uint32_t writer;

		memcpy(&writer, seen, sizeof writer);
		if (writer >= (uint32_t)writers) {
			say(" record %ld: by nobody", n);
			break;
		}
		record(want, size, writer, next[writer]);
		if (memcmp(seen, want, size) != 0) {
			say(" record %ld: torn, or out of the order of writer %u", n, writer);
			break;
		}
		next[writer]++;
	}
	say(" %ld of %ld %ld", n, writers * count, (long)lseek(fd, 0, SEEK_END) - n * (long)size);
	close(fd);
}

static bool limited(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != limit.rlim_max;
}

/*
 * how size count writers: several append to one file at the same time.  how: 0 threads, 1 children by an
 * inherited descriptor, 2 children by descriptors of their own; + 4: without O_APPEND, by the shared
 * position.
 */
void op_writers(const long *a)
{
	static unsigned char buffers[WRITERS_MAX][RECORD_MAX];
	const char *path = place_of("all");
	struct runner r[WRITERS_MAX];
	pthread_t thread[WRITERS_MAX];
	pid_t child[WRITERS_MAX];
	long how = a[0] & 3, n = a[3] < 1 ? 1 : a[3] > WRITERS_MAX ? WRITERS_MAX : a[3];
	size_t size = a[1] < RECORD_MIN ? RECORD_MIN : a[1] > RECORD_MAX ? RECORD_MAX : (size_t)a[1];
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC | (how == 2 || !(a[0] & 4) ? O_APPEND : 0);
	int fd, status, bad = 0;

	if (limited()) { /* who is cut off would depend on the order */
		say(" no");
		return;
	}
	fd = open(path, flags, 0644);
	for (long i = 0; i < n; i++) {
		r[i] = (struct runner){fd, buffers[i], size, i, 0, a[2], 0, 0};
		if (how == 0) {
			if (pthread_create(&thread[i], NULL, run_records, &r[i]) != 0)
				unexpected("no thread");
			continue;
		}
		child[i] = fork();
		if (child[i] == 0) {
			if (how >= 2)
				r[i].fd = open(path, flags, 0644);
			run_records(&r[i]);
			_exit(r[i].good != r[i].count);
		}
	}
	for (long i = 0; i < n; i++) {
		if (how == 0) {
			pthread_join(thread[i], NULL);
			bad += r[i].good != r[i].count;
		} else {
			bad += waitpid(child[i], &status, 0) != child[i] || status != 0;
		}
	}
	say(" %d bad", bad);
	say(" close %d", close(fd));
	judge(path, size, n, a[2]);
	say(" unlink %d", unlink(path));
}
