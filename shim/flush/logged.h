// SPDX-License-Identifier: Apache-2.0
/*
 * logged: what of a file's staged bytes the log has (sync/journal_file.h), as far as flushing them must know.
 *
 * All functions: file lock held.
 */
#ifndef FASTWRITE_LOGGED_H
#define FASTWRITE_LOGGED_H

#include "files/file.h"

static inline bool journal_file_is(const struct file *f) { return f->rule->set.sync == SYNC_JOURNAL; }
/* Leases are needed for the journal's sake. */
static inline bool journal_file_leases(const struct file *f)
{
	return journal_file_is(f) && f->rule->set.writers != WRITERS_EXCLUSIVE && !f->no_journal;
}
static inline bool journal_file_counts(const struct file *f) { return f->journal.arena != NULL; }

/* The lease outlives what is staged: taken anew, it would say nothing about the time between.  So does that of a strict
 * file whose rule needs none for the journal: what is found out anew then counts as a change. */
static inline bool journal_file_holds(const struct file *f)
{
	return journal_file_counts(f) || (journal_file_is(f) && !f->no_journal && f->leased);
}

/* Something reaches the file, or is about to, that is not in the journal. */
static inline void journal_file_changed(struct file *f) { f->changed++; }
/* Staged bytes up to this block's end are being flushed. */
void journal_file_flushing(struct file *f, const struct block_run *last);
/* The file is in the log up to this word of the block. */
uint64_t logged_commit_of(const struct block_run *run);
/* All of the block is there. */
bool logged_covers(const struct file *f, const struct block_run *run);

#endif
