// SPDX-License-Identifier: Apache-2.0
/* sync: see sync.h. */
#include "sync.h"

#include "engine.h"
#include "fdtable.h"
#include "flush.h"
#include "prealloc.h"
#include "stage.h"
#include "sys.h"

#include <fcntl.h>

static void count(struct file *f, enum slot_counter which)
{
	if (f->arena && f->slot >= 0)
		atomic_fetch_add_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->counters[which], 1,
		                          memory_order_relaxed);
}

/* A failed sync is reported, and what the kernel then has forgotten is never taken for durable later. */
static int device_sync(int fd, bool full) { return full ? sys.fsync(fd) : sys.fdatasync(fd); }

/* The kernel's rule for errors of writeback: a description that was there, or came before anybody was told, is told. */
static void note_error(struct file *f, int error)
{
	f->sync_error = error;
	f->sync_errors++;
	f->sync_told = false;
}

int sync_error_take(struct file *f, struct ofd *o)
{
	if (o->errors_told == f->sync_errors)
		return 0;
	o->errors_told = f->sync_errors;
	f->sync_told = true;
	return f->sync_error;
}

static void relaxed_arm(struct file *f)
{
	if (f->relaxed_due_ns == 0)
		f->relaxed_due_ns = sys_now_ns() + f->rule->set.relaxed_ms * 1000000ull;
	engine_arm();
}

bool sync_is_promise(const struct ofd *o)
{
	const struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);

	switch (f->rule->set.sync) {
	case SYNC_RELAXED: return true;
	/* appends that the kernel places go out through the program's description, which may be O_SYNC */
	case SYNC_OFF: return !(o->flags & O_APPEND) || f->rule->set.writers == WRITERS_EXCLUSIVE;
	default: return false;
	}
}

int sync_written(int fd, struct ofd *o)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g = file_lock(f);
	int r = 0;

	if (g.nested)
		stage_interrupt(f);
	if (fdtable_get(fd) == o && atomic_load(&o->file) == f) {
		count(f, COUNT_SYNCS_ASKED);
		/* relaxed: no need to settle before it is due */
		if (f->rule->set.sync == SYNC_RELAXED)
			relaxed_arm(f);
		else if (f->arena)
			r = flush_settle(f, g.nested);
	}
	file_unlock(f, g);
	return r;
}

/* File lock held, everything staged is in the kernel.  1 = the device must be asked, without the lock. */
static int by_policy(struct file *f, bool *full)
{
	switch (f->rule->set.sync) {
	case SYNC_OFF: return 0;
	case SYNC_RELAXED: relaxed_arm(f); return 0;
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
	if (fdtable_get(fd) == o)
		r = sync_error_take(f, o);
	if (r < 0 || fdtable_get(fd) != o || f->mode == FILE_THROUGH) {
		file_unlock(f, g);
		return r < 0 ? r : full ? sys.fsync(fd) : sys.fdatasync(fd);
	}
	count(f, COUNT_SYNCS_ASKED);
	if (f->arena)
		r = flush_settle_for_sync(f, g.nested);
	if (r == 0)
		r = by_policy(f, &full);
	if (r == 1 && !f->zero_wanted && prealloc_zeros_wanted(f)) {
		f->zero_wanted = true;
		prealloc_zeros_used(f);
		engine_kick(f);
	}
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
	/* what was written with O_SYNC may be staged still */
	if (f->arena && f->mode == FILE_ENGAGED && flush_settle(f, false) < 0) {
		/* the next write or sync is told; the bytes stay staged */
		f->relaxed_due_ns = 0;
		relaxed_arm(f);
		return;
	}
	sync_relaxed_now(f);
}

void sync_relaxed_now(struct file *f)
{
	int fd = flush_program_fd(f);
	int r;

	f->relaxed_due_ns = 0;
	if (fd < 0)
		return;
	count(f, COUNT_SYNCS_DONE);
	r = device_sync(fd, f->full_sync);
	if (r < 0)
		note_error(f, r);
	else
		f->full_sync = false;
}
