// SPDX-License-Identifier: Apache-2.0
/* sync: see sync/sync.h. */
#include "sync/sync.h"

#include "base/probe.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/fdtable.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "staging/guard.h"
#include "staging/staging_policy.h"
#include "sync/journal.h"
#include "sync/journal_file.h"
#include "sync/journal_policy.h"

#include <fcntl.h>

static void count(struct file *f, enum arena_counter which)
{
	if (f->arena && f->entry >= 0)
		atomic_fetch_add_explicit(&arena_entry_at(f->arena, (uint32_t)f->entry)->counters[which], 1,
		                          memory_order_relaxed);
}

/* True if staging saves in a sync more than it costs. */
static bool makes_syncs_cheap(const struct file *f) { return journal_file_is(f) && journal_policy_uses(f); }

static int device_sync(int fd, bool full) { return full ? sys.fsync(fd) : sys.fdatasync(fd); }

/* False if no thread can make the sync later. */
static bool relaxed_arm(struct file *f)
{
	if (f->due[DUE_SYNC] == 0)
		f->due[DUE_SYNC] = sys_now_ns() + f->rule->set.relaxed_ms * 1000000ull;
	return workers_arm();
}

bool sync_is_promise(const struct ofd *o)
{
	const struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);

	switch (f->rule->set.sync) {
	case SYNC_RELAXED:
	case SYNC_JOURNAL: return true;
	/* the kernel places these appends through the program's description, which may have O_SYNC */
	case SYNC_OFF: return !(o->flags & O_APPEND) || f->rule->set.writers == WRITERS_EXCLUSIVE;
	case SYNC_ORDERED: return file_is_ordered(f);
	default: return false;
	}
}

/* True if the file was never staged during the write, so that the kernel synced it by the description's
 * flags. */
static bool synced_by_flags(struct file *f, const struct ofd *o, uint32_t releases)
{
	struct file_guard g;
	bool done;

	if (!(o->flags & (O_SYNC | O_DSYNC)) || atomic_load(&f->mode) == FILE_ATTACHED)
		return false;
	g = file_lock(f);
	/* another thread may have detached the file, which flushes but does not sync */
	done = f->mode != FILE_ATTACHED && file_detaches() == releases;
	file_unlock(f, g);
	return done;
}

int sync_written(int fd, struct ofd *o, uint32_t releases)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g;
	int r = 0;

	/* what the kernel wrote instead of the log */
	if (file_is_ordered(f) && (atomic_load(&f->mode) != FILE_ATTACHED || atomic_load(&f->order.passed)))
		return sync_file(fd, o, false);
	if (journal_file_is(f)) {
		if (!synced_by_flags(f, o, releases))
			return sync_file(fd, o, false);
		journal_policy_synced(f, true, false);
		return 0;
	}
	g = file_lock(f);
	if (fdtable_get(fd) == o && atomic_load(&o->file) == f) {
		count(f, COUNT_SYNCS_ASKED);
		/* relaxed: drained only when the sync is due */
		if (f->rule->set.sync == SYNC_RELAXED)
			relaxed_arm(f);
		else if (f->arena && !file_is_ordered(f))
			r = flush_drain(f);
	}
	file_unlock(f, g);
	return r;
}

/* File lock held, everything staged is in the kernel.  1: ask the device, without the lock. */
static int by_policy(struct file *f, bool *full)
{
	int r;

	switch (f->rule->set.sync) {
	case SYNC_OFF: return 0;
	case SYNC_RELAXED: return !relaxed_arm(f); /* no thread can make the sync later */
	case SYNC_FSYNC: return 1;
	case SYNC_JOURNAL: *full = f->sync.full || file_attributes_due(f); return 1;
	case SYNC_ORDERED:
		/* what was staged cannot become durable */
		r = file_is_paged(f) ? f->flush.error : 0;
		if (r == 0 && file_is_paged(f))
			r = ordered_error(f->rule);
		if (r < 0)
			return r;
		/* what the log has needs no sync; what is not in it has one of its own */
		if (file_is_ordered(f) && !atomic_exchange(&f->order.passed, false) &&
		    ordered_names_follow(f->rule))
			return 0;
		/* fall through */
	case SYNC_FDATASYNC:
	/* also if the program calls fdatasync: the new name must become durable */
	default: *full = f->sync.full || (*full && file_attributes_due(f)); return 1;
	}
}

