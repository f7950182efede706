// SPDX-License-Identifier: Apache-2.0
/*
 * lab-passes: allocate a file, write it once record by record, wait, and write over it.
 *
 *   --allocate  none | fallocate (posix size change) | keep (FALLOC_FL_KEEP_SIZE) | zero-range
 *               (FALLOC_FL_ZERO_RANGE) | zeros (fallocate, then written zeros and fsync) | write-zeroes
 *               (FALLOC_FL_WRITE_ZEROES; ends with LAB_EXIT_SKIP where it is not supported)
 *   --sync      after each write: none | fsync | fdatasync | both (fdatasync, then fsync)
 *   --via       write: one write per record
 *               batch: records are collected into --batch bytes, which one write takes
 *               double: records go into a buffer in memory, full buffers to a thread that writes them;
 *                       two buffers in front and two behind, as muduo's asynchronous log has them, but
 *                       with a bound at which the front waits where muduo drops
 *               pool: the file is --segments files, which a thread creates ahead, filled with zeros
 *
 * A pass ends with an fsync, whatever --sync says, and its time includes it.  Record n of pass p is the
 * pattern of (thread p, record n), so that the bytes of one pass are not those of another.
 *
 * Prints one JSON object with the times in seconds and the calls made; with --verify it reads the files
 * back instead, and exits 1 when a byte or a size differs from what the last pass wrote.
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

#ifndef FALLOC_FL_KEEP_SIZE
#define FALLOC_FL_KEEP_SIZE 0x01
#endif
#ifndef FALLOC_FL_ZERO_RANGE
#define FALLOC_FL_ZERO_RANGE 0x10
#endif
#ifndef FALLOC_FL_WRITE_ZEROES
#define FALLOC_FL_WRITE_ZEROES 0x80 /* Linux 6.17 */
#endif

enum allocate { NONE, FALLOCATE, KEEP, ZERO_RANGE, ZEROS, WRITE_ZEROES };
enum sync { SYNC_NONE, SYNC_FSYNC, SYNC_FDATASYNC, SYNC_BOTH };
enum via { VIA_WRITE, VIA_BATCH, VIA_DOUBLE, VIA_POOL };

enum {
	ZERO_CHUNK = 1 << 20,
	DOUBLE_BYTES = 4 << 20,  /* of one buffer, as in muduo */
	DOUBLE_PENDING_MAX = 16, /* full buffers not yet taken over by the thread */
	POOL_AHEAD = 2,          /* files made ready before the front asks for them */
	PASSES_MAX = 2,
};

struct options {
	const char *dir, *progress;
	uint64_t records, record_bytes, batch, passes, pause_ms, segments;
	int allocate, sync, via;
	bool append, verify;
};

struct state {
	const struct options *options;
	struct lab_progress *progress;
	int fd;
	bool positioned;
	uint64_t at; /* file offset of the next write; not used when appending */
	uint64_t writes, syncs, acked;
};

/* The thread of `double` and what it shares with the front. */
struct buffers {
	struct state *state;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t filled, taken;
	struct buffer {
		char *bytes;
		size_t used;
	} current, next, pending[DOUBLE_PENDING_MAX];
	size_t pending_count;
	bool over;
};

/* The thread of `pool`. */
struct pool {
	const struct options *options;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t ready, used; /* files made, and files that the front has begun */
};

static uint64_t total_bytes(const struct options *options)
{
	return options->records * options->record_bytes;
}

static void data_path(char *out, size_t size, const struct options *options, uint64_t segment)
{
	lab_path(out, size, options->dir, "data", segment);
}

