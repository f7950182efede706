// SPDX-License-Identifier: Apache-2.0
/*
 * sys: the system-call table, the only way from the core to the kernel.
 *
 * Every entry takes the system call's arguments and returns its result or -errno.  The C library's errno is
 * never touched, and no entry is a cancellation point.  Tests replace single entries to inject short writes,
 * EINTR, ENOSPC and EIO.  `sys` starts as a copy of `sys_kernel`.
 */
#ifndef FASTWRITE_BASE_SYS_H
#define FASTWRITE_BASE_SYS_H

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
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
#ifndef SYS_quotactl_fd
#define SYS_quotactl_fd 443
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

/* Replaces shared memory by a private copy at the same address.  Without memory for the copy it becomes
 * read-only. */
void sys_make_private(void *memory, size_t size);

/* A file's device number in the form that all modules compare and store. */
static inline uint64_t sys_dev_of(const struct statx *st)
{
	return ((uint64_t)st->stx_dev_major << 32) | st->stx_dev_minor;
}
/* The same of st_dev in a struct stat. */
static inline uint64_t sys_dev_of_stat(const struct stat *st)
{
	return ((uint64_t)major(st->st_dev) << 32) | minor(st->st_dev);
}

/* One directory entry of sys.getdents. */
struct sys_dirent {
	uint64_t ino;
	int64_t off;
	uint16_t reclen;
	uint8_t type;
	char name[];
};

/* Reads the directory `fd` from its position on.  The caller's buffer is aligned for sys_dirent. */
struct sys_dir {
	int fd;
	void *buf;
	size_t size;
	ssize_t at, filled; /* filled < 0: -errno; the remaining entries are not known */
};
/* The next entry, valid until the next call; NULL after the last one, or on an error. */
const struct sys_dirent *sys_dir_next(struct sys_dir *d);
/* The descriptor that an entry of /proc/self/fd names; -1: none. */
int sys_dirent_fd(const struct sys_dirent *d);

/* The kernel's signal set: one bit for each of 64 signals, including those that the C library hides. */
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
 * Encloses our own calls that may raise SIGPIPE or SIGXFSZ, which would kill the program.  A signal raised
 * between begin and end is taken back before the program's mask is restored.  A signal that was pending
 * before stays pending.
 */
struct sys_quiet {
	sys_sigset before, pending;
};
void sys_quiet_begin(struct sys_quiet *q);
void sys_quiet_end(const struct sys_quiet *q);

/* RLIMIT_FSIZE now.  To a write beyond it the kernel answers EFBIG and SIGXFSZ. */
uint64_t sys_file_limit(void);

/*
 * Write bytes that another process accepted: a living one of the family, or a dead one.  RLIMIT_FSIZE of this
 * process did not apply to it.  A write that ends beyond the limit is made by a separate task without the
 * limit; -EFBIG if that task cannot be made.  Otherwise as the entries above.  Signals blocked.
 */
ssize_t sys_pwritev_accepted(int fd, const struct iovec *iov, int count, off_t offset);
ssize_t sys_pwritev2_accepted(int fd, const struct iovec *iov, int count, off_t offset, int flags);
ssize_t sys_append_accepted(int fd, const struct iovec *iov, int count);

long sys_futex_wait(uint32_t *word, uint32_t expected, const struct timespec *relative);
void sys_futex_wake(uint32_t *word, int count);

/* A file system of this statfs.f_type writes a changed page to a new place. */
bool sys_copies_on_write(unsigned kind);
/* One of this f_type has its files on a disk, as far as is known: not in memory, nor at a server. */
bool sys_has_disk(unsigned kind);
/* Waits while the file system of fd is frozen: a write of no bytes waits for that, and changes nothing. */
void sys_wait_thawed(int fd);
/* Reserves [from, to) and keeps the size of the file.  0 or -errno. */
int sys_reserve(int fd, uint64_t from, uint64_t to);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t sys_now_ns(void);
/* CLOCK_MONOTONIC_COARSE: up to 10 ms old, and costs a tenth. */
uint64_t sys_now_coarse_ns(void);
/* CLOCK_REALTIME_COARSE.  Never later than the time stamp of a file that is changed from now on. */
int64_t sys_wall_ns(void);
/* Not earlier than the time of a file that was changed before. */
int64_t sys_wall_fine_ns(void);

/* Duplicates fd, close-on-exec, to a descriptor above RLIMIT_NOFILE, which the program cannot use itself.  A
 * separate task raises the limit for a moment.  -errno if it may not, or if fd lies above the limit already.
 */
int sys_dup_beyond(int fd);

/* After unshare(CLONE_NEWPID) or setns the next child of this thread is in another pid namespace.  The first
 * process of a namespace takes it along when it ends: the program could fork no more.  And this thread can
 * make no thread. */
bool sys_children_go_elsewhere(void);
/*
 * Calls `act` in a child with the same memory and descriptors of its own, of which only 0 to 2 are open,
 * while this thread waits.  Closing a file there drops none of this process's POSIX locks.  If no child can
 * be made (RLIMIT_NPROC, seccomp), or only in another pid namespace, calls `act` here.  Signals are blocked.
 */
void sys_apart(void (*act)(void *ctx), void *ctx);
/* The pid of this process, also in such a child. */
pid_t sys_program_pid(void);

static inline void sys_nap(uint64_t ns)
{
	struct timespec nap = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	sys_raw(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
}

/* Reads a small file into buf and NUL-terminates it.  Bytes read, or -errno. */
ssize_t sys_read_file(const char *path, char *buf, size_t size);

/* Reads exactly `size` bytes at `offset`.  0; -EBADMSG: the file ends before; other -errno. */
int sys_read_all(int fd, void *buf, uint64_t size, uint64_t offset);

/* True if the file's link count is 1: its name has not been removed. */
bool sys_still_linked(int fd);

/* True if the file has a set-id bit or a capability, which the kernel takes at each write and truncation. st:
 * its mode. */
bool sys_has_rights(int fd, const struct statx *st);

#endif
