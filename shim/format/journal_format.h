// SPDX-License-Identifier: Apache-2.0
/*
 * journal_format: the layout of a journal file.  Words are little-endian; only the same machine reads what it
 * wrote.
 *
 *   header (4096) | half 0 | half 1
 *
 * A half is a sequence of *batches*.  Each is a multiple of journal_header.unit long and is written by one
 * device write. Their `seq` rises by one from batch to batch, also from one half to the other.  The sequence
 * ends where a batch has another seq or a wrong checksum: what follows is older, or was being written when
 * the power failed.
 *
 * A batch holds *entries*, one behind the other, each a multiple of 8 bytes.  All entries of a journal are
 * ordered by their place: seq of the batch, offset in the batch.  Entries name files by a number.  A
 * JOURNAL_NAME entry says which file that is; in each half it stands before the other entries with that
 * number.
 *
 * JOURNAL_VOID makes the entries of a file before a given place void: their bytes are durable in the file,
 * and the file may have changed since in ways that the journal does not see.
 *
 * JOURNAL_LATE says, before that happens, that the program changes a file in a way that the journal does not
 * have, and until when: recovery must not take the file's time for that of another program's change.  The
 * next JOURNAL_DATA entry of the file ends it.
 *
 * Used by: sync/journal (writes it), recovery/journal (reads it, trusts nothing).
 */
#ifndef FASTWRITE_FORMAT_JOURNAL_FORMAT_H
#define FASTWRITE_FORMAT_JOURNAL_FORMAT_H

#include "config/config.h"
#include "format/origin.h"

#include <stddef.h>
#include <stdint.h>

#define JOURNAL_MAGIC 0x4e524a4e57545346ull       /* "FSTWNJRN" */
#define JOURNAL_BATCH_MAGIC 0x4843425457545346ull /* "FSTWTBCH" */
#define JOURNAL_SUFFIX ".journal"

enum {
	JOURNAL_VERSION = 4,
	JOURNAL_VERSION_READ = 3, /* and later: that one has no JOURNAL_LATE */
	JOURNAL_HEADER_BYTES = 4096,
	JOURNAL_BATCH_MAX = 256 << 10, /* bytes of a batch */
	JOURNAL_UNIT_MIN = 512,
	JOURNAL_UNIT_MAX = 4096,
};

struct journal_header {
	uint64_t magic;
	uint32_t version;
	uint32_t checksum; /* CRC32C of this struct with checksum = 0 */
	uint64_t total_bytes;
	uint64_t half_bytes; /* a multiple of `unit` */
	uint32_t unit;       /* a power of two */
	int32_t pid;
	uint64_t pid_start;   /* as in arena_header */
	uint8_t id[16];       /* random: tells batches of this journal from those of an older one */
	struct origin origin; /* of the arena beside it */
	uint32_t uid, gid;
	char rule[CONFIG_NAME_MAX];
	char program[64];
	uint64_t ino; /* of the journal file: tells the journal from a copy; 0: not known */
};

enum { JOURNAL_ASIDE_MOST = 128, JOURNAL_BOOTS_MOST = 8 };

/* In the block of the header, by recoveries. */
struct journal_replay {
	/* When they changed files.  Counts in the same boot only. */
	int64_t boot_ns;            /* of the kernel, as in struct origin; 0: there was no recovery */
	int64_t begun_ns, again_ns; /* CLOCK_REALTIME_COARSE when the first and the last change began */
	uint64_t lost; /* not 0: the arena beside the journal had lost pages (arena_header.live.journal_next)
	                */
	/* Numbers of the files whose entries were put aside, in any boot: others had written these files.  A
	 * count above the room: there were more. */
	uint64_t aside_count;
	uint64_t aside[JOURNAL_ASIDE_MOST];
	/* The newest first: when recoveries in the boots before changed files. */
	struct {
		int64_t begun_ns, again_ns;
	} before[JOURNAL_BOOTS_MOST];
};
enum {
	JOURNAL_REPLAY_AT = 2048,
	JOURNAL_REPLAY_SLACK_NS = 1000000000, /* between `again_ns` and the file's time */
};

struct journal_batch {
	uint64_t magic;
	uint64_t seq;
	uint8_t id[16];    /* of the journal */
	uint32_t checksum; /* CRC32C of the first `bytes` bytes of the batch with checksum = 0 */
	uint32_t bytes; /* this header and the entries; the rest up to the next multiple of `unit` is zeros */
	/* CLOCK_REALTIME when it was completed: what was written to a file before has no later time.  0: by a
	 * recovery */
	int64_t written_ns;
};

enum journal_type { JOURNAL_NAME = 1, JOURNAL_DATA = 2, JOURNAL_VOID = 3, JOURNAL_LATE = 4 };

/* A JOURNAL_LATE entry holds for so long: longer than a flush to a slow device. */
#define JOURNAL_LATE_NS 5000000000ll

struct journal_entry {
	uint32_t type;
	uint32_t length; /* of the content that follows, without padding */
	uint64_t file;
	/* JOURNAL_DATA: in the file; JOURNAL_VOID: of the place, its seq; JOURNAL_LATE: CLOCK_REALTIME */
	uint64_t offset;
	/* JOURNAL_VOID: of the place, its offset in the batch.  JOURNAL_DATA: CLOCK_REALTIME_COARSE when it
	 * was put, so what is written to the file later has no earlier time; 0: not known. */
	uint64_t where;
};

/* Content of JOURNAL_NAME; the path follows, absolute, with its NUL. */
struct journal_name {
	uint64_t ino;
	int64_t btime_sec;
	uint32_t btime_nsec;
	uint32_t path_bytes; /* NUL included */
	uint64_t handle_hash;
	uint32_t generation;
	uint16_t below, up; /* as in arena_entry */
};

_Static_assert(sizeof(struct journal_batch) == 48, "batch header");
_Static_assert(sizeof(struct journal_entry) == 32, "entry header");
_Static_assert(sizeof(struct journal_header) <= JOURNAL_REPLAY_AT, "header");
_Static_assert(JOURNAL_REPLAY_AT + sizeof(struct journal_replay) <= JOURNAL_HEADER_BYTES, "replay");

static inline uint64_t journal_half_at(const struct journal_header *h, unsigned half)
{
	return JOURNAL_HEADER_BYTES + half * h->half_bytes;
}
static inline uint32_t journal_entry_bytes(uint32_t length)
{
	return (uint32_t)sizeof(struct journal_entry) + ((length + 7) & ~7u);
}

/* The name of the journal beside the arena of this name, and the other way round; NAME_MAX + 1 bytes. */
void journal_name_of(const char *arena_name, char *out);
void journal_arena_of(const char *journal_name, char *out);

/* CRC32C of a header or batch with its checksum field taken as 0. */
uint32_t journal_header_checksum(const struct journal_header *h);
uint32_t journal_batch_checksum(const struct journal_batch *b);

#endif
