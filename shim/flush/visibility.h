// SPDX-License-Identifier: Apache-2.0
/*
 * visibility: with `visibility = strict`, an open of a file by any process finds all bytes staged for it.
 *
 * While bytes are staged the library holds a write lease on the program's own description (base/lease.h).
 * The kernel grants it only if no other description of the file exists.  It makes an open by another process
 * wait until the lease is dropped, and signals our watcher thread.  The watcher drains the file and drops the
 * lease; then the open continues.  As long as another process has the file open there is no lease, and the
 * file is bypassed.
 *
 * Invariants under the file lock: a strict file stages only while it is leased (file->lease.on is the
 * description with the lease), or is in order (visibility_waits).  If nothing is staged there is no lease,
 * unless visibility_stays.
 * The library has no internal description of a leased file, because the kernel would refuse the lease.
 *
 * Called by: io (before bytes are accepted), flush (proof, drop), fd, process, attach.
 */
#ifndef FASTWRITE_FLUSH_VISIBILITY_H
#define FASTWRITE_FLUSH_VISIBILITY_H

#include "files/file.h"
#include "flush/journaled.h"
#include "staging/stage.h"

/*
 * True if the file must behave as strict.  Either its rule says so, or is in order without exclusive writers.
 * Or the program shares the file with other programs that know of each other's writes without asking the
 * kernel: the family locks the file, or writes to shared memory in a file of the same rule (for example a
 * database's index of its log).
 */
bool visibility_is(const struct file *f);
/*
 * File lock held.  True if such a file may not be staged without a lease, and has none.  A file in order
 * needs none while the program itself has several descriptions of it, such as the connections of a pool, if
 * its rule promises that no other program has the file open: no lease can be had then.  (With one description
 * the lease proves that.)
 */
bool visibility_waits(const struct file *f);
/* True if the file is strict only because its syncs go to the journal (sync/journal_file.h). */
bool visibility_for_journal(const struct file *f);
/* File lock held: the file does without lease and journal from now on. */
void visibility_not_for_journal(struct file *f);

/* File lock held, after watcher_hold returned 0: nothing is staged.  Until the next try for a lease, writes
 * need not take the lock. */
void visibility_pass(struct file *f);
/* Without the lock: true if a write may go to the kernel now.  It then counts in f->inflight until
 * visibility_passed. */
bool visibility_passes(struct file *f);
static inline void visibility_passed(struct file *f) { stage_pass_end(f); }
/* File lock held: no more such writes begin.  False: some are still under way. */
bool visibility_stop_passing(struct file *f);

/* File lock held: drops the lease if there is one. */
void visibility_drop_slow(struct file *f);
static inline void visibility_drop(struct file *f)
{
	if (__builtin_expect(atomic_load_explicit(&f->lease.on, memory_order_relaxed) != NULL, 0))
		visibility_drop_slow(f);
}

extern _Atomic uint32_t visibility_leases; /* leases that this process holds or is about to take */
/* False if another process of the family holds the lease. */
bool visibility_lease_is_ours(const struct file *f);
/* True if the lease is held and no process waits for the file. */
bool visibility_lease_intact(const struct file *f);
/* File lock held: the same; notes when it was so. */
bool visibility_lease_seen(struct file *f);
/* File lock held: it was held so short a time ago that the kernel still waits for it, and has not taken it.
 */
bool visibility_is_breaking(const struct file *f);
/* File lock held: the last descriptor of the description with the lease is about to be closed. */
void visibility_forget(struct file *f);
/* True if the lease must outlive what is staged. */
static inline bool visibility_stays(const struct file *f)
{
	return journal_file_holds(f) || file_needs_lease(f);
}
/*
 * File lock held, f is paged.  False: another program may have changed f, or be about to, so that what is
 * staged must not be written to it.  The kernel takes the lease from a process that is stopped for longer
 * than /proc/sys/fs/lease-break-time while another one waits for the file.  Then size and time of the file
 * tell.
 */
bool visibility_keeps(struct file *f);
/* File lock held: f is about to be staged.  Drops a lease that the kernel may have taken while nothing was
 * staged: others may have changed f since. */
void visibility_doubt(struct file *f);
struct arena_entry *visibility_entry(const struct file *f);
/* Shows the state in `fastwrite status`. */
void visibility_show(const struct file *f, uint32_t state);

/* File lock held: true if the lease is intact, so that no other process has the file open. */
bool visibility_proves(const struct file *f);

/* True if no process outside the family can change the file unseen: because of a lease, or because the rule
 * promises exclusive writers. */
bool journal_file_alone(const struct file *f);

#endif
