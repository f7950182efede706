// SPDX-License-Identifier: Apache-2.0
/* repair: see attach/repair.h. */
#include "attach/repair.h"

#include "attach/attach.h"
#include "base/internal_fd.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/family.h"
#include "files/gate.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "flush/token.h"
#include "recovery/recover.h"
#include "staging/arena.h"
#include "staging/arenas.h"
#include "staging/stage.h"
#include "staging/takeover.h"
#include "sync/journal.h"
#include "sync/journal_file.h"

#include <fcntl.h>

/* A dead flusher may have left its flags or lease on descriptions.  This process does not have all of
 * them. */
static void leave_flags(struct file *f)
{
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (o->borrowed == OFD_BORROWED)
			ofd_left(o);
	f->flush.program_fd = false;
	file_restore_locked(f);
}

/* True if every block of the file entry is in the file, and it has no pages. */
static bool nothing_left(const struct file *f)
{
	uint64_t done = DONE_SEQ(atomic_load(&arena_entry_at(f->arena, (uint32_t)f->entry)->done));

	if (file_is_paged(f))
		return false;
	for (uint32_t i = 0; i < f->arena->block_count; i++) {
		const struct arena_block *b = f->arena->runs[i].meta;

		if (b->owner == (uint32_t)f->entry + 1 && b->seq > done)
			return false;
	}
	return true;
}

/* One past the last byte in the newest block of the file entry; 0 if it has no block. */
static uint64_t newest_end(const struct file *f)
{
	const struct block_run *newest = NULL;
	uint64_t commit;

	for (uint32_t i = 0; i < f->arena->block_count; i++) {
		const struct block_run *run = &f->arena->runs[i];

		if (run->meta->owner == (uint32_t)f->entry + 1 && COMMIT_COUNT(run->meta->commit) > 0 &&
		    (!newest || run->meta->seq > newest->meta->seq))
			newest = run;
	}
	if (!newest)
		return 0;
	/* the second half of a write that was never published does not count */
	if (newest->meta->chain_block) {
		const struct arena_block *first = &f->arena->blocks[newest->meta->chain_block - 1];

		if (first->owner == newest->meta->owner && first->seq == newest->meta->chain_seq &&
		    COMMIT_REACH(first->commit) < newest->meta->chain_commit)
			return 0;
	}
	commit = newest->meta->commit;
	return arena_extent_get(newest->meta, arena_block_data(f->arena, newest->index),
	                        f->arena->block_bytes, commit, COMMIT_COUNT(commit) - 1)
	               .offset +
	       COMMIT_LENGTH(commit);
}

/* The write that was being made, up to `end`, counts. */
static bool was_published(const struct file *f, uint64_t end)
{
	if (file_is_paged(f))
		return pages_file(f->overlay.pages, f->overlay.file)->published != f->moving_since;
	return newest_end(f) == end;
}

/* Sets every description's position: a published write has moved its writer's position. */
static void drain_positions(struct file *f)
{
	struct block_run *run = f->current;

	stage_logical_size(f);
	if (run && run->stream) {
		uint64_t commit = run->meta->commit;
		struct arena_extent e =
			arena_extent_get(run->meta, arena_block_data(f->arena, run->index),
		                         f->arena->block_bytes, commit, COMMIT_COUNT(commit) - 1);

		run->stream->pos = (off_t)(e.offset + e.length);
		run->stream->pos_mode = POS_USER;
		run->stream = NULL;
	}
	if (f->moving) {
		uint64_t end = f->moving_from + f->moving_bytes;

		f->moving->pos = (off_t)(was_published(f, end) ? end : f->moving_from);
		f->moving->pos_mode = POS_USER;
		f->moving = NULL;
	}
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (o->pos_mode == POS_STREAM)
			o->pos_mode = POS_USER;
	/* no fast path may stage behind the bytes that were just read */
	if (run)
		atomic_fetch_or(&run->meta->commit, COMMIT_SEALED);
	f->current = NULL;
}

