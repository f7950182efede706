// SPDX-License-Identifier: Apache-2.0
/*
 * parse: an arena file from disk -> checked tables in memory.  Reads with pread only: a file that shrinks
 * meanwhile is an error, not SIGBUS.
 */
#ifndef FASTWRITE_FOREIGN_PARSE_H
#define FASTWRITE_FOREIGN_PARSE_H

#include "format/arena_format.h"
#include "format/page_scan.h"

struct foreign_arena {
	int fd;
	uint64_t size; /* of the file */
	struct arena_header header;
	struct arena_block *blocks; /* header.block_count, a copy */
	uint8_t *entries;           /* header.entry_count * ARENA_ENTRY_BYTES, a copy */
	uint8_t *data;              /* room for one block's bytes */
	uint32_t in_data;           /* index + 1 of the block in `data` */
	bool sum_fits;              /* the checksum of that block fits */
	bool unchecked;             /* blocks count even if their checksum does not fit */
	uint32_t *order;            /* room for block_count indexes */
	uint32_t *first, *next;     /* blocks of each file entry, index + 1, 0 = the end */
	struct page_scan pages;     /* layout.frames = 0: there is no overlay */
	uint64_t pages_at;          /* its place in the file */
	void *memory;
	uint64_t memory_bytes;
};

/* Reads and checks header and tables.  0; -ENODATA: the process that made the arena died before the header
 * was complete, so nothing is staged in it; -EBADMSG: not an arena, truncated or damaged; -ESTALE: a copy of
 * an arena; FORMAT_NEWER, then a->header has its version; other -errno. */
int foreign_load(struct foreign_arena *a, int fd);
void foreign_unload(struct foreign_arena *a);

/* fd: a file, open for reading.  True if it is an arena of a version that this library does not know yet. */
bool foreign_is_newer(int fd);

/* True if header and size are those of an arena that foreign_load may load. */
bool foreign_is_arena(int fd);

static inline struct arena_entry *foreign_entry(const struct foreign_arena *a, uint32_t i)
{
	return (struct arena_entry *)(void *)(a->entries + (uint64_t)i * ARENA_ENTRY_BYTES);
}

/* Puts into a->order, by seq, the indexes of the entry's blocks that are not in its file yet.  How many;
 * -EBADMSG: the table entry of a block makes no sense. */
int foreign_blocks(struct foreign_arena *a, uint32_t entry);

/* Bytes in all extents of the first n blocks in a->order.  0, or as foreign_read_block. */
int foreign_count_bytes(struct foreign_arena *a, int n, uint64_t *bytes);

/* The entry's blocks, at least one in a->order, are replayed at their offsets; else they are appended. */
bool foreign_is_positional(const struct foreign_arena *a, uint32_t entry);

/* Reads block `index` into a->data and checks its extents and its checksum.  0; -EBADMSG: it makes no sense;
 * -EILSEQ: it is torn, or belongs to another file than its file entry names; other -errno. */
int foreign_read_block(struct foreign_arena *a, uint32_t index);

static inline struct arena_extent foreign_extent(const struct foreign_arena *a, uint32_t index, uint32_t i)
{
	return arena_extent_get(&a->blocks[index], a->data, a->header.block_bytes, a->blocks[index].commit,
	                        i);
}

/* What the overlay of pages has for the entry, as page_scan_file. */
int foreign_pages(struct foreign_arena *a, uint32_t entry, struct page_scan_file *out);

/* Reads n bytes of a frame, whose number is as in a->pages.order.  0 or -errno. */
int foreign_read_frame(const struct foreign_arena *a, uint32_t frame, void *to, uint32_t n);

/* Writes a word of the copy in a->entries back to the arena, so that the next recovery goes on where this one
 * stopped. One word at a time: their order in the file counts. */
int foreign_store(struct foreign_arena *a, const void *word, size_t size);

#endif
