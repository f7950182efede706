// SPDX-License-Identifier: Apache-2.0
/* journal: see recovery/journal.h and format/journal_format.h.  Everything read here is untrusted. */
#include "recovery/journal.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/journal_format.h"
#include "recovery/aside.h"
#include "recovery/bytes.h"
#include "recovery/claim.h"
#include "recovery/judge.h"
#include "recovery/names.h"
#include "recovery/own_arena.h"
#include "recovery/parse.h"
#include "recovery/rights.h"
#include "recovery/target.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { OPEN_MAX_FILES = 32 };

/* One half's batches. */
struct chain {
	unsigned half;
	uint64_t first_seq, batches;
	uint64_t end; /* offset in the half behind the last one */
};
_Static_assert(JOURNAL_UNIT_MAX <= JOURNAL_HEADER_BYTES, "a header is read and written whole");

/* A file that entries name. */
struct entry_file {
	uint64_t number;  /* 0 = free place */
	uint64_t name_at; /* content of its last JOURNAL_NAME, in the journal file */
	uint32_t name_bytes;
	uint64_t ino;
	int64_t btime_sec; /* one inode number may be of a file that is gone, and of a new one */
	uint32_t btime_nsec;
	int result;       /* -errno of what was done for it */
	bool aside;       /* nobody can say whether its entries are older than the file */
	bool held;        /* but the arena says that it has what they have: they are kept for safety's sake */
	int64_t first_ns; /* when the first of the entries that count was written */
	uint64_t void_seq, void_at; /* entries before this place do not count */
	uint64_t bytes;             /* of those that do */
	int fd_plus_1;
	bool orphan;
	bool appends; /* append-only: the kernel puts everything at its end */
	bool waits;   /* the arena has bytes of it still, which come first */
};

struct scan {
	const struct recover_options *opt;
	struct recover_report *report;
	const char *path; /* of the journal, for events */
	int fd, dirfd;
	struct recover_place place;
	enum origin_verdict where;
	bool in_aside;
	bool keeps; /* entries stay, to be put aside */
	struct journal_header header;
	uint8_t *batch;           /* JOURNAL_BATCH_MAX */
	struct chain chains[2];   /* older first */
	struct entry_file *files; /* open addressing */
	uint64_t file_places;     /* a power of two */
	uint64_t names;           /* entries of that kind */
	uint64_t newest;
	int open_files;
	bool told;
	int64_t boot_ns;                  /* of this kernel */
	struct journal_replay replayed;   /* by recoveries that began before, if in this boot */
	const struct foreign_arena *held; /* the arena beside it, where files may be as that says */
	struct foreign_arena *waiting;    /* of the same process: its recovery failed for some files */
};

static void tell(const struct scan *s, const char *target, const char *action, uint64_t bytes, int error,
                 const char *detail)
{
	struct recover_event e = {.arena = s->path,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (s->opt->event)
		s->opt->event(s->opt->ctx, &e);
}

/* 0; -ENODATA: its maker died before it was complete; -EBADMSG */
static int load_header(struct scan *s)
{
	struct journal_header *h = &s->header;
	struct statx st;
	int r = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r < 0)
		return r;
	s->place.dev_now = sys_dev_of(&st);
	if (st.stx_size < JOURNAL_HEADER_BYTES)
		return -ENODATA;
	r = sys_read_all(s->fd, h, sizeof *h, 0);
	if (r < 0)
		return r;
	if (h->magic == 0 && h->checksum == 0)
		return -ENODATA;
	if (h->magic != JOURNAL_MAGIC || h->version != JOURNAL_VERSION ||
	    h->checksum != journal_header_checksum(h))
		return -EBADMSG;
	if (h->unit < JOURNAL_UNIT_MIN || h->unit > JOURNAL_UNIT_MAX || (h->unit & (h->unit - 1)) ||
	    h->half_bytes % h->unit || h->half_bytes == 0 || h->half_bytes > (UINT64_C(1) << 40) ||
	    h->total_bytes != JOURNAL_HEADER_BYTES + 2 * h->half_bytes || h->total_bytes != st.stx_size)
		return -EBADMSG;
	/* it lies beside the arena, on one file system */
	s->place.dev_then = h->origin.dev;
	return h->ino != 0 && h->ino != st.stx_ino ? -ESTALE : 0;
}

