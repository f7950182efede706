// SPDX-License-Identifier: Apache-2.0
/*
 * Threads are cancelled in the middle of their calls, others go on with the same file.
 *
 *   cancelled PATH deferred|anywhere ROUNDS
 *
 * Each round makes the file anew.  A thread appends by a description of its own, or a duplicate, three times
 * as much.  One thread after another writes, syncs or opens and closes until it is cancelled after a number
 * of calls that grows from 1: so it happens to files that are unresolved, passive, attached, and detached by
 * looks.  Each one has a cleanup handler that appends a record, too.  The file must have each record of which
 * a call has returned, once and whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RECORD = 100, THREADS = 48, OTHER = THREADS, CLEANUP = THREADS + 1, ALL = THREADS + 2 };

static const char *path;
static int fd, other_fd;
static bool anywhere;
static atomic_int calls, all_calls, sure[ALL], cleaned;
static atomic_bool enough;

static void stop(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	_exit(1);
}

static ssize_t put(int to, int who, int number, bool vector)
{
	char record[RECORD + 1];
	struct iovec iov[2] = {{record, 30}, {record + 30, RECORD - 30}};
	int n = snprintf(record, sizeof record, "%02d %08d ", who, number);

	memset(record + n, 'a' + number % 26, (size_t)(RECORD - n - 1));
	record[RECORD - 1] = '\n';
	return vector ? writev(to, iov, 2) : write(to, record, RECORD);
}

static void clean(void *arg)
{
	int n = atomic_load(&sure[CLEANUP]);

	(void)arg;
	if (put(fd, CLEANUP, n, false) != RECORD)
		stop("write in the cleanup handler");
	atomic_store(&sure[CLEANUP], n + 1);
	atomic_fetch_add(&cleaned, 1);
}

static void *call_for_ever(void *arg)
{
	int who = (int)(long)arg;
	struct stat st;

	pthread_cleanup_push(clean, NULL);
	if (anywhere)
		pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (int i = 0;; i++) {
		switch (anywhere ? 0 : who % 4) {
		case 1:
			if (fdatasync(fd))
				stop("sync");
			break;
		case 2: {
			/* natively the call acts when it does not return, too; so the number may be lost */
			int opened = open(path, O_WRONLY | O_APPEND);

			if (opened < 0 || close(opened))
				stop("open");
			break;
		}
		case 3:
			if (fstat(fd, &st))
				stop("stat");
			break;
		}
		if (put(fd, who, i, who % 3 == 1) != RECORD)
			stop("write");
		atomic_store(&sure[who], i + 1);
		atomic_fetch_add(&calls, 1);
		atomic_fetch_add(&all_calls, 1);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static void *append(void *arg)
{
	(void)arg;
	for (int i = 0; !atomic_load(&enough); i++) {
		struct stat st;

		while (i > 3 * atomic_load(&all_calls) && !atomic_load(&enough))
			sched_yield(); /* the file's lock in the kernel is not fair */
		if (put(other_fd, OTHER, i, false) != RECORD || (i % 7 == 0 && fstat(other_fd, &st)))
			stop("write of the other thread");
		atomic_store(&sure[OTHER], i + 1);
	}
	return NULL;
}

static void check(void)
{
	int following[ALL] = {0}, in = open(path, O_RDONLY);
	char record[RECORD];
	ssize_t n;

	while ((n = read(in, record, RECORD)) == RECORD) {
		int who = atoi(record), number = atoi(record + 3);

		if (who < 0 || who >= ALL || number != following[who] || record[RECORD - 1] != '\n' ||
		    record[RECORD - 2] != 'a' + number % 26) {
			fprintf(stderr, "%.20s where %d is to come\n", record,
			        who < ALL ? following[who] : -1);
			_exit(2);
		}
		following[who]++;
	}
	close(in);
	for (int i = 0; i < ALL; i++)
		if (n != 0 || following[i] < sure[i] || following[i] > sure[i] + (i < THREADS)) {
			fprintf(stderr, "%d has %d records, not %d; rest %ld\n", i, following[i], sure[i],
			        (long)n);
			_exit(3);
		}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 4;
	path = argv[1];
	anywhere = strcmp(argv[2], "anywhere") == 0;
	for (int round = 0; round < atoi(argv[3]); round++) {
		pthread_t other;

		fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
		other_fd = round % 2 ? open(path, O_RDWR | O_APPEND) : dup(fd);
		memset(sure, 0, sizeof sure);
		cleaned = all_calls = 0;
		enough = false;
		if (fd < 0 || other_fd < 0 || pthread_create(&other, NULL, append, NULL))
			stop(path);
		for (long i = 0; i < THREADS; i++) {
			pthread_t thread;
			void *result;
			int most = 1 + (int)(i * i / 8);

			atomic_store(&calls, 0);
			if (pthread_create(&thread, NULL, call_for_ever, (void *)i))
				stop("thread");
			while (atomic_load(&calls) < most)
				sched_yield();
			pthread_cancel(thread);
			if (pthread_join(thread, &result) || result != PTHREAD_CANCELED || cleaned != i + 1)
				stop("it was not cancelled");
		}
		atomic_store(&enough, true);
		pthread_join(other, NULL);
		if (fdatasync(fd) || close(other_fd) || close(fd))
			stop("close");
		check();
	}
	return 0;
}
