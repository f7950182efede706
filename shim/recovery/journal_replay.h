// SPDX-License-Identifier: Apache-2.0
/*
 * journal_replay: brings the entries of a journal into their files, marks those that are done in the journal,
 * and reports.
 */
#ifndef FASTWRITE_RECOVERY_JOURNAL_REPLAY_H
#define FASTWRITE_RECOVERY_JOURNAL_REPLAY_H

#include "recovery/journal_scan.h"

/* What recoveries before this one changed in this boot; s->boot_ns is set.  0 or -errno. */
int journal_replay_load(struct journal_scan *s);

/* The journal is locked, its header loaded.  `replay`: writes the entries to the files; else only syncs
 * these.  0 when the journal may be removed, or put aside (s->keeps). */
int journal_replay_all(struct journal_scan *s, bool replay);

#endif