/*
 * The batch at this place of the half, whole and with the right checksum, in s->batch.  `seq` 0 = any.  1; 0:
 * there is none; -errno: it cannot be read, and who knows what stands there.
 */
static int read_batch(struct scan *s, unsigned half, uint64_t at, uint64_t seq)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;
	uint64_t from = journal_half_at(&s->header, half) + at;
	uint64_t left = s->header.half_bytes - at;
	int r;

	if (left < s->header.unit)
		return 0;
	r = sys_read_all(s->fd, s->batch, s->header.unit, from);
	if (r < 0)
		return r;
	if (b->magic != JOURNAL_BATCH_MAGIC || b->seq == 0 || (seq && b->seq != seq) ||
	    memcmp(b->id, s->header.id, sizeof b->id) != 0 || b->bytes < sizeof *b ||
	    b->bytes > JOURNAL_BATCH_MAX || b->bytes > left)
		return 0;
	if (b->bytes > s->header.unit)
		r = sys_read_all(s->fd, s->batch + s->header.unit, b->bytes - s->header.unit,
		                 from + s->header.unit);
	if (r < 0)
		return r;
	return b->checksum == journal_batch_checksum(b);
}

static uint64_t batch_step(const struct scan *s)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	return ((uint64_t)b->bytes + s->header.unit - 1) & ~((uint64_t)s->header.unit - 1);
}

/* What one entry is, and where. */
struct found {
	struct journal_entry e;
	const uint8_t *content;
	uint64_t content_at; /* in the journal file */
	uint64_t seq, at;    /* its place */
};

/* Every entry of the chain in order; `visit` returns -errno to end it. */
static int walk(struct scan *s, const struct chain *c, int (*visit)(struct scan *s, const struct found *f))
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < c->batches; i++) {
		const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

		int got = read_batch(s, c->half, at, c->first_seq + i);

		if (got <= 0)
			return got < 0 ? got : -EIO; /* it was there a moment ago */
		for (uint32_t p = sizeof *b; p < b->bytes;) {
			struct found f = {.seq = b->seq, .at = p};
			int r;

			if (b->bytes - p < sizeof f.e)
				return -EBADMSG;
			memcpy(&f.e, s->batch + p, sizeof f.e);
			if (f.e.length > JOURNAL_BATCH_MAX ||
			    journal_entry_bytes(f.e.length) > b->bytes - p || f.e.file == 0)
				return -EBADMSG;
			f.content = s->batch + p + sizeof f.e;
			f.content_at = journal_half_at(&s->header, c->half) + at + p + sizeof f.e;
			p += journal_entry_bytes(f.e.length);
			r = visit(s, &f);
			if (r < 0)
				return r;
		}
		at += batch_step(s);
	}
	return 0;
}

static int walk_all(struct scan *s, int (*visit)(struct scan *s, const struct found *f))
{
	int r = walk(s, &s->chains[0], visit);

	return r < 0 ? r : walk(s, &s->chains[1], visit);
}

static int find_chain(struct scan *s, unsigned half, struct chain *c)
{
	int got;

	*c = (struct chain){.half = half};
	while ((got = read_batch(s, half, c->end, c->batches ? c->first_seq + c->batches : 0)) > 0) {
		if (c->batches++ == 0)
			c->first_seq = ((const struct journal_batch *)(const void *)s->batch)->seq;
		c->end += batch_step(s);
	}
	return got;
}

static int find_chains(struct scan *s)
{
	struct chain a, b;
	int r = find_chain(s, 0, &a);

	if (r == 0)
		r = find_chain(s, 1, &b);
	if (r < 0)
		return r;
	s->chains[0] = a.first_seq <= b.first_seq ? a : b;
	s->chains[1] = a.first_seq <= b.first_seq ? b : a;
	s->newest = s->chains[1].batches ? s->chains[1].first_seq + s->chains[1].batches - 1
	                                 : s->chains[0].first_seq + s->chains[0].batches - 1;
	return 0;
}

