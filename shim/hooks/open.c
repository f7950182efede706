// SPDX-License-Identifier: Apache-2.0
/* open: the functions that make descriptors. */
#include "hooks/hook.h"

#include "hooks/cancel.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

/* The caller passes a mode only with these flags. */
static bool takes_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

static int open_at(int dirfd, const char *path, int flags, mode_t mode)
{
	int fd, before = errno;
	struct fd_open op;

	if (flags & (O_TRUNC | O_CREAT))
		cancel_point(); /* there is none between here and fd_open_end */
	fd_open_prepare(&op, dirfd, path, flags);
	if (op.error)
		return hook_opened(&op, (int)hook_result(op.error));
	op.exclusive = op.name;
	do {
		int now = flags | fd_open_exclusive(&op);

		fd = dirfd == AT_FDCWD ? real.open(path, now, mode) : real.openat(dirfd, path, now, mode);
	} while (fd < 0 && hook_open_again(&op, before));
	return hook_opened(&op, fd);
}

EXPORT int open(const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list list;

	va_start(list, flags);
	if (takes_mode(flags))
		mode = va_arg(list, mode_t);
	va_end(list);
	return open_at(AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int dirfd, const char *path, int flags, ...)
{
	mode_t mode = 0;
	va_list list;

	va_start(list, flags);
	if (takes_mode(flags))
		mode = va_arg(list, mode_t);
	va_end(list);
	return open_at(dirfd, path, flags, mode);
}

EXPORT int creat(const char *path, mode_t mode)
{
	return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}

/* Programs built with _FORTIFY_SOURCE call these instead of open.  No header declares them for us.  If a
 * needed mode is missing, the C library's function ends the program. */
EXPORT int __open_2(const char *path, int flags);
EXPORT int __openat_2(int dirfd, const char *path, int flags);

EXPORT int __open_2(const char *path, int flags)
{
	return takes_mode(flags) ? real.__open_2(path, flags) : open_at(AT_FDCWD, path, flags, 0);
}

EXPORT int __openat_2(int dirfd, const char *path, int flags)
{
	return takes_mode(flags) ? real.__openat_2(dirfd, path, flags) : open_at(dirfd, path, flags, 0);
}

EXPORT int mkostemps(char *template, int suffix, int flags)
{
	int fd, before = errno;
	struct fd_open op;

	fd_open_prepare(&op, AT_FDCWD, NULL, O_RDWR | O_CREAT | O_EXCL | flags);
	fd_open_temporary(&op, template);
	do
		fd = real.mkostemps(template, suffix, flags);
	while (fd < 0 && hook_open_again(&op, before));
	return hook_opened(&op, fd);
}

EXPORT int mkstemp(char *template) { return mkostemps(template, 0, 0); }
EXPORT int mkostemp(char *template, int flags) { return mkostemps(template, 0, flags); }
EXPORT int mkstemps(char *template, int suffix) { return mkostemps(template, suffix, 0); }

ALIAS_OF(__open, open);
ALIAS_OF(__open64, open);
TWIN(open64, open);
TWIN(openat64, openat);
TWIN(creat64, creat);
ALIAS_OF(__open64_2, __open_2);
ALIAS_OF(__openat64_2, __openat_2);
TWIN(mkstemp64, mkstemp);
TWIN(mkostemp64, mkostemp);
TWIN(mkstemps64, mkstemps);
TWIN(mkostemps64, mkostemps);
