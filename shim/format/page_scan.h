// SPDX-License-Identifier: Apache-2.0
/*
 * page_scan: from the tables of an overlay of pages, as a dead process left them or as they lie on a disk, to
 * the frames that recovery writes to each file.  Trusts nothing of what it reads, and looks at no frame.
 */
#ifndef FASTWRITE_FORMAT_PAGE_SCAN_H
#define FASTWRITE_FORMAT_PAGE_SCAN_H

#include "format/pages_format.h"

struct page_scan {
	const uint8_t *files;           /* layout.files entries of PAGES_FILE_BYTES, a copy */
	const struct page_frame *table; /* layout.frames entries, a copy */
	struct pages_layout layout;
	uint32_t *order;        /* room for layout.frames numbers */
	uint32_t *first, *next; /* frames of each file (layout.files) and the next one (layout.frames), + 1 */
};

/* What has to be done to a file: make it as short as `lowest`, if it is longer, write the frames, make it
 * `size` long. */
struct page_scan_file {
	uint64_t size, lowest;
	int64_t mtime_sec;
	uint32_t mtime_nsec;
	uint32_t frames; /* in page_scan.order, by page */
};

/* Lists the frames of each file.  `order`, `first` and `next` have room. */
void page_scan_begin(struct page_scan *s);

/* 1 and *out; 0: nothing to do; -EBADMSG: the file's entry or one of its frames makes no sense. */
int page_scan_file(struct page_scan *s, uint32_t file, struct page_scan_file *out);

/* Bytes of a frame in s->order that belong to the file: 1 to PAGES_BYTES. */
static inline uint32_t page_scan_bytes(const struct page_scan *s, const struct page_scan_file *f,
                                       uint32_t frame)
{
	uint64_t rest = f->size - s->table[frame].page * PAGES_BYTES;

	return rest < PAGES_BYTES ? (uint32_t)rest : PAGES_BYTES;
}

/* The same of all its frames, as long as page_scan_file is not called again. */
uint64_t page_scan_total(const struct page_scan *s, const struct page_scan_file *f);

#endif
