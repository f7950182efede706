// SPDX-License-Identifier: Apache-2.0
/* recover_internal: what the recovery of arenas (recover.c) and of journals (recover_journal.c) share. */
#ifndef FASTWRITE_RECOVER_INTERNAL_H
#define FASTWRITE_RECOVER_INTERNAL_H

#include "recover.h"

/* Locks a dead arena or journal for its recovery; 0, -EWOULDBLOCK: it is alive; or -errno.  Waits for other recoverers. */
int recover_lock_dead(int fd);
/* A regular file with one name in the directory, of the directory's owner, which this process's user may recover: 0 or
 * -errno. */
int recover_owner_allowed(int dirfd, int fd);
bool recover_still_linked(int fd);

/*
 * The journal `name` in staging directory `dir`, open as dirfd, after the arenas there.  Of another boot: what counts in
 * it is written to its files.  Of this one: its files are synced, since nothing that it was to make durable is lost but
 * what a crash from now on would lose.  Then it is removed.
 */
void recover_journal(const char *dir, int dirfd, const char *name, const struct recover_options *opt,
                     struct recover_report *report);

#endif
