// SPDX-License-Identifier: Apache-2.0
/*
 * hook_syscall: syscall(), the C library's way to make system calls by number.  Each number that matters to managed
 * files gets what the function of its name does; all others pass (tests/symbols/syscalls.toml says why).
 *
 * A handler gets the six arguments and returns the system call's result, -errno for failure, or PASS: go on with
 * registers and stack as the caller left them.  What it must do itself, because something is to be done afterwards,
 * it does by `kernel`: none of the C library's functions may be called for it, for they are cancellation points, and
 * other preloaded libraries may change what they do.
 */
#include "attach/attach.h"
#include "attach/stop.h"
#include "base/internal_fd.h"
#include "base/sys.h"
#include "base/user.h"
#include "descriptors/fd_passing.h"
#include "files/fdtable.h"
#include "hooks/hook.h"
#include "process/apart.h"
#include "process/process.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#define PASS LONG_MIN

/* Numbers that the headers may be too old for; the same on every machine. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat 463
#endif
#ifndef SYS_removexattrat
#define SYS_removexattrat 466
#endif
#ifndef SYS_file_setattr
#define SYS_file_setattr 469
#endif

#define INT(i) ((int)a[i])
#define PATH(i) ((const char *)a[i])
#define TO(type, i) ((type *)a[i])

static long kernel(long number, const long *a) { return sys_raw(number, a[0], a[1], a[2], a[3], a[4], a[5]); }

/* The call that was prepared. */
static long changed(struct by_name_change *c, int prepared, long number, const long *a)
{
	long r = prepared < 0 ? prepared : kernel(number, a);

	journal_touched();
	by_name_change_end(c);
	return r;
}

static long changed_fd(long number, const long *a)
{
	struct by_name_change c;
	int prepared = by_name_change_fd(&c, INT(0));

	return changed(&c, prepared, number, a);
}

/* After the file was given back.  (The number stands before the arguments.) */
static long change(int released, const long *a)
{
	long r = released < 0 ? released : kernel(a[-1], a);

	if (r == 0) {
		journal_touched();
		file_attributes_changed();
	}
	return r;
}

/* ---- descriptors ---- */

static long opened(long number, const long *a, struct fd_open *op)
{
	long fd;

	do
		fd = kernel(number, a);
	while ((fd == -EMFILE && fd_spare_own()) || (fd == -EAGAIN && fd_lease_over(op)));
	if (fd >= 0 && fd_open_concerns(op))
		fd_opened(op, (int)fd);
	fd_open_end(op);
	return fd;
}

static long by_path(long number, const long *a, int dirfd, const char *path, int flags)
{
	struct fd_open op;

	fd_open_prepare(&op, dirfd, path, flags);
	return opened(number, a, &op);
}

static long do_openat(const long *a) { return by_path(SYS_openat, a, INT(0), PATH(1), INT(2)); }

static long do_openat2(const long *a)
{
	struct fd_open op;

	hook_openat2_prepare(&op, INT(0), PATH(1), TO(void, 2), (size_t)a[3]);
	return opened(SYS_openat2, a, &op);
}

static long do_open_by_handle_at(const long *a)
{
	struct fd_open op;

	hook_by_handle_prepare(&op, INT(0), TO(const struct file_handle, 1), INT(2));
	return opened(SYS_open_by_handle_at, a, &op);
}

static long do_close(const long *a)
{
	long staged, r;

	if (internal_fd_is(INT(0)))
		return -EBADF;
	if (fdtable_get(INT(0)))
		return fd_close(INT(0));
	staged = fd_close_prepare(INT(0));
	if (staged == FD_PASS)
		return PASS;
	r = kernel(SYS_close, a);
	return r == 0 ? staged : r;
}

static long next_close_range(unsigned from, unsigned to, int flags)
{
	return sys_raw(SYS_close_range, from, to, flags, 0, 0, 0);
}

static long do_close_range(const long *a)
{
	return apart_close_range((unsigned)a[0], (unsigned)a[1], INT(2), next_close_range);
}

