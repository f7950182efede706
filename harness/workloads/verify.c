// SPDX-License-Identifier: Apache-2.0
/*
 * lab-verify: is every byte that lab-writer claims to have written in its file, at its place?
 *
 * Per file, `need` records are owed: all of them, or with --acked the number that the progress file
 * says had returned before the kill.  Each owed record is verified, lost (absent, or all zeros) or
 * corrupt (anything else).  Behind the owed records at most one unfinished record may stand (a prefix
 * of the next one); after it the file must end, or with --tail zeros hold nothing but zeros.  With --tail
 * copied the unfinished one may have gaps of zeros: memcpy stores in an order of its own (from a source at
 * the same place in its page, the first bytes last).
 *
 * --layout shifted is what E4 as published does: the file starts with one window that is never
 * written, and the last window stays in batchN.  Lost records are then looked for there and counted
 * separately (in_batch): the published program keeps nothing that says where they belong.
 *
 * Prints one JSON object; exit 0 when nothing is lost, corrupt or unexpected, 1 otherwise.
 */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, VERIFIERS_MAX = 16, PROBLEM_BYTES = 256 };

struct options {
	const char *dir;
	uint64_t threads, records, record_bytes, window;
	bool shifted, tail_zeros, copied, drop_cache, acked;
	const struct lab_progress *progress;
};

struct result { /* bytes, except files */
	uint64_t files, owed, verified, lost, in_batch, corrupt, unfinished, unexpected, front_zeros;
	char problem[PROBLEM_BYTES];
};

struct file {
	const struct options *options;
	uint64_t thread;
	int fd;
	uint64_t size;
	char *chunk, *expected;
	struct result *result;
};

struct shared {
	const struct options *options;
	_Atomic uint64_t next;
	pthread_mutex_t lock;
	struct result total;
};

__attribute__((format(printf, 3, 4))) static void problem(struct file *file, uint64_t offset,
                                                          const char *format, ...)
{
	char *out = file->result->problem;
	va_list args;

	if (*out)
		return;
	int n = snprintf(out, PROBLEM_BYTES, "data%llu, offset %llu: ", (unsigned long long)file->thread,
	                 (unsigned long long)offset);

	va_start(args, format);
	if (n > 0 && n < PROBLEM_BYTES)
		vsnprintf(out + n, (size_t)(PROBLEM_BYTES - n), format, args);
	va_end(args);
}

static bool zeros(const char *at, size_t bytes)
{
	return !bytes || (!at[0] && !memcmp(at, at + 1, bytes - 1));
}

/* How many bytes could be read at offset, at most bytes. */
static size_t read_at(int fd, char *to, size_t bytes, uint64_t offset)
{
	size_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, to + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			lab_die("read");
		if (!n)
			break;
		done += (size_t)n;
	}
	return done;
}

/* Is this record in batchN, in the slot where the published program has put it? */
static bool in_batch(const struct file *file, int batch_fd, uint64_t record)
{
	const struct options *options = file->options;
	uint64_t bytes = options->record_bytes;
	char *found = lab_buffer(bytes);
	bool same;

	lab_record_fill(file->expected, bytes, file->thread, record);
	same = read_at(batch_fd, found, bytes, record * bytes % options->window) == bytes &&
	       !memcmp(found, file->expected, bytes);
	free(found);
	return same;
}

static void judge_bad(struct file *file, int batch_fd, uint64_t record, const char *at, size_t present)
{
	struct result *result = file->result;
	uint64_t bytes = file->options->record_bytes;
	uint64_t offset = record * bytes + (file->options->shifted ? file->options->window : 0);
	uint64_t word, other_thread, other_record;

	if (present < bytes || zeros(at, bytes)) {
		result->lost += bytes;
		if (batch_fd >= 0 && in_batch(file, batch_fd, record))
			result->in_batch += bytes;
		problem(file, offset, "record %llu is missing (%s)", (unsigned long long)record,
		        present < bytes ? "the file ends" : "zeros");
		return;
	}
	result->corrupt += bytes;
	memcpy(&word, at, sizeof(word));
	lab_record_fill(file->expected, bytes, file->thread, record);
	if (!lab_record_unpack(word, &other_thread, &other_record)) {
		problem(file, offset, "record %llu expected, found something that is no record",
		        (unsigned long long)record);
	} else if (other_thread != file->thread || other_record != record) {
		problem(file, offset, "record %llu expected, found record %llu of thread %llu",
		        (unsigned long long)record, (unsigned long long)other_record,
		        (unsigned long long)other_thread);
	} else {
		size_t k = 0;

		while (k < bytes && at[k] == file->expected[k])
			k++;
		problem(file, offset, "record %llu differs from its byte %zu on", (unsigned long long)record,
		        k);
	}
}

