// SPDX-License-Identifier: Apache-2.0
/*
 * wal_format: the layout of a write-ahead log.  Words are little-endian; only the same machine reads what it
 * wrote.
 *
 *   header (4096) | list of names | list of names | batch | batch | ...
 *
 * An *epoch* is what the program did up to some moment, since the last epoch.  It says what the files are
 * like then, not how they came there: each page once.  It consists of batches, `part` 0, 1, 2 and so on, the
 * last of which has WAL_END.  After a power loss an epoch counts as a whole or not at all.
 *
 *   batch header | records | zeros up to a multiple of 4096 | images of pages, 4096 bytes each
 *
 * Records name files by a number, which holds for one epoch.  A WAL_NAME record says which file that is, and
 * comes before the others with that number.  Each WAL_PAGE record has an image, in the same order.
 *
 * Names that come and go, such as that of a rollback journal, are made and removed without waiting for the
 * device.  The newer of two lists has them (struct wal_names).  Each epoch says which of them no file has at
 * its end; the header says the same of the last epoch that was emptied.  After a power loss the device may
 * have such a name still, or already: with an empty file, because only an epoch gives a file its bytes.
 *
 * Where the log ends.  The numbers of epochs rise, not always by one.  The first batch that does not continue
 * what stands before it (its checksum is wrong, its epoch is not later, or its part is not the next one) is
 * older, or was being written when the power failed.  wal_header.first tells epochs from those before the log
 * was emptied.
 *
 * Used by: wal (writes it), wal_scan (reads it, trusts nothing).
 */
#ifndef FASTWRITE_FORMAT_WAL_FORMAT_H
#define FASTWRITE_FORMAT_WAL_FORMAT_H

#include "format/origin.h"

#include <stdbool.h>
#include <stdint.h>

#define WAL_MAGIC 0x4c4157575453460aull       /* "\nFSTWWAL" */
#define WAL_NAMES_MAGIC 0x4d414e4157460a0aull /* "\n\nFWANAM" */
#define WAL_BATCH_MAGIC 0x5441424c4157460aull /* "\nFWALBAT" */

enum {
	WAL_VERSION = 3,
	WAL_VERSION_READ = 2,      /* and later: that one has no wal_size_flags */
	WAL_PAGE_BYTES = 4096,     /* of an image, and what everything is a multiple of */
	WAL_HEAD_MAX = 4 * 4096,   /* bytes of a batch header and its records */
	WAL_IMAGES_MAX = 256,      /* of a batch */
	WAL_PATH_MAX = 4096,       /* NUL included */
	WAL_BYTES_MIN = 64 * 4096, /* of a log */
	WAL_NAMES_MAX = 16,        /* in a list */
	WAL_NAMES_AT = 4096,       /* where the two lists begin */
	WAL_NAMES_BYTES = 4 * 4096,
	WAL_BATCHES_AT = WAL_NAMES_AT + 2 * WAL_NAMES_BYTES,
};

/* A write-back, or a file that a program makes, may follow the last epoch before power goes.  A boot, a mount
 * and a write by another program take longer. */
#define WAL_LATE_NS 5000000000ll

/* Which names of a list no file has. */
struct wal_absent {
	uint32_t list;  /* its number, which rises; 0: none */
	uint32_t names; /* bit i: name i */
};

struct wal_header {
	uint64_t magic;
	uint32_t version;
	uint32_t checksum; /* CRC32C of this struct with checksum = 0 */
	uint64_t bytes;    /* of the file */
	uint8_t id[16];    /* random: tells batches of this log from those of another one */
	uint64_t first;    /* earlier epochs do not count */
	struct wal_absent absent;
	int64_t written_ns; /* CLOCK_REALTIME */
	uint64_t ino;       /* of the log's file: a copy is no log */
	struct origin origin;
};

/* WAL_RECOVERY, with WAL_END: the epoch has all that was staged when the process died. */
enum wal_flags { WAL_END = 1, WAL_RECOVERY = 2 };

struct wal_batch {
	uint64_t magic;
	uint8_t id[16]; /* of the log */
	uint64_t epoch; /* 1 or more */
	uint32_t part;
	uint32_t flags;
	uint32_t bytes; /* of this header and the records */
	uint32_t images;
	uint32_t checksum; /* CRC32C of the whole batch with checksum = 0 */
	uint32_t unused;
	int64_t written_ns;       /* CLOCK_REALTIME */
	struct wal_absent absent; /* with WAL_END */
};

enum wal_type {
	WAL_NAME = 1,
	WAL_SIZE = 2,
	WAL_PAGE = 3,
};

struct wal_record {
	uint16_t type;
	uint16_t bytes; /* with the content that follows; a multiple of 8 */
	uint32_t file;
};

