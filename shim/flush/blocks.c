// SPDX-License-Identifier: Apache-2.0
/* blocks: see flush/blocks.h. */
#include "flush/blocks.h"

#include "base/kill.h"
#include "flush/journaled.h"
#include "flush/visibility.h"
#include "staging/arena.h"

struct block_run *flush_first(const struct file *f)
{
	struct block_run *run = f->head;

	while (run && run->flushed)
		run = run->next;
	return run;
}

void flush_retire(struct file *f, struct block_run *first, const struct block_run *last)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	kill_step();
	atomic_store_explicit(&entry->done, DONE_MAKE(last->meta->seq, 0), memory_order_release);
	f->flush.append_skip = 0;
	kill_step();
	for (struct block_run *run = first;; run = run->next) {
		run->flushed = true;
		if (run == last)
			break;
	}
}

void flush_free_done(struct file *f)
{
	struct arena *a = f->arena;
	uint32_t freed = 0;

	for (; f->head && f->head->flushed && f->head != f->pinned; freed++) {
		struct block_run *run = f->head;

		f->head = run->next;
		if (!f->head)
			f->tail = NULL;
		if (--f->blocks == 0)
			atomic_fetch_sub_explicit(&a->files, 1, memory_order_relaxed);
		arena_block_free(a, run);
	}
	if (freed > 0) {
		file_due_flush(f);
		arena_blocks_freed(a, freed);
	}
	if (!file_is_staged(f) && !journal_file_holds(f))
		visibility_drop(f);
}

void flush_note_done(struct file *f, struct block_run *first, uint64_t bytes)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);
	uint64_t left = bytes + f->flush.append_skip;
	uint64_t seq = DONE_SEQ(atomic_load(&entry->done));

	for (struct block_run *run = first; run && left > 0; run = run->next) {
		uint32_t length = COMMIT_LENGTH(arena_run_commit(run));

		if (left < length)
			break;
		left -= length;
		seq = run->meta->seq;
		run->flushed = true;
	}
	f->flush.append_skip = (uint32_t)left;
	kill_step();
	atomic_store_explicit(&entry->done, DONE_MAKE(seq, left), memory_order_release);
	kill_step();
}
