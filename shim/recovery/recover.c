// SPDX-License-Identifier: Apache-2.0
/* recover: see recovery/recover.h.  One arena: is it dead, what is in it, where does it go. */
#include "recovery/recover.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/pid.h"
#include "base/sys.h"
#include "format/guard_format.h"
#include "format/journal_format.h"
#include "format/staging_dir.h"
#include "recovery/aside.h"
#include "recovery/internal.h"
#include "recovery/own_arena.h"
#include "recovery/parse.h"
#include "recovery/rights.h"
#include "recovery/takeover.h"
#include "recovery/target.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

struct job {
	const struct recover_options *opt;
	struct recover_report *report;
	char *arena;   /* path[PATH_MAX], for events */
	int dirfd;     /* of the arena */
	bool in_aside; /* that is `aside` in the staging directory */
	bool live;     /* its other members live, and keep everybody from the slot */
	bool living; /* members of the arena's family live, and may have the files open, see format/takeover_format.h */
	bool keeps;     /* a slot stays, to be put aside */
	bool moved;     /* it has been */
	int found;      /* blocks of the slot at hand that are in the file, see recover_appended */
	bool by_offset; /* appends of the slot at hand go where they were expected to land */
	uint64_t only;  /* 0, or the inode number of the one file that is meant */
	enum origin_verdict where;
	struct recover_place place;
	struct foreign_arena a;
};

static void tell(const struct job *j, const char *target, const char *action, uint64_t bytes, int error,
                 const char *detail)
{
	struct recover_event e = {.arena = j->arena,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (j->opt->event)
		j->opt->event(j->opt->ctx, &e);
}

int recover_write_all(int fd, const uint8_t *p, uint64_t n, uint64_t offset, bool append, uint64_t *written)
{
	*written = 0;
	while (n > 0) {
		struct iovec part = {.iov_base = (void *)(uintptr_t)p, .iov_len = n};
		ssize_t r = append ? sys_append_accepted(fd, &part, 1)
		                   : sys_pwritev_accepted(fd, &part, 1, (off_t)offset);

		if (r == -EINTR)
			continue;
		if (r < 0)
			return (int)r;
		if (r == 0)
			return -EIO;
		kill_step();
		p += r;
		n -= (uint64_t)r;
		offset += (uint64_t)r;
		*written += (uint64_t)r;
	}
	return 0;
}

/* Bytes of a slot's blocks, all extents counted. */
static int count_bytes(struct job *j, int n, uint64_t *bytes)
{
	*bytes = 0;
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];
		int r = foreign_read_block(&j->a, index);

		if (r < 0)
			return r;
		for (uint32_t e = 0; e < COMMIT_COUNT(j->a.blocks[index].commit); e++)
			*bytes += foreign_extent(&j->a, index, e).length;
	}
	return 0;
}

/* Our own change: whoever recovers after a kill from here on must not take it for somebody else's. */
static int stamp(struct job *j, struct arena_slot *s)
{
	bool first = s->guard.begun_ns == 0;
	int r;

	if (j->live)
		return 0;
	guard_stamp(&s->guard);
	r = foreign_store(&j->a, (void *)&s->guard.again_ns, sizeof s->guard.again_ns);
	if (r == 0 && first)
		r = foreign_store(&j->a, (void *)&s->guard.begun_ns, sizeof s->guard.begun_ns);
	return r;
}

/* It is over, with a part of the bytes: from here on changes are somebody else's again. */
static void stamp_ends(struct job *j, struct arena_slot *s, int fd)
{
	struct arena_guard *g = &s->guard;
	struct statx st;

	if (j->live || g->begun_ns == 0 ||
	    sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) < 0)
		return;
	guard_fill(g, &st);
	/* (as long as the stamp stands the file counts as ours for a moment) */
	if (foreign_store(&j->a, g, offsetof(struct arena_guard, begun_ns)) < 0)
		return;
	g->begun_ns = 0;
	foreign_store(&j->a, (void *)&g->begun_ns, sizeof g->begun_ns);
}

