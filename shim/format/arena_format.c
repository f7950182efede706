// SPDX-License-Identifier: Apache-2.0
/* arena_format: see format/arena_format.h. */
#include "format/arena_format.h"

#include "base/crc32c.h"
#include "base/log.h"

const char *format_newer_text(uint32_t version, uint32_t newest, char *out)
{
	log_format(out, FORMAT_NEWER_MAX,
	           "format %u: a newer libfastwrite is needed, this one reads formats up to %u", version,
	           newest);
	return out;
}

uint32_t arena_header_checksum(const struct arena_header *h)
{
	return crc32c_around(h, offsetof(struct arena_header, live), offsetof(struct arena_header, checksum));
}

uint32_t arena_sum_begin(const struct arena_entry *s, const struct arena_block *b)
{
	const struct {
		uint64_t seq, ino;
		int64_t btime_sec;
		uint32_t btime_nsec, generation;
		uint64_t kind;
	} what = {b->seq, s->ino, s->btime_sec, s->btime_nsec, s->generation, b->kind};

	return crc32c(0, &what, sizeof what);
}

uint32_t arena_sum_extent(uint32_t sum, uint32_t before, const struct arena_extent *e)
{
	const struct arena_extent place = {.offset = e->offset, .pos = e->pos, .length = before};

	return crc32c(sum, &place, sizeof place);
}

uint32_t arena_sum_block(const struct arena_entry *s, const struct arena_block *b, uint8_t *data,
                         uint32_t block_bytes, uint64_t commit)
{
	uint32_t sum = arena_sum_begin(s, b);
	uint32_t before = 0;

	for (uint32_t i = 0; i < COMMIT_COUNT(commit); i++) {
		struct arena_extent e = arena_extent_get(b, data, block_bytes, commit, i);

		sum = arena_sum_extent(sum, before, &e);
		sum = crc32c(sum, data + e.pos, e.length);
		before = e.length;
	}
	return sum;
}

static bool block_geometry(uint64_t mem_bytes, uint32_t block_bytes, struct arena_header *out)
{
	uint64_t blocks = mem_bytes / block_bytes;

	/* (a file that claims to be an arena may have any size) */
	if (blocks > ARENA_BLOCKS_MAX)
		blocks = ARENA_BLOCKS_MAX;
	/* fewer and fewer, until tables and blocks fit together */
	for (; blocks >= 8; blocks--) {
		uint64_t blocks_at = ARENA_PAGE;
		uint64_t entries_at = blocks_at + blocks * ARENA_BLOCK_ENTRY_BYTES;
		uint64_t data_at = entries_at + blocks * ARENA_ENTRY_BYTES;

		entries_at = (entries_at + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
		data_at = entries_at + blocks * ARENA_ENTRY_BYTES;
		data_at = (data_at + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
		if (data_at + blocks * block_bytes > mem_bytes)
			continue;
		out->block_bytes = block_bytes;
		out->block_count = (uint32_t)blocks;
		out->entry_count = (uint32_t)blocks;
		out->blocks_at = blocks_at;
		out->entries_at = entries_at;
		out->data_at = data_at;
		out->total_bytes = data_at + blocks * block_bytes;
		return true;
	}
	return false;
}

bool arena_geometry(uint64_t mem_bytes, uint32_t block_bytes, uint64_t pages_bytes, struct arena_header *out)
{
	struct pages_layout pages = {0};

	if (pages_bytes > mem_bytes || !block_geometry(mem_bytes - pages_bytes, block_bytes, out))
		return false;
	if (pages_bytes != 0 && !pages_geometry(pages_bytes, out->entry_count, &pages))
		return false;
	out->pages_bytes = pages.bytes;
	out->total_bytes += pages.bytes;
	return true;
}

bool arena_pages(const struct arena_header *h, struct pages_layout *out, uint64_t *at)
{
	*at = h->total_bytes - h->pages_bytes;
	return h->pages_bytes != 0 && pages_geometry(h->pages_bytes, h->entry_count, out);
}
