// SPDX-License-Identifier: Apache-2.0
/* prealloc: see flush/prealloc.h. */
#include "flush/prealloc.h"

#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/gate.h"
#include "flush/flush.h"
#include "flush/journaled.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/stage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum {
	STEP_FIRST = 1 << 20,
	FREE_SHARE = 16, /* a step takes at most 1/FREE_SHARE of the free space */
	COPYING_MIN = 16 << 20,
};

static uint64_t page_floor(uint64_t v) { return v / ARENA_PAGE * ARENA_PAGE; }
static uint64_t block_floor(const struct file *f, uint64_t v) { return v & ~(uint64_t)(f->space.block - 1); }
static uint64_t block_ceil(const struct file *f, uint64_t v)
{
	return block_floor(f, v + f->space.block - 1);
}

uint32_t prealloc_block(const struct statfs *st)
{
	uint64_t size = (uint64_t)st->f_bsize;

	/* some network file systems name the size of a transfer instead */
	return size >= 512 && size <= ARENA_PAGE && (size & (size - 1)) == 0 ? (uint32_t)size : ARENA_PAGE;
}

/* Some file systems count a reservation behind the end against RLIMIT_FSIZE, and raise SIGXFSZ. */
static uint64_t within_limit(uint64_t end)
{
	uint64_t limit = sys_file_limit();

	return end < limit ? end : limit;
}

/* sys_reserve for a file that may have staged bytes. xfs changes its ctime, so the guard is updated. */
static int reserve(struct file *f, int fd, uint64_t from, uint64_t to)
{
	int r;

	journaled_announce(f);
	if (!file_is_staged(f))
		return sys_reserve(fd, from, to);
	guard_change(f);
	r = sys_reserve(fd, from, to);
	/* a flush that is under way updates the guard when it ends */
	if (!atomic_load(&f->flush.busy))
		guard_take(f, fd);
	return r;
}

/* Bytes may fall into holes.  Reserves only the blocks that they touch, so that the file stays sparse. */
static int reserve_blocks(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t *granted)
{
	uint64_t end = within_limit(block_ceil(f, offset + need));
	int r = end < offset + need ? -EFBIG : reserve(f, fd, block_floor(f, offset), end);

	if (r == 0)
		*granted = end - offset;
	return r;
}

static void note_reserved(struct file *f, uint64_t end)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	f->space.end = end;
	atomic_store_explicit(&entry->prealloc_end, end, memory_order_relaxed);
	atomic_fetch_or_explicit(&entry->flags, ENTRY_PREALLOCATED, memory_order_release);
}

struct space {
	uint64_t bytes; /* free */
	uint64_t share; /* most for one step: a larger one would make the disk look full to other programs */
	bool copies;
};

static struct space free_space(int fd)
{
	struct statfs st;
	uint64_t bytes;

	if (sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) < 0)
		return (struct space){.bytes = 0};
	bytes = (uint64_t)st.f_bavail * (uint64_t)st.f_bsize;
	return (struct space){.bytes = bytes,
	                      .share = page_floor(bytes / FREE_SHARE),
	                      .copies = sys_copies_on_write((unsigned)st.f_type)};
}

/* True if a reservation could be given back now.  Another process that has the file open, or owns it, usually
 * keeps it.  With an internal description the kernel refuses the lease; then the earlier answer holds. */
static bool can_trim(struct file *f)
{
	int fd = flush_program_fd(f);

	if (f->rule->set.writers == WRITERS_EXCLUSIVE || f->lease.on || file_internal_fd(f) >= 0 ||
	    atomic_load(&f->flush.busy))
		return !f->space.no_trim;
	f->space.no_trim = fd < 0 || !flush_take_lease(f, fd);
	if (!f->space.no_trim)
		flush_drop_lease(f, fd);
	return !f->space.no_trim;
}

/* The next write may lie behind a gap again, or a vfork come.  Then all that is reserved must be given back
 * first, which costs more than it saves. */
static bool soon_after_gap(const struct file *f, uint64_t offset)
{
	return f->space.gap_end && offset >= f->space.gap_end && offset - f->space.gap_end < STEP_FIRST;
}

/* The file grows at its end.  Reserves ahead in doubling steps, and ever less on a disk that is nearly
 * full. */
