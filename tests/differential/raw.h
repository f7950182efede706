// SPDX-License-Identifier: Apache-2.0
/*
 * raw: system calls that nothing can interpose.  What the machine itself needs to know (which inode is this?)
 * and do (wait for its turn) must be the same with and without the library, and must not wake it.
 */
#ifndef DIFFERENTIAL_RAW_H
#define DIFFERENTIAL_RAW_H

#include <fcntl.h>
#include <linux/futex.h>
#include <linux/stat.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

static inline long raw(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long r;

	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return r;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
	                 : "+r"(x0)
	                 : "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5), "r"(x8)
	                 : "memory");
	return x0;
#else
#error "no raw system calls for this machine"
#endif
}

struct identity {
	uint64_t dev, ino; /* ino 0: nothing there */
};

static inline bool raw_same(struct identity a, struct identity b)
{
	return a.ino != 0 && a.ino == b.ino && a.dev == b.dev;
}

/* Of a path, or with an empty path of the descriptor. */
static inline struct identity raw_identity(int dirfd, const char *path, int flags)
{
	struct statx st;

	if (raw(SYS_statx, dirfd, (long)path, flags, STATX_INO | STATX_TYPE, (long)&st, 0) < 0 ||
	    (st.stx_mode & 0170000) != 0100000)
		return (struct identity){0, 0};
	return (struct identity){(uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor, st.stx_ino};
}

static inline struct identity raw_identity_fd(int fd)
{
	return raw_identity(fd, "", 0x1000 /* AT_EMPTY_PATH */);
}

static inline void raw_wait(uint32_t *word, uint32_t seen, long milliseconds)
{
	struct timespec ts = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

	raw(SYS_futex, (long)word, FUTEX_WAIT, seen, (long)&ts, 0, 0);
}

static inline void raw_wake(uint32_t *word) { raw(SYS_futex, (long)word, FUTEX_WAKE, 1 << 20, 0, 0, 0); }

#endif
