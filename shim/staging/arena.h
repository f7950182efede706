// SPDX-License-Identifier: Apache-2.0
/*
 * arena: the live side of a staging file.  Makes, maps and removes it, and hands out its blocks and file
 * entries.  The file's layout is in format/arena_format.h.
 */
#ifndef FASTWRITE_STAGING_ARENA_H
#define FASTWRITE_STAGING_ARENA_H

#include "base/internal_fd.h"
#include "files/arena_data.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* Result of arena_create on a file system that cannot promise space for pages that are written again. */
#define ARENA_COPIES (-EMEDIUMTYPE)

/* Creates, locks (flock) and maps a new arena file in the directory `dir`, with every byte allocated.  Makes
 * the directory if it is missing (mode 0700), and checks its owner.  0 or -errno; -EPERM: the directory is
 * not ours. */
int arena_create(struct arena *a, const char *dir, const struct rule *rule);

/* Bytes of arena.runs. */
size_t arena_runs_bytes(const struct arena_header *geometry);
/* The layout of an arena for the rule, as arena_geometry. */
bool arena_rule_geometry(const struct rule *rule, struct arena_header *out);

/* The same at the given, reserved addresses, so that other processes of the family can map it there. */
struct arena_place {
	void *map, *runs;
};
int arena_create_at(struct arena *a, const char *dir, const struct rule *rule,
                    const struct arena_place *place);

/* Maps an arena of another process of the family, at the same address.  This process's descriptor of it, or
 * -errno. */
int arena_join(const struct arena *a);

/* Unmaps and unlinks the arena.  Removes the directory if it is empty then. */
void arena_destroy(struct arena *a);

/* This process shares the arena with no other any more; for the others nothing changes.  fd: the arena's
 * descriptor, if a private copy is to stay in its place; else -1. */
void arena_forget(struct arena *a, int fd);

struct block_run *arena_block_take(struct arena *a);
void arena_block_free(struct arena *a, struct block_run *run);
/* After `count` blocks were freed: wakes as many writers that wait for a block. */
void arena_blocks_freed(struct arena *a, uint32_t count);
static inline uint64_t arena_next_seq(struct arena *a)
{
	return atomic_fetch_add_explicit(&a->header->live.next_seq, 1, memory_order_relaxed) + 1;
}

/* Frees the blocks that dead processes had taken and not used. */
void arena_reclaim_blocks(struct arena *a, const struct family_set *dead);
/* Frees every block of a file entry, as after its recovery. */
void arena_free_entry_blocks(struct arena *a, uint32_t entry);

/* Writes the file's path into its entry; nothing of the file is staged.  Recovery takes the entry for free
 * meanwhile. */
void arena_entry_name(const struct arena *a, uint32_t index, const char *path);

/* Takes a free file entry: its index, or -ENOSPC. */
int arena_entry_take(struct arena *a);
void arena_entry_free(struct arena *a, uint32_t index);
#endif
