// SPDX-License-Identifier: Apache-2.0
/* hook_read: read and its relatives; lseek. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "hooks/cancel.h"

#include <sys/uio.h>
#include <unistd.h>

static long readv_managed(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset)
{
	cancel_point();
	return io_readv(fd, o, iov, count, offset);
}

/* What the call is about: it moves the position when no offset is given. */
static inline struct ofd *read_from(int fd, bool moves)
{
	return moves ? unresolved_moved(fd) : unresolved_used(fd);
}

#define READ_VECTOR(fd, iov, count, offset, next) \
	struct ofd *o = read_from(fd, (offset) == IO_NO_OFFSET); \
	long r = __builtin_expect(o != NULL, 0) ? readv_managed(fd, o, iov, count, offset) : IO_PASS; \
	return r == IO_PASS ? (next) : hook_result(r)

/* Apart from the hooks, so that a call that is not ours saves no registers and makes no frame for it. */
static __attribute__((noinline)) long read_managed(int fd, struct ofd *o, void *buf, size_t size,
                                                   off_t offset)
{
	cancel_point();
	return io_read_at(fd, o, buf, size, offset);
}

#define READ_BUFFER(fd, buf, size, offset, next) \
	struct ofd *o = read_from(fd, (offset) == IO_NO_OFFSET); \
	if (__builtin_expect(o != NULL, 0)) { \
		long r = read_managed(fd, o, buf, size, offset); \
		if (r != IO_PASS) \
			return hook_result(r); \
	} \
	return (next)

EXPORT ssize_t read(int fd, void *buf, size_t size)
{
	READ_BUFFER(fd, buf, size, IO_NO_OFFSET, real.read(fd, buf, size));
}

EXPORT ssize_t __read_chk(int fd, void *buf, size_t size, size_t room);
EXPORT ssize_t __read_chk(int fd, void *buf, size_t size, size_t room)
{
	if (size > room)
		return real.__read_chk(fd, buf, size, room);
	READ_BUFFER(fd, buf, size, IO_NO_OFFSET, real.__read_chk(fd, buf, size, room));
}

EXPORT ssize_t pread(int fd, void *buf, size_t size, off_t offset)
{
	if (offset < 0)
		return real.pread(fd, buf, size, offset);
	READ_BUFFER(fd, buf, size, offset, real.pread(fd, buf, size, offset));
}

EXPORT ssize_t __pread_chk(int fd, void *buf, size_t size, off_t offset, size_t room);
EXPORT ssize_t __pread_chk(int fd, void *buf, size_t size, off_t offset, size_t room)
{
	if (size > room || offset < 0)
		return real.__pread_chk(fd, buf, size, offset, room);
	READ_BUFFER(fd, buf, size, offset, real.__pread_chk(fd, buf, size, offset, room));
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int count)
{
	READ_VECTOR(fd, iov, count, IO_NO_OFFSET, real.readv(fd, iov, count));
}

EXPORT ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (offset < 0)
		return real.preadv(fd, iov, count, offset);
	READ_VECTOR(fd, iov, count, offset, real.preadv(fd, iov, count, offset));
}

/* At the position, which nobody may take over meanwhile. */
static long read_with(int fd, const struct iovec *iov, int count, int flags)
{
	struct by_name_change change;
	long r = by_name_change_fd(&change, fd);

	r = r < 0 ? r : sys_raw(SYS_preadv2, fd, (long)iov, count, -1, -1, flags);
	by_name_change_end(&change);
	return r;
}

/* Flags change how the kernel reads: hand everything over first. */
#define READ_FLAGS(fd, iov, count, offset, flags, next) \
	struct ofd *o = read_from(fd, (offset) == -1); \
	long r = IO_PASS; \
	if (o && (flags) != 0 && (offset) == -1) { \
		cancel_point(); \
		r = read_with(fd, iov, count, flags); \
	} else if (o && (flags) != 0) \
		fd_hand_over(fd); \
	else if (o && (offset) >= -1) \
		r = readv_managed(fd, o, iov, count, offset); \
	return r == IO_PASS ? (next) : hook_result(r)

EXPORT ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	READ_FLAGS(fd, iov, count, offset, flags, real.preadv2(fd, iov, count, offset, flags));
}

static __attribute__((noinline)) off_t seek_managed(int fd, struct ofd *o, off_t offset, int whence)
{
	long r = io_lseek(fd, o, offset, whence);

	return r == IO_PASS ? real.lseek(fd, offset, whence) : hook_result(r);
}

EXPORT off_t lseek(int fd, off_t offset, int whence)
{
	struct ofd *o = unresolved_moved(fd);

	return __builtin_expect(o != NULL, 0) ? seek_managed(fd, o, offset, whence)
	                                      : real.lseek(fd, offset, whence);
}

ALIAS_OF(__read, read);
ALIAS_OF(__pread64, pread);
ALIAS_OF(__lseek, lseek);
ALIAS_OF(llseek, lseek);
TWIN(pread64, pread);
ALIAS_OF(__pread64_chk, __pread_chk);
TWIN(preadv64, preadv);
TWIN(preadv64v2, preadv2);
TWIN(lseek64, lseek);
