// SPDX-License-Identifier: Apache-2.0
/* journal: the recovery of one journal (format/journal_format.h). */
#ifndef FASTWRITE_RECOVERY_JOURNAL_H
#define FASTWRITE_RECOVERY_JOURNAL_H

#include "foreign/parse.h"
#include "recovery/recover.h"

/*
 * The journal `name` in staging directory `dir`, open as dirfd.  From another boot or mount: its entries are
 * written to their files.  From this one: its files are synced.  Nothing that the journal was to make durable
 * is lost yet, but a crash from now on would lose it.  Then the journal is removed.  Counts and reports
 * everything.
 *
 * held: the arena beside it, or NULL.  Entries with JUDGE_HELD (recovery/judge.h) say that their file is as
 * left.  True: in this boot, power was lost since, so the arena counts as one of another boot.
 */
bool recover_journal(const char *dir, int dirfd, const char *name, bool in_aside,
                     const struct foreign_arena *held, const struct recover_options *opt,
                     struct recover_report *report);

#endif
