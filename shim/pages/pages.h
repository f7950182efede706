// SPDX-License-Identifier: Apache-2.0
/*
 * pages: an overlay of pages in memory, shared by the processes of a family: its tables in the arena
 * (format/pages_format.h), and beside them what only living processes know.
 *
 * Frames have numbers from 1 on; 0 is none.
 */
#ifndef FASTWRITE_PAGES_PAGES_H
#define FASTWRITE_PAGES_PAGES_H

#include "format/pages_format.h"
#include "pages/page_index.h"
#include "pages/pool.h"

enum page_state {
	PAGE_SETTLED,
	PAGE_PENDING,  /* a change that is being made holds it in its list */
	PAGE_REPLACED, /* pending still, but a nested change has replaced it: that list's owner frees it */
};

struct page_note {
	_Atomic uint32_t next;     /* in the list that the frame is in: free, pending, or set aside */
	_Atomic uint32_t cut_next; /* in the list of the cut, with which it may be in another one, too */
	/* The frame of the same page that it replaces, as long as that is needed.  A frame is named by one
	 * slot or one `older`; a swap of that word takes it. */
	_Atomic uint32_t older;
	_Atomic uint32_t state; /* enum page_state */
};

struct pages {
	uint8_t *files;
	struct page_frame *table;
	uint8_t *frames;
	struct page_note *notes;
	uint32_t file_count, frame_count;
	struct pool free_frames, free_nodes;
};

/* Bytes of memory that pages_init needs beside the arena. */
size_t pages_memory(const struct pages_layout *l);

/* `region`: l->bytes zeroed bytes in the arena; `memory` need not be zeroed.  Both at multiples of 4096, both
 * shared by the family, at the same addresses in all its processes. */
void pages_init(struct pages *p, const struct pages_layout *l, void *region, void *memory);

static inline struct page_file *pages_file(const struct pages *p, uint32_t index)
{
	return (struct page_file *)(void *)(p->files + (size_t)index * PAGES_FILE_BYTES);
}
static inline struct page_frame *pages_entry(const struct pages *p, uint32_t frame)
{
	return &p->table[frame - 1];
}
static inline uint8_t *pages_data(const struct pages *p, uint32_t frame)
{
	return p->frames + (size_t)(frame - 1) * PAGES_BYTES;
}
static inline uint32_t pages_older(const struct pages *p, uint32_t frame)
{
	return atomic_load_explicit(&p->notes[frame - 1].older, memory_order_relaxed);
}
static inline uint32_t pages_next(const struct pages *p, uint32_t frame)
{
	return atomic_load_explicit(&p->notes[frame - 1].next, memory_order_relaxed);
}
static inline void pages_set_older(const struct pages *p, uint32_t frame, uint32_t older)
{
	atomic_store_explicit(&p->notes[frame - 1].older, older, memory_order_relaxed);
}
static inline _Atomic uint32_t *pages_state(const struct pages *p, uint32_t frame)
{
	return &p->notes[frame - 1].state;
}
static inline void pages_set_next(const struct pages *p, uint32_t frame, uint32_t next)
{
	atomic_store_explicit(&p->notes[frame - 1].next, next, memory_order_relaxed);
}

#endif
