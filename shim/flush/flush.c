// SPDX-License-Identifier: Apache-2.0
/* flush: see flush/flush.h. */
#include "flush/flush.h"

#include "base/buffer.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/workers.h"
#include "flush/append.h"
#include "flush/device_speed.h"
#include "flush/direct_io.h"
#include "flush/journaled.h"
#include "flush/merge.h"
#include "flush/order_log.h"
#include "flush/ordered.h"
#include "flush/route.h"
#include "flush/token.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"
#include "staging/takeover.h"

#include <fcntl.h>
#include <sched.h>

/* The blocks of one flush, as taken from the head of the file. */
struct plan {
	struct block_run *first, *last;
	uint64_t offset; /* of the first byte, if `stretch` */
	uint64_t bytes;
	bool stretch;  /* one extent per block, each contiguous with the one before */
	uint32_t skip; /* bytes of the first block that are already in the file */
	enum stage_kind kind;
};

/* Half of the pages may have what the file has grown by, and no epoch is under way: the program need not wait
 * until all have. */
static bool grows_fast(const struct file *f)
{
	enum { MOST = 32 << 20 };
	uint64_t half = f->arena->pages.frame_count / 2 * (uint64_t)PAGES_BYTES;
	uint64_t much = half < MOST ? half : MOST;

	return f->bytes > much && f->lsize > f->ksize + much && file_is_ordered(f) &&
	       atomic_load(&order_log_of(f->arena)->settled);
}

bool flush_worth(const struct file *f)
{
	uint32_t sealed = f->blocks - (f->current ? 1 : 0);
	uint32_t files = atomic_load_explicit(&f->arena->files, memory_order_relaxed);
	uint32_t share = f->arena->block_count / (files ? files : 1);
	uint32_t run = FLUSH_RUN_BYTES / f->arena->block_bytes;
	uint32_t enough = share / 4 < run ? share / 4 : run;

	if (file_is_paged(f))
		return grows_fast(f);
	/* a whole run, or a quarter of the blocks that are this file's share */
	return sealed > 0 && sealed >= enough && !atomic_load(&f->flush.busy);
}

static void make_plan(struct file *f, struct plan *p)
{
	struct block_run *run = flush_first(f);
	uint64_t end;

	*p = (struct plan){.first = run, .skip = f->flush.append_skip, .kind = f->kind};
	p->stretch = COMMIT_COUNT(arena_run_commit(run)) == 1;
	p->offset = run->meta->first.offset + p->skip;
	end = run->meta->first.offset;
	for (; run && run != f->current; run = run->next) {
		uint64_t commit = arena_run_commit(run);

		if (run != p->first && (!p->stretch || COMMIT_COUNT(commit) != 1 ||
		                        run->meta->first.offset != end || p->bytes >= FLUSH_RUN_BYTES))
			break;
		end += COMMIT_LENGTH(commit);
		p->bytes += COMMIT_LENGTH(commit);
		p->last = run;
	}
	p->bytes -= p->skip;
}

static int write_stretch(const struct plan *p, struct flush_target *t, uint64_t *done)
{
	uint64_t offset = p->offset;
	uint32_t skip = p->skip;
	struct block_run *run = p->first;

	for (;;) {
		BUFFER(struct iovec, iov);
		uint64_t bytes = 0;
		int count = 0, r;

		for (;; run = run->next) {
			uint32_t length = COMMIT_LENGTH(arena_run_commit(run));

			iov[count].iov_base = run->base + skip;
			iov[count++].iov_len = length - skip;
			bytes += length - skip;
			skip = 0;
			if (run == p->last || count == FLUSH_IOV_MAX)
				break;
		}
		r = direct_io_write(t, iov, count, offset, done);
		if (r < 0 || run == p->last)
			return r;
		run = run->next;
		offset += bytes;
	}
}

struct merge_source {
	const struct file *f;
	const struct block_run *run;
	uint64_t commit;
};

static struct arena_extent source_extent(const void *ctx, uint32_t i)
{
	const struct merge_source *s = ctx;

	return arena_extent_get(s->run->meta, arena_block_data(s->f->arena, s->run->index),
	                        s->f->arena->block_bytes, s->commit, i);
}