static long do_dup(const long *a)
{
	struct fd_copy c;
	long fd;

	if (internal_fd_is(INT(0)))
		return -EBADF;
	fd_dup_begin(&c, INT(0));
	fd = kernel(SYS_dup, a);
	fd_dup_done(&c, (int)fd);
	return fd;
}

static long dup_onto(long number, const long *a, int flags)
{
	struct fd_dup_onto d;
	long r;

	if (flags & ~O_CLOEXEC)
		return PASS; /* which the kernel refuses */
	if (fd_dup_onto_prepare(&d, INT(0), INT(1)) == -EBADF)
		return -EBADF;
	r = kernel(number, a);
	fd_dup_onto_done(&d, r >= 0);
	return r;
}

static long do_dup3(const long *a) { return dup_onto(SYS_dup3, a, INT(2)); }

static long next_fcntl(int fd, int cmd, long arg) { return sys_raw(SYS_fcntl, fd, cmd, arg, 0, 0, 0); }
static long do_fcntl(const long *a)
{
	if (INT(1) != F_GETOWN)
		return hook_fcntl(next_fcntl, INT(0), INT(1), a[2]);
	hook_before_owner(INT(0));
	return PASS;
}

static long do_sendmsg(const long *a)
{
	fd_passing_sent(TO(const struct msghdr, 1));
	return PASS;
}

static long do_sendmmsg(const long *a)
{
	fd_passing_all_sent(TO(const struct mmsghdr, 1), (unsigned)a[2]);
	return PASS;
}

static long do_recvmsg(const long *a)
{
	long r = kernel(SYS_recvmsg, a);

	if (r >= 0)
		fd_passing_received(TO(const struct msghdr, 1));
	return r;
}

static long do_recvmmsg(const long *a)
{
	long r = kernel(SYS_recvmmsg, a);

	if (r >= 0)
		fd_passing_all_received(TO(const struct mmsghdr, 1), (unsigned)r);
	return r;
}

static long do_pidfd_getfd(const long *a)
{
	long fd = kernel(SYS_pidfd_getfd, a);

	if (fd >= 0)
		fd_passing_arrived((int)fd);
	return fd;
}

static long do_fanotify_init(const long *a)
{
	long fd = kernel(SYS_fanotify_init, a);

	if (fd >= 0 && !(a[0] & FAN_REPORT_FID))
		attach_refuse(BYPASS_UNKNOWN_FD);
	return fd;
}

/* ---- data ---- */

_Static_assert(IO_PASS == PASS && FD_PASS == PASS, "one word for passing on");

/* What fd is, as far as that is ours, after `was` had nothing to say about it. */
static struct ofd *asked_again(int fd, const struct ofd *was)
{
	struct ofd *now = unresolved_moved(fd);

	return now != was || unresolved_is(fd) ? now : NULL;
}

static long do_write(const long *a)
{
	struct ofd *o = unresolved_moved(INT(0));
	long r = PASS;

	for (int i = 0; o && r == PASS && i < ASK_TRIES; i++) {
		r = io_write(INT(0), o, TO(const void, 1), (size_t)a[2]);
		o = r == PASS ? asked_again(INT(0), o) : o;
	}
	return r;
}

static long write_vector(const long *a, const struct iovec *iov, int count, off_t offset)
{
	struct ofd *o = unresolved_moved(INT(0));
	long r = PASS;

	for (int i = 0; o && r == PASS && i < ASK_TRIES; i++) {
		r = io_writev(INT(0), o, iov, count, offset);
		o = r == PASS ? asked_again(INT(0), o) : o;
	}
	return r;
}

static long do_pwrite64(const long *a)
{
	struct ofd *o = a[3] >= 0 ? unresolved_moved(INT(0)) : NULL;
	long r = PASS;

	for (int i = 0; o && r == PASS && i < ASK_TRIES; i++) {
		r = io_write_at(INT(0), o, TO(const void, 1), (size_t)a[2], a[3]);
		o = r == PASS ? asked_again(INT(0), o) : o;
	}
	return r;
}

