// SPDX-License-Identifier: Apache-2.0
/*
 * syscall: syscall(), the C library's way to make system calls by number.  A table names what must be done
 * for each number that matters to managed files; all others pass (tests/symbols/syscalls.toml says why).
 *
 * Programs that use numbers are rare, so "write through" is the answer where it can be.  A file whose
 * descriptor is read or written by number is bypassed from then on.  Some numbers must do what the function
 * of their name does:
 *   - what makes and closes descriptors, renames and removes files: the tables of the library would be wrong
 *     otherwise;
 *   - stat and statx, which libuv (Node) and Rust call by number for each file: bypassing would end all
 *     staging there;
 *   - fsync and fdatasync: an error of an earlier flush must be reported;
 *   - fork, exec and exit: what is staged must not be written twice, nor lost.
 *
 * A handler gets the number and the arguments.  It returns the result, -errno for failure, or PASS: make the
 * call with registers and stack as the caller left them.  A handler with work to do afterwards makes the call
 * itself, by `kernel`.  The C library's functions would be cancellation points, and other preloaded libraries
 * may change what they do.
 */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/internal_fd.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/user.h"
#include "descriptors/fd_passing.h"
#include "process/namespaces.h"
#include "process/process.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

/* All handlers are called alike. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define PASS LONG_MIN
_Static_assert(IO_PASS == PASS && FD_PASS == PASS, "one word for passing on");

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
/* Numbers that newer machines do not have: never equal to one that is called. */
enum { NUMBER_MISSING = -1 };
#ifdef SYS_open
#define OLD_CREAT SYS_creat
#else
#define OLD_CREAT NUMBER_MISSING
#endif

/* at[]: the numbers of the arguments that the handler needs, in the order that it says.  NO: the call has no
 * such argument. */
enum { NO = -1, AT_MAX = 4 };
typedef long handler(long number, const long *a, const signed char *at);

static int fd_of(const long *a, int i) { return i == NO ? AT_FDCWD : (int)a[i]; }
static const char *path_of(const long *a, int i) { return i == NO ? NULL : (const char *)a[i]; }
static void *pointer_of(const long *a, int i) { return (void *)a[i]; }

static long kernel(long number, const long *a) { return sys_raw(number, a[0], a[1], a[2], a[3], a[4], a[5]); }

/* ---- descriptors: of at[0], path at[1] ---- */

static long opens(long number, const long *a, const signed char *at)
{
	struct fd_open op;
	long fd;

	if (number == SYS_openat2)
		hook_openat2_prepare(&op, (int)a[0], path_of(a, 1), pointer_of(a, 2), (size_t)a[3]);
	else if (number == SYS_open_by_handle_at)
		hook_by_handle_prepare(&op, (int)a[0], pointer_of(a, 1), (int)a[2]);
	else
		fd_open_prepare(&op, fd_of(a, at[0]), path_of(a, at[1]),
		                number == OLD_CREAT ? O_WRONLY | O_CREAT | O_TRUNC : (int)a[at[2]]);
	do
		fd = op.error ? op.error : kernel(number, a);
	while (!op.error &&
	       ((fd == -EMFILE && fd_spare_internal()) || (fd == -EAGAIN && fd_lease_over(&op))));
	marked_fds_forget((int)fd);
	if (fd >= 0 && fd_open_concerns(&op))
		fd_opened(&op, (int)fd);
	fd_open_end(&op);
	return fd;
}

static long closes(long number, const long *a, const signed char *at)
{
	return internal_fd_is((int)a[0]) ? -EBADF : fd_close((int)a[0]);
}

static long next_close_range(unsigned from, unsigned to, int flags)
{
	return sys_raw(SYS_close_range, from, to, flags, 0, 0, 0);
}

static long closes_range(long number, const long *a, const signed char *at)
{
	return namespaces_close_range((unsigned)a[0], (unsigned)a[1], (int)a[2], next_close_range);
}

