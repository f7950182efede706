// SPDX-License-Identifier: Apache-2.0
/* judge: see recovery/judge.h. */
#include "recovery/judge.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/sys.h"
#include "format/guard_format.h"
#include "recovery/appended.h"

#include <fcntl.h>

/* The lowest offset of the n blocks in j->a.order. */
static uint64_t lowest(struct recover_job *j, int n)
{
	uint64_t low = UINT64_MAX;

	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		for (uint32_t e = 0;
		     foreign_read_block(&j->a, index) == 0 && e < COMMIT_COUNT(j->a.blocks[index].commit);
		     e++)
			if (foreign_extent(&j->a, index, e).offset < low)
				low = foreign_extent(&j->a, index, e).offset;
	}
	return low;
}

/*
 * The n blocks in j->a.order continue from `end`, in their order, without a gap.  After another boot or mount
 * a gap may be a block whose entry did not reach the disk.  Zeros or bytes in another order would stand
 * there, which nobody wrote.
 */
static bool is_gapless(struct recover_job *j, int n, uint64_t end)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		for (uint32_t e = 0;
		     foreign_read_block(&j->a, index) == 0 && e < COMMIT_COUNT(j->a.blocks[index].commit);
		     e++) {
			struct arena_extent x = foreign_extent(&j->a, index, e);

			if (x.offset > end)
				return false;
			if (x.offset + x.length > end)
				end = x.offset + x.length;
		}
	}
	return true;
}

/* Where the n blocks in j->a.order lie below `size`, the file holds the same bytes. */
static bool only_adds(struct recover_job *j, int fd, int n, uint64_t size)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		if (foreign_read_block(&j->a, index) < 0)
			return false;
		for (uint32_t e = 0; e < COMMIT_COUNT(j->a.blocks[index].commit); e++) {
			struct arena_extent x = foreign_extent(&j->a, index, e);
			uint64_t below = x.offset >= size ? 0 : size - x.offset;

			if (!bytes_equal(fd, j->a.data + x.pos, below < x.length ? below : x.length,
			                 x.offset))
				return false;
		}
	}
	return true;
}

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t sooner(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Bytes of the entry, other than extent `k` of block `index`, belong into [from, to), too; they may be in the
 * file already. */
static bool others_of_ours(struct recover_job *j, uint32_t index, uint32_t k, uint64_t from, uint64_t to)
{
	for (uint32_t i = 0; i < j->a.header.block_count; i++) {
		if (j->a.blocks[i].owner != j->a.blocks[index].owner || foreign_read_block(&j->a, i) < 0)
			continue;
		for (uint32_t e = 0; e < COMMIT_COUNT(j->a.blocks[i].commit); e++) {
			struct arena_extent x = foreign_extent(&j->a, i, e);

			if ((i != index || e != k) && x.offset < to && from < x.offset + x.length)
				return true;
		}
	}
	return false;
}

/* [from, to) of the file holds as many of the bytes at p as one wishes, and then zeros. */
static bool holds_some(int fd, const uint8_t *p, uint64_t from, uint64_t to)
{
	return bytes_are_zeros(fd, from + bytes_alike(fd, p, to - from, from), to);
}

/*
 * The process died in the middle of a change.  That change can only have put staged bytes and zeros behind
 * the end that the guard knows.  True if the file, `size` bytes long, has anything else where the n blocks in
 * j->a.order lie: others have written since.  (Or power was lost before another mount, and something is
 * missing in the middle of what was written.)
 */
static bool shows_others(struct recover_job *j, const struct arena_guard *g, int fd, int n, uint64_t size)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		for (uint32_t k = 0;
		     foreign_read_block(&j->a, index) == 0 && k < COMMIT_COUNT(j->a.blocks[index].commit);
		     k++) {
			struct arena_extent x = foreign_extent(&j->a, index, k);
			uint64_t from = later(x.offset, g->size), to = sooner(x.offset + x.length, size);

			if (from < to && !holds_some(fd, j->a.data + x.pos + (from - x.offset), from, to) &&
			    !others_of_ours(j, index, k, from, to))
				return true;
		}
	}
	return false;
}

/*
 * The file is older than its guard, and nobody has touched it since: its file system, which is not the
 * arena's, has lost what it had not written.  (A copy that was put back has a change time of its own.  A time
 * in the future was set by somebody, and tells nothing.)
 */
static bool went_back(const struct recover_job *j, const struct arena_entry *e, const struct statx *st)
{
	const struct arena_guard *g = &e->guard;
	const struct statx_timestamp *c = &st->stx_ctime;

	return g->known && e->dev != j->place.dev_then && g->mtime_sec <= sys_wall_ns() / 1000000000 &&
	       (c->tv_sec < g->mtime_sec || (c->tv_sec == g->mtime_sec && c->tv_nsec < g->mtime_nsec));
}