static long do_writev(const long *a)
{
	return write_vector(a, TO(const struct iovec, 1), INT(2), IO_NO_OFFSET);
}

static long do_pwritev(const long *a)
{
	return a[3] >= 0 ? write_vector(a, TO(const struct iovec, 1), INT(2), a[3]) : PASS;
}

static long do_pwritev2(const long *a)
{
	struct ofd *o;
	long r;

	if (a[5] == 0)
		return a[3] >= -1 ? write_vector(a, TO(const struct iovec, 1), INT(2), a[3]) : PASS;
	o = unresolved_moved(INT(0));
	if (!o)
		return PASS;
	r = io_synced(INT(0), o, TO(const struct iovec, 1), INT(2), a[3], INT(5));
	if (r != IO_PASS)
		return r;
	return changed_fd(SYS_pwritev2, a);
}

static long read_vector(const long *a, const struct iovec *iov, int count, off_t offset)
{
	struct ofd *o = offset == IO_NO_OFFSET ? unresolved_moved(INT(0)) : unresolved_used(INT(0));

	return o ? io_readv(INT(0), o, iov, count, offset) : PASS;
}

static long do_read(const long *a)
{
	struct ofd *o = unresolved_moved(INT(0));

	return o ? io_read_at(INT(0), o, TO(void, 1), (size_t)a[2], IO_NO_OFFSET) : PASS;
}

static long do_pread64(const long *a)
{
	struct ofd *o = a[3] >= 0 ? unresolved_used(INT(0)) : NULL;

	return o ? io_read_at(INT(0), o, TO(void, 1), (size_t)a[2], a[3]) : PASS;
}

static long do_readv(const long *a)
{
	return read_vector(a, TO(const struct iovec, 1), INT(2), IO_NO_OFFSET);
}

static long do_preadv(const long *a)
{
	return a[3] >= 0 ? read_vector(a, TO(const struct iovec, 1), INT(2), a[3]) : PASS;
}

static long do_preadv2(const long *a)
{
	long r;

	if (a[5] == 0)
		return a[3] >= -1 ? read_vector(a, TO(const struct iovec, 1), INT(2), a[3]) : PASS;
	if (a[3] == -1 && unresolved_moved(INT(0)))
		return changed_fd(SYS_preadv2, a);
	r = fd_hand_over(INT(0));
	return r < 0 ? r : PASS;
}

static long do_lseek(const long *a)
{
	struct ofd *o = unresolved_moved(INT(0));

	return o ? io_lseek(INT(0), o, a[1], INT(2)) : PASS;
}

static long synced(int fd, bool full)
{
	struct ofd *o = unresolved_moved(fd);

	return o ? io_sync(fd, o, full) : PASS;
}

static long do_fsync(const long *a) { return synced(INT(0), true); }
static long do_fdatasync(const long *a) { return synced(INT(0), false); }

static long do_sync(const long *a)
{
	(void)a;
	by_name_settle_for_sync();
	return PASS;
}

static long do_syncfs(const long *a)
{
	long failed = by_name_settle_for_syncfs(INT(0));
	long r = kernel(SYS_syncfs, a);

	return r == 0 ? failed : r;
}

/* sync_file_range, cachestat: about what the kernel has of the file */
static long do_sync_file_range(const long *a)
{
	long r = fd_hand_over(INT(0));

	return r < 0 ? r : PASS;
}

static long do_mmap(const long *a)
{
	if (!(a[3] & MAP_ANONYMOUS))
		by_name_map(INT(4), (a[3] & MAP_SHARED) && (a[2] & PROT_WRITE));
	return PASS;
}

static long do_sendfile(const long *a)
{
	hook_before_copy(INT(1), INT(0));
	return PASS;
}

static long do_splice(const long *a)
{
	hook_before_copy(INT(0), INT(2));
	return PASS;
}

