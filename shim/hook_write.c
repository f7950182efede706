// SPDX-License-Identifier: Apache-2.0
/* hook_write: write and its relatives. */
#include "hook.h"

#include "cancel.h"
#include "journal_file.h"

#include <sys/uio.h>
#include <unistd.h>

/* The table shows nothing.  If fd is only noted, either the call passes on, or `o` is what fd turned out to be; if
 * not, it may have become known since the table was looked at. */
#define PASS_LAZY(fd, size, o, next) \
	do { \
		bool counted; \
		if (lazy_is(fd)) { \
			(o) = lazy_write(fd, size, &counted); \
			if (!(o)) { \
				ssize_t passed = (next); \
				if (counted) \
					lazy_written(fd); \
				return passed; \
			} \
		} else { \
			(o) = fdtable_get(fd); \
		} \
	} while (0)

/* Apart from the hooks, so that a call that is not ours saves no registers and makes no frame for them. */
static __attribute__((noinline)) ssize_t write_managed(int fd, struct ofd *o, const void *buf, size_t size)
{
	long r;

	cancel_point();
	r = io_write(fd, o, buf, size);
	return r == IO_PASS ? real.write(fd, buf, size) : hook_result(r);
}

static __attribute__((noinline)) ssize_t write_noted(int fd, const void *buf, size_t size)
{
	struct ofd *o;

	PASS_LAZY(fd, size, o, real.write(fd, buf, size));
	return o ? write_managed(fd, o, buf, size) : real.write(fd, buf, size);
}

EXPORT ssize_t write(int fd, const void *buf, size_t size)
{
	struct ofd *o = fdtable_get(fd);

	if (__builtin_expect(o != NULL, 0))
		return write_managed(fd, o, buf, size);
	if (lazy_is(fd))
		return write_noted(fd, buf, size);
	/* it may have become known since */
	o = fdtable_get(fd);
	if (__builtin_expect(o != NULL, 0))
		return write_managed(fd, o, buf, size);
	return real.write(fd, buf, size);
}

#define WRITE_VECTOR(fd, iov, count, offset, next) \
	struct ofd *o = fdtable_get(fd); \
	long r; \
	if (!o) \
		PASS_LAZY(fd, 1, o, next); \
	if (o) \
		cancel_point(); \
	r = o ? io_writev(fd, o, iov, count, offset) : IO_PASS; \
	return r == IO_PASS ? (next) : hook_result(r)

static __attribute__((noinline)) ssize_t write_at(ssize_t (*next)(int, const void *, size_t, off_t), int fd,
                                                  struct ofd *o, const void *buf, size_t size, off_t offset)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = size};
	long r;

	if (!o)
		PASS_LAZY(fd, size, o, next(fd, buf, size, offset));
	if (!o)
		return next(fd, buf, size, offset);
	cancel_point();
	r = io_writev(fd, o, &iov, 1, offset);
	return r == IO_PASS ? next(fd, buf, size, offset) : hook_result(r);
}

/* A negative offset is an error for the kernel to name, and -1 means something else to io_writev. */
#define WRITE_AT(next, fd, buf, size, offset) \
	struct ofd *o = fdtable_get(fd); \
	if (__builtin_expect(o || lazy_is(fd) || fdtable_get(fd), 0) && (offset) >= 0) \
		return write_at(next, fd, o, buf, size, offset); \
	return (next)(fd, buf, size, offset)

EXPORT ssize_t pwrite(int fd, const void *buf, size_t size, off_t offset)
{
	WRITE_AT(real.pwrite, fd, buf, size, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *buf, size_t size, off64_t offset)
{
	WRITE_AT(real.pwrite64, fd, buf, size, offset);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int count)
{
	WRITE_VECTOR(fd, iov, count, IO_NO_OFFSET, real.writev(fd, iov, count));
}

EXPORT ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (offset < 0)
		return real.pwritev(fd, iov, count, offset);
	WRITE_VECTOR(fd, iov, count, offset, real.pwritev(fd, iov, count, offset));
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *iov, int count, off64_t offset)
{
	if (offset < 0)
		return real.pwritev64(fd, iov, count, offset);
	WRITE_VECTOR(fd, iov, count, offset, real.pwritev64(fd, iov, count, offset));
}

/* Flags change durability and position rules per call: settle and let the kernel do it, unless they ask for a sync
 * that the rule lets come later. */
#define WRITE_FLAGS(fd, iov, count, offset, flags, next) \
	struct ofd *o = fdtable_get(fd); \
	long r = IO_PASS; \
	if (!o) \
		PASS_LAZY(fd, ((flags) & ~(RWF_DSYNC | RWF_SYNC)) == 0 ? 1 : 0, o, next); \
	if (o) \
		cancel_point(); \
	if (o && (flags) != 0) { \
		r = io_synced(fd, o, iov, count, offset, flags); \
		if (r == IO_PASS) { \
			int released = meta_release_fd(fd); \
			if (released < 0) \
				return hook_result(released); \
			r = (next); \
			journal_touched(); \
			return r; \
		} \
	} else if (o && (offset) >= -1) { \
		r = io_writev(fd, o, iov, count, offset); \
	} \
	return r == IO_PASS ? (next) : hook_result(r)

EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	WRITE_FLAGS(fd, iov, count, offset, flags, real.pwritev2(fd, iov, count, offset, flags));
}

EXPORT ssize_t pwritev64v2(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
	WRITE_FLAGS(fd, iov, count, offset, flags, real.pwritev64v2(fd, iov, count, offset, flags));
}

#define ALIAS_OF(name) EXPORT __attribute__((alias(#name), copy(name)))
ALIAS_OF(write) ssize_t __write(int fd, const void *buf, size_t size);
extern __typeof(write) hook_write __attribute__((alias("write"), copy(write), visibility("hidden")));
ALIAS_OF(pwrite64) ssize_t __pwrite64(int fd, const void *buf, size_t size, off64_t offset);
