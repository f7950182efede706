// SPDX-License-Identifier: Apache-2.0
/* files: operations on descriptors and names; see machine.h. */
#include "machine.h"

#include <aio.h>
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
	VISIBLE_SLOTS = 8,
	STANDARD_SLOT = 8,
	HIGH_SLOT = 9,
	HIGH_FD = 45,
	PARTS_MAX = 16,
	RECENT = 1600000000
};

struct mapping {
	unsigned char *at;
	size_t length;
	struct identity file;
};
static struct mapping maps[MAPS];
static _Atomic int limit_signals; /* several threads may be over the limit at once */
static __thread sigjmp_buf fault_return;
static __thread volatile sig_atomic_t fault_expected;

/* ---- signals ---- */

void one_limit_signal(void)
{
	if (limit_signals > 1)
		limit_signals = 1;
}

static void on_limit(int signal)
{
	(void)signal;
	limit_signals++;
}

static void on_fault(int number)
{
	if (fault_expected)
		siglongjmp(fault_return, number);
	signal(number, SIG_DFL);
}

void files_start(void)
{
	struct sigaction limit = {.sa_handler = on_limit, .sa_flags = SA_RESTART};
	struct sigaction fault = {.sa_handler = on_fault, .sa_flags = SA_NODEFER};

	sigaction(SIGXFSZ, &limit, NULL);
	sigaction(SIGBUS, &fault, NULL);
	sigaction(SIGSEGV, &fault, NULL);
}

/* ---- slots ---- */

struct slot *slot_of(long which) { return &control->process[me].slot[which]; }
int fd_of(long which) { return slot_of(which)->fd; }

bool is_direct(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_DIRECT);
}

/* The descriptor that a slot has from now on; a description of its own, or shared with `like`. */
static void set_slot(long which, long fd, const struct slot *like)
{
	struct slot *s = slot_of(which);

	if (fd < 0)
		return;
	s->description = like ? like->description : new_description();
	s->fd = (int)fd;
}

static void close_slot(long which)
{
	struct slot *s = slot_of(which);

	if (s->fd < 0)
		return;
	fresh_errno();
	if (close(s->fd) != 0)
		say(" close-implied %d", errno);
	s->fd = -1;
	if (which == STANDARD_SLOT) /* or the next open would get it */
		raw(SYS_openat, AT_FDCWD, (long)"/dev/null", O_RDWR, 0, 0, 0);
	fresh_errno();
}

void slots_close_all(void)
{
	for (int i = 0; i < SLOTS; i++)
		close_slot(i);
}

static size_t capped(long n) { return n < 0 ? 0 : n > BUFFER ? BUFFER : (size_t)n; }

static long parts_of(long parts) { return parts < 1 ? 1 : parts > PARTS_MAX ? PARTS_MAX : parts; }

static int split(struct iovec *iov, unsigned char *buffer, size_t n, long wanted)
{
	long parts = parts_of(wanted);
	size_t each = n / (size_t)parts;

	for (long i = 0; i < parts; i++) {
		iov[i].iov_base = buffer + (size_t)i * each;
		iov[i].iov_len = i + 1 < parts ? each : n - (size_t)i * each;
	}
	return (int)parts;
}

static void say_read(long r, const unsigned char *buffer)
{
	say_result(r);
	if (r > 0)
		say(" %016lx", (unsigned long)digest(buffer, (size_t)r, 1));
}

/* ---- descriptors ---- */

/* slot file flags */
void op_open(const long *a)
{
	long fd;

	close_slot(a[0]);
	fd = open(name_of(a[1]), (int)a[2], 0644);
	say_result(fd);
	set_slot(a[0], fd, NULL);
}

/* slot file */
void op_creat(const long *a)
{
	long fd;

	close_slot(a[0]);
	fd = creat(name_of(a[1]), 0600);
	say_result(fd);
	set_slot(a[0], fd, NULL);
}

/* slot flags */
void op_tmpfile(const long *a)
{
	long fd;

	close_slot(a[0]);
	fd = open(place_of(""), (int)a[1] | O_TMPFILE, 0600);
	say_result(fd);
	set_slot(a[0], fd, NULL);
}

/* slot file: a name for a file that may have none */
void op_linktmp(const long *a)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd_of(a[0]));
	say_result(linkat(AT_FDCWD, path, AT_FDCWD, name_of(a[1]), AT_SYMLINK_FOLLOW));
}

