// SPDX-License-Identifier: Apache-2.0
/* journal_file: see sync/journal_file.h. */
#include "sync/journal_file.h"

#include "base/kill.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "flush/flush.h"
#include "flush/visibility.h"
#include "staging/stage.h"
#include "sync/journal.h"
#include "sync/journal_policy.h"
#include "sync/sync.h"

#include <string.h>

enum {
	PUT_MAX = 128 << 10, /* it is cheaper to write more bytes once, to the file */
	ASKED_MIN = 2,       /* syncs of a file before it uses the journal */
};

void journal_file_begin(struct file *f)
{
	journal_file_changed(f);
	f->journal.block_seq = f->journal.block_commit = 0;
	f->journal.nameless = false;
}

void journal_file_named(struct file *f, bool known)
{
	f->journal.named = 0;
	f->journal.nameless = !known;
}

static bool clean(const struct file *f)
{
	return f->journal.changed == f->journal.durable && f->journal.durable_epoch == file_epoch() &&
	       !f->sync.full && !file_attributes_due(f) && !f->flush.error;
}

/* ---- putting ---- */

/* Staged bytes that are not in the journal: from extent `extent` of the first block on, without its first
 * `skip` bytes. */
struct fresh {
	struct block_run *first;
	uint32_t extent, skip;
	uint64_t bytes; /* of the entries */
};

static struct arena_extent extent_of(const struct file *f, const struct block_run *run, uint64_t commit,
                                     uint32_t i)
{
	return arena_extent_get(run->meta, arena_block_data(f->arena, run->index), f->arena->block_bytes,
	                        commit, i);
}

static void find_fresh(const struct file *f, struct fresh *n)
{
	struct block_run *run = f->head;

	*n = (struct fresh){0};
	while (run && journaled_covers(f, run))
		run = run->next;
	n->first = run;
	if (run && run->meta->seq == f->journal.block_seq && f->journal.block_commit != 0) {
		n->extent = COMMIT_COUNT(f->journal.block_commit) - 1;
		n->skip = COMMIT_LENGTH(f->journal.block_commit);
	}
	for (; run && n->bytes <= PUT_MAX; run = run->next) {
		uint64_t commit = journaled_commit_of(run);
		uint32_t skip = run == n->first ? n->skip : 0;

		for (uint32_t i = run == n->first ? n->extent : 0; i < COMMIT_COUNT(commit); i++, skip = 0)
			n->bytes += journal_entry_bytes(extent_of(f, run, commit, i).length - skip);
	}
}

static uint8_t *put_entry(uint8_t *at, const struct journal_entry *e, const void *content)
{
	uint32_t bytes = journal_entry_bytes(e->length);

	memcpy(at, e, sizeof *e);
	memcpy(at + sizeof *e, content, e->length);
	memset(at + sizeof *e + e->length, 0, bytes - sizeof *e - e->length);
	return at + bytes;
}

static uint8_t *put_name(struct file *f, uint8_t *at)
{
	const struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);
	uint32_t path_bytes = (uint32_t)strlen(entry->path) + 1;
	struct journal_name name = {.ino = f->ino,
	                            .btime_sec = entry->btime_sec,
	                            .btime_nsec = entry->btime_nsec,
	                            .path_bytes = path_bytes,
	                            .handle_hash = entry->handle_hash,
	                            .generation = entry->generation,
	                            .below = entry->below,
	                            .up = entry->up};
	struct journal_entry e = {.type = JOURNAL_NAME,
	                          .length = (uint32_t)sizeof name + path_bytes,
	                          .file = f->journal.number};
	uint32_t bytes = journal_entry_bytes(e.length);

	memset(at, 0, bytes);
	memcpy(at, &e, sizeof e);
	memcpy(at + sizeof e, &name, sizeof name);
	memcpy(at + sizeof e + sizeof name, entry->path, path_bytes);
	return at + bytes;
}

