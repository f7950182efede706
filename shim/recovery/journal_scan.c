// SPDX-License-Identifier: Apache-2.0
/* journal_scan: see recovery/journal_scan.h. */
#include "recovery/journal_scan.h"

#include "base/sys.h"
#include "recovery/bytes.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(JOURNAL_UNIT_MAX <= JOURNAL_HEADER_BYTES, "a header is read and written whole");

void scan_tell(const struct journal_scan *s, const char *target, const char *action, uint64_t bytes,
               int error, const char *detail)
{
	struct recover_event e = {.arena = s->path,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (s->opt->event)
		s->opt->event(s->opt->ctx, &e);
}

int scan_load_header(struct journal_scan *s)
{
	struct journal_header *h = &s->header;
	struct statx st;
	int r = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r < 0)
		return r;
	s->place.dev_now = sys_dev_of(&st);
	if (st.stx_size < JOURNAL_HEADER_BYTES)
		return -ENODATA;
	r = sys_read_all(s->fd, h, sizeof *h, 0);
	if (r < 0)
		return r;
	if (h->magic == 0 && h->checksum == 0)
		return -ENODATA;
	if (h->magic != JOURNAL_MAGIC || h->version != JOURNAL_VERSION ||
	    h->checksum != journal_header_checksum(h))
		return -EBADMSG;
	if (h->unit < JOURNAL_UNIT_MIN || h->unit > JOURNAL_UNIT_MAX || (h->unit & (h->unit - 1)) ||
	    h->half_bytes % h->unit || h->half_bytes == 0 || h->half_bytes > (UINT64_C(1) << 40) ||
	    h->total_bytes != JOURNAL_HEADER_BYTES + 2 * h->half_bytes || h->total_bytes != st.stx_size)
		return -EBADMSG;
	/* (it lies beside the arena, on the same file system) */
	s->place.dev_then = h->origin.dev;
	return h->ino != 0 && h->ino != st.stx_ino ? -ESTALE : 0;
}

int scan_take_batch(struct journal_scan *s)
{
	uint8_t *p =
		sys.mmap(NULL, JOURNAL_BATCH_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_is_error(p))
		return (int)(intptr_t)p;
	s->batch = p;
	return 0;
}

/*
 * Reads the batch at this place of the half into s->batch.  `seq` 0: any.  1: it is whole and its checksum
 * fits; 0: there is none; -errno: it cannot be read, and nobody knows what stands there.
 */
static int read_batch(struct journal_scan *s, unsigned half, uint64_t at, uint64_t seq)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;
	uint64_t from = journal_half_at(&s->header, half) + at;
	uint64_t left = s->header.half_bytes - at;
	int r;

	if (left < s->header.unit)
		return 0;
	r = sys_read_all(s->fd, s->batch, s->header.unit, from);
	if (r < 0)
		return r;
	if (b->magic != JOURNAL_BATCH_MAGIC || b->seq == 0 || (seq && b->seq != seq) ||
	    memcmp(b->id, s->header.id, sizeof b->id) != 0 || b->bytes < sizeof *b ||
	    b->bytes > JOURNAL_BATCH_MAX || b->bytes > left)
		return 0;
	if (b->bytes > s->header.unit)
		r = sys_read_all(s->fd, s->batch + s->header.unit, b->bytes - s->header.unit,
		                 from + s->header.unit);
	if (r < 0)
		return r;
	return b->checksum == journal_batch_checksum(b);
}

static uint64_t batch_step(const struct journal_scan *s)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	return ((uint64_t)b->bytes + s->header.unit - 1) & ~((uint64_t)s->header.unit - 1);
}

