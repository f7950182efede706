// SPDX-License-Identifier: Apache-2.0
/* stage: see staging/stage.h; the commit protocol is in format/arena_format.h. */
#include "staging/stage.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/probe.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/workers.h"
#include "staging/arena.h"
#include "staging/staging_policy.h"
#include "staging/takeover.h"

#include <assert.h>
#include <fcntl.h>
#include <unistd.h>

__thread struct stage_frame *stage_frames;
__thread uint32_t stage_passing;
PROCESS_DATA _Atomic size_t stage_fast_most = STAGE_FAST_MOST;

/* True if both addresses lie in one mapping.  False if the kernel does not say. */
static bool same_mapping(uintptr_t a, uintptr_t b)
{
	int fd = sys.openat(AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
	uintptr_t number = 0, from = 0;
	enum { FROM, TO, REST } at = FROM;
	BUFFER(char, text);
	bool same = false;
	ssize_t n = 0;

	while (fd >= 0 && !same && ((n = sys.read(fd, text, BUFFER_BYTES)) > 0 || n == -EINTR)) {
		for (ssize_t i = 0; i < n && !same; i++) {
			char c = text[i];

			if (c == '\n') {
				at = FROM;
				number = 0;
			} else if (at == FROM && c == '-') {
				from = number;
				at = TO;
				number = 0;
			} else if (at == TO && c == ' ') {
				same = from <= a && a < number && from <= b && b < number;
				at = REST;
			} else if (at != REST) {
				number = number * 16 + (uintptr_t)(c <= '9' ? c - '0' : c - 'a' + 10);
			}
		}
	}
	if (fd >= 0)
		sys.close(fd);
	return same;
}

/* True if a jump to `target` leaves the frame, that is, if `target` lies further up on the frame's own stack.
 * A handler on the alternate stack may jump within that stack; then the interrupted frame lives on. */
static bool is_left(uintptr_t frame, uintptr_t target)
{
	stack_t other = {.ss_flags = SS_DISABLE};
	uintptr_t from, size;

	if (target <= frame)
		return false;
	sys_raw(SYS_sigaltstack, 0, (long)&other, 0, 0, 0, 0);
	from = (uintptr_t)other.ss_sp;
	size = other.ss_flags & SS_DISABLE ? 0 : other.ss_size;
	if (target - from < size && frame - from >= size)
		return false;
	return same_mapping(frame, target);
}

/* This thread owns the file's lock, and `left` has been left.  True if `left` is the owner, not a frame that
 * lives on. */
static bool was_owner(const struct stage_frame *left, const struct stage_frame *living)
{
	while (living && living->file != left->file)
		living = living->outer;
	return left->owns || !living;
}

static void visit_interrupted(struct file *f, void *ctx)
{
	(void)ctx;
	if (lock_owner(&f->lock) != lock_self())
		return;
	if (f->current)
		f->current->lost = true;
	if (f->pinned)
		f->pinned->lost = true;
}

bool stage_forks(void)
{
	file_for_each(visit_interrupted, NULL);
	/* do not read the frames: a jump that is not seen (an exception) may have left them */
	return stage_frames || stage_passing > 0;
}

void stage_left(uintptr_t target)
{
	sys_sigset signals = signals_block();
	struct stage_frame *living = stage_frames;
	uint32_t tid = lock_self();

	while (living && is_left((uintptr_t)living, target))
		living = living->outer;
	for (; stage_frames != living; stage_frames = stage_frames->outer) {
		struct lock *l = &stage_frames->file->lock;

		/* its bytes are published or not; nothing else was changed */
		if (lock_owner(l) == tid && was_owner(stage_frames, living))
			lock_drop_fast(l, tid);
	}
	sys_restore_signals(signals);
}

static struct arena_extent last_extent(const struct file *f, const struct block_run *run, uint64_t commit)
{
	uint8_t *data = arena_block_data(f->arena, run->index);

	return arena_extent_get(run->meta, data, f->arena->block_bytes, commit, COMMIT_COUNT(commit) - 1);
}

/* File offset of the end of the current block's last extent. */
static uint64_t current_end(const struct file *f, const struct block_run *run)
{
	uint64_t commit = arena_run_commit(run);
	struct arena_extent e = last_extent(f, run, commit);

	return e.offset + e.length;
}

uint64_t stage_logical_size(struct file *f)
{
	struct block_run *run = f->current;

	if (run) {
		uint64_t end = current_end(f, run);

		if (end > f->staged_hi)
			f->staged_hi = end;
		if (end > f->lsize)
			f->lsize = end;
	}
	return f->lsize;
}

void stage_unstream(struct file *f)
{
	struct block_run *run = f->current;

	if (run && run->stream) {
		run->stream->pos = (off_t)current_end(f, run);
		run->stream->pos_mode = POS_USER;
		run->stream = NULL;
	}
}

off_t stage_position(struct file *f, struct ofd *o)
{
	if (o->pos_mode == POS_STREAM)
		return (off_t)current_end(f, f->current);
	if (o->pos_mode == POS_USER)
		return o->pos;
	return sys.lseek(ofd_fd(o), 0, SEEK_CUR);
}

void stage_count(struct file *f, uint64_t bytes)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	atomic_fetch_add_explicit(&entry->counters[COUNT_WRITES], f->writes, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->counters[COUNT_BYTES], bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->counters[COUNT_SYNCS_ASKED], atomic_exchange(&f->order.syncs, 0),
	                          memory_order_relaxed);
	staging_policy_saved(f);
	f->writes = 0;
}