static uint32_t name_bytes(const struct file *f)
{
	const struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	return journal_entry_bytes((uint32_t)(sizeof(struct journal_name) + strlen(entry->path) + 1));
}

/* The last block put into the journal, and its commit word then. */
struct reached {
	uint64_t seq, commit;
};

static uint8_t *put_fresh(const struct file *f, const struct fresh *n, uint8_t *at, struct reached *reached)
{
	uint64_t now = (uint64_t)sys_wall_ns();
	uint32_t skip = n->skip;

	for (struct block_run *run = n->first; run; run = run->next) {
		uint64_t commit = journaled_commit_of(run);
		const uint8_t *data = arena_block_data(f->arena, run->index);

		for (uint32_t i = run == n->first ? n->extent : 0; i < COMMIT_COUNT(commit); i++, skip = 0) {
			struct arena_extent x = extent_of(f, run, commit, i);
			struct journal_entry e = {.type = JOURNAL_DATA,
			                          .length = x.length - skip,
			                          .file = f->journal.number,
			                          .offset = x.offset + skip,
			                          .where = now};

			if (e.length > 0)
				at = put_entry(at, &e, data + x.pos + skip);
		}
		*reached = (struct reached){.seq = run->meta->seq, .commit = commit};
	}
	return at;
}

/* Reserves room, and waits if the batch is full.  On success the journal's lock is held. */
static int reserve(struct arena *a, uint32_t bytes, bool bulk, uint8_t **out)
{
	uint64_t ticket;
	int r;

	while ((r = journal_reserve(a, bytes, bulk, out, &ticket)) == -EAGAIN) {
		r = journal_wait(a, ticket);
		if (r < 0)
			return r;
	}
	return r;
}

/* That the file is about to change. */
static uint8_t *put_late(struct file *f, uint8_t *at)
{
	int64_t until = sys_wall_fine_ns() + JOURNAL_LATE_NS;
	struct journal_entry e = {.type = JOURNAL_LATE, .file = f->journal.number, .offset = (uint64_t)until};

	f->journal.late_ns = until;
	memcpy(at, &e, sizeof e);
	return at + sizeof e;
}

static bool put(struct file *f, const struct fresh *n, uint64_t *ticket)
{
	struct arena *a = f->arena;
	struct reached reached = {0};
	uint8_t *begin, *at;
	uint64_t half;

	/* the file lock is held, so the staged bytes stay as they are */
	if (reserve(a, (uint32_t)n->bytes + name_bytes(f) + sizeof(struct journal_entry), true, &begin) < 0)
		return false;
	at = begin;
	half = journal_half_seq(a);
	if (!journal_file_counts(f)) {
		f->journal.number = journal_new_file(a);
		f->journal.named = 0;
	}
	if (f->journal.named != half)
		at = put_name(f, at);
	at = put_fresh(f, n, at, &reached);
	f->journal.late_ns = 0;
	if (atomic_load(&f->flush.busy))
		at = put_late(f, at);
	/* Update the file first.  A thread that frees the other half must see the entries that are about
	 * to be there.  If this process is killed here, the process that goes on with the file must void
	 * them. */
	f->journal.puts++;
	if (!journal_file_counts(f)) {
		f->journal.first = f->journal.last = journal_next(a);
		atomic_fetch_add(&a->journal.files, 1);
		f->journal.arena = a;
	}
	*ticket = f->journal.last = journal_commit(a, (uint32_t)(at - begin));
	f->journal.named = half;
	f->journal.block_seq = reached.seq;
	f->journal.block_commit = reached.commit;
	return true;
}

