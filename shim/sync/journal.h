// SPDX-License-Identifier: Apache-2.0
/*
 * journal: the preallocated log that makes a sync durable with one device write.
 *
 * One file per arena, beside it, really written with zeros beforehand: overwriting it changes no metadata, so that a
 * write needs nothing of the file system.  Threads and processes of a family put entries (format/journal_format.h) into the
 * batch that is being filled; whoever waits for it first writes it for all, while the next one fills.  Batches become
 * durable in the order of their numbers.
 *
 * The file has two halves.  When one is full the other is used, after every file with live entries in it has been made
 * durable by itself (sync/journal_file.h).  Until then entries are refused, and a sync costs what it costs without a journal.
 *
 * Everything here is in memory that the family shares.  A member that is killed with the lock leaves the cursor as it
 * was before or after its change, never between; a batch that it was writing is written again by the next one.
 *
 * Filling a new file with zeros and freeing a half take long: a thread of their own does that, which ends when nothing
 * is left to do.
 *
 * Called by: journal_file, sync, attach, fd.  Lock: LOCK_JOURNAL, inside the file lock.
 */
#ifndef FASTWRITE_JOURNAL_H
#define FASTWRITE_JOURNAL_H

#include "base/lock.h"
#include "format/journal_format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct arena;
struct family_set;

enum journal_state {
	JOURNAL_NONE,
	JOURNAL_OPENED,    /* the file exists; the engine is to fill it */
	JOURNAL_PREPARING, /* it does */
	JOURNAL_READY,
	JOURNAL_OFF, /* cannot be made, or could not be written: every sync goes to the file */
};

struct journal_cursor {
	uint64_t seq;      /* of the batch that is being filled */
	uint32_t used;     /* bytes in it, its header included; 0 = nothing yet */
	uint32_t half;     /* it goes there */
	uint64_t head;     /* at this offset in the half */
	uint64_t half_seq; /* of the first batch in that half */
	uint64_t old_seq;  /* of the first batch in the other half; 0 = nothing in it is needed any more */
	/* the batch that is being written; bytes 0 = none.  `seq - 1`, unless none was ever */
	uint64_t writing_seq;
	uint64_t writing_at; /* in the file */
	uint32_t writing_bytes;
};

struct journal {
	struct lock lock;
	_Atomic uint32_t state; /* enum journal_state */
	_Atomic uint32_t asked; /* syncs that could have used one */
	uint64_t dev, ino;      /* of its file */
	uint8_t id[16];
	uint64_t half_bytes;
	uint32_t unit;
	bool by_fdatasync; /* cheaper here than a write with RWF_DSYNC */
	/* lock: */
	struct journal_cursor cursors[2];
	_Atomic uint32_t which; /* of them */
	uint64_t next_file;
	_Atomic uint32_t files;   /* with entries that count */
	_Atomic uint64_t durable; /* all batches up to this one are */
	_Atomic uint32_t leader;  /* thread id that writes, 0 = none */
	uint32_t leader_member;
	_Atomic uint32_t waiters;       /* asleep */
	_Atomic uint32_t events[2];     /* futex: a batch with an even, odd number is done */
	_Atomic bool keep;              /* entries of it may be needed for ever: never to be removed */
	_Atomic bool abandon_due;       /* it could not be written: to be removed once nothing in it counts */
	_Atomic bool checkpoint_due;    /* the other half is to be freed */
	_Atomic uint64_t checkpoint_ns; /* when that was last said */
};

/* A place in the journal, see format/journal_format.h. */
struct journal_place {
	uint64_t seq;
	uint32_t at;
};

/* True when entries can be put.  Otherwise, if it has not been tried yet, it is made, by the engine: in a thread of the
 * program only (descriptors).  File lock held. */
bool journal_ready(struct arena *a);

/*
 * Room for `bytes` of entries in the batch that is being filled.  `bulk`: bytes of files, which leave some room for
 * other entries.  0: *out is where they go, and the lock is held until journal_commit; -EAGAIN: wait for batch *ticket
 * and try again; -ENOSPC: the other half is still needed.  -EIO: the journal cannot be written.
 */
int journal_reserve(struct arena *a, uint32_t bytes, bool bulk, uint8_t **out, uint64_t *ticket);
/* With the lock of journal_reserve: its half, by the number of its first batch; a number for one more file. */
uint64_t journal_half_seq(const struct arena *a);
uint64_t journal_next(const struct arena *a); /* what journal_commit will return */
uint64_t journal_new_file(struct arena *a);
/* `bytes` entries stand at *out.  The number of the batch. */
uint64_t journal_commit(struct arena *a, uint32_t bytes);

/* Everything that is put from now on stands behind this place. */
struct journal_place journal_here(struct arena *a);

/* While somebody waits without a lock of a file that the journal is for: it stays.  Signals blocked. */
void journal_hold(const struct arena *a);
void journal_unhold(const struct arena *a);

/* Until batch `ticket` is durable: 0, or -EIO when it may not be. */
int journal_wait(struct arena *a, uint64_t ticket);

/* Nothing before batch `seq` is needed any more. */
void journal_free_before(struct arena *a, uint64_t seq);
/* The seq from which on entries are in the half in use; those before keep the other half. */
uint64_t journal_kept_from(struct arena *a);

/* The other half of a's journal is to be freed: journal_file_checkpoint runs soon, in a thread of its own. */
void journal_free_soon(struct arena *a);
/* Ends that thread, as workers_stop does; returns when the kernel knows it no more. */
void journal_stop(void);
/* In the child of a fork. */
void journal_after_fork(void);
/* Family lock held: these members are dead, and their numbers are about to be given to others. */
void journal_bury(struct arena *a, const struct family_set *dead);

/* The arena goes, and nobody else has it.  Removes the file, unless it must be kept. */
void journal_destroy(struct arena *a);
/* In a process that does not belong to the family. */
void journal_forget(void);
/* The program wants the number that a descriptor of ours has. */
bool journal_move_fd(int fd);

#endif
