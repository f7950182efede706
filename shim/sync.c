// SPDX-License-Identifier: Apache-2.0
/* sync: see sync.h. */
#include "sync.h"

#include "engine.h"
#include "fdtable.h"
#include "flush.h"
#include "stage.h"
#include "sys.h"

static void count(struct file *f, enum slot_counter which)
{
	if (f->arena && f->slot >= 0)
		atomic_fetch_add_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->counters[which], 1,
		                          memory_order_relaxed);
}

/* A failed sync is reported, and what the kernel then has forgotten is never taken for durable later. */
static int device_sync(int fd, bool full) { return full ? sys.fsync(fd) : sys.fdatasync(fd); }

/* File lock held, everything staged is in the kernel.  1 = the device must be asked, without the lock. */
static int by_policy(struct file *f, bool *full)
{
	switch (f->rule->set.sync) {
	case SYNC_OFF: return 0;
	case SYNC_RELAXED:
		if (f->relaxed_due_ns == 0)
			f->relaxed_due_ns = sys_now_ns() + f->rule->set.relaxed_ms * 1000000ull;
		engine_arm();
		return 0;
	case SYNC_FSYNC: return 1;
	case SYNC_FDATASYNC:
	default: *full = f->full_sync; return 1;
	}
}

int sync_file(int fd, struct ofd *o, bool full)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g = file_lock(f);
	bool was_new;
	int r = 0;

	if (g.nested)
		stage_interrupt(f);
	if (fdtable_get(fd) != o || f->mode == FILE_THROUGH) {
		file_unlock(f, g);
		return full ? sys.fsync(fd) : sys.fdatasync(fd);
	}
	count(f, COUNT_SYNCS_ASKED);
	if (f->sync_error) {
		r = f->sync_error;
		f->sync_error = 0;
	} else if (f->arena) {
		r = flush_settle(f, g.nested);
	}
	if (r == 0)
		r = by_policy(f, &full);
	if (r == 1)
		count(f, COUNT_SYNCS_DONE);
	was_new = f->full_sync;
	file_unlock(f, g);
	if (r != 1)
		return r;
	r = device_sync(fd, full);
	if (r == 0 && full && was_new) {
		g = file_lock(f);
		if (fdtable_get(fd) == o)
			f->full_sync = false;
		file_unlock(f, g);
	}
	return r;
}

void sync_relaxed_due(struct file *f)
{
	int fd = file_fd(f); /* one that only reads will do */
	int r;

	if (fd < 0)
		return; /* members of the family who have one do it */
	f->relaxed_due_ns = 0;
	count(f, COUNT_SYNCS_DONE);
	r = device_sync(fd, f->full_sync);
	if (r < 0)
		f->sync_error = r;
	else
		f->full_sync = false;
}

void sync_relaxed_now(uint64_t dev, uint64_t ino)
{
	struct file *f = file_find(dev, ino);
	struct file_guard g;

	if (!f || f->relaxed_due_ns == 0)
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (f->refs && f->dev == dev && f->ino == ino && f->relaxed_due_ns)
		sync_relaxed_due(f);
	file_unlock(f, g);
}