bool journal_file_sync(struct file *f, uint64_t *ticket)
{
	struct arena *a = f->arena;
	struct fresh n;

	if (!journal_policy_uses(f))
		return false;
	journaled_asked(f);
	/* a file with entries costs one more sync when it is closed */
	if (f->journal.asked < ASKED_MIN) {
		f->journal.asked++;
		return false;
	}
	if (f->mode != FILE_ATTACHED || f->wanted || f->journal.nameless || !a || a->dev != f->dev ||
	    !journal_file_alone(f) || !journal_ready(a) || !clean(f) ||
	    (journal_file_counts(f) && f->journal.arena != a))
		return false;
	find_fresh(f, &n);
	/* nothing is new and the file itself was synced: ask the device, which may have failed since */
	if (n.bytes > PUT_MAX || (n.bytes == 0 && !journal_file_counts(f)))
		return false;
	if (n.bytes == 0) {
		/* A sync of the file itself is safe from a replay only when the old entries are void.
		 * Another thread may be voiding them. */
		*ticket = f->journal.last > f->journal.void_ticket ? f->journal.last : f->journal.void_ticket;
		return true;
	}
	return put(f, &n, ticket);
}

void journal_file_announce(struct file *f)
{
	struct arena *a = f->journal.arena;
	int64_t left = f->journal.late_ns - sys_wall_fine_ns();
	uint64_t ticket;
	uint8_t *at;
	int r;

	/* (the clock may have been set) */
	if (f->nested || (left > JOURNAL_LATE_NS / 2 && left <= JOURNAL_LATE_NS))
		return;
	signals_harden();
	/* If it cannot be said, or not soon: a recovery after a power loss may put aside what was synced. */
	r = journal_reserve(a, sizeof(struct journal_entry), true, &at, &ticket);
	if (r == -EAGAIN && journal_wait_shortly(a, ticket) == 0)
		r = journal_reserve(a, sizeof(struct journal_entry), true, &at, &ticket);
	if (r < 0)
		return;
	put_late(f, at);
	ticket = journal_commit(a, sizeof(struct journal_entry));
	if (journal_wait_shortly(a, ticket) < 0)
		f->journal.late_ns = 0;
}

/* ---- making void ---- */

static void forget(struct file *f)
{
	if (f->journal.arena)
		atomic_fetch_sub(&f->journal.arena->journal.files, 1);
	f->journal.arena = NULL;
	f->journal.first = f->journal.last = 0;
	f->journal.void_ticket = 0;
	f->journal.late_ns = 0;
}

static int put_new_void(struct file *f, struct journal_place place, uint64_t puts)
{
	struct journal_entry e = {
		.type = JOURNAL_VOID, .file = f->journal.number, .offset = place.seq, .where = place.at};
	uint8_t *at;
	int r = reserve(f->journal.arena, sizeof e, false, &at);

	if (r < 0)
		return r;
	memcpy(at, &e, sizeof e);
	f->journal.void_place = place;
	f->journal.void_puts = puts;
	f->journal.void_ticket = journal_commit(f->journal.arena, sizeof e);
	return 0;
}

/* Voids the entries of f before `place`, of which there are `puts`.  0 with f->journal.void_ticket, or
 * -errno. */
static int put_void(struct file *f, struct journal_place place, uint64_t puts)
{
	/* the journal reserves room for one such entry per file */
	if (f->journal.void_ticket != 0 && f->journal.void_puts >= puts)
		return 0;
	return put_new_void(f, place, puts);
}

/* The void entry is durable. */
static void voided(struct file *f)
{
	if (f->journal.void_puts == f->journal.puts) {
		forget(f);
		return;
	}
	if (f->journal.first < f->journal.void_place.seq)
		f->journal.first = f->journal.void_place.seq;
	f->journal.void_ticket = 0;
}

void journal_file_keep(struct file *f)
{
	if (!journal_file_counts(f))
		return;
	atomic_store(&f->journal.arena->journal.keep, true);
	forget(f);
}

void journal_file_sync_begin(struct file *f, struct journal_sync *s)
{
	*s = (struct journal_sync){.arena = f->journal.arena,
	                           .changed = f->journal.changed,
	                           .epoch = file_epoch(),
	                           .puts = f->journal.puts};
	if (s->arena)
		s->place = journal_here(s->arena);
}

