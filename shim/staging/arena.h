// SPDX-License-Identifier: Apache-2.0
/*
 * arena: the memory-mapped staging file, its on-disk format, and who owns which block and slot.
 *
 * Layout (all offsets multiples of 4096, little-endian machine words, same machine reads what it wrote):
 *
 *   header (4096) | block table (64 B each) | slot table (1024 B each) | blocks (block_bytes each)
 *
 * A *slot* names one target file.  A *block* holds extents of one slot's file.  Extent 0 of a block is in
 * its table entry; extents 1..n-1 are 16-byte entries that grow down from the end of the block, while data
 * grows up from its start.
 *
 * Commit protocol.  A write is published by one 64-bit store to arena_block.commit (its layout is below):
 * either it grows the length of the last extent, or it raises the extent count after the new entry is
 * complete.  A write that is split over two blocks fills the second one first, with `chain_*` naming the
 * first block and the commit value that makes the second one count; the store into the first block's commit
 * word publishes both.  So after a kill between any two instructions the whole write is there, or nothing of
 * it.  Published bytes are never overwritten in place.
 *
 * Checksum.  The commit word also carries a CRC32C of everything that it publishes, so that the same store publishes
 * both.  The kernel brings the pages of this file to a disk in any order: after another boot, or on another machine, the
 * checksum tells a block that is whole from a torn one.  It begins with what the block is and whose (arena_sum_begin).
 * For each extent follow its place (arena_sum_extent) and its bytes, as they stand here.  The length of an extent is in
 * the commit word, or summed when the next one begins.  Not covered: `owner` and `chain_*`, which change after that.
 *
 * Blocks of a slot are ordered by `seq`.  Those up to the one in slot.done are in the file already: recovery
 * skips them, whether they were freed or not.
 *
 * Used by: stage, flush (live side), recover and status (dead or foreign side: trusts nothing, see
 * arena_open_foreign).
 */
#ifndef FASTWRITE_ARENA_H
#define FASTWRITE_ARENA_H

#include "base/internal_fd.h"
#include "base/lock.h"
#include "config/config.h"
#include "files/family.h"
#include "format/origin.h"
#include "sync/journal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#define ARENA_MAGIC 0x41524e4157545346ull /* "FSTWANRA" */

enum {
	ARENA_VERSION = 2,
	ARENA_PAGE = 4096,
	ARENA_PATH_MAX = 768,    /* bytes of a target's path, NUL included; longer ones are written through */
	ARENA_EXTENT_BYTES = 16, /* one entry at a block's end */
	ARENA_EXTENTS_MAX = 511, /* extents of one block, the one in the table included */
	ARENA_EXTENT_MAX = (1 << 22) - ARENA_PAGE, /* bytes of one */
	ARENA_SLOT_BYTES = 1024,
	ARENA_BLOCK_ENTRY_BYTES = 64,
	ARENA_FILE_NAME_MAX = 128,
};
/* What arena_create returns on a file system that cannot promise space for pages that are written again. */
#define ARENA_COPIES (-EMEDIUMTYPE)
#define ARENA_DIR ".fastwrite"
#define ARENA_SUFFIX ".arena"

/* arena_block.commit */
#define COMMIT_SUM(c) ((uint32_t)(c))                        /* CRC32C */
#define COMMIT_LENGTH(c) ((uint32_t)((c) >> 32) & 0x3fffffu) /* bytes of the last extent */
#define COMMIT_COUNT(c) ((uint32_t)((c) >> 54) & 0x1ffu)     /* extents, 0 = nothing published */
#define COMMIT_SEALED (1ull << 63)                           /* no more growth */
#define COMMIT_MAKE(count, length, sum) \
	(((uint64_t)(count) << 54) | ((uint64_t)(length) << 32) | (uint32_t)(sum))
/* With n bytes more in the last extent. */
#define COMMIT_GROWN(c, n, sum) ((((c) >> 32) + (n)) << 32 | (uint32_t)(sum))
/* How far: only this may be compared.  Later ones of the same block are larger. */
#define COMMIT_REACH(c) ((c) & ~(COMMIT_SEALED | 0xffffffffull))

/* arena_slot.done */
#define DONE_SKIP_BITS 24
#define DONE_MAKE(seq, skip) (((uint64_t)(seq) << DONE_SKIP_BITS) | (uint64_t)(skip))
#define DONE_SEQ(d) ((d) >> DONE_SKIP_BITS)
#define DONE_SKIP(d) ((uint32_t)((d) & ((1u << DONE_SKIP_BITS) - 1)))