/* A full sync succeeded that began at these counts of names and attributes.  Keeps the larger count of
 * attributes, because a sync that began earlier covers fewer changes. */
static void full_sync_done(struct file *f, uint32_t names, uint64_t attributes)
{
	if (f->sync.names_given == names)
		f->sync.full = false;
	if (f->sync.attributes < attributes)
		f->sync.attributes = attributes;
}

static int drain(struct file *f, const struct ofd *o)
{
	const struct settings *set = &f->rule->set;
	bool real = set->sync == SYNC_FSYNC || set->sync == SYNC_FDATASYNC || set->sync == SYNC_JOURNAL;
	uint64_t begin = file_is_staged(f) ? staging_policy_clock(f) : 0;
	int r = flush_drain(f);

	if (makes_syncs_cheap(f))
		staging_policy_pays(f);
	else if (real && (o->flags & O_DIRECT))
		staging_policy_drained_direct(f, begin);
	else /* a real sync writes what the program would have left in the page cache */
		staging_policy_drained(f, begin, real ? STAGING_SYNC_COST_MOST : STAGING_COST_MOST);
	return r;
}

/* Syncs the file itself.  Releases the lock, and does not retake it.  0 or -errno. */
static int sync_device(struct file *f, const struct ofd *o, int fd, bool full, struct file_guard g)
{
	bool journal = journal_file_is(f);
	uint64_t dev = f->dev, ino = f->ino;
	uint32_t names = f->sync.names_given;
	uint64_t attributes = file_attributes();
	struct journal_sync s = {0};
	int r;

	r = guard_synced(f);
	if (r == 0 && journal)
		journal_file_sync_begin(f, &s);
	file_unlock(f, g);
	if (r < 0)
		return r;
	r = device_sync(fd, full);
	if (r < 0)
		atomic_store(&f->order.passed, true);
	if (!journal && !full)
		return r;
	g = file_lock(f);
	if (fdtable_get(fd) == o) {
		if (r < 0)
			journal_file_failed(f, r);
		else if (full)
			full_sync_done(f, names, attributes);
		if (r == 0 && journal)
			r = journal_file_sync_done(f, &s, f->nested);
	} else if (r == 0 && journal && f->refs && f->dev == dev && f->ino == ino) {
		/* another thread has closed or replaced fd, perhaps before the kernel looked at it */
		r = journal_retire(f);
	}
	file_unlock(f, g);
	return r;
}

/* Syncs by the journal alone.  True: *r is the result, and the lock is released.  False: the lock is held. */
static bool sync_journal(struct file *f, struct file_guard *g, int *r)
{
	struct arena *a = f->arena;
	uint64_t ticket;

	if (f->nested || !journal_file_sync(f, &ticket))
		return false;
	atomic_fetch_add_explicit(&arena_entry_at(a, (uint32_t)f->entry)->journaled, 1, memory_order_relaxed);
	/* signals stay blocked: a handler that syncs would wait for its own thread */
	journal_hold(a);
	staging_policy_pays(f);
	lock_drop(&f->lock, LOCK_FILE);
	*r = journal_wait(a, ticket);
	journal_policy_synced(f, false, journal_is_awaited(a));
	journal_unhold(a);
	if (*r == 0) {
		signals_release(g->signals);
		return true;
	}
	/* the entries may not be durable */
	file_lock_again(f);
	journal_file_changed(f);
	return false;
}

/* No lock held: all that the program has written to f is in the overlay, or on the device.  So a sync of it
 * has nothing to do. */
