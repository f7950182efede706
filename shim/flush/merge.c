// SPDX-License-Identifier: Apache-2.0
/* merge: see flush/merge.h.  From the newest extent to the oldest, each adds only the parts that no newer one
 * covers. */
#include "flush/merge.h"

#include <assert.h>
#include <string.h>

/* The first piece that ends after `offset`. */
static uint32_t first_after(const struct arena_extent *pieces, uint32_t n, uint64_t offset)
{
	uint32_t lo = 0, hi = n;

	while (lo < hi) {
		uint32_t mid = (lo + hi) / 2;

		if (pieces[mid].offset + pieces[mid].length <= offset)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static uint32_t insert(struct arena_extent *pieces, uint32_t n, uint32_t at, struct arena_extent e)
{
	assert(n < MERGE_MAX);
	memmove(&pieces[at + 1], &pieces[at], (n - at) * sizeof *pieces);
	pieces[at] = e;
	return n + 1;
}

static uint32_t add_uncovered(struct arena_extent *pieces, uint32_t n, struct arena_extent e)
{
	uint64_t from = e.offset;
	uint64_t end = e.offset + e.length;
	uint32_t at = first_after(pieces, n, from);

	while (from < end) {
		uint64_t gap_end = at < n && pieces[at].offset < end ? pieces[at].offset : end;

		if (gap_end > from) {
			n = insert(pieces, n, at,
			           (struct arena_extent){.offset = from,
			                                 .pos = e.pos + (uint32_t)(from - e.offset),
			                                 .length = (uint32_t)(gap_end - from)});
			at++;
		}
		if (at >= n || pieces[at].offset >= end)
			break;
		from = pieces[at].offset + pieces[at].length;
		at++;
	}
	return n;
}

uint32_t merge_extents(struct arena_extent (*get)(const void *ctx, uint32_t i), const void *ctx,
                       uint32_t count, struct arena_extent *pieces)
{
	uint32_t n = 0;

	for (uint32_t i = count; i-- > 0;) {
		struct arena_extent e = get(ctx, i);

		if (e.length > 0)
			n = add_uncovered(pieces, n, e);
	}
	return n;
}
