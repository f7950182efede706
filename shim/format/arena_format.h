// SPDX-License-Identifier: Apache-2.0
/*
 * arena_format: the layout of an arena file, in which a process stages what it has not yet written to its
 * files.
 *
 *   header (4096) | block table (64 B each) | file table (1024 B each) | blocks (block_bytes each)
 *   | overlay of pages (format/pages_format.h), if header.pages_bytes is not 0
 *
 * All parts start at multiples of 4096.  Words are little-endian; only the same machine reads what it wrote.
 *
 * A *file entry* (arena_entry) names one target file.  What is staged for it is in blocks or in the file of
 * the overlay that has the same index, never in both.  A *block* holds extents of one file entry.  Extent 0
 * of a block is in its table entry.  Extents 1 to n-1 are 16-byte entries that grow down from the end of the
 * block, while data grows up from its start.
 *
 * Commit protocol.  One 64-bit store to arena_block.commit publishes a write: it makes the last extent
 * longer, or it counts one extent more, whose entry is complete by then.  A write that is split over two
 * blocks fills the second block first.  There `chain_*` names the first block and the commit value that makes
 * the second block count.  The store to the first block's commit word then publishes both.  So after a kill
 * between any two instructions either the whole write is there or nothing of it.  Published bytes are never
 * overwritten in place.
 *
 * Memory order.  After a kill only the order of the program counts, on every machine: all stores of a thread
 * before the instruction at which it was killed arrive, and none behind it.  The releases below keep the
 * compiler from changing that order.  They order processors, too, for readers while the family lives:
 *
 *	owner      release, after all other words of a new block; acquired by recovery only
 *	commit     release, after the bytes, extent 0 and the chain; acquired by arena_run_commit
 *	chain_*    before owner; chain_block becomes 0 by a release, after the commit that publishes both
 *	done       release, after the bytes are in the kernel
 *	used       release, after the path and the identity of a new entry
 *	flush_active  release, after flush_base, flush_bytes and flush_from
 *	guard      `known` and begun_ns release, after size and time
 *
 * Members of a family need none of them: they read a block under the lock of its file, and the lock orders
 * everything.  All atomics: docs/architecture.md.
 *
 * Checksum.  The commit word also carries a CRC32C of everything that it publishes: one store publishes both.
 * The kernel writes the pages of this file to a disk in any order.  After another boot, or on another
 * machine, the checksum tells a whole block from a torn one.  It starts with the identity of block and file
 * (arena_sum_begin).  For each extent follow its place (arena_sum_extent) and its bytes as they stand here.
 * The length of an extent is in the commit word; it is summed when the next extent begins.  `owner` and
 * `chain_*` are not covered, because they change later.
 *
 * Blocks of a file entry are ordered by `seq`.  Those up to the seq in `done` are in the file already:
 * recovery skips them, whether they were freed or not.
 *
 * Versions.  Each version of an arena, and of a log (format/wal_format.h), begins with the magic number and
 * the version; all else may change.  So an older library knows what it cannot read, and leaves it alone.  A
 * change of anything below is a new version, also of what is "for `fastwrite status` only"
 * (tests/unit/test_formats.c).
 *
 * Used by: staging and flush (the live side), recovery (dead and foreign arenas; trusts nothing of what it
 * reads).
 */
#ifndef FASTWRITE_FORMAT_ARENA_FORMAT_H
#define FASTWRITE_FORMAT_ARENA_FORMAT_H

#include "config/config.h"
#include "format/counters.h"
#include "format/origin.h"
#include "format/pages_format.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_MAGIC 0x41524e4157545346ull /* "FSTWANRA" */

enum {
	ARENA_VERSION = 2,
	ARENA_VERSION_PAGES = 3, /* of an arena with an overlay of pages */
	ARENA_VERSION_NEWEST = ARENA_VERSION_PAGES,
	ARENA_PAGE = 4096,
	ARENA_PATH_MAX = 768,    /* bytes of a target's path, NUL included; a longer one bypasses staging */
	ARENA_EXTENT_BYTES = 16, /* one entry at a block's end */
	ARENA_EXTENTS_MAX = 511, /* extents of one block, the one in the table included */
	ARENA_EXTENT_MAX = (1 << 22) - ARENA_PAGE, /* bytes of one */
	ARENA_ENTRY_BYTES = 1024,
	ARENA_BLOCK_ENTRY_BYTES = 64,
	ARENA_FILE_NAME_MAX = 128,
	ARENA_BLOCKS_MAX = 1 << 20,
	ARENA_KEEPERS_MAX = 256, /* processes of a family */
};
/* The error of whoever reads a version that this library does not know yet. */
#define FORMAT_NEWER (-EPROTONOSUPPORT)
/* The same for people, into out[FORMAT_NEWER_MAX]; returns out. */
enum { FORMAT_NEWER_MAX = 128 };
const char *format_newer_text(uint32_t version, uint32_t newest, char *out);
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
/* Count and length.  Only these may be compared; they grow with each commit of the block. */
#define COMMIT_REACH(c) ((c) & ~(COMMIT_SEALED | 0xffffffffull))