/* Positional blocks: to their offsets, in order.  Doing it twice changes nothing. */
static int replay_positional(struct job *j, uint32_t slot, int fd, int n)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];
		int r = stamp(j, foreign_slot(&j->a, slot));

		if (r == 0)
			r = foreign_read_block(&j->a, index);
		for (uint32_t e = 0; r == 0 && e < COMMIT_COUNT(j->a.blocks[index].commit); e++) {
			struct arena_extent x = foreign_extent(&j->a, index, e);
			uint64_t written;

			r = recover_write_all(fd, j->a.data + x.pos, x.length, x.offset, false, &written);
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/*
 * An append was under way when the process died: how many of its bytes are in the file?  They begin at the size
 * that the file had before, or, when the kernel chose the place, behind what others appended meanwhile.  Only
 * two things count as ours: all of it, or a part that ends at a page boundary of the file, for that is where
 * the kernel stops a write when it kills the writer; what matches behind the boundary may be chance.  A short
 * match is somebody else's line that begins like ours: to take it for ours would lose bytes.
 */
struct search {
	int fd;
	int blocks;     /* in j->a.order */
	uint32_t skip;  /* bytes of the first block that are not part of it */
	uint64_t bytes; /* of the whole append */
	uint64_t work;  /* bytes looked at: bounded, for content may match nearly everywhere */
	int error;      /* -errno: then nobody knows what is there */
	uint8_t first[16];
	uint32_t first_bytes;
};

enum { SEARCH_WORK_MAX = 1 << 28, PART_MIN = 64 };
/* Others have appended so much that nobody has looked at all of it. */
#define SEARCH_TOO_LONG (-ETIME)

/* How much of a match of m bytes at `at` is a part of ours. */
static uint64_t believable(uint64_t at, uint64_t m, uint64_t base, uint64_t size)
{
	uint64_t end = (at + m) / ARENA_PAGE * ARENA_PAGE;

	if (end <= at)
		return 0;
	return end - at >= PART_MIN || (at == base && end == size) ? end - at : 0;
}

static ssize_t search_read(struct search *s, uint8_t *buf, uint64_t size, uint64_t at)
{
	ssize_t n;

	do
		n = sys.pread(s->fd, buf, size, (off_t)at);
	while (n == -EINTR);
	if (n < 0)
		s->error =
			n == -EBADF ? -EACCES : (int)n; /* open for writing only, since it may not be read */
	return n;
}

static uint64_t match_at(struct job *j, struct search *s, uint64_t at)
{
	uint32_t skip = s->skip;
	uint64_t matched = 0;
	BUFFER(uint8_t, buf);

	for (int i = 0; i < s->blocks; i++) {
		uint32_t index = j->a.order[i];
		struct arena_extent x;

		s->error = foreign_read_block(&j->a, index);
		if (s->error)
			return matched;
		x = foreign_extent(&j->a, index, 0);
		s->work += x.length;
		for (uint32_t done = skip; done < x.length && matched < s->bytes;) {
			uint32_t want = x.length - done < ARENA_PAGE ? x.length - done : ARENA_PAGE;
			ssize_t got = search_read(s, buf, want, at + matched);

			if (got <= 0)
				return matched;
			for (ssize_t b = 0; b < got && matched < s->bytes; b++, matched++)
				if (buf[b] != j->a.data[x.pos + done + (uint32_t)b])
					return matched;
			done += (uint32_t)got;
		}
		skip = 0;
	}
	return matched;
}

static int search_prepare(struct job *j, struct search *s)
{
	int r = foreign_read_block(&j->a, j->a.order[0]);
	struct arena_extent x;

	if (r < 0)
		return r;
	x = foreign_extent(&j->a, j->a.order[0], 0);
	s->first_bytes =
		x.length - s->skip < sizeof s->first ? x.length - s->skip : (uint32_t)sizeof s->first;
	if (s->first_bytes > s->bytes)
		s->first_bytes = (uint32_t)s->bytes;
	memcpy(s->first, j->a.data + x.pos + s->skip, s->first_bytes);
	return 0;
}

/* The first place in [at, end) where our first bytes, or as many as fit before the end, stand; or `end`. */
static uint64_t next_candidate(struct search *s, uint64_t at, uint64_t end)
{
	const uint64_t size = ARENA_PAGE + sizeof s->first;
	BUFFER(uint8_t, buf);

	while (at < end) {
		uint64_t want = end - at < size ? end - at : size;
		ssize_t got = search_read(s, buf, want, at);
		uint64_t fresh;

		if (got <= 0)
			return end;
		s->work += (uint64_t)got;
		fresh = at + (uint64_t)got >= end || (uint64_t)got <= sizeof s->first
		                ? (uint64_t)got
		                : (uint64_t)got - sizeof s->first;
		for (uint64_t i = 0; i < fresh; i++) {
			uint64_t n = (uint64_t)got - i < s->first_bytes ? (uint64_t)got - i : s->first_bytes;

			if (memcmp(buf + i, s->first, n) == 0)
				return at + i;
		}
		at += fresh;
	}
	return end;
}

/* s->error: nobody can say. */
static uint64_t already_appended(struct job *j, struct search *s, enum append_flush how, uint64_t base)
{
	struct statx st;
	uint64_t end, best = 0;

	if (s->bytes == 0)
		return 0;
	s->error = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (s->error || st.stx_size <= base)
		return 0;
	s->error = search_prepare(j, s);
	end = how == APPEND_AT_BASE ? base + 1 : st.stx_size;
	for (uint64_t at = base; !s->error && at < end; at++) {
		uint64_t m;

		if (s->work >= SEARCH_WORK_MAX) {
			s->error = SEARCH_TOO_LONG;
			break;
		}
		if (st.stx_size - at <= best)
			break; /* nothing longer can come */
		m = match_at(j, s, at);
		if (m == s->bytes)
			return m;
		m = believable(at, m, base, st.stx_size);
		if (m > best)
			best = m;
		if (at + 1 < end)
			at = next_candidate(s, at + 1, end) - 1;
	}
	return best;
}

static int append_none(struct job *j, struct arena_slot *s)
{
	s->flush_active = APPEND_NONE;
	return foreign_store(&j->a, (void *)&s->flush_active, sizeof s->flush_active);
}

/*
 * The same protocol as a live append: whoever is killed from here on, the next recovery finds what is in the file.  What
 * is known of an earlier append counts until `done` says what there is of it.
 */
static int append_noted(struct job *j, struct arena_slot *s, uint64_t base, uint64_t bytes, uint32_t skip)
{
	int r;

	s->done = DONE_MAKE(DONE_SEQ(s->done), skip);
	r = foreign_store(&j->a, (void *)&s->done, sizeof s->done);
	if (r == 0)
		r = append_none(j, s);
	s->flush_base = base;
	s->flush_bytes = bytes;
	s->flush_from = s->done;
	if (r == 0)
		r = foreign_store(&j->a, (void *)&s->flush_base, sizeof s->flush_base);
	if (r == 0)
		r = foreign_store(&j->a, (void *)&s->flush_bytes, sizeof s->flush_bytes);
	if (r == 0)
		r = foreign_store(&j->a, (void *)&s->flush_from, sizeof s->flush_from);
	s->flush_active = APPEND_SOMEWHERE;
	if (r == 0)
		r = foreign_store(&j->a, (void *)&s->flush_active, sizeof s->flush_active);
	return r;
}

static int append_block(struct job *j, struct arena_slot *s, int fd, uint32_t index, uint32_t skip)
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
	r = append_noted(j, s, st.stx_size, x.length - skip, skip);
	if (r == 0)
		r = stamp(j, s);
	if (r < 0)
		return r;
	r = recover_write_all(fd, j->a.data + x.pos + skip, x.length - skip, 0, true, &written);
	/* a disk that got full took a part: the next recovery appends the rest */
	s->done = r < 0 ? DONE_MAKE(DONE_SEQ(s->done), skip + written) : DONE_MAKE(j->a.blocks[index].seq, 0);
	stored = foreign_store(&j->a, (void *)&s->done, sizeof s->done);
	/* `done` says that it is over, unless nothing was written */
	if (stored == 0 && s->done == s->flush_from)
		stored = append_none(j, s);
	return r < 0 ? r : stored;
}

/* O_APPEND blocks: each byte once, behind whatever others appended. */
static int replay_append(struct job *j, uint32_t slot, int fd, int n, uint64_t total)
{
	struct arena_slot *s = foreign_slot(&j->a, slot);
	uint32_t skip = DONE_SKIP(s->done);
	uint64_t have = 0;

	for (int i = 0; i < n; i++)
		if (COMMIT_COUNT(j->a.blocks[j->a.order[i]].commit) != 1)
			return -EBADMSG;
	if (n > 0 && skip > COMMIT_LENGTH(j->a.blocks[j->a.order[0]].commit))
		return -EBADMSG;
	if (s->flush_active != APPEND_NONE && s->flush_from == s->done) {
		struct search search = {.fd = fd, .blocks = n, .skip = skip, .bytes = s->flush_bytes};

		if (search.bytes > total - skip)
			search.bytes = total - skip;
		have = already_appended(j, &search, (enum append_flush)s->flush_active, s->flush_base);
		if (search.error == SEARCH_TOO_LONG && j->opt->force)
			search.error = 0;
		if (search.error)
			return search.error;
	}
	have += skip;
	for (int i = 0; i < n; i++) {
		uint32_t length = COMMIT_LENGTH(j->a.blocks[j->a.order[i]].commit);
		int r;

		if (have >= length) {
			have -= length;
			s->done = DONE_MAKE(j->a.blocks[j->a.order[i]].seq, 0);
			continue;
		}
		r = append_block(j, s, fd, j->a.order[i], (uint32_t)have);
		if (r < 0)
			return r;
		have = 0;
	}
	return 0;
}

