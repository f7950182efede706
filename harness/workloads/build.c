// SPDX-License-Identifier: Apache-2.0
/*
 * lab-build: what a parallel compile does to a file system, without the compiler.  --prepare writes the
 * sources (source-D/fileN) and the headers (include/headerN).  A timed run is `make -jJOBS`: each job
 * takes the next source, looks every header up, reads the source and some headers, writes the object in
 * 4 KiB pieces to a temporary name and renames it to dataN.o, and writes the dependencies to dataN.d;
 * at last all objects are read and linked into data-program.  The second time, with syncfs, counts.
 *
 * Record n of "thread" T is what stands in a file: T tells sources, headers, objects and dependencies
 * apart.  With --verify every output is read back, and exit 1 says that one differs.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOURCE_BYTES = 6000, HEADER_BYTES = 3000, DEPENDENCY_BYTES = 400 };
enum { PER_DIRECTORY = 50, HEADERS_READ = 8, PIECE_BYTES = 4096, JOBS_MAX = 256, PATH_BYTES = 4096 };
enum kind { SOURCE, HEADER, OBJECT, DEPENDENCY };

struct options {
	const char *dir, *progress;
	uint64_t sources, headers, object_bytes, jobs;
};

struct shared {
	const struct options *options;
	struct lab_progress *progress;
	_Atomic uint64_t next;
};

struct job {
	struct shared *shared;
	pthread_t id;
	uint64_t number;
};

static size_t bytes_of(const struct options *options, enum kind kind)
{
	switch (kind) {
	case SOURCE: return SOURCE_BYTES;
	case HEADER: return HEADER_BYTES;
	case OBJECT: return options->object_bytes;
	default: return DEPENDENCY_BYTES;
	}
}

static void path_of(char *out, const struct options *options, enum kind kind, uint64_t n, const char *ending)
{
	unsigned long long number = n;
	int length = 0;

	switch (kind) {
	case SOURCE:
		length = snprintf(out, PATH_BYTES, "%s/source-%llu/file%llu", options->dir,
		                  number / PER_DIRECTORY, number);
		break;
	case HEADER: length = snprintf(out, PATH_BYTES, "%s/include/header%llu", options->dir, number); break;
	case OBJECT:
		length = snprintf(out, PATH_BYTES, "%s/data%llu.o%s", options->dir, number, ending);
		break;
	case DEPENDENCY: length = snprintf(out, PATH_BYTES, "%s/data%llu.d", options->dir, number); break;
	}
	if (length >= PATH_BYTES)
		lab_usage("--dir is too long");
}

/* A file of the pattern, in pieces of 4 KiB. */
static void put_file(const char *path, char *buffer, size_t bytes, enum kind kind, uint64_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		lab_die("%s", path);
	lab_record_fill(buffer, bytes, kind, n);
	for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
		size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;

		if (write(fd, buffer + at, piece) != (ssize_t)piece)
			lab_die("%s: write", path);
	}
	if (close(fd))
		lab_die("%s: close", path);
}

/* Read a whole file; false when it is not of that size. */
static bool get_file(const char *path, char *buffer, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		lab_die("%s", path);
	ssize_t got = read(fd, buffer, bytes + 1);

	close(fd);
	return got == (ssize_t)bytes;
}

static void make_directory(const char *dir, const char *format, uint64_t n)
{
	char name[64], path[PATH_BYTES];

	snprintf(name, sizeof(name), format, (unsigned long long)n);
	if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= PATH_BYTES)
		lab_usage("--dir is too long");
	if (mkdir(path, 0755) && errno != EEXIST)
		lab_die("%s", path);
}

static void prepare(const struct options *options)
{
	char *buffer = lab_buffer(SOURCE_BYTES + 8);
	char path[PATH_BYTES];

	make_directory(options->dir, "include", 0);
	for (uint64_t n = 0; n < options->headers; n++) {
		path_of(path, options, HEADER, n, "");
		put_file(path, buffer, HEADER_BYTES, HEADER, n);
	}
	for (uint64_t n = 0; n < options->sources; n++) {
		if (n % PER_DIRECTORY == 0)
			make_directory(options->dir, "source-%llu", n / PER_DIRECTORY);
		path_of(path, options, SOURCE, n, "");
		put_file(path, buffer, SOURCE_BYTES, SOURCE, n);
	}
	free(buffer);
	sync();
}