static long duplicates(long number, const long *a, const signed char *at)
{
	struct fd_copy c;
	long fd;

	if (internal_fd_is((int)a[0]))
		return -EBADF;
	fd_dup_begin(&c, (int)a[0]);
	fd = kernel(number, a);
	fd_dup_done(&c, (int)fd);
	return fd;
}

static long duplicates_onto(long number, const long *a, const signed char *at)
{
	struct fd_dup_onto d;
	long r;

	if (number == SYS_dup3 && (a[2] & ~O_CLOEXEC))
		return PASS; /* which the kernel refuses */
	if (fd_dup_onto_prepare(&d, (int)a[0], (int)a[1]) == -EBADF)
		return -EBADF;
	r = kernel(number, a);
	fd_dup_onto_done(&d, r >= 0);
	return r;
}

static long next_fcntl(int fd, int cmd, long arg) { return sys_raw(SYS_fcntl, fd, cmd, arg, 0, 0, 0); }

static long controls(long number, const long *a, const signed char *at)
{
	if ((int)a[1] != F_GETOWN)
		return hook_fcntl(next_fcntl, (int)a[0], (int)a[1], a[2]);
	hook_before_owner((int)a[0]);
	return PASS;
}

static long sends(long number, const long *a, const signed char *at)
{
	if (number == SYS_sendmsg)
		fd_passing_sent(pointer_of(a, 1));
	else
		fd_passing_all_sent(pointer_of(a, 1), (unsigned)a[2]);
	return PASS;
}

static long receives(long number, const long *a, const signed char *at)
{
	long r = kernel(number, a);

	if (r < 0)
		return r;
	if (number == SYS_recvmsg)
		fd_passing_received(pointer_of(a, 1));
	else if (number == SYS_recvmmsg)
		fd_passing_all_received(pointer_of(a, 1), (unsigned)r);
	else
		fd_passing_arrived((int)r); /* pidfd_getfd */
	return r;
}

static long watches(long number, const long *a, const signed char *at)
{
	long fd = kernel(number, a);

	if (fd >= 0 && !(a[0] & FAN_REPORT_FID))
		attach_refuse(BYPASS_UNKNOWN_FD);
	return fd;
}

/* ---- data ---- */

/* Reads, writes, moves or measures the descriptor at[0]. */
static long uses(long number, const long *a, const signed char *at)
{
	return fd_bypass_call((int)a[at[0]], number, a);
}

/* The handler is set without the library's. */
static long catches(long number, const long *a, const signed char *at)
{
	if (a[1])
		signals_refuse();
	return PASS;
}

static long syncs(long number, const long *a, const signed char *at)
{
	struct ofd *o = unresolved_synced((int)a[0], number == SYS_fsync);

	return o ? io_sync((int)a[0], o, number == SYS_fsync) : PASS;
}

static long syncs_all(long number, const long *a, const signed char *at)
{
	long failed, r;

	if (number == SYS_sync) {
		by_name_drain_for_sync();
		return PASS;
	}
	failed = by_name_drain_for_syncfs((int)a[0]);
	r = kernel(number, a);
	return r == 0 ? failed : r;
}

static long maps(long number, const long *a, const signed char *at)
{
	long r = 0;

	if (!(a[3] & MAP_ANONYMOUS))
		r = by_name_map((int)a[4], (a[3] & MAP_SHARED) && (a[2] & PROT_WRITE));
	if (r < 0)
		return r;
	user_memory_changed();
	r = kernel(number, a);
	user_memory_changed();
	return r;
}

static long protects(long number, const long *a, const signed char *at)
{
	return hook_protect(number, pointer_of(a, 0), (size_t)a[1], a[2], (int)a[3]);
}

/* From the descriptor at[0] to at[1]. */
static long copies(long number, const long *a, const signed char *at)
{
	long r = hook_before_copy((int)a[at[0]], (int)a[at[1]]);

	return r < 0 ? r : PASS;
}

