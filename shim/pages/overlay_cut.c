// SPDX-License-Identifier: Apache-2.0
/* overlay_cut: a file in the overlay as a whole: its begin and end, the cut, and the index built anew.  See
 * pages/overlay.h. */
#include "base/kill.h"
#include "base/publish.h"
#include "pages/overlay.h"
#include "pages/view.h"

#include <errno.h>

static _Atomic uint32_t *next_slot(struct overlay *o, uint64_t *page)
{
	return page_index_next(&o->index, &o->pages->free_nodes, page);
}

int overlay_attach(struct overlay *o, struct pages *pages, uint32_t file, uint64_t size,
                   const struct timespec *mtime, overlay_source *source, void *ctx)
{
	struct page_file *entry = pages_file(pages, file);
	/* tickets go on: a frame that the last file of this entry left must never count, not even one that
	 * was not published */
	uint64_t ticket = (PUBLISHED_TICKET(entry->published) / PAGES_STEP + 2) * PAGES_STEP;
	unsigned slot = PUBLISHED_SLOT(entry->published) == 0;

	if (ticket > PAGES_TICKET_MOST)
		return -EOVERFLOW;
	*o = (struct overlay){.pages = pages, .file = file, .source = source, .ctx = ctx};
	entry->meta[slot] = (struct page_meta){.size = size,
	                                       .lowest = size,
	                                       .cut = ticket,
	                                       .cut_lowest = size,
	                                       .mtime_sec = mtime->tv_sec,
	                                       .mtime_nsec = (uint32_t)mtime->tv_nsec};
	kill_step();
	atomic_store_explicit(&entry->done, ticket, memory_order_release);
	kill_step();
	atomic_store_explicit(&entry->published, PUBLISHED_MAKE(ticket, slot), memory_order_release);
	kill_step();
	return 0;
}

bool overlay_is_cut(const struct overlay *o)
{
	struct view v = view_take(o);

	return v.meta.cut > atomic_load_explicit(&view_file(o)->done, memory_order_relaxed);
}

bool overlay_is_changed(const struct overlay *o)
{
	struct view v = view_take(o);

	return v.meta.changed;
}

/* Lists the frames of the cut that was taken last, by page. */
static void list_cut(struct overlay *o, bool nested)
{
	_Atomic uint32_t *link = &o->cut.first;
	struct view v = view_take(o);
	_Atomic uint32_t *slot;

	for (uint64_t page = 0; (slot = next_slot(o, &page)) != NULL; page++) {
		uint32_t frame = view_pinned(o, &v, *slot);

		if (frame == 0)
			continue;
		/* (those that the change which this call interrupts has just replaced) */
		overlay_release_older(o, NULL, frame, nested);
		*link = frame;
		link = &o->pages->notes[frame - 1].cut_next;
	}
	*link = 0;
}

int overlay_cut(struct overlay *o, bool nested)
{
	struct view v = view_take(o);
	struct page_meta meta = v.meta;
	uint64_t ticket;
	int r;

	if (overlay_is_cut(o))
		return -EBUSY;
	overlay_begin(o, nested);
	if (!meta.changed)
		return 0;
	ticket = view_next_ticket(&v, nested, &r);
	if (ticket == 0)
		return r;
	o->cut.size = meta.size;
	o->cut.lowest = meta.lowest;
	o->cut.in_file = UINT64_MAX;
	o->cut.mtime = (struct timespec){.tv_sec = meta.mtime_sec, .tv_nsec = meta.mtime_nsec};
	/* not `ticket`: a write that this call interrupts may have frames with an earlier one than that */
	meta.cut = PUBLISHED_TICKET(v.word);
	meta.cut_lowest = meta.size;
	meta.changed = 0;
	view_publish(o, &v, &meta, ticket, nested);
	list_cut(o, nested);
	return 1;
}

bool overlay_cut_piece(const struct overlay *o, uint32_t *cursor, struct overlay_piece *piece)
{
	uint64_t end;

	*cursor = *cursor == 0 ? o->cut.first : o->pages->notes[*cursor - 1].cut_next;
	if (*cursor == 0)
		return false;
	piece->offset = pages_entry(o->pages, *cursor)->page * PAGES_BYTES;
	if (piece->offset >= o->cut.in_file)
		return false;
	piece->data = pages_data(o->pages, *cursor);
	end = piece->offset + PAGES_BYTES;
	piece->bytes = (end < o->cut.size ? end : o->cut.size) - piece->offset;
	return true;
}

/* A frame of a cut that is in the file now.  It stays for reads if the program still sees it, and there are
 * others enough for writes. */