#ifdef FASTWRITE_DEBUG
/* After a reboot recovery believes a sealed block only if its checksum is right. */
static void check_sum(const struct file *f, const struct block_run *run, uint64_t commit)
{
	assert(arena_sum_block(arena_entry_at(f->arena, (uint32_t)f->entry), run->meta,
	                       arena_block_data(f->arena, run->index), f->arena->block_bytes,
	                       commit) == COMMIT_SUM(commit));
}
#else
#define check_sum(f, run, commit)
#endif

void stage_seal(struct file *f)
{
	struct block_run *run = f->current;
	uint64_t commit, bytes = 0;

	if (!run)
		return;
	stage_logical_size(f);
	stage_unstream(f);
	commit = atomic_fetch_or_explicit(&run->meta->commit, COMMIT_SEALED, memory_order_acq_rel);
	kill_step();
	check_sum(f, run, commit);
	for (uint32_t i = 0; i < COMMIT_COUNT(commit); i++)
		bytes += arena_extent_get(run->meta, arena_block_data(f->arena, run->index),
		                          f->arena->block_bytes, commit, i)
		                 .length;
	f->current = NULL;
	stage_count(f, bytes);
}

void stage_interrupt(struct file *f)
{
	struct block_run *run = f->current;

	if (!run)
		return;
	stage_seal(f);
	if (!f->pinned)
		f->pinned = run;
}

static bool ranges_meet(uint64_t a, uint64_t a_end, uint64_t b, uint64_t b_end)
{
	return a < b_end && b < a_end;
}

bool stage_overlaps(struct file *f, uint64_t offset, uint64_t size)
{
	uint64_t end = offset + size;
	uint64_t logical = stage_logical_size(f);

	if (f->needs_repair)
		return true; /* a killed process left bytes whose offsets are not known */
	if (!f->head)
		return false;
	if (end > f->ksize && offset < logical)
		return true;
	if (!ranges_meet(offset, end, f->staged_lo, f->staged_hi))
		return false;
	for (struct block_run *run = f->head; run; run = run->next) {
		uint64_t commit = arena_run_commit(run);
		uint8_t *data = arena_block_data(f->arena, run->index);

		for (uint32_t i = 0; i < COMMIT_COUNT(commit); i++) {
			struct arena_extent e =
				arena_extent_get(run->meta, data, f->arena->block_bytes, commit, i);

			if (ranges_meet(offset, end, e.offset, e.offset + e.length))
				return true;
		}
	}
	return false;
}

/* Returns `sum` continued over the copied bytes. */
static uint32_t copy_in(uint32_t sum, uint8_t *to, const struct iovec *iov, int count, size_t skip, size_t n)
{
	for (int i = 0; i < count && n > 0; i++) {
		size_t part = iov[i].iov_len;

		if (skip >= part) {
			skip -= part;
			continue;
		}
		part -= skip;
		if (part > n)
			part = n;
		sum = crc32c_copy(sum, to, (const uint8_t *)iov[i].iov_base + skip, part);
		to += part;
		n -= part;
		skip = 0;
	}
	return sum;
}

static void publish(struct block_run *run, uint64_t commit)
{
	kill_step();
	atomic_store_explicit(&run->meta->commit, commit, memory_order_release);
	kill_step();
}

/* Most bytes of an extent that begins at `pos`, behind `extents` others, with `granted` bytes reserved. */
static uint32_t extent_room(const struct file *f, uint32_t pos, uint32_t extents, uint64_t granted)
{
	uint64_t room = (uint64_t)f->arena->block_bytes - pos - (uint64_t)extents * ARENA_EXTENT_BYTES;

	if (room > ARENA_EXTENT_MAX)
		room = ARENA_EXTENT_MAX;
	return (uint32_t)(room < granted ? room : granted);
}

/* Checksum of an empty block. */
static uint32_t sum_begin(const struct file *f, const struct block_run *run)
{
	const struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	return arena_sum_extent(arena_sum_begin(entry, run->meta), 0, &run->meta->first);
}

