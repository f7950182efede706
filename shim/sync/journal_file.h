// SPDX-License-Identifier: Apache-2.0
/*
 * journal_file: what `sync = journal` means for one file.
 *
 * A sync puts the staged bytes that are new since the last one into the journal (sync/journal.h).  They stay
 * staged, and reach the file later, like all staged bytes.  This suffices only while the device lacks no
 * other bytes of the file.  So file->journal.changed counts what reaches the kernel without being in the
 * journal: bypassing writes, flushes of bytes not synced yet, and changes while the file was not attached. If
 * such a change is not covered by a sync of the file itself, the next sync goes to the file.
 *
 * Entries that count (file->journal.arena) are replayed after a crash.  The replay must not overwrite later
 * changes that went other ways.  So after a sync of the file itself, its entries are voided in the journal
 * before the sync returns.  Before a truncation, a rename or an access by another program, the file is synced
 * and its entries are voided (journal_retire).  As long as entries count, a lease keeps other programs out,
 * or the rule promises `writers = exclusive`.
 *
 * All functions: file lock held, signals blocked, unless said otherwise.
 */
#ifndef FASTWRITE_SYNC_JOURNAL_FILE_H
#define FASTWRITE_SYNC_JOURNAL_FILE_H

#include "flush/journaled.h"

/* The file got another name, or lost one: later entries record the name anew.  `known`: the file entry has
 * it. */
void journal_file_named(struct file *f, bool known);
/* The file becomes attached: assumes unsynced changes. */
void journal_file_begin(struct file *f);

/* The program asks for a sync.  True: wait for *ticket (journal_wait), and nothing else.  False: sync the
 * file itself. */
bool journal_file_sync(struct file *f, uint64_t *ticket);

/* For file_care.announce: says in the journal that the file is about to change (flush/journaled.h).  Keeps
 * the lock. */
void journal_file_announce(struct file *f);

/* begin and done enclose a sync of the file itself.  Everything staged before is in the kernel. */
struct journal_sync {
	struct arena *arena; /* with entries that count, NULL: none */
	uint64_t changed, epoch, puts;
	struct journal_place place;
};
void journal_file_sync_begin(struct file *f, struct journal_sync *s);
/* After a successful sync.  May drop and retake the lock unless `keep_lock`.  0, or -EIO if old entries could
 * not be voided. */
int journal_file_sync_done(struct file *f, const struct journal_sync *s, bool keep_lock);

/* Drains the file, syncs it, and voids its entries.  0, or -errno if bytes cannot be flushed.  The program's
 * next sync reports an error of the sync itself. */
int journal_retire(struct file *f);
/* After a second without a sync, journal_file_rest voids the entries and drops the lease, so that an open by
 * another program need not wait.  For DUE_JOURNAL. */
void journal_file_rest(struct file *f);

/*
 * A sync of the file failed.  The kernel may then forget bytes that an earlier sync made durable by the
 * journal, and may report success for the next sync.  So until the file is closed, no sync of the file itself
 * is believed, and its entries stay.
 */
void journal_file_failed(struct file *f, int error);

/* No process has the file any more, or its entries cannot be voided: keeps them for recovery. */
void journal_file_keep(struct file *f);

/* No lock held, the journal could not be written.  Syncs the files with entries in it; these entries then
 * count no more.  True if no file of the family has any left. */
bool journal_file_abandon(struct arena *a);

/* No lock held: frees the unused half of the journal, as far as this process can. */
void journal_file_checkpoint(struct arena *a);

/* No lock held: a call has changed some file, which was detached before the call. */
static inline void journal_touched(void) { file_epoch_raise(); }

#endif