/* Content of WAL_NAME; the path follows, absolute, with its NUL. */
struct wal_name {
	uint64_t dev, ino;
	int64_t btime_sec;
	uint64_t handle_hash;
	uint32_t btime_nsec;
	uint32_t generation; /* these as in struct identity */
	uint16_t path_bytes; /* NUL included */
	uint16_t flags;      /* enum wal_name_flags */
	uint16_t below, up;  /* as in arena_entry */
};

/* The program removes the file right after this epoch: if the device has no such file, it is gone. */
enum wal_name_flags { WAL_GOES = 1 };

/*
 * Content of WAL_SIZE: make the file as short as `lowest`, if it is longer; write the images; make it `size`
 * long.
 *
 * WAL_IN_FILE: the file got bytes behind its last size before this epoch, durably, and the epoch has no
 * images of them: the size makes them count.  Since the log was emptied there has been an epoch with that
 * last size, and this file was not made shorter.  So no image of an earlier epoch lies there, and the replay
 * of these epochs must not cut the file.
 *
 * WAL_CUTS: the file was longer than `lowest` before the write-back of this epoch.  If power is lost while
 * the file system makes it shorter, the next mount ends that (ext4, by its list of orphans), and gives the
 * file the time of the mount.
 */
struct wal_size {
	uint64_t size, lowest;
	int64_t mtime_sec;
	uint32_t mtime_nsec;
	uint32_t flags; /* enum wal_size_flags */
};
enum wal_size_flags { WAL_IN_FILE = 1, WAL_CUTS = 2 };

/*
 * At WAL_REPLAY_AT: that the epochs are being replayed, or written to their files late (wal/wal.h).  A
 * recovery that is killed, or that a power loss ends, leaves files with times of its own, as does such a
 * write; the next one must not take them for changes of somebody else.
 */
struct wal_replay {
	int64_t boot_ns;            /* the boot of the last one, as in struct origin; 0 = none has begun */
	int64_t begun_ns, until_ns; /* CLOCK_REALTIME when the first one began, and before which the last one
	                               changes files */
};
enum { WAL_REPLAY_AT = 2048 };
#define WAL_REPLAY_AHEAD_NS 2000000000ll
#define WAL_TICK_NS 20000000 /* of the coarse clock, at least: a file's time may be so much earlier */

/* Content of WAL_PAGE: of the image count the bytes up to the end of the file. */
struct wal_page {
	uint64_t page; /* its number in the file */
};

/* List number n stands at WAL_NAMES_AT + n % 2 * WAL_NAMES_BYTES. */
struct wal_names {
	uint64_t magic;
	uint8_t id[16]; /* of the log */
	uint32_t number;
	uint32_t count;
	uint32_t bytes;    /* of this struct and the names */
	uint32_t checksum; /* CRC32C of these bytes with checksum = 0 */
};

/* The path follows, absolute, with its NUL, and zeros up to a multiple of 8. */
struct wal_listed {
	uint16_t below, up;  /* as in arena_entry */
	uint32_t path_bytes; /* NUL included */
};

_Static_assert(sizeof(struct wal_header) <= 512, "a sector: a header is never torn");
_Static_assert(sizeof(struct wal_batch) == 72, "batch header");
_Static_assert(sizeof(struct wal_record) == 8, "record");
_Static_assert(sizeof(struct wal_batch) + sizeof(struct wal_record) + sizeof(struct wal_name) +
                               WAL_PATH_MAX <=
                       WAL_HEAD_MAX,
               "the longest record fits into a batch");

/* CRC32C of a list with its checksum field taken as 0; h->bytes is at most WAL_NAMES_BYTES. */
uint32_t wal_names_checksum(const struct wal_names *h);
/* CRC32C of a header with its checksum field taken as 0. */
uint32_t wal_header_checksum(const struct wal_header *h);
/* Of a batch: `head` are its first `head_bytes` bytes; crc32c over the images continues it. */
uint32_t wal_head_checksum(const struct wal_batch *head, uint32_t head_bytes);

/* Records and names take up a multiple of 8 bytes. */
static inline uint32_t wal_padded(uint32_t bytes) { return (bytes + 7) / 8 * 8; }

static inline uint64_t wal_names_at(uint32_t number)
{
	return WAL_NAMES_AT + number % 2 * (uint64_t)WAL_NAMES_BYTES;
}

/* Bytes of the batch in the log in front of its images. */
static inline uint32_t wal_head_bytes(const struct wal_batch *b)
{
	return (b->bytes + WAL_PAGE_BYTES - 1) / WAL_PAGE_BYTES * WAL_PAGE_BYTES;
}

#endif