/* A descriptor for writing the staged bytes to the file.  *own: the caller closes it. */
static int repair_fd(const struct file *f, bool *own)
{
	char path[64];
	int fd = -1;

	*own = false;
	if (!f->no_internal_fd && file_fd(f) >= 0) {
		log_format(path, sizeof path, "/proc/self/fd/%d", file_fd(f));
		fd = sys.openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
		if (fd < 0)
			fd = sys.openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
		if (fd >= 0)
			fd = internal_fd_raise(fd);
		/* only now: another thread may have put its own descriptor there while it was low */
		if (fd >= 0 && flush_is_the_file(f, fd) != 1) {
			internal_fd_close(fd);
			fd = -1;
		}
		*own = fd >= 0;
	}
	return fd >= 0 ? fd : flush_program_fd(f);
}

/* After the recovery. */
static void free_staged(struct file *f)
{
	if (file_is_paged(f))
		overlay_discard(&f->overlay);
	arena_free_entry_blocks(f->arena, (uint32_t)f->entry);
}

static int replay(struct file *f)
{
	bool own;
	int fd = repair_fd(f, &own);
	int r = recover_live_entry(arenas_fd(f->arena), f->arena->dir, (uint32_t)f->entry, fd);

	if (own)
		internal_fd_close(fd);
	return r;
}

static void end_busy(struct file *f)
{
	atomic_store(&f->flush.busy, 0);
	atomic_fetch_add(&f->flush.events, 1);
	sys_futex_wake((uint32_t *)&f->flush.events, 1 << 20);
}

/* Fixes all positions and waits until a living flusher has ended; it leaves the rest to us.  File lock held,
 * dropped and taken again.  False: another process has repaired the file meanwhile. */
static bool come_to_rest(struct file *f)
{
	struct timespec tick = {.tv_nsec = 10000000};

	for (;;) {
		uint32_t seen;

		journal_file_changed(f);
		if (f->mode == FILE_ATTACHED && f->arena && f->entry >= 0)
			drain_positions(f);
		if (!atomic_load(&f->flush.busy) || file_flusher_died(f))
			return true;
		seen = atomic_load(&f->flush.events);
		lock_drop(&f->lock, LOCK_FILE);
		sys_futex_wait((uint32_t *)&f->flush.events, seen, &tick);
		file_retake(f);
		if (!f->needs_repair)
			return false;
		if (f->shared)
			attach_to_arena(f);
	}
}

static void repair_file(struct file *f)
{
	struct arena_entry *entry;
	uint64_t end;
	bool gated;
	int fd, r;

	f->needs_repair = true;
	if (!come_to_rest(f))
		return;
	f->flush.idle_waiters = 0;
	leave_flags(f);
	if (f->mode != FILE_ATTACHED || !f->arena || f->entry < 0) {
		if (f->mode == FILE_ATTACHED) {
			/* the dead process was about to attach it, or had detached it */
			f->arena = NULL;
			file_become(f, FILE_PASSIVE, f->why);
		}
		f->flush.busy = 0;
		f->needs_repair = false;
		return;
	}
	entry = arena_entry_at(f->arena, (uint32_t)f->entry);
	end = newest_end(f);
	gated = takeover_gate(f);
	r = replay(f);
	/* A replay without the right to the file fails even if nothing is staged: no error. */
	if (r < 0 && !nothing_left(f)) {
		/* nothing is lost: the bytes stay in the arena, and the next call tries again */
		if (f->flush.error == 0)
			log_warn("cannot put in place what a killed process of the family wrote (error %d)",
			         -r);
		f->flush.error = r;
		takeover_ungate(f, gated);
		/* no thread waits for the dead: no other flush begins while needs_repair is set */
		end_busy(f);
		return;
	}
	/* In this order: after a kill in between, no bytes are appended twice. */
	atomic_store(&entry->done, DONE_MAKE(atomic_load(&f->arena->header->live.next_seq), 0));
	atomic_store(&entry->flush_active, APPEND_NONE);
	/* (a repair in a signal handler may have interrupted a write that still copies into this block) */
	if (f->pinned)
		f->pinned->lost = true;
	if (file_is_paged(f)) {
		/* (the size that the dead process has published, not what it knew) */
		f->lsize = overlay_size(&f->overlay);
		f->space.end = 0; /* the replay may have given it back */
	}
	free_staged(f);
	atomic_store(&entry->used, 1); /* a recovery by path marks the entry as finished */
	f->takeovers = entry->takeovers;
	takeover_ungate(f, gated);
	attach_nothing_staged(f);
	if (r >= 0)
		atomic_store(&entry->prealloc_end, 0);
	if (end > f->lsize)
		f->lsize = end;
	fd = file_fd(f);
	if (fd >= 0)
		attach_refresh(f, fd);
	else
		f->ksize = f->lsize;
	end_busy(f);
}

