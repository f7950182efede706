// SPDX-License-Identifier: Apache-2.0
/* hook_close: descriptors are duplicated and closed; fcntl. */
#include "hook.h"

#include "engage.h"
#include "sys.h"

#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

EXPORT int close(int fd)
{
	long staged;
	int r;

	if (own_fd_is(fd))
		return (int)hook_result(-EBADF);
	staged = fd_close_prepare(fd);
	r = real.close(fd);
	/* the descriptor is gone in any case; what could not be written is the error that matters */
	return r == 0 && staged != FD_PASS ? (int)hook_result(staged) : r;
}

/* Applies `flags` to what lies between our own descriptors. */
EXPORT int close_range(unsigned from, unsigned to, int flags)
{
	unsigned at = from;

	if (from > to || (flags & (int)~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)))
		return real.close_range(from, to, flags);
	if (!(flags & CLOSE_RANGE_CLOEXEC))
		fd_close_range_prepare(from, to);
	for (;;) {
		int own = fd_next_own(at, to);

		if (own < 0)
			return at <= to ? real.close_range(at, to, flags) : 0;
		if ((unsigned)own > at && real.close_range(at, (unsigned)own - 1, flags) < 0)
			return -1;
		if ((unsigned)own == to)
			return 0;
		at = (unsigned)own + 1;
	}
}

EXPORT void closefrom(int from)
{
	if (from < 0)
		from = 0;
	if (fd_next_own((unsigned)from, ~0u) < 0 && fdtable_next((unsigned)from, ~0u) < 0)
		real.closefrom(from);
	else
		close_range((unsigned)from, ~0u, 0);
}

EXPORT int dup(int oldfd)
{
	int fd = own_fd_is(oldfd) ? (int)hook_result(-EBADF) : real.dup(oldfd);

	if (fd >= 0)
		fd_dup_done(oldfd, fd);
	return fd;
}

EXPORT int dup2(int oldfd, int newfd)
{
	int r = (int)fd_dup_onto_prepare(oldfd, newfd);

	if (r == -EBADF)
		return (int)hook_result(-EBADF);
	r = real.dup2(oldfd, newfd);
	if (r >= 0)
		fd_dup_done(oldfd, newfd);
	return r;
}

EXPORT int dup3(int oldfd, int newfd, int flags)
{
	int r;

	if ((flags & ~O_CLOEXEC) == 0 && (int)fd_dup_onto_prepare(oldfd, newfd) == -EBADF)
		return (int)hook_result(-EBADF);
	r = real.dup3(oldfd, newfd, flags);
	if (r >= 0)
		fd_dup_done(oldfd, newfd);
	return r;
}

static bool is_lock(int cmd)
{
	return cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW;
}

static int fcntl_any(int (*next)(int, int, long), int fd, int cmd, long arg)
{
	struct ofd *o;
	long r;

	if (is_lock(cmd))
		lazy_resolve(fd);
	o = fdtable_get(fd);
	if (__builtin_expect(!o, 1)) {
		if (own_fd_is(fd))
			return (int)hook_result(-EBADF);
		if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC) {
			int copy = next(fd, cmd, arg);

			if (copy >= 0 && lazy_is(fd))
				fd_dup_done(fd, copy);
			return copy;
		}
		/* a lock through a descriptor that we do not manage: closing one of ours would drop it */
		if (engage_config && is_lock(cmd))
			meta_map(fd);
		return next(fd, cmd, arg);
	}
	r = fd_fcntl(fd, o, cmd, arg);
	if (r != FD_PASS)
		return (int)hook_result(r);
	r = next(fd, cmd, arg);
	if (r >= 0 && (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC))
		fd_dup_done(fd, (int)r);
	if (r >= 0 && is_lock(cmd))
		fd_hand_over(fd);
	return (int)r;
}

EXPORT int fcntl(int fd, int cmd, ...)
{
	va_list list;
	long arg;

	va_start(list, cmd);
	arg = va_arg(list, long);
	va_end(list);
	return fcntl_any(real.fcntl, fd, cmd, arg);
}

EXPORT int fcntl64(int fd, int cmd, ...)
{
	va_list list;
	long arg;

	va_start(list, cmd);
	arg = va_arg(list, long);
	va_end(list);
	return fcntl_any(real.fcntl64, fd, cmd, arg);
}

#define ALIAS_OF(name) EXPORT __attribute__((alias(#name), copy(name)))
ALIAS_OF(close) int __close(int fd);
ALIAS_OF(dup2) int __dup2(int oldfd, int newfd);
ALIAS_OF(fcntl) int __fcntl(int fd, int cmd, ...);