static void write_all(struct state *s, const char *from, size_t bytes)
{
	while (bytes) {
		ssize_t n =
			s->positioned ? pwrite(s->fd, from, bytes, (off_t)s->at) : write(s->fd, from, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			lab_die("write of %zu bytes", bytes);
		s->writes++;
		from += n;
		bytes -= (size_t)n;
		s->at += (uint64_t)n;
	}
}

static void sync_by(struct state *s, int (*call)(int), const char *name)
{
	if (call(s->fd))
		lab_die("%s", name);
	s->syncs++;
}

static void sync_each(struct state *s)
{
	int kind = s->options->sync;

	if (kind == SYNC_FDATASYNC || kind == SYNC_BOTH)
		sync_by(s, fdatasync, "fdatasync");
	if (kind == SYNC_FSYNC || kind == SYNC_BOTH)
		sync_by(s, fsync, "fsync");
}

static void acked(struct state *s, uint64_t records)
{
	s->acked += records;
	if (s->progress)
		atomic_store_explicit(&s->progress->slot[0].acked, s->acked, memory_order_relaxed);
}

static void write_zeros(int fd, uint64_t bytes, const char *path)
{
	char *zeros = lab_buffer(ZERO_CHUNK);

	for (uint64_t at = 0; at < bytes;) {
		uint64_t left = bytes - at;
		ssize_t n = pwrite(fd, zeros, left < ZERO_CHUNK ? left : ZERO_CHUNK, (off_t)at);

		if (n <= 0)
			lab_die("%s: write of zeros", path);
		at += (uint64_t)n;
	}
	if (fsync(fd))
		lab_die("%s: fsync", path);
	free(zeros);
}

static void allocate(int fd, const struct options *options, const char *path)
{
	static const int modes[] = {
		[FALLOCATE] = 0,
		[KEEP] = FALLOC_FL_KEEP_SIZE,
		[ZERO_RANGE] = FALLOC_FL_ZERO_RANGE,
		[ZEROS] = 0,
		[WRITE_ZEROES] = FALLOC_FL_WRITE_ZEROES,
	};

	if (options->allocate == NONE)
		return;
	if (fallocate(fd, modes[options->allocate], 0, (off_t)total_bytes(options))) {
		if (errno == EOPNOTSUPP || (errno == EINVAL && options->allocate == WRITE_ZEROES)) {
			fprintf(stderr, "this kernel, file system or device does not support it: %s\n",
			        strerror(errno));
			exit(LAB_EXIT_SKIP);
		}
		lab_die("%s: fallocate", path);
	}
	if (options->allocate == ZEROS)
		write_zeros(fd, total_bytes(options), path);
}

/* double */

static void *drain_buffers(void *arg)
{
	struct buffers *b = arg;
	struct buffer spare[2] = {{.bytes = lab_buffer(DOUBLE_BYTES)}, {.bytes = lab_buffer(DOUBLE_BYTES)}};
	struct buffer taken[DOUBLE_PENDING_MAX + 1];

	for (bool over = false; !over;) {
		size_t count, spares = 2;

		pthread_mutex_lock(&b->lock);
		while (!b->pending_count && !b->over)
			pthread_cond_wait(&b->filled, &b->lock);
		over = b->over;
		memcpy(taken, b->pending, b->pending_count * sizeof(taken[0]));
		count = b->pending_count;
		taken[count++] = b->current;
		b->pending_count = 0;
		b->current = spare[--spares];
		if (!b->next.bytes)
			b->next = spare[--spares];
		pthread_cond_signal(&b->taken);
		pthread_mutex_unlock(&b->lock);
		for (size_t i = 0; i < count; i++) {
			write_all(b->state, taken[i].bytes, taken[i].used);
			if (taken[i].used)
				sync_each(b->state);
			taken[i].used = 0;
			if (spares < 2)
				spare[spares++] = taken[i];
			else
				free(taken[i].bytes);
		}
	}
	free(spare[0].bytes);
	free(spare[1].bytes);
	return NULL;
}

static void buffers_start(struct buffers *b, struct state *s)
{
	*b = (struct buffers){.state = s};
	b->current.bytes = lab_buffer(DOUBLE_BYTES);
	b->next.bytes = lab_buffer(DOUBLE_BYTES);
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->filled, NULL);
	pthread_cond_init(&b->taken, NULL);
	errno = pthread_create(&b->thread, NULL, drain_buffers, b);
	if (errno)
		lab_die("thread");
}

static void buffers_put(struct buffers *b, const char *record, size_t bytes)
{
	pthread_mutex_lock(&b->lock);
	if (b->current.used + bytes > DOUBLE_BYTES) {
		while (b->pending_count == DOUBLE_PENDING_MAX)
			pthread_cond_wait(&b->taken, &b->lock);
		/* The thread may have given us an empty buffer while we waited. */
		if (b->current.used + bytes > DOUBLE_BYTES) {
			b->pending[b->pending_count++] = b->current;
			b->current = b->next;
			b->next.bytes = NULL;
			if (!b->current.bytes)
				b->current.bytes = lab_buffer(DOUBLE_BYTES);
			b->current.used = 0;
			pthread_cond_signal(&b->filled);
		}
	}
	memcpy(b->current.bytes + b->current.used, record, bytes);
	b->current.used += bytes;
	pthread_mutex_unlock(&b->lock);
}