static int walk(struct journal_scan *s, const struct journal_chain *c, journal_visitor *visit)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < c->batches; i++) {
		const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

		int got = read_batch(s, c->half, at, c->first_seq + i);

		if (got <= 0)
			return got < 0 ? got : -EIO; /* (it was there a moment ago) */
		for (uint32_t p = sizeof *b; p < b->bytes;) {
			struct journal_found f = {.seq = b->seq, .at = p};
			int r;

			if (b->bytes - p < sizeof f.e)
				return -EBADMSG;
			memcpy(&f.e, s->batch + p, sizeof f.e);
			if (f.e.length > JOURNAL_BATCH_MAX ||
			    journal_entry_bytes(f.e.length) > b->bytes - p || f.e.file == 0)
				return -EBADMSG;
			f.content = s->batch + p + sizeof f.e;
			f.content_at = journal_half_at(&s->header, c->half) + at + p + sizeof f.e;
			p += journal_entry_bytes(f.e.length);
			r = visit(s, &f);
			if (r < 0)
				return r;
		}
		at += batch_step(s);
	}
	return 0;
}

int scan_walk(struct journal_scan *s, journal_visitor *visit)
{
	int r = walk(s, &s->chains[0], visit);

	return r < 0 ? r : walk(s, &s->chains[1], visit);
}

static int find_chain(struct journal_scan *s, unsigned half, struct journal_chain *c)
{
	int got;

	*c = (struct journal_chain){.half = half};
	while ((got = read_batch(s, half, c->end, c->batches ? c->first_seq + c->batches : 0)) > 0) {
		if (c->batches++ == 0)
			c->first_seq = ((const struct journal_batch *)(const void *)s->batch)->seq;
		c->end += batch_step(s);
	}
	return got;
}

int scan_find_chains(struct journal_scan *s)
{
	struct journal_chain a, b;
	int r = find_chain(s, 0, &a);

	if (r == 0)
		r = find_chain(s, 1, &b);
	if (r < 0)
		return r;
	s->chains[0] = a.first_seq <= b.first_seq ? a : b;
	s->chains[1] = a.first_seq <= b.first_seq ? b : a;
	s->newest = s->chains[1].batches ? s->chains[1].first_seq + s->chains[1].batches - 1
	                                 : s->chains[0].first_seq + s->chains[0].batches - 1;
	return 0;
}

/* Writes the first bytes of s->batch to the journal. */
static int write_durably(const struct journal_scan *s, uint64_t bytes, uint64_t at)
{
	uint64_t written;
	int r = bytes_write(s->fd, s->batch, bytes, at, false, &written);

	return r < 0 ? r : sys.fdatasync(s->fd);
}

/* Behind a damaged batch may stand batches that were never read.  They would continue a new batch in its
 * place, so they must not be readable then. */
static int end_chain(const struct journal_scan *s, uint64_t at, uint64_t end)
{
	static const struct journal_batch none;
	struct journal_batch next;
	uint64_t written;
	int r;

	if (at >= end)
		return 0;
	r = sys_read_all(s->fd, &next, sizeof next, at);
	if (r < 0 || next.magic != JOURNAL_BATCH_MAGIC)
		return r;
	r = bytes_write(s->fd, (const uint8_t *)&none, sizeof none, at, false, &written);
	return r < 0 ? r : sys.fdatasync(s->fd);
}

int scan_put_batch(struct journal_scan *s, struct journal_chain *c, uint32_t used)
{
	struct journal_batch *b = (struct journal_batch *)(void *)s->batch;
	uint64_t at = journal_half_at(&s->header, c->half) + c->end;
	uint32_t bytes = (used + s->header.unit - 1) & ~(s->header.unit - 1);
	int r;

	if (bytes > s->header.half_bytes - c->end)
		return -ENOSPC;
	b->magic = JOURNAL_BATCH_MAGIC;
	b->seq = s->newest + 1;
	memcpy(b->id, s->header.id, sizeof b->id);
	b->bytes = used;
	b->checksum = journal_batch_checksum(b);
	r = end_chain(s, at + bytes, at - c->end + s->header.half_bytes);
	if (r == 0)
		r = write_durably(s, bytes, at);
	if (r == 0) {
		c->end += bytes;
		s->newest++;
	}
	memset(s->batch, 0, bytes);
	return r;
}

int scan_end_for_good(struct journal_scan *s)
{
	memset(s->batch, 0, JOURNAL_HEADER_BYTES);
	return write_durably(s, JOURNAL_HEADER_BYTES, 0);
}