/* slot to flags: another description of the same file */
void op_reopen(const long *a)
{
	char path[64];
	long fd;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd_of(a[0]));
	if (a[0] != a[1])
		close_slot(a[1]);
	fd = open(path, (int)a[2] & ~(O_CREAT | O_EXCL), 0644);
	say_result(fd);
	if (a[0] == a[1])
		close_slot(a[1]);
	set_slot(a[1], fd, NULL);
}

/* slot */
void op_close(const long *a)
{
	struct slot *s = slot_of(a[0]);

	if (a[0] == STANDARD_SLOT) {
		close_slot(a[0]);
		return;
	}
	say_result(close(s->fd));
	s->fd = -1;
}

/* slot to */
void op_dup(const long *a)
{
	long fd;

	if (a[0] != a[1])
		close_slot(a[1]);
	fd = dup(fd_of(a[0]));
	say_result(fd);
	if (a[0] == a[1])
		close_slot(a[1]);
	set_slot(a[1], fd, slot_of(a[0]));
}

static void onto(const long *a, bool three, int flags)
{
	struct slot *from = slot_of(a[0]), *to = slot_of(a[1]);
	long r = three ? dup3(from->fd, to->fd, flags) : dup2(from->fd, to->fd);

	say_result(r);
	if (r >= 0)
		to->description = from->description;
}

/* slot to: the descriptor that is there is replaced */
void op_dup2(const long *a) { onto(a, false, 0); }

/* slot to flags */
void op_dup3(const long *a) { onto(a, true, (int)a[2]); }

/* slot to */
void op_dupfd(const long *a)
{
	struct slot from = *slot_of(a[0]);
	long fd;

	if (a[0] != a[1])
		close_slot(a[1]);
	fresh_errno();
	fd = fcntl(from.fd, F_DUPFD_CLOEXEC, 20);
	say_result(fd);
	if (a[0] == a[1])
		close_slot(a[1]);
	set_slot(a[1], fd, &from);
}

/* slot which: onto descriptor 0 or 45 */
void op_dupto(const long *a)
{
	long to = a[1] ? HIGH_SLOT : STANDARD_SLOT;
	long fd = dup2(fd_of(a[0]), a[1] ? HIGH_FD : 0);

	say_result(fd);
	set_slot(to, fd, slot_of(a[0]));
}

/* flags: all slots at once, unless a stream has a descriptor among them */
void op_closerange(const long *a)
{
	struct process *p = &control->process[me];
	int from = INT_MAX, to = -1;

	for (int i = 0; i < VISIBLE_SLOTS; i++) {
		int fd = p->slot[i].fd;

		if (fd < 0)
			continue;
		from = fd < from ? fd : from;
		to = fd > to ? fd : to;
	}
	for (int i = 0; i < STREAMS; i++)
		if (p->stream[i].fd >= from && p->stream[i].fd <= to)
			to = -1;
	if (to < 0 || from < 3) {
		say(" no");
		return;
	}
	say_result(close_range((unsigned)from, (unsigned)to, (int)a[0]));
	if (a[0] & CLOSE_RANGE_CLOEXEC)
		return;
	for (int i = 0; i < SLOTS; i++)
		if (p->slot[i].fd >= from && p->slot[i].fd <= to)
			p->slot[i].fd = -1;
}

void op_getfl(const long *a) { say_result(fcntl(fd_of(a[0]), F_GETFL)); }
/* slot flags; O_DIRECT under a stream would make its reads depend on where the C library has its buffer */
void op_setfl(const long *a)
{
	const struct slot *s = slot_of(a[0]);

	for (int i = 0; (a[1] & O_DIRECT) && i < PROCESSES; i++)
		for (int k = 0; k < STREAMS; k++)
			if (control->process[i].stream[k].fd >= 0 &&
			    control->process[i].stream[k].description == s->description) {
				say(" no");
				return;
			}
	fresh_errno();
	say_result(fcntl(s->fd, F_SETFL, (int)a[1]));
}

void op_setfd(const long *a) { say_result(fcntl(fd_of(a[0]), F_SETFD, (int)a[1])); }

/* ---- writing ---- */

static void say_limit(void)
{
	if (limit_signals)
		say(" limit signals %d", limit_signals);
	limit_signals = 0;
}