/* ---- files ---- */

static struct entry_file *file_at(const struct scan *s, uint64_t number)
{
	uint64_t i = number * 0x9e3779b97f4a7c15ull;

	for (i &= s->file_places - 1; s->files[i].number && s->files[i].number != number;)
		i = (i + 1) & (s->file_places - 1);
	return &s->files[i];
}

static int visit_count(struct scan *s, const struct found *f)
{
	s->names += f->e.type == JOURNAL_NAME;
	return 0;
}

static int visit_collect(struct scan *s, const struct found *f)
{
	struct entry_file *file = file_at(s, f->e.file);
	struct journal_name name;

	switch (f->e.type) {
	case JOURNAL_NAME:
		if (f->e.length < sizeof(struct journal_name) + 2 ||
		    f->e.length > sizeof(struct journal_name) + ARENA_PATH_MAX)
			return -EBADMSG;
		file->number = f->e.file;
		file->name_at = f->content_at;
		file->name_bytes = f->e.length;
		memcpy(&name, f->content, sizeof name);
		file->ino = name.ino;
		file->btime_sec = name.btime_sec;
		file->btime_nsec = name.btime_nsec;
		return 0;
	case JOURNAL_DATA:
		/* each half names the files of its entries; what was named in a half that is gone counts no
		 * more */
		return f->e.offset > (uint64_t)INT64_MAX - f->e.length ? -EBADMSG : 0;
	case JOURNAL_VOID:
		if (file->number && (f->e.offset > file->void_seq ||
		                     (f->e.offset == file->void_seq && f->e.where > file->void_at))) {
			file->void_seq = f->e.offset;
			file->void_at = f->e.where;
		}
		return 0;
	default: return -EBADMSG;
	}
}

static struct entry_file *counting(const struct scan *s, const struct found *f)
{
	struct entry_file *file = file_at(s, f->e.file);

	if (f->e.type != JOURNAL_DATA || !file->number || f->seq < file->void_seq ||
	    (f->seq == file->void_seq && f->at < file->void_at))
		return NULL;
	return file;
}

static int visit_measure(struct scan *s, const struct found *f)
{
	struct entry_file *file = counting(s, f);
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	if (file && file->bytes == 0)
		file->first_ns = b->written_ns;
	if (file)
		file->bytes += f->e.length;
	return 0;
}

static int take_files(struct scan *s)
{
	struct entry_file *files;

	s->file_places = 16;
	while (s->file_places < 2 * s->names)
		s->file_places *= 2;
	files = sys.mmap(NULL, s->file_places * sizeof *files, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(files))
		return (int)(intptr_t)files;
	s->files = files;
	return 0;
}

/* What the journal says of the file, in the form that recover_target takes. */
static int load_name(const struct scan *s, const struct entry_file *file, struct arena_slot *slot)
{
	uint32_t path_bytes = file->name_bytes - (uint32_t)sizeof(struct journal_name);
	struct journal_name name;
	int r = sys_read_all(s->fd, &name, sizeof name, file->name_at);

	memset(slot, 0, sizeof *slot);
	if (r == 0)
		r = sys_read_all(s->fd, slot->path, path_bytes, file->name_at + sizeof name);
	if (r < 0)
		return r;
	if (name.path_bytes != path_bytes || slot->path[path_bytes - 1] != '\0' || slot->path[0] != '/')
		return -EBADMSG;
	/* the journal lies on its files' file system */
	slot->dev = s->place.dev_then;
	slot->ino = name.ino;
	slot->btime_sec = name.btime_sec;
	slot->btime_nsec = name.btime_nsec;
	slot->generation = name.generation;
	slot->handle_hash = name.handle_hash;
	slot->below = name.below;
	slot->up = name.up;
	return 0;
}

static void close_file(struct scan *s, struct entry_file *file)
{
	if (file->fd_plus_1 == 0)
		return;
	sys.close(file->fd_plus_1 - 1);
	file->fd_plus_1 = 0;
	s->open_files--;
}

static void close_some(struct scan *s)
{
	for (uint64_t i = 0; i < s->file_places; i++)
		close_file(s, &s->files[i]);
}

