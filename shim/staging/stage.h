// SPDX-License-Identifier: Apache-2.0
/*
 * stage: accepts the program's bytes.
 *
 * stage_fast is the whole cost of a small sequential write: one lock, one copy that also computes the
 * checksum, one compare-and-swap that publishes, one unlock.  A signal handler may interrupt it anywhere and
 * stage on the same file.  Then the handler's stage_interrupt seals the block, our compare-and-swap fails,
 * and the caller retries on the slow path.  The interrupted copy may still write bytes: behind the sealed
 * length of the block, which stays pinned until the next holder of the lock.
 */
#ifndef FASTWRITE_STAGING_STAGE_H
#define FASTWRITE_STAGING_STAGE_H

#include "base/crc32c.h"
#include "base/probe.h"
#include "base/publish.h"
#include "files/fdtable.h"
#include "files/file.h"

#include <string.h>
#include <sys/uio.h>

/*
 * The fast paths under way in this thread, innermost first; each frame lies on the stack.  A signal handler
 * may leave them with longjmp.  Then stage_left releases their locks.
 */
struct stage_frame {
	struct stage_frame *outer;
	struct file *file;
	bool owns; /* the lock; set right after it was taken */
};
extern __thread struct stage_frame *stage_frames;
extern __thread uint32_t stage_passing; /* how often this thread counts in any file's inflight */

/* Encloses a write that goes to the kernel without the lock.  A signal handler may fork meanwhile; its child
 * must not count the write, too (stage_forks). */
static inline void stage_pass_begin(struct file *f)
{
	stage_passing++;
	atomic_signal_fence(memory_order_seq_cst);
	atomic_fetch_add(&f->inflight, 1);
}

static inline void stage_pass_end(struct file *f)
{
	atomic_fetch_sub(&f->inflight, 1);
	atomic_signal_fence(memory_order_seq_cst);
	stage_passing--;
}

/*
 * Called before a fork.  True if a signal handler forks that interrupted a fast path.  This fast path
 * continues in the child, too, with the parent's block, even after the parent has finished with it.  So the
 * block is never used again, and the child must leave the family.
 */
bool stage_forks(void);

/* This thread is about to jump to a frame whose stack pointer is `target`.  Removes the frames of fast paths
 * that the jump leaves. */
void stage_left(uintptr_t target);

/*
 * The unlock waits until the copied bytes have left the store buffer, which waits for cache lines that the
 * device read last.  Small writes come in sequence, so fetch the lines of the next writes now.
 */
static inline void stage_prefetch(const uint8_t *p)
{
	enum { AHEAD = 512, LINE = 64 };
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0\n\tprefetchw %1" : : "m"(p[AHEAD]), "m"(p[AHEAD + LINE]));
#else
	__builtin_prefetch(p + AHEAD, 1);
	__builtin_prefetch(p + AHEAD + LINE, 1);
#endif
}

/*
 * Writes of up to this size may be staged without a look at RLIMIT_FSIZE.  A block has no more room than the
 * limit of the process that opened it.  0 while that may be another process of the family with another limit.
 * The next write on the slow path sets it again.
 */
enum { STAGE_FAST_MOST = 65536 };
extern _Atomic size_t stage_fast_most;
static inline void stage_limit_changes(void) { atomic_store(&stage_fast_most, 0); }

/* True if all n bytes were accepted at the stream position of `o`. */
static inline bool stage_fast(struct ofd *o, int fd, const void *buf, size_t n)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct stage_frame *outer = stage_frames;
	struct stage_frame here = {.outer = outer, .file = f, .owns = false};
	struct block_run *run;
	bool done = false;
	uint32_t tid;

	/* (a file in an overlay has no block: its lock is never taken here) */
	if (!atomic_load_explicit(&f->current, memory_order_relaxed))
		return false;
	stage_frames = &here;
	atomic_signal_fence(memory_order_seq_cst);
	/* only after the frame is linked: in the child of a handler that forked before, this thread has
	 * another id */
	tid = lock_self();
	if (!lock_try(&f->lock, tid)) {
		stage_frames = outer;
		return false;
	}
	here.owns = true;
	run = atomic_load_explicit(&f->current, memory_order_relaxed);
	/* what a dead owner of the lock left is repaired first, on the slow path */
	if (run && run->stream == o && fdtable_word(fd) == (uintptr_t)o &&
	    !(((uintptr_t)buf | n) & o->fast_mask) &&
	    !atomic_load_explicit(&f->needs_repair, memory_order_relaxed)) {
		/* read the commit word first: everything read later belongs to it, or the swap fails */
		uint64_t commit = atomic_load_explicit(&run->meta->commit, memory_order_acquire);
		uint32_t length = COMMIT_LENGTH(commit);

		if (!(commit & COMMIT_SEALED) && n <= run->room - length) {
			uint32_t sum = crc32c_copy(COMMIT_SUM(commit), run->base + length, buf, n);

			stage_prefetch(run->base + length + n);
			/* (here all arguments are in registers; if the swap fails, the slow path counts the
			 * write again) */
			PROBE(stage, PROBE_FILE(f), n);
			done = publish_swap(&run->meta->commit, commit, COMMIT_GROWN(commit, n, sum));
			f->writes += done;
		}
	}
	lock_drop_fast(&f->lock, tid);
	atomic_signal_fence(memory_order_seq_cst);
	stage_frames = outer;
	return done;
}

/* All below: file lock held, signals blocked. */

/* File offset at which a stream write of `o` would begin. */
off_t stage_position(struct file *f, struct ofd *o);
/* File size including everything staged. */
uint64_t stage_logical_size(struct file *f);
/* Moves the count of writes, and these bytes of theirs, to the file entry, where `fastwrite status` reads
 * them. */
void stage_count(struct file *f, uint64_t bytes);
/* Closes the current block to further bytes; positions become POS_USER. */
void stage_seal(struct file *f);
/* Called by file_lock if f->nested: the interrupted fast path must not publish, and tries again. */
void stage_interrupt(struct file *f);
/* Afterwards no description of this file is in POS_STREAM. */
void stage_unstream(struct file *f);
/* True if [offset, offset + size) has staged bytes, or if the kernel would return end-of-file too early. */
bool stage_overlaps(struct file *f, uint64_t offset, uint64_t size);

/*
 * Accepts n bytes (at most half a block) for file offset `offset`.  `stream`: the description whose position
 * moves along, or NULL.  `granted`: reserved bytes from `offset` on, at least n.  0, or -EAGAIN if no block
 * is free; then nothing has changed.
 */
int stage_put(struct file *f, struct ofd *stream, const struct iovec *iov, int count, size_t n,
              uint64_t offset, uint64_t granted, enum stage_kind kind);

#endif
