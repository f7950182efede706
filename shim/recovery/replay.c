// SPDX-License-Identifier: Apache-2.0
/* replay: see recovery/replay.h. */
#include "recovery/replay.h"

#include "base/bytes.h"
#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/guard_format.h"
#include "recovery/appended.h"

#include <fcntl.h>
#include <stddef.h>

int replay_stamp(struct recover_job *j, struct arena_entry *e)
{
	bool first = e->guard.begun_ns == 0;
	int r;

	guard_stamp(&e->guard);
	r = foreign_store(&j->a, (void *)&e->guard.again_ns, sizeof e->guard.again_ns);
	if (r == 0 && first)
		r = foreign_store(&j->a, (void *)&e->guard.begun_ns, sizeof e->guard.begun_ns);
	return r;
}

void replay_stopped(struct recover_job *j, uint32_t entry, int fd)
{
	struct arena_guard *g = &foreign_entry(&j->a, entry)->guard;
	struct statx st;

	if (g->begun_ns == 0 || sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) < 0)
		return;
	guard_fill(g, &st);
	/* size and time first: until the stamp goes, a change counts as ours for a moment more */
	if (foreign_store(&j->a, g, offsetof(struct arena_guard, begun_ns)) < 0)
		return;
	g->begun_ns = 0;
	foreign_store(&j->a, (void *)&g->begun_ns, sizeof g->begun_ns);
}

/* Blocks at offsets, in order.  Doing it twice changes nothing. */
static int replay_at_offsets(struct recover_job *j, struct arena_entry *e, int fd, int n)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];
		int r = replay_stamp(j, e);

		if (r == 0)
			r = foreign_read_block(&j->a, index);
		for (uint32_t k = 0; r == 0 && k < COMMIT_COUNT(j->a.blocks[index].commit); k++) {
			struct arena_extent x = foreign_extent(&j->a, index, k);
			uint64_t written;

			r = bytes_write(fd, j->a.data + x.pos, x.length, x.offset, false, &written);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

static int append_none(struct recover_job *j, struct arena_entry *e)
{
	e->flush_active = APPEND_NONE;
	return foreign_store(&j->a, (void *)&e->flush_active, sizeof e->flush_active);
}

/*
 * The protocol of a live append: after a kill at any point the next recovery finds out how much is in the
 * file.  The note of an earlier append counts until `done` says how much of that is there.
 */
static int append_noted(struct recover_job *j, struct arena_entry *e, uint64_t base, uint64_t bytes,
                        uint32_t skip)
{
	int r;

	e->done = DONE_MAKE(DONE_SEQ(e->done), skip);
	r = foreign_store(&j->a, (void *)&e->done, sizeof e->done);
	if (r == 0)
		r = append_none(j, e);
	e->flush_base = base;
	e->flush_bytes = bytes;
	e->flush_from = e->done;
	if (r == 0)
		r = foreign_store(&j->a, (void *)&e->flush_base, sizeof e->flush_base);
	if (r == 0)
		r = foreign_store(&j->a, (void *)&e->flush_bytes, sizeof e->flush_bytes);
	if (r == 0)
		r = foreign_store(&j->a, (void *)&e->flush_from, sizeof e->flush_from);
	e->flush_active = APPEND_SOMEWHERE;
	if (r == 0)
		r = foreign_store(&j->a, (void *)&e->flush_active, sizeof e->flush_active);
	return r;
}

static int append_block(struct recover_job *j, struct arena_entry *e, int fd, uint32_t index, uint32_t skip)
{
	struct arena_extent x;
	struct statx st;
	uint64_t written;
	int r = foreign_read_block(&j->a, index), stored;

	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (r < 0)
		return r;
	x = foreign_extent(&j->a, index, 0);
	r = append_noted(j, e, st.stx_size, x.length - skip, skip);
	if (r == 0)
		r = replay_stamp(j, e);
	if (r < 0)
		return r;
	r = bytes_write(fd, j->a.data + x.pos + skip, x.length - skip, 0, true, &written);
	/* (a disk that got full took a part: the next recovery appends the rest) */
	e->done = r < 0 ? DONE_MAKE(DONE_SEQ(e->done), skip + written) : DONE_MAKE(j->a.blocks[index].seq, 0);
	stored = foreign_store(&j->a, (void *)&e->done, sizeof e->done);
	/* another `done` ends the append; but it is the same when nothing was written */
	if (stored == 0 && e->done == e->flush_from)
		stored = append_none(j, e);
	return r < 0 ? r : stored;
}

/* Appends: each byte once, behind whatever others appended.  `total`: bytes of the n blocks. */
static int replay_appends(struct recover_job *j, struct arena_entry *e, int fd, int n, uint64_t total)
{
	uint32_t skip = DONE_SKIP(e->done);
	uint64_t have = 0;

	for (int i = 0; i < n; i++)
		if (COMMIT_COUNT(j->a.blocks[j->a.order[i]].commit) != 1)
			return -EBADMSG;
	if (n > 0 && skip > COMMIT_LENGTH(j->a.blocks[j->a.order[0]].commit))
		return -EBADMSG;
	if (e->flush_active != APPEND_NONE && e->flush_from == e->done) {
		struct appended_range range = {.how = (enum append_flush)e->flush_active,
		                               .base = e->flush_base,
		                               .bytes = e->flush_bytes,
		                               .skip = skip};
		int r;

		if (range.bytes > total - skip)
			range.bytes = total - skip;
		r = appended_part(&j->a, n, fd, &range, &have);
		if (r < 0 && !(r == APPENDED_DOUBT && j->opt->force))
			return r;
	}
	have += skip;
	for (int i = 0; i < n; i++) {
		uint32_t length = COMMIT_LENGTH(j->a.blocks[j->a.order[i]].commit);
		int r;

		if (have >= length) {
			have -= length;
			e->done = DONE_MAKE(j->a.blocks[j->a.order[i]].seq, 0);
			continue;
		}
		r = append_block(j, e, fd, j->a.order[i], (uint32_t)have);
		if (r < 0)
			return r;
		have = 0;
	}
	return 0;
}

int replay_blocks(struct recover_job *j, uint32_t entry, int fd, int n, uint64_t bytes, bool at_offsets)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);
	long flags;
	int r;

	if (n == 0)
		return 0;
	flags = sys.fcntl(fd, F_GETFL, 0);
	if (flags < 0)
		return (int)flags;
	if (at_offsets) {
		r = bytes_have_offsets(fd);
		if (r == 0)
			r = replay_at_offsets(j, e, fd, n);
	} else {
		r = (int)sys.fcntl(fd, F_SETFL, flags | O_APPEND);
		if (r == 0)
			r = replay_appends(j, e, fd, n, bytes);
		if (r == 0)
			r = (int)sys.fcntl(fd, F_SETFL, flags);
	}
	return r;
}