static long submits(long number, const long *a, const signed char *at)
{
	long n = hook_before_submit(a[1], pointer_of(a, 2));

	return n == a[1] ? PASS : n < 0 ? n : sys_raw(number, a[0], n, a[2], 0, 0, 0);
}

static long makes_ring(long number, const long *a, const signed char *at)
{
	long fd = kernel(number, a);

	if (fd >= 0)
		hook_ring_made();
	return fd;
}

static long locks(long number, const long *a, const signed char *at)
{
	long r = fd_before_lock((int)a[0], a[1] & LOCK_UN, LOCK_WHOLE);

	if (r == 0)
		r = kernel(number, a);
	if (r == 0)
		fd_locked((int)a[0], a[1] & LOCK_UN);
	return r;
}

/* ---- size, space, attributes: of path at[1] below directory at[0], or of descriptor at[0] ---- */

static long changes(long number, const long *a, const signed char *at)
{
	struct by_name_change change;
	const char *path = path_of(a, at[1]);
	long r;

	/* (without a path they are about the descriptor) */
	r = path ? by_name_change_at(&change, fd_of(a, at[0]), path)
	         : by_name_change_fd(&change, fd_of(a, at[0]));
	if (r == 0)
		r = kernel(number, a);
	journal_touched();
	if (r == 0)
		file_attributes_changed();
	by_name_change_end(&change);
	return r;
}

static long controls_device(long number, const long *a, const signed char *at)
{
	static const signed char descriptor[AT_MAX] = {0, NO};
	unsigned long request = (unsigned long)a[1];
	long r = hook_before_ioctl((int)a[0], request, pointer_of(a, 2));

	if (r == 0)
		r = hook_ioctl_clones(request) ? changes(number, a, descriptor) : kernel(number, a);
	if (r == 0)
		hook_after_ioctl((int)a[0], request, pointer_of(a, 2));
	return r;
}

/* The resource is at[0]. */
static long limits(long number, const long *a, const signed char *at)
{
	struct by_name_change change;
	long r;

	if ((int)a[at[0]] != RLIMIT_FSIZE)
		return PASS;
	by_name_limit_begin(&change);
	r = kernel(number, a);
	by_name_limit_end(&change);
	return r;
}

/* ---- looking at a file: path at[1] below directory at[0], into at[2] ---- */

/* (The structures of the system calls are those of the C library.) */
static long looks(long number, const long *a, const signed char *at)
{
	const char *path = path_of(a, at[1]);
	struct hook_look look = hook_look();
	void *out = pointer_of(a, at[2]);
	int dirfd = fd_of(a, at[0]);
	long r;

	unresolved_use(dirfd);
	do
		r = kernel(number, a);
	while (number == SYS_statx ? hook_looks_again_x(&look, r, dirfd, path, out)
	                           : hook_looks_again(&look, r, dirfd, path, out));
	return r;
}

/* ---- names: path at[1] below directory at[0]; the new one: at[3], at[2] ---- */

/* The call failed with r, and only our staging directory was in its way: try again. */
static bool is_emptied(long r, int dirfd, const char *path)
{
	return (r == -ENOTEMPTY || r == -EEXIST) && by_name_rmdir_again(dirfd, path);
}

static long renames(long number, const long *a, const signed char *at)
{
	unsigned flags = number == SYS_renameat2 ? (unsigned)a[4] : 0;
	struct by_name_rename move;
	long r;

	do {
		by_name_rename_prepare(&move, fd_of(a, at[0]), path_of(a, at[1]), fd_of(a, at[2]),
		                       path_of(a, at[3]), flags & RENAME_EXCHANGE);
		r = kernel(number, a);
		by_name_rename_done(&move, r == 0);
	} while (flags == 0 && is_emptied(r, fd_of(a, at[2]), path_of(a, at[3])));
	return r;
}