static long do_ioctl(const long *a)
{
	struct by_name_change c;
	long r;

	if (hook_ioctl_clones((unsigned long)a[1])) {
		r = by_name_change_fd(&c, INT(0));
		if (r == 0)
			r = hook_before_ioctl(INT(0), (unsigned long)a[1], TO(const void, 2));
		return changed(&c, (int)r, SYS_ioctl, a);
	}
	r = hook_before_ioctl(INT(0), (unsigned long)a[1], TO(const void, 2));
	if (r == 0)
		r = kernel(SYS_ioctl, a);
	if (r == 0)
		hook_after_ioctl(INT(0), (unsigned long)a[1], TO(void, 2));
	return r;
}

static long do_io_submit(const long *a)
{
	hook_before_submit(a[1], TO(struct iocb *const, 2));
	return PASS;
}

static long do_io_uring_setup(const long *a)
{
	long fd = kernel(SYS_io_uring_setup, a);

	if (fd >= 0)
		hook_ring_made();
	return fd;
}

static long do_flock(const long *a)
{
	long r = fd_before_lock(INT(0), a[1] & LOCK_UN);

	if (r == 0)
		r = kernel(SYS_flock, a);
	if (r == 0)
		fd_locked(INT(0));
	return r;
}

/* ---- size, space, attributes ---- */

static long change_file(int fd, const long *a) { return change(by_name_release_fd(fd), a); }

static long change_named(int dirfd, const char *path, int flags, const long *a)
{
	return change(!path && (flags & AT_EMPTY_PATH) ? by_name_release_fd(dirfd)
	                                               : by_name_release_at(dirfd, path),
	              a);
}

static long do_ftruncate(const long *a) { return changed_fd(SYS_ftruncate, a); }

static long do_truncate(const long *a)
{
	struct by_name_change c;
	int r = by_name_change_path(&c, PATH(0));

	return changed(&c, r, SYS_truncate, a);
}

static long do_fallocate(const long *a) { return changed_fd(SYS_fallocate, a); }

/* fchmod, fchown, fsetxattr, fremovexattr */
static long change_fd(const long *a) { return change_file(INT(0), a); }
/* chmod, chown, setxattr, ..., swapon */
static long change_path(const long *a) { return change_named(AT_FDCWD, PATH(0), 0, a); }
/* fchmodat, futimesat: no flags; without a path they are about the descriptor */
static long change_at(const long *a)
{
	return PATH(1) ? change_named(INT(0), PATH(1), 0, a) : change_file(INT(0), a);
}
/* fchmodat2, utimensat */
static long change_at_flags(const long *a)
{
	return PATH(1) ? change_named(INT(0), PATH(1), INT(3), a) : change_file(INT(0), a);
}
static long do_fchownat(const long *a) { return change_named(INT(0), PATH(1), INT(4), a); }
/* setxattrat, removexattrat */
static long change_at_early_flags(const long *a) { return change_named(INT(0), PATH(1), INT(2), a); }
static long do_file_setattr(const long *a) { return change_named(INT(0), PATH(1), INT(4), a); }

static long do_setrlimit(const long *a)
{
	if (INT(0) == RLIMIT_FSIZE)
		by_name_limit_changes();
	return PASS;
}

static long do_prlimit64(const long *a)
{
	if (INT(1) == RLIMIT_FSIZE && a[2])
		by_name_limit_changes();
	return PASS;
}

/* ---- looking at a file ---- */

/* The structure of the system call is the one of the C library. */
static long asked(long number, const long *a, const struct stat *out)
{
	long r;

	HOOK_ASK(r, kernel(number, a), HOOK_SETTLE_STAT(out))
	return r;
}

static long do_fstat(const long *a) { return asked(SYS_fstat, a, TO(const struct stat, 1)); }

static long asked_named(long number, const long *a, int dirfd, const char *path, const struct stat *out)
{
	long r = asked(number, a, out);

	return r == 0 && fd_recover_named(dirfd, path) ? kernel(number, a) : r;
}

