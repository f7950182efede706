// SPDX-License-Identifier: Apache-2.0
/* staging_policy: see staging/staging_policy.h. */
#include "staging/staging_policy.h"

#include "config/config.h"
#include "staging/arena.h"

enum {
	LOOKS_MAX = 8, /* in a row */
	HOLES_MAX = 16,
	TIMES_MAX = 6,
	HOLE_WRITES = 4,
	LOOK_WRITES = 2,
	SYNCS_MAX = 8,
	SYNCS_FEW = 3,                 /* the same with adapt = on */
	SYNC_WRITES = 16,              /* cost of a drain, in writes that the kernel takes */
	AFTER_SYNCS = SYNC_WRITES + 1, /* small writes in a row without a sync, until it is tried again */
	NAMES = 256,
};

/* Hashes of the names of files that were synced after every few writes, each at the place that its hash
 * gives.  A lost hash is found out again.  A wrong one costs AFTER_SYNCS writes that are not staged. */
static _Atomic uint64_t names[NAMES];

static uint64_t hash_of(const char *path)
{
	uint64_t h = 0xcbf29ce484222325;

	for (; *path; path++)
		h = (h ^ (unsigned char)*path) * 0x100000001b3;
	return h;
}

static uint32_t one_more(const struct file *f, uint32_t times, uint64_t few)
{
	return f->head == f->current && f->writes <= few ? times + 1 : 0;
}

void staging_policy_looked(struct file *f)
{
	if (f->mode == FILE_ATTACHED && f->head)
		f->habit.looks = one_more(f, f->habit.looks, LOOK_WRITES);
}

void staging_policy_hole(struct file *f, uint64_t offset)
{
	uint64_t since = f->writes < f->habit.writes ? f->writes : f->writes - f->habit.writes;

	if (since == 0 && offset == f->habit.hole)
		return; /* the same write again: there was no free block for it */
	f->habit.holes = since <= HOLE_WRITES ? f->habit.holes + 1 : 0;
	f->habit.writes = f->writes;
	f->habit.hole = offset;
}

static bool adapts(const struct file *f) { return f->rule->set.adapt == ADAPT_ON; }

/* True if each sync has to ask the device.  Zeros written ahead make a sync cheap, if the bytes reach them at
 * once and by one way. */
static bool asks_device(const struct settings *set)
{
	return (set->sync == SYNC_FSYNC || set->sync == SYNC_FDATASYNC) &&
	       set->prealloc_mode != PREALLOC_ZERO;
}

static void remember(const struct file *f)
{
	uint64_t h = hash_of(arena_entry_at(f->arena, (uint32_t)f->entry)->path);

	atomic_store_explicit(&names[h % NAMES], h, memory_order_relaxed);
}

void staging_policy_synced(struct file *f)
{
	bool asks = adapts(f) && asks_device(&f->rule->set);

	if (asks && f->mode == FILE_PASSIVE && f->small_seen > 0 && f->attach_after <= AFTER_SYNCS) {
		f->attach_after = AFTER_SYNCS;
		f->small_seen = 0;
	}
	if (f->mode != FILE_ATTACHED || !f->arena)
		return;
	f->habit.asked++;
	if (!f->head)
		return;
	f->habit.syncs = one_more(f, f->habit.syncs, SYNC_WRITES);
	if (asks && f->habit.syncs > 0)
		remember(f);
}

void staging_policy_closed(struct file *f)
{
	if (f->mode == FILE_ATTACHED && f->arena && f->habit.asked > 0 && f->habit.asked <= SYNCS_FEW &&
	    f->habit.syncs == f->habit.asked && (!f->head || one_more(f, 0, SYNC_WRITES)))
		remember(f);
}

bool staging_policy_gives_back(struct file *f)
{
	bool adapt = adapts(f);
	bool looks = !f->head && f->habit.looks >= LOOKS_MAX;
	bool syncs =
		!f->head && f->habit.syncs >= (adapt ? SYNCS_FEW : SYNCS_MAX) && asks_device(&f->rule->set);
	bool holes = adapt && f->habit.holes >= HOLES_MAX;

	if (!looks && !syncs && !holes)
		return false;
	f->attach_after = adapt && !looks && !holes ? AFTER_SYNCS : FILE_ATTACH_LATER;
	if (adapt && (looks || holes)) {
		/* try again less and less often */
		f->attach_after <<= f->habit.times;
		f->habit.times += f->habit.times < TIMES_MAX;
	}
	f->habit.looks = f->habit.syncs = f->habit.holes = 0;
	return true;
}

bool staging_policy_allows(struct file *f, const char *path)
{
	uint64_t h;

	if (f->attach_after >= AFTER_SYNCS || !adapts(f))
		return true;
	h = hash_of(path);
	if (atomic_load_explicit(&names[h % NAMES], memory_order_relaxed) != h)
		return true;
	f->attach_after = AFTER_SYNCS;
	return false;
}