static void buffers_stop(struct buffers *b)
{
	pthread_mutex_lock(&b->lock);
	b->over = true;
	pthread_cond_signal(&b->filled);
	pthread_mutex_unlock(&b->lock);
	pthread_join(b->thread, NULL);
	free(b->current.bytes);
	free(b->next.bytes);
}

/* pool */

static void *fill_pool(void *arg)
{
	struct pool *pool = arg;
	const struct options *options = pool->options;
	char made[4096], path[4096];

	for (uint64_t n = 0; n < options->segments; n++) {
		pthread_mutex_lock(&pool->lock);
		while (pool->ready >= pool->used + POOL_AHEAD)
			pthread_cond_wait(&pool->changed, &pool->lock);
		pthread_mutex_unlock(&pool->lock);
		lab_path(made, sizeof(made), options->dir, "ready", n);
		data_path(path, sizeof(path), options, n);
		int fd = open(made, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

		if (fd < 0)
			lab_die("%s", made);
		write_zeros(fd, total_bytes(options) / options->segments, made);
		if (close(fd) || rename(made, path))
			lab_die("%s: rename", made);
		pthread_mutex_lock(&pool->lock);
		pool->ready++;
		pthread_cond_broadcast(&pool->changed);
		pthread_mutex_unlock(&pool->lock);
	}
	return NULL;
}

static void pool_start(struct pool *pool, const struct options *options)
{
	*pool = (struct pool){.options = options};
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->changed, NULL);
	errno = pthread_create(&pool->thread, NULL, fill_pool, pool);
	if (errno)
		lab_die("thread");
}

