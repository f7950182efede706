// SPDX-License-Identifier: Apache-2.0
/*
 * recover_parse: an arena file from disk -> checked tables in memory.  Reads with pread only: a file that
 * shrinks meanwhile is an error, not SIGBUS.
 */
#ifndef FASTWRITE_RECOVER_PARSE_H
#define FASTWRITE_RECOVER_PARSE_H

#include "format/arena_format.h"

struct foreign_arena {
	int fd;
	uint64_t size; /* of the file */
	struct arena_header header;
	struct arena_block *blocks; /* header.block_count, a copy */
	uint8_t *slots;             /* header.slot_count * ARENA_SLOT_BYTES, a copy */
	uint8_t *data;              /* room for one block's bytes */
	uint32_t in_data;           /* index + 1 of the block that is there */
	bool sum_fits;              /* its checksum says that it is whole */
	bool unchecked;             /* and if not: it is wanted as it stands */
	uint32_t *order;            /* room for block_count indexes */
	uint32_t *first, *next;     /* blocks of each slot, index + 1, 0 = the end */
	void *memory;
	uint64_t memory_bytes;
};

/* Reads and checks header and tables.  0; -ENODATA: an arena whose maker died before the header was complete
 * (nothing can be staged in it); -EBADMSG: not an arena, truncated or damaged; -ESTALE: a copy of one; other
 * -errno. */
int foreign_load(struct foreign_arena *a, int fd);
void foreign_unload(struct foreign_arena *a);

static inline struct arena_slot *foreign_slot(const struct foreign_arena *a, uint32_t i)
{
	return (struct arena_slot *)(void *)(a->slots + (uint64_t)i * ARENA_SLOT_BYTES);
}

/* Indexes into a->order of the blocks of slot i that still have to be written, by seq; how many, or -EBADMSG
 * when a block's entry makes no sense. */
int foreign_blocks(struct foreign_arena *a, uint32_t slot);

/* Reads block `index` into a->data and checks all its extents and its checksum.  0; -EBADMSG: it makes no sense; -EILSEQ:
 * it is not whole, or not of the file that its slot names; other -errno. */
int foreign_read_block(struct foreign_arena *a, uint32_t index);

static inline struct arena_extent foreign_extent(const struct foreign_arena *a, uint32_t index, uint32_t i)
{
	return arena_extent_get(&a->blocks[index], a->data, a->header.block_bytes, a->blocks[index].commit,
	                        i);
}

/* Writes a word of the copy in a->slots back to the file, so that a recovery that ends early goes on where it was.  One at
 * a time, since the order of what stands there then counts. */
int foreign_store(struct foreign_arena *a, const void *word, size_t size);

#endif
