// SPDX-License-Identifier: Apache-2.0
/*
 * sys: the only door from the core to the kernel.
 *
 * Every entry takes the system call's arguments and returns its result, or -errno; the C library's errno is
 * never touched and no entry is a cancellation point.  Tests replace single entries to inject short writes,
 * EINTR, ENOSPC and EIO.  `sys` starts as a copy of `sys_kernel`.
 */
#ifndef FASTWRITE_SYS_H
#define FASTWRITE_SYS_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The same on all machines; older headers lack them. */
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_UNSHARE 2u
#define CLOSE_RANGE_CLOEXEC 4u
#endif

struct sys {
	ssize_t (*read)(int fd, void *buf, size_t size);
	ssize_t (*pread)(int fd, void *buf, size_t size, off_t offset);
	ssize_t (*readv)(int fd, const struct iovec *iov, int count);
	ssize_t (*preadv)(int fd, const struct iovec *iov, int count, off_t offset);
	ssize_t (*write)(int fd, const void *buf, size_t size);
	ssize_t (*writev)(int fd, const struct iovec *iov, int count);
	ssize_t (*pwritev)(int fd, const struct iovec *iov, int count, off_t offset);
	ssize_t (*pwritev2)(int fd, const struct iovec *iov, int count, off_t offset, int flags);
	off_t (*lseek)(int fd, off_t offset, int whence);
	int (*fallocate)(int fd, int mode, off_t offset, off_t length);
	int (*ftruncate)(int fd, off_t length);
	int (*fsync)(int fd);
	int (*fdatasync)(int fd);
	int (*openat)(int dirfd, const char *path, int flags, mode_t mode);
	int (*close)(int fd);
	long (*fcntl)(int fd, int cmd, long arg);
	int (*statx)(int dirfd, const char *path, int flags, unsigned mask, struct statx *out);
	ssize_t (*readlinkat)(int dirfd, const char *path, char *buf, size_t size);
	int (*unlinkat)(int dirfd, const char *path, int flags);
	int (*mkdirat)(int dirfd, const char *path, mode_t mode);
	int (*renameat)(int fromfd, const char *from, int tofd, const char *to);
	int (*flock)(int fd, int operation);
	ssize_t (*getdents)(int fd, void *buf, size_t size);
	void *(*mmap)(void *addr, size_t size, int prot, int flags, int fd,
	              off_t offset); /* (void *)-errno */
	int (*munmap)(void *addr, size_t size);
};

extern struct sys sys;
extern const struct sys sys_kernel;

/* True for the (void *)-errno that sys.mmap returns on failure. */
static inline int sys_is_error(const void *p) { return (uintptr_t)p >= (uintptr_t)-4095; }

#if defined(__x86_64__)
static inline long sys_raw(long number, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;

	__asm__ volatile("syscall"
	                 : "=a"(result)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
	                 : "rcx", "r11", "memory");
	return result;
}
#elif defined(__aarch64__)
static inline long sys_raw(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
	                 : "+r"(x0)
	                 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
	                 : "memory", "cc");
	return x0;
}
#else
#error "libfastwrite supports LP64 Linux on x86-64 and aarch64"
#endif

static inline pid_t sys_getpid(void) { return (pid_t)sys_raw(SYS_getpid, 0, 0, 0, 0, 0, 0); }
static inline uint32_t sys_geteuid(void) { return (uint32_t)sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0); }
static inline uint32_t sys_getegid(void) { return (uint32_t)sys_raw(SYS_getegid, 0, 0, 0, 0, 0, 0); }
static inline pid_t sys_gettid(void) { return (pid_t)sys_raw(SYS_gettid, 0, 0, 0, 0, 0, 0); }

/* Shared memory of this process becomes a copy of its own, in the same place; without room for one it is read only. */
void sys_make_private(void *memory, size_t size);

/* A file's device number, as every module compares and stores it. */
static inline uint64_t sys_dev_of(const struct statx *st)
{
	return ((uint64_t)st->stx_dev_major << 32) | st->stx_dev_minor;
}

