// SPDX-License-Identifier: Apache-2.0
/* hook_open: the functions that make descriptors. */
#include "hooks/hook.h"

#include "hooks/cancel.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>

/* The kernel looks at the mode only for these, and the caller passes one only for them. */
static bool takes_mode(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

#define TAKE_MODE(flags, mode) \
	mode_t mode = 0; \
	if (takes_mode(flags)) { \
		va_list list; \
		va_start(list, flags); \
		mode = va_arg(list, mode_t); \
		va_end(list); \
	}

#define OPEN_AND_REGISTER(dirfd, path, flags, call) \
	struct fd_open op; \
	int fd, before = errno; \
	if ((flags) & O_TRUNC) \
		cancel_point(); /* not in the middle (fd_open_end) */ \
	fd_open_prepare(&op, dirfd, path, flags); \
	do \
		fd = (call); \
	while (fd < 0 && hook_open_again(&op, before)); \
	if (fd >= 0 && fd_open_concerns(&op)) \
		fd_opened(&op, fd); \
	fd_open_end(&op); \
	return fd

EXPORT int open(const char *path, int flags, ...)
{
	TAKE_MODE(flags, mode)
	OPEN_AND_REGISTER(AT_FDCWD, path, flags, real.open(path, flags, mode));
}

EXPORT int openat(int dirfd, const char *path, int flags, ...)
{
	TAKE_MODE(flags, mode)
	OPEN_AND_REGISTER(dirfd, path, flags, real.openat(dirfd, path, flags, mode));
}

EXPORT int creat(const char *path, mode_t mode)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, real.creat(path, mode));
}

/* What open becomes in programs built with _FORTIFY_SOURCE; no header declares them for us. */
EXPORT int __open_2(const char *path, int flags);
EXPORT int __openat_2(int dirfd, const char *path, int flags);

EXPORT int __open_2(const char *path, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, flags, real.__open_2(path, flags));
}

EXPORT int __openat_2(int dirfd, const char *path, int flags)
{
	OPEN_AND_REGISTER(dirfd, path, flags, real.__openat_2(dirfd, path, flags));
}

enum { MADE_HERE = O_RDWR | O_CREAT | O_EXCL };

EXPORT int mkstemp(char *template) { OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemp(template)); }

EXPORT int mkostemp(char *template, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemp(template, flags));
}

EXPORT int mkstemps(char *template, int suffix)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemps(template, suffix));
}

EXPORT int mkostemps(char *template, int suffix, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemps(template, suffix, flags));
}

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