enum stage_kind {
	STAGE_POSITIONAL = 1, /* offsets are the program's: replay writes there */
	STAGE_APPEND = 2, /* O_APPEND with writers = auto or shared: offsets are where we expect to land */
};

struct arena_extent {
	uint64_t offset; /* in the file */
	uint32_t pos;    /* in the block */
	uint32_t length; /* of all but the last extent; the last one's is in the commit word */
};

struct arena_block {
	_Atomic uint32_t owner; /* slot index + 1, 0 = free */
	uint32_t kind;          /* enum stage_kind */
	uint64_t seq;
	_Atomic uint64_t commit;
	struct arena_extent first;
	_Atomic uint32_t chain_block; /* index + 1 of the block that publishes this one, 0 = not chained */
	uint32_t opened_pad;
	uint64_t chain_seq;
	uint64_t chain_commit; /* counts once that block's COMMIT_REACH is not below this */
};

/* An append that may have got anywhere between nothing and all. */
enum append_flush {
	APPEND_NONE,
	APPEND_AT_BASE,   /* leased: its bytes are at flush_base or not in the file */
	APPEND_SOMEWHERE, /* the kernel chose: at flush_base or behind what others appended */
};

/*
 * What a target was like after the library's own last change of it, so that recovery can tell whether anybody else has
 * written since.  While changes of the library's own are under way `begun_ns` is not 0, and size and time are those of
 * before or after them.
 */
struct arena_guard {
	uint64_t size;
	int64_t mtime_sec;
	uint32_t mtime_nsec;
	_Atomic uint32_t known;    /* the fields above have been filled in */
	_Atomic uint64_t begun_ns; /* CLOCK_REALTIME_COARSE when the first one began, 0 = none is under way */
	_Atomic uint64_t again_ns; /* and when the last one began */
};

enum slot_flags {
	SLOT_EXCLUSIVE = 1 << 0, /* writers = exclusive: appends replay at their offset */
	SLOT_PREALLOCATED = 1 << 1,
	SLOT_PADDED = 1 << 6,
	SLOT_OVERWROTE = 1 << 7, /* a flush wrote below the end of the file */
	SLOT_SYNCED = 1 << 8,    /* and a sync was answered after that, see guard_synced */
	/* for `fastwrite status` only */
	SLOT_STRICT = 1 << 2,
	SLOT_LEASED = 1 << 3,     /* bytes are staged; who opens the file waits until they are not */
	SLOT_LEASE_BUSY = 1 << 4, /* somebody else has it open: written through */
	SLOT_BUSY_SEEN = 1 << 5,  /* counted */
};

enum slot_counter {
	COUNT_WRITES,  /* write calls absorbed */
	COUNT_BYTES,   /* bytes absorbed */
	COUNT_FLUSHES, /* flush runs */
	COUNT_FLUSH_BYTES,
	COUNT_DIRECT_BYTES, /* of these by O_DIRECT */
	COUNT_SYNCS_ASKED,
	COUNT_SYNCS_DONE,
	COUNT_SETTLES,
	COUNT_MAX,
	COUNT_JOURNALED =
		COUNT_MAX, /* syncs that the journal answered; stands elsewhere in slot and header */
	COUNT_ALL
};

struct arena_slot {
	_Atomic uint32_t used;
	_Atomic uint32_t flags;
	uint64_t dev, ino;
	int64_t btime_sec; /* birth time, 0/0 when the file system has none */
	uint32_t btime_nsec;
	uint32_t generation;  /* FS_IOC_GETVERSION, 0 = not known */
	uint64_t handle_hash; /* of the file handle (name_to_handle_at), 0 = not known */
	struct arena_guard guard;
	uint16_t
		below; /* path + below is relative to the directory that is `up` above the staging directory; 0 = to none */
	uint16_t up;
	_Atomic uint32_t flush_active; /* enum append_flush: an append has begun, see flush_from */
	_Atomic uint64_t done;       /* DONE_MAKE: blocks up to this seq are in the file, and so are the first
					`skip` bytes of the next one */
	_Atomic uint64_t flush_base; /* file size before that append */
	_Atomic uint64_t prealloc_end;
	_Atomic uint64_t counters[COUNT_MAX];
	_Atomic uint64_t
		flush_from; /* `done` when that append began: with another one it is over, so that the
					 one store to `done` ends it, too */
	_Atomic uint64_t flush_bytes; /* it was to write */
	uint64_t taken;               /* by a file, filled or not */
	_Atomic uint64_t journaled;   /* syncs that the journal answered */
	/* prealloc_mode = zero, with SLOT_PADDED: zeros stand from the end of what is in the file to padded_end at most */
	_Atomic uint64_t padded_end;
	_Atomic uint64_t
		size; /* of the file without them; said before `done` says that the bytes are there */
	char path[ARENA_PATH_MAX];
	/* see staging/takeover.h */
	_Atomic uint32_t keeper;    /* member + 1 */
	_Atomic uint32_t takeovers; /* by processes outside of the family */
};

