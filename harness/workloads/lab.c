// SPDX-License-Identifier: Apache-2.0
/* lab: see lab.h. */
#include "lab.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

uint64_t lab_record_word(uint64_t thread, uint64_t record)
{
	return LAB_TAG << 56 | thread << 40 | (record & ((UINT64_C(1) << 40) - 1));
}

bool lab_record_unpack(uint64_t word, uint64_t *thread, uint64_t *record)
{
	if (word >> 56 != LAB_TAG)
		return false;
	*thread = word >> 40 & 0xffff;
	*record = word & ((UINT64_C(1) << 40) - 1);
	return true;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* A sum per word, so that the compiler can use vector registers: producing a record must cost little
 * beside writing it. */
#if defined(__x86_64__) && defined(__GLIBC__)
__attribute__((target_clones("avx2", "default")))
#endif
void lab_record_fill(void *out, size_t bytes, uint64_t thread, uint64_t record)
{
	uint64_t *words = out;
	uint64_t first = lab_record_word(thread, record);
	uint64_t seed = mix(first);
	size_t count = (bytes + 7) / 8;

	for (size_t k = 1; k < count; k++)
		words[k] = seed + k * STEP;
	words[0] = first;
}

static void *map_file(int fd, size_t size, int prot, const char *path)
{
	void *map = mmap(NULL, size, prot, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		lab_die("%s: mmap", path);
	close(fd);
	return map;
}

struct lab_progress *lab_progress_create(const char *path, uint64_t threads, uint64_t records,
                                         uint64_t record_bytes)
{
	size_t size = LAB_PROGRESS_HEADER + threads * sizeof(struct lab_progress_slot);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	int err;

	if (fd < 0)
		lab_die("%s", path);
	err = posix_fallocate(fd, 0, (off_t)size);
	if (err) {
		errno = err;
		lab_die("%s: posix_fallocate", path);
	}
	struct lab_progress *progress = map_file(fd, size, PROT_READ | PROT_WRITE, path);

	progress->header.threads = threads;
	progress->header.records = records;
	progress->header.record_bytes = record_bytes;
	progress->header.magic = LAB_PROGRESS_MAGIC;
	return progress;
}

const struct lab_progress *lab_progress_open(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st))
		lab_die("%s", path);
	if (st.st_size < LAB_PROGRESS_HEADER)
		lab_usage("%s: too short for a progress file", path);
	const struct lab_progress *progress = map_file(fd, (size_t)st.st_size, PROT_READ, path);
	uint64_t threads = progress->header.threads;

	if (progress->header.magic != LAB_PROGRESS_MAGIC || threads > LAB_THREADS_MAX ||
	    (uint64_t)st.st_size < LAB_PROGRESS_HEADER + threads * sizeof(struct lab_progress_slot))
		lab_usage("%s: not a progress file", path);
	return progress;
}

uint64_t lab_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void *lab_buffer(size_t bytes)
{
	void *buffer = NULL;
	size_t rounded = (bytes + LAB_ALIGN - 1) / LAB_ALIGN * LAB_ALIGN;

	if (posix_memalign(&buffer, LAB_ALIGN, rounded))
		lab_die("%zu bytes of memory", rounded);
	memset(buffer, 0, rounded);
	return buffer;
}

void lab_die(const char *format, ...)
{
	int err = errno;
	va_list args;

	va_start(args, format);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, args);
	fprintf(stderr, ": %s\n", strerror(err));
	va_end(args);
	exit(LAB_EXIT_FAILED);
}

void lab_usage(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "%s: ", program_invocation_short_name);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	exit(LAB_EXIT_USAGE);
}

uint64_t lab_number(const char *option, const char *text, uint64_t low, uint64_t high)
{
	char *end;

	errno = 0;
	unsigned long long value = strtoull(text, &end, 10);

	if (errno || end == text || *end || text[0] == '-' || value < low || value > high)
		lab_usage("--%s: '%s' is not a number from %llu to %llu", option, text,
		          (unsigned long long)low, (unsigned long long)high);
	return value;
}

int lab_choice(const char *option, const char *text, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(text, names[i]))
			return i;
	lab_usage("--%s: '%s' is unknown", option, text);
}

void lab_path(char *out, size_t size, const char *dir, const char *name, uint64_t n)
{
	int length = snprintf(out, size, "%s/%s%llu", dir, name, (unsigned long long)n);

	if (length < 0 || (size_t)length >= size)
		lab_usage("%s: path too long", dir);
}
