// SPDX-License-Identifier: Apache-2.0
/* page_scan: see format/page_scan.h. */
#include "format/page_scan.h"

#include "base/sort.h"

#include <errno.h>
#include <string.h>

void page_scan_begin(struct page_scan *s)
{
	memset(s->first, 0, s->layout.files * sizeof *s->first);
	for (uint32_t i = s->layout.frames; i-- > 0;) {
		uint32_t owner = s->table[i].owner;

		if (owner == 0 || owner > s->layout.files)
			continue;
		s->next[i] = s->first[owner - 1];
		s->first[owner - 1] = i + 1;
	}
}

static bool meta_sane(const struct page_meta *m, uint64_t ticket)
{
	return m->size <= INT64_MAX && m->lowest <= m->size && m->cut_lowest <= m->size && m->cut <= ticket &&
	       m->mtime_nsec < 1000000000 && m->changed <= 1;
}

/* By page; of one page the latest ticket first. */
static bool comes_before(const void *ctx, uint32_t a, uint32_t b)
{
	const struct page_scan *s = ctx;
	const struct page_frame *x = &s->table[a], *y = &s->table[b];

	return x->page != y->page ? x->page < y->page : x->ticket > y->ticket;
}

/* Of each page only the newest frame stays.  False: two frames are the same. */
static bool keep_newest(struct page_scan *s, uint32_t *n)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < *n; i++) {
		const struct page_frame *frame = &s->table[s->order[i]];
		const struct page_frame *before = i > 0 ? &s->table[s->order[i - 1]] : NULL;

		if (!before || before->page != frame->page)
			s->order[kept++] = s->order[i];
		else if (before->ticket == frame->ticket)
			return false;
	}
	*n = kept;
	return true;
}

int page_scan_file(struct page_scan *s, uint32_t file, struct page_scan_file *out)
{
	const struct page_file *entry =
		(const struct page_file *)(const void *)(s->files + (size_t)file * PAGES_FILE_BYTES);
	uint64_t published = entry->published, done = entry->done;
	const struct page_meta *m = &entry->meta[PUBLISHED_SLOT(published)];
	uint32_t n = 0;

	if (published == 0)
		return 0;
	if (!meta_sane(m, PUBLISHED_TICKET(published)))
		return -EBADMSG;
	/* a file that was just given this entry: its `done` comes before the rest */
	if (done >= PUBLISHED_TICKET(published) || (!m->changed && m->cut <= done))
		return 0;
	for (uint32_t at = s->first[file]; at != 0; at = s->next[at - 1]) {
		const struct page_frame *frame = &s->table[at - 1];

		/* a page so far behind that its offset is no number any more is behind the end, too */
		if (frame->ticket > done && frame->page <= INT64_MAX / PAGES_BYTES &&
		    page_counts(m, published, frame->page, frame->ticket))
			s->order[n++] = at - 1;
	}
	sort_numbers(s->order, n, comes_before, s);
	if (!keep_newest(s, &n))
		return -EBADMSG;
	*out = (struct page_scan_file){.size = m->size,
	                               .lowest = m->lowest,
	                               .mtime_sec = m->mtime_sec,
	                               .mtime_nsec = m->mtime_nsec,
	                               .frames = n};
	return 1;
}

uint64_t page_scan_total(const struct page_scan *s, const struct page_scan_file *f)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < f->frames; i++)
		bytes += page_scan_bytes(s, f, s->order[i]);
	return bytes;
}
