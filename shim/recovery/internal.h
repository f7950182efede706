// SPDX-License-Identifier: Apache-2.0
/* recover_internal: what the recovery of arenas (recovery/recover.c) and of journals (recovery/journal.c) share. */
#ifndef FASTWRITE_RECOVER_INTERNAL_H
#define FASTWRITE_RECOVER_INTERNAL_H

#include "format/origin.h"
#include "recovery/parse.h"
#include "recovery/recover.h"

/* Locks a dead arena or journal for its recovery; 0, -EWOULDBLOCK: it is alive; or -errno.  Waits for other recoverers. */
int recover_lock_dead(int fd);
/* "<pid>-<rule>-<time>" and the suffix: such files are made by this library and by nobody else. */
bool recover_is_our_make(const char *name, const char *suffix);
/* When it was made, by the wall clock in ns, as its name says; 0: another name. */
uint64_t recover_time_in_name(const char *name);
/* A regular file with one name in the directory, of the directory's owner, which this process's user may recover: 0 or
 * -errno. */
int recover_owner_allowed(int dirfd, int fd);
/* What became of the process that made an arena or a journal, whose file fd is: 0: it has died; -EWOULDBLOCK: it runs;
 * other -errno: that cannot be found out, and nothing is thrown away for it.  *where: what is known of the kernel and the
 * mount that it was made on. */
int recover_maker(int fd, const struct origin *then, int pid, uint64_t pid_start, enum origin_verdict *where);
/* Of the n > 0 blocks of appends in a->order, without the first `skip` bytes of the first one: how many of the first ones
 * stand whole in [from, size) of the file; RECOVER_DOUBT: it looks as if others were there, or a part of one; -errno. */
#define RECOVER_DOUBT (-ETIME)
int recover_appended(struct foreign_arena *a, int n, uint32_t skip, int fd, uint64_t from, uint64_t size);
/* All n bytes, which were accepted by a process that is dead: at `offset`, or at the end.  0 or -errno; *written: bytes that
 * got into the file, also when the rest did not. */
int recover_write_all(int fd, const uint8_t *p, uint64_t n, uint64_t offset, bool append, uint64_t *written);

/*
 * The journal `name` in staging directory `dir`, open as dirfd, after the arenas there.  Of another boot: what counts in
 * it is written to its files.  Of this one: its files are synced, since nothing that it was to make durable is lost but
 * what a crash from now on would lose.  Then it is removed.
 */
void recover_journal(const char *dir, int dirfd, const char *name, bool in_aside,
                     const struct foreign_arena *held, const struct recover_options *opt,
                     struct recover_report *report);
/* In the copy of a slot of `held`, the arena beside the journal (or NULL): its file is as the guard says. */
enum { RECOVER_GUARD_HELD = 2 };

#endif