/* ---- sweep ---- */

struct sweep {
	struct family_set dead;
	bool any;
};

/* No process has the file any more.  Bytes staged for it in an arena of ours are written to it by its
 * path. */
static void bury(struct file *f)
{
	struct arena *a = NULL;
	uint32_t entry = 0;

	if (f->mode == FILE_ATTACHED && f->arena && f->entry >= 0) {
		int fd = arenas_fd(f->arena);
		bool gated = takeover_gate(f);

		if (fd >= 0 && recover_live_entry(fd, f->arena->dir, (uint32_t)f->entry, -1) == 0) {
			free_staged(f);
			takeover_ungate(f, gated);
			gated = false;
			attach_nothing_staged(f);
			/* a later open knows nothing of the journal's entries */
			journal_retire(f);
			flush_close_internal(f);
			a = f->arena;
			entry = (uint32_t)f->entry;
		}
		takeover_ungate(f, gated);
	}
	attach_leave_arena(f);
	/* only now may another file get the entry */
	if (a)
		arena_entry_free(a, entry);
	f->flush.busy = 0;
	file_become(f, FILE_BYPASSED, f->why);
}

/* File lock held; no process has the description any more. */
static void end_description(struct file *f, struct ofd *o)
{
	if (f->current && f->current->stream == o)
		stage_unstream(f);
	if (f->lease.on == o)
		f->lease.on = NULL;
	if (f->left == o)
		f->left = NULL;
	/* (if other descriptions are left, their processes drain the file) */
	if (f->ofds == o && !o->next)
		bury(f);
	ofd_release(o);
	file_put_dead(f);
}

void repair_give_up(struct ofd *o)
{
	struct file *f = atomic_load(&o->file);
	struct file_guard g = file_lock(f);
	const struct ofd *known;

	flush_wait_idle(f);
	known = f->ofds;
	/* (a free description still names its last file) */
	while (known && known != o)
		known = known->next;
	if (known && family_set_has(&o->holders, family_me)) {
		family_set_remove(&o->holders, family_me);
		if (family_set_count(&o->holders) == 0)
			end_description(f, o);
	}
	file_unlock(f, g);
}

/* File lock held.  True if a dead process has a claim to the file. */
static bool is_concerned(const struct file *f, const struct sweep *s)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		for (uint32_t w = 0; w < FAMILY_WORDS; w++)
			if (atomic_load(&o->holders.words[w]) & atomic_load(&s->dead.words[w]))
				return true;
	return false;
}

/* False if this process cannot map the file's arena and others can: they sweep the file.  Waiting here would
 * hold a lock that they may need first. */
static bool is_ours_to_sweep(struct file *f, struct sweep *s)
{
	sys_sigset signals = signals_hold();
	bool ours;

	file_retake(f);
	ours = f->nested || !is_concerned(f, s) || attach_reaches(f);
	file_drop(f);
	signals_release(signals);
	return ours;
}

/* The process whose timer looked after the staged bytes is dead, and its index will soon be reused: take
 * over. */
static void keep_for(struct file *f, const struct sweep *s)
{
	uint32_t keeper;

	if (f->mode != FILE_ATTACHED || !f->arena || f->entry < 0 || !file_is_staged(f) ||
	    !file_local(f)->refs || gate_stopped())
		return;
	keeper = arena_entry_at(f->arena, (uint32_t)f->entry)->keeper;
	if (keeper != 0 && keeper <= FAMILY_MAX && family_set_has(&s->dead, keeper - 1)) {
		takeover_keep(f);
		workers_arm();
	}
}