/* The time of change of the file as it is, again.  False: this user may not set it. */
static bool set_time(int fd, const struct statx *st)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
	                            {.tv_sec = st->stx_mtime.tv_sec, .tv_nsec = st->stx_mtime.tv_nsec}};

	return sys_raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0) == 0;
}

/* The file keeps its time of change: another arena with bytes for it knows the file by that. */
static void trim_unseen(int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) == 0 && set_time(fd, &st)) {
		sys.ftruncate(fd, (off_t)st.stx_size);
		set_time(fd, &st);
	}
}

/* Space reserved beyond the end goes back, if nobody else has the file open. */
static void trim(const struct job *j, const struct arena_slot *s, int fd)
{
	if (!(s->flags & SLOT_PREALLOCATED))
		return;
	/* (what another kernel was promised counts no more) */
	if ((s->flags & SLOT_EXCLUSIVE) && j->where == ORIGIN_SAME) {
		trim_unseen(fd);
	} else if (lease_proves(fd) && lease_take_own(fd) == 0) {
		if (lease_holds(fd))
			trim_unseen(fd);
		lease_drop_own(fd);
	}
}

static bool only_zeros(int fd, uint64_t from, uint64_t to)
{
	BUFFER(uint8_t, buf);

	while (from < to) {
		uint64_t want = to - from < BUFFER_BYTES ? to - from : BUFFER_BYTES;
		ssize_t got = sys.pread(fd, buf, want, (off_t)from);

		if (got == -EINTR)
			continue;
		if (got <= 0)
			return false;
		for (ssize_t i = 0; i < got; i++)
			if (buf[i])
				return false;
		from += (uint64_t)got;
	}
	return true;
}

/* prealloc_mode = zero: what was staged is in the file; behind it stand zeros, and nothing else unless somebody has
 * written there since. */
static int unpad(struct job *j, uint32_t slot, int fd, int n)
{
	const struct arena_slot *s = foreign_slot(&j->a, slot);
	uint64_t end = s->size;
	struct statx st;
	int r;

	if (!(s->flags & SLOT_PADDED))
		return 0;
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		r = foreign_read_block(&j->a, index);
		if (r < 0)
			return r;
		for (uint32_t x = 0; x < COMMIT_COUNT(j->a.blocks[index].commit); x++) {
			struct arena_extent e = foreign_extent(&j->a, index, x);

			if (e.offset + e.length > end)
				end = e.offset + e.length;
		}
	}
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (r < 0 || st.stx_size <= end)
		return r;
	if (st.stx_size > s->padded_end || !only_zeros(fd, end, st.stx_size)) {
		log_warn(
			"%s: somebody else has written behind the zeros that were to be cut off; it is left as it is",
			s->path);
		return 0;
	}
	kill_step();
	return sys.ftruncate(fd, (off_t)end);
}

/* Of the n > 0 blocks in j->a.order. */
static bool is_positional(const struct job *j, uint32_t slot)
{
	return j->by_offset || j->a.blocks[j->a.order[0]].kind == STAGE_POSITIONAL ||
	       (foreign_slot(&j->a, slot)->flags & SLOT_EXCLUSIVE);
}

static int replay(struct job *j, uint32_t slot, int fd, int n, uint64_t bytes)
{
	long flags;
	int r;

	if (n == 0)
		return 0;
	flags = sys.fcntl(fd, F_GETFL, 0);
	if (flags < 0)
		return (int)flags;
	if (is_positional(j, slot)) {
		/* an append-only file takes nothing at a position */
		r = flags & O_APPEND ? -EPERM : replay_positional(j, slot, fd, n);
	} else {
		r = (int)sys.fcntl(fd, F_SETFL, flags | O_APPEND);
		if (r == 0)
			r = replay_append(j, slot, fd, n, bytes);
		if (r == 0)
			r = (int)sys.fcntl(fd, F_SETFL, flags);
	}
	return r;
}

/* The lowest offset of the n blocks in j->a.order. */
static uint64_t lowest(struct job *j, int n)
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

/* Does the file have `length` bytes at `offset` that are those at `p`? */
static bool has_bytes(int fd, const uint8_t *p, uint64_t length, uint64_t offset)
{
	BUFFER(uint8_t, buf);

	while (length > 0) {
		uint64_t want = length < BUFFER_BYTES ? length : BUFFER_BYTES;
		ssize_t got = sys.pread(fd, buf, want, (off_t)offset);

		if (got == -EINTR)
			continue;
		if (got <= 0 || memcmp(buf, p, (size_t)got) != 0)
			return false;
		p += got;
		offset += (uint64_t)got;
		length -= (uint64_t)got;
	}
	return true;
}

/*
 * The n blocks in j->a.order, in their order, go on from `end` without a gap.  After another boot or mount a gap may be a
 * block whose entry did not reach the disk: zeros, or bytes in another order, would stand there that nobody wrote.
 */
static bool is_gapless(struct job *j, int n, uint64_t end)
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

/* Where the n blocks in j->a.order have bytes below `size`, the file has the same ones. */
static bool only_adds(struct job *j, int fd, int n, uint64_t size)
{
	for (int i = 0; i < n; i++) {
		uint32_t index = j->a.order[i];

		if (foreign_read_block(&j->a, index) < 0)
			return false;
		for (uint32_t e = 0; e < COMMIT_COUNT(j->a.blocks[index].commit); e++) {
			struct arena_extent x = foreign_extent(&j->a, index, e);
			uint64_t below = x.offset >= size ? 0 : size - x.offset;

			if (!has_bytes(fd, j->a.data + x.pos, below < x.length ? below : x.length, x.offset))
				return false;
		}
	}
	return true;
}

/*
 * The file is older than the guard says, and nobody has touched it since: its file system, which is not the arena's, has
 * lost what it had not written.  (A copy that is put back has a change time of its own.)
 */
static bool went_back(const struct arena_guard *g, const struct statx *st)
{
	const struct statx_timestamp *c = &st->stx_ctime;

	return g->known &&
	       (c->tv_sec < g->mtime_sec || (c->tv_sec == g->mtime_sec && c->tv_nsec < g->mtime_nsec));
}