/* One entry of what sys.getdents fills the buffer with. */
struct sys_dirent {
	uint64_t ino;
	int64_t off;
	uint16_t reclen;
	uint8_t type;
	char name[];
};

/* The entries of the directory `fd` from its position on; the caller gives a buffer, aligned for sys_dirent. */
struct sys_dir {
	int fd;
	void *buf;
	size_t size;
	ssize_t at, filled; /* filled < 0: -errno, and the rest is not known */
};
/* The next one, until the next call; NULL after the last, or when they cannot be read. */
const struct sys_dirent *sys_dir_next(struct sys_dir *d);
/* Of /proc/self/fd; -1: no number. */
int sys_dirent_fd(const struct sys_dirent *d);

/* The kernel's signal set: one bit for each of 64 signals, also those that the C library hides. */
typedef uint64_t sys_sigset;

static inline sys_sigset sys_block_signals(void)
{
	sys_sigset all = ~(sys_sigset)0;
	sys_sigset old = 0;

	sys_raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&old, sizeof all, 0, 0);
	return old;
}

static inline void sys_restore_signals(sys_sigset old)
{
	sys_raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&old, 0, sizeof old, 0, 0);
}

/*
 * Around calls of our own that may raise SIGPIPE or SIGXFSZ, which would kill the program: what they raise is taken
 * back before the program's mask is restored.  One that was pending before stays pending.
 */
struct sys_quiet {
	sys_sigset before, pending;
};
void sys_quiet_begin(struct sys_quiet *q);
void sys_quiet_end(const struct sys_quiet *q);

/* RLIMIT_FSIZE now: the kernel answers EFBIG and SIGXFSZ to what goes beyond. */
uint64_t sys_file_limit(void);

/*
 * For bytes that were accepted already, by another member of the family or a process that has died: the limit of this
 * process on the size of files was not theirs.  Like the entries above, but what ends beyond the limit is written by a
 * task of its own, without one; -EFBIG when there can be none.  Signals blocked.
 */
ssize_t sys_pwritev_accepted(int fd, const struct iovec *iov, int count, off_t offset);
ssize_t sys_pwritev2_accepted(int fd, const struct iovec *iov, int count, off_t offset, int flags);
ssize_t sys_append_accepted(int fd, const struct iovec *iov, int count);

long sys_futex_wait(uint32_t *word, uint32_t expected, const struct timespec *relative);
void sys_futex_wake(uint32_t *word, int count);

/* On a file system of this statfs.f_type a page that is written again gets a new place. */
bool sys_copies_on_write(unsigned kind);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t sys_now_ns(void);
/* CLOCK_REALTIME_COARSE: never later than the time stamp that a change of a file gets from now on. */
int64_t sys_wall_ns(void);

/* A copy of the descriptor, close-on-exec, with a number that RLIMIT_NOFILE keeps from the program.  -errno when it has
 * one already, or may not raise the limit for a moment in a task beside this process. */
int sys_dup_beyond(int fd);

/*
 * Calls `act` where closing a descriptor drops none of this process's POSIX locks: in a child with the same memory and a
 * copy of the descriptors, while this thread waits.  Where no child can be had (RLIMIT_NPROC, seccomp), right here.  Signals
 * are blocked.
 */
void sys_apart(void (*act)(void *ctx), void *ctx);

static inline void sys_nap(uint64_t ns)
{
	struct timespec nap = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	sys_raw(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
}

/* Reads a whole small file into buf, NUL-terminates; bytes read or -errno. */
ssize_t sys_read_file(const char *path, char *buf, size_t size);

/* All `size` bytes at `offset`: 0; -EBADMSG: the file ends before; other -errno. */
int sys_read_all(int fd, void *buf, uint64_t size, uint64_t offset);

/* The file has its one name: nobody has removed it since it was made. */
bool sys_still_linked(int fd);

#endif