struct arena_header {
	uint64_t magic;
	uint32_t version;
	uint32_t checksum; /* CRC32C of this struct with checksum = 0, up to `live` */
	uint64_t total_bytes;
	uint32_t block_bytes, block_count, slot_count;
	uint32_t
		ino_low; /* of the arena itself, so that a copy of it is known for one; 0 with ino_high: not known */
	uint64_t blocks_at, slots_at, data_at;
	struct origin origin;
	uint32_t uid,
		gid; /* effective, and so file-system, ids of the process that made it (process/credentials.h) */
	int32_t pid;
	uint32_t ino_high;
	uint64_t pid_start; /* clock ticks after boot, field 22 of /proc/PID/stat */
	char rule[CONFIG_NAME_MAX];
	char program[64];
	/* changes while the arena lives; not in the checksum */
	struct {
		_Atomic uint64_t next_seq;
		_Atomic uint64_t counters[COUNT_MAX]; /* of files whose slot is gone */
		_Atomic uint64_t through[32];         /* by enum bypass_reason */
		_Atomic uint64_t journaled;           /* of files whose slot is gone */
		_Atomic uint8_t
			keepers[FAMILY_MAX]; /* members that have kept something, see staging/takeover.h */
	} live;
};

_Static_assert(sizeof(struct arena_extent) == ARENA_EXTENT_BYTES, "extent entry");
_Static_assert(sizeof(struct arena_block) == ARENA_BLOCK_ENTRY_BYTES, "block entry");
_Static_assert(sizeof(struct arena_slot) <= ARENA_SLOT_BYTES, "slot entry");
_Static_assert(sizeof(struct arena_header) <= ARENA_PAGE, "header");
_Static_assert(COMMIT_COUNT(COMMIT_MAKE(ARENA_EXTENTS_MAX, 0, 0)) == ARENA_EXTENTS_MAX, "extent count");
_Static_assert(COMMIT_LENGTH(COMMIT_MAKE(0, ARENA_EXTENT_MAX, 0)) == ARENA_EXTENT_MAX, "extent length");

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

enum { ARENA_BLOCKS_MAX = 1 << 20 };

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
	bool gated;                /* bytes of its file can be locked, see staging/takeover.h */
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

/* Geometry for a budget: every part within total_bytes.  False when fewer than 8 blocks would fit. */
bool arena_geometry(uint64_t mem_bytes, uint32_t block_bytes, struct arena_header *out);

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

/* True when an arena of this process has that file name.  The pid in the name is no proof: in a container the
 * process that died had the same one. */
bool arena_is_own(const char *name);

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

/* Entry of extent i >= 1 in a block's data. */
static inline struct arena_extent *arena_extent_entry(uint8_t *data, uint32_t block_bytes, uint32_t i)
{
	return (struct arena_extent *)(void *)(data + block_bytes - (size_t)i * ARENA_EXTENT_BYTES);
}

/* Reads extent i of a block whose commit word is `commit`: works for all i < COMMIT_COUNT(commit). */
static inline struct arena_extent arena_extent_get(const struct arena_block *b, uint8_t *data,
                                                   uint32_t block_bytes, uint64_t commit, uint32_t i)
{
	struct arena_extent e = i == 0 ? b->first : *arena_extent_entry(data, block_bytes, i);

	if (i + 1 == COMMIT_COUNT(commit))
		e.length = COMMIT_LENGTH(commit);
	return e;
}

uint32_t arena_header_checksum(const struct arena_header *h);

/* A block's checksum before its first extent: which block of which file it is.  Entries, slots and data that stood in the
 * arena at different times do not fit together. */
uint32_t arena_sum_begin(const struct arena_slot *s, const struct arena_block *b);
/* Continues it with the place of an extent.  `before`: length of the extent before it, 0 for the first one. */
uint32_t arena_sum_extent(uint32_t sum, uint32_t before, const struct arena_extent *e);
/* The whole of it, as it stands in `data`, for a commit word whose extents lie within the block. */
uint32_t arena_sum_block(const struct arena_slot *s, const struct arena_block *b, uint8_t *data,
                         uint32_t block_bytes, uint64_t commit);

/* Start time of a process in clock ticks after boot, 0 when it does not exist or waits to be reaped. */
uint64_t arena_pid_start(pid_t pid);

#endif