/* arena_entry.done */
#define DONE_SKIP_BITS 24
#define DONE_MAKE(seq, skip) (((uint64_t)(seq) << DONE_SKIP_BITS) | (uint64_t)(skip))
#define DONE_SEQ(d) ((d) >> DONE_SKIP_BITS)
#define DONE_SKIP(d) ((uint32_t)((d) & ((1u << DONE_SKIP_BITS) - 1)))

enum stage_kind {
	STAGE_POSITIONAL = 1, /* the program chose the offsets: replay writes there */
	STAGE_APPEND =
		2, /* O_APPEND with writers = auto or shared: the offsets are where we expect to land */
};

struct arena_extent {
	uint64_t offset; /* in the file */
	uint32_t pos;    /* in the block */
	uint32_t length; /* not of the last extent, whose length is in the commit word */
};

struct arena_block {
	_Atomic uint32_t owner; /* index of the file entry + 1, 0 = free */
	uint32_t kind;          /* enum stage_kind */
	uint64_t seq;
	_Atomic uint64_t commit;
	struct arena_extent first;
	_Atomic uint32_t chain_block; /* index + 1 of the block that publishes this one, 0 = not chained */
	uint32_t opened_pad;
	uint64_t chain_seq;
	uint64_t chain_commit; /* this block counts once the COMMIT_REACH of that one is not below this */
};

/* An append of which nothing, a part or all may be in the file. */
enum append_flush {
	APPEND_NONE,
	APPEND_AT_BASE,   /* under a lease: its bytes are at flush_base or not in the file */
	APPEND_SOMEWHERE, /* the kernel chose the place: flush_base, or behind what others appended */
};

/*
 * Size and time of a target after the library last changed it.  They tell recovery whether anybody else has
 * written since.  While the library is changing the file, `begun_ns` is not 0, and size and time are those
 * from before or after that change.  Functions: format/guard_format.h.
 */
struct arena_guard {
	uint64_t size;
	int64_t mtime_sec;
	uint32_t mtime_nsec;
	_Atomic uint32_t known; /* the fields above have been filled in */
	_Atomic uint64_t
		begun_ns; /* CLOCK_REALTIME_COARSE when the first change began, 0 = none is under way */
	_Atomic uint64_t again_ns; /* and when the last change began */
};

enum entry_flags {
	ENTRY_EXCLUSIVE = 1 << 0, /* writers = exclusive: appends replay at their offset */
	ENTRY_PREALLOCATED = 1 << 1,
	ENTRY_PADDED = 1 << 6,    /* an older version has written zeros behind the end of the file */
	ENTRY_OVERWROTE = 1 << 7, /* a flush wrote below the end of the file */
	ENTRY_SYNCED = 1 << 8,  /* and a sync was answered after that, see guard_synced in staging/guard.h */
	ENTRY_ORDERED = 1 << 9, /* sync = ordered: its pages are in order with those of other entries */
	/* its process was removing the only name: if no file has it, what is staged goes nowhere */
	ENTRY_REMOVED = 1 << 10,
	ENTRY_RELAXED = 1 << 11, /* sync = relaxed: its process may have promised a sync and not made it */
	/* for `fastwrite status` only */
	ENTRY_STRICT = 1 << 2,
	ENTRY_LEASED = 1 << 3,     /* bytes are staged; an open by others waits until they are in the file */
	ENTRY_LEASE_BUSY = 1 << 4, /* somebody else has it open: writes bypass staging */
	ENTRY_BUSY_SEEN = 1 << 5,  /* counted */
};

struct arena_entry {
	_Atomic uint32_t used;
	_Atomic uint32_t flags;
	uint64_t dev, ino;
	int64_t btime_sec; /* birth time, 0/0 when the file system has none */
	uint32_t btime_nsec;
	uint32_t generation;  /* FS_IOC_GETVERSION, 0 = not known */
	uint64_t handle_hash; /* of the file handle (name_to_handle_at), 0 = not known */
	struct arena_guard guard;
	/* path + below is relative to the directory that is `up` levels above the staging directory; 0: to
	 * none */
	uint16_t below;
	uint16_t up;
	_Atomic uint32_t flush_active; /* enum append_flush: an append has begun, see flush_from */
	/* DONE_MAKE: in the file are all blocks up to this seq, and the first `skip` bytes of the next one */
	_Atomic uint64_t done;
	_Atomic uint64_t flush_base; /* file size before that append */
	_Atomic uint64_t prealloc_end;
	_Atomic uint64_t counters[COUNT_MAX];
	/* `done` when that append began.  The append is over when `done` differs: one store to `done` ends
	 * it. */
	_Atomic uint64_t flush_from;
	_Atomic uint64_t flush_bytes; /* that it was to write */
	uint64_t taken;               /* the entry is a file's, filled in or not */
	_Atomic uint64_t journaled;   /* syncs that the journal answered */
	uint64_t unused[2];           /* of an older version */
	char path[ARENA_PATH_MAX];
	/* see format/takeover_format.h */
	_Atomic uint32_t keeper;    /* number of a process in its family, + 1 */
	_Atomic uint32_t takeovers; /* by processes outside of the family */
};