static long links(long number, const long *a, const signed char *at)
{
	struct by_name_link l;
	long r;

	by_name_link_prepare(&l, fd_of(a, at[0]), path_of(a, at[1]),
	                     number == SYS_linkat && (a[4] & AT_SYMLINK_FOLLOW), fd_of(a, at[2]),
	                     path_of(a, at[3]));
	r = kernel(number, a);
	by_name_link_done(&l, fd_of(a, at[2]), path_of(a, at[3]), r == 0);
	return r;
}

static long removes_directory(long number, const long *a, const signed char *at)
{
	long r = kernel(number, a);

	return is_emptied(r, fd_of(a, at[0]), path_of(a, at[1])) ? kernel(number, a) : r;
}

static long unlinks(long number, const long *a, const signed char *at)
{
	struct by_name_unlink u;
	long r;

	if (number == SYS_unlinkat && (a[2] & AT_REMOVEDIR))
		return removes_directory(number, a, at);
	by_name_unlink_prepare(&u, fd_of(a, at[0]), path_of(a, at[1]));
	r = kernel(number, a);
	by_name_unlink_done(&u, r == 0);
	return r;
}

/* ---- processes ---- */

static long executes(long number, const long *a, const signed char *at)
{
	int r = number == SYS_execve
	                ? execve(path_of(a, 0), pointer_of(a, 1), pointer_of(a, 2))
	                : execveat((int)a[0], path_of(a, 1), pointer_of(a, 2), pointer_of(a, 3), (int)a[4]);

	return r < 0 ? -errno : r;
}

/* A plain fork: the child gets a copy of everything.  All other calls must pass: their child returns on a
 * stack of its own, or on this one before its parent does. */
static bool is_fork(uint64_t flags, uint64_t stack)
{
	const uint64_t sharing = CLONE_VM | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SETTLS;

	return stack == 0 && (flags & sharing) == 0;
}

static long forks(long number, const long *a, const signed char *at)
{
	return process_raw_fork(kernel, number, a);
}

static long clones(long number, const long *a, const signed char *at)
{
	const struct clone_args *args = pointer_of(a, 0);
	bool plain;

	if (number == SYS_clone)
		plain = is_fork((uint64_t)a[0], (uint64_t)a[1]);
	else if (number != SYS_clone3)
		plain = false; /* vfork */
	else if ((size_t)a[1] < CLONE_ARGS_SIZE_VER0 || !user_readable(args, CLONE_ARGS_SIZE_VER0))
		return PASS; /* the kernel will refuse it */
	else
		plain = is_fork(args->flags, args->stack);
	if (plain)
		return forks(number, a, at);
	process_raw_clone();
	return PASS;
}

/* The end of one thread.  The last thread of the program ends the process: ours would keep it alive. */
static long exits(long number, const long *a, const signed char *at)
{
	if (number == SYS_exit_group || (!fd_has_left() && namespaces_one_thread())) {
		process_exit();
		return kernel(SYS_exit_group, a);
	}
	by_name_drain_all();
	return PASS;
}

/* Makes the call while the library has no thread.  `files`: see namespaces_begin. */
static long without_threads(long number, const long *a, bool files)
{
	struct namespaces_state state = namespaces_begin(files);
	long r = kernel(number, a);

	namespaces_end(state);
	return r;
}

/* The flags of the namespaces are at[0]. */
static long controls_process(long number, const long *a, const signed char *at)
{
	if (number == SYS_prctl)
		hook_before_prctl(a[0], a[1], a[2]);
	else if (a[0] == SECCOMP_SET_MODE_STRICT || (a[0] == SECCOMP_SET_MODE_FILTER && a[2]))
		process_filter_prepare();
	return PASS;
}

static long enters(long number, const long *a, const signed char *at)
{
	int flags = (int)a[at[0]];
	bool begun;
	long r;

	if (number == SYS_setns && flags == 0)
		flags = CLONE_NEWPID | CLONE_NEWUSER;
	begun = credentials_begin(namespaces_change(flags));
	r = without_threads(number, a, number == SYS_unshare && (flags & CLONE_FILES));
	credentials_end(begun);
	return r;
}

