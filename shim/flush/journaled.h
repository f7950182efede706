// SPDX-License-Identifier: Apache-2.0
/*
 * journaled: which of a file's staged bytes are in the journal (sync/journal_file.h), for the flush.
 *
 * All functions: file lock held.
 */
#ifndef FASTWRITE_FLUSH_JOURNALED_H
#define FASTWRITE_FLUSH_JOURNALED_H

#include "base/sys.h"
#include "files/file.h"

static inline bool journal_file_is(const struct file *f) { return f->rule->set.sync == SYNC_JOURNAL; }
/* True if the journal needs a lease on the file. */
static inline bool journal_file_leases(const struct file *f)
{
	return journal_file_is(f) && f->rule->set.writers != WRITERS_EXCLUSIVE && !f->journal.refused;
}
static inline bool journal_file_counts(const struct file *f) { return f->journal.arena != NULL; }

/* True if the lease must outlive the staged bytes: a new lease would say nothing about the time between.  The
 * same holds for a file with visibility = strict whose rule needs no lease for the journal.  There a new
 * lease would count as a change. */
static inline bool journal_file_holds(const struct file *f)
{
	return journal_file_counts(f) || (journal_file_is(f) && !f->journal.refused && f->lease.on);
}

/* Bytes that are not in the journal reach the file, or are about to. */
static inline void journal_file_changed(struct file *f) { f->journal.changed++; }
/* The file is about to change in a way that its journal does not have, and to get a later time: the journal
 * says so first.  Waits for the device. */
static inline void journaled_announce(struct file *f)
{
	if (journal_file_counts(f) && file_care)
		file_care->announce(f);
}
/* Staged bytes up to the end of block `last` are being flushed. */
void journal_file_flushing(struct file *f, const struct block_run *last);
/* A sync was asked for, or the lease taken: the journal, and the lease, are needed for another second. */
static inline void journaled_asked(struct file *f)
{
	enum { IDLE_NS = 1000000000 };

	f->due[DUE_JOURNAL] = sys_now_ns() + IDLE_NS;
}

/* The block's commit word in the form that journal.block_commit has. */
uint64_t journaled_commit_of(const struct block_run *run);
/* True if the journal has all bytes of the block. */
bool journaled_covers(const struct file *f, const struct block_run *run);

#endif
