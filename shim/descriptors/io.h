// SPDX-License-Identifier: Apache-2.0
/*
 * io: read, write and seek on managed descriptors.
 *
 * Every function returns what the system call would: -errno for failure.  IO_PASS means that nothing was
 * done, and that the caller should make the program's own call through the C library.
 */
#ifndef FASTWRITE_DESCRIPTORS_IO_H
#define FASTWRITE_DESCRIPTORS_IO_H

#include "files/fdtable.h"
#include "staging/stage.h"

#include <limits.h>

#define IO_PASS LONG_MIN
#define IO_NO_OFFSET ((off_t) - 1) /* use and move the description's own position */

long io_writev(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset);
/* The same from one buffer, which is not checked: if the write is staged, an invalid pointer raises
 * SIGSEGV. */
long io_write_at(int fd, struct ofd *o, const void *buf, size_t n, off_t offset);
/* As io_writev, for a write that must be durable when it returns (RWF_DSYNC, RWF_SYNC).  IO_PASS unless the
 * rule's sync policy lets it be staged.  A description with O_SYNC or O_DSYNC needs only io_writev. */
long io_writev_synced(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset);
long io_readv(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset);
long io_read_at(int fd, struct ofd *o, void *buf, size_t n, off_t offset);
/* As io_readv, with the flags of preadv2 and an offset (not IO_NO_OFFSET).  The kernel makes the read. */
long io_readv_flags(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, int flags);
/* fsync (full) or fdatasync. */
long io_sync(int fd, struct ofd *o, bool full);
/* 0 or -errno; IO_PASS: the file is in no overlay, or must be detached before the call. */
long io_ftruncate(int fd, off_t size);
long io_lseek(int fd, struct ofd *o, off_t offset, int whence);

/* False for addresses outside of user space.  The library would fault on them, whereas the kernel must return
 * EFAULT. */
static inline bool io_plausible(const void *p, size_t n)
{
	uintptr_t from = (uintptr_t)p;

	return from >= 4096 && from + n >= from && from + n < (uintptr_t)1 << 56;
}

static inline long io_synced(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset,
                             int flags)
{
	if ((flags & ~(RWF_DSYNC | RWF_SYNC)) || offset < -1)
		return IO_PASS;
	return io_writev_synced(fd, o, iov, count, offset);
}

static inline long io_write(int fd, struct ofd *o, const void *buf, size_t n)
{
	/* n - 1: a write of 0 bytes goes to the kernel */
	if (__builtin_expect(n - 1 < atomic_load_explicit(&stage_fast_most, memory_order_relaxed), 1) &&
	    io_plausible(buf, n) && stage_fast(o, fd, buf, n))
		return (long)n;
	return io_write_at(fd, o, buf, n, IO_NO_OFFSET);
}

#endif
