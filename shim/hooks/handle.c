// SPDX-License-Identifier: Apache-2.0
/* handle: descriptors that are opened without a path, or sent to and received from other processes. */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/sys.h"
#include "base/user.h"
#include "descriptors/fd_passing.h"
#include "hooks/cancel.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* An open whose file is not known beforehand: O_TRUNC drains all files. */
static void prepare_unnamed(struct fd_open *op, int flags)
{
	if (flags & O_TRUNC)
		by_name_drain_all();
	fd_open_prepare(op, AT_FDCWD, NULL, flags);
	fd_open_unnamed(op);
}

/* Keeps all threads from staging for the file that the open is about to cut. */
static void hold_off(struct fd_open *op, long target)
{
	if (target < 0)
		return; /* no such file, or no free descriptor */
	fd_open_cuts(op, (int)target);
	sys.close((int)target);
}

void hook_by_handle_prepare(struct fd_open *op, int mountfd, const struct file_handle *handle, int flags)
{
	prepare_unnamed(op, flags);
	if (fd_open_cuts_some(op))
		hold_off(op,
		         sys_raw(SYS_open_by_handle_at, mountfd, (long)handle, O_PATH | O_CLOEXEC, 0, 0, 0));
}

EXPORT int open_by_handle_at(int mountfd, struct file_handle *handle, int flags)
{
	struct fd_open op;
	int fd, before = errno;

	if (flags & O_TRUNC)
		cancel_point(); /* a cancellation between here and fd_open_end would leave the gate closed */
	hook_by_handle_prepare(&op, mountfd, handle, flags);
	if (op.error)
		return hook_opened(&op, (int)hook_result(op.error));
	do
		fd = real.open_by_handle_at(mountfd, handle, flags);
	while (fd < 0 && hook_again(before));
	return hook_opened(&op, fd);
}

/* Path of POSIX shared memory, as the C library builds it: PATH_MAX bytes.  NULL for names that it
 * refuses. */
static const char *shm_path(const char *name, char *path)
{
	size_t n = sizeof "/dev/shm/" - 1;

	if (!name)
		return NULL;
	memcpy(path, "/dev/shm/", n);
	while (*name == '/')
		name++;
	while (*name && n + 1 < PATH_MAX)
		path[n++] = *name++;
	path[n] = '\0';
	return *name ? NULL : path;
}

EXPORT int shm_open(const char *name, int flags, mode_t mode)
{
	char path[PATH_MAX];
	struct fd_open op;
	int fd, before = errno;

	/* the C library adds O_NONBLOCK: its open does not wait for a lease */
	fd_open_prepare(&op, AT_FDCWD, shm_path(name, path), flags | O_NONBLOCK);
	if (op.error)
		return hook_opened(&op, (int)hook_result(op.error));
	do
		fd = real.shm_open(name, flags, mode);
	while (fd < 0 && hook_open_again(&op, before));
	return hook_opened(&op, fd);
}

EXPORT int shm_unlink(const char *name)
{
	char room[PATH_MAX];
	const char *path = by_name_idle() ? NULL : shm_path(name, room);
	struct by_name_unlink u = {0};
	int r;

	if (path)
		by_name_unlink_prepare(&u, AT_FDCWD, path);
	r = real.shm_unlink(name);
	by_name_unlink_done(&u, r == 0);
	return r;
}

static int next_openat2(int dirfd, const char *path, void *how, size_t size)
{
	if (real.openat2)
		return real.openat2(dirfd, path, how, size);
	return (int)hook_result(sys_raw(SYS_openat2, dirfd, (long)path, (long)how, (long)size, 0, 0));
}

void hook_openat2_prepare(struct fd_open *op, int dirfd, const char *path, const void *how, size_t size)
{
	struct open_how copy = {.flags = O_RDONLY};

	/* the kernel reports the error in `how` */
	if (size >= sizeof copy && user_readable(how, sizeof copy))
		copy = *(const struct open_how *)how;
	if (copy.resolve == 0) {
		fd_open_prepare(op, dirfd, path, (int)copy.flags);
		return;
	}
	/* with `resolve` the kernel may follow the path to another file than our stat would */
	prepare_unnamed(op, (int)copy.flags);
	if (!fd_open_cuts_some(op))
		return;
	copy.flags = O_PATH | O_CLOEXEC | (copy.flags & O_NOFOLLOW);
	copy.mode = 0;
	hold_off(op, sys_raw(SYS_openat2, dirfd, (long)path, (long)&copy, sizeof copy, 0, 0));
}

EXPORT int openat2(int dirfd, const char *path, struct open_how *how, size_t size);
EXPORT int openat2(int dirfd, const char *path, struct open_how *how, size_t size)
{
	struct fd_open op;
	int fd, before = errno;

	if (real.openat2)
		cancel_point(); /* a cancellation between here and fd_open_end would leave the gate closed */
	hook_openat2_prepare(&op, dirfd, path, how, size);
	if (op.error)
		return hook_opened(&op, (int)hook_result(op.error));
	do
		fd = next_openat2(dirfd, path, how, size);
	while (fd < 0 && hook_open_again(&op, before));
	return hook_opened(&op, fd);
}

/* The events of such a group carry descriptors, at any time and of any file. */
EXPORT int fanotify_init(unsigned flags, unsigned event_flags)
{
	int fd = real.fanotify_init(flags, event_flags);
	int before = errno;

	if (fd >= 0 && !(flags & FAN_REPORT_FID)) {
		attach_refuse(BYPASS_UNKNOWN_FD);
		errno = before;
	}
	return fd;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	fd_passing_sent(message);
	return real.sendmsg(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	fd_passing_all_sent(messages, count);
	return real.sendmmsg(fd, messages, count, flags);
}

/* errno must stay as the call has set it */
EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t r = real.recvmsg(fd, message, flags);
	int before = errno;

	if (r >= 0)
		fd_passing_received(message);
	errno = before;
	return r;
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout)
{
	int r = real.recvmmsg(fd, messages, count, flags, timeout);
	int before = errno;

	if (r >= 0)
		fd_passing_all_received(messages, (unsigned)r);
	errno = before;
	return r;
}

EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags);
EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags)
{
	int r = real.pidfd_getfd ? real.pidfd_getfd(pidfd, fd, flags)
	                         : (int)hook_result(sys_raw(SYS_pidfd_getfd, pidfd, fd, flags, 0, 0, 0));
	int before = errno;

	if (r >= 0)
		fd_passing_arrived(r);
	errno = before;
	return r;
}