static void compile(const struct options *options, char *buffer, uint64_t n)
{
	char path[PATH_BYTES], final[PATH_BYTES];
	struct stat st;

	path_of(path, options, SOURCE, n, "");
	if (!get_file(path, buffer, SOURCE_BYTES))
		lab_die("%s: size", path);
	for (uint64_t k = 0; k < options->headers; k++) {
		path_of(path, options, HEADER, k, "");
		if (stat(path, &st))
			lab_die("%s", path);
	}
	for (uint64_t k = 0; k < HEADERS_READ && k < options->headers; k++) {
		path_of(path, options, HEADER, (n * HEADERS_READ + k) % options->headers, "");
		if (!get_file(path, buffer, HEADER_BYTES))
			lab_die("%s: size", path);
	}
	path_of(path, options, OBJECT, n, ".new");
	path_of(final, options, OBJECT, n, "");
	put_file(path, buffer, options->object_bytes, OBJECT, n);
	if (rename(path, final))
		lab_die("%s: rename", path);
	path_of(path, options, DEPENDENCY, n, "");
	put_file(path, buffer, DEPENDENCY_BYTES, DEPENDENCY, n);
}

static size_t buffer_bytes(const struct options *options)
{
	size_t most = options->object_bytes > SOURCE_BYTES ? options->object_bytes : SOURCE_BYTES;

	return most + 8;
}

static void *work(void *arg)
{
	struct job *job = arg;
	struct shared *shared = job->shared;
	char *buffer = lab_buffer(buffer_bytes(shared->options));
	uint64_t done = 0;

	for (;;) {
		uint64_t n = atomic_fetch_add(&shared->next, 1);

		if (n >= shared->options->sources)
			break;
		compile(shared->options, buffer, n);
		if (shared->progress)
			atomic_store_explicit(&shared->progress->slot[job->number].acked, ++done,
			                      memory_order_relaxed);
	}
	free(buffer);
	return NULL;
}

static int open_program(const struct options *options, int flags)
{
	char path[PATH_BYTES];

	if (snprintf(path, sizeof(path), "%s/data-program", options->dir) >= PATH_BYTES)
		lab_usage("--dir is too long");
	int fd = open(path, flags | O_CLOEXEC, 0755);

	if (fd < 0)
		lab_die("%s", path);
	return fd;
}

static void link_all(const struct options *options)
{
	char *buffer = lab_buffer(buffer_bytes(options));
	char path[PATH_BYTES];
	int fd = open_program(options, O_WRONLY | O_CREAT | O_TRUNC);

	for (uint64_t n = 0; n < options->sources; n++) {
		path_of(path, options, OBJECT, n, "");
		if (!get_file(path, buffer, options->object_bytes))
			lab_die("%s: size", path);
		if (write(fd, buffer, options->object_bytes) != (ssize_t)options->object_bytes)
			lab_die("data-program: write");
	}
	if (close(fd))
		lab_die("data-program: close");
	free(buffer);
}

static uint64_t output_bytes(const struct options *options)
{
	return options->sources * (2 * options->object_bytes + DEPENDENCY_BYTES);
}