/* Withdraws the dead processes' claims to one file, and removes descriptions that no other process has. */
PROCESS_CODE static void visit_sweep(struct file *f, void *ctx)
{
	struct sweep *s = ctx;
	struct file_guard g;
	struct ofd *next;

	if (!is_ours_to_sweep(f, s)) {
		s->any = false;
		return;
	}
	g = file_lock(f);
	if (!is_concerned(f, s)) {
		file_unlock(f, g);
		return;
	}
	if (f->nested) {
		/* left to the next sweep */
		s->any = false;
		file_unlock(f, g);
		return;
	}
	if (file_flusher_died(f)) {
		f->needs_repair = true;
		repair_file(f);
	}
	for (struct ofd *o = f->ofds; o; o = next) {
		next = o->next;
		for (uint32_t w = 0; w < FAMILY_WORDS; w++)
			atomic_fetch_and(&o->holders.words[w], ~atomic_load(&s->dead.words[w]));
		if (family_set_count(&o->holders) == 0)
			end_description(f, o);
	}
	keep_for(f, s);
	file_unlock(f, g);
}

PROCESS_CODE static void visit_arena(struct arena *a, void *ctx)
{
	struct sweep *s = ctx;
	bool claimed = false;

	if (!atomic_load(&a->ready)) {
		/* it is being made, and no process has it yet */
		if (family_set_has(&s->dead, file_arena_taker(a)))
			file_arena_give(a);
		return;
	}
	for (uint32_t w = 0; w < FAMILY_WORDS; w++) {
		atomic_fetch_and(&a->members.words[w], ~atomic_load(&s->dead.words[w]));
		claimed |= atomic_load(&a->members.words[w]) != 0;
	}
	if (!claimed) {
		/* all its processes are dead: the arena's file is recovered like any other */
		atomic_store(&a->ready, false);
		file_arena_give(a);
	} else {
		if (arenas_fd(a) >= 0)
			arena_reclaim_blocks(a, &s->dead);
		journal_bury(a, &s->dead);
	}
}

/* LOCK_FAMILY held: nobody joins meanwhile. */
PROCESS_CODE __attribute__((noinline)) static void find_dead(struct sweep *s)
{
	enum { FEW = 4 };
	const struct family *m = file_family();
	uint32_t others = 0;
	bool alone;

	for (uint32_t i = 0; i < FAMILY_MAX; i++)
		others += i != family_me && atomic_load(&m->state[i]) != MEMBER_FREE;
	/* one question instead of many */
	alone = others > FEW && family_is_alone();
	for (uint32_t i = 0; i < FAMILY_MAX && others > 0; i++) {
		if (atomic_load(&m->state[i]) == MEMBER_FREE || i == family_me ||
		    !(alone || family_member_died(i)))
			continue;
		family_set_add(&s->dead, i);
		s->any = true;
	}
}

PROCESS_CODE void repair_sweep(void)
{
	struct family *m = file_family();
	struct sweep s = {.any = false};

	if (!family_is_shared() || lock_take(&m->lock, LOCK_FAMILY) == LOCK_NESTED)
		return;
	find_dead(&s);
	if (s.any) {
		file_for_each_shared(visit_sweep, &s);
		file_arena_for_each(visit_arena, &s);
		for (uint32_t i = 0; i < FAMILY_MAX && s.any; i++)
			if (family_set_has(&s.dead, i)) {
				family_set_remove(&m->refusing, i);
				atomic_store(&m->state[i], MEMBER_FREE);
			}
	}
	lock_drop(&m->lock, LOCK_FAMILY);
}

bool repair_end_family(void)
{
	if (!family_can_close())
		return false;
	repair_sweep();
	return family_close_alone();
}

void repair_set(void)
{
	static const struct file_care care = {.interrupt = stage_interrupt,
	                                      .repair = repair_file,
	                                      .attach = attach_to_arena,
	                                      .sweep = repair_sweep,
	                                      .announce = journal_file_announce};

	file_care = &care;
}