static int write_pieces(uint8_t *data, const struct arena_extent *pieces, uint32_t n, struct flush_target *t,
                        uint64_t *done)
{
	for (uint32_t i = 0; i < n;) {
		BUFFER(struct iovec, iov);
		uint64_t offset = pieces[i].offset;
		uint64_t end = offset;
		int count = 0, r;

		/* pieces that are contiguous in the file go out together */
		for (; i < n && count < FLUSH_IOV_MAX && pieces[i].offset == end; i++) {
			iov[count].iov_base = data + pieces[i].pos;
			iov[count++].iov_len = pieces[i].length;
			end += pieces[i].length;
		}
		r = direct_io_write(t, iov, count, offset, done);
		if (r < 0)
			return r;
	}
	return 0;
}

_Static_assert(MERGE_MAX * sizeof(struct arena_extent) <= BUFFER_LARGE_BYTES, "pieces fit");

static int write_scattered(const struct file *f, const struct plan *p, struct flush_target *t, uint64_t *done)
{
	struct merge_source source = {.f = f, .run = p->first, .commit = arena_run_commit(p->first)};
	struct arena_extent *pieces = buffer_take_large();
	uint32_t n = merge_extents(source_extent, &source, COMMIT_COUNT(source.commit), pieces);
	int r = write_pieces(arena_block_data(f->arena, p->first->index), pieces, n, t, done);

	buffer_give_large(pieces);
	return r;
}

static uint64_t plan_end(const struct file *f, const struct plan *p)
{
	struct merge_source source = {.f = f, .run = p->first, .commit = arena_run_commit(p->first)};
	uint64_t end = 0;

	if (p->stretch)
		return p->offset + p->bytes;
	for (uint32_t i = 0; i < COMMIT_COUNT(source.commit); i++) {
		struct arena_extent e = source_extent(&source, i);

		if (e.offset + e.length > end)
			end = e.offset + e.length;
	}
	return end;
}

static uint64_t plan_begin(const struct file *f, const struct plan *p)
{
	struct merge_source source = {.f = f, .run = p->first, .commit = arena_run_commit(p->first)};
	uint64_t begin = p->offset;

	for (uint32_t i = 0; !p->stretch && i < COMMIT_COUNT(source.commit); i++) {
		struct arena_extent e = source_extent(&source, i);

		if (e.offset < begin)
			begin = e.offset;
	}
	return begin;
}

/* Records the present state of the file for the bytes that are still staged (staging/guard.h). */
static void guard_again(struct file *f)
{
	int fd;

	if (f->mode != FILE_ATTACHED || !f->arena || !flush_first(f))
		return;
	fd = file_fd(f);
	if (fd < 0)
		fd = file_internal_fd(f);
	if (fd >= 0)
		guard_take(f, fd);
}

static int flush_shared(struct file *f, bool gated)
{
	int r;

	flush_token_take(f);
	journal_file_changed(f);
	guard_change(f);
	r = append_shared(f);
	guard_again(f);
	if (!f->head)
		f->staged_lo = f->staged_hi = 0;
	f->flush.error = r;
	takeover_ungate(f, gated);
	flush_token_give(f);
	return r;
}

/* A flush from plan to end.  It lies on the stack of the flusher. */
struct flush_work {
	struct plan p;
	struct route rt;
	uint64_t done; /* bytes written to the file */
	bool gated;
	int r;
};

/*
 * After the write, successful or not: the steps that only the holder of the flush token may take, with or
 * without the file lock.  Afterwards the borrowed flags are restored, and the file entry says what is in the
 * file.
 */
static void commit(struct file *f, struct flush_work *w)
{
	f->flush.result = (struct flush_result){.end = plan_end(f, &w->p), .bytes = w->p.bytes, .r = w->r};
	if (w->r == 0) {
		route_count(f, &w->rt, w->p.bytes);
		flush_retire(f, w->p.first, w->p.last);
	} else if (w->p.kind == STAGE_APPEND) {
		/* an append stopped half way: record the bytes in the file, so that they are not written
		 * again */
		flush_note_done(f, w->p.first, w->done);
	}
	if (w->p.kind == STAGE_APPEND)
		append_end(f);
	route_leave(f, &w->rt);
	takeover_ungate(f, w->gated);
	PROBE(flush, PROBE_FILE(f), w->p.bytes, w->r);
	atomic_store(&f->flush.io_done, 1);
}