static long do_newfstatat(const long *a)
{
	return asked_named(SYS_newfstatat, a, INT(0), PATH(1), TO(const struct stat, 2));
}

static long do_statx(const long *a)
{
	const struct statx *out = TO(const struct statx, 4);
	long r;

	HOOK_ASK(r, kernel(SYS_statx, a), HOOK_SETTLE_STATX(out))
	return r == 0 && fd_recover_named(INT(0), PATH(1)) ? kernel(SYS_statx, a) : r;
}

/* ---- names ---- */

static long renamed(long number, const long *a, int fromfd, const char *from, int tofd, const char *to,
                    bool exchange)
{
	struct by_name_rename move;
	long r;

	by_name_rename_prepare(&move, fromfd, from, tofd, to, exchange);
	r = kernel(number, a);
	by_name_rename_done(&move, r == 0);
	return r;
}

static long do_renameat2(const long *a)
{
	return renamed(SYS_renameat2, a, INT(0), PATH(1), INT(2), PATH(3), a[4] & RENAME_EXCHANGE);
}

static long linked(long number, const long *a, int tofd, const char *to)
{
	long r = kernel(number, a);

	if (r == 0)
		by_name_link_done(tofd, to);
	return r;
}

static long do_linkat(const long *a)
{
	by_name_link_prepare(INT(0), PATH(1), a[4] & AT_SYMLINK_FOLLOW);
	return linked(SYS_linkat, a, INT(2), PATH(3));
}

static long unlinked(long number, const long *a, int dirfd, const char *path)
{
	struct by_name_unlink u;
	long r;

	by_name_unlink_prepare(&u, dirfd, path);
	r = kernel(number, a);
	if (r == 0)
		by_name_unlink_done(&u);
	return r;
}

static long removed(long number, const long *a, int dirfd, const char *path)
{
	long r = kernel(number, a);

	if ((r == -ENOTEMPTY || r == -EEXIST) && by_name_rmdir_again(dirfd, path))
		r = kernel(number, a);
	return r;
}

static long do_unlinkat(const long *a)
{
	return (a[2] & AT_REMOVEDIR) ? removed(SYS_unlinkat, a, INT(0), PATH(1))
	                             : unlinked(SYS_unlinkat, a, INT(0), PATH(1));
}

/* ---- processes ---- */

static long do_execve(const long *a)
{
	int r = execve(PATH(0), TO(char *const, 1), TO(char *const, 2));

	return r < 0 ? -errno : r;
}

static long do_execveat(const long *a)
{
	int r = execveat(INT(0), PATH(1), TO(char *const, 2), TO(char *const, 3), INT(4));

	return r < 0 ? -errno : r;
}

/* A plain fork: the child goes on with a copy of everything.  Whatever shares more is for the caller's registers. */
static bool is_fork(uint64_t flags, uint64_t stack)
{
	const uint64_t sharing = CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SETTLS;

	return stack == 0 && (flags & sharing) == 0;
}

static long make_clone(const long *a) { return kernel(SYS_clone, a); }
static long make_clone3(const long *a) { return kernel(SYS_clone3, a); }

static long do_clone(const long *a)
{
	if (is_fork((uint64_t)a[0], (uint64_t)a[1]))
		return apart_fork(make_clone, a);
	apart_clone();
	return PASS;
}

static long do_clone3(const long *a)
{
	const struct clone_args *args = TO(const struct clone_args, 0);

	if ((size_t)a[1] < CLONE_ARGS_SIZE_VER0 || !user_readable(args, CLONE_ARGS_SIZE_VER0))
		return PASS; /* the kernel will refuse it */
	if (is_fork(args->flags, args->stack))
		return apart_fork(make_clone3, a);
	apart_clone();
	return PASS;
}

static long do_exit_group(const long *a)
{
	(void)a;
	process_exit();
	return PASS;
}