/* The arena whose journal has, or had, entries of f, if that journal failed and has not been removed yet. */
static struct arena *abandoning(const struct file *f, const struct journal_sync *s)
{
	struct arena *a = s->arena ? s->arena : f->arena;

	return a && atomic_load(&a->journal.abandon_due) ? a : NULL;
}

/* The journal's thread is about to sync all its files and to remove it.  Until then a replay could overwrite
 * synced bytes. */
static int wait_abandoned(struct file *f, const struct arena *a)
{
	enum { NAPS_MAX = 5000 };

	for (int i = 0; i < NAPS_MAX; i++) {
		if (f->journal.arena != a && !atomic_load(&a->journal.abandon_due))
			return 0;
		lock_drop(&f->lock, LOCK_FILE);
		sys_nap(1000000);
		file_lock_again(f);
	}
	return -EIO;
}

/* Everything up to s is on the device.  The caller voids old entries before the program may rely on it. */
static void note_durable(struct file *f, const struct journal_sync *s)
{
	if (s->changed > f->journal.durable)
		f->journal.durable = s->changed;
	if (s->epoch > f->journal.durable_epoch)
		f->journal.durable_epoch = s->epoch;
}

int journal_file_sync_done(struct file *f, const struct journal_sync *s, bool keep_lock)
{
	const struct arena *a;
	uint64_t ticket;
	int r;

	/* another thread may have voided them meanwhile */
	if (!s->arena || f->journal.arena != s->arena) {
		note_durable(f, s);
		a = abandoning(f, s);
		return !a ? 0 : keep_lock ? -EIO : wait_abandoned(f, a);
	}
	r = put_void(f, s->place, s->puts);
	if (r == 0) {
		note_durable(f, s);
		ticket = f->journal.void_ticket;
		journal_hold(s->arena);
		if (!keep_lock)
			lock_drop(&f->lock, LOCK_FILE);
		r = journal_wait(s->arena, ticket);
		journal_unhold(s->arena);
		if (!keep_lock)
			file_lock_again(f);
		if (r == 0 && f->journal.arena == s->arena && f->journal.void_ticket == ticket)
			voided(f);
	}
	if (r < 0 && !keep_lock && atomic_load(&s->arena->journal.state) == JOURNAL_OFF)
		r = wait_abandoned(f, s->arena);
	return r < 0 ? -EIO : 0;
}

/* A descriptor through which the file can be synced, -1: none. */
static int sync_fd(struct file *f)
{
	int fd = file_internal_fd(f) >= 0 ? file_internal_fd(f) : file_fd(f);

	if (fd < 0 && flush_possible(f))
		fd = file_internal_fd(f);
	return fd;
}

/* Syncs the file.  -errno of the sync. */
static int sync_now(struct file *f, struct journal_sync *s)
{
	int fd = sync_fd(f);

	if (fd < 0)
		return -EBADF;
	journal_file_sync_begin(f, s);
	kill_step();
	return f->sync.full ? sys.fsync(fd) : sys.fdatasync(fd);
}

void journal_file_failed(struct file *f, int error)
{
	if (!journal_file_counts(f))
		return;
	f->journal.failed = error;
	atomic_store(&f->journal.arena->journal.keep, true);
}

/* The file is drained: syncs it.  *s is what that covers.  0 or -errno. */
static int make_durable(struct file *f, struct journal_sync *s)
{
	int r = f->journal.failed ? f->journal.failed : sync_now(f, s);

	if (r == 0) {
		f->sync.full = false;
	} else if (r != -EBADF && f->journal.failed == 0) {
		file_note_sync_error(f, r);
		journal_file_failed(f, r);
	}
	return r;
}