static void let_cut_frame_go(struct overlay *o, const struct view *v, uint32_t frame, bool nested)
{
	uint64_t page = pages_entry(o->pages, frame)->page;
	_Atomic uint32_t *named = page_index_slot(&o->index, &o->pages->free_nodes, page, false);

	if (named && pool_is_ample(&o->pages->free_frames) && view_frame(o, v, page, *named) == frame)
		return;
	while (named && *named != frame && *named != 0)
		named = &o->pages->notes[*named - 1].older;
	if (named && *named == frame)
		*named = pages_older(o->pages, frame);
	pages_set_older(o->pages, frame, 0);
	overlay_release(o, frame, nested);
}

int overlay_done(struct overlay *o, bool nested)
{
	struct view v = view_take(o);
	struct page_meta meta = v.meta;
	uint64_t ticket;
	int r;

	overlay_begin(o, nested);
	ticket = view_next_ticket(&v, nested, &r);
	if (ticket == 0)
		return r;
	/* Before `done`: recovery must not cut off what the cut wrote.  After a kill between the two it
	 * writes the frames once more. */
	meta.lowest = meta.cut_lowest;
	view_publish(o, &v, &meta, ticket, nested);
	atomic_store_explicit(&view_file(o)->done, meta.cut, memory_order_release);
	kill_step();
	v = view_take(o);
	for (uint32_t frame; (frame = o->cut.first) != 0;) {
		o->cut.first = o->pages->notes[frame - 1].cut_next;
		let_cut_frame_go(o, &v, frame, nested);
		kill_step();
	}
	return 0;
}

/* Frees all frames that the index names, and the index. */
static void empty(struct overlay *o)
{
	_Atomic uint32_t *slot;
	uint64_t page = 0;

	for (; (slot = next_slot(o, &page)) != NULL; page++) {
		uint32_t frame = *slot;

		*slot = 0;
		while (frame != 0) {
			uint32_t older = pages_older(o->pages, frame);

			overlay_release(o, frame, false);
			frame = older;
		}
	}
	page_index_clear(&o->index, &o->pages->free_nodes);
}

/* From now on no frame counts, nor the size: also not for the next file of the entry, before its attach. */
static void count_nothing(const struct overlay *o)
{
	struct page_file *file = view_file(o);

	atomic_store_explicit(&file->done, PUBLISHED_TICKET(file->published), memory_order_release);
	kill_step();
}

void overlay_detach(struct overlay *o)
{
	overlay_begin(o, false);
	count_nothing(o);
	empty(o);
	o->pages = NULL;
}

void overlay_discard(struct overlay *o)
{
	count_nothing(o);
	page_index_clear(&o->index, &o->pages->free_nodes);
	for (uint32_t frame = 1; frame <= o->pages->frame_count; frame++)
		if (pages_entry(o->pages, frame)->owner == o->file + 1)
			overlay_release(o, frame, false);
	o->pages = NULL;
}

/* Puts a frame into the chain of its page, which goes from the latest ticket to the earliest. */
static bool chain(struct overlay *o, uint32_t frame)
{
	struct page_frame *entry = pages_entry(o->pages, frame);
	_Atomic uint32_t *named = page_index_slot(&o->index, &o->pages->free_nodes, entry->page, true);

	if (!named)
		return false;
	while (*named != 0 && frame_ticket(o, *named) > entry->ticket)
		named = &o->pages->notes[*named - 1].older;
	pages_set_older(o->pages, frame, *named);
	*named = frame;
	return true;
}

/* Of the chain of a page, only the frame that the program sees stays, and the newest one of the cut. */
static void prune(struct overlay *o, const struct view *v, uint64_t page, _Atomic uint32_t *slot)
{
	uint32_t seen = view_frame(o, v, page, *slot);
	_Atomic uint32_t *named = slot;
	bool pinned = false;

	while (*named != 0) {
		uint32_t frame = *named;
		bool pin = !pinned && view_pins(o, v, frame);

		pinned = pinned || pin;
		if (frame == seen || pin) {
			named = &o->pages->notes[frame - 1].older;
			continue;
		}
		*named = pages_older(o->pages, frame);
		overlay_release(o, frame, false);
	}
}

int overlay_rebuild(struct overlay *o)
{
	struct view v = view_take(o);
	uint64_t done = view_file(o)->done, page = 0;
	_Atomic uint32_t *slot;

	page_index_clear(&o->index, &o->pages->free_nodes);
	o->pending[0] = o->pending[1] = o->aside = 0;
	for (uint32_t frame = 1; frame <= o->pages->frame_count; frame++) {
		struct page_frame *entry = pages_entry(o->pages, frame);

		if (entry->owner != o->file + 1)
			continue;
		*pages_state(o->pages, frame) = PAGE_SETTLED;
		/* those that are in the file may have been replaced by one that is free again */
		if (entry->ticket <= done || entry->ticket > PUBLISHED_TICKET(v.word))
			overlay_release(o, frame, false);
		else if (!chain(o, frame))
			return -EAGAIN;
	}
	for (; (slot = next_slot(o, &page)) != NULL; page++)
		prune(o, &v, page, slot);
	list_cut(o, false);
	return 0;
}
