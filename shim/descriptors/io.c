// SPDX-License-Identifier: Apache-2.0
/* io: see descriptors/io.h. */
#include "descriptors/io.h"

#include "attach/attach.h"
#include "attach/repair.h"
#include "attach/watcher.h"
#include "base/fork_guard.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/user.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "files/workers.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/prealloc.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/paged.h"
#include "staging/staging_policy.h"
#include "staging/tail.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>

/* The most bytes of one call.  Of a buffer the kernel checks the whole length before it cuts it to this, of a
 * vector with one element afterwards.  And a vector without bytes does not reach the file system, which may
 * refuse the write.  So a longer or an empty buffer is a vector with this count. */
enum { CALL_MOST = 0x7ffff000, ONE_BUFFER = -1 };

static int count_of(size_t n) { return n == 0 || n > CALL_MOST ? ONE_BUFFER : 1; }

/* Sum of the lengths, or -1 if the kernel must judge the vector.  `ours`: the library made the vector. */
static ssize_t vector_size(const struct iovec *iov, int count, bool ours)
{
	size_t n = 0;

	if (count <= 0 || count > 1024 || (!ours && !user_readable(iov, (size_t)count * sizeof *iov)))
		return -1;
	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > SSIZE_MAX - n)
			return -1;
		if (iov[i].iov_len > 0 && !io_plausible(iov[i].iov_base, iov[i].iov_len))
			return -1;
		if (iov[i].iov_len == 0 && (uintptr_t)iov[i].iov_base >> 47)
			return -1; /* perhaps the kernel's own: refused although it is empty */
		n += iov[i].iov_len;
	}
	return (ssize_t)n;
}

/* False: the kernel must make the write.  It writes the buffers before the first unreadable one. */
static bool buffers_readable(const struct iovec *iov, int count)
{
	struct user_pages pages = USER_PAGES_INIT;

	for (int i = 0; i < count; i++)
		if (!user_reads(&pages, iov[i].iov_base, iov[i].iov_len))
			return false;
	return true;
}

/* File lock held: the kernel's position of the description becomes the one that the program sees. */
static void position_to_kernel(struct file *f, int fd, struct ofd *o)
{
	stage_unstream(f);
	if (o->pos_mode == POS_KERNEL)
		return;
	sys.lseek(fd, o->pos, SEEK_SET);
	o->pos_mode = POS_KERNEL;
}

static long kernel_writev(int fd, const struct iovec *iov, int count, off_t offset)
{
	if (count == ONE_BUFFER)
		return sys_raw(offset == IO_NO_OFFSET ? SYS_write : SYS_pwrite64, fd, (long)iov->iov_base,
		               (long)iov->iov_len, offset, 0, 0);
	if (offset == IO_NO_OFFSET)
		return sys.writev(fd, iov, count);
	return sys.pwritev(fd, iov, count, offset);
}

static long kernel_readv(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	if (flags)
		return sys_raw(SYS_preadv2, fd, (long)iov, count, offset, 0, flags);
	if (count == ONE_BUFFER)
		return sys_raw(offset == IO_NO_OFFSET ? SYS_read : SYS_pread64, fd, (long)iov->iov_base,
		               (long)iov->iov_len, offset, 0, 0);
	if (offset == IO_NO_OFFSET)
		return sys.readv(fd, iov, count);
	return sys.preadv(fd, iov, count, offset);
}

/* Larger writes are the kernel's.  In order that costs a sync: there the overlay takes what leaves room for
 * other writes. */
static uint64_t most_staged(const struct file *f)
{
	const struct settings *set = &f->rule->set;
	uint32_t half = set->block_bytes / 2;

	if (file_is_ordered(f))
		return set->mem_bytes / 8;
	return set->small_bytes < half ? set->small_bytes : half;
}

/* True if fd still refers to `o`, and o to f. */
static bool still_valid(int fd, const struct ofd *o, struct file *f)
{
	return fdtable_get(fd) == o && atomic_load(&((struct ofd *)(uintptr_t)o)->file) == f;
}

/* Writes to a passive file go to the kernel without our lock.  attach_file attaches nothing meanwhile.
 * IO_PASS if the file is no longer passive. */
static long write_passive(struct file *f, int fd, const struct ofd *o, const struct iovec *iov, int count,
                          off_t offset)
{
	long r;

	stage_pass_begin(f);
	/* a signal handler may have closed fd and opened a staged file as fd */
	if (atomic_load(&f->mode) == FILE_PASSIVE && still_valid(fd, o, f))
		r = kernel_writev(fd, iov, count, offset);
	else
		r = IO_PASS;
	stage_pass_end(f);
	return r;
}