/* The file's descriptor or -errno; -ENOENT only without `keep`. */
static int open_file(struct scan *s, struct entry_file *file, bool keep)
{
	BUFFER(struct arena_slot, slot);
	BUFFER(struct recover_target, t);
	int r;

	if (file->fd_plus_1)
		return file->fd_plus_1 - 1;
	if (s->open_files >= OPEN_MAX_FILES)
		close_some(s);
	r = load_name(s, file, slot);
	if (r == 0)
		r = recover_target_open(t, slot, &s->place, keep);
	if (r < 0)
		return r;
	file->orphan |= t->orphan;
	file->fd_plus_1 = t->fd + 1;
	file->appends = sys.fcntl(t->fd, F_GETFL, 0) & O_APPEND;
	s->open_files++;
	return t->fd;
}

/* Of bytes that can only be appended: how many are there; -EPERM when others stand in their place. */
static int64_t appended(int fd, const uint8_t *p, uint64_t n, uint64_t offset)
{
	uint8_t have[512];
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	if (r < 0)
		return r;
	if (offset > st.stx_size)
		return -EPERM;
	if (n > st.stx_size - offset)
		n = st.stx_size - offset;
	for (uint64_t done = 0, part; done < n; done += part) {
		part = n - done < sizeof have ? n - done : sizeof have;
		r = sys_read_all(fd, have, part, offset + done);
		if (r < 0)
			return r;
		if (memcmp(have, p + done, part) != 0)
			return -EPERM;
	}
	return (int64_t)n;
}

/* What recoveries have begun here; of another boot it says nothing. */
static int load_replay(struct scan *s)
{
	struct journal_replay *p = &s->replayed;
	int r = sys_read_all(s->fd, p, sizeof *p, JOURNAL_REPLAY_AT);
	int64_t apart = (int64_t)((uint64_t)p->boot_ns - (uint64_t)s->boot_ns);

	if (r < 0)
		return r;
	if (apart < -ORIGIN_SLACK_NS || apart > ORIGIN_SLACK_NS)
		*p = (struct journal_replay){.boot_ns = 0};
	return 0;
}

/* Before a file is changed: what is changed from now on is ours. */
static void note_replay(struct scan *s)
{
	enum { STEP_NS = 100000000, TICK_NS = 20000000 /* of the coarse clock, at least */ };
	struct journal_replay *p = &s->replayed;
	int64_t now = sys_wall_ns();
	uint64_t written;

	if (p->boot_ns && now >= p->again_ns && now - p->again_ns < STEP_NS)
		return;
	if (!p->boot_ns) {
		p->begun_ns = now;
		/* what somebody else has written up to now is not younger than that; what is written here is
		 */
		sys_nap(TICK_NS);
		now = sys_wall_ns();
	}
	p->boot_ns = s->boot_ns;
	p->again_ns = now;
	bytes_write(s->fd, (const uint8_t *)p, sizeof *p, JOURNAL_REPLAY_AT, false, &written);
}

/*
 * May the entries be older than the file?  After another boot: when the file was changed in this one, by a
 * program that did not wait for recovery.  After another mount in the same boot nobody can tell a loss of
 * power from an orderly end: only a file that nobody has written since its first entry is sure to lack them
 * all.
 */
static bool may_be_older(const struct scan *s, const struct entry_file *file, const struct statx *st)
{
	int64_t changed = st->stx_mtime.tv_sec * 1000000000ll + st->stx_mtime.tv_nsec;

	if (s->opt->force)
		return false;
	if (s->in_aside)
		return true; /* it was judged once; that it has been put aside may hide why */
	/* by a recovery that was killed */
	if (s->replayed.boot_ns && changed > s->replayed.begun_ns &&
	    changed <= s->replayed.again_ns + JOURNAL_REPLAY_SLACK_NS)
		return false;
	return changed >= (s->where == ORIGIN_OTHER ? s->boot_ns : file->first_ns);
}