int journal_retire(struct file *f)
{
	struct journal_sync s;
	int r;

	if (!journal_file_counts(f))
		return 0;
	r = flush_drain(f);
	if (r < 0)
		return r;
	/* the lock may have been free meanwhile; in a signal handler a block may be left */
	if (!journal_file_counts(f))
		return 0;
	r = make_durable(f, &s);
	if (r < 0) {
		log_error(
			"a file with entries in the journal of %s cannot be made durable (error %d); they are kept",
			f->journal.arena->dir, -r);
		journal_file_keep(f);
		return 0;
	}
	if (journal_file_sync_done(f, &s, true) < 0) {
		/* the file has all their bytes, but after a crash now a replay would overwrite later ones */
		log_error("entries of the journal in %s cannot be made void", s.arena->dir);
		forget(f);
	}
	return 0;
}

void journal_file_rest(struct file *f)
{
	f->due[DUE_JOURNAL] = 0;
	if (!journal_file_holds(f))
		return;
	journal_retire(f);
	if (!f->head && !journal_file_counts(f))
		visibility_drop(f);
	/* do not retry a failure at once */
	if (journal_file_holds(f))
		journaled_asked(f);
}

/* ---- checkpoint ---- */

struct checkpoint {
	struct arena *arena;
	uint64_t kept_from; /* entries before it are to be voided */
	uint64_t ticket;    /* batch of the last void entry */
	bool left;          /* some entries still count */
};

static bool concerns(const struct file *f, const struct checkpoint *c)
{
	return f->journal.arena == c->arena && f->journal.first < c->kept_from;
}

/* File lock held; it may be free meanwhile. */
static bool concerned_and_durable(struct file *f, const struct checkpoint *c, struct journal_sync *s)
{
	return concerns(f, c) && flush_drain(f) == 0 && concerns(f, c) && make_durable(f, s) == 0;
}

static void visit_void(struct file *f, void *ctx)
{
	struct checkpoint *c = ctx;
	struct file_guard g;
	struct journal_sync s;

	if (!concerns(f, c))
		return;
	g = file_lock(f);
	if (concerned_and_durable(f, c, &s) && journal_file_counts(f) && put_void(f, s.place, s.puts) == 0) {
		note_durable(f, &s);
		c->ticket = f->journal.void_ticket;
	}
	file_unlock(f, g);
}

static void visit_voided(struct file *f, void *ctx)
{
	struct checkpoint *c = ctx;
	struct file_guard g;

	if (!concerns(f, c))
		return;
	g = file_lock(f);
	if (concerns(f, c) && f->journal.void_ticket != 0 && f->journal.void_ticket <= c->ticket)
		voided(f);
	file_unlock(f, g);
}

static void visit_abandon(struct file *f, void *ctx)
{
	struct checkpoint *c = ctx;
	struct file_guard g;
	struct journal_sync s;

	if (!concerns(f, c))
		return;
	g = file_lock(f);
	if (concerned_and_durable(f, c, &s))
		forget(f);
	file_unlock(f, g);
}

static void visit_left(struct file *f, void *ctx)
{
	struct checkpoint *c = ctx;

	c->left |= concerns(f, c);
}

bool journal_file_abandon(struct arena *a)
{
	struct checkpoint c = {.arena = a, .kept_from = UINT64_MAX};

	file_for_each(visit_abandon, &c);
	file_for_each_shared(visit_left, &c);
	return !c.left;
}

void journal_file_checkpoint(struct arena *a)
{
	struct checkpoint c = {.arena = a, .kept_from = journal_kept_from(a)};

	file_for_each(visit_void, &c);
	if (c.ticket && journal_wait(a, c.ticket) < 0)
		return;
	file_for_each(visit_voided, &c);
	/* also files of other processes; those of dead ones count until the dead are swept */
	file_for_each_shared(visit_left, &c);
	if (!c.left)
		journal_free_before(a, c.kept_from);
}
