// SPDX-License-Identifier: Apache-2.0
/*
 * lab-read: read a file from its beginning to its end, which is not in memory.
 *
 *   --how    read: read(2) of --record-bytes at a time; mmap: loads from a mapping
 *   --ahead  default: what the kernel does by itself
 *            none: POSIX_FADV_RANDOM or MADV_RANDOM, which switch reading ahead off
 *            call: readahead(2) for --window bytes, always a window before they are needed
 *
 * --prepare writes the file (records of the pattern of thread 0) and syncs it.  A timed run first drops
 * the file from the page cache and says how much of it stayed there.  The words of the file are added up
 * while they are read, and the sum must be that of the pattern; lab-verify then compares every byte.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum ahead { AHEAD_DEFAULT, AHEAD_NONE, AHEAD_CALL };

struct options {
	const char *dir, *progress;
	uint64_t records, record_bytes, window;
	int ahead;
	bool map, prepare;
};

static uint64_t total_bytes(const struct options *options)
{
	return options->records * options->record_bytes;
}

static int open_data(const struct options *options, int flags)
{
	char path[4096];

	lab_path(path, sizeof(path), options->dir, "data", 0);
	int fd = open(path, flags | O_CLOEXEC, 0644);

	if (fd < 0)
		lab_die("%s", path);
	return fd;
}

static uint64_t add_words(const char *at, size_t bytes)
{
	const uint64_t *words = (const void *)at;
	uint64_t sum = 0;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		sum += words[i];
	return sum;
}

static void prepare(const struct options *options)
{
	int fd = open_data(options, O_WRONLY | O_CREAT | O_TRUNC);
	char *record = lab_buffer(options->record_bytes);

	for (uint64_t n = 0; n < options->records; n++) {
		lab_record_fill(record, options->record_bytes, 0, n);
		if (write(fd, record, options->record_bytes) != (ssize_t)options->record_bytes)
			lab_die("write");
	}
	if (fsync(fd) || close(fd))
		lab_die("fsync");
	free(record);
}

/* Bytes of the mapping that are in memory. */
static uint64_t resident(void *map, uint64_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page, count = 0;
	unsigned char *flags = malloc(pages);

	if (!flags || mincore(map, bytes, flags))
		lab_die("mincore");
	for (size_t i = 0; i < pages; i++)
		count += flags[i] & 1;
	free(flags);
	return count * page;
}

/* Ask for the window behind the one that begins here. */
static void ask_ahead(const struct options *options, int fd, uint64_t offset)
{
	uint64_t total = total_bytes(options);

	if (options->ahead != AHEAD_CALL || offset % options->window)
		return;
	for (uint64_t at = offset ? offset + options->window : 0;
	     at <= offset + options->window && at < total; at += options->window)
		if (readahead(fd, (off_t)at, options->window))
			lab_die("readahead");
}

static void acked(struct lab_progress *progress, uint64_t records)
{
	if (progress)
		atomic_store_explicit(&progress->slot[0].acked, records, memory_order_relaxed);
}

static uint64_t by_read(const struct options *options, int fd, struct lab_progress *progress)
{
	char *record = lab_buffer(options->record_bytes);
	uint64_t sum = 0;

	for (uint64_t n = 0; n < options->records; n++) {
		ask_ahead(options, fd, n * options->record_bytes);
		if (read(fd, record, options->record_bytes) != (ssize_t)options->record_bytes)
			lab_die("read of record %llu", (unsigned long long)n);
		sum += add_words(record, options->record_bytes);
		acked(progress, n + 1);
	}
	free(record);
	return sum;
}

static uint64_t by_map(const struct options *options, int fd, const char *map, struct lab_progress *progress)
{
	uint64_t sum = 0;

	for (uint64_t n = 0; n < options->records; n++) {
		ask_ahead(options, fd, n * options->record_bytes);
		sum += add_words(map + n * options->record_bytes, options->record_bytes);
		acked(progress, n + 1);
	}
	return sum;
}

