// SPDX-License-Identifier: Apache-2.0
/*
 * journal_policy: does the journal pay for a file with sync = journal?
 *
 * A sync by the journal costs a write of the device and the staging of what is synced.  A sync of the file
 * costs what its file system makes of it: two flushes after an append, but no more than the write where a
 * program overwrites its log in place.  So both ways are timed, from the end of a sync to that of the next,
 * since staging costs the calls between, too.  A file uses one way for a turn of syncs, and then the other
 * for a trial of a few.  The quicker way gets the next turn, twice as long as the last if that was the same
 * way.  The first syncs after a change pay for the change and are not timed.
 *
 * While several threads wait for the journal, one write serves them all, which the time of one of them does
 * not show.  Then no trial begins.  With adapt = off the journal answers whenever it can.
 *
 * The fields are atomic, not locked: two threads that sync one file at once may lose a measurement.
 */
#ifndef FASTWRITE_SYNC_JOURNAL_POLICY_H
#define FASTWRITE_SYNC_JOURNAL_POLICY_H

#include "files/file.h"
#include "staging/staging_policy.h"

/* True if the journal shall answer the next sync, where it can. */
static inline bool journal_policy_uses(const struct file *f) { return !staging_policy_stays_passive(f); }

/* The journal has answered a sync, or the device (`device`).  `shared`: others waited for the journal, too.
 */
void journal_policy_synced(struct file *f, bool device, bool shared);

#endif
