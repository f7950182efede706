// SPDX-License-Identifier: Apache-2.0
/* sys: see base/sys.h.  Raw system calls: no interposed symbol, no errno. */
#include "base/sys.h"

#include "base/process_pages.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define CALL0(n) sys_raw(n, 0, 0, 0, 0, 0, 0)
#define CALL1(n, a) sys_raw(n, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(n, a, b) sys_raw(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(n, a, b, c) sys_raw(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL4(n, a, b, c, d) sys_raw(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL5(n, a, b, c, d, e) sys_raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL6(n, a, b, c, d, e, f) \
	sys_raw(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static ssize_t k_read(int fd, void *buf, size_t size) { return CALL3(SYS_read, fd, buf, size); }
static ssize_t k_pread(int fd, void *buf, size_t size, off_t offset)
{
	return CALL4(SYS_pread64, fd, buf, size, offset);
}
static ssize_t k_readv(int fd, const struct iovec *iov, int count)
{
	return CALL3(SYS_readv, fd, iov, count);
}
static ssize_t k_preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
	return CALL5(SYS_preadv, fd, iov, count, offset, 0);
}
static ssize_t k_write(int fd, const void *buf, size_t size) { return CALL3(SYS_write, fd, buf, size); }
static ssize_t k_writev(int fd, const struct iovec *iov, int count)
{
	return CALL3(SYS_writev, fd, iov, count);
}
static ssize_t k_pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	return sys_raw(SYS_pwritev2, fd, (long)iov, count, offset, 0, flags);
}
static ssize_t k_pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	return CALL5(SYS_pwritev, fd, iov, count, offset, 0);
}
static off_t k_lseek(int fd, off_t offset, int whence) { return CALL3(SYS_lseek, fd, offset, whence); }
static int k_fallocate(int fd, int mode, off_t offset, off_t length)
{
	return (int)CALL4(SYS_fallocate, fd, mode, offset, length);
}
static int k_ftruncate(int fd, off_t length) { return (int)CALL2(SYS_ftruncate, fd, length); }
static int k_fsync(int fd) { return (int)CALL1(SYS_fsync, fd); }
static int k_fdatasync(int fd) { return (int)CALL1(SYS_fdatasync, fd); }
static int k_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	return (int)CALL4(SYS_openat, dirfd, path, flags, mode);
}
PROCESS_CODE static int k_close(int fd) { return (int)CALL1(SYS_close, fd); }
PROCESS_CODE static long k_fcntl(int fd, int cmd, long arg) { return CALL3(SYS_fcntl, fd, cmd, arg); }
static int k_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	return (int)CALL5(SYS_statx, dirfd, path, flags, mask, out);
}
static ssize_t k_readlinkat(int dirfd, const char *path, char *buf, size_t size)
{
	return CALL4(SYS_readlinkat, dirfd, path, buf, size);
}
static int k_unlinkat(int dirfd, const char *path, int flags)
{
	return (int)CALL3(SYS_unlinkat, dirfd, path, flags);
}
static int k_mkdirat(int dirfd, const char *path, mode_t mode)
{
	return (int)CALL3(SYS_mkdirat, dirfd, path, mode);
}
static int k_renameat(int fromfd, const char *from, int tofd, const char *to)
{
	return (int)CALL5(SYS_renameat2, fromfd, from, tofd, to, 0);
}
static int k_flock(int fd, int operation) { return (int)CALL2(SYS_flock, fd, operation); }
static ssize_t k_getdents(int fd, void *buf, size_t size) { return CALL3(SYS_getdents64, fd, buf, size); }
static void *k_mmap(void *addr, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p = (void *)CALL6(SYS_mmap, addr, size, prot, flags, fd, offset);

	/* after mlockall(MCL_FUTURE) it would count against the program's RLIMIT_MEMLOCK */
	if (!sys_is_error(p))
		CALL2(SYS_munlock, p, size);
	return p;
}
static int k_munmap(void *addr, size_t size) { return (int)CALL2(SYS_munmap, addr, size); }