/*
 * May the blocks of the slot be replayed into the file, which was found?  NULL, or why not.
 *
 * In the same life of the file system the arena is whole, and bytes at a position wait only for a look at whether
 * somebody else has written the file since.  After another boot or mount the arena may be older than the file: it
 * counts when the file is just as the arena says, and when no overwrite was synced, of which the file's time tells
 * nothing.  When only the journal has changed the file since, what it changed must be what the arena says, too.
 */
static const char *judge(struct job *j, uint32_t slot, const struct recover_target *t, int n)
{
	const struct arena_slot *s = foreign_slot(&j->a, slot);
	struct statx st;
	bool same = j->where == ORIGIN_SAME, holds;

	if (n == 0 || j->live || j->opt->force || t->orphan)
		return NULL;
	if (same && t->proved && !is_positional(j, slot))
		return NULL;
	if (sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME | STATX_CTIME, &st) < 0)
		return "the file cannot be looked at";
	if (j->where == ORIGIN_OTHER &&
	    !is_gapless(j, n, is_positional(j, slot) ? st.stx_size : lowest(j, n)))
		return "after another boot something is missing between them";
	holds = guard_holds(&s->guard, &st);
	/* a flush that was under way when the power went may have left anything */
	if (j->where == ORIGIN_OTHER && s->guard.begun_ns != 0)
		holds = false;
	if (holds && (same || !(s->flags & SLOT_SYNCED) || lowest(j, n) >= s->guard.size))
		return NULL;
	if (same && went_back(&s->guard, &st))
		return NULL;
	/* in one boot, whatever others wrote: behind the end of a file that has not been cut there is nothing of theirs */
	if (j->where != ORIGIN_OTHER && is_positional(j, slot) && t->proved && s->guard.known &&
	    st.stx_size >= s->guard.size && lowest(j, n) >= st.stx_size)
		return NULL;
	if (j->where == ORIGIN_MOUNT && !is_positional(j, slot) && t->proved && s->guard.known) {
		int found = recover_appended(&j->a, n, DONE_SKIP(s->done), t->fd, s->guard.size, st.stx_size);

		j->found = found > 0 ? found : 0;
		if (found >= 0)
			return NULL;
	}
	j->by_offset = j->where == ORIGIN_MOUNT && s->guard.known == RECOVER_GUARD_HELD &&
	               is_gapless(j, n, st.stx_size) && only_adds(j, t->fd, n, st.stx_size);
	if (j->by_offset)
		return NULL;
	if (holds)
		return "after another boot or mount they may be older than what was synced";
	return same ? "the file has been changed since"
	            : "after another boot or mount the file is not as it was left";
}

/* Before the journal is replayed into them: which files are as the arena left them? */
static void note_held(struct job *j)
{
	for (uint32_t i = 0; i < j->a.header.slot_count; i++) {
		struct arena_slot *s = foreign_slot(&j->a, i);
		BUFFER(struct recover_target, t);
		struct statx st;

		s->path[ARENA_PATH_MAX - 1] = '\0';
		if (!s->used || s->path[0] != '/' || recover_target_open(t, s, &j->place, false) < 0)
			continue;
		if (sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_MTIME, &st) == 0 &&
		    guard_holds(&s->guard, &st))
			s->guard.known = RECOVER_GUARD_HELD;
		recover_target_close(t);
	}
}

static bool is_in_order(const struct job *j, uint32_t slot)
{
	const struct arena_slot *s = foreign_slot(&j->a, slot);

	return s->path[0] == '/';
}

/* The bytes stay in the arena, which is put aside when the others of its files are done. */
static int keep_aside(struct job *j, const struct arena_slot *s, uint64_t bytes, const char *why)
{
	const char *name = strrchr(j->arena, '/') + 1;
	BUFFER(char, dir);
	BUFFER(char, detail);

	if (j->living) {
		/* the arena is in use: it cannot go anywhere */
		tell(j, s->path, "failed", bytes, -EBUSY, why);
		return -EBUSY;
	}
	log_format(dir, PATH_MAX, "%s", j->arena);
	dir[name - j->arena] = '\0';
	log_format(detail, BUFFER_BYTES, "%s; `fastwrite recover --force %s%s%s` writes them", why, dir,
	           j->in_aside ? "" : RECOVER_ASIDE "/", name);
	tell(j, s->path, "aside", bytes, 0, detail);
	j->report->aside++;
	j->report->unsynced += j->where == ORIGIN_OTHER;
	j->keeps = true;
	return 0;
}

static int slot_done(struct job *j, struct arena_slot *s)
{
	if (j->living) {
		/* the slot stays the family's */
		s->flags &= ~(uint32_t)SLOT_PADDED;
		return foreign_store(&j->a, (void *)&s->flags, sizeof s->flags);
	}
	s->used = 0;
	return foreign_store(&j->a, (void *)&s->used, sizeof s->used);
}

/* The first blocks are in the file: how many. */
static int drop_found(struct job *j, struct arena_slot *s, int n)
{
	int found = j->found;

	if (found == 0)
		return 0;
	s->done = DONE_MAKE(j->a.blocks[j->a.order[found - 1]].seq, 0);
	memmove(j->a.order, j->a.order + found, (size_t)(n - found) * sizeof *j->a.order);
	return found;
}

/* Everything is in the file: its end is as the program left it. */
static int finish_file(struct job *j, uint32_t slot, int fd, int n)
{
	struct arena_slot *s = foreign_slot(&j->a, slot);
	int r = stamp(j, s);

	if (r == 0 && j->where == ORIGIN_SAME)
		r = unpad(j, slot, fd, n);
	else if (s->flags & SLOT_PADDED)
		log_warn("%s: zeros may stand behind its end (prealloc_mode = zero)", s->path);
	/* (a living member may be about to write behind the end) */
	if (r == 0 && !j->living)
		trim(j, s, fd);
	return r;
}

/* A file that is gone is still the living members' business. */
static int open_target(const struct job *j, struct recover_target *t, const struct arena_slot *s, bool keep)
{
	enum { TRIES = 12 }; /* of 5 s: the kernel takes back a lease that nobody answers for within 45 */
	int r = recover_target_open(t, s, &j->place, keep && !j->living);

	for (int i = 1; r == -EAGAIN && i < TRIES; i++)
		r = recover_target_open(t, s, &j->place, keep && !j->living);
	return r;
}

