// SPDX-License-Identifier: Apache-2.0
/* guard: see staging/guard.h. */
#include "staging/guard.h"

#include "base/kill.h"
#include "base/sys.h"

#include <fcntl.h>
#include <sys/mman.h>

static struct arena_entry *entry_of(const struct file *f)
{
	return arena_entry_at(f->arena, (uint32_t)f->entry);
}

/* False: the guard stays as it is.  The file then counts as changed, and recovery puts the bytes into a
 * separate file. */
static bool fill(struct arena_guard *g, int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) < 0)
		return false;
	guard_fill(g, &st);
	return true;
}

bool guard_take(struct file *f, int fd)
{
	struct arena_guard *g = &entry_of(f)->guard;
	bool filled = fill(g, fd);

	/* only now: until here the stamp announces the change that the guard covers */
	if (filled)
		atomic_store_explicit(&g->begun_ns, 0, memory_order_release);
	kill_step();
	return filled;
}

bool guard_begin(struct file *f, int fd)
{
	if (!atomic_load(&f->flush.busy))
		return !guard_take(f, fd) || entry_of(f)->guard.size == f->ksize;
	guard_change(f);
	fill(&entry_of(f)->guard, fd);
	kill_step();
	return true;
}

void guard_change(struct file *f) { guard_stamp(&entry_of(f)->guard); }

void guard_overwrote(struct file *f)
{
	struct arena_entry *entry = entry_of(f);

	if (!(entry->flags & ENTRY_OVERWROTE))
		atomic_fetch_or_explicit(&entry->flags, ENTRY_OVERWROTE, memory_order_relaxed);
}

int guard_synced(struct file *f)
{
	struct arena_entry *entry;
	uintptr_t page;
	int r;

	if (f->mode != FILE_ATTACHED || !f->arena || f->entry < 0)
		return 0;
	entry = entry_of(f);
	if ((entry->flags & (ENTRY_OVERWROTE | ENTRY_SYNCED)) != ENTRY_OVERWROTE)
		return 0;
	atomic_fetch_or_explicit(&entry->flags, ENTRY_SYNCED, memory_order_release);
	page = (uintptr_t)entry / ARENA_PAGE * ARENA_PAGE;
	do
		r = (int)sys_raw(SYS_msync, (long)page, ARENA_PAGE, MS_SYNC, 0, 0, 0);
	while (r == -EINTR);
	/* the next sync tries again */
	if (r < 0)
		atomic_fetch_and_explicit(&entry->flags, ~(uint32_t)ENTRY_SYNCED, memory_order_release);
	return r;
}