/* ---- the end of the file ---- */

/* Sets the file's time to that in st.  False: this user may not. */
static bool set_time(int fd, const struct statx *st)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
	                            {.tv_sec = st->stx_mtime.tv_sec, .tv_nsec = st->stx_mtime.tv_nsec}};

	return sys_raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0) == 0;
}

/* The file keeps its rights, and its time, by which another arena with bytes for it knows it. */
static void trim_unseen(int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME | STATX_MODE, &st) == 0 &&
	    !sys_has_rights(fd, &st) && set_time(fd, &st)) {
		sys.ftruncate(fd, (off_t)st.stx_size);
		set_time(fd, &st);
	}
}

/* Gives back space reserved behind the end, if nobody else has the file open. */
static void trim(const struct recover_job *j, const struct arena_entry *e, int fd)
{
	/* (a log that waits for another try knows the file by its times, and its replay gives the space back)
	 */
	if (!(e->flags & ENTRY_PREALLOCATED) || (j->log_waits && (e->flags & ENTRY_ORDERED)))
		return;
	/* (the rule's promise that nobody else has it open was for that boot and mount) */
	if ((e->flags & ENTRY_EXCLUSIVE) && j->where == ORIGIN_SAME) {
		trim_unseen(fd);
	} else if (lease_proves(fd) && lease_take_own(fd) == 0) {
		if (lease_holds(fd))
			trim_unseen(fd);
		lease_drop_own(fd);
	}
}

int replay_finish(struct recover_job *j, uint32_t entry, int fd)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);
	int r = replay_stamp(j, e);

	if (e->flags & ENTRY_PADDED)
		log_warn("%s: zeros may stand behind its end, from an older version", e->path);
	/* (a living process of the family may be about to write behind the end) */
	if (r == 0 && !j->family_lives)
		trim(j, e, fd);
	return r;
}