/* A write that breaks the alignment rules of O_DIRECT must fail as it does natively. */
static bool direct_aligned(const struct ofd *o, const struct iovec *iov, int count, uint64_t offset)
{
	uint32_t mask = o->align_mask;

	if (mask == 0)
		return true;
	if (offset & mask)
		return false;
	for (int i = 0; i < count; i++)
		if (((uintptr_t)iov[i].iov_base | iov[i].iov_len) & mask)
			return false;
	return true;
}

/*
 * File lock held.  The program writes at `offset`, or moves there.  Space that is reserved behind the end of
 * the file would stay in the hole: gives it back first.  1 if it had to, and the lock may have been free.
 */
static int leave_end(struct file *f, uint64_t offset)
{
	int r;

	if (f->nested || !prealloc_strands(f, offset))
		return 0;
	f->space.gap_end = offset;
	/* The lease and the journal need more than a drain.  (A strict file that has given up its lease has
	 * neither; if others have it open, the space stays.) */
	r = visibility_is(f) && !visibility_waits(f) ? detach_file(f) : flush_drain_and_reposition(f);
	if (r == 0 && f->mode == FILE_ATTACHED && f->arena && !file_is_staged(f) &&
	    !atomic_load(&f->flush.busy) && !f->needs_repair && !f->lease.on)
		prealloc_leave(f);
	return r < 0 ? r : 1;
}

/* File lock held.  Drains the file, then makes the write in the kernel. */
static long write_kernel(struct file *f, int fd, const struct iovec *iov, int count, off_t offset)
{
	bool ordered = file_is_ordered(f), asked;
	long r;

	signals_harden();
	r = offset >= 0 && f->mode == FILE_ATTACHED ? leave_end(f, (uint64_t)offset) : 0;
	if (r >= 0 && ordered)
		r = ordered_hold(f);
	if (r < 0)
		return r;
	if (ordered)
		ordered_call_begin(f->rule, f->dev, false);
	r = flush_drain_and_reposition(f);
	asked = r >= 0;
	if (asked) {
		tail_forget(f);
		journal_file_changed(f);
		journaled_announce(f);
		r = kernel_writev(fd, iov, count, offset);
	}
	if (ordered)
		ordered_hold_end(f);
	/* In a signal handler bytes may still be staged; their offsets depend on the old size.  A write that
	 * fails may have made the file longer: ext4 does, up to the offset of a buffer that it cannot read.
	 */
	if (asked && f->mode == FILE_ATTACHED && f->arena && !flush_left(f))
		attach_refresh(f, fd);
	return r;
}

/* The same for a write in order that is too large for the overlay.  Other changes that the kernel has come in
 * no order before they are synced, since each would cost a sync.  Here that is little beside the write. */
static long write_large(struct file *f, int fd, const struct iovec *iov, int count, off_t offset)
{
	long r = write_kernel(f, fd, iov, count, offset);

	if (r > 0)
		ordered_wrote_much(f->rule);
	return r;
}

/* File lock held, f is not attached. */
static long write_detached(struct file *f, int fd, const struct iovec *iov, int count, off_t offset)
{
	signals_harden();
	return file_is_ordered(f) ? write_kernel(f, fd, iov, count, offset)
	                          : kernel_writev(fd, iov, count, offset);
}

static enum stage_kind kind_of(const struct file *f, const struct ofd *o)
{
	bool placed = f->rule->set.writers == WRITERS_EXCLUSIVE || file_is_ordered(f);

	return (o->flags & O_APPEND) && !placed ? STAGE_APPEND : STAGE_POSITIONAL;
}

/* Reserves space for a write.  The overlay writes whole pages back, up to the end of the file. */
static int reserve(struct file *f, int fd, uint64_t at, size_t n, bool paged, uint64_t *granted)
{
	uint64_t from = at, to = at + n;

	if (paged) {
		from -= from % PAGES_BYTES;
		to = pages_round_up(to);
		if (to > f->lsize)
			to = at + n > f->lsize ? at + n : f->lsize;
	}
	if (paged && ordered_has_spare(f, fd, to)) {
		/* once the log has none any more, this file reserves what it lacks */
		f->sparse = true;
		return 0;
	}
	return prealloc_reserve(f, fd, from, to - from, f->arena->block_bytes + n, granted);
}

enum { WRITE_AGAIN = -ERESTART, AGAIN_MOST = 16 };

/* File lock held: puts the write into the overlay, or makes it in the kernel. */
static long write_paged(struct file *f, struct ofd *o, int fd, const struct iovec *iov, int count, size_t n,
                        off_t offset, uint64_t at)
{
	struct ofd *stream = offset == IO_NO_OFFSET ? o : NULL;
	int r = paged_put(f, stream, iov, count, n, at);

	if (r == -EAGAIN && file_is_paged(f)) {
		/* the overlay is full */
		r = ordered_flush(f);
		return r < 0 ? r : WRITE_AGAIN;
	}
	return r < 0 ? write_kernel(f, fd, iov, count, offset) : (long)n;
}

