// SPDX-License-Identifier: Apache-2.0
/* hook_write: write and its relatives. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "files/fdtable.h"
#include "hooks/cancel.h"
#include "sync/journal_file.h"

#include <sys/uio.h>
#include <unistd.h>

/* The table shows nothing.  If fd is only noted, either the call passes on, or `o` is what fd turned out to be; if
 * not, it may have become known since the table was looked at. */
#define PASS_LAZY(fd, size, o, next) \
	do { \
		uint32_t counted; \
		if (unresolved_is(fd)) { \
			(o) = unresolved_write(fd, size, &counted); \
			if (!(o)) { \
				ssize_t passed = (next); \
				if (counted) \
					unresolved_written(fd, counted); \
				return passed; \
			} \
		} else { \
			(o) = fdtable_get(fd); \
		} \
	} while (0)

/* Written through: nothing else is to be asked. */
static bool is_through(int fd, struct ofd *o)
{
	return atomic_load(&atomic_load(&o->file)->mode) == FILE_THROUGH && !unresolved_is(fd) &&
	       fdtable_get(fd) == o;
}

/* See ASK_TRIES. */
#define ASK(fd, size, o, call, next) \
	do { \
		long asked; \
		cancel_point(); \
		for (int tries = 0; (o) && tries < ASK_TRIES; tries++) { \
			asked = (call); \
			if (asked != IO_PASS) \
				return hook_result(asked); \
			if (is_through(fd, o)) \
				break; \
			PASS_LAZY(fd, size, o, next); \
		} \
		return (next); \
	} while (0)

/* Apart from the hooks, so that a call that is not ours saves no registers and makes no frame for them. */
static __attribute__((noinline)) ssize_t write_managed(int fd, struct ofd *o, const void *buf, size_t size)
{
	ASK(fd, size, o, io_write(fd, o, buf, size), real.write(fd, buf, size));
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
	if (unresolved_is(fd))
		return write_noted(fd, buf, size);
	/* it may have become known since */
	o = fdtable_get(fd);
	if (__builtin_expect(o != NULL, 0))
		return write_managed(fd, o, buf, size);
	return real.write(fd, buf, size);
}

#define WRITE_VECTOR(fd, iov, count, offset, next) \
	struct ofd *o = fdtable_get(fd); \
	if (!o) \
		PASS_LAZY(fd, 1, o, next); \
	if (!o) \
		return (next); \
	ASK(fd, 1, o, io_writev(fd, o, iov, count, offset), next)

static __attribute__((noinline)) ssize_t write_at(ssize_t (*next)(int, const void *, size_t, off_t), int fd,
                                                  struct ofd *o, const void *buf, size_t size, off_t offset)
{
	if (!o)
		PASS_LAZY(fd, size, o, next(fd, buf, size, offset));
	if (!o)
		return next(fd, buf, size, offset);
	ASK(fd, size, o, io_write_at(fd, o, buf, size, offset), next(fd, buf, size, offset));
}

/* A negative offset is an error for the kernel to name, and -1 means something else to io_writev. */
#define WRITE_AT(next, fd, buf, size, offset) \
	struct ofd *o = fdtable_get(fd); \
	if (__builtin_expect(o || unresolved_is(fd) || fdtable_get(fd), 0) && (offset) >= 0) \
		return write_at(next, fd, o, buf, size, offset); \
	return (next)(fd, buf, size, offset)

EXPORT ssize_t pwrite(int fd, const void *buf, size_t size, off_t offset)
{
	WRITE_AT(real.pwrite, fd, buf, size, offset);
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

/* Not the C library's, which may be cancelled in the middle. */
static long write_with(int fd, const struct iovec *iov, int count, off64_t offset, int flags)
{
	struct by_name_change change;
	long r = by_name_change_fd(&change, fd);

	r = r < 0 ? r : sys_raw(SYS_pwritev2, fd, (long)iov, count, offset, 0, flags);
	journal_touched();
	by_name_change_end(&change);
	return r;
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
		if (r == IO_PASS) \
			r = write_with(fd, iov, count, offset, flags); \
	} else if (o && (offset) >= -1) { \
		r = io_writev(fd, o, iov, count, offset); \
	} \
	return r == IO_PASS ? (next) : hook_result(r)

EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	WRITE_FLAGS(fd, iov, count, offset, flags, real.pwritev2(fd, iov, count, offset, flags));
}

ALIAS_OF(__write, write);
extern __typeof(write) hook_write __attribute__((alias("write"), copy(write), visibility("hidden")));
ALIAS_OF(__pwrite64, pwrite);
TWIN(pwrite64, pwrite);
TWIN(pwritev64, pwritev);
TWIN(pwritev64v2, pwritev2);