static int reserve_ahead(struct file *f, int fd, uint64_t offset, uint64_t need)
{
	uint64_t at = block_floor(f, offset);
	uint64_t start = f->space.end > at ? f->space.end : at;
	uint64_t least = within_limit(block_ceil(f, offset + need));
	uint64_t step = f->space.step ? f->space.step : STEP_FIRST;
	uint64_t most = f->rule->set.prealloc_bytes;
	struct space space = {.share = 0};
	uint64_t end;
	int r;

	if (!soon_after_gap(f, offset))
		space = free_space(fd);
	/* this reservation may have to stay for good */
	if (step > f->arena->block_bytes && !can_trim(f))
		step = f->arena->block_bytes;
	if (step > most)
		step = most;
	if (step > space.share)
		step = space.share;
	if (least < offset + need)
		return -EFBIG;
	/* On a file system that copies on write, an overwritten page needs new space, which no reservation
	 * promises.  If such a disk is nearly full, the kernel must answer each write. */
	if (space.copies && space.bytes < COPYING_MIN)
		return -ENOSPC;
	end = within_limit(block_ceil(f, start + step));
	if (end < least)
		end = least;
	if (f->space.end == 0)
		f->space.start = start;
	/* recorded first: recovery may trim too much space, never too little */
	note_reserved(f, end);
	kill_step();
	for (;;) {
		r = reserve(f, fd, start, end);
		if (r != -ENOSPC && r != -EDQUOT && r != -EFBIG)
			break;
		if (end <= least)
			break;
		end = block_floor(f, start + (end - start) / 2);
		if (end < least)
			end = least;
	}
	if (r < 0) {
		note_reserved(f, start == f->space.start ? 0 : start);
		return r;
	}
	note_reserved(f, end);
	if (!f->space.no_trim)
		f->space.step = step * 2 > most ? most : step * 2;
	return 0;
}

static void forget(struct file *f)
{
	f->space.end = 0;
	f->space.step = 0;
	if (f->entry >= 0)
		atomic_store_explicit(&arena_entry_at(f->arena, (uint32_t)f->entry)->prealloc_end, 0,
		                      memory_order_relaxed);
}

/* True if a write at `offset` leaves blocks between it and the end of the file. */
static bool leaves_gap(struct file *f, uint64_t offset)
{
	return block_floor(f, offset) > block_ceil(f, stage_logical_size(f));
}

int prealloc_reserve(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t want, uint64_t *granted)
{
	uint64_t size = f->ksize;
	uint64_t logical = stage_logical_size(f);
	int r;

	if (f->rule->set.prealloc_mode == PREALLOC_OFF) {
		*granted = want;
		return 0;
	}
	if (!f->sparse && offset + need <= size) {
		*granted = offset + want <= size ? want : size - offset;
		return 0;
	}
	if (leaves_gap(f, offset)) {
		f->sparse = true;
		f->space.gap_end = offset;
		if (f->space.end <= block_ceil(f, logical))
			forget(f); /* it is used up: a new one begins here */
	}
	if (offset >= f->space.start && offset + need <= f->space.end) {
		*granted = f->space.end - offset;
		return 0;
	}
	signals_harden();
	/* The write goes into a hole.  Or the reservation lies elsewhere, and cannot be extended to this
	 * offset. */
	if (offset + need <= logical || (f->space.end && (offset < f->space.start || offset > f->space.end)))
		return reserve_blocks(f, fd, offset, need, granted);
	r = reserve_ahead(f, fd, offset, need);
	if (r == 0)
		*granted = f->space.end - offset;
	return r;
}

/* (A capability is looked for on programs only: it is of no use to others, and costs a system call.) */
static bool takes_rights(int fd, const struct statx *st)
{
	return (st->stx_mode & (S_ISUID | S_ISGID | S_IXUSR | S_IXGRP | S_IXOTH)) && sys_has_rights(fd, st);
}

/* The program did not ask for this change: restores the mtime if possible.  -EPERM: the file would lose
 * rights that somebody has given it. */
static int truncate_unseen(int fd, uint64_t size, bool exclusive)
{
	struct statx before, after;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_MTIME | STATX_MODE, &before);

	if (r < 0)
		return r;
	if (takes_rights(fd, &before))
		return -EPERM;
	kill_step();
	/* checked as late as possible: another process may have appended since the caller read the size */
	if (!exclusive && !lease_holds(fd))
		return -EAGAIN;
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	if (r == 0 && sys.statx(fd, "", AT_EMPTY_PATH, STATX_MTIME, &after) == 0 &&
	    (before.stx_mtime.tv_sec != after.stx_mtime.tv_sec ||
	     before.stx_mtime.tv_nsec != after.stx_mtime.tv_nsec)) {
		struct timespec times[2] = {
			{.tv_nsec = UTIME_OMIT},
			{.tv_sec = before.stx_mtime.tv_sec, .tv_nsec = before.stx_mtime.tv_nsec},
		};

		sys_raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0);
	}
	return r;
}

