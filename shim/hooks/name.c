// SPDX-License-Identifier: Apache-2.0
/* name: rename, link, unlink, rmdir. */
#include "hooks/hook.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* The staging directory must not make the program's rmdir, or a rename onto the directory, fail.  True: it is
 * gone, try again. */
static bool emptied(int r, int dirfd, const char *path, int before)
{
	if (r >= 0 || (errno != ENOTEMPTY && errno != EEXIST) || !by_name_rmdir_again(dirfd, path))
		return false;
	errno = before;
	return true;
}

EXPORT int rename(const char *from, const char *to)
{
	struct by_name_rename move;
	int before = errno, r;

	do {
		by_name_rename_prepare(&move, AT_FDCWD, from, AT_FDCWD, to, false);
		r = real.rename(from, to);
		by_name_rename_done(&move, r == 0);
	} while (emptied(r, AT_FDCWD, to, before));
	return r;
}

EXPORT int renameat(int fromfd, const char *from, int tofd, const char *to)
{
	struct by_name_rename move;
	int before = errno, r;

	do {
		by_name_rename_prepare(&move, fromfd, from, tofd, to, false);
		r = real.renameat(fromfd, from, tofd, to);
		by_name_rename_done(&move, r == 0);
	} while (emptied(r, tofd, to, before));
	return r;
}

EXPORT int renameat2(int fromfd, const char *from, int tofd, const char *to, unsigned flags)
{
	struct by_name_rename move;
	int before = errno, r;

	do {
		by_name_rename_prepare(&move, fromfd, from, tofd, to, flags & RENAME_EXCHANGE);
		r = real.renameat2(fromfd, from, tofd, to, flags);
		by_name_rename_done(&move, r == 0);
	} while (flags == 0 && emptied(r, tofd, to, before));
	return r;
}

EXPORT int link(const char *from, const char *to)
{
	struct by_name_link l;
	int r;

	by_name_link_prepare(&l, AT_FDCWD, from, false, AT_FDCWD, to);
	r = real.link(from, to);
	by_name_link_done(&l, AT_FDCWD, to, r == 0);
	return r;
}

EXPORT int linkat(int fromfd, const char *from, int tofd, const char *to, int flags)
{
	struct by_name_link l;
	int r;

	by_name_link_prepare(&l, fromfd, from, flags & AT_SYMLINK_FOLLOW, tofd, to);
	r = real.linkat(fromfd, from, tofd, to, flags);
	by_name_link_done(&l, tofd, to, r == 0);
	return r;
}

EXPORT int unlink(const char *path)
{
	struct by_name_unlink u;
	int r;

	by_name_unlink_prepare(&u, AT_FDCWD, path);
	r = real.unlink(path);
	by_name_unlink_done(&u, r == 0);
	return r;
}

EXPORT int rmdir(const char *path)
{
	int before = errno, r = real.rmdir(path);

	return emptied(r, AT_FDCWD, path, before) ? real.rmdir(path) : r;
}

static int remove_directory(int dirfd, const char *path, int flags)
{
	int before = errno, r = real.unlinkat(dirfd, path, flags);

	return emptied(r, dirfd, path, before) ? real.unlinkat(dirfd, path, flags) : r;
}

EXPORT int unlinkat(int dirfd, const char *path, int flags)
{
	struct by_name_unlink u;
	int r;

	if (flags & AT_REMOVEDIR)
		return remove_directory(dirfd, path, flags);
	by_name_unlink_prepare(&u, dirfd, path);
	r = real.unlinkat(dirfd, path, flags);
	by_name_unlink_done(&u, r == 0);
	return r;
}

EXPORT int remove(const char *path)
{
	struct by_name_unlink u;
	int before = errno;
	int r;

	by_name_unlink_prepare(&u, AT_FDCWD, path);
	r = real.remove(path);
	by_name_unlink_done(&u, r == 0);
	return emptied(r, AT_FDCWD, path, before) ? real.remove(path) : r;
}