/* One file of the arena.  0 when it is done, or j->keeps; -errno: it is left as it is. */
static int recover_slot(struct job *j, uint32_t slot)
{
	struct arena_slot *s = foreign_slot(&j->a, slot);
	BUFFER(struct recover_target, t);
	uint64_t bytes = 0;
	int n = foreign_blocks(&j->a, slot);
	int r = n < 0 ? n : count_bytes(j, n, &bytes);
	bool damaged = r == -EILSEQ;
	const char *why = NULL;

	j->by_offset = false;
	j->found = 0;
	s->path[ARENA_PATH_MAX - 1] = '\0';
	if (r == -EILSEQ && !j->live) {
		j->a.unchecked = true;
		r = count_bytes(j, n, &bytes);
		j->a.unchecked = j->opt->force;
	}
	if (r == 0 && damaged && !j->opt->force)
		return keep_aside(j, s, bytes, "damaged: the checksum does not fit");
	if (r == 0 && n > 0 && !is_in_order(j, slot))
		r = -EBADMSG;
	/* (after another boot or mount its pages may be of different moments) */
	if (r == -EBADMSG && j->where != ORIGIN_SAME && !j->live && !j->living && !j->opt->force)
		return keep_aside(j, s, bytes, "damaged: it did not reach the disk as a whole");
	if (r < 0) {
		tell(j, s->path, "failed", 0, r, "damaged");
		return r;
	}
	/* (whoever was killed while the path changed had nothing staged) */
	if (!is_in_order(j, slot))
		return j->opt->dry_run ? 0 : slot_done(j, s);
	r = open_target(j, t, s, bytes > 0 && !j->opt->dry_run);
	if (r == 0)
		why = judge(j, slot, t, n);
	if (r == 0 && why) {
		recover_target_close(t);
		return keep_aside(j, s, bytes, why);
	}
	n -= drop_found(j, s, n);
	if (j->opt->dry_run) {
		if (r == 0)
			recover_target_close(t);
		tell(j, s->path, bytes ? "recovered" : "nothing", bytes, 0, "");
		j->report->recovered += bytes > 0;
		j->report->bytes += bytes;
		return 0;
	}
	if (r == -ENOENT && (bytes == 0 || j->living))
		return slot_done(j, s);
	if (r == 0)
		r = replay(j, slot, t->fd, n, bytes);
	if (r == SEARCH_TOO_LONG && !j->live) {
		recover_target_close(t);
		return keep_aside(j, s, bytes, "others have appended much; they may be in the file already");
	}
	if (r == 0 && j->living && n > 0)
		r = takeover_done(&j->a, slot, n);
	if (r == 0 && !t->orphan)
		r = finish_file(j, slot, t->fd, n);
	if (r == 0 && bytes > 0)
		r = sys.fdatasync(t->fd);
	if (r < 0 && t->fd >= 0 && !t->orphan)
		stamp_ends(j, s, t->fd);
	recover_target_close(t);
	if (r < 0) {
		tell(j, s->path, "failed", bytes, r,
		     t->orphan ? "it is gone, and its bytes cannot be put aside; left in the arena"
		     : r == RECOVER_ELSEWHERE
		             ? "its directory is not there: mounted elsewhere, or in a container?  "
		               "left in the arena"
		             : "left in the arena");
		return r;
	}
	if (bytes > 0) {
		tell(j, s->path, t->orphan ? "orphaned" : "recovered", bytes, 0, t->orphan ? t->path : "");
		j->report->orphans += t->orphan;
		j->report->recovered += !t->orphan;
		j->report->bytes += bytes;
	}
	return slot_done(j, s);
}

/* The arena is ours alone, and loaded.  0 when it may be removed. */
static int recover_loaded(struct job *j)
{
	int failed = 0;

	for (uint32_t i = 0; i < j->a.header.slot_count; i++) {
		int r;

		if (!foreign_slot(&j->a, i)->used)
			continue;
		if (j->only && foreign_slot(&j->a, i)->ino != j->only) {
			j->keeps = true;
			continue;
		}
		r = recover_slot(j, i);
		if (r < 0) {
			failed = r;
			j->report->failed++;
		}
	}
	return failed;
}

/* Into a description that the program may use, too: flags and offset end as they were. */
static int replay_into(struct job *j, uint32_t slot, int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);
	off_t offset = sys.lseek(fd, 0, SEEK_CUR);
	uint64_t bytes = 0;
	int n = foreign_blocks(&j->a, slot);
	int r = n < 0 ? n : count_bytes(j, n, &bytes);

	if (r == 0 && flags < 0)
		r = (int)flags;
	if (r == 0 && n > 0)
		r = (int)sys.fcntl(fd, F_SETFL,
		                   flags & ~(is_positional(j, slot) ? O_APPEND | O_DIRECT : O_DIRECT));
	if (r == 0)
		r = replay(j, slot, fd, n, bytes);
	sys.fcntl(fd, F_SETFL, flags);
	sys.lseek(fd, offset, SEEK_SET);
	return r;
}

/* Of an arena that is loaded; j->where is known. */
static int find_place(struct job *j, int arena_fd)
{
	struct statx st;
	int r = sys.statx(arena_fd, "", AT_EMPTY_PATH, STATX_INO, &st);

	j->place = (struct recover_place){
		.staging_fd = j->dirfd, .dev_then = j->a.header.origin.dev, .dev_now = sys_dev_of(&st)};
	if (r == 0 && j->in_aside)
		j->place.staging_fd = sys.openat(j->dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	return j->place.staging_fd < 0 ? j->place.staging_fd : r;
}

static void leave_place(const struct job *j)
{
	if (j->in_aside && j->place.staging_fd >= 0)
		sys.close(j->place.staging_fd);
}

int recover_live_slot(int arena_fd, const char *dir, uint32_t slot, int fd)
{
	struct recover_options opt = {0};
	struct recover_report report = {0};
	BUFFER(struct job, j);
	struct sys_quiet quiet;
	int r;

	*j = (struct job){
		.opt = &opt, .report = &report, .arena = (char *)(uintptr_t)dir, .dirfd = -1, .live = true};
	r = foreign_load(&j->a, arena_fd);

	if (r < 0)
		return r;
	sys_quiet_begin(&quiet);
	if (slot >= j->a.header.slot_count || !foreign_slot(&j->a, slot)->used) {
		r = 0;
	} else if (fd >= 0) {
		r = replay_into(j, slot, fd);
	} else {
		j->dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
		r = j->dirfd < 0 ? j->dirfd : find_place(j, arena_fd);
		if (r == 0)
			r = recover_slot(j, slot);
		if (j->dirfd >= 0)
			sys.close(j->dirfd);
	}
	sys_quiet_end(&quiet);
	foreign_unload(&j->a);
	return r;
}

/* Whose arena is it?  The kernel vouches for the file's owner, not for what the header claims.  He alone may have written
 * to it, and made it here: somebody else's file that was moved here is no arena of his. */
int recover_owner_allowed(int dirfd, int fd)
{
	uint32_t me = (uint32_t)sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0);
	struct statx st, dir;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r == 0)
		r = sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &dir);
	if (r < 0)
		return r;
	if ((st.stx_mode & S_IFMT) != S_IFREG || st.stx_nlink > 1)
		return -EBADMSG;
	if ((st.stx_mode & 022) || (st.stx_uid != dir.stx_uid && dir.stx_uid != 0))
		return -EPERM;
	return me == 0 || me == st.stx_uid ? 0 : -EPERM;
}