/* (After another boot a change that was under way may have left anything.) */
static bool is_as_left(const struct recover_job *j, const struct arena_entry *e, const struct statx *st)
{
	return guard_holds(&e->guard, st) && !(j->where == ORIGIN_OTHER && e->guard.begun_ns != 0);
}

static struct judgement aside(const char *why) { return (struct judgement){.aside = why}; }

struct judgement judge(struct recover_job *j, uint32_t entry, const struct recover_target *t, int n)
{
	const struct judgement replay = {0};
	const struct arena_entry *e = foreign_entry(&j->a, entry);
	bool same = j->where == ORIGIN_SAME, other_boot = j->where == ORIGIN_OTHER, positional, as_left;
	struct statx st;

	if (n == 0 || j->by_family || j->opt->force || t->orphan)
		return replay;
	positional = foreign_is_positional(&j->a, entry);
	if (same && t->proved && !positional)
		return replay;
	if (sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) < 0)
		return aside("the file cannot be examined");
	if (other_boot && !is_gapless(j, n, positional ? st.stx_size : lowest(j, n)))
		return aside("after another boot there is a gap between the staged bytes");
	as_left = is_as_left(j, e, &st) &&
	          (guard_is(&e->guard, &st) || !shows_others(j, &e->guard, t->fd, n, st.stx_size));
	if (as_left && (same || !(e->flags & ENTRY_SYNCED) || lowest(j, n) >= e->guard.size))
		return replay;
	if (same && went_back(j, e, &st))
		return replay;
	/* in one boot nothing of others stands behind the end of a file that was not cut */
	if (!other_boot && positional && t->proved && e->guard.known && st.stx_size >= e->guard.size &&
	    lowest(j, n) >= st.stx_size)
		return replay;
	if (j->where == ORIGIN_MOUNT && !positional && t->proved && e->guard.known) {
		int found = appended_blocks(&j->a, n, t->fd, DONE_SKIP(e->done), e->guard.size, st.stx_size);

		if (found >= 0)
			return (struct judgement){.found = found};
	}
	if (!same && e->guard.known == JUDGE_HELD && is_gapless(j, n, st.stx_size) &&
	    only_adds(j, t->fd, n, st.stx_size))
		return (struct judgement){.by_offset = true};
	if (as_left)
		return aside(
			"after another boot or mount the staged bytes may be older than what was synced");
	return aside(same ? "the file has been changed since"
	                  : "after another boot or mount the file is not as it was left");
}

const char *judge_pages(const struct recover_job *j, uint32_t entry, const struct recover_target *t)
{
	const struct arena_entry *e = foreign_entry(&j->a, entry);
	struct statx st;

	if (j->by_family || j->opt->force || t->orphan)
		return NULL;
	if (j->where != ORIGIN_SAME)
		return "after another boot or mount its pages may be of different moments";
	if (sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) < 0)
		return "the file cannot be examined";
	return is_as_left(j, e, &st) || went_back(j, e, &st) ? NULL : "the file has been changed since";
}

void judge_note_held(struct recover_job *j)
{
	for (uint32_t i = 0; i < j->a.header.entry_count; i++) {
		struct arena_entry *e = foreign_entry(&j->a, i);
		BUFFER(struct recover_target, t);
		struct statx st;

		e->path[ARENA_PATH_MAX - 1] = '\0';
		if (!e->used || e->path[0] != '/' || recover_target_open(t, e, &j->place, false) < 0)
			continue;
		if (sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) == 0 &&
		    is_as_left(j, e, &st))
			e->guard.known = JUDGE_HELD;
		recover_target_close(t);
	}
}

static bool is_set_back(const struct arena_guard *g, const struct statx *st)
{
	return g->known && st->stx_mtime.tv_sec + JUDGE_BACK_S < g->mtime_sec &&
	       g->mtime_sec <= st->stx_ctime.tv_sec;
}

int64_t judge_changed_ns(const struct foreign_arena *held, uint64_t dev, const struct identity *id,
                         const struct statx *st)
{
	const struct statx_timestamp *changed = &st->stx_mtime;
	struct identity known;

	for (uint32_t i = 0; held && i < held->header.entry_count; i++) {
		const struct arena_entry *e = foreign_entry(held, i);

		if (!e->used || e->dev != dev || e->ino != id->ino || !is_set_back(&e->guard, st))
			continue;
		identity_of_entry(e, &known);
		if (identity_same(&known, id))
			changed = &st->stx_ctime;
	}
	return changed->tv_sec * 1000000000ll + changed->tv_nsec;
}