/*
 * By number these change the calling thread only.  The ids are the first at[0] arguments.  No thread of the
 * library may keep the old rights.  When another thread of the program keeps them, or one of the ids stays,
 * nothing is staged any more.
 */
static long gives_up(long number, const long *a, const signed char *at)
{
	bool whole = namespaces_one_thread(), begun;
	long r;

	for (int i = 0; i < at[0]; i++)
		whole &= (int)a[i] != -1;
	begun = credentials_begin(CREDENTIALS_CHANGE);
	r = without_threads(number, a, false);
	credentials_end(begun);
	if (!whole)
		credentials_of_thread();
	return r;
}

static long sets_groups(long number, const long *a, const signed char *at)
{
	bool begun = credentials_begin(CREDENTIALS_GROUPS);
	long r = kernel(number, a);

	credentials_end(begun);
	return r;
}

/* (An id that nobody has asks which one it is.) */
static long sets_file_id(long number, const long *a, const signed char *at)
{
	if ((int)a[0] != -1)
		credentials_of_thread();
	return PASS;
}

static long mounts(long number, const long *a, const signed char *at)
{
	long r;

	if (number == SYS_umount2 && (a[1] & MNT_DETACH))
		hook_before_detach();
	do
		r = kernel(number, a);
	while (r == -EBUSY && fd_spare_internal());
	return r;
}

