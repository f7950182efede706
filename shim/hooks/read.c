// SPDX-License-Identifier: Apache-2.0
/* read: read and its variants; lseek. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "hooks/cancel.h"

#include <sys/uio.h>
#include <unistd.h>

/* The description that fd refers to, if it is managed.  `moves`: the call moves the position. */
__attribute__((always_inline)) static inline struct ofd *read_from(int fd, bool moves)
{
	return moves ? unresolved_moved(fd) : unresolved_used(fd);
}

/* Not inlined: a call that is not ours saves no registers and makes no frame for it. */
static __attribute__((noinline)) long read_managed(int fd, struct ofd *o, void *buf, size_t size,
                                                   off_t offset)
{
	cancel_point();
	return io_read_at(fd, o, buf, size, offset);
}

/* IO_PASS: the C library must make the call.  Inlined: this is all that a call on another file pays. */
__attribute__((always_inline)) static inline long read_buffer(int fd, void *buf, size_t size, off_t offset)
{
	struct ofd *o = read_from(fd, offset == IO_NO_OFFSET);

	return __builtin_expect(o != NULL, 0) ? read_managed(fd, o, buf, size, offset) : IO_PASS;
}

static long read_vector(int fd, const struct iovec *iov, int count, off_t offset)
{
	struct ofd *o = read_from(fd, offset == IO_NO_OFFSET);

	if (__builtin_expect(!o, 1))
		return IO_PASS;
	cancel_point();
	return io_readv(fd, o, iov, count, offset);
}

EXPORT ssize_t read(int fd, void *buf, size_t size)
{
	long r = read_buffer(fd, buf, size, IO_NO_OFFSET);

	return r == IO_PASS ? real.read(fd, buf, size) : hook_result(r);
}

EXPORT ssize_t __read_chk(int fd, void *buf, size_t size, size_t room);
EXPORT ssize_t __read_chk(int fd, void *buf, size_t size, size_t room)
{
	long r = size <= room ? read_buffer(fd, buf, size, IO_NO_OFFSET) : IO_PASS;

	return r == IO_PASS ? real.__read_chk(fd, buf, size, room) : hook_result(r);
}

EXPORT ssize_t pread(int fd, void *buf, size_t size, off_t offset)
{
	long r = offset >= 0 ? read_buffer(fd, buf, size, offset) : IO_PASS;

	return r == IO_PASS ? real.pread(fd, buf, size, offset) : hook_result(r);
}

EXPORT ssize_t __pread_chk(int fd, void *buf, size_t size, off_t offset, size_t room);
EXPORT ssize_t __pread_chk(int fd, void *buf, size_t size, off_t offset, size_t room)
{
	long r = size <= room && offset >= 0 ? read_buffer(fd, buf, size, offset) : IO_PASS;

	return r == IO_PASS ? real.__pread_chk(fd, buf, size, offset, room) : hook_result(r);
}

EXPORT ssize_t readv(int fd, const struct iovec *iov, int count)
{
	long r = read_vector(fd, iov, count, IO_NO_OFFSET);

	return r == IO_PASS ? real.readv(fd, iov, count) : hook_result(r);
}

EXPORT ssize_t preadv(int fd, const struct iovec *iov, int count, off_t offset)
{
	long r = offset >= 0 ? read_vector(fd, iov, count, offset) : IO_PASS;

	return r == IO_PASS ? real.preadv(fd, iov, count, offset) : hook_result(r);
}

/* Flags change how the kernel reads: it makes the read, and at the position it moves that. */
static long read_flags(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	struct ofd *o = read_from(fd, offset == -1);
	struct by_name_change change;
	long r;

	if (!o)
		return IO_PASS;
	cancel_point();
	if (offset != -1)
		return io_readv_flags(fd, o, iov, count, offset, flags);
	/* no thread may attach the file during a read at the position: it would keep the old position */
	r = by_name_change_fd(&change, fd);
	if (r == 0)
		r = sys_raw(SYS_preadv2, fd, (long)iov, count, -1, -1, flags);
	by_name_change_end(&change);
	return r;
}

EXPORT ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	long r = IO_PASS;

	if (flags != 0)
		r = read_flags(fd, iov, count, offset, flags);
	else if (offset >= -1)
		r = read_vector(fd, iov, count, offset);
	return r == IO_PASS ? real.preadv2(fd, iov, count, offset, flags) : hook_result(r);
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