#define KERNEL_TABLE \
	{ \
		.read = k_read, \
		.pread = k_pread, \
		.readv = k_readv, \
		.preadv = k_preadv, \
		.write = k_write, \
		.writev = k_writev, \
		.pwritev = k_pwritev, \
		.pwritev2 = k_pwritev2, \
		.lseek = k_lseek, \
		.fallocate = k_fallocate, \
		.ftruncate = k_ftruncate, \
		.fsync = k_fsync, \
		.fdatasync = k_fdatasync, \
		.openat = k_openat, \
		.close = k_close, \
		.fcntl = k_fcntl, \
		.statx = k_statx, \
		.readlinkat = k_readlinkat, \
		.unlinkat = k_unlinkat, \
		.mkdirat = k_mkdirat, \
		.renameat = k_renameat, \
		.flock = k_flock, \
		.getdents = k_getdents, \
		.mmap = k_mmap, \
		.munmap = k_munmap, \
	}

const struct sys sys_kernel = KERNEL_TABLE;
struct sys sys = KERNEL_TABLE;

static const sys_sigset quiet_signals = ((sys_sigset)1 << (SIGPIPE - 1)) | ((sys_sigset)1 << (SIGXFSZ - 1));

void sys_quiet_begin(struct sys_quiet *q)
{
	q->before = q->pending = 0;
	CALL4(SYS_rt_sigprocmask, SIG_BLOCK, &quiet_signals, &q->before, sizeof quiet_signals);
	CALL2(SYS_rt_sigpending, &q->pending, sizeof q->pending);
}

void sys_quiet_end(const struct sys_quiet *q)
{
	const struct timespec now = {0};
	const sys_sigset take = quiet_signals & ~q->pending;
	sys_sigset raised = 0;

	CALL2(SYS_rt_sigpending, &raised, sizeof raised);
	if (raised & take)
		while (CALL4(SYS_rt_sigtimedwait, &take, 0, &now, sizeof take) > 0)
			;
	CALL4(SYS_rt_sigprocmask, SIG_SETMASK, &q->before, 0, sizeof q->before);
}

struct limit {
	uint64_t soft, hard;
};

static struct limit limit_of(int resource)
{
	struct limit limit = {UINT64_MAX, UINT64_MAX};

	CALL4(SYS_prlimit64, 0, resource, 0, &limit);
	return limit;
}

uint64_t sys_file_limit(void) { return limit_of(RLIMIT_FSIZE).soft; }

struct errand {
	int resource;       /* RLIMIT_... that is too low */
	struct limit limit; /* wanted; at most the hard limit if that cannot be raised */
	long number, a, b, c, d, e, f;
	volatile long result;
};

static __attribute__((noinline, noreturn)) void run_errand(struct errand *w)
{
	/* this task shares the program's memory and descriptors, but not its limits */
	if (CALL4(SYS_prlimit64, 0, w->resource, &w->limit, 0) < 0 &&
	    CALL4(SYS_prlimit64, 0, w->resource, 0, &w->limit) == 0) {
		w->limit.soft = w->limit.hard;
		CALL4(SYS_prlimit64, 0, w->resource, &w->limit, 0);
	}
	w->result = sys_raw(w->number, w->a, w->b, w->c, w->d, w->e, w->f);
	for (;;)
		CALL1(SYS_exit_group, 0);
}

/* (The kernel shows no namespace that has no process yet.  Without /proc nobody can tell.) */
bool sys_children_go_elsewhere(void)
{
	struct statx here, there;

	return k_statx(AT_FDCWD, "/proc/thread-self/ns/pid", 0, STATX_INO, &here) == 0 &&
	       (k_statx(AT_FDCWD, "/proc/thread-self/ns/pid_for_children", 0, STATX_INO, &there) < 0 ||
	        here.stx_ino != there.stx_ino);
}

/* The task runs on this stack while the caller waits.  Its end raises no signal, and no wait() of the program
 * sees it. */
static __attribute__((noinline)) long run_beside(struct errand *w, long refused)
{
	long pid;

	if (sys_children_go_elsewhere())
		return refused;
	pid = CALL1(SYS_clone, CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_FS);
	if (pid == 0)
		run_errand(w);
	if (pid < 0)
		return refused;
	while (CALL4(SYS_wait4, pid, 0, __WCLONE, 0) == -EINTR)
		;
	return w->result;
}

/* Runs it without RLIMIT_FSIZE. */
static long run_unlimited(struct errand *w)
{
	w->resource = RLIMIT_FSIZE;
	w->limit = (struct limit){UINT64_MAX, UINT64_MAX};
	return run_beside(w, -EFBIG);
}