int recover_maker(int fd, const struct origin *then, int pid, uint64_t pid_start, enum origin_verdict *where)
{
	struct origin now;
	int r = origin_here(fd, &now);

	if (r < 0)
		return r;
	*where = origin_compare(then, &now);
	if (*where == ORIGIN_OTHER)
		return 0;
	return pid != sys_getpid() && pid_start != 0 && pid_start_time(pid) == pid_start ? -EWOULDBLOCK : 0;
}

static int take_rights(struct job *j, struct recover_rights *rights)
{
	struct statx st;
	int r = sys.statx(j->a.fd, "", AT_EMPTY_PATH, STATX_UID, &st);

	return r < 0 ? r : recover_rights_take(rights, st.stx_uid);
}

bool recover_is_our_make(const char *name, const char *suffix)
{
	const char *p = name;

	if (*p < '1' || *p > '9')
		return false;
	while (*p >= '0' && *p <= '9')
		p++;
	if (*p != '-' || !(p = strrchr(p + 1, '-')))
		return false;
	for (p++; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
		;
	return strcmp(p, suffix) == 0;
}

/*
 * Locks a dead arena for its recovery.  -EWOULDBLOCK: it is alive, since its members share the lock.  When somebody else
 * is recovering it, that is waited for: who looks at the file now must find it complete, and must not write before it is.
 */
int recover_lock_dead(int fd)
{
	enum { NAPS_MAX = 10000 };
	int r = sys.flock(fd, LOCK_EX | LOCK_NB);

	for (int i = 0; r == -EWOULDBLOCK && i < NAPS_MAX; i++) {
		if (sys.flock(fd, LOCK_SH | LOCK_NB) == 0)
			return sys.flock(fd, LOCK_EX | LOCK_NB); /* whoever had it alone left it as it was */
		sys_nap(1000000);
		r = sys.flock(fd, LOCK_EX | LOCK_NB);
	}
	return r;
}

/*
 * After another boot or mount what was synced comes first: the journal's entries are sure to be whole and promised, the
 * arena may be older.  A file that they change is then not as the arena left it, and the arena's bytes are put aside.
 */
static void journal_first(struct job *j, const char *name)
{
	BUFFER(char, dir);
	BUFFER(char, journal);

	journal_name_of(name, journal);
	if (j->where == ORIGIN_SAME || j->only ||
	    sys_raw(SYS_faccessat, j->dirfd, (long)journal, 0, 0, 0, 0) < 0)
		return;
	log_format(dir, PATH_MAX, "%s", j->arena);
	*strrchr(dir, '/') = '\0';
	note_held(j);
	recover_journal(dir, j->dirfd, journal, j->in_aside, &j->a, j->opt, j->report);
}

/* Nothing in the arena waits for another try of its own. */
static void put_away(struct job *j, const char *name)
{
	int r = 0;

	if (!j->keeps)
		r = sys.unlinkat(j->dirfd, name, 0);
	else if (!j->in_aside && !j->only && !j->moved)
		r = recover_put_aside(&j->a, j->dirfd, name);
	if (r < 0 && r != -ENOENT) {
		j->report->failed++;
		tell(j, "", "failed", 0, r,
		     j->keeps ? "cannot be put aside; left where it is" : "cannot be removed");
	}
}

static void say_held(struct job *j, uint32_t slot, int error, int pid)
{
	struct arena_header *h = &j->a.header;
	int n = foreign_blocks(&j->a, slot);
	uint64_t bytes = 0;
	BUFFER(char, detail);

	h->program[sizeof h->program - 1] = '\0';
	if (n < 0 || count_bytes(j, n, &bytes) < 0)
		bytes = 0;
	log_format(detail, BUFFER_BYTES, "%s (pid %d) holds %llu bytes staged for it%s", h->program,
	           pid > 0 ? pid : h->pid, (unsigned long long)bytes,
	           error == -EBUSY ? ", and is at work on it or stopped" : "");
	tell(j, foreign_slot(&j->a, slot)->path, "failed", bytes, error, detail);
	j->report->failed++;
}

/* What a dead member of a living family had staged there. */
static void recover_taken(struct job *j, struct takeover *t, uint32_t slot)
{
	int pid = 0;
	int r = j->opt->dry_run ? 0 : takeover_allowed(t, slot, &pid);

	foreign_slot(&j->a, slot)->path[ARENA_PATH_MAX - 1] = '\0';
	if (r == 0) {
		r = recover_slot(j, slot);
		j->report->failed += r < 0;
	} else if (r != -EAGAIN) {
		say_held(j, slot, r, pid);
	}
	if (r < 0)
		takeover_failed(t);
}

/* The arena is loaded, and keepers of it are dead. */
static int take_over(struct job *j, struct takeover *t)
{
	BUFFER(struct recover_rights, rights);
	int r = take_rights(j, rights);

	if (r < 0)
		return r;
	if (!j->opt->dry_run)
		r = takeover_seal(t, &j->a);
	for (uint32_t i = 0; r == 0 && i < j->a.header.slot_count; i++)
		if (takeover_concerns(t, &j->a, i))
			recover_taken(j, t, i);
	recover_rights_drop(rights);
	return r;
}

/* Members of its family live.  What others had staged that are dead is recovered all the same. */
static void recover_living(struct job *j, int fd)
{
	BUFFER(struct takeover, t);
	int r = 0;

	j->report->live++;
	/* shared, as members have it: it keeps away who would recover the arena as a whole when the last one dies */
	if (sys.flock(fd, LOCK_SH | LOCK_NB) == 0 && takeover_begin(t, fd)) {
		r = foreign_load(&j->a, fd);
		j->living = true;
		if (r == 0)
			r = find_place(j, fd);
		if (r == 0)
			r = take_over(j, t);
		if (r < 0)
			takeover_failed(t);
		takeover_end(t);
		foreign_unload(&j->a);
	}
	if (r < 0) {
		j->report->failed++;
		tell(j, "", "failed", 0, r, "what a dead process of a living family staged cannot be read");
		return;
	}
	tell(j, "", "live", 0, 0, "its process is running");
}

static void recover_locked(struct job *j, const char *name)
{
	BUFFER(struct recover_rights, rights);
	int fd, r;

	j->report->arenas++;
	if (own_arena_is(name)) {
		/* live, and opening and closing it would be work for nothing */
		j->report->live++;
		j->report->own++;
		return;
	}
	fd = sys.openat(j->dirfd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd == -ENOENT)
		return;
	r = fd < 0 ? fd : recover_owner_allowed(j->dirfd, fd);
	if (r == 0) {
		r = recover_lock_dead(fd);
		if (r == -EWOULDBLOCK) {
			recover_living(j, fd);
			goto out;
		}
	}
	if (r == 0 && !sys_still_linked(fd))
		goto out; /* somebody else was quicker */
	if (r == 0)
		r = foreign_load(&j->a, fd);
	if (r == 0) {
		r = recover_maker(fd, &j->a.header.origin, j->a.header.pid, j->a.header.pid_start, &j->where);
		if (r < 0)
			foreign_unload(&j->a);
	}
	if (r == -EWOULDBLOCK) {
		j->report->live++;
		tell(j, "", "live", 0, 0, "its process is running");
		goto out;
	}
	if (r == 0) {
		r = find_place(j, fd);
		if (r == 0)
			journal_first(j, name);
		if (r == 0)
			r = take_rights(j, rights);
		if (r == 0) {
			r = recover_loaded(j);
			/* the directory for it must be the owner's; or, where others stage as well, root's */
			if (r == 0 && j->keeps && !j->in_aside && !j->only && !j->opt->dry_run)
				j->moved = recover_put_aside(&j->a, j->dirfd, name) == 0;
			recover_rights_drop(rights);
		} else {
			j->report->failed++;
			tell(j, "", "failed", 0, r, "cannot act with the rights of its owner; left alone");
		}
		leave_place(j);
		kill_step();
		if (r == 0 && !j->opt->dry_run)
			put_away(j, name);
		foreign_unload(&j->a);
		kill_step();
		goto out;
	}
	if (r == -ENODATA && !recover_is_our_make(name, ARENA_SUFFIX))
		r = -EBADMSG;
	if (r == -ENODATA) {
		tell(j, "", "nothing", 0, 0, "its process died before it used it");
		if (!j->opt->dry_run)
			sys.unlinkat(j->dirfd, name, 0);
		goto out;
	}
	j->report->failed++;
	tell(j, "", "failed", 0, r,
	     r == -EBADMSG  ? "not an arena of this version, or truncated; left alone"
	     : r == -ESTALE ? "a copy: what it holds may be older than the files; left alone"
	     : r == -EPERM  ? "not its directory's owner's, or others may write to it; left alone"
	                    : "cannot be read; left alone");
out:
	if (fd >= 0)
		sys.close(fd);
}

/* What goes beyond RLIMIT_FSIZE is an error like any other, and no SIGXFSZ. */
static void recover_arena(struct job *j, const char *name)
{
	struct sys_quiet quiet;

	sys_quiet_begin(&quiet);
	recover_locked(j, name);
	sys_quiet_end(&quiet);
}

static bool has_suffix(const char *name, const char *suffix)
{
	size_t n = strlen(name), s = strlen(suffix);

	return n > s && strcmp(name + n - s, suffix) == 0;
}

static bool is_arena_name(const char *name) { return has_suffix(name, ARENA_SUFFIX); }
static bool is_journal_name(const char *name) { return has_suffix(name, JOURNAL_SUFFIX); }

/* A staging directory must belong to us (or we are root), and nobody else may write to it. */
static int dir_allowed(int dirfd)
{
	uint32_t me = (uint32_t)sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0);
	struct statx st;
	int r = sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r < 0)
		return r;
	return (me == 0 || st.stx_uid == me) && !(st.stx_mode & 022) ? 0 : -EPERM;
}

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), e = strlen(end);

	return n >= e && strcmp(s + n - e, end) == 0;
}