/* The arena says what the file is like, and the file is so (JUDGE_HELD). */
static bool is_as_held(const struct scan *s, const struct entry_file *file)
{
	for (uint32_t i = 0; s->held && i < s->held->header.slot_count; i++) {
		const struct arena_slot *slot = foreign_entry(s->held, i);

		if (slot->used && slot->ino == file->ino && slot->guard.known == JUDGE_HELD)
			return true;
	}
	return false;
}

/* Before anything is replayed, since that changes the files. */
static int judge_files(struct scan *s)
{
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];
		struct statx st;
		int fd;

		if (!file->number || !file->bytes)
			continue;
		fd = open_file(s, file, false);
		if (fd < 0)
			continue; /* gone, or an error that the replay meets, too */
		file->aside =
			sys.statx(fd, "", AT_EMPTY_PATH, STATX_MTIME, &st) < 0 || may_be_older(s, file, &st);
		file->held = file->aside && s->where == ORIGIN_MOUNT && is_as_held(s, file);
	}
	return 0;
}

static int visit_replay(struct scan *s, const struct found *f)
{
	struct entry_file *file = counting(s, f);
	int64_t there = 0;
	uint64_t written;
	int fd;

	if (!file || file->result < 0 || file->aside)
		return 0;
	fd = open_file(s, file, true);
	/* (without it another recovery in this boot puts aside what this one leaves) */
	if (fd >= 0)
		note_replay(s);
	if (fd < 0) {
		file->result = fd;
		return 0;
	}
	if (file->appends)
		there = appended(fd, f->content, f->e.length, f->e.offset);
	file->result = there < 0 ? (int)there
	                         : bytes_write(fd, f->content + there, f->e.length - (uint64_t)there,
	                                       f->e.offset + (uint64_t)there, file->appends, &written);
	return 0;
}

/* The first bytes of s->batch, to the journal. */
static int write_durably(const struct scan *s, uint64_t bytes, uint64_t at)
{
	uint64_t written;
	int r = bytes_write(s->fd, s->batch, bytes, at, false, &written);

	return r < 0 ? r : sys.fdatasync(s->fd);
}

/* What stands behind a damaged batch was never read, and must not be when another one takes the place of
 * that: it would be the next one in number. */
static int end_chain(const struct scan *s, uint64_t at, uint64_t end)
{
	static const struct journal_batch none;
	struct journal_batch next;
	uint64_t written;
	int r;

	if (at >= end)
		return 0;
	r = sys_read_all(s->fd, &next, sizeof next, at);
	if (r < 0 || next.magic != JOURNAL_BATCH_MAGIC)
		return r;
	r = bytes_write(s->fd, (const uint8_t *)&none, sizeof none, at, false, &written);
	return r < 0 ? r : sys.fdatasync(s->fd);
}

/* One more batch at the end of the chain, from s->batch, where `used` bytes are. */
static int put_batch(struct scan *s, struct chain *c, uint32_t used)
{
	struct journal_batch *b = (struct journal_batch *)(void *)s->batch;
	uint64_t at = journal_half_at(&s->header, c->half) + c->end;
	uint32_t bytes = (used + s->header.unit - 1) & ~(s->header.unit - 1);
	int r;

	if (bytes > s->header.half_bytes - c->end)
		return -ENOSPC;
	b->magic = JOURNAL_BATCH_MAGIC;
	b->seq = s->newest + 1;
	memcpy(b->id, s->header.id, sizeof b->id);
	b->bytes = used;
	b->checksum = journal_batch_checksum(b);
	r = end_chain(s, at + bytes, at - c->end + s->header.half_bytes);
	if (r == 0)
		r = write_durably(s, bytes, at);
	if (r == 0) {
		c->end += bytes;
		s->newest++;
	}
	memset(s->batch, 0, bytes);
	return r;
}

/* Files that are done are done for good: a second run, for those that failed, must not write the old bytes
 * over what came since. */