static void say_written(long r)
{
	say_result(r);
	say_limit();
}

static const unsigned char *filled(size_t n, long seed)
{
	unsigned char *buffer = buffer_here();

	fill(buffer, n, (uint64_t)seed);
	fresh_errno();
	return buffer;
}

enum { SECTOR = 512 };

/*
 * With O_DIRECT the kernel may write the first sectors of what is not made of whole ones before it says
 * EINVAL, or not, as the extents of the file and the pages of the memory lie: it differs from run to run.
 * RLIMIT_FSIZE may cut a write to such a length.
 */
static bool unsure(int fd, size_t n, size_t unit)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	if (n <= SECTOR || !is_direct(fd))
		return false;
	getrlimit(RLIMIT_FSIZE, &limit);
	return n % unit || (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur % unit);
}

/* slot size seed */
void op_write(const long *a)
{
	size_t n = capped(a[1]);

	if (unsure(fd_of(a[0]), n, SECTOR))
		say(" no");
	else
		say_written(write(fd_of(a[0]), filled(n, a[2]), n));
}

/* slot size count seed: repeats one write, which is what a logger does */
void op_burst(const long *a)
{
	size_t n = capped(a[1]);
	long r = 0, total = 0;

	if (unsure(fd_of(a[0]), n, SECTOR)) {
		say(" no");
		return;
	}
	for (long i = 0; i < a[2]; i++) {
		r = write(fd_of(a[0]), filled(n, a[3] + i), n);
		if (r < 0)
			break;
		total += r;
	}
	say_written(r < 0 ? r : total);
}

/* slot size count stride seed: forth and back, so that pieces meet and overlap */
void op_scatter(const long *a)
{
	size_t n = capped(a[1]);
	long r = 0, total = 0;

	if (unsure(fd_of(a[0]), n, SECTOR)) {
		say(" no");
		return;
	}
	for (long i = 0; i < a[2]; i++) {
		r = pwrite(fd_of(a[0]), filled(n, a[4] + i), n, (off_t)(i * 7 % a[2]) * a[3]);
		if (r < 0)
			break;
		total += r;
	}
	say_written(r < 0 ? r : total);
}

/* slot size offset seed */
void op_pwrite(const long *a)
{
	size_t n = capped(a[1]);

	if (unsure(fd_of(a[0]), n, SECTOR))
		say(" no");
	else
		say_written(pwrite(fd_of(a[0]), filled(n, a[3]), n, a[2]));
}

/* slot size parts seed */
void op_writev(const long *a)
{
	struct iovec iov[PARTS_MAX];
	size_t n = capped(a[1]);

	if (unsure(fd_of(a[0]), n, n + 1)) {
		say(" no");
		return;
	}
	filled(n, a[3]);
	say_written(writev(fd_of(a[0]), iov, split(iov, buffer_here(), n, a[2])));
}

static void vector_at(const long *a, int flags, long seed)
{
	struct iovec iov[PARTS_MAX];
	size_t n = capped(a[1]);

	if (unsure(fd_of(a[0]), n, n + 1)) {
		say(" no");
		return;
	}
	filled(n, seed);
	say_written(pwritev2(fd_of(a[0]), iov, split(iov, buffer_here(), n, a[2]), a[3], flags));
}

/* slot size parts offset seed; offset -1: the position */
void op_pwritev(const long *a) { vector_at(a, 0, a[4]); }

/* slot size parts offset flags seed */
void op_pwritev2(const long *a) { vector_at(a, (int)a[4], a[5]); }

/* Of a length that is not aligned the kernel may have written a part before it says EINVAL. */
static size_t whole_pages(long n) { return capped(n) / 4096 * 4096; }

/*
 * slot size offset misaligned seed: for O_DIRECT.  From memory that is not aligned the kernel may, on some
 * file systems and as the pages happen to lie, write the sectors of the first page before it says EINVAL: so
 * only one sector.
 */
void op_dwrite(const long *a)
{
	size_t n = a[3] % SECTOR == 0 ? whole_pages(a[1]) : SECTOR;
	unsigned char *buffer = aligned_here() + (a[3] & 4095);

	if (unsure(fd_of(a[0]), n, SECTOR)) {
		say(" no");
		return;
	}
	fill(buffer, n, (uint64_t)a[4]);
	fresh_errno();
	say_written(a[2] < 0 ? write(fd_of(a[0]), buffer, n) : pwrite(fd_of(a[0]), buffer, n, a[2]));
}

