// SPDX-License-Identifier: Apache-2.0
/* hook_handle: descriptors that are opened by something else than a path, or that other processes send or get. */
#include "hook.h"

#include "engage.h"
#include "pass.h"
#include "sys.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* Which file it will be is not known beforehand, so a truncating open settles all of them. */
void hook_prepare_unnamed(struct fd_open *op, int flags)
{
	if (flags & O_TRUNC)
		meta_settle_all();
	fd_open_prepare(op, AT_FDCWD, NULL, flags);
}

#define OPEN_UNNAMED(flags, call) \
	struct fd_open op; \
	int fd, before = errno; \
	hook_prepare_unnamed(&op, flags); \
	do \
		fd = (call); \
	while (fd < 0 && hook_again(before)); \
	if (fd >= 0 && fd_open_concerns(&op)) \
		fd_opened(&op, fd); \
	fd_open_end(&op); \
	return fd

EXPORT int open_by_handle_at(int mountfd, struct file_handle *handle, int flags)
{
	OPEN_UNNAMED(flags, real.open_by_handle_at(mountfd, handle, flags));
}

EXPORT int shm_open(const char *name, int flags, mode_t mode)
{
	OPEN_UNNAMED(flags, real.shm_open(name, flags, mode));
}

/* Where POSIX shared memory lies, as the C library has it. */
EXPORT int shm_unlink(const char *name)
{
	char path[PATH_MAX] = "/dev/shm/";
	size_t n = sizeof "/dev/shm/" - 1;
	struct meta_unlink u = {0};
	int r;

	if (name && !meta_idle()) {
		const char *from = name;

		while (*from == '/')
			from++;
		while (*from && n + 1 < sizeof path)
			path[n++] = *from++;
		path[n] = '\0';
		meta_unlink_prepare(&u, AT_FDCWD, path);
	}
	r = real.shm_unlink(name);
	if (r == 0)
		meta_unlink_done(&u);
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

	/* what is wrong with it is for the kernel to say */
	if (size >= sizeof copy && io_plausible(how, sizeof copy))
		copy = *(const struct open_how *)how;
	if (copy.resolve == 0)
		fd_open_prepare(op, dirfd, path, (int)copy.flags);
	else
		hook_prepare_unnamed(op,
		                     (int)copy.flags); /* the path may lead elsewhere for it than for us */
}

EXPORT int openat2(int dirfd, const char *path, struct open_how *how, size_t size);
EXPORT int openat2(int dirfd, const char *path, struct open_how *how, size_t size)
{
	struct fd_open op;
	int fd, before = errno;

	hook_openat2_prepare(&op, dirfd, path, how, size);
	do
		fd = next_openat2(dirfd, path, how, size);
	while (fd < 0 && hook_open_again(&op, before));
	if (fd >= 0 && fd_open_concerns(&op))
		fd_opened(&op, fd);
	fd_open_end(&op);
	return fd;
}

/* The events of such a group bring descriptors along, at any moment and on any file. */
EXPORT int fanotify_init(unsigned flags, unsigned event_flags)
{
	int fd = real.fanotify_init(flags, event_flags);
	int before = errno;

	if (fd >= 0 && !(flags & FAN_REPORT_FID)) {
		engage_refuse(THROUGH_UNKNOWN_FD);
		errno = before;
	}
	return fd;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	pass_sent(message);
	return real.sendmsg(fd, message, flags);
}

EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
	hook_messages(messages, count, pass_sent);
	return real.sendmmsg(fd, messages, count, flags);
}

/* The result of a call that brought descriptors; looking at them must not touch errno. */
#define RECEIVED(type, call, look) \
	type r = (call); \
	int before = errno; \
	if (r >= 0) \
		look; \
	errno = before; \
	return r

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	RECEIVED(ssize_t, real.recvmsg(fd, message, flags), pass_received(message));
}

EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout)
{
	RECEIVED(int, real.recvmmsg(fd, messages, count, flags, timeout),
	         hook_messages(messages, (unsigned)r, pass_received));
}

EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags);
EXPORT int pidfd_getfd(int pidfd, int fd, unsigned flags)
{
	RECEIVED(int,
	         real.pidfd_getfd ? real.pidfd_getfd(pidfd, fd, flags)
	                          : (int)hook_result(sys_raw(SYS_pidfd_getfd, pidfd, fd, flags, 0, 0, 0)),
	         pass_arrived(r));
}