static int void_done(struct scan *s)
{
	struct chain *c = s->chains[1].batches ? &s->chains[1] : &s->chains[0];
	uint64_t behind = s->newest + 1; /* all that was found here */
	uint32_t used = sizeof(struct journal_batch);
	int r = 0;

	memset(s->batch, 0, JOURNAL_BATCH_MAX);
	for (uint64_t i = 0; i < s->file_places && r == 0; i++) {
		const struct entry_file *file = &s->files[i];
		struct journal_entry e = {.type = JOURNAL_VOID, .file = file->number, .offset = behind};

		if (!e.file || !file->bytes || file->result < 0 || file->waits || file->aside)
			continue;
		if (used + sizeof e > JOURNAL_BATCH_MAX) {
			r = put_batch(s, c, used);
			used = sizeof(struct journal_batch);
		}
		memcpy(s->batch + used, &e, sizeof e);
		used += (uint32_t)sizeof e;
	}
	return r < 0 ? r : put_batch(s, c, used);
}

/* What became of one file. */
static void report_file(struct scan *s, struct entry_file *file, bool replayed)
{
	BUFFER(struct arena_slot, slot);

	if (load_name(s, file, slot) < 0)
		slot->path[0] = '\0';
	if (file->aside) {
		s->report->aside++;
		s->report->unsynced += file->held || s->in_aside; /* (told before) */
		tell(s, slot->path, "aside", file->bytes, 0,
		     "synced by sync = journal before another boot or mount, and the file was written since; "
		     "`fastwrite recover --force` with the journal's name writes them");
	} else if (file->result < 0) {
		s->report->failed++;
		tell(s, slot->path, "failed", file->bytes, file->result, "left in the journal");
	} else if (replayed) {
		tell(s, slot->path, file->orphan ? "orphaned" : "recovered", file->bytes, 0,
		     "synced before the power went");
		s->report->orphans += file->orphan;
		s->report->recovered += !file->orphan;
		s->report->bytes += file->bytes;
	}
}

/* Does the arena hold bytes of the file?  What it was given later comes before what the journal says of it.
 */
static bool waits_for_arena(const struct scan *s, const struct entry_file *file)
{
	BUFFER(struct arena_slot, name);

	if (!s->waiting || load_name(s, file, name) < 0)
		return s->waiting != NULL;
	for (uint32_t i = 0; i < s->waiting->header.slot_count; i++) {
		const struct arena_slot *slot = foreign_entry(s->waiting, i);

		if (slot->used && slot->ino == name->ino)
			return true;
	}
	return false;
}

static bool has_bytes(const struct entry_file *file) { return file->number && file->bytes; }

/* Where a file that failed is, or may be, in a list of as many places as s->files has. */
static const struct entry_file **failed_at(const struct scan *s, const struct entry_file **list,
                                           const struct entry_file *file)
{
	uint64_t i = (file->ino ^ (uint64_t)file->btime_nsec << 32) * 0x9e3779b97f4a7c15ull;

	for (i &= s->file_places - 1; list[i]; i = (i + 1) & (s->file_places - 1))
		if (list[i]->ino == file->ino && list[i]->btime_sec == file->btime_sec &&
		    list[i]->btime_nsec == file->btime_nsec)
			break;
	return &list[i];
}

/*
 * Several numbers may be of one file: of one time that it was open each.  Where one of them failed, the
 * others are left in the journal as well.  Otherwise its bytes, when they are tried again, would come over
 * newer ones.
 */
static void fail_together(struct scan *s)
{
	uint64_t bytes = s->file_places * sizeof(struct entry_file *);
	const struct entry_file **list = NULL;

	for (uint64_t i = 0; i < s->file_places; i++) {
		const struct entry_file *file = &s->files[i];

		if (!has_bytes(file) || file->waits || file->result == 0)
			continue;
		if (!list)
			list = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			                0);
		if (sys_is_error(list))
			break;
		*failed_at(s, list, file) = file;
	}
	if (!list)
		return;
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];
		const struct entry_file *failed;

		if (!has_bytes(file) || file->waits || file->result < 0)
			continue;
		failed = sys_is_error(list) ? NULL : *failed_at(s, list, file);
		if (sys_is_error(list) || failed)
			file->result = failed ? failed->result : (int)(intptr_t)list;
	}
	if (!sys_is_error(list))
		sys.munmap(list, bytes);
}