/* slot size which: an address that nobody can own */
void op_badwrite(const long *a)
{
	static const uintptr_t nobodys[] = {0, 1, (uintptr_t)1 << 63};
	/* hidden from the compiler, which would rightly complain */
	void *volatile bad = (void *)nobodys[(unsigned long)a[2] % 3];

	if (is_direct(fd_of(a[0]))) { /* which error comes first is not said anywhere */
		say(" no");
		return;
	}
	fresh_errno();
	say_written(write(fd_of(a[0]), bad, capped(a[1])));
}

/* slot size offset seed write: through the C library's asynchronous calls, which do not survive a fork */
void op_aio(const long *a)
{
	static int owner;
	size_t n = capped(a[1]);
	struct aiocb cb = {.aio_fildes = fd_of(a[0]), .aio_nbytes = n, .aio_offset = a[2]};
	const struct aiocb *list[] = {&cb};
	int r;

	if ((owner && owner != getpid()) || (a[4] && unsure(fd_of(a[0]), n, SECTOR))) {
		say(" no");
		return;
	}
	owner = getpid();
	cb.aio_buf = (void *)(uintptr_t)filled(n, a[3]);
	cb.aio_sigevent.sigev_notify = SIGEV_NONE;
	r = a[4] ? aio_write(&cb) : aio_read(&cb);
	if (r == 0) {
		while (aio_error(&cb) == EINPROGRESS)
			aio_suspend(list, 1, NULL);
		say(" error %d", aio_error(&cb));
		r = (int)aio_return(&cb);
	}
	errno = 0; /* what the threads of the C library leave in it is not of interest */
	say_read(r, buffer_here());
	limit_signals = 0;
}

/* ---- reading ---- */

/* slot size */
void op_read(const long *a) { say_read(read(fd_of(a[0]), buffer_here(), capped(a[1])), buffer_here()); }

/* slot size offset */
void op_pread(const long *a)
{
	say_read(pread(fd_of(a[0]), buffer_here(), capped(a[1]), a[2]), buffer_here());
}

/* slot size parts */
void op_readv(const long *a)
{
	struct iovec iov[PARTS_MAX];
	int parts = split(iov, buffer_here(), capped(a[1]), a[2]);

	say_read(readv(fd_of(a[0]), iov, parts), buffer_here());
}

/* slot size parts offset */
void op_preadv(const long *a)
{
	struct iovec iov[PARTS_MAX];
	int parts = split(iov, buffer_here(), capped(a[1]), a[2]);

	say_read(preadv2(fd_of(a[0]), iov, parts, a[3], 0), buffer_here());
}

/* slot size offset misaligned */
void op_dread(const long *a)
{
	unsigned char *buffer = aligned_here() + (a[3] & 4095);
	size_t n = whole_pages(a[1]);

	say_read(a[2] < 0 ? read(fd_of(a[0]), buffer, n) : pread(fd_of(a[0]), buffer, n, a[2]), buffer);
}

/* slot offset whence */
void op_lseek(const long *a) { say_result(lseek(fd_of(a[0]), a[1], (int)a[2])); }

/* slot: size and content */
void op_whole(const long *a)
{
	unsigned char *buffer = buffer_here();
	struct stat st;
	uint64_t h = 7;
	off_t at = 0;
	ssize_t n;

	if (fstat(fd_of(a[0]), &st) < 0) {
		say_result(-1);
		return;
	}
	while ((n = pread(fd_of(a[0]), buffer, BUFFER, at)) > 0) {
		h = digest(buffer, (size_t)n, h);
		at += n;
	}
	say(" %ld %ld %ld %016lx", (long)st.st_size, (long)n, (long)at, (unsigned long)h);
}

/*
 * slot: what is in it by its data alone, the rest taken for zeros.  Where exactly the holes are is the file
 * system's business (space that is reserved ahead is none), that nothing is in them is not.
 */
