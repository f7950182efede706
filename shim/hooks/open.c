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

EXPORT int open64(const char *path, int flags, ...)
{
	TAKE_MODE(flags, mode)
	OPEN_AND_REGISTER(AT_FDCWD, path, flags, real.open64(path, flags, mode));
}

EXPORT int openat(int dirfd, const char *path, int flags, ...)
{
	TAKE_MODE(flags, mode)
	OPEN_AND_REGISTER(dirfd, path, flags, real.openat(dirfd, path, flags, mode));
}

EXPORT int openat64(int dirfd, const char *path, int flags, ...)
{
	TAKE_MODE(flags, mode)
	OPEN_AND_REGISTER(dirfd, path, flags, real.openat64(dirfd, path, flags, mode));
}

EXPORT int creat(const char *path, mode_t mode)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, real.creat(path, mode));
}

EXPORT int creat64(const char *path, mode_t mode)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, real.creat64(path, mode));
}

/* What open becomes in programs built with _FORTIFY_SOURCE; no header declares them for us. */
EXPORT int __open_2(const char *path, int flags);
EXPORT int __open64_2(const char *path, int flags);
EXPORT int __openat_2(int dirfd, const char *path, int flags);
EXPORT int __openat64_2(int dirfd, const char *path, int flags);

EXPORT int __open_2(const char *path, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, flags, real.__open_2(path, flags));
}

EXPORT int __open64_2(const char *path, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, path, flags, real.__open64_2(path, flags));
}

EXPORT int __openat_2(int dirfd, const char *path, int flags)
{
	OPEN_AND_REGISTER(dirfd, path, flags, real.__openat_2(dirfd, path, flags));
}

EXPORT int __openat64_2(int dirfd, const char *path, int flags)
{
	OPEN_AND_REGISTER(dirfd, path, flags, real.__openat64_2(dirfd, path, flags));
}

enum { MADE_HERE = O_RDWR | O_CREAT | O_EXCL };

EXPORT int mkstemp(char *template) { OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemp(template)); }

EXPORT int mkstemp64(char *template)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemp64(template));
}

EXPORT int mkostemp(char *template, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemp(template, flags));
}

EXPORT int mkostemp64(char *template, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemp64(template, flags));
}

EXPORT int mkstemps(char *template, int suffix)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemps(template, suffix));
}

EXPORT int mkstemps64(char *template, int suffix)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE, real.mkstemps64(template, suffix));
}

EXPORT int mkostemps(char *template, int suffix, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemps(template, suffix, flags));
}

EXPORT int mkostemps64(char *template, int suffix, int flags)
{
	OPEN_AND_REGISTER(AT_FDCWD, NULL, MADE_HERE | flags, real.mkostemps64(template, suffix, flags));
}

#define ALIAS_OF(name) EXPORT __attribute__((alias(#name), copy(name)))
ALIAS_OF(open) int __open(const char *path, int flags, ...);
ALIAS_OF(open64) int __open64(const char *path, int flags, ...);
