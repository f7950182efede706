// SPDX-License-Identifier: Apache-2.0
/* hook_name: rename, link, unlink, rmdir. */
#include "hook.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define RENAME(fromfd, from, tofd, to, call) \
	struct meta_rename move; \
	int r; \
	meta_rename_prepare(&move, fromfd, from, tofd, to); \
	r = (call); \
	if (r == 0) \
		meta_rename_done(&move); \
	return r

EXPORT int rename(const char *from, const char *to)
{
	RENAME(AT_FDCWD, from, AT_FDCWD, to, real.rename(from, to));
}

EXPORT int renameat(int fromfd, const char *from, int tofd, const char *to)
{
	RENAME(fromfd, from, tofd, to, real.renameat(fromfd, from, tofd, to));
}

EXPORT int renameat2(int fromfd, const char *from, int tofd, const char *to, unsigned flags)
{
	if (flags & RENAME_EXCHANGE) {
		/* nothing is replaced: both only change names */
		meta_named(fromfd, from, false);
		meta_named(tofd, to, false);
		return real.renameat2(fromfd, from, tofd, to, flags);
	}
	RENAME(fromfd, from, tofd, to, real.renameat2(fromfd, from, tofd, to, flags));
}

EXPORT int link(const char *from, const char *to)
{
	meta_named(AT_FDCWD, from, false);
	return real.link(from, to);
}

EXPORT int linkat(int fromfd, const char *from, int tofd, const char *to, int flags)
{
	meta_named(fromfd, from, flags & AT_SYMLINK_FOLLOW);
	return real.linkat(fromfd, from, tofd, to, flags);
}

EXPORT int unlink(const char *path)
{
	struct meta_unlink u;
	int r;

	meta_unlink_prepare(&u, AT_FDCWD, path);
	r = real.unlink(path);
	if (r == 0)
		meta_unlink_done(&u);
	return r;
}

/* The staging directory must not make the program's rmdir fail. */
#define RMDIR(dirfd, path, call) \
	int before = errno; \
	int r = (call); \
	if (r < 0 && (errno == ENOTEMPTY || errno == EEXIST) && meta_rmdir_again(dirfd, path)) { \
		errno = before; \
		r = (call); \
	} \
	return r

EXPORT int rmdir(const char *path) { RMDIR(AT_FDCWD, path, real.rmdir(path)); }

static int remove_directory(int dirfd, const char *path, int flags)
{
	RMDIR(dirfd, path, real.unlinkat(dirfd, path, flags));
}

EXPORT int unlinkat(int dirfd, const char *path, int flags)
{
	struct meta_unlink u;
	int r;

	if (flags & AT_REMOVEDIR)
		return remove_directory(dirfd, path, flags);
	meta_unlink_prepare(&u, dirfd, path);
	r = real.unlinkat(dirfd, path, flags);
	if (r == 0)
		meta_unlink_done(&u);
	return r;
}

EXPORT int remove(const char *path)
{
	struct meta_unlink u;
	int before = errno;
	int r;

	meta_unlink_prepare(&u, AT_FDCWD, path);
	r = real.remove(path);
	if (r == 0) {
		meta_unlink_done(&u);
	} else if ((errno == ENOTEMPTY || errno == EEXIST) && meta_rmdir_again(AT_FDCWD, path)) {
		errno = before;
		r = real.remove(path);
	}
	return r;
}
