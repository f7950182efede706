// SPDX-License-Identifier: Apache-2.0
/*
 * arena: the live side of a staging file: makes, maps and removes it, and hands out its blocks and file
 * entries.  The file's layout is in format/arena_format.h.
 *
 * Used by: stage, flush.
 */
#ifndef FASTWRITE_STAGING_ARENA_H
#define FASTWRITE_STAGING_ARENA_H

#include "base/internal_fd.h"
#include "files/arena_data.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* What arena_create returns on a file system that cannot promise space for pages that are written again. */
#define ARENA_COPIES (-EMEDIUMTYPE)

/* Creates, locks (flock) and maps a new arena file in directory `dir` (made when missing, 0700, owner
 * checked), every byte of it allocated.  0 or -errno; -EPERM when the directory is not ours. */
int arena_create(struct arena *a, const char *dir, const struct rule *rule);

/* The same at the given addresses (memory that is reserved), so that other members can join it. */
struct arena_place {
	void *map, *runs;
};
int arena_create_at(struct arena *a, const char *dir, const struct rule *rule,
                    const struct arena_place *place);

/* Maps an arena of another member of the family where that one has it; this process's descriptor, or -errno.
 */
int arena_join(const struct arena *a);

/* Unmaps and unlinks; removes the directory when that leaves it empty. */
void arena_destroy(struct arena *a);

/* Nothing of it is shared with others any more, and nothing changes for them.  fd: its descriptor, when a
 * copy is to stay in its place; else -1. */
void arena_forget(struct arena *a, int fd);

struct block_run *arena_block_take(struct arena *a);
void arena_block_free(struct arena *a, struct block_run *run);
/* After `count` of them: wakes as many writers that wait for a block. */
void arena_blocks_freed(struct arena *a, uint32_t count);
static inline uint64_t arena_next_seq(struct arena *a)
{
	return atomic_fetch_add_explicit(&a->header->live.next_seq, 1, memory_order_relaxed) + 1;
}

/* Gives back what dead members had taken and not used; `dead` says which. */
void arena_reclaim_blocks(struct arena *a, const struct family_set *dead);
/* Frees every block of a slot, as after a recovery of it. */
void arena_free_slot_blocks(struct arena *a, uint32_t slot);

/* Where the slot's file is; nothing of it is staged.  To recovery the slot is free while that changes. */
void arena_slot_name(const struct arena *a, uint32_t index, const char *path);

/* A free slot's index, or -ENOSPC. */
int arena_slot_take(struct arena *a);
void arena_slot_free(struct arena *a, uint32_t index);
#endif