/*
 * The limit on file sizes.  Where the overlay takes one write after another it is not asked for each: the
 * hooks tell of changes, and from another process a change counts from the next flush on.
 */
static uint64_t file_limit(const struct file *f)
{
	static _Atomic uint64_t last;

	if (!file_is_paged(f) || atomic_load_explicit(&stage_fast_most, memory_order_relaxed) == 0)
		atomic_store_explicit(&last, sys_file_limit(), memory_order_relaxed);
	return atomic_load_explicit(&last, memory_order_relaxed);
}

/* File lock held.  The file system may have no files as large, and no space is reserved, which would show it:
 * a flush could never write the bytes. */
static bool is_far(struct file *f, uint64_t at)
{
	return f->rule->set.prealloc_mode == PREALLOC_OFF &&
	       at > stage_logical_size(f) + f->arena->block_bytes;
}

/*
 * File lock held, f attached: stages the write, or makes it in the kernel.  -EAGAIN: no block is free; wait
 * and try again.  WRITE_AGAIN: the lock was free for a while; try again.
 */
static long write_attached(struct file *f, struct ofd *o, int fd, const struct iovec *iov, int count,
                           size_t n, off_t offset)
{
	bool stream = offset == IO_NO_OFFSET;
	bool append = o->flags & O_APPEND;
	enum stage_kind kind = kind_of(f, o);
	uint64_t limit = file_limit(f);
	uint64_t at, granted = 0;
	off_t position;
	bool paged;
	long r;

	atomic_store(&stage_fast_most, limit != UINT64_MAX && family_is_shared() ? 0 : STAGE_FAST_MOST);
	if (f->wanted) {
		r = attach_as_wanted(f);
		if (r < 0)
			return r;
		return f->mode == FILE_ATTACHED ? write_kernel(f, fd, iov, count, offset)
		                                : write_detached(f, fd, iov, count, offset);
	}
	if (gate_stopped())
		return write_kernel(f, fd, iov, count, offset);
	if (staging_policy_gives_back(f)) {
		r = detach_file(f);
		if (r < 0)
			return r;
		if (f->mode != FILE_ATTACHED) {
			staging_policy_gave_back(f);
			return write_detached(f, fd, iov, count, offset);
		}
	}
	if (f->flush.error || f->needs_repair) {
		/* an earlier flush failed: accept nothing before a flush succeeds */
		r = flush_drain(f);
		if (r < 0)
			return r;
		if (file_is_ordered(f))
			return WRITE_AGAIN;
	}
	/* pwrite with O_APPEND appends and leaves the position alone: rare, so the kernel does it */
	if (n > most_staged(f) || (append && !stream) || gate_held())
		return write_kernel(f, fd, iov, count, offset);
	if (f->head && f->kind != kind) {
		r = flush_drain(f);
		if (r < 0)
			return r;
	}
	if (file_needs_lease(f) && !file_is_paged(f) && !ordered_pays(f->rule))
		return write_kernel(f, fd, iov, count, offset);
	visibility_doubt(f);
	if (visibility_waits(f)) {
		uint64_t begin;

		r = watcher_hold(f, o);
		if (r <= 0 && visibility_for_journal(f)) {
			/* without a lease only the journal is impossible; staging goes on */
			if (r < 0)
				visibility_not_for_journal(f);
			r = 1;
		}
		if (r < 0) {
			r = attach_bypass(f, (enum bypass_reason) - r);
			return r < 0 ? r : write_detached(f, fd, iov, count, offset);
		}
		if (r == 0) {
			begin = sys_now_ns();
			r = write_kernel(f, fd, iov, count, offset);
			if (file_needs_lease(f))
				ordered_paid(f->rule, begin);
			else if (r >= 0 && !f->nested)
				visibility_pass(f);
			return r;
		}
	}
	if (append) {
		at = stage_logical_size(f);
		/* some file systems check the alignment of the position, although an append goes elsewhere */
		if (o->align_mask && ((uint64_t)stage_position(f, o) & o->align_mask))
			return write_kernel(f, fd, iov, count, offset);
	} else {
		position = stream ? stage_position(f, o) : offset;
		if (position < 0)
			return write_kernel(f, fd, iov, count, offset);
		at = (uint64_t)position;
	}
	if (at + n > (uint64_t)INT64_MAX || !direct_aligned(o, iov, count, at) || at + n > limit ||
	    is_far(f, at))
		return write_kernel(f, fd, iov, count, offset);
	r = leave_end(f, at);
	if (r < 0)
		return r;
	if (r > 0)
		return f->mode == FILE_ATTACHED ? write_kernel(f, fd, iov, count, offset)
		                                : write_detached(f, fd, iov, count, offset);
	/* Nothing is staged without a thread that flushes it.  The threads end when they have nothing to do,
	 * and a signal handler cannot start one. */
	if (!file_is_staged(f) && workers_tid() == 0 && !workers_arm())
		return write_kernel(f, fd, iov, count, offset);
	if (file_is_ordered(f)) {
		flush_make_readable(f); /* (without that the kernel makes the write) */
		/* (another program may have changed a file without a lease) */
		if (!f->lease.on && !file_is_paged(f) && visibility_is(f))
			tail_forget(f);
	}
	paged = paged_suits(f);
	if (file_is_ordered(f) && (!paged || file_local(f)->draining))
		return write_kernel(f, fd, iov, count, offset);
	/* the page with the end is written back whole; here only a part of it may have space */
	if (paged && at > f->lsize && f->space.block < PAGES_BYTES)
		return write_kernel(f, fd, iov, count, offset);
	r = reserve(f, fd, at, n, paged, &granted);
	if ((r == -ENOSPC || r == -EDQUOT) && detach_reserved())
		r = reserve(f, fd, at, n, paged, &granted);
	if (r < 0) {
		if (r == -EOPNOTSUPP || r == -ENOSYS) {
			r = attach_bypass(f, BYPASS_NO_PREALLOC);
			return r < 0 ? r : write_detached(f, fd, iov, count, offset);
		}
		/* No space: drain, give back our reservation, and let the kernel return the exact error. */
		r = detach_file(f);
		if (r < 0)
			return r;
		if (f->mode != FILE_ATTACHED)
			return write_detached(f, fd, iov, count, offset);
		return write_kernel(f, fd, iov, count, offset);
	}
	if (granted > limit - at)
		granted = limit - at;
	if (!file_is_staged(f) && !guard_begin(f, fd)) {
		attach_refresh(f, fd);
		return WRITE_AGAIN;
	}
	if (paged)
		return write_paged(f, o, fd, iov, count, n, offset, at);
	r = stage_put(f, stream ? o : NULL, iov, count, n, at, granted, kind);
	return r < 0 ? r : (long)n;
}