void op_holes(const long *a)
{
	unsigned char *buffer = buffer_here();
	int fd = fd_of(a[0]);
	off_t before = lseek(fd, 0, SEEK_CUR), size = lseek(fd, 0, SEEK_END), data = 0, end;

	memset(buffer, 0, BUFFER);
	while (data < BUFFER && (data = lseek(fd, data, SEEK_DATA)) >= 0 && data < BUFFER) {
		end = lseek(fd, data, SEEK_HOLE);
		if (end > BUFFER)
			end = BUFFER;
		if (end <= data || pread(fd, buffer + data, (size_t)(end - data), data) < 0)
			break;
		data = end;
	}
	say(" %ld %016lx %ld", (long)size, (unsigned long)digest(buffer, BUFFER, 1),
	    (long)lseek(fd, before, SEEK_SET));
}

/* ---- size and space ---- */

void op_ftruncate(const long *a) { say_written(ftruncate(fd_of(a[0]), a[1])); }
void op_truncate(const long *a) { say_written(truncate(name_of(a[0]), a[1])); }

/* slot mode offset length */
void op_fallocate(const long *a) { say_written(fallocate(fd_of(a[0]), (int)a[1], a[2], a[3])); }

/* slot offset length */
void op_reserve(const long *a) { say_written(posix_fallocate(fd_of(a[0]), a[1], a[2])); }

/* bytes, or -1: no limit */
void op_rlimit(const long *a)
{
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = a[0] < 0 ? limit.rlim_max : (rlim_t)a[0];
	fresh_errno();
	say_result(setrlimit(RLIMIT_FSIZE, &limit));
}

/* ---- durability ---- */

void op_fsync(const long *a) { say_result(fsync(fd_of(a[0]))); }
void op_fdatasync(const long *a) { say_result(fdatasync(fd_of(a[0]))); }
void op_syncfs(const long *a) { say_result(syncfs(fd_of(a[0]))); }

/* slot offset length flags */
void op_syncrange(const long *a) { say_result(sync_file_range(fd_of(a[0]), a[1], a[2], (unsigned)a[3])); }

/* ---- looking ---- */

/* A time that the program set, or that it was changed since the sequence began. */
static void say_time(long seconds, long nanoseconds)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (seconds < RECENT)
		say(" %ld", seconds);
	else if (seconds > now.tv_sec || (seconds == now.tv_sec && nanoseconds > now.tv_nsec))
		say(" in the future");
	else
		say(" %s", seconds < control->began.tv_sec || (seconds == control->began.tv_sec &&
		                                               nanoseconds < control->began.tv_nsec)
		                   ? "before"
		                   : "now");
}

