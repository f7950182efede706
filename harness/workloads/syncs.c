// SPDX-License-Identifier: Apache-2.0
/*
 * lab-syncs: what a synced write costs.  Threads, each with a file dataN of its own, for some seconds:
 *
 *   --mode append   append a record, fsync
 *   --mode floor    overwrite a place that holds written zeros, by O_DIRECT | O_DSYNC: one device write,
 *                   nothing of the file system, which no durable write can undercut
 *
 * A time of warming comes first and is not counted.  Each thread stops when the time is over, or when
 * any has written --records: without a sync in earnest memory would be full in seconds.
 *
 * Prints one JSON object: syncs, seconds, and of the single latencies mean, p50 and p90 in microseconds
 * (a latency: from before the write until the sync has returned).  At the end the progress file is made
 * with the records of each thread, for lab-verify.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLOOR_RECORDS = 4096 };

struct options {
	const char *dir, *progress;
	uint64_t threads, records, record_bytes, warmup_ms, ms;
	bool floor;
};

struct shared {
	const struct options *options;
	pthread_barrier_t ready, warm;
	_Atomic bool warm_over, over;
};

struct worker {
	struct shared *shared;
	pthread_t id;
	uint64_t thread, done, warm; /* records written, and how many of them were not counted */
	uint64_t begin_ns, end_ns;
	uint32_t *latency_ns; /* of record warm + i */
	char *record;
	int fd;
};

/* Real zeros, not a hole and not merely allocated: overwriting them changes nothing of the file system. */
static void fill_with_zeros(const char *path, uint64_t bytes)
{
	enum { CHUNK = 1 << 20 };
	char *zeros = lab_buffer(CHUNK);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		lab_die("%s", path);
	for (uint64_t at = 0; at < bytes;) {
		uint64_t left = bytes - at;
		ssize_t n = write(fd, zeros, left < CHUNK ? left : CHUNK);

		if (n <= 0)
			lab_die("%s: write", path);
		at += (uint64_t)n;
	}
	if (fsync(fd) || close(fd))
		lab_die("%s: fsync", path);
	free(zeros);
}

static void open_file(struct worker *w)
{
	const struct options *options = w->shared->options;
	char path[4096];

	lab_path(path, sizeof(path), options->dir, "data", w->thread);
	if (options->floor)
		fill_with_zeros(path, FLOOR_RECORDS * options->record_bytes);
	w->fd = open(path,
	             options->floor ? O_WRONLY | O_DIRECT | O_DSYNC | O_CLOEXEC
	                            : O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
	             0644);
	if (w->fd < 0)
		lab_die("%s%s", path, options->floor ? ": O_DIRECT" : "");
}

/* One record, durable when this returns; how long that took. */
static uint64_t put(struct worker *w)
{
	const struct options *options = w->shared->options;
	size_t bytes = options->record_bytes;
	uint64_t number = options->floor ? w->done % FLOOR_RECORDS : w->done;
	ssize_t n;

	lab_record_fill(w->record, bytes, w->thread, number);
	uint64_t start = lab_now_ns();

	if (options->floor) {
		n = pwrite(w->fd, w->record, bytes, (off_t)(number * bytes));
	} else {
		n = write(w->fd, w->record, bytes);
		if (fsync(w->fd))
			lab_die("data%llu: fsync", (unsigned long long)w->thread);
	}
	uint64_t took = lab_now_ns() - start;

	if (n != (ssize_t)bytes)
		lab_die("data%llu: write", (unsigned long long)w->thread);
	w->done++;
	return took;
}

/* Put records until the time or the room is over, for this thread or for another. */
static void put_many(struct worker *w, uint64_t ms, uint64_t most, _Atomic bool *over)
{
	uint64_t deadline = lab_now_ns() + ms * 1000000;

	while (!atomic_load_explicit(over, memory_order_relaxed)) {
		uint64_t took = put(w);

		if (w->latency_ns && w->done > w->warm)
			w->latency_ns[w->done - w->warm - 1] =
				took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
		if (w->done >= most || lab_now_ns() >= deadline)
			atomic_store(over, true);
	}
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct shared *shared = w->shared;
	const struct options *options = shared->options;

	w->record = lab_buffer(options->record_bytes);
	open_file(w);
	pthread_barrier_wait(&shared->ready);
	put_many(w, options->warmup_ms, options->records / 4 + 1, &shared->warm_over);
	w->warm = w->done;
	w->latency_ns = calloc(options->records + 1, sizeof(*w->latency_ns));
	if (!w->latency_ns)
		lab_die("memory");
	pthread_barrier_wait(&shared->warm);
	w->begin_ns = lab_now_ns();
	put_many(w, options->ms, w->warm + options->records, &shared->over);
	w->end_ns = lab_now_ns();
	if (close(w->fd))
		lab_die("data%llu: close", (unsigned long long)w->thread);
	free(w->record);
	return NULL;
}