static void run(const struct options *options)
{
	struct shared shared = {.options = options};
	struct job jobs[JOBS_MAX];
	struct rusage usage;
	int dir_fd = open(options->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir_fd < 0)
		lab_die("%s", options->dir);
	if (options->progress)
		shared.progress = lab_progress_create(options->progress, options->jobs, options->sources,
		                                      2 * options->object_bytes + DEPENDENCY_BYTES);
	uint64_t start_ns = lab_now_ns();

	if (shared.progress) {
		atomic_store(&shared.progress->header.start_ns, start_ns);
		atomic_store(&shared.progress->header.phase, LAB_WRITING);
	}
	for (uint64_t i = 0; i < options->jobs; i++) {
		jobs[i] = (struct job){.shared = &shared, .number = i};
		errno = pthread_create(&jobs[i].id, NULL, work, &jobs[i]);
		if (errno)
			lab_die("thread");
	}
	for (uint64_t i = 0; i < options->jobs; i++)
		pthread_join(jobs[i].id, NULL);
	uint64_t compiled_ns = lab_now_ns();

	link_all(options);
	uint64_t linked_ns = lab_now_ns();

	if (syncfs(dir_fd))
		lab_die("syncfs");
	uint64_t end_ns = lab_now_ns();

	if (shared.progress) {
		atomic_store(&shared.progress->header.end_ns, end_ns);
		atomic_store(&shared.progress->header.phase, LAB_DONE);
	}
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"bytes\": %llu, \"seconds\": %.6f, \"seconds_with_sync\": %.6f, \"seconds_compile\": %.6f, "
	       "\"files\": %llu, \"user_seconds\": %.6f, \"system_seconds\": %.6f}\n",
	       (unsigned long long)output_bytes(options), (double)(linked_ns - start_ns) / 1e9,
	       (double)(end_ns - start_ns) / 1e9, (double)(compiled_ns - start_ns) / 1e9,
	       (unsigned long long)(2 * options->sources + 1),
	       (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
	       (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
}

struct check {
	const struct options *options;
	char *found, *expected;
	uint64_t good;
	char problem[128];
};

static void check_bytes(struct check *check, bool whole, enum kind kind, uint64_t n, const char *what)
{
	size_t bytes = bytes_of(check->options, kind);

	lab_record_fill(check->expected, bytes, kind, n);
	if (whole && !memcmp(check->found, check->expected, bytes))
		check->good += bytes;
	else if (!*check->problem)
		snprintf(check->problem, sizeof(check->problem), "%s %llu differs", what,
		         (unsigned long long)n);
}

static int verify(const struct options *options)
{
	size_t room = buffer_bytes(options);
	struct check check = {.options = options, .found = lab_buffer(room), .expected = lab_buffer(room)};
	uint64_t owed = output_bytes(options);
	char path[PATH_BYTES];
	int fd = open_program(options, O_RDONLY);

	for (uint64_t n = 0; n < options->sources; n++) {
		path_of(path, options, OBJECT, n, "");
		check_bytes(&check, get_file(path, check.found, options->object_bytes), OBJECT, n, "object");
		path_of(path, options, DEPENDENCY, n, "");
		check_bytes(&check, get_file(path, check.found, DEPENDENCY_BYTES), DEPENDENCY, n,
		            "dependency file");
		ssize_t got = read(fd, check.found, options->object_bytes);

		check_bytes(&check, got == (ssize_t)options->object_bytes, OBJECT, n, "program, part");
	}
	if (read(fd, check.found, 1) != 0 && !*check.problem)
		snprintf(check.problem, sizeof(check.problem), "the program is too long");
	close(fd);
	free(check.found);
	free(check.expected);
	printf("{\"ok\": %s, \"owed_bytes\": %llu, \"verified_bytes\": %llu, \"lost_bytes\": 0, "
	       "\"corrupt_bytes\": %llu, \"unexpected_bytes\": 0, \"first_problem\": \"%s\"}\n",
	       *check.problem ? "false" : "true", (unsigned long long)owed, (unsigned long long)check.good,
	       (unsigned long long)(owed - check.good), check.problem);
	return *check.problem ? LAB_EXIT_FAILED : 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"dir", required_argument, NULL, 'd'},
		{"progress", required_argument, NULL, 'P'},
		{"sources", required_argument, NULL, 's'},
		{"headers", required_argument, NULL, 'h'},
		{"bytes", required_argument, NULL, 'b'},
		{"jobs", required_argument, NULL, 'j'},
		{"prepare", no_argument, NULL, 'p'},
		{"verify", no_argument, NULL, 'v'},
		{0},
	};
	struct options options = {.sources = 500, .headers = 40, .object_bytes = 20000, .jobs = 8};
	bool prepared = false, verified = false;
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case 'd': options.dir = optarg; break;
		case 'P': options.progress = optarg; break;
		case 's': options.sources = lab_number("sources", optarg, 1, 10000000); break;
		case 'h': options.headers = lab_number("headers", optarg, 1, 100000); break;
		case 'b': options.object_bytes = lab_number("bytes", optarg, 8, 1 << 24); break;
		case 'j': options.jobs = lab_number("jobs", optarg, 1, JOBS_MAX); break;
		case 'p': prepared = true; break;
		case 'v': verified = true; break;
		default: return LAB_EXIT_USAGE;
		}
	}
	if (!options.dir)
		lab_usage("--dir is missing");
	if (verified)
		return verify(&options);
	if (prepared)
		prepare(&options);
	else
		run(&options);
	return 0;
}