/* `children` of vfork are about to be made, and do not run yet. */
static void cut(struct file *f, int fd, uint32_t children)
{
	bool exclusive = f->rule->set.writers == WRITERS_EXCLUSIVE;
	struct statx st;

	if (gate_children() > children)
		return; /* what a child appends between statx and ftruncate would be cut off */
	journaled_announce(f);
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) == 0 && st.stx_size < f->space.end &&
	    truncate_unseen(fd, st.stx_size, exclusive) == 0)
		f->space.kept_end = 0;
}

/* Waits until no write without the lock is under way.  Not forever: a killed process may be counted in
 * f->inflight. */
static bool none_passes(struct file *f)
{
	enum { NAPS_MAX = 50 };

	for (int naps = 0; !visibility_stop_passing(f); naps++) {
		if (naps == NAPS_MAX)
			return false;
		sys_nap(1000000);
	}
	return true;
}

/* `exclusive` says that no other process writes.  But one of our threads may be opening the file with
 * O_TRUNC, and then the kernel refuses the lease for a moment.  So tries a few times. */
static bool lease_soon(const struct file *f, int fd)
{
	enum { TRIES = 3 };

	for (int i = 0; i < TRIES; i++) {
		if (flush_take_lease(f, fd))
			return true;
		sys_nap(50000);
	}
	return false;
}

/* True if nothing is reserved behind the end any more. */
static bool give_back(struct file *f, int fd, uint32_t children)
{
	bool exclusive = f->rule->set.writers == WRITERS_EXCLUSIVE;

	f->space.kept_end = f->space.end;
	/* An append between statx and ftruncate would be cut off.  So no write may pass without the lock, and
	 * no other process may have the file open. */
	if (none_passes(f)) {
		bool leased = exclusive ? lease_soon(f, fd) : flush_take_lease(f, fd);

		if (leased || exclusive)
			cut(f, fd, children);
		if (leased)
			flush_drop_lease(f, fd);
	}
	return f->space.kept_end == 0;
}

void prealloc_trim(struct file *f, int fd)
{
	if (f->space.end == 0)
		return;
	give_back(f, fd, 0);
	forget(f);
}

void prealloc_before_vfork(struct file *f)
{
	int fd = flush_program_fd(f);

	if (fd < 0 || f->lease.on)
		return;
	/* the next vfork may come soon: until the file has grown much, reserve no more than is needed */
	f->space.gap_end = f->ksize;
	if (f->space.end <= block_ceil(f, f->ksize))
		return;
	flush_close_internal(f); /* as in prealloc_leave */
	if (give_back(f, fd, 1))
		forget(f);
}

bool prealloc_strands(struct file *f, uint64_t offset)
{
	return f->space.end > block_ceil(f, stage_logical_size(f)) && !f->space.no_trim &&
	       leaves_gap(f, offset);
}

void prealloc_leave(struct file *f)
{
	int fd = flush_program_fd(f);

	if (f->space.end == 0)
		return;
	flush_close_internal(f); /* the kernel would refuse the lease; the next write opens it again */
	if (fd >= 0 && give_back(f, fd, 0))
		forget(f);
	else
		f->space.no_trim = true;
}

int prealloc_rests(struct file *f)
{
	return f->space.end <= f->ksize || f->shared || visibility_is(f) ? -1 : flush_program_fd(f);
}

void prealloc_rest(struct file *f)
{
	int fd = prealloc_rests(f);

	if (fd < 0 || !flush_take_lease(f, fd))
		return;
	cut(f, fd, 0);
	flush_drop_lease(f, fd);
	forget(f);
}

void prealloc_again(struct file *f, int fd)
{
	if (f->space.end <= f->ksize)
		return;
	if (f->ksize >= f->space.start && within_limit(f->space.end) == f->space.end &&
	    sys_reserve(fd, block_floor(f, f->ksize), f->space.end) == 0)
		return;
	/* start anew at the new end of the file */
	cut(f, fd, 0);
	forget(f);
}
