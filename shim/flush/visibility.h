// SPDX-License-Identifier: Apache-2.0
/*
 * visibility: `visibility = strict`: nobody who opens a file finds it without what was staged for it.
 *
 * While bytes are staged a write lease is held on the program's own description (base/lease.h).  The kernel grants it
 * only while nobody else has the file open, and lets an open by anybody else wait until it is dropped.  A thread of
 * our own, the watcher, is told; it settles the file, drops the lease, and the open goes on.  As long as somebody
 * else has the file open no lease is granted, and the file is written through.
 *
 * What always holds under the file lock: a strict file stages only while it is leased (file->leased, the description
 * that has the lease); nothing staged means no lease.  The library has no description of its own on such a file: the
 * kernel would take it for somebody else's.
 *
 * Called by: io (before bytes are accepted), flush (proof of being alone; drop), fd, process, attach.
 */
#ifndef FASTWRITE_STRICT_H
#define FASTWRITE_STRICT_H

#include "files/file.h"
#include "flush/logged.h"
#include "staging/stage.h"

/*
 * Strict by its rule, or because the family shows that it works on it together with others, who then know what was
 * written without asking the kernel for it: one of them locks the file, or writes to shared memory in a file of the
 * rule (a database's index of its log, for instance).
 */
bool visibility_is(const struct file *f);
/* Strict for no other reason than that its syncs go to the journal (sync/journal_file.h). */
bool visibility_for_journal(const struct file *f);
/* File lock held: it does without a lease, and without the journal, from now on. */
void visibility_not_for_journal(struct file *f);

/* File lock held, after watcher_hold said 0: everything is the kernel's; until it is time to ask again there is no
 * need for the lock. */
void visibility_pass(struct file *f);
/* Without the lock: may a write go to the kernel now?  If so it counts in f->inflight until visibility_passed. */
bool visibility_passes(struct file *f);
static inline void visibility_passed(struct file *f) { stage_pass_end(f); }
/* File lock held: no more such writes begin.  False: some are under way still. */
bool visibility_stop_passing(struct file *f);

/* File lock held: gives the lease back, if there is one. */
void visibility_drop_slow(struct file *f);
static inline void visibility_drop(struct file *f)
{
	if (__builtin_expect(atomic_load_explicit(&f->leased, memory_order_relaxed) != NULL, 0))
		visibility_drop_slow(f);
}

extern _Atomic uint32_t visibility_leases; /* that this process holds, or is about to take */
/* A lease that another member of the family has is that one's business. */
bool visibility_lease_is_ours(const struct file *f);
/* Held, and nobody has asked for it. */
bool visibility_lease_intact(const struct ofd *o);
struct arena_slot *visibility_slot(const struct file *f);
/* What `fastwrite status` shows. */
void visibility_show(const struct file *f, uint32_t state);

/* File lock held: true when the lease is held and nobody waits for it, so that nobody else has the file open. */
bool visibility_proves(const struct file *f);

/* Nobody outside the family can change the file unseen: others wait for a lease, or the rule says that there are none. */
bool journal_file_alone(const struct file *f);

#endif