/* The end of one thread, and of the process when it is the last: our own would only make it wait. */
static long do_exit(const long *a)
{
	if (live_config && apart_alone()) {
		process_exit();
		return kernel(SYS_exit_group, a);
	}
	by_name_settle_all();
	return PASS;
}

static long apart(long number, const long *a, bool files)
{
	struct apart state = apart_begin(files);
	long r = kernel(number, a);

	apart_end(state);
	return r;
}

static long with_rights(enum credentials_change change, long number, const long *a, bool files)
{
	bool begun = credentials_begin(change);
	long r = apart(number, a, files);

	credentials_end(begun);
	return r;
}

static long do_unshare(const long *a)
{
	return with_rights(apart_namespaces((int)a[0]), SYS_unshare, a, a[0] & CLONE_FILES);
}

static long do_setns(const long *a)
{
	return with_rights(apart_namespaces(a[1] ? (int)a[1] : CLONE_NEWPID | CLONE_NEWUSER), SYS_setns, a,
	                   false);
}

/*
 * By number these change the calling thread only.  When rights are given up for good, a thread of ours that has them must
 * not stay behind.  A call that leaves one of the ids as it is takes them for a while, as servers do for each request.
 */
static long given_up(long number, const long *a, int ids, enum credentials_change change)
{
	bool all = true;

	for (int i = 0; i < ids; i++)
		all &= INT(i) != -1;
	if (!all || (live_config && !fd_foreign_process() && !apart_alone()))
		credentials_of_thread();
	return all ? with_rights(change, number, a, false) : PASS;
}

#define ID(i) ((uint32_t)a[i])

static long do_capset(const long *a)
{
	return with_rights(credentials_of_capabilities(TO(const void, 0), TO(const void, 1)), SYS_capset, a,
	                   false);
}
static long do_setuid(const long *a)
{
	return given_up(SYS_setuid, a, 1, credentials_of_users(ID(0), ID(0), ID(0)));
}
static long do_setgid(const long *a)
{
	return given_up(SYS_setgid, a, 1, credentials_of_groups(ID(0), ID(0), ID(0)));
}
static long do_setreuid(const long *a)
{
	return given_up(SYS_setreuid, a, 2, credentials_of_users(ID(0), ID(1), UINT32_MAX));
}
static long do_setregid(const long *a)
{
	return given_up(SYS_setregid, a, 2, credentials_of_groups(ID(0), ID(1), UINT32_MAX));
}
static long do_setresuid(const long *a)
{
	return given_up(SYS_setresuid, a, 3, credentials_of_users(ID(0), ID(1), ID(2)));
}
static long do_setresgid(const long *a)
{
	return given_up(SYS_setresgid, a, 3, credentials_of_groups(ID(0), ID(1), ID(2)));
}

static long do_setgroups(const long *a)
{
	bool begun = credentials_begin(CREDENTIALS_GROUPS);
	long r = kernel(SYS_setgroups, a);

	credentials_end(begun);
	return r;
}

static long do_setfsid(const long *a)
{
	if (INT(0) != -1)
		credentials_of_thread();
	return PASS;
}

/* ---- mounts ---- */

static long unless_busy(long number, const long *a)
{
	long r;

	do
		r = kernel(number, a);
	while (r == -EBUSY && fd_spare_own());
	return r;
}

static long do_mount(const long *a) { return unless_busy(SYS_mount, a); }
static long do_mount_setattr(const long *a) { return unless_busy(SYS_mount_setattr, a); }

static long do_umount2(const long *a)
{
	if (a[1] & MNT_DETACH)
		hook_before_detach();
	return unless_busy(SYS_umount2, a);
}

/* ---- calls that newer machines have no more ---- */

