// SPDX-License-Identifier: Apache-2.0
/* view: a file as one value of `published` shows it.  Private to shim/pages. */
#ifndef FASTWRITE_PAGES_VIEW_H
#define FASTWRITE_PAGES_VIEW_H

#include "pages/overlay.h"

struct view {
	uint64_t word; /* page_file.published */
	struct page_meta meta;
};

static inline struct page_file *view_file(const struct overlay *o) { return pages_file(o->pages, o->file); }

static inline uint64_t frame_ticket(const struct overlay *o, uint32_t frame)
{
	return atomic_load_explicit(&pages_entry(o->pages, frame)->ticket, memory_order_acquire);
}

/* No change has come since the view was taken. */
static inline bool view_holds(const struct overlay *o, const struct view *v)
{
	atomic_signal_fence(memory_order_seq_cst);
	return atomic_load_explicit(&view_file(o)->published, memory_order_acquire) == v->word;
}

static inline struct view view_take(const struct overlay *o)
{
	struct view v;

	/* a nested change may come while the slot is being copied */
	do {
		v.word = atomic_load_explicit(&view_file(o)->published, memory_order_acquire);
		v.meta = view_file(o)->meta[PUBLISHED_SLOT(v.word)];
	} while (!view_holds(o, &v));
	return v;
}

/* The newest published frame of a page whose slot holds `frame`. */
static inline uint32_t view_newest(const struct overlay *o, const struct view *v, uint32_t frame)
{
	while (frame != 0 && frame_ticket(o, frame) > PUBLISHED_TICKET(v->word))
		frame = pages_older(o->pages, frame);
	return frame;
}

/* The frame that holds the page as the program sees it. */
static inline uint32_t view_frame(const struct overlay *o, const struct view *v, uint64_t page,
                                  uint32_t frame)
{
	while (frame != 0 && !page_counts(&v->meta, v->word, page, frame_ticket(o, frame)))
		frame = pages_older(o->pages, frame);
	return frame;
}

/* The frame belongs to a cut that is not in the file yet. */
static inline bool view_pins(const struct overlay *o, const struct view *v, uint32_t frame)
{
	uint64_t ticket = frame_ticket(o, frame);

	return ticket <= v->meta.cut &&
	       ticket > atomic_load_explicit(&view_file(o)->done, memory_order_relaxed);
}

/* Of a page whose slot holds `frame`, the frame that a cut needs; 0 if there is none. */
static inline uint32_t view_pinned(const struct overlay *o, const struct view *v, uint32_t frame)
{
	while (frame != 0 && !view_pins(o, v, frame))
		frame = pages_older(o->pages, frame);
	return frame;
}

/* The ticket of the next change; 0: none is left (*error says why). */
uint64_t view_next_ticket(const struct view *v, bool nested, int *error);

/* Publishes `meta` and all frames up to `ticket`.  False: a nested change came since the view was taken. */
bool view_publish(struct overlay *o, const struct view *v, const struct page_meta *meta, uint64_t ticket,
                  bool nested);

/* Comes before every change: ends the last one if it was left in the middle. */
void overlay_begin(struct overlay *o, bool nested);
/* Ends the change whose frames are pending: frees what they replace or, if they do not count, frees them. */
void overlay_settle(struct overlay *o, bool nested);
/* Frees a frame that no slot names any more. */
void overlay_release(struct overlay *o, uint32_t frame, bool nested);
/* Frees the frames that a published one replaces: all, or with `v` those that no cut needs. */
void overlay_release_older(struct overlay *o, const struct view *v, uint32_t frame, bool nested);

#endif