static const struct {
	handler *handle;
	signed char at[AT_MAX];
} calls[] = {
	[SYS_openat] = {opens, {0, 1, 2}},
	[SYS_openat2] = {opens},
	[SYS_open_by_handle_at] = {opens},
	[SYS_close] = {closes},
	[SYS_close_range] = {closes_range},
	[SYS_dup] = {duplicates},
	[SYS_dup3] = {duplicates_onto},
	[SYS_fcntl] = {controls},
	[SYS_sendmsg] = {sends},
	[SYS_sendmmsg] = {sends},
	[SYS_recvmsg] = {receives},
	[SYS_recvmmsg] = {receives},
	[SYS_pidfd_getfd] = {receives},
	[SYS_fanotify_init] = {watches},
	[SYS_write] = {uses, {0}},
	[SYS_pwrite64] = {uses, {0}},
	[SYS_writev] = {uses, {0}},
	[SYS_pwritev] = {uses, {0}},
	[SYS_pwritev2] = {uses, {0}},
	[SYS_read] = {uses, {0}},
	[SYS_pread64] = {uses, {0}},
	[SYS_readv] = {uses, {0}},
	[SYS_preadv] = {uses, {0}},
	[SYS_preadv2] = {uses, {0}},
	[SYS_lseek] = {uses, {0}},
	[SYS_fsync] = {syncs},
	[SYS_fdatasync] = {syncs},
	[SYS_sync] = {syncs_all},
	[SYS_syncfs] = {syncs_all},
	[SYS_sync_file_range] = {uses, {0}},
	[SYS_cachestat] = {uses, {0}},
	[SYS_mmap] = {maps},
	[SYS_mprotect] = {protects},
	[SYS_pkey_mprotect] = {protects},
	[SYS_sendfile] = {copies, {1, 0}},
	[SYS_splice] = {copies, {0, 2}},
	[SYS_copy_file_range] = {copies, {0, 2}},
	[SYS_ioctl] = {controls_device},
	[SYS_io_submit] = {submits},
	[SYS_io_uring_setup] = {makes_ring},
	[SYS_flock] = {locks},
	[SYS_ftruncate] = {changes, {0, NO}},
	[SYS_truncate] = {changes, {NO, 0}},
	[SYS_fallocate] = {changes, {0, NO}},
	[SYS_fchmod] = {changes, {0, NO}},
	[SYS_fchmodat] = {changes, {0, 1}},
	[SYS_fchmodat2] = {changes, {0, 1}},
	[SYS_fchown] = {changes, {0, NO}},
	[SYS_fchownat] = {changes, {0, 1}},
	[SYS_utimensat] = {changes, {0, 1}},
	[SYS_setxattr] = {changes, {NO, 0}},
	[SYS_lsetxattr] = {changes, {NO, 0}},
	[SYS_fsetxattr] = {changes, {0, NO}},
	[SYS_setxattrat] = {changes, {0, 1}},
	[SYS_removexattr] = {changes, {NO, 0}},
	[SYS_lremovexattr] = {changes, {NO, 0}},
	[SYS_fremovexattr] = {changes, {0, NO}},
	[SYS_removexattrat] = {changes, {0, 1}},
	[SYS_file_setattr] = {changes, {0, 1}},
	[SYS_swapon] = {changes, {NO, 0}},
	[SYS_setrlimit] = {limits, {0}},
	[SYS_prlimit64] = {limits, {1}},
	[SYS_fstat] = {looks, {0, NO, 1}},
	[SYS_newfstatat] = {looks, {0, 1, 2}},
	[SYS_statx] = {looks, {0, 1, 4}},
	[SYS_renameat2] = {renames, {0, 1, 2, 3}},
	[SYS_linkat] = {links, {0, 1, 2, 3}},
	[SYS_unlinkat] = {unlinks, {0, 1}},
	[SYS_execve] = {executes},
	[SYS_execveat] = {executes},
	[SYS_clone] = {clones},
	[SYS_clone3] = {clones},
	[SYS_exit] = {exits},
	[SYS_exit_group] = {exits},
	[SYS_prctl] = {controls_process},
	[SYS_seccomp] = {controls_process},
	[SYS_unshare] = {enters, {0}},
	[SYS_setns] = {enters, {1}},
	[SYS_capset] = {gives_up, {0}},
	[SYS_setuid] = {gives_up, {1}},
	[SYS_setgid] = {gives_up, {1}},
	[SYS_setreuid] = {gives_up, {2}},
	[SYS_setregid] = {gives_up, {2}},
	[SYS_setresuid] = {gives_up, {3}},
	[SYS_setresgid] = {gives_up, {3}},
	[SYS_setgroups] = {sets_groups},
	[SYS_setfsuid] = {sets_file_id},
	[SYS_setfsgid] = {sets_file_id},
	[SYS_rt_sigaction] = {catches},
	[SYS_mount] = {mounts},
	[SYS_umount2] = {mounts},
	[SYS_mount_setattr] = {mounts},
#ifdef SYS_renameat
	[SYS_renameat] = {renames, {0, 1, 2, 3}},
#endif
#ifdef SYS_open /* the machine has the old numbers, too */
	[SYS_open] = {opens, {NO, 0, 1}},
	[SYS_creat] = {opens, {NO, 0}},
	[SYS_dup2] = {duplicates_onto},
	[SYS_stat] = {looks, {NO, 0, 1}},
	[SYS_lstat] = {looks, {NO, 0, 1}},
	[SYS_rename] = {renames, {NO, 0, NO, 1}},
	[SYS_link] = {links, {NO, 0, NO, 1}},
	[SYS_unlink] = {unlinks, {NO, 0}},
	[SYS_rmdir] = {removes_directory, {NO, 0}},
	[SYS_chmod] = {changes, {NO, 0}},
	[SYS_chown] = {changes, {NO, 0}},
	[SYS_lchown] = {changes, {NO, 0}},
	[SYS_utime] = {changes, {NO, 0}},
	[SYS_utimes] = {changes, {NO, 0}},
	[SYS_futimesat] = {changes, {0, 1}},
	[SYS_fork] = {forks},
	[SYS_vfork] = {clones},
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

	if (live_config && number < sizeof calls / sizeof *calls && calls[number].handle)
		r = calls[number].handle((long)number, call + 1, calls[number].at);
	if (r == PASS)
		return real_ready ? real.syscall : syscall_here;
	call[0] = r < 0 && r >= -4095 ? hook_result(r) : r;
	return NULL;
}
