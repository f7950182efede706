// SPDX-License-Identifier: Apache-2.0
/*
 * attributes: modes, owners, times, extended attributes.  A write that reached the kernel after such a call
 * would undo part of it (modification time, set-id bits).  So everything staged is flushed first.
 */
#include "hooks/hook.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

/* Counts a change of attributes: the next fsync must do more than fdatasync. */
static int changed(int r)
{
	if (r == 0)
		file_attributes_changed();
	return r;
}

static bool ready_fd(int fd) { return hook_ready(by_name_detach_fd(fd)); }

/* Without a path the call concerns the descriptor. */
static bool ready(int dirfd, const char *path)
{
	return path ? hook_ready(by_name_detach_at(dirfd, path)) : ready_fd(dirfd);
}

EXPORT int fchmod(int fd, mode_t mode) { return ready_fd(fd) ? changed(real.fchmod(fd, mode)) : -1; }
EXPORT int chmod(const char *path, mode_t mode)
{
	return ready(AT_FDCWD, path) ? changed(real.chmod(path, mode)) : -1;
}
EXPORT int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{
	return ready(dirfd, path) ? changed(real.fchmodat(dirfd, path, mode, flags)) : -1;
}
EXPORT int fchown(int fd, uid_t uid, gid_t gid)
{
	return by_name_keeps_owner(fd, uid, gid) || ready_fd(fd) ? changed(real.fchown(fd, uid, gid)) : -1;
}
EXPORT int chown(const char *path, uid_t uid, gid_t gid)
{
	return ready(AT_FDCWD, path) ? changed(real.chown(path, uid, gid)) : -1;
}
EXPORT int lchown(const char *path, uid_t uid, gid_t gid)
{
	return ready(AT_FDCWD, path) ? changed(real.lchown(path, uid, gid)) : -1;
}
EXPORT int fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	return ready(dirfd, path) ? changed(real.fchownat(dirfd, path, uid, gid, flags)) : -1;
}
EXPORT int futimens(int fd, const struct timespec times[2])
{
	return ready_fd(fd) ? changed(real.futimens(fd, times)) : -1;
}
EXPORT int utimensat(int dirfd, const char *path, const struct timespec times[2], int flags)
{
	return ready(dirfd, path) ? changed(real.utimensat(dirfd, path, times, flags)) : -1;
}
EXPORT int futimes(int fd, const struct timeval times[2])
{
	return ready_fd(fd) ? changed(real.futimes(fd, times)) : -1;
}
EXPORT int utimes(const char *path, const struct timeval times[2])
{
	return ready(AT_FDCWD, path) ? changed(real.utimes(path, times)) : -1;
}
EXPORT int lutimes(const char *path, const struct timeval times[2])
{
	return ready(AT_FDCWD, path) ? changed(real.lutimes(path, times)) : -1;
}
EXPORT int futimesat(int dirfd, const char *path, const struct timeval times[2])
{
	return ready(dirfd, path) ? changed(real.futimesat(dirfd, path, times)) : -1;
}
EXPORT int utime(const char *path, const struct utimbuf *times)
{
	return ready(AT_FDCWD, path) ? changed(real.utime(path, times)) : -1;
}
EXPORT int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	return ready_fd(fd) ? changed(real.fsetxattr(fd, name, value, size, flags)) : -1;
}
EXPORT int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	return ready(AT_FDCWD, path) ? changed(real.setxattr(path, name, value, size, flags)) : -1;
}
EXPORT int lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	return ready(AT_FDCWD, path) ? changed(real.lsetxattr(path, name, value, size, flags)) : -1;
}
EXPORT int lchmod(const char *path, mode_t mode)
{
	return ready(AT_FDCWD, path) ? changed(real.lchmod(path, mode)) : -1;
}
EXPORT int fremovexattr(int fd, const char *name)
{
	return ready_fd(fd) ? changed(real.fremovexattr(fd, name)) : -1;
}
EXPORT int removexattr(const char *path, const char *name)
{
	return ready(AT_FDCWD, path) ? changed(real.removexattr(path, name)) : -1;
}
EXPORT int lremovexattr(const char *path, const char *name)
{
	return ready(AT_FDCWD, path) ? changed(real.lremovexattr(path, name)) : -1;
}
