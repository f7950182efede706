// SPDX-License-Identifier: Apache-2.0
/*
 * arena_data: an arena and its journal, as the processes of a family share them in memory.  The code that
 * works on them is in staging/arena.h and sync/journal.h.
 */
#ifndef FASTWRITE_FILES_ARENA_DATA_H
#define FASTWRITE_FILES_ARENA_DATA_H

#include "base/lock.h"
#include "config/config.h"
#include "files/family.h"
#include "format/arena_format.h"
#include "format/journal_format.h"
#include "pages/pages.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ofd;

enum journal_state {
	JOURNAL_NONE,
	JOURNAL_OPENED,    /* the file exists; a thread is to fill it */
	JOURNAL_PREPARING, /* a thread fills it */
	JOURNAL_READY,
	JOURNAL_OFF, /* impossible, or a write failed: every sync goes to the file */
};

struct journal_cursor {
	uint64_t seq;      /* number of the batch being filled */
	uint32_t used;     /* its bytes, header included; 0 = empty */
	uint32_t half;     /* half of the file that it goes to */
	uint64_t head;     /* its offset in that half */
	uint64_t half_seq; /* number of the first batch in that half */
	uint64_t old_seq;  /* the same for the other half; 0 = no entry there is needed */
	/* The batch being written, always seq - 1; bytes 0 = none. */
	uint64_t writing_seq;
	uint64_t writing_at; /* its offset in the file */
	uint32_t writing_bytes;
};

struct journal {
	struct lock lock;
	_Atomic uint32_t state; /* enum journal_state */
	_Atomic uint32_t asked; /* syncs that could have used a journal */
	uint64_t dev, ino;      /* identity of the journal's file */
	uint8_t id[16];
	uint64_t half_bytes;
	uint32_t unit;
	bool by_fdatasync; /* write + fdatasync is cheaper here than RWF_DSYNC */
	/* under the lock: */
	struct journal_cursor cursors[2];
	_Atomic uint32_t which; /* index of the valid cursor */
	uint64_t next_file;
	_Atomic uint32_t files;   /* files with entries that count */
	_Atomic uint64_t durable; /* all batches up to this one are durable */
	_Atomic uint32_t leader;  /* id of the writing thread, 0 = none */
	uint32_t leader_member;
	_Atomic uint32_t waiters;       /* sleeping threads */
	_Atomic uint32_t events[2];     /* futex: a batch with an even or odd number is done */
	_Atomic bool keep;              /* recovery may need its entries: never remove the file */
	_Atomic bool abandon_due;       /* a write failed: remove the file once no entry counts */
	_Atomic bool checkpoint_due;    /* free the other half */
	_Atomic uint64_t checkpoint_ns; /* time of the last such request */
};

/* A position in the journal, see format/journal_format.h. */
struct journal_place {
	uint64_t seq;
	uint32_t at;
};

/* What only living processes know about a block.  The fast path follows no other pointer. */
struct block_run {
	struct arena_block *meta;
	uint8_t *base; /* first byte of the last extent */
	uint32_t room; /* most bytes that the last extent may have */
	uint32_t index;
	struct ofd *stream;     /* its position is the end of the last extent; or NULL */
	struct block_run *next; /* next block of the same file, by seq; or free list */
	uint64_t opened_ns;
	uint32_t split_bytes;   /* bytes of a program write that ends here but began in the previous block */
	_Atomic uint32_t taker; /* process + 1 that took it and has not given it to a file yet, 0 = none */
	bool flushed;           /* its bytes are in the file; it only has to be freed */
	bool lost;              /* a forked child may still copy into it: never used again */
};

struct arena {
	struct arena_header *header; /* the mapping */
	struct arena_block *blocks;
	uint8_t *entries;
	uint8_t *data;
	struct block_run *runs; /* of each block; behind them the memory of the overlay of pages */
	size_t runs_bytes;
	struct pages pages; /* frame_count = 0: the arena has no overlay */
	uint64_t total_bytes;
	uint32_t block_bytes, block_count, entry_count;
	int fd;            /* in the process that made it; others have their own descriptor, see arenas_fd */
	uint64_t ino;      /* of its file */
	uint32_t uid, gid; /* ids that made it */
	struct family_set members; /* processes that have it mapped */
	bool placed;               /* in the family's reserved places: other processes can map it */
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
	_Atomic uint32_t entries_used;
	struct journal journal;
	_Atomic bool retired;
};

static inline struct arena_entry *arena_entry_at(const struct arena *a, uint32_t index)
{
	return (struct arena_entry *)(void *)(a->entries + (size_t)index * ARENA_ENTRY_BYTES);
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
