// SPDX-License-Identifier: Apache-2.0
/*
 * living: the recovery of an arena whose family lives, for the dead processes of that family.
 *
 * A process outside of the family comes through recover_path.  It takes over from the dead keepers of the
 * arena (format/takeover_format.h).  The family itself calls recover_live_entry (recovery/recover.h).
 */
#ifndef FASTWRITE_RECOVERY_LIVING_H
#define FASTWRITE_RECOVERY_LIVING_H

#include "recovery/job.h"

/* fd: the arena, not loaded.  Counts and reports everything. */
void living_recover(struct recover_job *j, int fd);

/* fd: an arena whose family lives, open for reading.  True if nothing there waits for a recovery: each
 * process that has kept something is alive.  Only asks; takes no lock. */
bool living_keep_all(int fd);

#endif
