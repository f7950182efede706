// SPDX-License-Identifier: Apache-2.0
/*
 * overlay: what a program has written to one file, in pages: write, read, truncate, and the cut by which it
 * is written back.  The protocol is in format/pages_format.h.
 *
 * The caller holds the lock of the file.  A write or a read may be interrupted by a signal handler of the
 * same thread, which calls any of these functions for the same file with `nested` set; it must have blocked
 * all signals.  The caller blocks signals around everything else (cut, done, truncate, detach, rebuild).
 *
 * A handler may leave an interrupted write for good (longjmp).  The next call finds its frames in the list
 * `pending` and takes them back, so that they never count.  When a process has died with the lock,
 * overlay_rebuild comes before any other call.
 */
#ifndef FASTWRITE_PAGES_OVERLAY_H
#define FASTWRITE_PAGES_OVERLAY_H

#include "pages/pages.h"

#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

/* Reads n bytes of the file itself; zeros behind its end.  0 or -errno. */
typedef int overlay_source(void *ctx, void *to, size_t n, uint64_t offset);

struct overlay {
	struct pages *pages;
	uint32_t file; /* index */
	overlay_source *source;
	void *ctx;
	struct page_index index;
	/* Frames of the write that is being made, by `nested`. */
	_Atomic uint32_t pending[2];
	/* Frames that a nested call has replaced: the interrupted one may still copy from or to them. */
	_Atomic uint32_t aside;
	struct {
		uint64_t size, lowest; /* of the file at the cut, as in struct page_meta */
		uint64_t in_file;      /* from this offset on the file has it already */
		struct timespec mtime;
		_Atomic uint32_t first; /* its frames, by page */
	} cut;
};

/* A piece of a cut. */
struct overlay_piece {
	uint64_t offset;
	const uint8_t *data;
	size_t bytes; /* 1 to PAGES_BYTES */
};

/* Begins with a file as it is.  0; -EOVERFLOW: the file entry is used up. */
int overlay_attach(struct overlay *o, struct pages *pages, uint32_t file, uint64_t size,
                   const struct timespec *mtime, overlay_source *source, void *ctx);

/*
 * Writes n >= 1 bytes at `offset`; offset + n <= INT64_MAX.  0: all of them are published.  Else nothing has
 * changed: -EAGAIN: no frame is free; -EBUSY: too many nested writes; -EOVERFLOW: detach the file and take
 * another entry; or what the source said.
 */
int overlay_write(struct overlay *o, const struct iovec *iov, int count, size_t n, uint64_t offset,
                  const struct timespec *now, bool nested);

/* Reads up to n bytes; how many (0 at and behind the end), or what the source said. */
ssize_t overlay_read(struct overlay *o, void *to, size_t n, uint64_t offset);

/* The file holds all of [offset, offset + n) as the program sees it. */
bool overlay_is_bare(struct overlay *o, uint64_t offset, size_t n);

/* Something that was written, and not only a size. */
bool overlay_has_pages(struct overlay *o);

/* Makes the file shorter, or longer by zeros.  Errors as overlay_write. */
int overlay_truncate(struct overlay *o, uint64_t size, const struct timespec *now, bool nested);

uint64_t overlay_size(const struct overlay *o);
struct timespec overlay_mtime(const struct overlay *o);

/*
 * Takes the cut of everything published.  1; 0: nothing has changed since the last one; -EBUSY: the last cut
 * is not done yet; -EOVERFLOW and -EBUSY as overlay_write.  To write it back: make the file as short as
 * cut.lowest, if it is longer; write the pieces; make it as long as cut.size.
 */
int overlay_cut(struct overlay *o, bool nested);
/* The next piece that the file does not have; *cursor is 0 at first.  Needs no lock between overlay_cut and
 * overlay_done. */
bool overlay_cut_piece(const struct overlay *o, uint32_t *cursor, struct overlay_piece *piece);
bool overlay_is_cut(const struct overlay *o);
/* Something has changed since the last cut, or since the attach. */
bool overlay_is_changed(const struct overlay *o);
/* The cut is in the file.  Its frames that still stand may stay, for reads.  Errors as overlay_write. */
int overlay_done(struct overlay *o, bool nested);

/* Ends, and frees all frames.  Everything is in the file, or the file is gone; not nested. */
void overlay_detach(struct overlay *o);

/* The same after recovery has written everything to the file, whatever a dead process left of the index. */
void overlay_discard(struct overlay *o);

/* Builds the index again from the frame table: a process has died while it held the lock.  0; -EAGAIN: no
 * node is free; then only recovery can read what is there. */
int overlay_rebuild(struct overlay *o);

#endif
