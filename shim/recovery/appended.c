// SPDX-License-Identifier: Apache-2.0
/* appended: see recovery/appended.h. */
#include "recovery/appended.h"

#include "base/buffer.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* ---- an append that was under way ---- */

struct search {
	struct foreign_arena *a;
	int fd;
	int blocks;     /* in a->order */
	uint32_t skip;  /* bytes of the first block that are not part of the append */
	uint64_t bytes; /* of the whole append */
	uint64_t work;  /* bytes examined: bounded, for the content may match nearly everywhere */
	int error;      /* -errno: what the file holds is not known */
	uint8_t first[16];
	uint32_t first_bytes;
};

enum { SEARCH_WORK_MAX = 1 << 28, PART_MIN = 64 /* bytes of a part that counts */ };

/* How many bytes of a match of m bytes at `at` count as ours. */
static uint64_t believable(uint64_t at, uint64_t m, uint64_t base, uint64_t size)
{
	uint64_t end = (at + m) / ARENA_PAGE * ARENA_PAGE;

	if (end <= at)
		return 0;
	return end - at >= PART_MIN || (at == base && end == size) ? end - at : 0;
}

static ssize_t search_read(struct search *s, uint8_t *buf, uint64_t size, uint64_t at)
{
	ssize_t n;

	do
		n = sys.pread(s->fd, buf, size, (off_t)at);
	while (n == -EINTR);
	if (n < 0)
		s->error = n == -EBADF ? -EACCES : (int)n; /* we may not read it */
	return n;
}

/* How many bytes of the append stand at `at`. */
static uint64_t match_at(struct search *s, uint64_t at)
{
	uint32_t skip = s->skip;
	uint64_t matched = 0;
	BUFFER(uint8_t, buf);

	for (int i = 0; i < s->blocks; i++) {
		uint32_t index = s->a->order[i];
		struct arena_extent x;

		s->error = foreign_read_block(s->a, index);
		if (s->error)
			return matched;
		x = foreign_extent(s->a, index, 0);
		s->work += x.length;
		for (uint32_t done = skip; done < x.length && matched < s->bytes;) {
			uint32_t want = x.length - done < ARENA_PAGE ? x.length - done : ARENA_PAGE;
			ssize_t got = search_read(s, buf, want, at + matched);

			if (got <= 0)
				return matched;
			for (ssize_t b = 0; b < got && matched < s->bytes; b++, matched++)
				if (buf[b] != s->a->data[x.pos + done + (uint32_t)b])
					return matched;
			done += (uint32_t)got;
		}
		skip = 0;
	}
	return matched;
}

static int search_prepare(struct search *s)
{
	int r = foreign_read_block(s->a, s->a->order[0]);
	struct arena_extent x;

	if (r < 0)
		return r;
	x = foreign_extent(s->a, s->a->order[0], 0);
	s->first_bytes =
		x.length - s->skip < sizeof s->first ? x.length - s->skip : (uint32_t)sizeof s->first;
	if (s->first_bytes > s->bytes)
		s->first_bytes = (uint32_t)s->bytes;
	memcpy(s->first, s->a->data + x.pos + s->skip, s->first_bytes);
	return 0;
}

/* The first place in [at, end) where our first bytes stand, or as many of them as fit before the end; or
 * `end`. */
static uint64_t next_candidate(struct search *s, uint64_t at, uint64_t end)
{
	const uint64_t size = ARENA_PAGE + sizeof s->first;
	BUFFER(uint8_t, buf);

	while (at < end) {
		uint64_t want = end - at < size ? end - at : size;
		ssize_t got = search_read(s, buf, want, at);
		uint64_t fresh;

		if (got <= 0)
			return end;
		s->work += (uint64_t)got;
		fresh = at + (uint64_t)got >= end || (uint64_t)got <= sizeof s->first
		                ? (uint64_t)got
		                : (uint64_t)got - sizeof s->first;
		for (uint64_t i = 0; i < fresh; i++) {
			uint64_t n = (uint64_t)got - i < s->first_bytes ? (uint64_t)got - i : s->first_bytes;

			if (memcmp(buf + i, s->first, n) == 0)
				return at + i;
		}
		at += fresh;
	}
	return end;
}

/* How many bytes are in the file; or s->error. */
static uint64_t search_all(struct search *s, enum append_flush how, uint64_t base)
{
	struct statx st;
	uint64_t end, best = 0;

	if (s->bytes == 0)
		return 0;
	s->error = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (s->error || st.stx_size <= base)
		return 0;
	s->error = search_prepare(s);
	end = how == APPEND_AT_BASE ? base + 1 : st.stx_size;
	for (uint64_t at = base; !s->error && at < end; at++) {
		uint64_t m;

		if (s->work >= SEARCH_WORK_MAX) {
			s->error = APPENDED_DOUBT;
			break;
		}
		if (st.stx_size - at <= best)
			break; /* no longer match can follow */
		m = match_at(s, at);
		if (m == s->bytes)
			return m;
		m = believable(at, m, base, st.stx_size);
		if (m > best)
			best = m;
		if (at + 1 < end)
			at = next_candidate(s, at + 1, end) - 1;
	}
	return best;
}

int appended_part(struct foreign_arena *a, int n, int fd, const struct appended_range *range, uint64_t *have)
{
	struct search s = {.a = a, .fd = fd, .blocks = n, .skip = range->skip, .bytes = range->bytes};

	*have = search_all(&s, range->how, range->base);
	return s.error;
}

/* ---- whole blocks ---- */

enum { LOOK_MAX = 64 << 20, HEAD = 16 };

/* Does the region end with the beginning of these bytes? */
static bool ends_torn(const uint8_t *region, size_t size, const uint8_t *bytes, size_t length)
{
	size_t head = length < HEAD ? length : HEAD;
	const uint8_t *end = region + size;
	const uint8_t *at = size > length ? end - length : region;

	while ((size_t)(end - at) >= head && (at = memmem(at, (size_t)(end - at), bytes, head)) != NULL) {
		if (memcmp(at, bytes, (size_t)(end - at) < length ? (size_t)(end - at) : length) == 0)
			return true;
		at++;
	}
	return false;
}

static int count_found(struct foreign_arena *a, int n, uint32_t skip, const uint8_t *region, size_t size)
{
	int found = 0;

	for (int i = 0; i < n; i++, skip = 0) {
		int r = foreign_read_block(a, a->order[i]);
		struct arena_extent x;
		bool here;

		if (r < 0)
			return r;
		x = foreign_extent(a, a->order[i], 0);
		if (COMMIT_COUNT(a->blocks[a->order[i]].commit) != 1 || skip >= x.length)
			return -EBADMSG;
		here = memmem(region, size, a->data + x.pos + skip, x.length - skip) != NULL;
		/* behind a block that is not there no other can be */
		if (here && found < i)
			return APPENDED_DOUBT;
		found += here;
		if (!here && found == i && ends_torn(region, size, a->data + x.pos + skip, x.length - skip))
			return APPENDED_DOUBT;
	}
	return found;
}

int appended_blocks(struct foreign_arena *a, int n, int fd, uint32_t skip, uint64_t from, uint64_t size)
{
	uint8_t *region;
	int r;

	if (size <= from)
		return size == from ? 0 : APPENDED_DOUBT;
	if (size - from > LOOK_MAX)
		return APPENDED_DOUBT;
	region = sys.mmap(NULL, size - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(region))
		return (int)(intptr_t)region;
	r = sys_read_all(fd, region, size - from, from);
	if (r == 0)
		r = count_found(a, n, skip, region, size - from);
	sys.munmap(region, size - from);
	return r;
}
