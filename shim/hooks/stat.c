// SPDX-License-Identifier: Apache-2.0
/*
 * hook_stat: the stat family, with the entry points of glibc before 2.33.  The kernel is asked first; when the
 * answer is about a staged file that is settled and asked again.
 */
#include "hooks/hook.h"

#include "base/sys.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define ASK(call, out) \
	int r; \
	HOOK_ASK(r, call, HOOK_SETTLE_STAT(out)) \
	return r

/* By a path: a dead process may have left bytes for the file.  (The path is looked at when the kernel has taken it.) */
#define ASK_NAMED(dirfd, path, call, out) \
	int r; \
	HOOK_ASK(r, call, HOOK_SETTLE_STAT(out)) \
	if (r == 0 && fd_recover_named(dirfd, path)) \
		r = (call); \
	return r

/* On LP64 both structures are one. */
#define OLD(out) ((struct stat *)(void *)(out))

EXPORT int stat(const char *path, struct stat *out) { ASK_NAMED(AT_FDCWD, path, real.stat(path, out), out); }
EXPORT int lstat(const char *path, struct stat *out)
{
	ASK_NAMED(AT_FDCWD, path, real.lstat(path, out), out);
}
EXPORT int fstat(int fd, struct stat *out)
{
	unresolved_use(fd);
	ASK(real.fstat(fd, out), out);
}
EXPORT int fstatat(int dirfd, const char *path, struct stat *out, int flags)
{
	ASK_NAMED(dirfd, path, real.fstatat(dirfd, path, out, flags), out);
}

EXPORT int __xstat(int version, const char *path, struct stat *out);
EXPORT int __lxstat(int version, const char *path, struct stat *out);
EXPORT int __fxstat(int version, int fd, struct stat *out);
EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *out, int flags);

EXPORT int __xstat(int version, const char *path, struct stat *out)
{
	ASK_NAMED(AT_FDCWD, path, real.__xstat(version, path, out), out);
}
EXPORT int __lxstat(int version, const char *path, struct stat *out)
{
	ASK_NAMED(AT_FDCWD, path, real.__lxstat(version, path, out), out);
}
EXPORT int __fxstat(int version, int fd, struct stat *out)
{
	unresolved_use(fd);
	ASK(real.__fxstat(version, fd, out), out);
}
EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *out, int flags)
{
	ASK_NAMED(dirfd, path, real.__fxstatat(version, dirfd, path, out, flags), out);
}

EXPORT int statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	int r;

	HOOK_ASK(r, real.statx(dirfd, path, flags, mask, out), HOOK_SETTLE_STATX(out))
	if (r == 0 && fd_recover_named(dirfd, path))
		r = real.statx(dirfd, path, flags, mask, out);
	return r;
}

TWIN(stat64, stat);
TWIN(lstat64, lstat);
TWIN(fstat64, fstat);
TWIN(fstatat64, fstatat);
ALIAS_OF(__xstat64, __xstat);
ALIAS_OF(__lxstat64, __lxstat);
ALIAS_OF(__fxstat64, __fxstat);
ALIAS_OF(__fxstatat64, __fxstatat);
