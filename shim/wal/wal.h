// SPDX-License-Identifier: Apache-2.0
/*
 * wal: writes a write-ahead log, epoch after epoch (format/wal_format.h).
 *
 * One thread at a time.  An epoch is put together record by record and is durable when wal_commit returns 0.
 * Before that nothing of it counts, whatever the power does.  Once all epochs are in their files, durably,
 * wal_empty makes room.
 *
 * A write or a sync of the log that fails is an error of that epoch.  The next one is written to the same
 * place. Until then the epoch counts or does not: the device decides.
 *
 * All functions: 0 or -errno.
 */
#ifndef FASTWRITE_WAL_WAL_H
#define FASTWRITE_WAL_WAL_H

#include "format/arena_format.h"
#include "format/wal_format.h"

#include <stdbool.h>
#include <sys/uio.h>

_Static_assert((int)ARENA_PATH_MAX <= (int)WAL_PATH_MAX, "every path of an arena fits");

struct wal {
	int fd;
	struct wal_header header;
	uint64_t epoch; /* of the last one that was begun */
	uint64_t end;   /* of the durable epochs, in the file */
	uint64_t at;    /* where the next batch goes */
	bool recovery;  /* its epochs are those of a recovery */
	bool voided;    /* on the device no epoch counts, nor what the last one said of names */
	uint32_t part;
	uint32_t list;            /* number of the newest list of names, 0: none */
	struct wal_absent absent; /* of this epoch */
	struct wal_absent device; /* of the header on the device */
	bool unsure;              /* which header that is */
	int error;                /* -errno of this epoch */
	int64_t put_ns;           /* when its last batch was written, CLOCK_REALTIME */
	int64_t written_ns;       /* the same of the last epoch that is durable */
	struct wal_replay late;   /* what wal_late said last */
	/* The batch that is being put together. */
	uint32_t bytes, images, tails;
	struct iovec iov[1 + WAL_IMAGES_MAX]; /* the head and the images */
	_Alignas(WAL_PAGE_BYTES) uint8_t head[WAL_HEAD_MAX];
	_Alignas(WAL_PAGE_BYTES) uint8_t tail[8][WAL_PAGE_BYTES]; /* images of which not all counts */
};

/*
 * Makes the file of fd, open for reading and writing, an empty log of `bytes` bytes, a multiple of 4096 and
 * at least WAL_BYTES_MIN.  It has space for all of them.  `id` is random.
 */
int wal_make(struct wal *w, int fd, uint64_t bytes, const uint8_t id[16], const struct origin *origin);

/* For a recovery: goes on with a log that a scan has read: its header, the number of its last whole epoch,
 * and where that ends. */
void wal_continue(struct wal *w, int fd, const struct wal_header *header, uint64_t last, uint64_t end);

/* Behind its epochs there is room for half a log, if need be in a longer file. */
int wal_make_room(struct wal *w);

/*
 * Around each change of a file by what the log has: late after the last epoch recovery would take the file
 * for changed by somebody else.  Says so in the log, durably: that it is changed since `since_ns`
 * (CLOCK_REALTIME), and until when.  (After it, too, since a call may take long, and a process may be
 * stopped.)
 */
int wal_late(struct wal *w, int64_t since_ns);

/* A name that comes and goes (format/wal_format.h). */
struct wal_path {
	const char *path;   /* absolute, shorter than ARENA_PATH_MAX */
	uint16_t below, up; /* as in arena_entry */
};
/* Between epochs: writes a new list of at most WAL_NAMES_MAX names, durably.  Until an epoch refers to it,
 * the one before counts. */
int wal_list(struct wal *w, const struct wal_path *paths, uint32_t count);

/* Begins an epoch. */
void wal_begin(struct wal *w);
/* The same; it says of names what the last one said. */
void wal_begin_again(struct wal *w);
/* `e` names it, by the identity and the path.  `flags`: enum wal_name_flags. */
int wal_put_name(struct wal *w, uint32_t file, const struct arena_entry *e, unsigned flags);
int wal_put_size(struct wal *w, uint32_t file, const struct wal_size *size);
/* `data`: 4096 bytes that do not change before wal_commit, of which the first `counting` count (1 to 4096);
 * the others may change, and stand in the log as zeros. */
int wal_put_page(struct wal *w, uint32_t file, uint64_t page, const uint8_t *data, uint32_t counting);
/* At its end no file has these names of the newest list: bit i is name i. */
void wal_put_absent(struct wal *w, uint32_t names);
/* Ends the epoch and waits until it is durable.  -ENOSPC: it does not fit behind the others. */
int wal_commit(struct wal *w);

/*
 * All epochs are in their files, durably: the next one is written over them.  Until that is durable a power
 * loss may bring them back, which changes nothing as long as nobody but the log changes the files.  `sync`:
 * waits for the device.
 */
int wal_empty(struct wal *w, bool sync);
/* The same, and from now on no power loss brings them back, nor says that a name is absent: before anybody
 * else changes the files. */
int wal_void(struct wal *w);

#endif
