// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_pages: whatever the tables of an overlay of pages hold, the scan ends, and names for each file just
 * the frames that count, the newest of each page, in the order of the pages.
 *
 * The first byte of an input says how many bytes a word has: short words are equal more often.  The rest are
 * the words of the tables.
 */
#include "world.h"

#include "format/page_scan.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PAGES_FILES = 3, PAGES_FRAMES = 24 };

struct words {
	const uint8_t *at;
	size_t left;
	unsigned bytes;
};

static uint64_t pages_word(struct words *w)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < w->bytes && w->left > 0; i++, w->at++, w->left--)
		value |= (uint64_t)*w->at << 8 * i;
	return value;
}

static void pages_fill(struct words *w, uint8_t *files, struct page_frame *table)
{
	for (int i = 0; i < PAGES_FILES; i++) {
		struct page_file *f = (struct page_file *)(void *)(files + i * PAGES_FILE_BYTES);
		struct page_meta *m;

		f->published = pages_word(w);
		f->done = pages_word(w);
		m = &f->meta[PUBLISHED_SLOT(f->published)];
		m->size = pages_word(w) * (w->bytes > 2 ? 1 : 1024);
		m->lowest = pages_word(w) * (w->bytes > 2 ? 1 : 1024);
		m->cut = pages_word(w);
		m->cut_lowest = pages_word(w) * (w->bytes > 2 ? 1 : 1024);
		m->mtime_nsec = (uint32_t)pages_word(w);
		m->changed = (uint32_t)pages_word(w);
	}
	for (int i = 0; i < PAGES_FRAMES; i++) {
		table[i].owner = (uint32_t)pages_word(w);
		table[i].page = pages_word(w);
		table[i].ticket = pages_word(w);
	}
}

/* The frame counts, said in other words than in page_counts. */
static bool pages_shown(const struct page_file *f, const struct page_frame *frame)
{
	const struct page_meta *m = &f->meta[f->published % 4];
	bool in_file = frame->ticket <= f->done;
	bool later = frame->ticket > f->published / 4;
	bool behind = frame->page >= m->size / PAGES_BYTES + (m->size % PAGES_BYTES != 0);
	bool cut_off = frame->ticket <= m->cut &&
	               frame->page >= m->cut_lowest / PAGES_BYTES + (m->cut_lowest % PAGES_BYTES != 0);

	return !in_file && !later && !behind && !cut_off;
}

static void pages_check(const struct page_scan *s, uint32_t file, const struct page_scan_file *out)
{
	const struct page_file *f =
		(const struct page_file *)(const void *)(s->files + file * PAGES_FILE_BYTES);
	uint32_t pages = 0;

	require(out->frames <= PAGES_FRAMES && out->lowest <= out->size, "%u frames", out->frames);
	for (uint32_t i = 0; i < PAGES_FRAMES; i++) {
		const struct page_frame *frame = &s->table[i];
		bool newest = frame->owner == file + 1 && pages_shown(f, frame);

		for (uint32_t k = 0; newest && k < PAGES_FRAMES; k++) {
			const struct page_frame *other = &s->table[k];

			if (other->owner == file + 1 && other->page == frame->page && pages_shown(f, other) &&
			    other->ticket > frame->ticket)
				newest = false;
		}
		for (uint32_t k = 0; k < out->frames; k++) {
			if (s->order[k] == i) {
				require(newest, "frame %u does not count", i);
				newest = false;
				pages++;
			}
		}
		require(!newest, "frame %u was left out", i);
	}
	require(pages == out->frames, "%u frames, %u of them good", out->frames, pages);
	for (uint32_t k = 0; k < out->frames; k++) {
		uint32_t bytes = page_scan_bytes(s, out, s->order[k]);

		require(bytes >= 1 && bytes <= PAGES_BYTES, "%u bytes", bytes);
		require(k == 0 || s->table[s->order[k - 1]].page < s->table[s->order[k]].page, "order");
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t files[PAGES_FILES * PAGES_FILE_BYTES] __attribute__((aligned(8)));
	static struct page_frame table[PAGES_FRAMES];
	static uint32_t order[PAGES_FRAMES], first[PAGES_FILES], next[PAGES_FRAMES];
	struct page_scan s = {.files = files,
	                      .table = table,
	                      .layout = {.files = PAGES_FILES, .frames = PAGES_FRAMES},
	                      .order = order,
	                      .first = first,
	                      .next = next};
	struct words w = {.at = data + 1, .left = size - 1};
	struct page_scan_file out;

	if (size == 0)
		return -1;
	w.bytes = data[0] % 4 == 3 ? 8 : data[0] % 4 + 1;
	memset(files, 0, sizeof files);
	memset(table, 0, sizeof table);
	pages_fill(&w, files, table);
	page_scan_begin(&s);
	for (uint32_t file = 0; file < PAGES_FILES; file++) {
		int r = page_scan_file(&s, file, &out);

		require(r == 0 || r == 1 || r == -EBADMSG, "%d", r);
		if (r == 1)
			pages_check(&s, file, &out);
	}
	return 0;
}
