// SPDX-License-Identifier: Apache-2.0
/*
 * What the hook programs share.  They pass with and without the library; tests/test_hooks.py runs them both
 * ways, in an empty directory on a disk, and looks at the statistics whether anything was staged.
 */
#ifndef HOOK_TEST_H
#define HOOK_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A call must succeed and leave errno alone. */
#define OK(call) \
	({ \
		errno = 4242; \
		__typeof__(call) result_ = (call); \
		if ((long)result_ < 0) \
			fail_msg("%s: %s", #call, strerror(errno)); \
		if (errno != 4242) \
			fail_msg("%s changed errno to %d", #call, errno); \
		result_; \
	})

#define FAILS(call, with) \
	do { \
		errno = 0; \
		assert_int_equal((long)(call), -1); \
		assert_int_equal(errno, with); \
	} while (0)

/* So many small writes that the file is engaged and bytes are staged. */
enum { RECORD = 100, RECORDS = 20, STAGED = RECORD * RECORDS };

static inline void record_fill(char *record, unsigned number)
{
	char text[16];

	snprintf(text, sizeof text, "%08u ", number);
	for (int i = 0; i < RECORD - 1; i++)
		record[i] = text[i % 9];
	record[RECORD - 1] = '\n';
}

static inline void write_records(int fd, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		assert_int_equal(OK(write(fd, record, RECORD)), RECORD);
	}
}

static inline void check_records(const char *bytes, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		record_fill(record, from + i);
		if (memcmp(bytes + (size_t)i * RECORD, record, RECORD) != 0)
			fail_msg("record %u is wrong: %.20s", from + i, bytes + (size_t)i * RECORD);
	}
}

/* Opened afresh, so that nothing of the writer's state is in the way.  The caller frees. */
static inline char *file_bytes(const char *path, size_t *size)
{
	int fd = OK(open(path, O_RDONLY | O_CLOEXEC));
	struct stat st;
	char *bytes;
	size_t at = 0;

	assert_int_equal(fstat(fd, &st), 0);
	bytes = malloc((size_t)st.st_size + 1);
	while (at < (size_t)st.st_size) {
		ssize_t n = read(fd, bytes + at, (size_t)st.st_size - at);

		assert_true(n > 0);
		at += (size_t)n;
	}
	OK(close(fd));
	*size = at;
	return bytes;
}

static inline void check_file(const char *path, unsigned from, unsigned count)
{
	size_t size;
	char *bytes = file_bytes(path, &size);

	assert_int_equal(size, (size_t)count * RECORD);
	check_records(bytes, from, count);
	free(bytes);
}

static inline int open_new(const char *path, int more)
{
	return OK(open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0644));
}

/* A fresh file with STAGED bytes, most of them staged. */
static inline int open_staged(const char *path, int more)
{
	int fd = open_new(path, more);

	write_records(fd, 0, RECORDS);
	return fd;
}

/* The child (-1: any) ends with this status. */
static inline void check_exit(pid_t pid, int status)
{
	int got;

	assert_true(waitpid(pid, &got, 0) > 0);
	if (!WIFEXITED(got))
		fail_msg("the child died of signal %d", WTERMSIG(got));
	assert_int_equal(WEXITSTATUS(got), status);
}

/* Descriptors that were inherited would be taken for leaks; before anything is open. */
static inline void close_inherited(void) { syscall(SYS_close_range, 3, ~0u, 0); }

/* In a child, where cmocka's longjmp must not be used. */
#define CHILD(condition) \
	do { \
		if (!(condition)) { \
			dprintf(2, "%s:%d in the child: %s (errno %d)\n", __FILE__, __LINE__, #condition, \
			        errno); \
			_exit(99); \
		} \
	} while (0)

#endif