struct arena_header {
	uint64_t magic;
	uint32_t version;
	uint32_t checksum;    /* CRC32C of this struct with checksum = 0, up to `live` */
	uint64_t total_bytes; /* of the file */
	uint32_t block_bytes, block_count, entry_count;
	uint32_t ino_low; /* of the arena file: tells the arena from a copy; 0 with ino_high = 0: not known */
	uint64_t blocks_at, entries_at, data_at;
	struct origin origin;
	uint32_t uid, gid; /* effective ids of the process that made it (process/credentials.h) */
	int32_t pid;
	uint32_t ino_high;
	uint64_t pid_start; /* clock ticks after boot, field 22 of /proc/PID/stat */
	char rule[CONFIG_NAME_MAX];
	char program[56];
	uint64_t pages_bytes; /* at the end of the file; 0 = there is no overlay */
	/* Changes while the arena lives, so the checksum does not cover it. */
	struct {
		_Atomic uint64_t next_seq;
		_Atomic uint64_t counters[COUNT_MAX];       /* of files whose entry is gone */
		_Atomic uint64_t through[32];               /* by enum bypass_reason */
		_Atomic uint64_t journaled;                 /* of files whose entry is gone */
		_Atomic uint8_t keepers[ARENA_KEEPERS_MAX]; /* see format/takeover_format.h */
		/* Batches of the journal beside it from this number on were not written.  Stored before the
		 * batch is: a journal that has one of them lies beside pages that were lost.  0: not known.
		 */
		_Atomic uint64_t journal_next;
		/* For `fastwrite status` only, with sync = ordered. */
		struct {
			_Atomic uint64_t log_bytes; /* 0: no log has been made yet */
			_Atomic uint64_t epochs;    /* number of the last one that was durable; 0: none */
			/* CLOCK_MONOTONIC of the oldest change that a power loss would take, 0: none */
			_Atomic uint64_t oldest_ns;
			_Atomic uint64_t largest; /* of the epochs in the log, bytes */
		} order;
	} live;
};

_Static_assert(sizeof(struct arena_extent) == ARENA_EXTENT_BYTES, "extent entry");
_Static_assert(sizeof(struct arena_block) == ARENA_BLOCK_ENTRY_BYTES, "block entry");
_Static_assert(sizeof(struct arena_entry) <= ARENA_ENTRY_BYTES, "file entry");
_Static_assert(sizeof(struct arena_header) <= ARENA_PAGE, "header");
_Static_assert(COMMIT_COUNT(COMMIT_MAKE(ARENA_EXTENTS_MAX, 0, 0)) == ARENA_EXTENTS_MAX, "extent count");
_Static_assert(COMMIT_LENGTH(COMMIT_MAKE(0, ARENA_EXTENT_MAX, 0)) == ARENA_EXTENT_MAX, "extent length");

/* The layout of an arena of at most mem_bytes, of which up to pages_bytes are for an overlay of pages.  False
 * when fewer than 8 blocks would fit, or an overlay is wanted and does not fit. */
bool arena_geometry(uint64_t mem_bytes, uint32_t block_bytes, uint64_t pages_bytes, struct arena_header *out);

/* The layout of the overlay in an arena, which begins at *at.  False if the arena has none. */
bool arena_pages(const struct arena_header *h, struct pages_layout *out, uint64_t *at);

/* Entry of extent i >= 1 in the data of a block. */
static inline struct arena_extent *arena_extent_entry(uint8_t *data, uint32_t block_bytes, uint32_t i)
{
	return (struct arena_extent *)(void *)(data + block_bytes - (size_t)i * ARENA_EXTENT_BYTES);
}

/* Extent i < COMMIT_COUNT(commit) of a block whose commit word is `commit`. */
static inline struct arena_extent arena_extent_get(const struct arena_block *b, uint8_t *data,
                                                   uint32_t block_bytes, uint64_t commit, uint32_t i)
{
	struct arena_extent e = i == 0 ? b->first : *arena_extent_entry(data, block_bytes, i);

	if (i + 1 == COMMIT_COUNT(commit))
		e.length = COMMIT_LENGTH(commit);
	return e;
}

uint32_t arena_header_checksum(const struct arena_header *h);

/* The checksum of a block before its first extent: the identity of block and file.  So a block entry, a file
 * entry and data from different moments do not fit together. */
uint32_t arena_sum_begin(const struct arena_entry *s, const struct arena_block *b);
/* Adds the place of an extent.  `before`: length of the extent before it, 0 for the first one. */
uint32_t arena_sum_extent(uint32_t sum, uint32_t before, const struct arena_extent *e);
/* The whole checksum for a commit word whose extents lie within the block. */
uint32_t arena_sum_block(const struct arena_entry *s, const struct arena_block *b, uint8_t *data,
                         uint32_t block_bytes, uint64_t commit);

#endif