#ifdef SYS_open
static long do_open(const long *a) { return by_path(SYS_open, a, AT_FDCWD, PATH(0), INT(1)); }
#endif
#ifdef SYS_creat
static long do_creat(const long *a)
{
	return by_path(SYS_creat, a, AT_FDCWD, PATH(0), O_WRONLY | O_CREAT | O_TRUNC);
}
#endif
#ifdef SYS_dup2
static long do_dup2(const long *a) { return dup_onto(SYS_dup2, a, 0); }
#endif
#ifdef SYS_stat
static long do_stat(const long *a)
{
	return asked_named(SYS_stat, a, AT_FDCWD, PATH(0), TO(const struct stat, 1));
}
static long do_lstat(const long *a)
{
	return asked_named(SYS_lstat, a, AT_FDCWD, PATH(0), TO(const struct stat, 1));
}
#endif
#ifdef SYS_rename
static long do_rename(const long *a)
{
	return renamed(SYS_rename, a, AT_FDCWD, PATH(0), AT_FDCWD, PATH(1), false);
}
#endif
#ifdef SYS_renameat
static long do_renameat(const long *a)
{
	return renamed(SYS_renameat, a, INT(0), PATH(1), INT(2), PATH(3), false);
}
#endif
#ifdef SYS_link
static long do_link(const long *a)
{
	by_name_link_prepare(AT_FDCWD, PATH(0), false);
	return linked(SYS_link, a, AT_FDCWD, PATH(1));
}
#endif
#ifdef SYS_unlink
static long do_unlink(const long *a) { return unlinked(SYS_unlink, a, AT_FDCWD, PATH(0)); }
static long do_rmdir(const long *a) { return removed(SYS_rmdir, a, AT_FDCWD, PATH(0)); }
#endif
#ifdef SYS_fork
static long make_fork(const long *a) { return kernel(SYS_fork, a); }
static long do_fork(const long *a) { return apart_fork(make_fork, a); }
static long do_vfork(const long *a)
{
	(void)a;
	apart_clone();
	return PASS;
}
#endif

typedef long handler(const long *a);