struct steal {
	struct arena *arena;
	const struct file *except;
	bool done;
	bool busy; /* another thread works on a file that may hold blocks */
};

static void visit_steal(struct file *f, void *ctx)
{
	struct steal *s = ctx;
	uint32_t tid = lock_self();

	if (s->done || f == s->except ||
	    atomic_load_explicit(&f->mode, memory_order_relaxed) != FILE_ATTACHED)
		return;
	if (!lock_try(&f->lock, tid)) {
		s->busy = true;
		return;
	}
	f->pinned = NULL;
	if (f->mode == FILE_ATTACHED && f->arena == s->arena && f->head) {
		s->busy |= atomic_load(&f->flush.busy) != 0;
		if (!atomic_load(&f->flush.busy) && !f->needs_repair && flush_possible(f)) {
			stage_seal(f);
			s->done = flush_run(f, true) == 0;
		}
	}
	lock_drop_fast(&f->lock, tid);
}

enum { OTHERS_MS = 500 };

static void wait_for_block(struct arena *a, uint32_t seen)
{
	struct timespec tick = {.tv_nsec = 2000000};

	atomic_fetch_add(&a->waiters, 1);
	if (atomic_load(&a->free_count) <= 1)
		sys_futex_wait((uint32_t *)&a->freed_events, seen, &tick);
	atomic_fetch_sub(&a->waiters, 1);
}

/*
 * No block was free.  No lock held, signals blocked.  If a background flush of this file is under way, waits
 * for it.  Otherwise flushes sealed blocks of this file, or of another one, in this thread.  Otherwise waits
 * until a block is freed.  Returns 1 if no block will be freed: the files that hold them cannot be flushed,
 * or were closed with bytes that cannot be written.
 */
static long make_room(struct file *f, struct arena *a, uint64_t since_ns)
{
	uint32_t seen = atomic_load(&a->freed_events);
	struct steal s = {.arena = a, .except = f};
	long r = 0;

	file_lock_again(f);
	if (file_flusher_died(f))
		file_repair(f);
	if (f->mode == FILE_ATTACHED && f->arena == a && f->head && !atomic_load(&f->flush.busy)) {
		if (f->head == f->current && f->blocks == 1)
			stage_seal(f);
		r = flush_run(f, false);
		lock_drop(&f->lock, LOCK_FILE);
		return r;
	}
	if (f->mode == FILE_ATTACHED && f->arena == a && atomic_load(&f->flush.busy)) {
		lock_drop(&f->lock, LOCK_FILE);
		wait_for_block(a, seen);
		return 0;
	}
	lock_drop(&f->lock, LOCK_FILE);
	file_for_each(visit_steal, &s);
	if (s.done || atomic_load(&a->free_count) > 1)
		return 0;
	/* perhaps a dead process of the family holds the blocks */
	if (family_is_shared())
		repair_sweep();
	/* files that only other processes have are not visible here */
	if (!s.busy && (!family_is_shared() || atomic_load(&a->files) == 0 ||
	                sys_now_ns() - since_ns > OTHERS_MS * 1000000ull))
		return 1;
	wait_for_block(a, seen);
	return 0;
}

