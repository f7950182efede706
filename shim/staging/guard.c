// SPDX-License-Identifier: Apache-2.0
/* guard: see staging/guard.h. */
#include "staging/guard.h"

#include "base/kill.h"
#include "base/sys.h"

#include <fcntl.h>
#include <sys/mman.h>

/* From the stamp to the kernel's own: one system call that is not held up.  Longer, and the file counts as changed. */
enum { CHANGE_NS_MAX = 1000000000 };

static struct arena_slot *slot_of(const struct file *f) { return arena_slot_at(f->arena, (uint32_t)f->slot); }

void guard_fill(struct arena_guard *g, const struct statx *st)
{
	g->size = st->stx_size;
	g->mtime_sec = st->stx_mtime.tv_sec;
	g->mtime_nsec = st->stx_mtime.tv_nsec;
	atomic_store_explicit(&g->known, 1, memory_order_release);
}

/* False: with what it says now the file counts as changed, and its bytes are put aside. */
static bool fill(struct arena_guard *g, int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) < 0)
		return false;
	guard_fill(g, &st);
	return true;
}

void guard_take(struct file *f, int fd)
{
	struct arena_guard *g = &slot_of(f)->guard;

	/* only then: until here the stamp covers the change that this guard is of */
	if (fill(g, fd))
		atomic_store_explicit(&g->begun_ns, 0, memory_order_release);
	kill_step();
}

void guard_begin(struct file *f, int fd)
{
	if (!atomic_load(&f->busy)) {
		guard_take(f, fd);
		return;
	}
	guard_change(f);
	fill(&slot_of(f)->guard, fd);
	kill_step();
}

void guard_stamp(struct arena_guard *g)
{
	uint64_t now = (uint64_t)sys_wall_ns();

	atomic_store_explicit(&g->again_ns, now, memory_order_release);
	if (atomic_load_explicit(&g->begun_ns, memory_order_relaxed) == 0)
		atomic_store_explicit(&g->begun_ns, now, memory_order_release);
	kill_step();
}

void guard_change(struct file *f) { guard_stamp(&slot_of(f)->guard); }

void guard_overwrote(struct file *f)
{
	struct arena_slot *slot = slot_of(f);

	if (!(slot->flags & SLOT_OVERWROTE))
		atomic_fetch_or_explicit(&slot->flags, SLOT_OVERWROTE, memory_order_relaxed);
}

int guard_synced(struct file *f)
{
	struct arena_slot *slot;
	uintptr_t page;
	int r;

	if (f->mode != FILE_ENGAGED || !f->arena || f->slot < 0)
		return 0;
	slot = slot_of(f);
	if ((slot->flags & (SLOT_OVERWROTE | SLOT_SYNCED)) != SLOT_OVERWROTE)
		return 0;
	atomic_fetch_or_explicit(&slot->flags, SLOT_SYNCED, memory_order_release);
	page = (uintptr_t)slot / ARENA_PAGE * ARENA_PAGE;
	do
		r = (int)sys_raw(SYS_msync, (long)page, ARENA_PAGE, MS_SYNC, 0, 0, 0);
	while (r == -EINTR);
	/* the next sync tries again */
	if (r < 0)
		atomic_fetch_and_explicit(&slot->flags, ~(uint32_t)SLOT_SYNCED, memory_order_release);
	return r;
}

static int64_t ns_of(int64_t sec, uint32_t nsec) { return sec * 1000000000ll + nsec; }

/* Some file systems keep whole seconds. */
static bool is_in_window(const struct statx *st, int64_t begun, int64_t again)
{
	int64_t first = ns_of(st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec);
	int64_t last = st->stx_mtime.tv_nsec ? first : first + 999999999;

	return last >= begun && first <= again + CHANGE_NS_MAX;
}

bool guard_holds(const struct arena_guard *g, const struct statx *st)
{
	int64_t begun = (int64_t)g->begun_ns;

	if (!g->known)
		return false;
	if (st->stx_size == g->size && st->stx_mtime.tv_sec == g->mtime_sec &&
	    st->stx_mtime.tv_nsec == g->mtime_nsec)
		return true;
	return begun != 0 && is_in_window(st, begun, (int64_t)g->again_ns);
}