static void pool_wait(struct pool *pool, uint64_t number)
{
	pthread_mutex_lock(&pool->lock);
	pool->used = number;
	pthread_cond_broadcast(&pool->changed);
	while (pool->ready <= number)
		pthread_cond_wait(&pool->changed, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}

/* passes */

static void open_data(struct state *s, uint64_t segment, int flags)
{
	char path[4096];

	data_path(path, sizeof(path), s->options, segment);
	s->fd = open(path, O_RDWR | O_CLOEXEC | flags, 0644);
	if (s->fd < 0)
		lab_die("%s", path);
}

/* One pass over the records; with a pool over its files in turn, each closed with an fsync.  Leaves the
 * last file open and unsynced: the caller's fsync ends the pass. */
static void write_records(struct state *s, uint64_t pass, struct buffers *buffers, struct pool *pool)
{
	const struct options *options = s->options;
	size_t bytes = options->record_bytes;
	uint64_t per_file = options->records / options->segments;
	size_t room = options->via == VIA_BATCH ? options->batch : bytes;
	char *buffer = lab_buffer(room + bytes);
	size_t fill = 0;

	for (uint64_t n = 0; n < options->records; n++) {
		if (pool && n % per_file == 0) {
			if (s->fd >= 0) {
				sync_by(s, fsync, "fsync");
				close(s->fd);
			}
			pool_wait(pool, n / per_file);
			open_data(s, n / per_file, 0);
			s->at = 0;
		}
		lab_record_fill(buffer + fill, bytes, pass, n);
		fill += bytes;
		if (buffers) {
			buffers_put(buffers, buffer, bytes);
			fill = 0;
		} else if (fill + bytes > room || n + 1 == options->records) {
			write_all(s, buffer, fill);
			sync_each(s);
			fill = 0;
		}
		acked(s, 1);
	}
	free(buffer);
}

/* What the file system has assigned to a file. */
static uint64_t assigned_bytes(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		lab_die("fstat");
	return (uint64_t)st.st_blocks * 512;
}

static double seconds(uint64_t from_ns, uint64_t to_ns) { return (double)(to_ns - from_ns) / 1e9; }

static void run(const struct options *options)
{
	struct state s = {.options = options, .fd = -1, .positioned = !options->append};
	uint64_t begin_ns[PASSES_MAX], written_ns[PASSES_MAX], end_ns[PASSES_MAX], syncs[PASSES_MAX] = {0};
	struct rusage usage;
	struct pool pool;
	bool pooled = options->via == VIA_POOL;

	if (options->progress)
		s.progress = lab_progress_create(options->progress, 1, options->records * options->passes,
		                                 options->record_bytes);
	uint64_t start_ns = lab_now_ns();

	if (pooled) {
		pool_start(&pool, options);
		pool_wait(&pool, 0);
	} else {
		char path[4096];

		data_path(path, sizeof(path), options, 0);
		open_data(&s, 0, O_CREAT | (options->append ? O_APPEND : 0));
		start_ns = lab_now_ns();
		allocate(s.fd, options, path);
	}
	uint64_t allocated_ns = lab_now_ns();
	uint64_t allocated = pooled ? 0 : assigned_bytes(s.fd);

	if (s.progress) {
		atomic_store(&s.progress->header.start_ns, allocated_ns);
		atomic_store(&s.progress->header.phase, LAB_WRITING);
	}
	for (uint64_t pass = 0; pass < options->passes; pass++) {
		struct buffers buffers;

		if (pass)
			usleep((useconds_t)(options->pause_ms * 1000));
		s.at = 0;
		if (options->via == VIA_DOUBLE)
			buffers_start(&buffers, &s);
		uint64_t before = s.syncs;

		begin_ns[pass] = lab_now_ns();
		write_records(&s, pass, options->via == VIA_DOUBLE ? &buffers : NULL, pooled ? &pool : NULL);
		if (options->via == VIA_DOUBLE)
			buffers_stop(&buffers);
		written_ns[pass] = lab_now_ns();
		sync_by(&s, fsync, "fsync");
		end_ns[pass] = lab_now_ns();
		syncs[pass] = s.syncs - before;
	}
	uint64_t last = options->passes - 1;

	if (s.progress) {
		atomic_store(&s.progress->header.end_ns, end_ns[last]);
		atomic_store(&s.progress->header.phase, LAB_SYNCED);
	}
	if (close(s.fd))
		lab_die("close");
	if (pooled)
		pthread_join(pool.thread, NULL);
	double written = 0, synced = 0;

	for (uint64_t pass = 0; pass < options->passes; pass++) {
		written += seconds(begin_ns[pass], written_ns[pass]);
		synced += seconds(begin_ns[pass], end_ns[pass]);
	}
	getrusage(RUSAGE_SELF, &usage);
	printf("{\"bytes\": %llu, \"seconds_allocate\": %.6f, \"allocated_bytes\": %llu, "
	       "\"seconds_first\": %.6f, ",
	       (unsigned long long)(total_bytes(options) * options->passes), seconds(start_ns, allocated_ns),
	       (unsigned long long)allocated, seconds(begin_ns[0], end_ns[0]));
	if (last)
		printf("\"seconds_second\": %.6f, ", seconds(begin_ns[last], end_ns[last]));
	printf("\"seconds\": %.6f, \"seconds_with_sync\": %.6f, \"writes\": %llu, \"syncs\": %llu, "
	       "\"syncs_first\": %llu, \"user_seconds\": %.6f, \"system_seconds\": %.6f}\n",
	       written, synced, (unsigned long long)s.writes, (unsigned long long)s.syncs,
	       (unsigned long long)syncs[0],
	       (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec / 1e6,
	       (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6);
}

/* verification */

static uint64_t verify_file(const struct options *options, uint64_t segment, char *problem, size_t size)
{
	uint64_t per_file = options->records / options->segments;
	size_t bytes = options->record_bytes;
	char *found = lab_buffer(bytes), *expected = lab_buffer(bytes + 8);
	uint64_t good = 0;
	struct stat st;
	char path[4096];

	data_path(path, sizeof(path), options, segment);
	FILE *file = fopen(path, "r");

	if (!file || fstat(fileno(file), &st))
		lab_die("%s", path);
	for (uint64_t n = segment * per_file; n < (segment + 1) * per_file; n++) {
		size_t got = fread(found, 1, bytes, file);

		lab_record_fill(expected, bytes, options->passes - 1, n);
		if (got == bytes && !memcmp(found, expected, bytes))
			good += bytes;
		else if (!*problem)
			snprintf(problem, size, "data%llu: record %llu of pass %llu is not there",
			         (unsigned long long)segment, (unsigned long long)n,
			         (unsigned long long)options->passes);
	}
	if ((uint64_t)st.st_size != per_file * bytes && !*problem)
		snprintf(problem, size, "data%llu: %llu bytes long, not %llu", (unsigned long long)segment,
		         (unsigned long long)st.st_size, (unsigned long long)(per_file * bytes));
	fclose(file);
	free(found);
	free(expected);
	return good;
}

static int verify(const struct options *options)
{
	char problem[256] = "";
	uint64_t good = 0;

	for (uint64_t n = 0; n < options->segments; n++)
		good += verify_file(options, n, problem, sizeof(problem));
	printf("{\"ok\": %s, \"owed_bytes\": %llu, \"verified_bytes\": %llu, \"lost_bytes\": 0, "
	       "\"corrupt_bytes\": %llu, \"unexpected_bytes\": 0, \"first_problem\": \"%s\"}\n",
	       *problem ? "false" : "true", (unsigned long long)total_bytes(options),
	       (unsigned long long)good, (unsigned long long)(total_bytes(options) - good), problem);
	return *problem ? LAB_EXIT_FAILED : 0;
}

static void check(const struct options *options)
{
	if (!options->dir)
		lab_usage("--dir is missing");
	if (options->records % options->segments)
		lab_usage("--records must be a multiple of --segments");
	if (options->segments > 1 && options->via != VIA_POOL)
		lab_usage("--segments needs --via pool");
	if (options->passes > 1 && (options->append || options->via == VIA_POOL))
		lab_usage("a second pass cannot be made by appending, nor with a pool");
	if (options->append && options->allocate != NONE && options->allocate != KEEP)
		lab_usage("--append would start behind allocated space");
	if (options->via == VIA_BATCH && options->batch < options->record_bytes)
		lab_usage("--batch must hold a record");
	if (options->record_bytes % 8)
		lab_usage("--record-bytes must be a multiple of 8");
}

int main(int argc, char **argv)
{
	static const char *const allocations[] = {"none",  "fallocate",    "keep", "zero-range",
	                                          "zeros", "write-zeroes", NULL};
	static const char *const syncs[] = {"none", "fsync", "fdatasync", "both", NULL};
	static const char *const vias[] = {"write", "batch", "double", "pool", NULL};
	static const struct option longs[] = {
		{"dir", required_argument, NULL, 'd'},
		{"progress", required_argument, NULL, 'P'},
		{"allocate", required_argument, NULL, 'a'},
		{"sync", required_argument, NULL, 's'},
		{"via", required_argument, NULL, 'm'},
		{"records", required_argument, NULL, 'r'},
		{"record-bytes", required_argument, NULL, 'b'},
		{"batch", required_argument, NULL, 'B'},
		{"passes", required_argument, NULL, 'p'},
		{"pause-ms", required_argument, NULL, 'w'},
		{"segments", required_argument, NULL, 'S'},
		{"append", no_argument, NULL, 'A'},
		{"verify", no_argument, NULL, 'v'},
		{0},
	};
	struct options options = {
		.records = 1024, .record_bytes = 4096, .batch = 4096, .passes = 1, .segments = 1};
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case 'd': options.dir = optarg; break;
		case 'P': options.progress = optarg; break;
		case 'a': options.allocate = lab_choice("allocate", optarg, allocations); break;
		case 's': options.sync = lab_choice("sync", optarg, syncs); break;
		case 'm': options.via = lab_choice("via", optarg, vias); break;
		case 'r': options.records = lab_number("records", optarg, 1, UINT64_C(1) << 32); break;
		case 'b': options.record_bytes = lab_number("record-bytes", optarg, 8, 1 << 20); break;
		case 'B': options.batch = lab_number("batch", optarg, 8, 1 << 20); break;
		case 'p': options.passes = lab_number("passes", optarg, 1, PASSES_MAX); break;
		case 'w': options.pause_ms = lab_number("pause-ms", optarg, 0, 600000); break;
		case 'S': options.segments = lab_number("segments", optarg, 1, 10000); break;
		case 'A': options.append = true; break;
		case 'v': options.verify = true; break;
		default: return LAB_EXIT_USAGE;
		}
	}
	if (optind != argc)
		lab_usage("unexpected argument '%s'", argv[optind]);
	check(&options);
	if (options.verify)
		return verify(&options);
	run(&options);
	return 0;
}
