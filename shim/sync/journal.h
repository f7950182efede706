// SPDX-License-Identifier: Apache-2.0
/*
 * journal: a preallocated file in which one device write makes a sync durable.
 *
 * One file per arena, beside it, filled with real zeros in advance.  An overwrite then changes no metadata,
 * so a write needs no work of the file system.  Threads and processes of a family put entries
 * (format/journal_format.h) into the current batch.  The first that waits writes the batch for all, while the
 * next batch fills.  Batches become durable in the order of their numbers.
 *
 * The file has two halves.  When one is full the other is used, after each file with live entries in it has
 * been synced by itself (sync/journal_file.h).  Until then entries are refused, and a sync costs as much as
 * without a journal.
 *
 * All state lies in memory that the family shares.  If a process is killed while it holds the lock, the
 * cursor is as before or after its change, never between.  The next writer repeats a batch that the dead
 * process was writing.
 *
 * A separate thread fills a new file with zeros and frees a half, because both take long.  It ends when it
 * has nothing to do.
 *
 * Called by: journal_file, sync, attach, fd.  Lock: LOCK_JOURNAL, inside the file lock.
 */
#ifndef FASTWRITE_SYNC_JOURNAL_H
#define FASTWRITE_SYNC_JOURNAL_H

#include "files/arena_data.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* File lock held.  True if entries can be put.  Otherwise makes the journal if that was not tried yet, but
 * only in a thread of the program, because it opens a descriptor. */
bool journal_ready(struct arena *a);

/*
 * Reserves `bytes` for entries in the current batch.  `bulk`: file contents, which leave some room for other
 * entries.  0: put them at *out; the lock is held until journal_commit.  -EAGAIN: wait for batch *ticket and
 * try again.  -ENOSPC: the other half is still needed.  -EIO: the journal cannot be written.
 */
int journal_reserve(struct arena *a, uint32_t bytes, bool bulk, uint8_t **out, uint64_t *ticket);
/* With the lock of journal_reserve: the current half, named by its first batch; the number that
 * journal_commit will return; a number for a new file. */
uint64_t journal_half_seq(const struct arena *a);
uint64_t journal_next(const struct arena *a);
uint64_t journal_new_file(struct arena *a);
/* `bytes` of entries are at *out.  Returns the number of the batch. */
uint64_t journal_commit(struct arena *a, uint32_t bytes);

/* All entries put from now on lie behind this place. */
struct journal_place journal_here(struct arena *a);

/* Enclose a wait without the lock of a file of this journal: the journal is not destroyed meanwhile.  Signals
 * blocked. */
void journal_hold(const struct arena *a);
void journal_unhold(const struct arena *a);

/* Waits until batch `ticket` is durable.  0, or -EIO if it may not be. */
int journal_wait(struct arena *a, uint64_t ticket);
/* The same, but the thread that writes may be slow, or stopped: waits for it 0.3 s at most. */
int journal_wait_shortly(struct arena *a, uint64_t ticket);
/* True if some thread waits now. */
static inline bool journal_is_awaited(const struct arena *a) { return atomic_load(&a->journal.waiters) > 0; }

/* No entry before batch `seq` is needed any more. */
void journal_free_before(struct arena *a, uint64_t seq);
/* First batch of the current half.  Entries before it occupy the other half. */
uint64_t journal_kept_from(struct arena *a);

/* Asks the thread to run journal_file_checkpoint, which frees the other half. */
void journal_free_soon(struct arena *a);
/* Ends the thread; returns when it has left the kernel. */
void journal_stop(void);
/* In the child of a fork. */
void journal_after_fork(void);
/* Family lock held: these processes are dead, and their numbers are about to be reused. */
void journal_bury(struct arena *a, const struct family_set *dead);

/* The arena is about to be removed, and no other process has it.  Removes the journal's file unless it must
 * be kept. */
void journal_destroy(struct arena *a);
/* In a process that has left the family. */
void journal_forget(void);
/* The program wants the number of an internal descriptor: moves it.  False: it is not the journal's, or
 * cannot be moved. */
bool journal_move_fd(int fd);

#endif