/* 0 when the journal may be removed. */
static int finish_files(struct scan *s, bool replay)
{
	int failed = 0, done = 0;

	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];

		if (!has_bytes(file))
			continue;
		file->waits = waits_for_arena(s, file);
		if (!file->waits && !file->aside && file->result == 0) {
			int fd = open_file(s, file, replay);

			file->result = fd == -ENOENT && !replay ? 0 : fd < 0 ? fd : sys.fdatasync(fd);
			kill_step();
		}
		close_file(s, file);
	}
	fail_together(s);
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];

		if (!has_bytes(file))
			continue;
		if (file->waits) {
			failed = -EBUSY; /* which that arena's recovery has told */
			continue;
		}
		report_file(s, file, replay);
		if (file->aside)
			s->keeps = true;
		else if (file->result < 0)
			failed = file->result;
		else
			done++;
	}
	if ((failed || s->keeps) && done) {
		int r = void_done(s);

		if (r < 0) {
			s->report->failed++;
			tell(s, "", "failed", 0, r,
			     "files that are done cannot be marked so: another recovery would write to them again");
		}
	}
	return failed;
}

/* The journal is locked, its header loaded.  0 when it may be removed. */
static int recover_entries(struct scan *s, bool replay)
{
	int r = find_chains(s);

	if (r < 0)
		return r;
	if (s->chains[0].batches && s->chains[1].batches &&
	    s->chains[0].first_seq + s->chains[0].batches != s->chains[1].first_seq)
		tell(s, "", "damaged", 0, -EBADMSG, "batches are missing; the others are used");
	r = walk_all(s, visit_count);
	if (r == 0)
		r = take_files(s);
	if (r == 0)
		r = walk_all(s, visit_collect);
	if (r == 0)
		r = walk_all(s, visit_measure);
	if (r < 0)
		return r;
	if (s->opt->dry_run) {
		if (replay)
			judge_files(s);
		close_some(s);
		for (uint64_t i = 0; i < s->file_places; i++)
			if (s->files[i].bytes)
				report_file(s, &s->files[i], replay);
		return 0;
	}
	if (replay)
		r = judge_files(s);
	if (replay && r == 0)
		r = walk_all(s, visit_replay);
	if (r == 0) {
		s->told = true; /* of each file, what became of it */
		r = finish_files(s, replay);
	}
	close_some(s);
	return r;
}

/* Before it is removed: that may be lost with the power, and what it holds must not come back over what the
 * files get from now on. */
static int end_for_good(struct scan *s)
{
	memset(s->batch, 0, JOURNAL_HEADER_BYTES);
	return write_durably(s, JOURNAL_HEADER_BYTES, 0);
}

static int take_batch(struct scan *s)
{
	uint8_t *p =
		sys.mmap(NULL, JOURNAL_BATCH_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_is_error(p))
		return (int)(intptr_t)p;
	s->batch = p;
	return 0;
}

static bool is_own(const char *name)
{
	BUFFER(char, arena);

	journal_arena_of(name, arena);
	return own_arena_is(arena);
}

/*
 * The arena of the same process, still there in the same boot: its recovery failed for some files, and of
 * those the journal keeps what was synced.  1: loaded, *a; 0: there is none; or -errno.
 */
