// SPDX-License-Identifier: Apache-2.0
/*
 * What the hook programs share.  They pass with and without the library; tests/test_hooks.py runs them both
 * ways, in an empty directory on a disk, and looks at the statistics whether anything was staged.
 */
#ifndef HOOK_TEST_H
#define HOOK_TEST_H

#include <dlfcn.h>
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
#include <time.h>
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

/* FASTWRITE_TEST_LONG=1: what takes some of its cases takes all. */
static inline bool is_long(void)
{
	const char *is = getenv("FASTWRITE_TEST_LONG");

	return is && strcmp(is, "1") == 0;
}

/* Which cases those are: another number in each run.  FASTWRITE_TEST_SEED=N repeats it. */
static inline unsigned begin_of_run(void)
{
	const char *seed = getenv("FASTWRITE_TEST_SEED");
	static unsigned begin;

	if (begin == 0) {
		begin = seed ? (unsigned)atoi(seed) % 997 : (unsigned)time(NULL) % 997;
		begin += 1;
		print_message("FASTWRITE_TEST_SEED=%u\n", begin - 1);
	}
	return begin;
}

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

/* Older headers lack these. */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef P_PIDFD
#define P_PIDFD 3
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2u
#define CLOSE_RANGE_CLOEXEC 4u
#endif

/* What an older C library lacks: a preloaded library that has it is asked, as by a program that looks for it.
 */
#if !__GLIBC_PREREQ(2, 34)
static inline int old_close_range(unsigned from, unsigned to, int flags)
{
	int (*found)(unsigned, unsigned, int) = dlsym(RTLD_DEFAULT, "close_range");

	return found ? found(from, to, flags) : (int)syscall(SYS_close_range, from, to, flags);
}
static inline void old_closefrom(int from)
{
	void (*found)(int) = dlsym(RTLD_DEFAULT, "closefrom");

	if (found)
		found(from);
	else
		old_close_range((unsigned)from, ~0u, 0);
}
static inline int old_execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	int (*found)(int, const char *, char *const[], char *const[], int) = dlsym(RTLD_DEFAULT, "execveat");

	return found ? found(dirfd, path, argv, env, flags)
	             : (int)syscall(SYS_execveat, dirfd, path, argv, env, flags);
}
#define close_range old_close_range
#define closefrom old_closefrom
#define execveat old_execveat
#define _Fork fork
#endif

/* A system call of our own, past the C library and past any hook: what the kernel knows now. */
static inline long raw_call(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	long result;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
	                 : "rcx", "r11", "memory");
	return result;
#else
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory", "cc");
	return x0;
#endif
}

static inline off_t kernel_size(const char *path)
{
	struct stat st;

	assert_int_equal(raw_call(SYS_newfstatat, AT_FDCWD, (long)path, (long)&st, 0), 0);
	return st.st_size;
}

/* The end of a child that could not even write the statistics any more: its arena stays behind ... */
static inline void leave(void) { raw_call(SYS_exit_group, 0, 0, 0, 0); }

/* ... and is removed by whoever opens a file there. */
static inline void clean_up(void)
{
	OK(close(open_new("cleaned", 0)));
	OK(close(OK(open("cleaned", O_WRONLY))));
	OK(unlink("cleaned"));
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

/* In a test that the thread sanitizer and the library cannot pass together: what the former does. */
#ifdef __SANITIZE_THREAD__
#define NOT_WITH_TSAN(does) \
	do { \
		if (getenv("LD_PRELOAD")) { \
			print_message("the thread sanitizer %s\n", does); \
			skip(); \
		} \
	} while (0)
#else
#define NOT_WITH_TSAN(does) (void)(does)
#endif
#define TSAN_HOLDS_BACK "holds back what the library's own system call raises"

#endif