static int ascending(const void *a, const void *b)
{
	uint32_t one = *(const uint32_t *)a, other = *(const uint32_t *)b;

	return (one > other) - (one < other);
}

static void report(const struct options *options, struct worker *workers)
{
	uint64_t syncs = 0, all = 0, begin = UINT64_MAX, end = 0;
	double sum = 0;

	for (uint64_t i = 0; i < options->threads; i++)
		syncs += workers[i].done - workers[i].warm;
	uint32_t *sorted = calloc(syncs, sizeof(*sorted));

	if (!sorted)
		lab_die("memory");
	for (uint64_t i = 0, at = 0; i < options->threads; i++) {
		const struct worker *w = &workers[i];

		for (uint64_t k = 0; k < w->done - w->warm; k++)
			sum += sorted[at++] = w->latency_ns[k];
		begin = w->begin_ns < begin ? w->begin_ns : begin;
		end = w->end_ns > end ? w->end_ns : end;
		all += w->done;
	}
	qsort(sorted, syncs, sizeof(*sorted), ascending);
	printf("{\"syncs\": %llu, \"syncs_with_warmup\": %llu, \"seconds\": %.6f, \"mean_us\": %.3f, "
	       "\"p50_us\": %.3f, \"p90_us\": %.3f}\n",
	       (unsigned long long)syncs, (unsigned long long)all, (double)(end - begin) / 1e9,
	       sum / (double)syncs / 1e3, sorted[syncs / 2] / 1e3, sorted[syncs * 9 / 10] / 1e3);
	free(sorted);
}

/* What lab-verify is to find. */
static void leave_progress(const struct options *options, const struct worker *workers)
{
	struct lab_progress *progress = lab_progress_create(options->progress, options->threads,
	                                                    2 * options->records, options->record_bytes);

	for (uint64_t i = 0; i < options->threads; i++) {
		uint64_t done = workers[i].done;

		if (options->floor && done > FLOOR_RECORDS)
			done = FLOOR_RECORDS;
		atomic_store(&progress->slot[i].acked, done);
	}
	atomic_store(&progress->header.phase, LAB_DONE);
}

static void parse(int argc, char **argv, struct options *options)
{
	static const struct option longs[] = {
		{"dir", required_argument, NULL, 'd'},
		{"progress", required_argument, NULL, 'p'},
		{"mode", required_argument, NULL, 'm'},
		{"threads", required_argument, NULL, 't'},
		{"records", required_argument, NULL, 'r'},
		{"record-bytes", required_argument, NULL, 'b'},
		{"warmup-ms", required_argument, NULL, 'w'},
		{"ms", required_argument, NULL, 's'},
		{0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case 'd': options->dir = optarg; break;
		case 'p': options->progress = optarg; break;
		case 'm':
			options->floor = !strcmp(optarg, "floor");
			if (!options->floor && strcmp(optarg, "append"))
				lab_usage("--mode: '%s' is neither append nor floor", optarg);
			break;
		case 't': options->threads = lab_number("threads", optarg, 1, LAB_THREADS_MAX); break;
		case 'r': options->records = lab_number("records", optarg, 1, 1 << 24); break;
		case 'b': options->record_bytes = lab_number("record-bytes", optarg, 8, 1 << 20); break;
		case 'w': options->warmup_ms = lab_number("warmup-ms", optarg, 0, 3600000); break;
		case 's': options->ms = lab_number("ms", optarg, 1, 3600000); break;
		default: exit(LAB_EXIT_USAGE);
		}
	}
	if (!options->dir || !options->progress)
		lab_usage("--dir and --progress must be given");
}

int main(int argc, char **argv)
{
	struct options options = {
		.threads = 1, .records = 65536, .record_bytes = 4096, .warmup_ms = 1000, .ms = 3000};

	parse(argc, argv, &options);
	struct shared shared = {.options = &options};
	struct worker *workers = calloc(options.threads, sizeof(*workers));

	if (!workers)
		lab_die("memory");
	pthread_barrier_init(&shared.ready, NULL, (unsigned)options.threads);
	pthread_barrier_init(&shared.warm, NULL, (unsigned)options.threads);
	for (uint64_t i = 0; i < options.threads; i++) {
		workers[i].shared = &shared;
		workers[i].thread = i;
		errno = pthread_create(&workers[i].id, NULL, work, &workers[i]);
		if (errno)
			lab_die("thread");
	}
	for (uint64_t i = 0; i < options.threads; i++)
		pthread_join(workers[i].id, NULL);
	report(&options, workers);
	leave_progress(&options, workers);
	return 0;
}