/* File lock held.  No block is free for f, nor will one be soon. */
static long give_up_staging(struct file *f, bool *may_attach)
{
	long r = detach_file(f);

	if (r == 0 && f->mode == FILE_PASSIVE)
		staging_policy_later(f);
	*may_attach = false;
	return r;
}

/* The program's own call writes f. */
static bool passes(const struct file *f)
{
	return atomic_load(&f->mode) == FILE_BYPASSED && !file_is_ordered(f);
}

static long write_locked(int fd, struct ofd *o, struct file *f, const struct iovec *iov, int count, size_t n,
                         off_t offset, bool may_attach)
{
	struct file_guard g;
	uint64_t since_ns = 0, begin;
	struct arena *a;
	int again = 0;
	long r;

	/* a signal handler that interrupted us may have forked; in the child the lock is the parent's */
	if (!still_valid(fd, o, f))
		return IO_PASS;
	g = file_lock_short(f);
	for (;;) {
		if (!still_valid(fd, o, f)) {
			r = IO_PASS;
			break;
		}
		if (f->mode == FILE_PASSIVE && may_attach && !f->nested) {
			may_attach = false;
			attach_file(f, o);
			continue;
		}
		if (passes(f)) {
			r = IO_PASS;
			break;
		}
		if (f->mode != FILE_ATTACHED || !f->arena) {
			r = write_detached(f, fd, iov, count, offset);
			break;
		}
		begin = staging_policy_clock(f);
		r = write_attached(f, o, fd, iov, count, n, offset);
		staging_policy_cost(f, begin, STAGING_COST_MOST);
		if (r == WRITE_AGAIN && ++again < AGAIN_MOST)
			continue;
		if (r == WRITE_AGAIN) {
			/* other threads are always quicker */
			r = write_kernel(f, fd, iov, count, offset);
			break;
		}
		if (r != -EAGAIN) {
			if (r >= 0 && f->mode == FILE_ATTACHED && f->arena && flush_worth(f))
				workers_kick(f);
			break;
		}
		if (f->nested) {
			/* cannot wait here: drain the earlier bytes, then the kernel makes the write */
			r = write_kernel(f, fd, iov, count, offset);
			break;
		}
		a = f->arena;
		if (atomic_load(&a->lost) + 2 > a->block_count) {
			/* lost blocks never become free again */
			r = attach_bypass(f, BYPASS_NO_ARENA);
			if (r < 0)
				break;
			continue;
		}
		signals_harden();
		lock_drop(&f->lock, LOCK_FILE);
		if (!since_ns)
			since_ns = sys_now_ns();
		r = make_room(f, a, since_ns);
		file_lock_again(f);
		if (r > 0)
			r = give_up_staging(f, &may_attach);
		if (r < 0)
			break;
	}
	file_unlock(f, g);
	return r;
}

static long write_any(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, bool ours,
                      bool staged)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	bool small;
	ssize_t n;
	long r;

	if (!fork_guard_here())
		return IO_PASS;
	file_restore(f);
	if (passes(f) || !o->writable)
		return IO_PASS;
	n = vector_size(iov, count, ours);
	small = n > 0 && (size_t)n <= most_staged(f) && staged && (offset >= 0 || offset == IO_NO_OFFSET);
	if (atomic_load(&f->mode) == FILE_PASSIVE && !file_is_ordered(f)) {
		if (!small || !staging_policy_attaches(f)) {
			uint64_t begin = small ? staging_policy_clock(f) : 0;

			r = write_passive(f, fd, o, iov, count, offset);
			if (r > 0 && small)
				staging_policy_written(f, begin);
			if (r != IO_PASS)
				return r;
		}
	}
	if (!file_is_ordered(f) && visibility_passes(f)) {
		r = still_valid(fd, o, f) ? kernel_writev(fd, iov, count, offset) : IO_PASS;
		visibility_passed(f);
		return r;
	}
	if (!small || (!ours && !buffers_readable(iov, count))) {
		/* The file is attached, perhaps by another description.  Drain it; the kernel makes the
		 * write. */
		struct file_guard g = file_lock(f);

		if (!still_valid(fd, o, f) || passes(f))
			r = IO_PASS;
		else if (file_is_ordered(f) && n > 0 && (uint64_t)n > most_staged(f))
			r = write_large(f, fd, iov, count, offset);
		else if (f->mode == FILE_ATTACHED || file_is_ordered(f))
			r = write_kernel(f, fd, iov, count, offset);
		else
			r = kernel_writev(fd, iov, count, offset); /* the lock keeps it passive */
		file_unlock(f, g);
		return r;
	}
	return write_locked(fd, o, f, iov, count, (size_t)n, offset,
	                    !file_is_ordered(f) || staging_policy_attaches(f));
}