static void say_stat(int r, const struct stat *st)
{
	say_result(r);
	if (r == 0) {
		say(" %ld %ld %o", (long)st->st_size, (long)st->st_nlink, st->st_mode);
		if (S_ISREG(st->st_mode))
			say_time(st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
	}
}

static void say_statx(int r, const struct statx *st)
{
	say_result(r);
	if (r == 0) {
		say(" %ld %ld %o", (long)st->stx_size, (long)st->stx_nlink, st->stx_mode);
		if (S_ISREG(st->stx_mode))
			say_time(st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec);
	}
}

void op_fstat(const long *a)
{
	struct stat st;

	say_stat(fstat(fd_of(a[0]), &st), &st);
}

void op_stat(const long *a)
{
	struct stat st;

	say_stat(stat(name_of(a[0]), &st), &st);
}

void op_lstat(const long *a)
{
	struct stat st;

	say_stat(lstat(name_of(a[0]), &st), &st);
}

/* file flags */
void op_statx(const long *a)
{
	struct statx st;

	say_statx(statx(AT_FDCWD, name_of(a[0]), (int)a[1], STATX_BASIC_STATS, &st), &st);
}

void op_fstatx(const long *a)
{
	struct statx st;

	say_statx(statx(fd_of(a[0]), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st), &st);
}

/* slot: what is left to be read, by ioctl */
void op_pending(const long *a)
{
	int n = -1;
	int r = ioctl(fd_of(a[0]), FIONREAD, &n);

	say_result(r);
	say(" %d", n);
}

static int by_name(const struct dirent **one, const struct dirent **other)
{
	return strcmp((*one)->d_name, (*other)->d_name);
}

static void list_dir(const char *path)
{
	struct dirent **entries;
	int n = scandir(path, &entries, NULL, by_name);

	for (int i = 0; i < n; i++) {
		if (entries[i]->d_name[0] != '.')
			say(" %s", entries[i]->d_name);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
}

void op_list(const long *a)
{
	(void)a;
	list_dir(place_of(""));
	list_dir(place_of("d"));
}

/* ---- names ---- */

void op_rename(const long *a) { say_result(rename(name_of(a[0]), name_of(a[1]))); }
void op_renameat2(const long *a)
{
	say_result(renameat2(AT_FDCWD, name_of(a[0]), AT_FDCWD, name_of(a[1]), (unsigned)a[2]));
}
void op_link(const long *a) { say_result(link(name_of(a[0]), name_of(a[1]))); }
void op_unlink(const long *a) { say_result(unlink(name_of(a[0]))); }
void op_remove(const long *a) { say_result(remove(name_of(a[0]))); }

/* file file: the second leads to the first */
void op_symlink(const long *a)
{
	char target[32];

	snprintf(target, sizeof target, "%s%sf%ld", a[1] < 4 ? "" : "../", a[0] < 4 ? "" : "d/", a[0]);
	say_result(symlink(target, name_of(a[1])));
}

/* file size seed: what the sequence finds; by the kernel's own calls, and only if it is not there */
void op_make(const long *a)
{
	struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
	size_t n = capped(a[1]);
	long fd = raw(SYS_openat, AT_FDCWD, (long)name_of(a[0]), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
	              0644, 0, 0);

	if (fd < 0)
		return;
	if (raw(SYS_write, fd, (long)filled(n, a[2]), (long)n, 0, 0, 0) != (long)n)
		unexpected("make");
	raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0);
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
}

/* ---- attributes ---- */

void op_chmod(const long *a) { say_result(chmod(name_of(a[0]), (mode_t)a[1])); }
void op_fchmod(const long *a) { say_result(fchmod(fd_of(a[0]), (mode_t)a[1])); }

/* file seconds */
void op_utimens(const long *a)
{
	struct timespec times[2] = {{.tv_sec = a[1]}, {.tv_sec = a[1]}};

	say_result(utimensat(AT_FDCWD, name_of(a[0]), times, 0));
}

void op_futimens(const long *a)
{
	struct timespec times[2] = {{.tv_sec = a[1]}, {.tv_sec = a[1]}};

	say_result(futimens(fd_of(a[0]), times));
}

/* ---- locks ---- */

/* slot: locks and unlocks it all */
void op_lock(const long *a)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	long r = fcntl(fd_of(a[0]), F_SETLK, &whole);

	whole.l_type = F_UNLCK;
	if (r == 0)
		r = fcntl(fd_of(a[0]), F_SETLK, &whole);
	say_result(r);
}

static const short lock_types[] = {F_UNLCK, F_RDLCK, F_WRLCK};

/* slot ofd type start length */
void op_setlk(const long *a)
{
	struct flock l = {.l_type = lock_types[(unsigned long)a[2] % 3], .l_start = a[3], .l_len = a[4]};

	say_result(fcntl(fd_of(a[0]), a[1] ? F_OFD_SETLK : F_SETLK, &l));
}

/* slot ofd type: who would be in the way */
void op_getlk(const long *a)
{
	struct flock l = {.l_type = lock_types[1 + (unsigned long)a[2] % 2]};
	int r = fcntl(fd_of(a[0]), a[1] ? F_OFD_GETLK : F_GETLK, &l);

	say_result(r);
	if (r == 0)
		say(" %d %ld %ld", l.l_type, (long)l.l_start, (long)l.l_len);
}

void op_flock(const long *a) { say_result(flock(fd_of(a[0]), (int)a[1] | LOCK_NB)); }

/* slot command length: never one that waits */
void op_lockf(const long *a) { say_result(lockf(fd_of(a[0]), a[1] == F_LOCK ? F_TLOCK : (int)a[1], a[2])); }

/* ---- memory ---- */

struct identity map_identity(long which)
{
	return maps[which].at ? maps[which].file : (struct identity){0, 0};
}

static void unmap(long which)
{
	if (maps[which].at)
		munmap(maps[which].at, maps[which].length);
	maps[which] = (struct mapping){0};
}

void maps_close_all(void)
{
	for (long i = 0; i < MAPS; i++)
		unmap(i);
}