static uint64_t expected_sum(const struct options *options)
{
	char *record = lab_buffer(options->record_bytes);
	uint64_t sum = 0;

	for (uint64_t n = 0; n < options->records; n++) {
		lab_record_fill(record, options->record_bytes, 0, n);
		sum += add_words(record, options->record_bytes);
	}
	free(record);
	return sum;
}

static void run(const struct options *options)
{
	struct lab_progress *progress = NULL;
	struct rusage usage;
	int fd = open_data(options, O_RDONLY);
	uint64_t bytes = total_bytes(options);

	if (options->progress)
		progress = lab_progress_create(options->progress, 1, options->records, options->record_bytes);
	errno = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (errno)
		lab_die("posix_fadvise");
	char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		lab_die("mmap");
	uint64_t cached = resident(map, bytes);

	if (options->ahead == AHEAD_NONE) {
		errno = posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
		if (errno || madvise(map, bytes, MADV_RANDOM))
			lab_die("advice");
	}
	uint64_t start_ns = lab_now_ns();

	if (progress) {
		atomic_store(&progress->header.start_ns, start_ns);
		atomic_store(&progress->header.phase, LAB_WRITING);
	}
	uint64_t sum = options->map ? by_map(options, fd, map, progress) : by_read(options, fd, progress);
	uint64_t end_ns = lab_now_ns();

	if (progress) {
		atomic_store(&progress->header.end_ns, end_ns);
		atomic_store(&progress->header.phase, LAB_DONE);
	}
	getrusage(RUSAGE_SELF, &usage);
	if (sum != expected_sum(options)) {
		fprintf(stderr, "lab-read: what was read is not what the file should hold\n");
		exit(LAB_EXIT_FAILED);
	}
	double seconds = (double)(end_ns - start_ns) / 1e9;

	printf("{\"bytes\": %llu, \"seconds\": %.6f, \"seconds_with_sync\": %.6f, \"cached_bytes\": %llu, "
	       "\"minor_faults\": %ld, \"major_faults\": %ld, \"user_seconds\": %.6f, \"system_seconds\": "
	       "%.6f}\n",
	       (unsigned long long)bytes, seconds, seconds, (unsigned long long)cached, usage.ru_minflt,
	       usage.ru_majflt, (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
	       (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
}

int main(int argc, char **argv)
{
	static const char *const hows[] = {"read", "mmap", NULL};
	static const char *const aheads[] = {"default", "none", "call", NULL};
	static const struct option longs[] = {
		{"dir", required_argument, NULL, 'd'},
		{"progress", required_argument, NULL, 'P'},
		{"how", required_argument, NULL, 'h'},
		{"ahead", required_argument, NULL, 'a'},
		{"records", required_argument, NULL, 'r'},
		{"record-bytes", required_argument, NULL, 'b'},
		{"window", required_argument, NULL, 'w'},
		{"prepare", no_argument, NULL, 'p'},
		{0},
	};
	struct options options = {.records = 1024, .record_bytes = 4096, .window = 4 << 20};
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case 'd': options.dir = optarg; break;
		case 'P': options.progress = optarg; break;
		case 'h': options.map = lab_choice("how", optarg, hows) == 1; break;
		case 'a': options.ahead = lab_choice("ahead", optarg, aheads); break;
		case 'r': options.records = lab_number("records", optarg, 1, UINT64_C(1) << 32); break;
		case 'b': options.record_bytes = lab_number("record-bytes", optarg, 8, 1 << 20); break;
		case 'w': options.window = lab_number("window", optarg, LAB_ALIGN, 1 << 30); break;
		case 'p': options.prepare = true; break;
		default: return LAB_EXIT_USAGE;
		}
	}
	if (!options.dir)
		lab_usage("--dir is missing");
	if (options.record_bytes % 8 || options.window % options.record_bytes)
		lab_usage("--record-bytes must be a multiple of 8 and divide --window");
	if (options.prepare)
		prepare(&options);
	else
		run(&options);
	return 0;
}