long io_sync(int fd, struct ofd *o, bool full)
{
	for (int i = 0; o && i <= ASK_TRIES; i++) {
		int r = sync_file(fd, o, full);

		if (r != SYNC_ANOTHER)
			return r;
		o = unresolved_moved(fd);
	}
	return full ? sys.fsync(fd) : sys.fdatasync(fd);
}

/* The kernel is about to make a durable write of f: of what was staged before it nothing may come back. */
static int before_durable(const struct ofd *o)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g;
	int r;

	if (atomic_load(&f->mode) != FILE_ATTACHED)
		return 0;
	g = file_lock(f);
	r = guard_synced(f);
	file_unlock(f, g);
	return r;
}

/* A write that must be durable: made by the kernel, or staged and then synced by the rule's policy. */
static long write_synced(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, bool ours)
{
	uint32_t releases = file_detaches();
	bool staged = sync_is_promise(o);
	long r = staged ? 0 : before_durable(o);

	if (r == 0)
		r = write_any(fd, o, iov, count, offset, ours, staged);
	if (r > 0 && staged) {
		/* if the sync fails the bytes stay accepted and the call fails, as in the kernel */
		long synced = sync_written(fd, o, releases);

		if (synced == SYNC_ANOTHER)
			synced = io_sync(fd, o, false);
		return synced < 0 ? synced : r;
	}
	return r;
}

/*
 * The call returned IO_PASS.  True if fd refers to another description by now: a signal handler or another
 * thread has closed or replaced fd.  The call must then be repeated for that description, which may have
 * staged bytes.
 */
static bool is_another(int fd, struct ofd **o)
{
	struct ofd *now = unresolved_moved(fd);

	if (!now || now == *o)
		return false;
	*o = now;
	return true;
}

static long write_vector(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, bool ours)
{
	long r;

	do
		r = ofd_syncs(o) ? write_synced(fd, o, iov, count, offset, ours)
		                 : write_any(fd, o, iov, count, offset, ours, true);
	while (r == IO_PASS && is_another(fd, &o));
	return r;
}

long io_writev(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset)
{
	return count < 0 ? IO_PASS : write_vector(fd, o, iov, count, offset, false);
}

long io_write_at(int fd, struct ofd *o, const void *buf, size_t n, off_t offset)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = n};

	return write_vector(fd, o, &iov, count_of(n), offset, true);
}

long io_writev_synced(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset)
{
	long r;

	if (count < 0)
		return IO_PASS;
	do {
		bool staged = sync_is_promise(o);

		r = staged ? write_synced(fd, o, iov, count, offset, false) : before_durable(o);
		if (!staged && r == 0)
			r = IO_PASS;
	} while (r == IO_PASS && is_another(fd, &o));
	return r;
}

/* True if a read without the lock could be disturbed, by a flush that clears O_DIRECT of its description. */
static bool read_is_disturbed(const struct ofd *o) { return o->flags & O_DIRECT; }

/* The kernel keeps the position of a passive file.  An attach during the call would keep the old position.
 * So such calls are counted like writes.  True: the file stays passive, and fd its descriptor, until
 * stage_pass_end. */
static bool passive_begin(struct file *f, int fd, const struct ofd *o)
{
	if (atomic_load(&f->mode) != FILE_PASSIVE)
		return false;
	stage_pass_begin(f);
	if (atomic_load(&f->mode) == FILE_PASSIVE && still_valid(fd, o, f))
		return true;
	stage_pass_end(f);
	return false;
}

/* A call that moves the position also takes the lock if the file was attached a moment ago. */
static bool is_locked_for(struct file *f, bool moves)
{
	enum file_mode mode = atomic_load(&f->mode);

	return mode == FILE_ATTACHED || (moves && mode == FILE_PASSIVE);
}

/* Reads from the overlay.  IO_PASS: the kernel has to make the read, or to refuse it. */
static long read_frames(struct file *f, const struct ofd *o, const struct iovec *iov, int count, ssize_t n,
                        off_t at)
{
	ssize_t r;

	if (f->needs_repair || !o->readable || (o->flags & O_DIRECT) || n <= 0 || n > CALL_MOST || at < 0 ||
	    at > INT64_MAX - n)
		return IO_PASS;
	for (int i = 0; i < count; i++)
		if (!user_writes(iov[i].iov_base, iov[i].iov_len))
			return IO_PASS;
	r = paged_readv(f, iov, count, (uint64_t)at);
	return r < 0 ? IO_PASS : r;
}