/* The same for a block that is already published.  False: a process outside of the family has sealed it
 * (format/takeover_format.h). */
static bool publish_more(struct block_run *run, uint64_t commit, uint64_t more)
{
	bool published;

	kill_step();
	published = !(commit & COMMIT_SEALED) &&
	            atomic_compare_exchange_strong(&run->meta->commit, &commit, more);
	kill_step();
	return published;
}

/* Takes a block whose first extent begins at `offset`.  Recovery does not see it yet, because its owner is
 * 0. */
static struct block_run *block_prepare(struct file *f, uint64_t offset, uint64_t granted,
                                       enum stage_kind kind)
{
	struct arena *a = f->arena;
	struct block_run *run;
	uint32_t pos = (uint32_t)(offset % ARENA_PAGE);

	/* one block is kept for signal handlers, which cannot wait for a worker thread */
	if (!f->nested && atomic_load_explicit(&a->free_count, memory_order_relaxed) <= 1)
		return NULL;
	run = arena_block_take(a);
	if (!run)
		return NULL;
	run->meta->kind = kind;
	run->meta->seq = arena_next_seq(a);
	run->meta->chain_block = 0;
	run->meta->first = (struct arena_extent){.offset = offset, .pos = pos};
	run->base = arena_block_data(a, run->index) + pos;
	run->room = extent_room(f, pos, 0, granted);
	run->stream = NULL;
	run->next = NULL;
	run->split_bytes = 0;
	run->flushed = false;
	run->opened_ns = sys_now_ns();
	return run;
}

/* Adds the block to the file, for recovery, too. */
static void block_attach(struct file *f, struct block_run *run)
{
	kill_step();
	atomic_store_explicit(&run->meta->owner, (uint32_t)f->entry + 1, memory_order_release);
	run->taker = 0;
	kill_step();
	if (f->tail)
		f->tail->next = run;
	else
		f->head = run;
	f->tail = run;
	if (run == f->head)
		file_due_flush(f);
	if (f->blocks++ == 0)
		atomic_fetch_add_explicit(&f->arena->files, 1, memory_order_relaxed);
	f->current = run;
}

/* Puts the whole write into a block of its own. */
static int put_fresh(struct file *f, const struct iovec *iov, int count, size_t n, uint64_t offset,
                     uint64_t granted, enum stage_kind kind)
{
	struct block_run *run = block_prepare(f, offset, granted, kind);
	uint32_t sum;

	if (!run)
		return -EAGAIN;
	stage_seal(f);
	sum = copy_in(sum_begin(f, run), run->base, iov, count, 0, n);
	publish(run, COMMIT_MAKE(1, n, sum));
	block_attach(f, run);
	return 0;
}

/* Frees `second`, which holds the rest of a write that was not published. */
static void take_back(struct file *f, struct block_run *first, struct block_run *second)
{
	first->next = NULL;
	f->tail = first;
	f->blocks--;
	arena_block_free(f->arena, second);
	arena_blocks_freed(f->arena, 1);
}

/* Puts the first `part` bytes at the end of the current block and the rest into a new one.  One store
 * publishes both. */
static int put_split(struct file *f, const struct iovec *iov, int count, size_t n, uint64_t offset,
                     uint32_t part, uint64_t granted, enum stage_kind kind)
{
	struct block_run *first = f->current;
	uint64_t commit = arena_run_commit(first);
	struct block_run *second = block_prepare(f, offset + part, granted - part, kind);
	uint32_t sum;

	if (!second)
		return -EAGAIN;
	sum = copy_in(sum_begin(f, second), second->base, iov, count, part, n - part);
	second->meta->chain_seq = first->meta->seq;
	second->meta->chain_commit = COMMIT_REACH(COMMIT_GROWN(commit, part, 0));
	second->meta->chain_block = first->index + 1;
	second->split_bytes = part;
	publish(second, COMMIT_MAKE(1, n - part, sum));
	stage_unstream(f);
	block_attach(f, second);
	f->current = first; /* until that block is sealed */
	sum = copy_in(COMMIT_SUM(commit), first->base + COMMIT_LENGTH(commit), iov, count, 0, part);
	if (!publish_more(first, commit, COMMIT_GROWN(commit, part, sum))) {
		take_back(f, first, second);
		return put_fresh(f, iov, count, n, offset, granted, kind);
	}
	stage_seal(f);
	f->current = second;
	atomic_store_explicit(&second->meta->chain_block, 0, memory_order_release);
	kill_step();
	return 0;
}

