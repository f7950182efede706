// SPDX-License-Identifier: Apache-2.0
/* overlay: see pages/overlay.h. */
#include "pages/overlay.h"

#include "base/kill.h"
#include "base/publish.h"
#include "pages/view.h"

#include <errno.h>
#include <string.h>

/* A write that is being made. */
struct put {
	const struct iovec *iov;
	int count;
	uint64_t offset, end;
	size_t skip; /* bytes of *iov that are copied already */
	uint64_t ticket;
	bool nested;
};

/* A nested change came: the write must be prepared again. */
enum { PUT_AGAIN = 1 };

static uint64_t lower(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t higher(uint64_t a, uint64_t b) { return a > b ? a : b; }

uint64_t view_next_ticket(const struct view *v, bool nested, int *error)
{
	uint64_t ticket = PUBLISHED_TICKET(v->word);

	*error = -EOVERFLOW;
	if (ticket >= PAGES_TICKET_MOST)
		return 0;
	if (!nested)
		return (ticket / PAGES_STEP + 1) * PAGES_STEP;
	*error = -EBUSY;
	return (ticket + 1) % PAGES_STEP == 0 ? 0 : ticket + 1;
}

bool view_publish(struct overlay *o, const struct view *v, const struct page_meta *meta, uint64_t ticket,
                  bool nested)
{
	struct page_file *file = view_file(o);
	unsigned now = PUBLISHED_SLOT(v->word);
	/* 0 and 1 in turn, nested 2 and 3: so a nested change and the interrupted one never meet */
	unsigned slot = (nested ? 2u : 0u) + (now == (nested ? 2u : 0u));
	bool published;

	file->meta[slot] = *meta;
	kill_step();
	published = publish_swap(&file->published, v->word, PUBLISHED_MAKE(ticket, slot));
	kill_step();
	return published;
}

/*
 * From now on the frame does not count.  This comes before a slot or a list loses it: a handler may run in
 * between, cut the file off and make it longer, or leave this call for good.
 */
static void disown(struct overlay *o, uint32_t frame)
{
	atomic_store_explicit(&pages_entry(o->pages, frame)->ticket, PAGES_NEVER, memory_order_release);
	kill_step();
}

void overlay_release(struct overlay *o, uint32_t frame, bool nested)
{
	if (!nested) {
		atomic_store_explicit(&pages_entry(o->pages, frame)->owner, 0, memory_order_release);
		kill_step();
		pool_give(&o->pages->free_frames, frame);
		return;
	}
	disown(o, frame);
	if (*pages_state(o->pages, frame) == PAGE_PENDING) {
		*pages_state(o->pages, frame) = PAGE_REPLACED;
		return;
	}
	pages_set_next(o->pages, frame, o->aside);
	o->aside = frame;
}

/*
 * `named` names the frame: from now on it names the one that the frame replaces.  False: it names another one
 * by now.  Meanwhile a nested call may have released that older one (overlay_done): then nothing may name it.
 */
static bool unlink_frame(const struct overlay *o, _Atomic uint32_t *named, uint32_t frame)
{
	uint32_t older;
	bool counted;

	do {
		older = pages_older(o->pages, frame);
		counted = older != 0 && frame_ticket(o, older) != PAGES_NEVER;
		atomic_signal_fence(memory_order_seq_cst);
	} while (pages_older(o->pages, frame) != older);
	if (!publish_swap_32(named, frame, older))
		return false;
	if (counted && frame_ticket(o, older) == PAGES_NEVER)
		publish_swap_32(named, older, pages_older(o->pages, older));
	return true;
}

/* A frame of a write that was not published: the page is again what it was. */
static void take_back(struct overlay *o, uint32_t frame)
{
	uint64_t page = pages_entry(o->pages, frame)->page;
	_Atomic uint32_t *slot = page_index_slot(&o->index, &o->pages->free_nodes, page, false);

	disown(o, frame);
	if (slot)
		unlink_frame(o, slot, frame);
	kill_step();
}

void overlay_release_older(struct overlay *o, const struct view *v, uint32_t frame, bool nested)
{
	_Atomic uint32_t *named = &o->pages->notes[frame - 1].older;
	uint32_t older;

	while ((older = *named) != 0 && (!v || !view_pins(o, v, older))) {
		disown(o, older);
		if (!unlink_frame(o, named, older))
			continue;
		kill_step();
		pages_set_older(o->pages, older, 0);
		overlay_release(o, older, nested);
	}
}

void overlay_settle(struct overlay *o, bool nested)
{
	struct view v = view_take(o);

	for (uint32_t frame; (frame = o->pending[nested]) != 0;) {
		bool counts = frame_ticket(o, frame) <= PUBLISHED_TICKET(v.word);

		if (counts)
			overlay_release_older(o, &v, frame, nested);
		else
			take_back(o, frame);
		o->pending[nested] = pages_next(o->pages, frame);
		kill_step();
		/* no slot names it: it may be used at once, even if this call is nested */
		if (!counts || !publish_swap_32(pages_state(o->pages, frame), PAGE_PENDING, PAGE_SETTLED))
			overlay_release(o, frame, false);
		kill_step();
	}
}

void overlay_begin(struct overlay *o, bool nested)
{
	if (atomic_load_explicit(&o->pending[nested], memory_order_relaxed) != 0)
		overlay_settle(o, nested);
	if (nested)
		return;
	for (uint32_t frame; (frame = atomic_load_explicit(&o->aside, memory_order_relaxed)) != 0;)
		if (publish_swap_32(&o->aside, frame, pages_next(o->pages, frame)))
			overlay_release(o, frame, false);
}

/* Copies the next bytes of the write; they need not be all of one buffer. */
static void copy_next(struct put *w, uint8_t *to, size_t n)
{
	while (n > 0) {
		size_t part = lower(w->iov->iov_len - w->skip, n);

		memcpy(to, (const uint8_t *)w->iov->iov_base + w->skip, part);
		to += part;
		n -= part;
		w->skip += part;
		if (w->skip == w->iov->iov_len && (n > 0 || w->count > 1)) {
			w->iov++;
			w->count--;
			w->skip = 0;
		}
	}
}

/* The frame of a page, 0 if there is none. */
static uint32_t frame_of(struct overlay *o, const struct view *v, uint64_t page)
{
	_Atomic uint32_t *slot = page_index_slot(&o->index, &o->pages->free_nodes, page, false);

	return slot ? view_frame(o, v, page, atomic_load_explicit(slot, memory_order_acquire)) : 0;
}

/* Reads [offset, end), of which no page has a frame, from the file. */
static int read_file(struct overlay *o, const struct view *v, uint8_t *to, uint64_t offset, uint64_t end)
{
	uint64_t in_file = higher(lower(end, v->meta.lowest), offset);
	int r = in_file > offset ? o->source(o->ctx, to, in_file - offset, offset) : 0;

	memset(to + (in_file - offset), 0, end - in_file);
	return r;
}

/* Fills a frame with the page as it is, zeros behind the end. */
static int fill_old(struct overlay *o, const struct view *v, uint64_t page, uint32_t old, uint8_t *to)
{
	uint64_t at = page * PAGES_BYTES;
	uint64_t end = higher(lower(at + PAGES_BYTES, v->meta.size), at);
	int r = 0;

	if (old != 0)
		memcpy(to, pages_data(o->pages, old), end - at);
	else
		r = read_file(o, v, to, at, end);
	memset(to + (end - at), 0, at + PAGES_BYTES - end);
	return r;
}

/* Fills the frame of a page: the bytes [from, to) of the write and, around them, what was there.  What is
 * behind the new end may be anything. */
static int fill(struct overlay *o, const struct view *v, struct put *w, uint64_t page, uint32_t old,
                uint8_t *data)
{
	uint64_t at = page * PAGES_BYTES;
	uint64_t from = lower(higher(w->offset, at), at + PAGES_BYTES);
	uint64_t to = higher(lower(w->end, at + PAGES_BYTES), from);
	int r = 0;

	if (old != 0 && v->meta.size >= at + PAGES_BYTES) {
		/* the usual overwrite of a piece */
		memcpy(data, pages_data(o->pages, old), from - at);
		memcpy(data + (to - at), pages_data(o->pages, old) + (to - at), at + PAGES_BYTES - to);
	} else if (from > at || to < lower(v->meta.size, at + PAGES_BYTES)) {
		r = fill_old(o, v, page, old, data);
	}
	if (r == 0)
		copy_next(w, data + (from - at), to - from);
	return r;
}

/*
 * True if the write may go into the last frame in place: it only adds behind the end.  Not into a frame of
 * the last cut, in the file or not yet: it would not count as changed.  Not nested: the interrupted write may
 * be copying to the same bytes.
 */
static bool goes_in_place(const struct overlay *o, const struct view *v, const struct put *w, uint64_t page,
                          uint32_t frame)
{
	return !w->nested && frame != 0 && w->offset >= v->meta.size && v->meta.size / PAGES_BYTES == page &&
	       frame_ticket(o, frame) > v->meta.cut;
}

static void put_in_place(const struct view *v, struct put *w, uint64_t page, uint8_t *data)
{
	uint64_t at = page * PAGES_BYTES;
	uint64_t from = lower(w->offset, at + PAGES_BYTES);
	uint64_t to = higher(lower(w->end, at + PAGES_BYTES), from);

	/* what is behind the end may be anything */
	memset(data + (v->meta.size - at), 0, from - v->meta.size);
	copy_next(w, data + (from - at), to - from);
}

/* A free frame, noted as one of this write's before anything else is done with it. */
static uint32_t take_frame(struct overlay *o, const struct put *w, uint64_t page)
{
	uint32_t frame = pool_take(&o->pages->free_frames);

	if (frame == 0)
		return 0;
	pages_entry(o->pages, frame)->page = page;
	atomic_store_explicit(&pages_entry(o->pages, frame)->ticket, PAGES_NEVER, memory_order_relaxed);
	/* the owner only then: a frame of a dead process may still have a ticket that counts */
	atomic_store_explicit(&pages_entry(o->pages, frame)->owner, o->file + 1, memory_order_release);
	pages_set_older(o->pages, frame, 0);
	*pages_state(o->pages, frame) = PAGE_PENDING;
	pages_set_next(o->pages, frame, o->pending[w->nested]);
	atomic_signal_fence(memory_order_seq_cst);
	o->pending[w->nested] = frame;
	kill_step();
	return frame;
}

/* 0, PUT_AGAIN or -errno */
static int put_page(struct overlay *o, const struct view *v, struct put *w, uint64_t page)
{
	_Atomic uint32_t *slot = page_index_slot(&o->index, &o->pages->free_nodes, page, true);
	uint32_t top, old, frame;
	struct page_frame *entry;
	int r;

	if (!slot)
		return -EAGAIN;
	top = atomic_load_explicit(slot, memory_order_acquire);
	/* a nested change that the view does not show: its frame must stay in the slot */
	if (!view_holds(o, v))
		return PUT_AGAIN;
	old = view_frame(o, v, page, top);
	if (goes_in_place(o, v, w, page, old)) {
		put_in_place(v, w, page, pages_data(o->pages, old));
		return 0;
	}
	frame = take_frame(o, w, page);
	if (frame == 0)
		return -EAGAIN;
	r = fill(o, v, w, page, old, pages_data(o->pages, frame));
	if (r < 0)
		return r;
	entry = pages_entry(o->pages, frame);
	pages_set_older(o->pages, frame, view_newest(o, v, top));
	atomic_store_explicit(&entry->ticket, w->ticket, memory_order_release);
	kill_step();
	return publish_swap_32(slot, top, frame) ? 0 : PUT_AGAIN;
}

/* Prepares all pages of the write. */
static int put_pages(struct overlay *o, const struct view *v, struct put *w)
{
	uint64_t last = v->meta.size / PAGES_BYTES;
	uint64_t page = w->offset / PAGES_BYTES;
	int r = 0;

	/* the end becomes the middle: what stands behind it in its frame must be zeros */
	if (w->offset > v->meta.size && v->meta.size % PAGES_BYTES != 0 &&
	    (last < page || w->end == w->offset) && frame_of(o, v, last) != 0)
		r = put_page(o, v, w, last);
	for (; r == 0 && page * PAGES_BYTES < w->end && w->end > w->offset; page++)
		r = put_page(o, v, w, page);
	return r;
}

static void touch(struct page_meta *m, const struct timespec *now)
{
	m->mtime_sec = now->tv_sec;
	m->mtime_nsec = (uint32_t)now->tv_nsec;
	m->changed = 1;
}

/* Writes the bytes [offset, end); with none, the file becomes `end` long. */
static int put(struct overlay *o, const struct iovec *iov, int count, uint64_t offset, uint64_t end,
               const struct timespec *now, bool nested)
{
	overlay_begin(o, nested);
	for (;;) {
		struct view v = view_take(o);
		struct put w = {.iov = iov, .count = count, .offset = offset, .end = end, .nested = nested};
		struct page_meta meta = v.meta;
		int r;

		w.ticket = view_next_ticket(&v, nested, &r);
		if (w.ticket == 0)
			return r;
		meta.size = higher(meta.size, end);
		touch(&meta, now);
		r = put_pages(o, &v, &w);
		if (r == 0 && !view_publish(o, &v, &meta, w.ticket, nested))
			r = PUT_AGAIN;
		overlay_settle(o, nested);
		if (r != PUT_AGAIN)
			return r;
	}
}

int overlay_write(struct overlay *o, const struct iovec *iov, int count, size_t n, uint64_t offset,
                  const struct timespec *now, bool nested)
{
	return put(o, iov, count, offset, offset + n, now, nested);
}

static int read_range(struct overlay *o, const struct view *v, uint8_t *to, uint64_t offset, uint64_t end)
{
	int r = 0;

	while (r == 0 && offset < end) {
		uint64_t page = offset / PAGES_BYTES;
		uint64_t until = lower((page + 1) * PAGES_BYTES, end);
		uint32_t frame = frame_of(o, v, page);

		if (frame != 0) {
			memcpy(to, pages_data(o->pages, frame) + offset % PAGES_BYTES, until - offset);
		} else {
			/* all pages up to the next frame by one call */
			while (until < end && frame_of(o, v, until / PAGES_BYTES) == 0)
				until = lower(until + PAGES_BYTES, end);
			r = read_file(o, v, to, offset, until);
		}
		to += until - offset;
		offset = until;
	}
	return r;
}

ssize_t overlay_read(struct overlay *o, void *to, size_t n, uint64_t offset)
{
	for (;;) {
		struct view v = view_take(o);
		uint64_t end;
		int r;

		if (offset >= v.meta.size)
			return 0;
		end = n < v.meta.size - offset ? offset + n : v.meta.size;
		r = read_range(o, &v, to, offset, end);
		/* else the bytes may be from before a nested change and after it */
		if (view_holds(o, &v))
			return r < 0 ? r : (ssize_t)(end - offset);
	}
}

bool overlay_is_bare(struct overlay *o, uint64_t offset, size_t n)
{
	struct view v = view_take(o);
	uint64_t page = offset / PAGES_BYTES;

	if (offset > v.meta.lowest || n > v.meta.lowest - offset)
		return false;
	for (; page * PAGES_BYTES < offset + n; page++)
		if (frame_of(o, &v, page) != 0)
			return false;
	return true;
}

bool overlay_has_pages(struct overlay *o)
{
	struct view v = view_take(o);
	_Atomic uint32_t *slot;

	for (uint64_t page = 0; (slot = page_index_next(&o->index, &o->pages->free_nodes, &page)) != NULL;
	     page++)
		if (view_newest(o, &v, *slot) != 0)
			return true;
	return false;
}

/* Frees the frames behind the end, but for those that a cut needs. */
static void trim(struct overlay *o, bool nested)
{
	struct view v = view_take(o);
	uint64_t page = (v.meta.size + PAGES_BYTES - 1) / PAGES_BYTES;
	_Atomic uint32_t *slot;

	for (; (slot = page_index_next(&o->index, &o->pages->free_nodes, &page)) != NULL; page++) {
		uint32_t frame = view_newest(o, &v, *slot);
		uint32_t keep = view_pinned(o, &v, frame);

		*slot = keep;
		while (frame != keep) {
			uint32_t older = pages_older(o->pages, frame);

			pages_set_older(o->pages, frame, 0);
			overlay_release(o, frame, nested);
			frame = older;
		}
	}
}

int overlay_truncate(struct overlay *o, uint64_t size, const struct timespec *now, bool nested)
{
	struct view v = view_take(o);
	struct page_meta meta;
	uint64_t ticket;
	int r;

	if (size > v.meta.size)
		return put(o, NULL, 0, size, size, now, nested);
	overlay_begin(o, nested);
	meta = v.meta;
	meta.size = size;
	meta.lowest = lower(meta.lowest, size);
	meta.cut_lowest = lower(meta.cut_lowest, size);
	touch(&meta, now);
	ticket = view_next_ticket(&v, nested, &r);
	if (ticket == 0)
		return r;
	/* (signals are blocked: nothing comes between) */
	view_publish(o, &v, &meta, ticket, nested);
	trim(o, nested);
	return 0;
}

uint64_t overlay_size(const struct overlay *o) { return view_take(o).meta.size; }

struct timespec overlay_mtime(const struct overlay *o)
{
	struct view v = view_take(o);

	return (struct timespec){.tv_sec = v.meta.mtime_sec, .tv_nsec = v.meta.mtime_nsec};
}