/* The file itself has what the program reads: the kernel reads it, and checks the program's buffers. */
static bool is_bare(struct file *f, ssize_t n, off_t at)
{
	return !f->needs_repair && n > 0 && at >= 0 && overlay_is_bare(&f->overlay, (uint64_t)at, (size_t)n);
}

/* At the position of the description. */
static long read_stream(struct file *f, struct ofd *o, int fd, const struct iovec *iov, int count, ssize_t n)
{
	off_t at = stage_position(f, o);
	long r;

	if (is_bare(f, n, at)) {
		signals_harden();
		r = kernel_readv(fd, iov, count, at, 0);
	} else {
		r = read_frames(f, o, iov, count, n, at);
	}
	if (r >= 0) {
		o->pos = at + r;
		o->pos_mode = POS_USER;
	}
	return r;
}

/* A read up to `known`, where the file has ended as far as the library knows, came to an end before that:
 * another process has cut the file.  What is staged may lie where the kernel found no file.  Reads again,
 * once: in a signal handler the interrupted block stays, and ksize too. */
static long read_cut(struct file *f, int fd, const struct ofd *o, const struct iovec *iov, int count,
                     off_t offset, int flags)
{
	struct file_guard g = file_lock(f);
	long r = 0;

	if (still_valid(fd, o, f)) {
		r = flush_drain_for_look(f);
		/* (another thread may have begun a flush with O_DIRECT) */
		if (f->flush.sets_direct)
			flush_leave_program_fd(f);
	}
	atomic_fetch_add(&f->flush.reads, 1);
	file_unlock(f, g);
	if (r >= 0)
		r = kernel_readv(fd, iov, count, offset, flags);
	atomic_fetch_sub(&f->flush.reads, 1);
	return r;
}

/* With flags (of preadv2) there is an offset. */
static long read_any(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, bool ours,
                     int flags)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g;
	bool bare = false;
	ssize_t n;
	long r = IO_PASS;

	if (!fork_guard_here())
		return IO_PASS;
	file_restore(f);
	if (offset == IO_NO_OFFSET && passive_begin(f, fd, o)) {
		r = kernel_readv(fd, iov, count, IO_NO_OFFSET, 0);
		stage_pass_end(f);
		return r;
	}
	if (!is_locked_for(f, offset == IO_NO_OFFSET))
		return IO_PASS;
	n = vector_size(iov, count, ours);
	g = file_lock_short(f);
	if (!still_valid(fd, o, f) || f->mode == FILE_BYPASSED)
		goto out;
	if (f->mode != FILE_ATTACHED || !f->arena) {
		signals_harden();
		if (offset == IO_NO_OFFSET)
			r = kernel_readv(fd, iov, count, offset, 0); /* the lock keeps it passive */
		goto out;
	}
	if (f->flush.sets_direct || (o->flags & O_DIRECT))
		flush_leave_program_fd(f);
	f->flush.was_read = true;
	if (file_is_paged(f) && !flags) {
		bare = offset != IO_NO_OFFSET && is_bare(f, n, offset);
		if (!bare)
			r = offset == IO_NO_OFFSET ? read_stream(f, o, fd, iov, count, n)
			                           : read_frames(f, o, iov, count, n, offset);
		if (r != IO_PASS)
			goto out;
	}
	if (offset == IO_NO_OFFSET) {
		off_t at = stage_position(f, o);

		/* (where an append ends is known only when it is in the kernel) */
		if (at < 0 || n < 0 || file_is_paged(f) || stage_overlaps(f, (uint64_t)at, (uint64_t)n) ||
		    ((o->flags & O_APPEND) && f->head && f->kind == STAGE_APPEND)) {
			r = flush_drain_for_look(f);
			if (r < 0)
				goto out;
		}
		/* under the lock: another thread's write on this description must see the new position */
		signals_harden();
		position_to_kernel(f, fd, o);
		r = kernel_readv(fd, iov, count, offset, 0);
	} else {
		if (!bare && (offset < 0 || n < 0 || file_is_paged(f) ||
		              stage_overlaps(f, (uint64_t)offset, (uint64_t)n)))
			r = flush_drain_for_look(f);
		if (r < 0 && r != IO_PASS)
			goto out;
		if (!read_is_disturbed(o)) {
			uint64_t end = (uint64_t)offset + (uint64_t)n;
			/* (a read that must not wait may be short at any page) */
			bool whole = f->head && !(flags & RWF_NOWAIT);
			uint64_t known = !whole ? 0 : end < f->ksize ? end : f->ksize;

			/* counted: a flush that starts now must not impose O_DIRECT's rules on this read */
			atomic_fetch_add(&f->flush.reads, 1);
			file_unlock(f, g);
			r = kernel_readv(fd, iov, count, offset, flags);
			atomic_fetch_sub(&f->flush.reads, 1);
			if (r >= 0 && (uint64_t)offset + (uint64_t)r < known)
				r = read_cut(f, fd, o, iov, count, offset, flags);
			/* (by now fd may be of another file, of which bytes are staged) */
			return still_valid(fd, o, f) ? r : IO_PASS;
		}
		signals_harden();
		r = kernel_readv(fd, iov, count, offset, flags);
	}