static bool is_staging_name(const char *dir)
{
	return ends_with(dir, "/" ARENA_DIR) || ends_with(dir, "/" ARENA_DIR "/") ||
	       strcmp(dir, ARENA_DIR) == 0;
}

/*
 * Arenas, then journals, in the order in which they were made, as their names say: what one program wrote over another's bytes, or behind
 * them, stays so when both are dead.  So many at a time as there is room for.
 */
struct queue_entry {
	uint64_t made;
	char name[256];
};
struct queue {
	uint32_t count;
	struct queue_entry last; /* done, with all before it */
	struct queue_entry entries[128];
};

/* "<pid>-<rule>-<time>.arena" or .journal; other names come first. */
uint64_t recover_time_in_name(const char *name)
{
	const char *p = recover_is_our_make(name, ARENA_SUFFIX) || recover_is_our_make(name, JOURNAL_SUFFIX)
	                        ? strrchr(name, '-') + 1
	                        : "";
	uint64_t value = 0;

	for (; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
		value = value << 4 | (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
	return value;
}

static bool made_before(const struct queue_entry *a, const struct queue_entry *b)
{
	return a->made != b->made ? a->made < b->made : strcmp(a->name, b->name) < 0;
}

/* Keeps the first ones of those that are not done. */
static void queue_put(struct queue *q, const char *name)
{
	const uint32_t room = sizeof q->entries / sizeof *q->entries;
	BUFFER(struct queue_entry, e);
	uint32_t at = q->count;

	e->made = recover_time_in_name(name);
	log_format(e->name, sizeof e->name, "%s", name);
	if (q->last.name[0] && !made_before(&q->last, e))
		return;
	while (at > 0 && made_before(e, &q->entries[at - 1]))
		at--;
	if (at == room)
		return;
	if (q->count < room)
		q->count++;
	memmove(&q->entries[at + 1], &q->entries[at], (q->count - 1 - at) * sizeof *e);
	q->entries[at] = *e;
}

/* The next ones in the directory. */
static int queue_fill(struct queue *q, int dirfd, bool journals)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	q->count = 0;
	if (sys.lseek(dirfd, 0, SEEK_SET) < 0)
		return -EIO;
	while ((d = sys_dir_next(&entries)) != NULL)
		if (journals ? is_journal_name(d->name) : is_arena_name(d->name))
			queue_put(q, d->name);
	return (int)entries.filled;
}

/* What recover_all_in looks for. */
struct sort {
	bool journals;
	bool in_aside;
	uint64_t only; /* see struct job */
};

static int recover_all_in(const char *dir, int dirfd, const struct sort *sort,
                          const struct recover_options *opt, struct recover_report *report)
{
	struct queue *q =
		sys.mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	BUFFER(struct job, j);
	BUFFER(char, arena);
	int r;

	if (sys_is_error(q))
		return (int)(intptr_t)q;
	while ((r = queue_fill(q, dirfd, sort->journals)) == 0 && q->count > 0) {
		for (uint32_t i = 0; i < q->count; i++) {
			*j = (struct job){.opt = opt,
			                  .report = report,
			                  .arena = arena,
			                  .dirfd = dirfd,
			                  .in_aside = sort->in_aside,
			                  .only = sort->only};
			if (sort->journals) {
				if (!sort->only)
					recover_journal(dir, dirfd, q->entries[i].name, sort->in_aside, NULL,
					                opt, report);
				continue;
			}
			log_format(arena, PATH_MAX, "%s/%s", dir, q->entries[i].name);
			recover_arena(j, q->entries[i].name);
		}
		q->last = q->entries[q->count - 1];
	}
	sys.munmap(q, sizeof *q);
	return r;
}

/* A staging directory of the user's own choice has any name; one in which nothing is named like ours is none, whoever may
 * write to it.  1, 0 or -errno. */
static int has_ours(int dirfd)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	while ((d = sys_dir_next(&entries)) != NULL)
		if (is_arena_name(d->name) || recover_is_our_make(d->name, JOURNAL_SUFFIX))
			return 1;
	return (int)entries.filled;
}

