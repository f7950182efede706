// SPDX-License-Identifier: Apache-2.0
/* hook_name: rename, link, unlink, rmdir. */
#include "hooks/hook.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define RENAME(fromfd, from, tofd, to, exchange, call) \
	struct by_name_rename move; \
	int r; \
	by_name_rename_prepare(&move, fromfd, from, tofd, to, exchange); \
	r = (call); \
	by_name_rename_done(&move, r == 0); \
	return r

EXPORT int rename(const char *from, const char *to)
{
	RENAME(AT_FDCWD, from, AT_FDCWD, to, false, real.rename(from, to));
}

EXPORT int renameat(int fromfd, const char *from, int tofd, const char *to)
{
	RENAME(fromfd, from, tofd, to, false, real.renameat(fromfd, from, tofd, to));
}

EXPORT int renameat2(int fromfd, const char *from, int tofd, const char *to, unsigned flags)
{
	RENAME(fromfd, from, tofd, to, flags & RENAME_EXCHANGE,
	       real.renameat2(fromfd, from, tofd, to, flags));
}

#define LINK(fromfd, from, follow, tofd, to, call) \
	int r; \
	by_name_link_prepare(fromfd, from, follow); \
	r = (call); \
	if (r == 0) \
		by_name_link_done(tofd, to); \
	return r

EXPORT int link(const char *from, const char *to)
{
	LINK(AT_FDCWD, from, false, AT_FDCWD, to, real.link(from, to));
}

EXPORT int linkat(int fromfd, const char *from, int tofd, const char *to, int flags)
{
	LINK(fromfd, from, flags & AT_SYMLINK_FOLLOW, tofd, to, real.linkat(fromfd, from, tofd, to, flags));
}

EXPORT int unlink(const char *path)
{
	struct by_name_unlink u;
	int r;

	by_name_unlink_prepare(&u, AT_FDCWD, path);
	r = real.unlink(path);
	if (r == 0)
		by_name_unlink_done(&u);
	return r;
}

/* The staging directory must not make the program's rmdir fail. */
#define RMDIR(dirfd, path, call) \
	int before = errno; \
	int r = (call); \
	if (r < 0 && (errno == ENOTEMPTY || errno == EEXIST) && by_name_rmdir_again(dirfd, path)) { \
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
	struct by_name_unlink u;
	int r;

	if (flags & AT_REMOVEDIR)
		return remove_directory(dirfd, path, flags);
	by_name_unlink_prepare(&u, dirfd, path);
	r = real.unlinkat(dirfd, path, flags);
	if (r == 0)
		by_name_unlink_done(&u);
	return r;
}

EXPORT int remove(const char *path)
{
	struct by_name_unlink u;
	int before = errno;
	int r;

	by_name_unlink_prepare(&u, AT_FDCWD, path);
	r = real.remove(path);
	if (r == 0) {
		by_name_unlink_done(&u);
	} else if ((errno == ENOTEMPTY || errno == EEXIST) && by_name_rmdir_again(AT_FDCWD, path)) {
		errno = before;
		r = real.remove(path);
	}
	return r;
}