static void check_owed(struct file *file, uint64_t need, uint64_t base, int batch_fd)
{
	uint64_t bytes = file->options->record_bytes;
	uint64_t per_chunk = CHUNK_BYTES / bytes ? CHUNK_BYTES / bytes : 1;

	for (uint64_t record = 0; record < need; record += per_chunk) {
		uint64_t count = need - record < per_chunk ? need - record : per_chunk;
		size_t got = read_at(file->fd, file->chunk, count * bytes, base + record * bytes);

		for (uint64_t i = 0; i < count; i++) {
			const char *at = file->chunk + i * bytes;
			size_t present = got < i * bytes ? 0 : got - i * bytes;

			lab_record_fill(file->expected, bytes, file->thread, record + i);
			if (present >= bytes && !memcmp(at, file->expected, bytes))
				file->result->verified += bytes;
			else
				judge_bad(file, batch_fd, record + i, at, present);
		}
	}
}

/* Bytes of a record that a memcpy was killed in, up to the last one stored; 0 when there is anything else. */
static size_t copied_part(const struct file *file, size_t got)
{
	size_t last = 0;

	for (size_t i = 0; i < got; i++) {
		if (file->chunk[i] && file->chunk[i] != file->expected[i])
			return 0;
		if (file->chunk[i])
			last = i + 1;
	}
	return last;
}

/* What stands behind the owed records: a prefix of the next one, then the end (or zeros). */
static void check_tail(struct file *file, uint64_t need, uint64_t base)
{
	const struct options *options = file->options;
	uint64_t bytes = options->record_bytes;
	uint64_t offset = base + need * bytes;
	size_t got = read_at(file->fd, file->chunk, bytes, offset);
	size_t prefix = 0;

	if (need < options->records) {
		lab_record_fill(file->expected, bytes, file->thread, need);
		while (prefix < got && file->chunk[prefix] == file->expected[prefix])
			prefix++;
		if (prefix < got && options->tail_zeros && zeros(file->chunk, got))
			prefix = 0; /* zeros that happen to be a record's first bytes are no record */
		if (prefix < got && options->copied)
			prefix = copied_part(file, got);
	}
	file->result->unfinished += prefix;
	offset += prefix;
	while (offset < file->size) {
		uint64_t left = file->size - offset;

		got = read_at(file->fd, file->chunk, left < CHUNK_BYTES ? left : CHUNK_BYTES, offset);
		if (!got)
			break;
		if (!options->tail_zeros || !zeros(file->chunk, got)) {
			file->result->unexpected += got;
			problem(file, offset, "%zu bytes that nothing accounts for", got);
		}
		offset += got;
	}
}

static void check_front(struct file *file)
{
	uint64_t window = file->options->window;
	size_t got = read_at(file->fd, file->chunk, window, 0);

	if (zeros(file->chunk, got)) {
		file->result->front_zeros += got;
		return;
	}
	file->result->unexpected += got;
	problem(file, 0, "the first window is not empty, so this is not the published layout");
}

static void check_file(struct file *file)
{
	const struct options *options = file->options;
	uint64_t need = options->records;
	uint64_t base = options->shifted ? options->window : 0;
	char path[4096];
	struct stat st;
	int batch_fd = -1;

	if (options->acked)
		need = atomic_load(&options->progress->slot[file->thread].acked);
	file->result->owed += need * options->record_bytes;
	lab_path(path, sizeof(path), options->dir, "data", file->thread);
	file->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (file->fd < 0 || fstat(file->fd, &st)) {
		if (errno != ENOENT)
			lab_die("%s", path);
		file->result->lost += need * options->record_bytes;
		if (need)
			problem(file, 0, "the file does not exist");
		return;
	}
	file->result->files++;
	file->size = (uint64_t)st.st_size;
	if (options->drop_cache)
		posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED);
	if (options->shifted) {
		lab_path(path, sizeof(path), options->dir, "batch", file->thread);
		batch_fd = open(path, O_RDONLY | O_CLOEXEC);
		check_front(file);
	}
	check_owed(file, need, base, batch_fd);
	check_tail(file, need, base);
	close(file->fd);
	if (batch_fd >= 0)
		close(batch_fd);
}

static void result_add(struct result *total, const struct result *one)
{
	total->files += one->files;
	total->owed += one->owed;
	total->verified += one->verified;
	total->lost += one->lost;
	total->in_batch += one->in_batch;
	total->corrupt += one->corrupt;
	total->unfinished += one->unfinished;
	total->unexpected += one->unexpected;
	total->front_zeros += one->front_zeros;
	if (!*total->problem)
		memcpy(total->problem, one->problem, sizeof(total->problem));
}

