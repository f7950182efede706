// SPDX-License-Identifier: Apache-2.0
/*
 * arena: the live side of a staging file: makes, maps and removes it, and hands out its blocks and file entries.  The
 * file's layout is in format/arena_format.h.
 *
 * Used by: stage, flush.
 */
#ifndef FASTWRITE_ARENA_H
#define FASTWRITE_ARENA_H

#include "base/internal_fd.h"
#include "base/lock.h"
#include "config/config.h"
#include "files/family.h"
#include "format/arena_format.h"
#include "sync/journal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

/* What arena_create returns on a file system that cannot promise space for pages that are written again. */
#define ARENA_COPIES (-EMEDIUMTYPE)

/* What only the living process knows about a block.  One pointer to it is all that the fast path follows. */
struct block_run {
	struct arena_block *meta;
	uint8_t *base; /* first byte of the last extent */
	uint32_t room; /* bytes that the last extent may have */
	uint32_t index;
	struct ofd *stream;     /* whose position the end of the last extent is, or NULL */
	struct block_run *next; /* of the same file, by seq; or free list */
	uint64_t opened_ns;
	uint32_t split_bytes;   /* bytes of a program write that ends here but began in the block before */
	_Atomic uint32_t taker; /* member + 1 that took it and has not given it to a file yet, 0 = none */
	bool flushed;           /* its bytes are in the file; only the freeing is left */
	bool lost;              /* a forked child may still copy into it: never used again */
};

struct arena {
	struct arena_header *header; /* the mapping */
	struct arena_block *blocks;
	uint8_t *slots;
	uint8_t *data;
	struct block_run *runs;
	size_t runs_bytes;
	uint64_t total_bytes;
	uint32_t block_bytes, block_count, slot_count;
	int fd;       /* of the process that made it; others have their own number, see attach/attach.c */
	uint64_t ino; /* of its file, with dev */
	uint32_t uid, gid;         /* that it was made with */
	struct family_set members; /* that have it mapped */
	bool placed;               /* in the family's reserved places: can be joined */
	bool gated;                /* bytes of its file can be locked, see format/takeover_format.h */
	_Atomic bool ready;
	uint64_t dev; /* of the file system that the arena is on */
	const struct rule *rule;
	char dir[PATH_MAX]; /* staging directory */
	char name[ARENA_FILE_NAME_MAX];
	struct lock lock;
	struct block_run *free_blocks;
	_Atomic uint32_t free_count;
	_Atomic uint32_t lost;         /* blocks that are never used again */
	_Atomic uint32_t files;        /* files that hold blocks */
	_Atomic uint32_t freed_events; /* futex: raised when a block becomes free */
	_Atomic uint32_t waiters;
	_Atomic uint32_t slots_used;
	struct journal journal;
	_Atomic bool retired;
};

/* Creates, locks (flock) and maps a new arena file in directory `dir` (made when missing, 0700, owner
 * checked), every byte of it allocated.  0 or -errno; -EPERM when the directory is not ours. */
int arena_create(struct arena *a, const char *dir, const struct rule *rule);

/* The same at the given addresses (memory that is reserved), so that other members can join it. */
struct arena_place {
	void *map, *runs;
};
int arena_create_at(struct arena *a, const char *dir, const struct rule *rule,
                    const struct arena_place *place);

/* Maps an arena of another member of the family where that one has it; this process's descriptor, or -errno. */
int arena_join(const struct arena *a);

/* Unmaps and unlinks; removes the directory when that leaves it empty. */
void arena_destroy(struct arena *a);

/* Nothing of it is shared with others any more, and nothing changes for them.  fd: its descriptor, when a copy is to stay
 * in its place; else -1. */
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
static inline struct arena_slot *arena_slot_at(const struct arena *a, uint32_t index)
{
	return (struct arena_slot *)(void *)(a->slots + (size_t)index * ARENA_SLOT_BYTES);
}
static inline uint8_t *arena_block_data(const struct arena *a, uint32_t index)
{
	return a->data + (size_t)index * a->block_bytes;
}
static inline uint64_t arena_run_commit(const struct block_run *run)
{
	return atomic_load_explicit(&run->meta->commit, memory_order_acquire);
}

#endif
