// SPDX-License-Identifier: Apache-2.0
/* write: write and its variants. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "files/fdtable.h"
#include "hooks/cancel.h"
#include "sync/journal_file.h"

#include <sys/uio.h>
#include <unistd.h>

/* A write to a descriptor that may be managed. */
struct write_call {
	enum { WRITE, WRITE_AT, WRITE_VECTOR, WRITE_VECTOR_AT, WRITE_FLAGS } kind;
	int fd;
	const void *buf; /* WRITE, WRITE_AT */
	size_t size;     /* others: bytes counted for a noted descriptor, 0 = none */
	const struct iovec *iov;
	int count;
	off_t offset;
	int flags; /* WRITE_FLAGS */
};

static ssize_t pass(const struct write_call *c)
{
	switch (c->kind) {
	case WRITE: return real.write(c->fd, c->buf, c->size);
	case WRITE_AT: return real.pwrite(c->fd, c->buf, c->size, c->offset);
	case WRITE_VECTOR: return real.writev(c->fd, c->iov, c->count);
	case WRITE_VECTOR_AT: return real.pwritev(c->fd, c->iov, c->count, c->offset);
	default: return real.pwritev2(c->fd, c->iov, c->count, c->offset, c->flags);
	}
}

/* Flags change durability and position for one call.  Drains the file and makes the write in the kernel,
 * unless the flags ask for a sync that the rule's policy allows to come later.  Not through the C library,
 * whose function may be cancelled inside. */
static long write_flags(const struct write_call *c, struct ofd *o)
{
	struct by_name_change change;
	long r = io_synced(c->fd, o, c->iov, c->count, c->offset, c->flags);

	if (r != IO_PASS)
		return r;
	r = by_name_change_fd(&change, c->fd);
	if (r == 0)
		r = sys_raw(SYS_pwritev2, c->fd, (long)c->iov, c->count, c->offset, 0, c->flags);
	journal_touched();
	by_name_change_end(&change);
	return r;
}

static long write_to(const struct write_call *c, struct ofd *o)
{
	switch (c->kind) {
	case WRITE: return io_write(c->fd, o, c->buf, c->size);
	case WRITE_AT: return io_write_at(c->fd, o, c->buf, c->size, c->offset);
	case WRITE_FLAGS:
		if (c->flags != 0)
			return write_flags(c, o);
		return c->offset >= -1 ? io_writev(c->fd, o, c->iov, c->count, c->offset) : IO_PASS;
	default: return io_writev(c->fd, o, c->iov, c->count, c->offset);
	}
}

/* True if the file is bypassed, so that a repeated look is useless. */
static bool is_bypassed(int fd, struct ofd *o)
{
	return atomic_load(&atomic_load(&o->file)->mode) == FILE_BYPASSED && fdtable_word(fd) == (uintptr_t)o;
}

/* A write to a managed or noted descriptor.  Another thread may replace it at any time: see ASK_TRIES.  A
 * separate function, so that a call on an unmanaged descriptor saves no registers and makes no frame. */
static __attribute__((noinline)) ssize_t write_known(const struct write_call *c)
{
	bool asked = false;

	for (int tries = 0; tries < ASK_TRIES; tries++) {
		uint32_t counted;
		struct ofd *o = unresolved_write(c->fd, c->size, &counted);
		long r;

		if (!o) {
			r = pass(c);
			if (counted)
				unresolved_written(c->fd, counted);
			return r;
		}
		if (!asked)
			cancel_point();
		asked = true;
		r = write_to(c, o);
		if (r != IO_PASS)
			return hook_result(r);
		if (is_bypassed(c->fd, o))
			break;
	}
	return pass(c);
}

static __attribute__((noinline)) ssize_t write_noted(int fd, const void *buf, size_t size)
{
	return write_known(&(struct write_call){.kind = WRITE, .fd = fd, .buf = buf, .size = size});
}

static __attribute__((noinline)) ssize_t write_managed(int fd, struct ofd *o, const void *buf, size_t size)
{
	long r;

	cancel_point();
	r = io_write(fd, o, buf, size);
	if (r != IO_PASS)
		return hook_result(r);
	if (is_bypassed(fd, o))
		return real.write(fd, buf, size);
	return write_noted(fd, buf, size);
}

EXPORT ssize_t write(int fd, const void *buf, size_t size)
{
	uintptr_t word = fdtable_word(fd);
	struct ofd *o = fdtable_description(word);

	if (__builtin_expect(!word, 1))
		return real.write(fd, buf, size);
	return o ? write_managed(fd, o, buf, size) : write_noted(fd, buf, size);
}

/* The kernel must report a negative offset, and -1 has another meaning for io_writev. */
EXPORT ssize_t pwrite(int fd, const void *buf, size_t size, off_t offset)
{
	if (fdtable_knows(fd) && offset >= 0)
		return write_known(&(struct write_call){
			.kind = WRITE_AT, .fd = fd, .buf = buf, .size = size, .offset = offset});
	return real.pwrite(fd, buf, size, offset);
}

EXPORT ssize_t writev(int fd, const struct iovec *iov, int count)
{
	if (fdtable_knows(fd))
		return write_known(&(struct write_call){.kind = WRITE_VECTOR,
		                                        .fd = fd,
		                                        .size = 1,
		                                        .iov = iov,
		                                        .count = count,
		                                        .offset = IO_NO_OFFSET});
	return real.writev(fd, iov, count);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (fdtable_knows(fd) && offset >= 0)
		return write_known(&(struct write_call){.kind = WRITE_VECTOR_AT,
		                                        .fd = fd,
		                                        .size = 1,
		                                        .iov = iov,
		                                        .count = count,
		                                        .offset = offset});
	return real.pwritev(fd, iov, count, offset);
}

EXPORT ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	bool plain = (flags & ~(RWF_DSYNC | RWF_SYNC)) == 0;

	if (fdtable_knows(fd))
		return write_known(&(struct write_call){.kind = WRITE_FLAGS,
		                                        .fd = fd,
		                                        .size = plain ? 1 : 0,
		                                        .iov = iov,
		                                        .count = count,
		                                        .offset = offset,
		                                        .flags = flags});
	return real.pwritev2(fd, iov, count, offset, flags);
}

ALIAS_OF(__write, write);
extern __typeof(write) hook_write __attribute__((alias("write"), copy(write), visibility("hidden")));
ALIAS_OF(__pwrite64, pwrite);
TWIN(pwrite64, pwrite);
TWIN(pwritev64, pwritev);
TWIN(pwritev64v2, pwritev2);