/* File lock held: ends the flush. */
static void finish(struct file *f)
{
	const struct flush_result *result = &f->flush.result;

	/* first: recovery finds the blocks that are in the file until the guard covers them */
	guard_again(f);
	flush_free_done(f);
	if (result->r == 0) {
		if (result->end > f->ksize)
			f->ksize = result->end;
		if (!f->head)
			f->staged_lo = f->staged_hi = 0;
	} else if (f->flush.error == 0) {
		log_warn("flush of %llu bytes failed: error %d; they stay staged",
		         (unsigned long long)result->bytes, -result->r);
	}
	f->flush.error = result->r;
	flush_token_give(f);
}

/* The bytes of a killed process of the family could not be recovered.  No later bytes may overtake them. */
static int repair_error(const struct file *f) { return f->flush.error ? f->flush.error : -EIO; }

/* f is paged.  Drops and retakes the lock. */
static int drain_pages(struct file *f) { return f->needs_repair ? repair_error(f) : ordered_drain(f); }

int flush_run(struct file *f, bool keep_lock)
{
	struct flush_work w = {.done = 0};
	struct block_run *next;
	uint32_t generation;

	signals_harden();
	if (f->needs_repair)
		return repair_error(f);
	flush_free_done(f);
	next = flush_first(f);
	if (!next || next == f->current)
		return 0;
	w.gated = takeover_gate(f);
	if (takeover_happened(f)) {
		takeover_ungate(f, w.gated);
		f->needs_repair = true;
		file_repair(f);
		return f->needs_repair ? repair_error(f) : 0;
	}
	make_plan(f, &w.p);
	journal_file_flushing(f, w.p.last);
	journaled_announce(f);
	w.r = route_find(f, &w.rt, w.p.offset, w.p.bytes);
	if (w.r == 1)
		return flush_shared(f, w.gated);
	if (w.r < 0) {
		takeover_ungate(f, w.gated);
		f->flush.error = w.r;
		return w.r;
	}
	flush_token_take(f);
	generation = atomic_load(&f->flush.generation);
	if (!keep_lock)
		lock_drop(&f->lock, LOCK_FILE);
	if (w.p.kind == STAGE_POSITIONAL && plan_begin(f, &w.p) < f->ksize)
		guard_overwrote(f);
	w.rt.target.guard = &arena_entry_at(f->arena, (uint32_t)f->entry)->guard;
	kill_step();
	PROBE(flush_begin, PROBE_FILE(f));
	w.r = w.p.stretch ? write_stretch(&w.p, &w.rt.target, &w.done)
	                  : write_scattered(f, &w.p, &w.rt.target, &w.done);
	commit(f, &w);
	if (!keep_lock)
		file_retake(f);
	/* a signal handler that could not wait for us may have ended the flush */
	if (atomic_load(&f->flush.busy) && atomic_load(&f->flush.generation) == generation) {
		if (f->needs_repair)
			flush_token_give(f);
		else
			finish(f);
	}
	if (f->needs_repair)
		file_repair(f);
	return w.r;
}

/*
 * Drains in a signal handler that interrupted the holder of the lock.  A flusher at work cannot end its
 * flush, because it needs that lock.  After its write is done we end the flush for it.  Everything must be in
 * the kernel before we return, because the caller's next step relies on that.
 */