int sys_dup_beyond(int fd)
{
	enum { ROOM = 64 }; /* for descriptors that are above the limit already */
	struct limit now = limit_of(RLIMIT_NOFILE);
	sys_sigset signals;
	long r;
	struct errand w = {.resource = RLIMIT_NOFILE,
	                   .number = SYS_fcntl,
	                   .a = fd,
	                   .b = F_DUPFD_CLOEXEC,
	                   .c = (long)now.soft,
	                   .result = -EINTR};

	if ((uint64_t)fd >= now.soft || now.soft > INT_MAX - ROOM)
		return -EMFILE;
	w.limit.soft = now.soft + ROOM;
	w.limit.hard = now.hard > w.limit.soft ? now.hard : w.limit.soft;
	signals = sys_block_signals();
	r = run_beside(&w, -EMFILE);
	sys_restore_signals(signals);
	return (int)r;
}

/* In a child of sys_apart, which has this thread's memory: the process that waits for it; else 0. */
static __thread pid_t apart_of;

pid_t sys_program_pid(void) { return apart_of ? apart_of : sys_getpid(); }

static __attribute__((noinline, noreturn)) void run_apart(void (*act)(void *ctx), void *ctx)
{
	/* When the program is killed meanwhile, its leases, locks and pipes end with it.  (Before Linux 5.9
	 * they end with this process.) */
	CALL3(SYS_close_range, STDERR_FILENO + 1, ~0u, 0);
	act(ctx);
	for (;;)
		CALL1(SYS_exit_group, 0);
}

__attribute__((noinline)) void sys_apart(void (*act)(void *ctx), void *ctx)
{
	pid_t outer = apart_of;
	long pid;

	if (sys_children_go_elsewhere()) {
		act(ctx);
		return;
	}
	apart_of = sys_program_pid();
	/* as above, but with descriptors of its own: to the kernel another owner of POSIX locks */
	pid = CALL1(SYS_clone, CLONE_VM | CLONE_VFORK | CLONE_FS);
	if (pid == 0)
		run_apart(act, ctx);
	apart_of = outer;
	if (pid < 0)
		act(ctx);
	else
		while (CALL4(SYS_wait4, pid, 0, __WCLONE, 0) == -EINTR)
			;
}

static bool beyond_limit(uint64_t at, const struct iovec *iov, int count)
{
	uint64_t limit = sys_file_limit();

	if (limit == UINT64_MAX)
		return false;
	for (int i = 0; i < count; i++)
		at += iov[i].iov_len;
	return at > limit;
}

ssize_t sys_pwritev_accepted(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct errand w = {
		.number = SYS_pwritev, .a = fd, .b = (long)iov, .c = count, .d = offset, .result = -EINTR};

	return beyond_limit((uint64_t)offset, iov, count) ? run_unlimited(&w)
	                                                  : sys.pwritev(fd, iov, count, offset);
}

ssize_t sys_pwritev2_accepted(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	struct errand w = {.number = SYS_pwritev2,
	                   .a = fd,
	                   .b = (long)iov,
	                   .c = count,
	                   .d = offset,
	                   .f = flags,
	                   .result = -EINTR};

	return beyond_limit((uint64_t)offset, iov, count) ? run_unlimited(&w)
	                                                  : sys.pwritev2(fd, iov, count, offset, flags);
}

ssize_t sys_append_accepted(int fd, const struct iovec *iov, int count)
{
	struct errand w = {.number = SYS_writev, .a = fd, .b = (long)iov, .c = count, .result = -EINTR};
	struct statx st;

	if (sys_file_limit() == UINT64_MAX || sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) < 0 ||
	    !beyond_limit(st.stx_size, iov, count))
		return sys.writev(fd, iov, count);
	return run_unlimited(&w);
}

