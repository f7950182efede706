// SPDX-License-Identifier: Apache-2.0
/*
 * lab-writer: N threads × R records × B bytes, one file dataN per thread, by the method asked for.
 * The clock starts when every thread has opened its file and is waiting; two times are reported, one
 * to the last write, one to the last fdatasync (--sync).  Prints one JSON object.  The main thread
 * only watches memory meanwhile.
 *
 * lab-writer --recover: bring the remains of a killed `--method batch` run into the files.
 */
#include "method.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STACK_BYTES = 256 << 10, WATCH_INTERVAL_NS = 20 * 1000 * 1000 };

struct memory { /* kB, from /proc/self/status */
	uint64_t high_water, anon, file, shmem;
};

struct worker {
	struct job job;
	const struct method *method;
	struct lab_progress *progress;
	pthread_barrier_t *ready, *go;
	_Atomic uint32_t *running;
	uint64_t written_ns, synced_ns;
	pthread_t id;
};

static void usage(FILE *to)
{
	fputs("usage: lab-writer --dir DIR [--method write|fwrite|mmap|batch|anon] [--threads N] [--records N]\n"
	      "                  [--record-bytes N] [--window BYTES] [--append] [--direct] [--prealloc]\n"
	      "                  [--verbatim] [--sync] [--pause-us N] [--progress FILE]\n"
	      "                  [--recover]\n",
	      to);
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct job *job = &worker->job;
	const struct options *options = job->options;
	_Atomic uint64_t *acked = worker->progress ? &worker->progress->slot[job->thread].acked : NULL;

	job->record = lab_buffer(options->record_bytes);
	worker->method->open(job);
	pthread_barrier_wait(worker->ready);
	pthread_barrier_wait(worker->go);
	for (uint64_t record = 0; record < options->records; record++) {
		lab_record_fill(job->record, options->record_bytes, job->thread, record);
		worker->method->put(job);
		if (acked)
			atomic_store_explicit(acked, record + 1, memory_order_release);
		if (options->pause_us)
			usleep((useconds_t)options->pause_us);
	}
	worker->method->finish(job);
	worker->written_ns = lab_now_ns();
	if (options->sync && fdatasync(job->fd))
		lab_die("fdatasync of data%llu", (unsigned long long)job->thread);
	worker->synced_ns = lab_now_ns();
	atomic_fetch_sub_explicit(worker->running, 1, memory_order_release);
	return NULL;
}

