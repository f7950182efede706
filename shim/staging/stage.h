// SPDX-License-Identifier: Apache-2.0
/*
 * stage: accept the program's bytes.
 *
 * stage_fast is the whole cost of a small sequential write: one lock, one copy that also sums, one publishing
 * compare-and-swap, one unlock.  A signal handler may interrupt it anywhere and stage on the same file: the
 * handler's stage_interrupt seals the block, our compare-and-swap then fails, and the caller retries on the
 * slow path.  The bytes that the interrupted copy still writes land behind the sealed length of a block that
 * stays pinned until the next holder of the lock.
 */
#ifndef FASTWRITE_STAGE_H
#define FASTWRITE_STAGE_H

#include "base/crc32c.h"
#include "files/fdtable.h"
#include "files/file.h"

#include <string.h>
#include <sys/uio.h>

/*
 * A fast path under way in this thread, on its stack; the innermost one first.  A signal handler may leave them for
 * good by longjmp, and then somebody must give back their locks (stage_left).
 */
struct stage_frame {
	struct stage_frame *outer;
	struct file *file;
	bool owns; /* the lock; said right after it was taken */
};
extern __thread struct stage_frame *stage_frames;
extern __thread uint32_t stage_passing; /* writes of this thread that are counted in a file's inflight */

/* A write that goes to the kernel without the lock.  The child of a handler that forks meanwhile must not count it, too
 * (stage_forks). */
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
 * This thread is about to fork.  True when it does so in a signal handler that interrupted a fast path: that goes on in
 * the child, too, with what it knows about the parent, and maybe when the parent has long done with the block.  The
 * block is never used again, and the child must not belong to the family.
 */
bool stage_forks(void);

/* This thread is about to go on where the stack pointer is `target`.  The frames that this leaves are no more. */
void stage_left(uintptr_t target);

/*
 * Compare and swap of a commit word by the holder of the file lock.  The only other writer is a signal handler
 * of this very thread, so one instruction that no interrupt can split is enough: no bus lock, and on x86-64
 * every store is a release.
 */
static inline bool stage_publish_fast(_Atomic uint64_t *commit, uint64_t expected, uint64_t desired)
{
/* (the thread sanitizer must see it happen) */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	bool equal;

	__asm__ volatile("cmpxchgq %3, %1"
	                 : "=@cce"(equal), "+m"(*commit), "+a"(expected)
	                 : "r"(desired)
	                 : "memory");
	return equal;
#else
	return atomic_compare_exchange_strong_explicit(commit, &expected, desired, memory_order_release,
	                                               memory_order_relaxed);
#endif
}

/*
 * The unlock waits until the copied bytes have left the store buffer, and that waits for cache lines that were
 * last read by the device.  Small writes come one after another: ask for the lines of the next ones now.
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
 * Writes of up to this size may be staged without a look at the limit on the size of files: a block has room for no
 * more than its opener's limit allowed.  0 while that may be another member of the family with another limit; found
 * out anew by the next write that takes the slow path.
 */
enum { STAGE_FAST_MOST = 65536 };
extern _Atomic size_t stage_fast_most;
static inline void stage_limit_changes(void) { atomic_store(&stage_fast_most, 0); }

/* True when all n bytes were accepted at the stream position of `o`. */
static inline bool stage_fast(struct ofd *o, int fd, const void *buf, size_t n)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct stage_frame *outer = stage_frames;
	struct stage_frame here = {.outer = outer, .file = f, .owns = false};
	struct block_run *run;
	bool done = false;
	uint32_t tid;

	stage_frames = &here;
	atomic_signal_fence(memory_order_seq_cst);
	/* only now: the child of a handler that forked before is a thread of its own */
	tid = lock_self();
	if (!lock_try(&f->lock, tid)) {
		stage_frames = outer;
		return false;
	}
	here.owns = true;
	run = atomic_load_explicit(&f->current, memory_order_relaxed);
	/* (what a dead owner left is repaired first, on the slow path) */
	if (run && run->stream == o && fdtable_entry(fd) == o && !(((uintptr_t)buf | n) & o->fast_mask) &&
	    !atomic_load_explicit(&f->damaged, memory_order_relaxed)) {
		/* the commit word first: everything read after it belongs to it, or the swap fails */
		uint64_t commit = atomic_load_explicit(&run->meta->commit, memory_order_acquire);
		uint32_t length = COMMIT_LENGTH(commit);

		if (!(commit & COMMIT_SEALED) && n <= run->room - length) {
			uint32_t sum = crc32c_copy(COMMIT_SUM(commit), run->base + length, buf, n);

			stage_prefetch(run->base + length + n);
			done = stage_publish_fast(&run->meta->commit, commit, COMMIT_GROWN(commit, n, sum));
			f->writes += done;
		}
	}
	lock_drop_fast(&f->lock, tid);
	atomic_signal_fence(memory_order_seq_cst);
	stage_frames = outer;
	return done;
}

/* All below: file lock held, signals blocked. */

/* Where a stream write of `o` would begin, in the file. */
off_t stage_position(struct file *f, struct ofd *o);
/* File size with everything staged. */
uint64_t stage_logical_size(struct file *f);
/* The current block grows no more; positions become POS_USER. */
void stage_seal(struct file *f);
/* After file_lock said nested: the interrupted fast path must not publish. */
void stage_interrupt(struct file *f);
/* No description of this file is in POS_STREAM afterwards. */
void stage_unstream(struct file *f);
/* True when [offset, offset + size) has staged bytes, or the kernel would see end-of-file too early. */
bool stage_overlaps(struct file *f, uint64_t offset, uint64_t size);

/*
 * Accepts n bytes for file offset `offset` (n at most half a block).  `stream`: the description whose
 * position moves along, or NULL.  `granted`: bytes from `offset` on that have space reserved, at least n.
 * 0, or -EAGAIN when no block is free (nothing changed).
 */
int stage_put(struct file *f, struct ofd *stream, const struct iovec *iov, int count, size_t n,
              uint64_t offset, uint64_t granted, enum stage_kind kind, bool nested);

#endif
