// SPDX-License-Identifier: Apache-2.0
/*
 * journal_file: what `sync = journal` means for one file.
 *
 * A sync puts the staged bytes that are new since the last one into the journal (sync/journal.h); they stay staged, and go
 * to the file as any others do.  That is enough only while these bytes are all that the file lacks on the device.  So
 * file->changed counts what reaches the kernel without having been in the journal: writes that pass, flushes of bytes
 * that no sync has asked for yet, whatever happened while the file was not staged.  While something is counted that no
 * sync has covered, a sync goes to the file itself.
 *
 * Entries that count (file->journal.arena) are replayed after a crash.  They may not overwrite what came later by
 * other ways.  So after a sync of the file itself its entries are made void, in the journal, before the sync returns;
 * and before anything changes the file that a replay would undo or mix with (truncation, another name, another
 * program), the file is synced and its entries made void (journal_retire).  Other programs are kept out by a lease as
 * long as entries count, or by the rule's word (`writers = exclusive`).
 *
 * All functions: file lock held, signals blocked, unless said otherwise.
 */
#ifndef FASTWRITE_JOURNAL_FILE_H
#define FASTWRITE_JOURNAL_FILE_H

#include "flush/logged.h"

/* It got another name, or lost one: entries from now on name it anew; `known`: by what its slot says. */
void journal_file_named(struct file *f, bool known);
/* Becomes attached: nothing is known of what came before. */
void journal_file_begin(struct file *f);

/* The program asks for a sync.  True when waiting for *ticket (journal_wait) is all that it takes;
 * false when the file itself must be synced. */
bool journal_file_sync(struct file *f, uint64_t *ticket);

/* Around a sync of the file itself, with everything staged before in the kernel. */
struct journal_sync {
	struct arena *arena; /* of entries that count, NULL = none do */
	uint64_t changed, epoch, puts;
	struct journal_place place;
};
void journal_file_sync_begin(struct file *f, struct journal_sync *s);
/* It succeeded.  May drop and take the lock unless `keep_lock`.  0, or -EIO when old entries could not be made void. */
int journal_file_sync_done(struct file *f, const struct journal_sync *s, bool keep_lock);

/* Settles, syncs, and makes the entries void.  0, or -errno when bytes cannot be flushed; what the sync itself meets is
 * reported by the next sync of the program. */
int journal_retire(struct file *f, bool nested);
/* No sync was asked for since a second.  Then entries are made void and the lease goes, so that nobody has to wait who
 * opens the file.  idle_at: when that will be, UINT64_MAX = there is nothing to do. */
uint64_t journal_file_idle_at(const struct file *f);
void journal_file_rest(struct file *f);

/*
 * A sync of the file failed: what the kernel then forgets may have been synced before, by the journal, and the next one
 * may succeed.  While the file is open no sync of the file itself is believed, and its entries stay.
 */
void journal_file_failed(struct file *f, int error);

/* No process has the file any more, or its entries cannot be made void: they are kept for recovery. */
void journal_file_keep(struct file *f);

/* No lock held: the journal could not be written.  Syncs the files that have entries in it, which then count no more.
 * True when no file of the family has any. */
bool journal_file_abandon(struct arena *a);

/* No lock held: frees the half of the journal that is not in use, as far as this process can. */
void journal_file_checkpoint(struct arena *a);

/* No lock held: a call has changed some file, after it was given back for that. */
static inline void journal_touched(void) { file_epoch_raise(); }

#endif