static bool is_in_order(struct file *f)
{
	return file_is_ordered(f) && atomic_load(&f->mode) == FILE_ATTACHED && !f->flush.error &&
	       !atomic_load(&f->order.passed) && ordered_names_follow(f->rule) && !ordered_error(f->rule);
}

static int sync_asked(struct file *f, int fd, struct ofd *o, bool full)
{
	struct file_guard g;
	int r;

	if (is_in_order(f)) {
		atomic_fetch_add_explicit(&f->order.syncs, 1, memory_order_relaxed);
		return 0;
	}
	g = file_lock(f);
	/* another thread may have replaced fd while this one waited for the lock */
	if (fdtable_get(fd) != o) {
		file_unlock(f, g);
		return SYNC_ANOTHER;
	}
	r = file_take_sync_error(f, o);
	if (r < 0 || f->mode == FILE_BYPASSED) {
		file_unlock(f, g);
		return r < 0 ? r : full ? sys.fsync(fd) : sys.fdatasync(fd);
	}
	count(f, COUNT_SYNCS_ASKED);
	if (journal_file_is(f) && sync_journal(f, &g, &r))
		return r;
	/* (a paged file stays as it is: its log answers for it) */
	if (f->arena && !file_is_paged(f))
		r = drain(f, o);
	if (r == 0)
		r = f->journal.failed ? f->journal.failed : by_policy(f, &full);
	if (r == 1) {
		uint64_t begin =
			f->mode == FILE_PASSIVE && makes_syncs_cheap(f) ? staging_policy_clock(f) : 0;

		count(f, COUNT_SYNCS_DONE);
		r = sync_device(f, o, fd, full, g);
		staging_policy_synced(f, begin);
		if (journal_file_is(f))
			journal_policy_synced(f, true, false);
		return r;
	}
	file_unlock(f, g);
	return r;
}

int sync_file(int fd, struct ofd *o, bool full)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	int r = sync_asked(f, fd, o, full);

	PROBE(sync, PROBE_FILE(f), r);
	return r;
}

/* Syncs through this descriptor.  -1: processes of the family that have one sync the file. */
static void relaxed_sync(struct file *f, int fd)
{
	uint64_t attributes = file_attributes();
	bool full = f->sync.full || file_attributes_due(f);
	int r;

	if (fd < 0)
		return;
	f->due[DUE_SYNC] = 0;
	count(f, COUNT_SYNCS_DONE);
	r = guard_synced(f);
	if (r == 0)
		r = device_sync(fd, full);
	if (r < 0)
		file_note_sync_error(f, r);
	else if (full)
		full_sync_done(f, f->sync.names_given, attributes);
}

/* Drains bytes that were written with O_SYNC and staged.  False: impossible now; the sync is due again
 * later. */
static bool relaxed_drain(struct file *f)
{
	if (!f->arena || f->mode != FILE_ATTACHED || flush_drain(f) >= 0)
		return true;
	/* the next write or sync reports the error; the bytes stay staged */
	f->due[DUE_SYNC] = 0;
	relaxed_arm(f);
	return false;
}

void sync_relaxed_due(struct file *f)
{
	if (relaxed_drain(f))
		sync_relaxed_now(f);
}

void sync_relaxed_now(struct file *f) { relaxed_sync(f, file_fd(f)); /* a read-only descriptor suffices */ }

void sync_relaxed_named(uint64_t dev, uint64_t ino)
{
	struct file *f = file_find(dev, ino);
	struct file_guard g;

	if (!f || f->due[DUE_SYNC] == 0)
		return;
	g = file_lock(f);
	if (f->refs && f->dev == dev && f->ino == ino && f->due[DUE_SYNC] && relaxed_drain(f)) {
		int fd = file_fd(f);

		/* sync before the name changes; the process with a descriptor might be too late */
		if (fd < 0 && f->mode == FILE_ATTACHED && f->arena && flush_possible(f))
			fd = file_internal_fd(f);
		relaxed_sync(f, fd);
	}
	file_unlock(f, g);
}