static handler *const handlers[] = {
	[SYS_openat] = do_openat,
	[SYS_openat2] = do_openat2,
	[SYS_open_by_handle_at] = do_open_by_handle_at,
	[SYS_close] = do_close,
	[SYS_close_range] = do_close_range,
	[SYS_dup] = do_dup,
	[SYS_dup3] = do_dup3,
	[SYS_fcntl] = do_fcntl,
	[SYS_sendmsg] = do_sendmsg,
	[SYS_sendmmsg] = do_sendmmsg,
	[SYS_recvmsg] = do_recvmsg,
	[SYS_recvmmsg] = do_recvmmsg,
	[SYS_pidfd_getfd] = do_pidfd_getfd,
	[SYS_fanotify_init] = do_fanotify_init,
	[SYS_write] = do_write,
	[SYS_pwrite64] = do_pwrite64,
	[SYS_writev] = do_writev,
	[SYS_pwritev] = do_pwritev,
	[SYS_pwritev2] = do_pwritev2,
	[SYS_read] = do_read,
	[SYS_pread64] = do_pread64,
	[SYS_readv] = do_readv,
	[SYS_preadv] = do_preadv,
	[SYS_preadv2] = do_preadv2,
	[SYS_lseek] = do_lseek,
	[SYS_fsync] = do_fsync,
	[SYS_fdatasync] = do_fdatasync,
	[SYS_sync] = do_sync,
	[SYS_syncfs] = do_syncfs,
	[SYS_sync_file_range] = do_sync_file_range,
	[SYS_cachestat] = do_sync_file_range,
	[SYS_mmap] = do_mmap,
	[SYS_sendfile] = do_sendfile,
	[SYS_splice] = do_splice,
	[SYS_copy_file_range] = do_splice,
	[SYS_ioctl] = do_ioctl,
	[SYS_io_submit] = do_io_submit,
	[SYS_io_uring_setup] = do_io_uring_setup,
	[SYS_flock] = do_flock,
	[SYS_ftruncate] = do_ftruncate,
	[SYS_truncate] = do_truncate,
	[SYS_fallocate] = do_fallocate,
	[SYS_fchmod] = change_fd,
	[SYS_fchmodat] = change_at,
	[SYS_fchmodat2] = change_at_flags,
	[SYS_fchown] = change_fd,
	[SYS_fchownat] = do_fchownat,
	[SYS_utimensat] = change_at_flags,
	[SYS_setxattr] = change_path,
	[SYS_lsetxattr] = change_path,
	[SYS_fsetxattr] = change_fd,
	[SYS_setxattrat] = change_at_early_flags,
	[SYS_removexattr] = change_path,
	[SYS_lremovexattr] = change_path,
	[SYS_fremovexattr] = change_fd,
	[SYS_removexattrat] = change_at_early_flags,
	[SYS_file_setattr] = do_file_setattr,
	[SYS_swapon] = change_path,
	[SYS_setrlimit] = do_setrlimit,
	[SYS_prlimit64] = do_prlimit64,
	[SYS_fstat] = do_fstat,
	[SYS_newfstatat] = do_newfstatat,
	[SYS_statx] = do_statx,
	[SYS_renameat2] = do_renameat2,
	[SYS_linkat] = do_linkat,
	[SYS_unlinkat] = do_unlinkat,
	[SYS_execve] = do_execve,
	[SYS_execveat] = do_execveat,
	[SYS_clone] = do_clone,
	[SYS_clone3] = do_clone3,
	[SYS_exit] = do_exit,
	[SYS_exit_group] = do_exit_group,
	[SYS_unshare] = do_unshare,
	[SYS_setns] = do_setns,
	[SYS_capset] = do_capset,
	[SYS_setuid] = do_setuid,
	[SYS_setgid] = do_setgid,
	[SYS_setreuid] = do_setreuid,
	[SYS_setregid] = do_setregid,
	[SYS_setresuid] = do_setresuid,
	[SYS_setresgid] = do_setresgid,
	[SYS_setgroups] = do_setgroups,
	[SYS_setfsuid] = do_setfsid,
	[SYS_setfsgid] = do_setfsid,
	[SYS_mount] = do_mount,
	[SYS_umount2] = do_umount2,
	[SYS_mount_setattr] = do_mount_setattr,
#ifdef SYS_open
	[SYS_open] = do_open,
#endif
#ifdef SYS_creat
	[SYS_creat] = do_creat,
#endif
#ifdef SYS_dup2
	[SYS_dup2] = do_dup2,
#endif
#ifdef SYS_stat
	[SYS_stat] = do_stat,
	[SYS_lstat] = do_lstat,
#endif
#ifdef SYS_rename
	[SYS_rename] = do_rename,
#endif
#ifdef SYS_renameat
	[SYS_renameat] = do_renameat,
#endif
#ifdef SYS_link
	[SYS_link] = do_link,
#endif
#ifdef SYS_unlink
	[SYS_unlink] = do_unlink,
	[SYS_rmdir] = do_rmdir,
#endif
#ifdef SYS_chmod
	[SYS_chmod] = change_path,
	[SYS_chown] = change_path,
	[SYS_lchown] = change_path,
#endif
#ifdef SYS_utime
	[SYS_utime] = change_path,
	[SYS_utimes] = change_path,
	[SYS_futimesat] = change_at,
#endif
#ifdef SYS_fork
	[SYS_fork] = do_fork,
	[SYS_vfork] = do_vfork,
#endif
};

long syscall_here(long number, long a, long b, long c, long d, long e, long f);

/* The call as hooks/syscall_entry.S found it: number, six arguments. */
typedef long go_on(long number, long a, long b, long c, long d, long e, long f);
go_on *hook_syscall(long *call);

/* What to go on with; NULL: answered, the result is in call[0] and in errno. */
go_on *hook_syscall(long *call)
{
	unsigned long number = (unsigned long)call[0];
	long r = PASS;

	if (live_config && number < sizeof handlers / sizeof *handlers && handlers[number])
		r = handlers[number](call + 1);
	if (r == PASS)
		return real_ready ? real.syscall : syscall_here;
	call[0] = r < 0 && r >= -4095 ? hook_result(r) : r;
	return NULL;
}
