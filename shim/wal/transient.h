// SPDX-License-Identifier: Apache-2.0
/*
 * transient: names that come and go below a rule with sync = ordered, such as that of a rollback journal.
 *
 * A program makes and removes such a name without waiting for the device, because the log says on the device
 * which of them no file has (format/wal_format.h).  If power goes, the kernel may have made a name that the
 * last epoch does not have, or not have removed it yet.  Its file is empty then, and recovery removes it.
 *
 * A name becomes transient when the program removes its file before any epoch has that.
 *
 * LOCK_ORDER of the log protects all of it, but for `busy` and `goes`.
 */
#ifndef FASTWRITE_WAL_TRANSIENT_H
#define FASTWRITE_WAL_TRANSIENT_H

#include "wal/wal.h"

struct transient_name {
	char path[ARENA_PATH_MAX];
	uint16_t below, up;    /* as in arena_entry */
	_Atomic bool there;    /* a file has the name, or is about to */
	bool unsynced;         /* and the device may not know that */
	bool looked_at;        /* by transient_look */
	_Atomic uint32_t busy; /* calls that make or remove it now: only they know whether it is there */
	_Atomic uint32_t goes; /* those that remove a file that the log has */
};

struct transient {
	struct transient_name names[WAL_NAMES_MAX];
	uint32_t count, next;
	bool listed;         /* the newest list of the log has these names */
	_Atomic bool stated; /* the log says of that list: */
	uint32_t absent;     /* no file has these names */
	uint64_t stated_ns;  /* sys_now_ns() when it said so last */
};

void transient_reset(struct transient *t);
/* In the child of a fork: the parent's other threads make and remove nothing here. */
void transient_forget(struct transient *t);
/* Index or -1. */
int transient_find(const struct transient *t, const char *path);
/* The name of this entry, which may be new.  *replaced: another one made room for it, and no list will have
 * that. -1: all others are in use. */
int transient_add(struct transient *t, const struct arena_entry *e, bool *replaced);
/* True if the log says, durably, that no file has this name, and recovery will believe it of a file that is
 * made now (WAL_LATE_NS). */
bool transient_is_stated(const struct transient *t, int i);

/* Before an epoch: looks which names are there.  Names come and go unseen, too: behind a barrier, or by a
 * child of the program. */
void transient_look(struct transient *t);
/* Their directories were synced since. */
void transient_synced(struct transient *t);
/* The list goes to the log, if it is not there.  0 or -errno. */
int transient_list(struct transient *t, struct wal *w);
/* The log does not say what is so. */
bool transient_is_due(const struct transient *t);
/* Into the epoch that is being put together; `t` says what it will say once that is durable. */
void transient_put(struct transient *t, struct wal *w);

#endif