static uint64_t status_field(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static struct memory memory_now(int status_fd)
{
	char text[4096];
	ssize_t n = status_fd < 0 ? 0 : pread(status_fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return (struct memory){
		status_field(text, "VmHWM:"),
		status_field(text, "RssAnon:"),
		status_field(text, "RssFile:"),
		status_field(text, "RssShmem:"),
	};
}

static void memory_raise(struct memory *peak, struct memory now)
{
	peak->high_water = now.high_water > peak->high_water ? now.high_water : peak->high_water;
	peak->anon = now.anon > peak->anon ? now.anon : peak->anon;
	peak->file = now.file > peak->file ? now.file : peak->file;
	peak->shmem = now.shmem > peak->shmem ? now.shmem : peak->shmem;
}

static void watch(_Atomic uint32_t *running, int status_fd, struct memory *peak)
{
	struct timespec pause = {0, WATCH_INTERVAL_NS};

	while (atomic_load_explicit(running, memory_order_acquire)) {
		memory_raise(peak, memory_now(status_fd));
		nanosleep(&pause, NULL);
	}
	memory_raise(peak, memory_now(status_fd));
}

static void start(struct worker *workers, const struct options *options)
{
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	for (uint64_t i = 0; i < options->threads; i++) {
		errno = pthread_create(&workers[i].id, &attr, work, &workers[i]);
		if (errno)
			lab_die("thread %llu", (unsigned long long)i);
	}
	pthread_attr_destroy(&attr);
}

static double seconds(uint64_t from_ns, uint64_t to_ns) { return (double)(to_ns - from_ns) / 1e9; }

static void report(const struct options *options, const uint64_t at[5], struct memory base,
                   struct memory peak)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	printf("{\"bytes\": %llu, \"seconds_prepare\": %.6f, \"seconds\": %.6f, \"seconds_with_sync\": %.6f, "
	       "\"seconds_close\": %.6f, ",
	       (unsigned long long)(options->threads * options->records * options->record_bytes),
	       seconds(at[0], at[1]), seconds(at[1], at[2]), seconds(at[1], at[3]), seconds(at[3], at[4]));
	printf("\"threads\": %llu, \"records\": %llu, \"record_bytes\": %llu, ",
	       (unsigned long long)options->threads, (unsigned long long)options->records,
	       (unsigned long long)options->record_bytes);
	printf("\"vm_hwm_kb\": %llu, ", (unsigned long long)peak.high_water);
	printf("\"rss_anon_base_kb\": %llu, \"rss_anon_peak_kb\": %llu, ", (unsigned long long)base.anon,
	       (unsigned long long)peak.anon);
	printf("\"rss_file_base_kb\": %llu, \"rss_file_peak_kb\": %llu, ", (unsigned long long)base.file,
	       (unsigned long long)peak.file);
	printf("\"rss_shmem_base_kb\": %llu, \"rss_shmem_peak_kb\": %llu, ", (unsigned long long)base.shmem,
	       (unsigned long long)peak.shmem);
	printf("\"user_seconds\": %.6f, \"system_seconds\": %.6f, \"switches\": %ld, "
	       "\"minor_faults\": %ld}\n",
	       (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
	       (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6,
	       usage.ru_nvcsw + usage.ru_nivcsw, usage.ru_minflt);
}

static void run(const struct options *options, const struct method *method)
{
	struct worker *workers = calloc(options->threads, sizeof(*workers));
	int status_fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
	_Atomic uint32_t running = (uint32_t)options->threads;
	struct lab_progress *progress = NULL;
	pthread_barrier_t ready, go;
	uint64_t at[5] = {lab_now_ns()};

	if (!workers)
		lab_die("memory for %llu threads", (unsigned long long)options->threads);
	if (options->progress)
		progress = lab_progress_create(options->progress, options->threads, options->records,
		                               options->record_bytes);
	pthread_barrier_init(&ready, NULL, (unsigned)options->threads + 1);
	pthread_barrier_init(&go, NULL, (unsigned)options->threads + 1);
	for (uint64_t i = 0; i < options->threads; i++)
		workers[i] = (struct worker){.job = {.options = options, .thread = i, .fd = -1},
		                             .method = method,
		                             .progress = progress,
		                             .ready = &ready,
		                             .go = &go,
		                             .running = &running};
	start(workers, options);
	pthread_barrier_wait(&ready);
	struct memory base = memory_now(status_fd);
	struct memory peak = base;

	at[1] = lab_now_ns();
	if (progress) {
		atomic_store(&progress->header.start_ns, at[1]);
		atomic_store(&progress->header.phase, LAB_WRITING);
	}
	pthread_barrier_wait(&go);
	watch(&running, status_fd, &peak);
	for (uint64_t i = 0; i < options->threads; i++) {
		pthread_join(workers[i].id, NULL);
		at[2] = workers[i].written_ns > at[2] ? workers[i].written_ns : at[2];
		at[3] = workers[i].synced_ns > at[3] ? workers[i].synced_ns : at[3];
	}
	if (progress) {
		atomic_store(&progress->header.end_ns, at[3]);
		atomic_store(&progress->header.phase, LAB_SYNCED);
	}
	uint64_t before_close = lab_now_ns();

	for (uint64_t i = 0; i < options->threads; i++)
		if (close(workers[i].job.fd))
			lab_die("close of data%llu", (unsigned long long)i);
	at[4] = at[3] + (lab_now_ns() - before_close);
	if (progress)
		atomic_store(&progress->header.phase, LAB_DONE);
	report(options, at, base, peak);
	free(workers);
}

static void check(const struct options *options, const struct method *method)
{
	bool windowed = strcmp(method->name, "write") && strcmp(method->name, "fwrite");

	if (!options->dir)
		lab_usage("--dir is missing");
	if (windowed && (options->window % LAB_ALIGN || options->window % options->record_bytes))
		lab_usage("--window must be a multiple of %d and of the record size", LAB_ALIGN);
	if (windowed && options->records * options->record_bytes % LAB_ALIGN)
		lab_usage("--method %s needs a file size that is a multiple of %d", method->name, LAB_ALIGN);
	if (windowed && !strcmp(method->name, "mmap") &&
	    options->records * options->record_bytes % options->window)
		lab_usage("--method mmap needs a file size that is a multiple of the window");
	if (!strcmp(method->name, "mmap") && !options->prealloc)
		lab_usage(
			"--method mmap needs --prealloc: a window beyond the end of the file cannot be used");
	if (options->append && options->prealloc)
		lab_usage(
			"--append and --prealloc exclude each other: appending would start after the space");
	if (options->direct && options->record_bytes % 512)
		lab_usage("--direct needs a record size that is a multiple of 512");
}

int main(int argc, char **argv)
{
	enum {
		DIR_ = 1,
		METHOD,
		THREADS,
		RECORDS,
		RECORD_BYTES,
		WINDOW,
		APPEND,
		DIRECT,
		PREALLOC,
		VERBATIM,
		SYNC,
		PAUSE,
		PROGRESS,
		RECOVER,
		HELP
	};
	static const struct option longs[] = {
		{"dir", required_argument, NULL, DIR_},
		{"method", required_argument, NULL, METHOD},
		{"threads", required_argument, NULL, THREADS},
		{"records", required_argument, NULL, RECORDS},
		{"record-bytes", required_argument, NULL, RECORD_BYTES},
		{"window", required_argument, NULL, WINDOW},
		{"append", no_argument, NULL, APPEND},
		{"direct", no_argument, NULL, DIRECT},
		{"prealloc", no_argument, NULL, PREALLOC},
		{"verbatim", no_argument, NULL, VERBATIM},
		{"sync", no_argument, NULL, SYNC},
		{"pause-us", required_argument, NULL, PAUSE},
		{"progress", required_argument, NULL, PROGRESS},
		{"recover", no_argument, NULL, RECOVER},
		{"help", no_argument, NULL, HELP},
		{0},
	};
	struct options options = {.threads = 1, .records = 1024, .record_bytes = 4096, .window = 16384};
	const char *name = "write";
	bool recover = false;
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case DIR_: options.dir = optarg; break;
		case METHOD: name = optarg; break;
		case THREADS: options.threads = lab_number("threads", optarg, 1, LAB_THREADS_MAX); break;
		case RECORDS: options.records = lab_number("records", optarg, 1, UINT64_C(1) << 40); break;
		case RECORD_BYTES:
			options.record_bytes = lab_number("record-bytes", optarg, 8, 1 << 24);
			break;
		case WINDOW: options.window = lab_number("window", optarg, LAB_ALIGN, 1 << 28); break;
		case APPEND: options.append = true; break;
		case DIRECT: options.direct = true; break;
		case PREALLOC: options.prealloc = true; break;
		case VERBATIM: options.verbatim = true; break;
		case SYNC: options.sync = true; break;
		case PAUSE: options.pause_us = lab_number("pause-us", optarg, 0, 999999); break;
		case PROGRESS: options.progress = optarg; break;
		case RECOVER: recover = true; break;
		case HELP: usage(stdout); return 0;
		default: usage(stderr); return LAB_EXIT_USAGE;
		}
	}
	const struct method *method = method_find(name);

	if (!method)
		lab_usage("--method: '%s' is none of write, fwrite, mmap, batch, anon", name);
	if (optind != argc)
		lab_usage("unexpected argument '%s'", argv[optind]);
	check(&options, method);
	if (!recover) {
		run(&options, method);
		return 0;
	}
	uint64_t bytes = 0;

	for (uint64_t i = 0; i < options.threads; i++)
		bytes += batch_recover(&options, i);
	printf("{\"recovered_bytes\": %llu}\n", (unsigned long long)bytes);
	return 0;
}