static int recover_both_in(const char *dir, int dirfd, struct sort sort, const struct recover_options *opt,
                           struct recover_report *report)
{
	int r = recover_all_in(dir, dirfd, &sort, opt, report);

	sort.journals = true;
	return r < 0 ? r : recover_all_in(dir, dirfd, &sort, opt, report);
}

/* What was put aside before: it is named each time, and with opt->force written. */
static int recover_kept(const char *dir, int dirfd, uint64_t only, const struct recover_options *opt,
                        struct recover_report *report)
{
	BUFFER(char, path);
	int fd = sys.openat(dirfd, RECOVER_ASIDE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	log_format(path, PATH_MAX, "%s/" RECOVER_ASIDE, dir);
	r = dir_allowed(fd);
	if (r == 0)
		r = recover_both_in(path, fd, (struct sort){.in_aside = true, .only = only}, opt, report);
	sys.close(fd);
	if (r == 0 && !opt->dry_run)
		sys.unlinkat(dirfd, RECOVER_ASIDE, AT_REMOVEDIR);
	return r;
}

static int recover_directory(const char *dir, uint64_t only, const struct recover_options *opt,
                             struct recover_report *report)
{
	uint64_t before = report->arenas;
	int dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	sys_sigset signals;
	int r;

	if (dirfd < 0)
		return dirfd;
	r = is_staging_name(dir) ? 1 : has_ours(dirfd);
	if (r <= 0) {
		sys.close(dirfd);
		return r;
	}
	r = dir_allowed(dirfd);
	signals =
		sys_block_signals(); /* for lease_take_own, and so that a signal handler sees no half of it */
	if (r == 0)
		r = recover_kept(dir, dirfd, only, opt, report);
	if (r == 0)
		r = recover_both_in(dir, dirfd, (struct sort){.only = only}, opt, report);
	sys.close(dirfd);
	/* (when it is empty; what was never one of ours stays) */
	if (r == 0 && !opt->dry_run && (is_staging_name(dir) || report->arenas > before))
		staging_dir_remove(dir);
	sys_restore_signals(signals);
	return r;
}

/* An arena, and the journal beside it; or a journal. */
static void recover_one(struct job *j, const char *dir, const char *name)
{
	BUFFER(char, journal);

	if (is_journal_name(name)) {
		recover_journal(dir, j->dirfd, name, j->in_aside, NULL, j->opt, j->report);
		return;
	}
	recover_arena(j, name);
	journal_name_of(name, journal);
	if (sys_raw(SYS_faccessat, j->dirfd, (long)journal, 0, 0, 0, 0) == 0)
		recover_journal(dir, j->dirfd, journal, j->in_aside, NULL, j->opt, j->report);
}

static int recover_one_file(const char *path, const struct recover_options *opt,
                            struct recover_report *report)
{
	const char *slash = strrchr(path, '/');
	BUFFER(char, dir);
	BUFFER(char, arena);
	BUFFER(struct job, j);
	sys_sigset signals;
	int r;

	*j = (struct job){.opt = opt, .report = report, .arena = arena};
	if (!slash)
		log_format(dir, PATH_MAX, ".");
	else
		log_format(dir, PATH_MAX, "%s", path);
	if (slash)
		dir[slash == path ? 1 : slash - path] = '\0';
	j->dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (j->dirfd < 0)
		return j->dirfd;
	j->in_aside = ends_with(dir, "/" ARENA_DIR "/" RECOVER_ASIDE);
	r = dir_allowed(j->dirfd);
	if (r == 0) {
		log_format(arena, PATH_MAX, "%s", path);
		signals = sys_block_signals();
		recover_one(j, dir, slash ? slash + 1 : path);
		sys_restore_signals(signals);
	}
	sys.close(j->dirfd);
	if (r == 0 && !opt->dry_run && is_staging_name(dir))
		staging_dir_remove(dir);
	return r;
}

/* Other programs have journals, too. */
static bool is_journal_in_staging(const char *path)
{
	const char *slash = strrchr(path, '/');

	return is_journal_name(path) &&
	       (recover_is_our_make(slash ? slash + 1 : path, JOURNAL_SUFFIX) || strstr(path, ARENA_DIR "/"));
}

int recover_path(const char *given, const struct recover_options *opt, struct recover_report *report)
{
	BUFFER(char, path);
	BUFFER(char, dir);
	struct statx st;
	size_t n = log_format(path, PATH_MAX - sizeof "/" ARENA_DIR, "%s", given);

	if (given[n] != '\0')
		return -ENAMETOOLONG;
	/* with a slash behind it a link would be followed */
	while (n > 1 && path[n - 1] == '/')
		path[--n] = '\0';
	int r = sys.statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &st), beside;

	if (r == 0 && (st.stx_mode & S_IFMT) == S_IFDIR) {
		if (is_staging_name(path))
			return recover_directory(path, 0, opt, report);
		log_format(dir, PATH_MAX, "%s/" ARENA_DIR, path);
		r = recover_directory(dir, 0, opt, report);
		if (r != -ENOENT)
			return r;
		return recover_directory(path, 0, opt, report);
	}
	if (is_arena_name(path) || is_journal_in_staging(path))
		return r < 0 ? r : recover_one_file(path, opt, report);
	if (r < 0 && r != -ENOENT)
		return r;
	/* a managed file, or one that was renamed: the staging is beside it */
	log_format(dir, PATH_MAX, "%s", path);
	if (strrchr(dir, '/'))
		log_format(strrchr(dir, '/'), 16, "/" ARENA_DIR);
	else
		log_format(dir, PATH_MAX, ARENA_DIR);
	/* (what is forced is forced for the file that was named) */
	beside = recover_directory(dir, opt->force && r == 0 ? st.stx_ino : 0, opt, report);
	if (beside == -ENOENT)
		return r < 0 ? r : -ENODATA;
	return beside;
}
