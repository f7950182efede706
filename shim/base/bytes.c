// SPDX-License-Identifier: Apache-2.0
/* bytes: see base/bytes.h. */
#include "base/bytes.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

int bytes_write(int fd, const uint8_t *p, uint64_t n, uint64_t offset, bool append, uint64_t *written)
{
	*written = 0;
	while (n > 0) {
		struct iovec part = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
		ssize_t r = append ? sys_append_accepted(fd, &part, 1)
		                   : sys_pwritev_accepted(fd, &part, 1, (off_t)offset);

		if (r == -EINTR)
			continue;
		if (r < 0)
			return (int)r;
		if (r == 0)
			return -EIO;
		kill_step();
		p += r;
		n -= (uint64_t)r;
		offset += (uint64_t)r;
		*written += (uint64_t)r;
	}
	return 0;
}

/* Up to BUFFER_BYTES of [from, to); 0 or -errno when nothing can be read. */
static ssize_t read_part(int fd, uint8_t *buf, uint64_t from, uint64_t to)
{
	uint64_t want = to - from < BUFFER_BYTES ? to - from : BUFFER_BYTES;
	ssize_t got;

	do
		got = sys.pread(fd, buf, want, (off_t)from);
	while (got == -EINTR);
	return got;
}

int bytes_have_offsets(int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);

	return flags < 0 ? (int)flags : flags & O_APPEND ? -EPERM : 0;
}

uint64_t bytes_alike(int fd, const uint8_t *p, uint64_t n, uint64_t offset)
{
	BUFFER(uint8_t, buf);
	uint64_t done = 0;

	while (done < n) {
		ssize_t got = read_part(fd, buf, offset + done, offset + n);
		ssize_t same = 0;

		while (same < got && buf[same] == p[done + (uint64_t)same])
			same++;
		done += (uint64_t)same;
		if (got <= 0 || same < got)
			break;
	}
	return done;
}

bool bytes_equal(int fd, const uint8_t *p, uint64_t n, uint64_t offset)
{
	return bytes_alike(fd, p, n, offset) == n;
}

bool bytes_are_zeros(int fd, uint64_t from, uint64_t to)
{
	BUFFER(uint8_t, buf);

	while (from < to) {
		ssize_t got = read_part(fd, buf, from, to);

		if (got <= 0)
			return false;
		for (ssize_t i = 0; i < got; i++)
			if (buf[i])
				return false;
		from += (uint64_t)got;
	}
	return true;
}