out:
	file_unlock(f, g);
	return r;
}

static long read_vector(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, bool ours,
                        int flags)
{
	long r;

	do
		r = read_any(fd, o, iov, count, offset, ours, flags);
	while (r == IO_PASS && is_another(fd, &o));
	return r;
}

long io_readv(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset)
{
	return count < 0 ? IO_PASS : read_vector(fd, o, iov, count, offset, false, 0);
}

long io_readv_flags(int fd, struct ofd *o, const struct iovec *iov, int count, off_t offset, int flags)
{
	return count < 0 || offset < 0 ? IO_PASS : read_vector(fd, o, iov, count, offset, false, flags);
}

long io_read_at(int fd, struct ofd *o, void *buf, size_t n, off_t offset)
{
	struct iovec iov = {.iov_base = buf, .iov_len = n};

	return read_vector(fd, o, &iov, count_of(n), offset, true, 0);
}

static long seek_any(int fd, struct ofd *o, off_t offset, int whence)
{
	struct file *f = atomic_load_explicit(&o->file, memory_order_acquire);
	struct file_guard g;
	long r = IO_PASS;

	if (!fork_guard_here())
		return IO_PASS;
	if (passive_begin(f, fd, o)) {
		r = sys.lseek(fd, offset, whence);
		stage_pass_end(f);
		return r;
	}
	if (!is_locked_for(f, true))
		return IO_PASS;
	g = file_lock(f);
	if (!still_valid(fd, o, f) || f->mode == FILE_BYPASSED)
		goto out;
	if (f->mode != FILE_ATTACHED || !f->arena) {
		r = sys.lseek(fd, offset, whence);
	} else {
		if (file_is_paged(f) && !f->needs_repair && whence == SEEK_END &&
		    offset <= INT64_MAX - (off_t)f->lsize) {
			offset += (off_t)f->lsize;
			whence = SEEK_SET;
		}
		/* the end of the file, and of an append, is known only when everything is in the kernel */
		if (whence != SEEK_SET &&
		    (whence != SEEK_CUR || ((o->flags & O_APPEND) && !file_is_paged(f)))) {
			r = flush_drain_for_look(f);
			if (r < 0)
				goto out;
		}
		position_to_kernel(f, fd, o);
		r = sys.lseek(fd, offset, whence);
		/* only here is the position known at which a write begins that is too large to be staged */
		if (r > 0 && prealloc_strands(f, (uint64_t)r)) {
			uint64_t begin = staging_policy_clock(f);

			(void)leave_end(f, (uint64_t)r); /* what cannot be drained stays staged */
			staging_policy_cost(f, begin, STAGING_COST_MOST);
		}
	}
out:
	file_unlock(f, g);
	return r;
}

long io_lseek(int fd, struct ofd *o, off_t offset, int whence)
{
	long r;

	do
		r = seek_any(fd, o, offset, whence);
	while (r == IO_PASS && is_another(fd, &o));
	return r;
}

static int truncate_staged(struct file *f, int fd, uint64_t size)
{
	bool begins = !file_is_paged(f);

	/* (while others have a strict file open, nothing is staged) */
	if (file_local(f)->draining)
		return -EINVAL;
	visibility_doubt(f);
	/* (f may have become another file since io_ftruncate asked) */
	if (begins && (!file_is_ordered(f) || !paged_suits(f) || visibility_waits(f) || !workers_arm()))
		return -EINVAL;
	if (begins && !guard_begin(f, fd))
		return -EINVAL;
	return paged_truncate(f, size);
}

long io_ftruncate(int fd, off_t size)
{
	struct ofd *o = fdtable_get(fd);
	struct file *f = o ? atomic_load_explicit(&o->file, memory_order_acquire) : NULL;
	struct file_guard g;
	long r = IO_PASS;

	if (!f || atomic_load(&f->mode) != FILE_ATTACHED || !file_is_ordered(f) || size < 0 ||
	    !fork_guard_here())
		return IO_PASS;
	g = file_lock(f);
	if (still_valid(fd, o, f) && f->mode == FILE_ATTACHED && f->arena && !f->head && !f->shared &&
	    !f->nested && o->writable && !f->wanted && !f->flush.error && !f->needs_repair && !gate_held() &&
	    !gate_stopped()) {
		r = truncate_staged(f, fd, (uint64_t)size);
		if (r < 0)
			r = IO_PASS;
	}
	file_unlock(f, g);
	return r;
}