static int load_waiting(const struct scan *s, const char *name, struct foreign_arena *a)
{
	BUFFER(char, arena);
	int fd, r;

	journal_arena_of(name, arena);
	fd = sys.openat(s->dirfd, arena, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	r = foreign_load(a, fd);
	if (r < 0)
		sys.close(fd);
	return r < 0 ? r : 1;
}

static void recover_loaded(struct scan *s, const char *name, bool replay)
{
	BUFFER(struct recover_rights, rights);
	bool moved = false;
	struct statx st;
	int r = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_UID, &st);

	if (r == 0)
		r = recover_rights_take(rights, st.stx_uid);
	if (r < 0) {
		s->report->failed++;
		tell(s, "", "failed", 0, r, "cannot act with the rights of its owner; left alone");
		return;
	}
	r = take_batch(s);
	if (r == 0)
		r = recover_entries(s, replay);
	if (r == 0 && s->keeps && !s->in_aside && !s->opt->dry_run)
		moved = recover_move_aside(s->dirfd, name) == 0;
	recover_rights_drop(rights);
	if (r < 0 && !s->told) {
		s->report->failed++;
		tell(s, "", "failed", 0, r,
		     r == -EBADMSG ? "damaged; left alone" : "cannot be read; left alone");
	}
	if (r == 0 && s->keeps && !s->in_aside && !moved && !s->opt->dry_run) {
		r = recover_move_aside(s->dirfd, name);
		if (r < 0) {
			s->report->failed++;
			tell(s, "", "failed", 0, r, "cannot be put aside; left where it is");
		}
	} else if (r == 0 && !s->keeps && !s->opt->dry_run) {
		kill_step();
		r = end_for_good(s);
		kill_step();
		if (r == 0) {
			sys.unlinkat(s->dirfd, name, 0);
		} else {
			s->report->failed++;
			tell(s, "", "failed", 0, r, "its files are done, but it cannot be removed");
		}
	}
	if (s->files)
		sys.munmap(s->files, s->file_places * sizeof *s->files);
	if (s->batch)
		sys.munmap(s->batch, JOURNAL_BATCH_MAX);
}

/* This kernel's, where the files' times of change come from. */
static int note_boot(struct scan *s)
{
	struct origin now;
	int r = origin_here(s->fd, &now);

	if (r < 0)
		return r;
	s->boot_ns = now.boot_ns;
	return load_replay(s);
}

void recover_journal(const char *dir, int dirfd, const char *name, bool in_aside,
                     const struct foreign_arena *held, const struct recover_options *opt,
                     struct recover_report *report)
{
	BUFFER(char, path);
	BUFFER(struct scan, s);
	BUFFER(struct foreign_arena, arena);
	struct sys_quiet quiet;
	int r;

	log_format(path, BUFFER_BYTES, "%s/%s", dir, name);
	*s = (struct scan){.opt = opt,
	                   .report = report,
	                   .path = path,
	                   .dirfd = dirfd,
	                   .in_aside = in_aside,
	                   .held = held};
	s->place.staging_fd =
		in_aside ? sys.openat(dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) : dirfd;
	report->arenas++;
	if (is_own(name)) {
		report->live++;
		report->own++;
		return;
	}
	if (s->place.staging_fd < 0)
		return;
	s->fd = sys.openat(dirfd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (s->fd == -ENOENT && !in_aside)
		return;
	sys_quiet_begin(&quiet);
	r = s->fd < 0 ? s->fd : claim_file_allowed(dirfd, s->fd);
	if (r == 0)
		r = claim_lock(s->fd);
	if (r == 0 && !sys_still_linked(s->fd))
		goto out;
	if (r == 0)
		r = load_header(s);
	if (r == 0)
		r = claim_maker(s->fd, &s->header.origin, s->header.pid, s->header.pid_start, &s->where);
	if (r == 0)
		r = note_boot(s);
	if (r == -EWOULDBLOCK) {
		report->live++;
		goto out;
	}
	if (r == 0 && s->where == ORIGIN_SAME && !opt->dry_run) {
		r = load_waiting(s, name, arena);
		if (r < 0)
			goto out; /* nobody can say of which files it holds bytes */
		if (r > 0)
			s->waiting = arena;
		r = 0;
	}
	if (r == 0) {
		recover_loaded(s, name, s->where != ORIGIN_SAME);
		if (s->waiting) {
			sys.close(arena->fd);
			foreign_unload(arena);
		}
	} else if (r == -ENODATA && names_is_ours(name, JOURNAL_SUFFIX)) {
		if (!opt->dry_run)
			sys.unlinkat(dirfd, name, 0);
	} else {
		report->failed++;
		tell(s, "", "failed", 0, r,
		     r == -EBADMSG || r == -ENODATA ? "not a journal of this version, or damaged; left alone"
		                                    : claim_refusal(r));
	}
out:
	if (s->fd >= 0)
		sys.close(s->fd);
	if (in_aside && s->place.staging_fd >= 0)
		sys.close(s->place.staging_fd);
	sys_quiet_end(&quiet);
}
