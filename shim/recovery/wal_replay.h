// SPDX-License-Identifier: Apache-2.0
/*
 * wal_replay: the recovery of one log of sync = ordered (format/wal_format.h).
 *
 * After a power loss the files hold what the kernel had written of several moments.  The log brings them all
 * to one: that of its last whole epoch.  After a kill in the same boot the arena has everything that is not
 * in the files, and the log is of no use.
 *
 * If any of its files was changed by somebody else since, or is in doubt, the whole log is put aside: a part
 * of an epoch would be no moment at all.
 */
#ifndef FASTWRITE_RECOVERY_WAL_REPLAY_H
#define FASTWRITE_RECOVERY_WAL_REPLAY_H

#include "foreign/parse.h"
#include "foreign/target.h"
#include "format/origin.h"
#include "recovery/recover.h"

struct wal_recovery {
	const struct recover_options *opt;
	struct recover_report *report;
	const char *path; /* of the log, for events */
	int fd;           /* the log, open for reading and writing; nobody else recovers it */
	int dirfd;        /* its directory */
	bool in_aside;    /* that is `aside` in the staging directory */
	int staging_fd;
	const struct foreign_arena *held; /* the arena beside it; or NULL */
};

/* fd: a file that begins as a log does. */
bool wal_replay_is(int fd);
/* Replays the log `name`, and removes it or puts it aside.  Counts and reports everything. */
void wal_replay(const struct wal_recovery *w, const char *name);

#endif