static int drain_nested(struct file *f)
{
	while (atomic_load(&f->flush.busy) && !atomic_load(&f->flush.io_done)) {
		sys_raw(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
		if (file_flusher_died(f))
			file_repair(f);
	}
	if (atomic_load(&f->flush.busy))
		finish(f);
	while (flush_first(f) && flush_first(f) != f->current) {
		int r = flush_run(f, true);

		if (r < 0)
			return r;
	}
	/* (the interrupted call does not work on the overlay: that blocks signals) */
	return file_is_paged(f) ? drain_pages(f) : 0;
}

/*
 * This process cannot write the file: it only reads it, or lacks the rights.  Other processes of the family
 * flush it, at the latest when their timers fire.  Drops and retakes the lock.  -EIO: those processes are
 * dead.
 */
static int drain_elsewhere(struct file *f)
{
	for (int tries = 1; f->mode == FILE_ATTACHED && file_is_staged(f) && !flush_possible(f); tries++) {
		stage_seal(f);
		f->due[DUE_FLUSH] = 1;
		lock_drop(&f->lock, LOCK_FILE);
		sys_nap(1000000);
		if (tries % 64 == 0)
			if (file_care)
				file_care->sweep();
		file_lock_again(f);
		if (f->mode == FILE_ATTACHED && f->needs_repair)
			return repair_error(f);
		if (tries % 64 == 0 && f->mode == FILE_ATTACHED && file_is_staged(f) &&
		    !file_others_have(f) && !flush_possible(f))
			return -EIO;
	}
	return 0;
}

static int drain_blocks(struct file *f)
{
	stage_seal(f);
	if (f->nested)
		return drain_nested(f);
	for (;;) {
		int r;

		if (atomic_load(&f->flush.busy)) {
			flush_wait_idle(f);
			/* anything may have changed while the lock was free */
			if (f->mode != FILE_ATTACHED || !f->arena)
				return 0;
			if (f->needs_repair)
				return repair_error(f);
			stage_seal(f);
			continue;
		}
		if (!file_is_staged(f))
			return 0;
		r = file_is_paged(f) ? drain_pages(f) : flush_run(f, true);
		if (r < 0)
			return r;
	}
}

/* This process lacks the rights to repair the file.  Waits a while for another process of the family, which
 * tries with its timer: at most a second apart unless `lag_ms` is longer.  Worker threads do not wait,
 * because they serve other files, too. */
static int drain_after_repair(struct file *f)
{
	enum { TRIES = 250, PAUSE_NS = 10000000 };
	bool waits = !f->nested && !workers_is_self();

	for (int tries = 0; f->needs_repair && waits && tries < TRIES && file_others_have(f); tries++) {
		if (f->flush.error != -EACCES && f->flush.error != -EPERM && f->flush.error != -EBADF)
			break;
		lock_drop(&f->lock, LOCK_FILE);
		sys_nap(PAUSE_NS);
		file_lock_again(f);
	}
	return f->needs_repair ? repair_error(f) : 0;
}

int flush_drain(struct file *f)
{
	struct arena_entry *entry;
	int r;

	if (f->mode == FILE_ATTACHED && f->needs_repair) {
		r = drain_after_repair(f);
		if (r < 0)
			return r;
	}
	if (f->mode != FILE_ATTACHED || !file_is_staged(f))
		return 0;
	signals_harden();
	entry = arena_entry_at(f->arena, (uint32_t)f->entry);
	atomic_fetch_add_explicit(&entry->counters[COUNT_DRAINS], 1, memory_order_relaxed);
	if (f->shared && !flush_possible(f)) {
		return f->nested ? 0 : drain_elsewhere(f);
	}
	r = drain_blocks(f);
	/* another process's file: this one does not keep it open */
	if (file_local(f)->refs == 0 && !atomic_load(&f->flush.busy))
		flush_close_internal(f);
	return r;
}

void flush_leave_program_fd(struct file *f)
{
	if (!f->flush.program_fd)
		return;
	if (f->nested)
		(void)flush_drain(f); /* the next drain reports an error again */
	else
		flush_wait_idle(f);
}

int flush_drain_for_look(struct file *f)
{
	uint64_t begin = file_is_staged(f) ? staging_policy_clock(f) : 0;
	int r = flush_drain(f);

	staging_policy_drained(f, begin, STAGING_COST_MOST);
	return r;
}

int flush_drain_and_reposition(struct file *f)
{
	int r;

	for (;;) {
		r = flush_drain(f);
		if (f->nested)
			break;
		flush_wait_idle(f);
		if (r < 0 || !file_is_staged(f))
			break; /* nothing left; otherwise another thread has staged more during the wait */
	}
	if (!file_is_staged(f) && !visibility_stays(f))
		visibility_drop(f); /* the lease was taken, but then nothing was staged */
	stage_unstream(f);
	for (struct ofd *o = f->ofds; o; o = o->next) {
		/* a process of the family that has the description restores its position */
		if (o->pos_mode == POS_KERNEL || ofd_fd(o) < 0)
			continue;
		sys.lseek(ofd_fd(o), o->pos, SEEK_SET);
		o->pos_mode = POS_KERNEL;
	}
	return r;
}
