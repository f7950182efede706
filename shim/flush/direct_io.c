// SPDX-License-Identifier: Apache-2.0
/* direct_io: see flush/direct_io.h. */
#include "flush/direct_io.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/sys.h"
#include "flush/flush.h"
#include "staging/arena.h"
#include "staging/guard.h"

#include <fcntl.h>

void direct_io_set_flags(struct flush_target *t, int flags)
{
	if (t->flags != flags && sys.fcntl(t->fd, F_SETFL, flags) == 0)
		t->flags = flags;
}

/* Puts the `size` bytes of iov after the first `skip` bytes into `out`; returns the number of its entries. */
static int slice(const struct iovec *iov, int count, uint64_t skip, uint64_t size, struct iovec *out)
{
	int n = 0;

	for (int i = 0; i < count && size > 0; i++) {
		uint64_t part = iov[i].iov_len;

		if (skip >= part) {
			skip -= part;
			continue;
		}
		part -= skip;
		if (part > size)
			part = size;
		out[n].iov_base = (uint8_t *)iov[i].iov_base + skip;
		out[n++].iov_len = part;
		size -= part;
		skip = 0;
	}
	return n;
}

/* Writes all `size` bytes after the first `skip`; repeats after a short write and EINTR. */
static int write_part(const struct flush_target *t, const struct iovec *iov, int count, uint64_t skip,
                      uint64_t size, uint64_t offset, uint64_t *done)
{
	BUFFER(struct iovec, part);

	while (size > 0) {
		int n = slice(iov, count, skip, size, part);
		ssize_t r;

		/* before each call: see format/guard_format.h */
		if (t->guard)
			guard_stamp(t->guard);
		r = sys_pwritev_accepted(t->fd, part, n, (off_t)(offset + skip));

		if (r == -EINTR)
			continue;
		if (r < 0)
			return (int)r;
		if (r == 0)
			return -EIO;
		kill_step();
		skip += (uint64_t)r;
		size -= (uint64_t)r;
		*done += (uint64_t)r;
	}
	return 0;
}

/* True if O_DIRECT accepts the layout: memory and file offsets are equal modulo a page, and entries are split
 * at page boundaries only. */
static bool congruent(const struct iovec *iov, int count, uint64_t offset)
{
	for (int i = 0; i < count; i++) {
		if (((uintptr_t)iov[i].iov_base - offset) % ARENA_PAGE != 0)
			return false;
		offset += iov[i].iov_len;
		if (i + 1 < count && offset % ARENA_PAGE != 0)
			return false;
	}
	return true;
}

int direct_io_write(struct flush_target *t, const struct iovec *iov, int count, uint64_t offset,
                    uint64_t *done)
{
	uint64_t size = 0, head, middle, began = 0;
	bool buffered;
	int r;

	for (int i = 0; i < count; i++)
		size += iov[i].iov_len;
	head = (ARENA_PAGE - offset % ARENA_PAGE) % ARENA_PAGE;
	if (head > size)
		head = size;
	middle = (size - head) / ARENA_PAGE * ARENA_PAGE;
	if (!t->direct_ok || middle < t->direct_min || offset + head + middle > t->direct_end ||
	    !congruent(iov, count, offset))
		middle = 0;
	buffered = middle == 0 && size >= t->direct_min;
	if (buffered)
		began = sys_now_ns();
	if (head > 0 && middle > 0) {
		direct_io_set_flags(t, t->flags & ~O_DIRECT);
		r = write_part(t, iov, count, 0, head, offset, done);
		if (r < 0)
			return r;
	}
	if (middle == 0)
		head = 0;
	if (middle > 0) {
		uint64_t before = *done;

		began = sys_now_ns();
		direct_io_set_flags(t, t->flags | O_DIRECT);
		r = write_part(t, iov, count, head, middle, offset, done);
		t->direct_bytes += *done - before;
		t->direct_ns += sys_now_ns() - began;
		if (r == -EINVAL) {
			/* refused: write the rest of the middle through the page cache */
			t->direct_ok = false;
			t->direct_refused = true;
			middle = *done - before;
		} else if (r < 0) {
			return r;
		}
	}
	if (head + middle < size) {
		direct_io_set_flags(t, t->flags & ~O_DIRECT);
		r = write_part(t, iov, count, head + middle, size - head - middle, offset, done);
		if (r < 0)
			return r;
	}
	if (buffered) {
		t->buffered_bytes += size;
		t->buffered_ns += sys_now_ns() - began;
	}
	return 0;
}