void sys_make_private(void *memory, size_t size)
{
	uint64_t *copy = sys.mmap(NULL, size, PROT_READ | PROT_WRITE,
	                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	const uint64_t *words = memory;

	if (sys_is_error(copy)) {
		sys_raw(SYS_mprotect, (long)memory, (long)size, PROT_READ, 0, 0, 0);
		return;
	}
	/* skip zero words, so that a page of zeros takes no memory */
	for (size_t i = 0; i < size / sizeof *words; i++)
		if (words[i])
			copy[i] = words[i];
	sys_raw(SYS_mremap, (long)copy, (long)size, (long)size, MREMAP_MAYMOVE | MREMAP_FIXED, (long)memory,
	        0);
}

long sys_futex_wait(uint32_t *word, uint32_t expected, const struct timespec *relative)
{
	return CALL4(SYS_futex, word, FUTEX_WAIT, expected, relative);
}

void sys_futex_wake(uint32_t *word, int count) { CALL3(SYS_futex, word, FUTEX_WAKE, count); }

/* By the vDSO: async-signal-safe, never fails for these clocks. */
static int64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

int64_t sys_wall_ns(void) { return clock_ns(CLOCK_REALTIME_COARSE); }
int64_t sys_wall_fine_ns(void) { return clock_ns(CLOCK_REALTIME); }
uint64_t sys_now_ns(void) { return (uint64_t)clock_ns(CLOCK_MONOTONIC); }
uint64_t sys_now_coarse_ns(void) { return (uint64_t)clock_ns(CLOCK_MONOTONIC_COARSE); }

ssize_t sys_read_file(const char *path, char *buf, size_t size)
{
	int fd = sys.openat(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		return fd;
	do {
		n = sys.read(fd, buf + used, size - 1 - used);
		if (n > 0)
			used += (size_t)n;
	} while ((n > 0 && used < size - 1) || n == -EINTR);
	sys.close(fd);
	if (n < 0)
		return n;
	buf[used] = '\0';
	return (ssize_t)used;
}

int sys_read_all(int fd, void *buf, uint64_t size, uint64_t offset)
{
	uint8_t *to = buf;

	while (size > 0) {
		ssize_t n = sys.pread(fd, to, size, (off_t)offset);

		if (n == -EINTR)
			continue;
		if (n < 0)
			return (int)n;
		if (n == 0)
			return -EBADMSG;
		to += n;
		offset += (uint64_t)n;
		size -= (uint64_t)n;
	}
	return 0;
}

int sys_reserve(int fd, uint64_t from, uint64_t to)
{
	int r;

	do
		r = sys.fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
	while (r == -EINTR);
	return r;
}

void sys_wait_thawed(int fd) { sys_raw(SYS_pwrite64, fd, 0, 0, 0, 0, 0); }

bool sys_copies_on_write(unsigned kind)
{
	static const unsigned kinds[] = {0x9123683e /* btrfs */, 0xca451a4e /* bcachefs */,
	                                 0x2fc12fc1 /* zfs */, 0x3434 /* nilfs2 */};

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kind == kinds[i])
			return true;
	return false;
}

bool sys_has_disk(unsigned kind)
{
	static const unsigned kinds[] = {
		0x01021994 /* tmpfs */, 0x858458f6 /* ramfs */, 0x6969 /* NFS */,
		0x65735546 /* FUSE */,  0x01021997 /* 9p */,    0xff534d42 /* CIFS */,
		0xfe534d42 /* SMB2 */,  0x00c36400 /* Ceph */,  0x5346414f /* AFS */,
	};

	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (kind == kinds[i])
			return false;
	return true;
}

bool sys_still_linked(int fd)
{
	struct statx st;

	return sys.statx(fd, "", AT_EMPTY_PATH, STATX_NLINK, &st) == 0 && st.stx_nlink == 1;
}

bool sys_has_rights(int fd, const struct statx *st)
{
	return (st->stx_mode & (S_ISUID | S_ISGID)) ||
	       sys_raw(SYS_fgetxattr, fd, (long)"security.capability", 0, 0, 0, 0) > 0;
}

const struct sys_dirent *sys_dir_next(struct sys_dir *d)
{
	const struct sys_dirent *entry;

	if (d->at >= d->filled) {
		d->at = 0;
		d->filled = sys.getdents(d->fd, d->buf, d->size);
		if (d->filled <= 0)
			return NULL;
	}
	entry = (const struct sys_dirent *)(const void *)((const char *)d->buf + d->at);
	d->at += entry->reclen;
	return entry;
}

int sys_dirent_fd(const struct sys_dirent *d)
{
	const char *name = d->name;
	int value = 0;

	for (; *name >= '0' && *name <= '9'; name++)
		value = value * 10 + (*name - '0');
	return *name ? -1 : value;
}
