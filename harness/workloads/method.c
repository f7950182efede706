// SPDX-License-Identifier: Apache-2.0
/* method: see method.h.  Called by writer.c. */
#include "method.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t file_bytes(const struct options *options) { return options->records * options->record_bytes; }

static void preallocate(int fd, uint64_t bytes, const char *what)
{
	int err = posix_fallocate(fd, 0, (off_t)bytes);

	if (err) {
		errno = err;
		lab_die("%s: posix_fallocate of %llu bytes", what, (unsigned long long)bytes);
	}
}

static int open_data(const struct job *job, int extra_flags)
{
	const struct options *options = job->options;
	char path[4096];

	lab_path(path, sizeof(path), options->dir, "data", job->thread);
	int flags = O_RDWR | O_CREAT | extra_flags | (options->append ? O_APPEND : 0) |
	            (options->direct ? O_DIRECT : 0);
	int fd = open(path, flags, 0645);

	if (fd < 0)
		lab_die("%s", path);
	if (options->prealloc)
		preallocate(fd, file_bytes(options), path);
	return fd;
}

/* All of it, at an offset (positioned) or where the descriptor stands. */
static void write_all(int fd, const char *from, size_t bytes, bool positioned, uint64_t offset)
{
	while (bytes) {
		ssize_t n = positioned ? pwrite(fd, from, bytes, (off_t)offset) : write(fd, from, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			lab_die("write of %zu bytes", bytes);
		from += n;
		bytes -= (size_t)n;
		offset += (uint64_t)n;
	}
}

static void finish_nothing(struct job *job) { (void)job; }

static void write_open(struct job *job) { job->fd = open_data(job, 0); }

static void write_put(struct job *job)
{
	size_t bytes = job->options->record_bytes;

	write_all(job->fd, job->record, bytes, job->options->prealloc, job->base);
	job->base += bytes;
}

static void fwrite_open(struct job *job)
{
	job->fd = open_data(job, 0);
	job->stream = fdopen(job->fd, "w");
	if (!job->stream)
		lab_die("fdopen");
}

static void fwrite_put(struct job *job)
{
	if (fwrite(job->record, job->options->record_bytes, 1, job->stream) != 1)
		lab_die("fwrite of %llu bytes", (unsigned long long)job->options->record_bytes);
}

static void fwrite_finish(struct job *job)
{
	if (fflush(job->stream))
		lab_die("fflush");
}

static char *map_window(int fd, uint64_t bytes, uint64_t offset)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);

	if (map == MAP_FAILED)
		lab_die("mmap of %llu bytes", (unsigned long long)bytes);
	return map;
}

static void mmap_open(struct job *job)
{
	job->fd = open_data(job, 0);
	job->window = map_window(job->fd, job->options->window, 0);
}

static void mmap_put(struct job *job)
{
	const struct options *options = job->options;

	if (job->fill == options->window) {
		munmap(job->window, options->window);
		job->base += options->window;
		job->window = map_window(job->fd, options->window, job->base);
		job->fill = 0;
	}
	memcpy(job->window + job->fill, job->record, options->record_bytes);
	job->fill += options->record_bytes;
}

static void mmap_finish(struct job *job) { munmap(job->window, job->options->window); }

static void batch_open(struct job *job)
{
	const struct options *options = job->options;
	uint64_t map_bytes = options->window + (options->verbatim ? 0 : LAB_ALIGN);
	char path[4096];

	job->fd = open_data(job, O_DIRECT);
	lab_path(path, sizeof(path), options->dir, "batch", job->thread);
	int fd = open(path, O_RDWR | O_CREAT, 0645);

	if (fd < 0)
		lab_die("%s", path);
	preallocate(fd, map_bytes, path);
	job->window = map_window(fd, map_bytes, 0);
	if (!options->verbatim)
		job->header = (void *)(job->window + options->window);
	close(fd);
}

/* As published: the offset moves before the write that it belongs to, and only the arrival of the next
 * record writes a full window. */
static void batch_put_verbatim(struct job *job)
{
	const struct options *options = job->options;

	if (job->fill == options->window) {
		job->base += options->window;
		write_all(job->fd, job->window, options->window, true, job->base);
		job->fill = 0;
	}
	memcpy(job->window + job->fill, job->record, options->record_bytes);
	job->fill += options->record_bytes;
}

static void window_flush(struct job *job)
{
	write_all(job->fd, job->window, job->fill, true, job->base);
	job->base += job->fill;
	job->fill = 0;
	if (job->header)
		atomic_store_explicit(&job->header->flushed, job->base, memory_order_release);
}

static void window_put(struct job *job)
{
	const struct options *options = job->options;

	memcpy(job->window + job->fill, job->record, options->record_bytes);
	job->fill += options->record_bytes;
	if (job->header)
		atomic_store_explicit(&job->header->accepted, job->base + job->fill, memory_order_release);
	if (job->fill == options->window)
		window_flush(job);
}

static void batch_put(struct job *job)
{
	if (job->options->verbatim)
		batch_put_verbatim(job);
	else
		window_put(job);
}

static void window_finish(struct job *job)
{
	if (job->fill && !job->options->verbatim)
		window_flush(job);
}

static void anon_open(struct job *job)
{
	job->fd = open_data(job, O_DIRECT);
	job->window = lab_buffer(job->options->window);
}

const struct method *method_find(const char *name)
{
	static const struct method methods[] = {
		{"write", write_open, write_put, finish_nothing},
		{"fwrite", fwrite_open, fwrite_put, fwrite_finish},
		{"mmap", mmap_open, mmap_put, mmap_finish},
		{"batch", batch_open, batch_put, window_finish},
		{"anon", anon_open, window_put, window_finish},
	};

	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
		if (!strcmp(methods[i].name, name))
			return &methods[i];
	return NULL;
}

uint64_t batch_recover(const struct options *options, uint64_t thread)
{
	struct job job = {.options = options, .thread = thread};
	uint64_t map_bytes = options->window + LAB_ALIGN;
	struct stat st;
	char path[4096];

	lab_path(path, sizeof(path), options->dir, "batch", thread);
	int fd = open(path, O_RDWR);

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &st))
		lab_die("%s", path);
	if ((uint64_t)st.st_size < map_bytes) { /* killed before the first record */
		close(fd);
		return 0;
	}
	job.window = map_window(fd, map_bytes, 0);
	close(fd);
	job.header = (void *)(job.window + options->window);
	uint64_t flushed = atomic_load_explicit(&job.header->flushed, memory_order_acquire);
	uint64_t accepted = atomic_load_explicit(&job.header->accepted, memory_order_acquire);

	if (accepted < flushed || accepted - flushed > options->window || accepted > file_bytes(options))
		lab_usage("%s: header says [%llu, %llu), which cannot be", path, (unsigned long long)flushed,
		          (unsigned long long)accepted);
	lab_path(path, sizeof(path), options->dir, "data", thread);
	job.fd = open(path, O_RDWR);
	if (job.fd < 0)
		lab_die("%s", path);
	job.base = flushed;
	job.fill = accepted - flushed;
	if (job.fill)
		window_flush(&job);
	close(job.fd);
	munmap(job.window, map_bytes);
	return accepted - flushed;
}