/* map slot size protection (1 read, 3 write too; +4 private) */
void op_mmap(const long *a)
{
	size_t n = capped(a[2]);
	void *at;

	unmap(a[0]);
	fresh_errno();
	at = mmap(NULL, n, (int)a[3] & 3, a[3] & 4 ? MAP_PRIVATE : MAP_SHARED, fd_of(a[1]), 0);
	say_result(at == MAP_FAILED ? -1 : 0);
	if (at != MAP_FAILED)
		maps[a[0]] = (struct mapping){at, n, raw_identity_fd(fd_of(a[1]))};
}

void op_munmap(const long *a) { unmap(a[0]); }

/* Calls `act`; a signal for an access that it makes is an answer, too. */
static void guarded(void (*act)(unsigned char *at, size_t n, long seed), unsigned char *at, size_t n,
                    long seed)
{
	int number = sigsetjmp(fault_return, 1);

	if (number != 0) {
		fault_expected = 0;
		say(" signal %d", number);
		return;
	}
	fault_expected = 1;
	act(at, n, seed);
	fault_expected = 0;
}

static void look(unsigned char *at, size_t n, long seed)
{
	unsigned char *buffer = buffer_here();

	(void)seed;
	memcpy(buffer, at, n);
	say(" %016lx", (unsigned long)digest(buffer, n, 1));
}

static void put(unsigned char *at, size_t n, long seed)
{
	memcpy(at, filled(n, seed), n);
	say(" put %ld", (long)n);
}

static void in_map(const long *a, void (*act)(unsigned char *at, size_t n, long seed))
{
	const struct mapping *m = &maps[a[0]];
	size_t at = capped(a[1]), n = capped(a[2]);

	if (!m->at || at >= m->length) {
		say(" no");
		return;
	}
	guarded(act, m->at + at, n > m->length - at ? m->length - at : n, a[3]);
}

/* map offset size */
void op_mread(const long *a) { in_map(a, look); }

/* map offset size seed */
void op_mwrite(const long *a) { in_map(a, put); }

/* map flags */
void op_msync(const long *a)
{
	const struct mapping *m = &maps[a[0]];

	if (!m->at)
		say(" no");
	else
		say_result(msync(m->at, m->length, (int)a[1]));
}

/* slot size: maps it for a look */
void op_map(const long *a)
{
	size_t n = capped(a[1]);
	struct stat st;
	void *at;

	if (fstat(fd_of(a[0]), &st) < 0 || st.st_size == 0) {
		say_result(-1);
		return;
	}
	if (n > (size_t)st.st_size)
		n = (size_t)st.st_size;
	at = mmap(NULL, n, PROT_READ, MAP_SHARED, fd_of(a[0]), 0);
	say_result(at == MAP_FAILED ? -1 : (long)n);
	if (at == MAP_FAILED)
		return;
	guarded(look, at, n, 0);
	munmap(at, n);
}

/* ---- bytes that the kernel moves ---- */

/* from to size */
void op_copy(const long *a)
{
	say_written(copy_file_range(fd_of(a[0]), NULL, fd_of(a[1]), NULL, capped(a[2]), 0));
}

void op_sendfile(const long *a) { say_written(sendfile(fd_of(a[1]), fd_of(a[0]), NULL, capped(a[2]))); }

/* from to size: by a pipe */
void op_splice(const long *a)
{
	size_t n = a[2] > 65536 ? 65536 : capped(a[2]);
	long moved, r;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
		say_result(-1);
		return;
	}
	fresh_errno();
	moved = splice(fd_of(a[0]), NULL, ends[1], NULL, n, SPLICE_F_NONBLOCK);
	say_result(moved);
	if (moved > 0) {
		fresh_errno();
		r = splice(ends[0], NULL, fd_of(a[1]), NULL, (size_t)moved, SPLICE_F_NONBLOCK);
		say_written(r);
	}
	close(ends[0]);
	close(ends[1]);
}

/* slot offset length advice */
void op_advise(const long *a) { say_result(posix_fadvise(fd_of(a[0]), a[1], a[2], (int)a[3])); }

/* milliseconds: natively nothing happens meanwhile */
void op_sleep(const long *a)
{
	struct timespec ts = {.tv_sec = a[0] / 1000, .tv_nsec = a[0] % 1000 * 1000000};

	if (!control->no_sleep)
		nanosleep(&ts, NULL);
}