/* Position in the current block for an extent of n bytes; 0 if it does not fit. */
static uint32_t place_extent(const struct file *f, const struct block_run *run, uint64_t commit,
                             uint64_t offset, size_t n)
{
	struct arena_extent e = last_extent(f, run, commit);
	uint32_t count = COMMIT_COUNT(commit);
	uint64_t pos = (uint64_t)e.pos + e.length;

	if (count >= ARENA_EXTENTS_MAX)
		return 0;
	/* whole pages keep their offset modulo a page, so that O_DIRECT can write them */
	if (n >= ARENA_PAGE) {
		uint64_t want = offset % ARENA_PAGE;

		pos += (want + ARENA_PAGE - pos % ARENA_PAGE) % ARENA_PAGE;
	}
	if (pos + n + (uint64_t)count * ARENA_EXTENT_BYTES > f->arena->block_bytes)
		return 0;
	return (uint32_t)pos;
}

/* Returns false like publish_more. */
static bool put_extent(struct file *f, const struct iovec *iov, int count, size_t n, uint64_t offset,
                       uint64_t granted, uint32_t pos)
{
	struct block_run *run = f->current;
	uint64_t commit = arena_run_commit(run);
	uint32_t extents = COMMIT_COUNT(commit);
	uint8_t *data = arena_block_data(f->arena, run->index);
	struct arena_extent *entry = arena_extent_entry(data, f->arena->block_bytes, extents);
	uint32_t sum;

	/* moves the length of the previous extent from the commit word to its entry; its value stays the
	 * same */
	if (extents == 1)
		run->meta->first.length = COMMIT_LENGTH(commit);
	else
		arena_extent_entry(data, f->arena->block_bytes, extents - 1)->length = COMMIT_LENGTH(commit);
	*entry = (struct arena_extent){.offset = offset, .pos = pos};
	sum = arena_sum_extent(COMMIT_SUM(commit), COMMIT_LENGTH(commit), entry);
	sum = copy_in(sum, data + pos, iov, count, 0, n);
	if (!publish_more(run, commit, COMMIT_MAKE(extents + 1, n, sum)))
		return false;
	run->base = data + pos;
	run->room = extent_room(f, pos, extents, granted);
	return true;
}

static int put_current(struct file *f, const struct iovec *iov, int count, size_t n, uint64_t offset,
                       uint64_t granted, enum stage_kind kind)
{
	struct block_run *run = f->current;
	uint64_t commit = arena_run_commit(run);
	uint32_t length = COMMIT_LENGTH(commit);
	struct arena_extent e = last_extent(f, run, commit);
	uint32_t pos;

	if (offset == e.offset + length) {
		/* more space may have been reserved since the extent began */
		uint32_t room = extent_room(f, e.pos, COMMIT_COUNT(commit) - 1, length + granted);

		if (room > run->room)
			run->room = room;
		if (n <= run->room - length) {
			uint32_t sum = copy_in(COMMIT_SUM(commit), run->base + length, iov, count, 0, n);

			if (publish_more(run, commit, COMMIT_GROWN(commit, n, sum)))
				return 0;
			return put_fresh(f, iov, count, n, offset, granted, kind);
		}
		if (run->room > length)
			return put_split(f, iov, count, n, offset, run->room - length, granted, kind);
		return put_fresh(f, iov, count, n, offset, granted, kind);
	}
	pos = place_extent(f, run, commit, offset, n);
	if (pos != 0 && put_extent(f, iov, count, n, offset, granted, pos))
		return 0;
	return put_fresh(f, iov, count, n, offset, granted, kind);
}

int stage_put(struct file *f, struct ofd *stream, const struct iovec *iov, int count, size_t n,
              uint64_t offset, uint64_t granted, enum stage_kind kind)
{
	/* the timer of this process must watch the file */
	bool watch = !f->head || !takeover_keeps(f);
	bool was_empty = !f->head;
	int r;

	f->moving_from = offset;
	f->moving_bytes = n;
	f->moving = stream;
	atomic_signal_fence(memory_order_seq_cst);
	takeover_keep(f);
	if (f->current && f->current->stream != stream)
		stage_unstream(f);
	if (f->current && (arena_run_commit(f->current) & COMMIT_SEALED))
		stage_seal(f);
	if (f->current)
		r = put_current(f, iov, count, n, offset, granted, kind);
	else
		r = put_fresh(f, iov, count, n, offset, granted, kind);
	if (r < 0) {
		f->moving = NULL;
		return r;
	}
	f->kind = kind;
	f->writes++;
	if (was_empty || offset < f->staged_lo)
		f->staged_lo = offset;
	if (was_empty || offset + n > f->staged_hi)
		f->staged_hi = offset + n;
	if (offset + n > f->lsize)
		f->lsize = offset + n;
	if (stream) {
		f->current->stream = stream;
		stream->pos_mode = POS_STREAM;
	}
	atomic_signal_fence(memory_order_seq_cst);
	f->moving = NULL;
	PROBE(stage, PROBE_FILE(f), n);
	if (watch)
		workers_arm();
	return 0;
}
