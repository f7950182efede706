// SPDX-License-Identifier: Apache-2.0
/* close: descriptors are duplicated and closed; fcntl. */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/sys.h"
#include "base/user.h"
#include "files/fdtable.h"
#include "files/marked_fds.h"
#include "hooks/cancel.h"
#include "process/namespaces.h"

#include <fcntl.h>
#include <stdarg.h>
#include <unistd.h>

EXPORT int close(int fd)
{
	long staged;
	int r;

	if (internal_fd_is(fd))
		return (int)hook_result(-EBADF);
	cancel_point(); /* before the descriptor is forgotten: a cancelled close leaves it open */
	if (fdtable_get(fd))
		return (int)hook_result(fd_close(fd));
	staged = fd_close_prepare(fd);
	r = real.close(fd);
	/* close frees the descriptor even on failure; the error of the staged bytes matters more than its
	 * own */
	return r == 0 && staged != FD_PASS ? (int)hook_result(staged) : r;
}

static long next_close_range(unsigned from, unsigned to, int flags)
{
	int r;

	if (!real.close_range)
		return sys_raw(SYS_close_range, from, to, flags, 0, 0, 0);
	r = real.close_range(from, to, flags);
	return r < 0 ? -errno : r;
}

EXPORT int close_range(unsigned from, unsigned to, int flags)
{
	return (int)hook_result(namespaces_close_range(from, to, flags, next_close_range));
}

EXPORT void closefrom(int from)
{
	if (from < 0)
		from = 0;
	if (real.closefrom && by_name_idle() && fd_next_internal((unsigned)from, ~0u) < 0 &&
	    fdtable_next((unsigned)from, ~0u) < 0) {
		marked_fds_forget_range((unsigned)from, ~0u);
		real.closefrom(from);
	} else if (namespaces_close_range((unsigned)from, ~0u, 0, next_close_range) < 0) {
		fd_close_listed(from);
	}
}

EXPORT int dup(int oldfd)
{
	struct fd_copy c;
	int fd, before = errno;

	if (internal_fd_is(oldfd))
		return (int)hook_result(-EBADF);
	do {
		fd_dup_begin(&c, oldfd);
		fd = real.dup(oldfd);
		fd_dup_done(&c, fd);
	} while (fd < 0 && hook_again(before));
	return fd;
}

EXPORT int dup2(int oldfd, int newfd)
{
	struct fd_dup_onto d;
	int r;

	if (fd_dup_onto_prepare(&d, oldfd, newfd) == -EBADF)
		return (int)hook_result(-EBADF);
	r = real.dup2(oldfd, newfd);
	fd_dup_onto_done(&d, r >= 0);
	return r;
}

EXPORT int dup3(int oldfd, int newfd, int flags)
{
	struct fd_dup_onto d;
	int r;

	if (flags & ~O_CLOEXEC)
		return real.dup3(oldfd, newfd, flags); /* the kernel refuses these flags */
	if (fd_dup_onto_prepare(&d, oldfd, newfd) == -EBADF)
		return (int)hook_result(-EBADF);
	r = real.dup3(oldfd, newfd, flags);
	fd_dup_onto_done(&d, r >= 0);
	return r;
}

static bool is_lock(int cmd)
{
	return cmd == F_SETLK || cmd == F_SETLKW || cmd == F_OFD_SETLK || cmd == F_OFD_SETLKW;
}

/* The library takes leases, too, and must not replace the program's own. */
static bool is_lease(int cmd)
{
	return cmd == F_SETLEASE || cmd == F_SETSIG || cmd == F_SETOWN || cmd == F_SETOWN_EX ||
	       cmd == F_NOTIFY;
}

static long copied(long (*next)(int fd, int cmd, long arg), int fd, int cmd, long arg)
{
	struct fd_copy c;
	long copy;

	do {
		fd_dup_begin(&c, fd);
		copy = next(fd, cmd, arg);
		fd_dup_done(&c, (int)copy);
	} while (copy == -EMFILE && fd_spare_internal());
	return copy;
}

/* What the call asks for.  To see whether `arg` can be read may cost a system call: so only once. */
struct asked {
	bool known;
	bool releases;
	enum fd_lock_range range;
};

static struct asked asked_for(long arg)
{
	const struct flock *lock = (const struct flock *)(uintptr_t)arg;
	struct asked asked = {.known = true, .range = LOCK_FROM_POSITION};

	if (user_readable(lock, sizeof *lock)) {
		asked.releases = lock->l_type == F_UNLCK;
		if (lock->l_whence == SEEK_SET)
			asked.range = LOCK_AT_OFFSET;
	}
	return asked;
}

long hook_fcntl(long (*next)(int fd, int cmd, long arg), int fd, int cmd, long arg)
{
	struct asked asked = {.known = false};
	struct ofd *o;
	long r;

	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return internal_fd_is(fd) ? -EBADF : copied(next, fd, cmd, arg);
	if (is_lock(cmd) && !fd_lock_changes_nothing(fd)) {
		asked = asked_for(arg);
		r = fd_before_lock(fd, asked.releases, asked.range);
		if (r < 0)
			return r;
	} else if ((cmd == F_GETLK || cmd == F_OFD_GETLK) && fdtable_get(fd) &&
	           asked_for(arg).range == LOCK_FROM_POSITION) {
		/* the kernel counts from its own position, or from the size that it knows */
		r = fd_drain(fd);
		if (r < 0)
			return r;
	} else if (is_lease(cmd) || cmd == F_SETFL) {
		/* another thread that resolved fd during the call would keep the old flags */
		unresolved_resolve(fd);
	}
	o = fdtable_get(fd);
	if (__builtin_expect(!o, 1)) {
		if (internal_fd_is(fd))
			return -EBADF;
		/* a lock through an unmanaged descriptor: if we opened and closed the file, the lock would be
		 * lost */
		if (live_config && is_lock(cmd) && !fork_guard_vforked)
			by_name_map(fd, false);
		return next(fd, cmd, arg);
	}
	if (is_lock(cmd)) {
		r = next(fd, cmd, arg);
		if (r >= 0 && (asked.known || !fd_lock_changes_nothing(fd)))
			fd_locked(fd, asked.releases);
		return r;
	}
	r = fd_fcntl(fd, o, cmd, arg);
	return r == FD_PASS ? next(fd, cmd, arg) : r;
}

/* The program must see its own owner, not the one that our lease has set. */
void hook_before_owner(int fd)
{
	struct ofd *o = fdtable_get(fd);

	if (o)
		fd_fcntl(fd, o, F_GETOWN, 0);
}

static long next_fcntl(int fd, int cmd, long arg)
{
	int r = real.fcntl(fd, cmd, arg);

	return r == -1 ? -errno : r;
}

EXPORT int fcntl(int fd, int cmd, ...)
{
	va_list list;
	long arg;

	va_start(list, cmd);
	arg = va_arg(list, long);
	va_end(list);
	if (cmd != F_GETOWN)
		return (int)hook_result(hook_fcntl(next_fcntl, fd, cmd, arg));
	/* the owner may be a process group, returned as a negative number, which is no error */
	hook_before_owner(fd);
	return real.fcntl(fd, F_GETOWN, 0);
}

ALIAS_OF(__close, close);
ALIAS_OF(__dup2, dup2);
ALIAS_OF(__fcntl, fcntl);
TWIN(fcntl64, fcntl);
