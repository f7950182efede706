// SPDX-License-Identifier: Apache-2.0
/* guard_format: see format/guard_format.h. */
#include "format/guard_format.h"

#include "base/kill.h"
#include "base/sys.h"

/* From our stamp to the kernel's: one system call that is not held up.  If it takes longer, the file counts
 * as changed. */
enum { CHANGE_NS_MAX = 1000000000 };

void guard_fill(struct arena_guard *g, const struct statx *st)
{
	g->size = st->stx_size;
	g->mtime_sec = st->stx_mtime.tv_sec;
	g->mtime_nsec = st->stx_mtime.tv_nsec;
	atomic_store_explicit(&g->known, 1, memory_order_release);
}

void guard_stamp(struct arena_guard *g)
{
	uint64_t now = (uint64_t)sys_wall_ns();

	atomic_store_explicit(&g->again_ns, now, memory_order_release);
	if (atomic_load_explicit(&g->begun_ns, memory_order_relaxed) == 0)
		atomic_store_explicit(&g->begun_ns, now, memory_order_release);
	kill_step();
}

static int64_t ns_of(int64_t sec, uint32_t nsec) { return sec * 1000000000ll + nsec; }

/* (some file systems keep whole seconds) */
static bool is_in_window(const struct statx *st, int64_t begun, int64_t again)
{
	int64_t first = ns_of(st->stx_mtime.tv_sec, st->stx_mtime.tv_nsec);
	int64_t last = st->stx_mtime.tv_nsec ? first : first + 999999999;

	return last >= begun && first <= again + CHANGE_NS_MAX;
}

bool guard_is(const struct arena_guard *g, const struct statx *st)
{
	return g->known && st->stx_size == g->size && st->stx_mtime.tv_sec == g->mtime_sec &&
	       st->stx_mtime.tv_nsec == g->mtime_nsec;
}

bool guard_holds(const struct arena_guard *g, const struct statx *st)
{
	int64_t begun = (int64_t)g->begun_ns;

	return guard_is(g, st) || (g->known && begun != 0 && is_in_window(st, begun, (int64_t)g->again_ns));
}