static void *verifier(void *arg)
{
	struct shared *shared = arg;
	const struct options *options = shared->options;
	uint64_t room = CHUNK_BYTES;
	struct result mine = {0};

	room = options->record_bytes > room ? options->record_bytes : room;
	room = options->window > room ? options->window : room;
	struct file file = {.options = options,
	                    .chunk = lab_buffer(room),
	                    .expected = lab_buffer(options->record_bytes),
	                    .result = &mine};

	while ((file.thread = atomic_fetch_add(&shared->next, 1)) < options->threads)
		check_file(&file);
	free(file.chunk);
	free(file.expected);
	pthread_mutex_lock(&shared->lock);
	result_add(&shared->total, &mine);
	pthread_mutex_unlock(&shared->lock);
	return NULL;
}

static bool report(const struct result *result)
{
	bool ok = !result->lost && !result->corrupt && !result->unexpected;

	printf("{\"ok\": %s, \"files\": %llu, \"owed_bytes\": %llu, \"verified_bytes\": %llu, "
	       "\"lost_bytes\": %llu, \"in_batch_bytes\": %llu, \"corrupt_bytes\": %llu, ",
	       ok ? "true" : "false", (unsigned long long)result->files, (unsigned long long)result->owed,
	       (unsigned long long)result->verified, (unsigned long long)result->lost,
	       (unsigned long long)result->in_batch, (unsigned long long)result->corrupt);
	printf("\"unfinished_bytes\": %llu, \"unexpected_bytes\": %llu, \"front_zero_bytes\": %llu, "
	       "\"first_problem\": \"%s\"}\n",
	       (unsigned long long)result->unfinished, (unsigned long long)result->unexpected,
	       (unsigned long long)result->front_zeros, result->problem);
	return ok;
}

static void parse(int argc, char **argv, struct options *options)
{
	enum { DIR_ = 1, THREADS, RECORDS, RECORD_BYTES, WINDOW, LAYOUT, TAIL, ACKED, DROP_CACHE, HELP };
	static const struct option longs[] = {
		{"dir", required_argument, NULL, DIR_},
		{"threads", required_argument, NULL, THREADS},
		{"records", required_argument, NULL, RECORDS},
		{"record-bytes", required_argument, NULL, RECORD_BYTES},
		{"window", required_argument, NULL, WINDOW},
		{"layout", required_argument, NULL, LAYOUT},
		{"tail", required_argument, NULL, TAIL},
		{"acked", required_argument, NULL, ACKED},
		{"drop-cache", no_argument, NULL, DROP_CACHE},
		{"help", no_argument, NULL, HELP},
		{0},
	};
	static const char usage[] =
		"usage: lab-verify --dir DIR [--threads N] [--records N] [--record-bytes "
		"N] [--window BYTES]\n"
		"                  [--layout plain|shifted] [--tail none|zeros|copied] [--acked "
		"FILE] [--drop-cache]\n";
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case DIR_: options->dir = optarg; break;
		case THREADS: options->threads = lab_number("threads", optarg, 1, LAB_THREADS_MAX); break;
		case RECORDS: options->records = lab_number("records", optarg, 1, UINT64_C(1) << 40); break;
		case RECORD_BYTES:
			options->record_bytes = lab_number("record-bytes", optarg, 8, 1 << 24);
			break;
		case WINDOW: options->window = lab_number("window", optarg, LAB_ALIGN, 1 << 28); break;
		case LAYOUT: options->shifted = !strcmp(optarg, "shifted"); break;
		case TAIL:
			options->copied = !strcmp(optarg, "copied");
			options->tail_zeros = options->copied || !strcmp(optarg, "zeros");
			break;
		case ACKED:
			options->progress = lab_progress_open(optarg);
			options->acked = true;
			break;
		case DROP_CACHE: options->drop_cache = true; break;
		case HELP: fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(LAB_EXIT_USAGE);
		}
	}
	if (!options->dir)
		lab_usage("--dir is missing");
	if (options->acked && options->progress->header.threads != options->threads)
		lab_usage("the progress file is of %llu threads, not %llu",
		          (unsigned long long)options->progress->header.threads,
		          (unsigned long long)options->threads);
}

int main(int argc, char **argv)
{
	struct options options = {.threads = 1, .records = 1024, .record_bytes = 4096, .window = 16384};
	struct shared shared = {.options = &options, .lock = PTHREAD_MUTEX_INITIALIZER};
	pthread_t ids[VERIFIERS_MAX];
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int count = cpus < 1 ? 1 : cpus > VERIFIERS_MAX ? VERIFIERS_MAX : (int)cpus;

	parse(argc, argv, &options);
	for (int i = 0; i < count; i++) {
		errno = pthread_create(&ids[i], NULL, verifier, &shared);
		if (errno)
			lab_die("thread");
	}
	for (int i = 0; i < count; i++)
		pthread_join(ids[i], NULL);
	return report(&shared.total) ? 0 : LAB_EXIT_FAILED;
}
