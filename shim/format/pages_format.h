// SPDX-License-Identifier: Apache-2.0
/*
 * pages_format: the layout of an overlay of pages, which holds what a program has written to its files, and
 * the rule that says which of its frames count.
 *
 *   file table (256 B each) | frame table (24 B each) | frames (4096 B each)
 *
 * All parts start at multiples of 4096.  A *frame* holds one page of one file.  Its entry in the frame table
 * names the file and the page.  That table is the truth: recovery reads nothing else.
 *
 * Copy on write.  A write fills fresh frames and never changes a published byte.  Only behind the end of the
 * file, where nothing is published, bytes go into the last frame in place.
 *
 * Publishing.  Each change of a file has a *ticket*, a number that grows.  The frames of a write carry its
 * ticket.  They count once page_file.published holds that ticket or a later one.  So one compare-and-swap of
 * that word publishes all pages of a write, the size and the time: its low bits select the slot with the
 * metadata.  After a kill between any two instructions either the whole write is there or nothing of it.
 *
 * Signal handlers.  A write may be interrupted by a handler of the same thread that writes to the same file
 * (*nested*).  The interrupted write has prepared frames already.  They must not count when the nested write
 * publishes.  So a nested write takes the next ticket, and all others take the next multiple of PAGES_STEP:
 * the prepared frames have a later ticket than any nested write meanwhile.  For the same reason nested
 * changes and all others use different slots.  The swap of the interrupted write then fails, and it is done
 * again.
 *
 * The cut.  A cut takes a file as it stands, to be written back.  Frames up to its ticket stay as they are
 * until that is done, also when they are overwritten or truncated away.  Then `done` holds the ticket of the
 * cut: frames up to it are in the file and do not count any more.
 *
 * Memory order.  `published` is stored with release, after the slot with the metadata and the tickets of all
 * frames; a ticket after the frame's page and bytes; `owner` after page and a ticket that does not count. The
 * file's lock orders threads; a handler of the same thread needs the order of the compiler only.  So the
 * metadata is copied between two loads of `published` without a fence.
 *
 * Used by: pages (the live side), recovery (trusts nothing of what it reads).
 */
#ifndef FASTWRITE_FORMAT_PAGES_FORMAT_H
#define FASTWRITE_FORMAT_PAGES_FORMAT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	PAGES_BYTES = 4096, /* of a frame */
	PAGES_META_SLOTS = 4,
	PAGES_FILE_BYTES = 256,
	PAGES_FRAMES_MAX = 1 << 24,
	PAGES_FILES_MAX = 1 << 20,
};

#define PAGES_STEP (1ull << 16)
#define PAGES_TICKET_MOST ((1ull << 62) - 4 * PAGES_STEP)
#define PAGES_NEVER UINT64_MAX /* the ticket of a frame that does not count */

/* page_file.published */
#define PUBLISHED_MAKE(ticket, slot) ((uint64_t)(ticket) << 2 | (uint64_t)(slot))
#define PUBLISHED_TICKET(word) ((word) >> 2)
#define PUBLISHED_SLOT(word) ((word) & 3u)

struct page_frame {
	_Atomic uint32_t owner; /* index of the file + 1, 0 = free */
	uint32_t unused;
	uint64_t page; /* its number in the file */
	_Atomic uint64_t ticket;
};

/* A file as the program sees it. */
struct page_meta {
	uint64_t size;
	/* The lowest size since `done`.  Bytes of the file itself from there on do not count: a page without
	 * a frame has zeros there. */
	uint64_t lowest;
	uint64_t cut;        /* ticket of the last cut, 0 = none yet */
	uint64_t cut_lowest; /* the lowest size since that cut */
	int64_t mtime_sec;
	uint32_t mtime_nsec;
	uint32_t changed; /* since the cut */
};

struct page_file {
	_Atomic uint64_t published; /* PUBLISHED_MAKE; 0 = no file yet */
	_Atomic uint64_t done;      /* a ticket */
	struct page_meta meta[PAGES_META_SLOTS];
};

struct pages_layout {
	uint32_t files, frames;
	uint64_t table_at, frames_at, bytes;
};

_Static_assert(sizeof(struct page_frame) == 24, "frame entry");
_Static_assert(sizeof(struct page_file) <= PAGES_FILE_BYTES, "file entry");

static inline uint64_t pages_round_up(uint64_t bytes)
{
	return (bytes + PAGES_BYTES - 1) / PAGES_BYTES * PAGES_BYTES;
}

/* The layout of an overlay of at most `bytes` bytes.  False when fewer than 8 frames would fit, or too many
 * files are asked for. */
bool pages_geometry(uint64_t bytes, uint32_t files, struct pages_layout *out);

/*
 * True if a frame with this page and ticket is part of the file as `published` and its metadata show it,
 * unless a frame of the same page with a later ticket is, too.  Of the frames up to the cut, those behind
 * cut_lowest were truncated away since.
 */
static inline bool page_counts(const struct page_meta *m, uint64_t published, uint64_t page, uint64_t ticket)
{
	uint64_t at = page * PAGES_BYTES;

	return ticket <= PUBLISHED_TICKET(published) && at < m->size &&
	       (ticket > m->cut || at < m->cut_lowest);
}

#endif
