// SPDX-License-Identifier: Apache-2.0
/*
 * hook_stdio: streams.  The C library's streams write by internal calls that no symbol intercepts, so a file
 * that gets a stream is settled and written through.
 */
#include "hook.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>

static FILE *made(FILE *stream)
{
	int before = errno;

	if (stream) {
		int fd = fileno(stream);

		if (fd >= 0)
			fd_use_stdio(fd);
		errno = before;
	}
	return stream;
}

/* A mode that truncates must not cut off staged bytes that are older than it. */
static void before_path(const char *path)
{
	if (path)
		meta_settle_path(AT_FDCWD, path, true);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
	before_path(path);
	return made(real.fopen(path, mode));
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
	before_path(path);
	return made(real.fopen64(path, mode));
}

static void before_reopen(const char *path, FILE *stream)
{
	int before = errno;
	int fd = stream ? fileno(stream) : -1;

	before_path(path);
	if (fd >= 0 && path)
		fd_close_prepare(fd);
	errno = before;
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	before_reopen(path, stream);
	return made(real.freopen(path, mode, stream));
}

EXPORT FILE *freopen64(const char *path, const char *mode, FILE *stream)
{
	before_reopen(path, stream);
	return made(real.freopen64(path, mode, stream));
}

EXPORT FILE *fdopen(int fd, const char *mode)
{
	if (fdtable_get(fd) || lazy_is(fd))
		fd_use_stdio(fd);
	return real.fdopen(fd, mode);
}

EXPORT int fclose(FILE *stream)
{
	int before = errno;
	int fd = stream ? fileno(stream) : -1;

	/* it closes the descriptor by an internal call */
	if (fd >= 0 && (fdtable_get(fd) || lazy_is(fd)))
		fd_close_prepare(fd);
	errno = before;
	return real.fclose(stream);
}

static void before_print(int fd)
{
	if (fdtable_get(fd) || lazy_is(fd))
		fd_use_stdio(fd);
}

EXPORT int vdprintf(int fd, const char *format, va_list args)
{
	before_print(fd);
	return real.vdprintf(fd, format, args);
}

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int r;

	before_print(fd);
	va_start(args, format);
	r = real.vdprintf(fd, format, args);
	va_end(args);
	return r;
}

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...);

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	before_print(fd);
	return real.__vdprintf_chk(fd, flag, format, args);
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int r;

	before_print(fd);
	va_start(args, format);
	r = real.__vdprintf_chk(fd, flag, format, args);
	va_end(args);
	return r;
}
