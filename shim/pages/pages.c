// SPDX-License-Identifier: Apache-2.0
/* pages: see pages/pages.h. */
#include "pages/pages.h"

/* A tree that is full has a node for 63 frames.  Scattered pages need more: then the nodes run out before the
 * frames do, and a write is refused as if there were no frame. */
static uint32_t node_count(const struct pages_layout *l) { return l->frames + l->files + 16; }

static size_t notes_bytes(const struct pages_layout *l)
{
	return pages_round_up((uint64_t)l->frames * sizeof(struct page_note));
}

size_t pages_memory(const struct pages_layout *l)
{
	return notes_bytes(l) + (size_t)node_count(l) * sizeof(struct page_node);
}

void pages_init(struct pages *p, const struct pages_layout *l, void *region, void *memory)
{
	uint8_t *at = region;

	p->files = at;
	p->table = (struct page_frame *)(void *)(at + l->table_at);
	p->frames = at + l->frames_at;
	p->notes = memory;
	p->file_count = l->files;
	p->frame_count = l->frames;
	pool_init(&p->free_frames, p->notes, sizeof(struct page_note), l->frames);
	pool_init(&p->free_nodes, (uint8_t *)memory + notes_bytes(l), sizeof(struct page_node),
	          node_count(l));
}
