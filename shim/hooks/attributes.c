// SPDX-License-Identifier: Apache-2.0
/*
 * hook_attr: modes, owners, times, extended attributes.  A write that reached the kernel after one of these
 * would undo part of it (modification time, set-id bits), so everything staged goes first.
 */
#include "hooks/hook.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <utime.h>

/* The next fsync of a file has more to do than fdatasync. */
static int changed(int r)
{
	if (r == 0)
		file_attributes_changed();
	return r;
}

#define BY_FD(fd, call) \
	int released = by_name_release_fd(fd); \
	return released < 0 ? (int)hook_result(released) : changed(call)

#define BY_PATH(dirfd, path, call) \
	int released = by_name_release_at(dirfd, path); \
	return released < 0 ? (int)hook_result(released) : changed(call)

/* Without a path the call is about the descriptor. */
#define BY_PATH_OR_FD(dirfd, path, call) \
	int released = (path) ? by_name_release_at(dirfd, path) : by_name_release_fd(dirfd); \
	return released < 0 ? (int)hook_result(released) : changed(call)

EXPORT int fchmod(int fd, mode_t mode) { BY_FD(fd, real.fchmod(fd, mode)); }
EXPORT int chmod(const char *path, mode_t mode) { BY_PATH(AT_FDCWD, path, real.chmod(path, mode)); }
EXPORT int fchmodat(int dirfd, const char *path, mode_t mode, int flags)
{
	BY_PATH_OR_FD(dirfd, path, real.fchmodat(dirfd, path, mode, flags));
}
EXPORT int fchown(int fd, uid_t uid, gid_t gid) { BY_FD(fd, real.fchown(fd, uid, gid)); }
EXPORT int chown(const char *path, uid_t uid, gid_t gid)
{
	BY_PATH(AT_FDCWD, path, real.chown(path, uid, gid));
}
EXPORT int lchown(const char *path, uid_t uid, gid_t gid)
{
	BY_PATH(AT_FDCWD, path, real.lchown(path, uid, gid));
}
EXPORT int fchownat(int dirfd, const char *path, uid_t uid, gid_t gid, int flags)
{
	BY_PATH_OR_FD(dirfd, path, real.fchownat(dirfd, path, uid, gid, flags));
}
EXPORT int futimens(int fd, const struct timespec times[2]) { BY_FD(fd, real.futimens(fd, times)); }
EXPORT int utimensat(int dirfd, const char *path, const struct timespec times[2], int flags)
{
	BY_PATH_OR_FD(dirfd, path, real.utimensat(dirfd, path, times, flags));
}
EXPORT int futimes(int fd, const struct timeval times[2]) { BY_FD(fd, real.futimes(fd, times)); }
EXPORT int utimes(const char *path, const struct timeval times[2])
{
	BY_PATH(AT_FDCWD, path, real.utimes(path, times));
}
EXPORT int lutimes(const char *path, const struct timeval times[2])
{
	BY_PATH(AT_FDCWD, path, real.lutimes(path, times));
}
EXPORT int futimesat(int dirfd, const char *path, const struct timeval times[2])
{
	BY_PATH_OR_FD(dirfd, path, real.futimesat(dirfd, path, times));
}
EXPORT int utime(const char *path, const struct utimbuf *times)
{
	BY_PATH(AT_FDCWD, path, real.utime(path, times));
}
EXPORT int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	BY_FD(fd, real.fsetxattr(fd, name, value, size, flags));
}
EXPORT int setxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	BY_PATH(AT_FDCWD, path, real.setxattr(path, name, value, size, flags));
}
EXPORT int lsetxattr(const char *path, const char *name, const void *value, size_t size, int flags)
{
	BY_PATH(AT_FDCWD, path, real.lsetxattr(path, name, value, size, flags));
}
EXPORT int lchmod(const char *path, mode_t mode) { BY_PATH(AT_FDCWD, path, real.lchmod(path, mode)); }
EXPORT int fremovexattr(int fd, const char *name) { BY_FD(fd, real.fremovexattr(fd, name)); }
EXPORT int removexattr(const char *path, const char *name)
{
	BY_PATH(AT_FDCWD, path, real.removexattr(path, name));
}
EXPORT int lremovexattr(const char *path, const char *name)
{
	BY_PATH(AT_FDCWD, path, real.lremovexattr(path, name));
}
