// SPDX-License-Identifier: Apache-2.0
/* prealloc: see flush/prealloc.h. */
#include "flush/prealloc.h"

#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/sys.h"
#include "files/gate.h"
#include "flush/flush.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"

#include <fcntl.h>
#include <sys/vfs.h>

enum {
	STEP_FIRST = 1 << 20,
	FREE_SHARE = 16, /* a step takes at most 1/16 of the free space */
	COPYING_MIN = 16 << 20,
};

static uint64_t page_floor(uint64_t v) { return v / ARENA_PAGE * ARENA_PAGE; }
static uint64_t page_ceil(uint64_t v) { return page_floor(v + ARENA_PAGE - 1); }

static int keep_size(int fd, uint64_t from, uint64_t to)
{
	int r;

	do
		r = sys.fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
	while (r == -EINTR);
	return r;
}

/* Some file systems count what is reserved behind the end against RLIMIT_FSIZE, and send its signal. */
static uint64_t within_limit(uint64_t end)
{
	uint64_t limit = sys_file_limit();

	return end < limit ? end : limit;
}

/* The same for a file that has bytes staged: xfs gives it a new time of change. */
static int reserve(struct file *f, int fd, uint64_t from, uint64_t to)
{
	int r;

	if (!f->head)
		return keep_size(fd, from, to);
	guard_change(f);
	r = keep_size(fd, from, to);
	/* (whoever is just writing takes it when that is done) */
	if (!atomic_load(&f->busy))
		guard_take(f, fd);
	return r;
}

/* Bytes may fall into holes: reserve the pages that they touch and no more, so that the file stays sparse. */
static int reserve_pages(struct file *f, int fd, uint64_t offset, uint64_t need, uint64_t *granted)
{
	uint64_t end = within_limit(page_ceil(offset + need));
	int r = end < offset + need ? -EFBIG : reserve(f, fd, page_floor(offset), end);

	if (r == 0)
		*granted = end - offset;
	return r;
}

static void note_reserved(struct file *f, uint64_t end)
{
	struct arena_slot *slot = arena_slot_at(f->arena, (uint32_t)f->slot);

	f->prealloc_end = end;
	atomic_store_explicit(&slot->prealloc_end, end, memory_order_relaxed);
	atomic_fetch_or_explicit(&slot->flags, SLOT_PREALLOCATED, memory_order_release);
}

struct space {
	uint64_t bytes; /* free */
	uint64_t share; /* of these, for one step: more would make others see a disk full before it is */
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

/* Could what is reserved be given back now?  Somebody else's open file, or his ownership of it, lasts in most cases.
 * (A description of our own refuses the lease, too, but then the question was asked before.) */
static bool can_trim(struct file *f)
{
	int fd = flush_program_fd(f);

	if (f->rule->set.writers == WRITERS_EXCLUSIVE || f->leased || file_own_fd(f) >= 0 ||
	    atomic_load(&f->busy))
		return !f->no_trim;
	f->no_trim = fd < 0 || !flush_take_lease(f, fd);
	if (!f->no_trim)
		flush_give_lease(f, fd);
	return !f->no_trim;
}

/* The file grows at its end: reserve ahead, in doubling steps; when the disk is nearly full, ever less. */
static int reserve_ahead(struct file *f, int fd, uint64_t offset, uint64_t need)
{
	uint64_t start = f->prealloc_end > page_floor(offset) ? f->prealloc_end : page_floor(offset);
	uint64_t least = within_limit(page_ceil(offset + need));
	uint64_t step = f->prealloc_step ? f->prealloc_step : STEP_FIRST;
	uint64_t most = f->rule->set.prealloc_bytes;
	struct space space = free_space(fd);
	uint64_t end;
	int r;

	/* what may have to stay */
	if (step > f->arena->block_bytes && !can_trim(f))
		step = f->arena->block_bytes;
	if (step > most)
		step = most;
	if (step > space.share)
		step = space.share;
	if (least < offset + need)
		return -EFBIG;
	/* a page that is written again needs a new place there, which no reservation promises: on such a disk that is all
	 * but full the kernel itself answers each write */
	if (space.copies && space.bytes < COPYING_MIN)
		return -ENOSPC;
	end = within_limit(page_ceil(start + step));
	if (end < least)
		end = least;
	if (f->prealloc_end == 0)
		f->prealloc_start = start;
	/* noted before it is done: recovery may trim too much room, never too little */
	note_reserved(f, end);
	kill_step();
	for (;;) {
		r = reserve(f, fd, start, end);
		if (r != -ENOSPC && r != -EDQUOT && r != -EFBIG)
			break;
		if (end <= least)
			break;
		end = start + page_floor((end - start) / 2);
		if (end < least)
			end = least;
	}
	if (r < 0) {
		note_reserved(f, start == f->prealloc_start ? 0 : start);
		return r;
	}
	note_reserved(f, end);
	if (!f->no_trim)
		f->prealloc_step = step * 2 > most ? most : step * 2;
	return 0;
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
	if (offset >= f->prealloc_start && offset + need <= f->prealloc_end) {
		staging_policy_no_hole(f);
		*granted = f->prealloc_end - offset;
		return 0;
	}
	/* into a hole, of the file or behind its end; or what was reserved lies elsewhere, behind a hole: nothing to build
	 * on */
	if (offset < size || offset > logical ||
	    (f->prealloc_end && (offset < f->prealloc_start || offset > f->prealloc_end))) {
		if (offset > logical)
			f->sparse = true;
		staging_policy_hole(f, offset);
		return reserve_pages(f, fd, offset, need, granted);
	}
	staging_policy_no_hole(f);
	r = reserve_ahead(f, fd, offset, need);
	if (r == 0)
		*granted = f->prealloc_end - offset;
	return r;
}

/* Not the program's doing: its file keeps the time of its last write, if we may set one. */
static int truncate_unseen(int fd, uint64_t size, bool exclusive)
{
	struct statx before, after;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_MTIME, &before);

	if (r < 0)
		return r;
	kill_step();
	/* as late as can be: others may have appended since the size was asked for */
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

static void cut(struct file *f, int fd)
{
	bool exclusive = f->rule->set.writers == WRITERS_EXCLUSIVE;
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) == 0 && st.stx_size < f->prealloc_end &&
	    truncate_unseen(fd, st.stx_size, exclusive) == 0)
		f->kept_end = 0;
}

static void forget(struct file *f)
{
	f->prealloc_end = 0;
	f->prealloc_step = 0;
	if (f->slot >= 0)
		atomic_store_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->prealloc_end, 0,
		                      memory_order_relaxed);
}

/* Writes that need no lock have come to their end.  Not for ever: a killed member of the family may have been at one. */
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

/* `exclusive` says that others do not write, but one of our threads may be about to open the file with O_TRUNC: that
 * takes a moment, unlike those who only look. */
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

void prealloc_trim(struct file *f, int fd)
{
	bool exclusive = f->rule->set.writers == WRITERS_EXCLUSIVE;

	if (f->prealloc_end == 0)
		return;
	f->kept_end = f->prealloc_end;
	/* an append between statx and ftruncate would be cut off: of our own threads that write without the lock, and of
	 * others, so only while nobody else has it */
	if (none_passes(f)) {
		bool leased = exclusive ? lease_soon(f, fd) : flush_take_lease(f, fd);

		if (leased || exclusive)
			cut(f, fd);
		if (leased)
			flush_give_lease(f, fd);
	}
	forget(f);
}

void prealloc_rest(struct file *f)
{
	int fd = flush_program_fd(f);

	if (f->prealloc_end <= f->ksize || f->zero_end || fd < 0 || f->shared || visibility_is(f))
		return;
	flush_close_own(f); /* it would refuse the lease; a write opens it again */
	if (!flush_take_lease(f, fd))
		return;
	cut(f, fd);
	flush_give_lease(f, fd);
	forget(f);
}

void prealloc_again(struct file *f, int fd)
{
	if (f->prealloc_end <= f->ksize)
		return;
	if (f->ksize >= f->prealloc_start && within_limit(f->prealloc_end) == f->prealloc_end &&
	    keep_size(fd, page_floor(f->ksize), f->prealloc_end) == 0)
		return;
	/* begin anew at the new end */
	cut(f, fd);
	forget(f);
}

/* ---- zeros ahead ---- */

enum {
	ZERO_STRETCH = 1 << 20, /* what a sync of the program may have to wait for */
	ZERO_WASTED_MAX = 4,
#ifndef FALLOC_FL_WRITE_ZEROES
	FALLOC_FL_WRITE_ZEROES = 0x80,
#endif
};

/* As far ahead as the zeros are to stand. */
static uint64_t zeros_ahead(const struct file *f)
{
	uint64_t step = f->prealloc_step ? f->prealloc_step : STEP_FIRST;
	uint64_t most = f->rule->set.prealloc_bytes;

	return step < most ? step : most;
}

bool prealloc_zeros_wanted(struct file *f)
{
	const struct settings *set;
	uint64_t end;

	/* (who holds, or stops, is about to show the files to somebody; what is not attached may have been closed) */
	if (f->mode != FILE_ENGAGED || !f->arena || f->release_wanted || f->error || gate_held() ||
	    gate_changing() || gate_stopped())
		return false;
	set = &f->rule->set;
	/* (with a journal a sync does not touch the file) */
	if (set->prealloc_mode != PREALLOC_ZERO || set->sync == SYNC_JOURNAL || f->zero_never ||
	    set->writers != WRITERS_EXCLUSIVE || f->shared || f->sparse || f->no_own_fd ||
	    file_own_fd(f) < 0 || (file_local(f)->own_flags & O_APPEND) ||
	    f->zero_wasted >= ZERO_WASTED_MAX || visibility_is(f))
		return false;
	/* only what is at the end of the file is of use */
	end = stage_logical_size(f);
	return f->zero_end < end + zeros_ahead(f) / 2;
}

bool prealloc_zeros_next(struct file *f, uint64_t *from, uint64_t *to)
{
	struct arena_slot *slot;
	uint64_t end;

	if (!prealloc_zeros_wanted(f))
		return false;
	slot = arena_slot_at(f->arena, (uint32_t)f->slot);
	end = stage_logical_size(f);
	*from = f->zero_end > end ? f->zero_end : page_ceil(end);
	*to = within_limit(page_floor(*from + ZERO_STRETCH)) / ARENA_PAGE * ARENA_PAGE;
	/* noted before it is done, as the zeros are: recovery looks for them there, and for nothing else */
	atomic_fetch_or_explicit(&slot->flags, SLOT_PREALLOCATED, memory_order_release);
	if (*to <= *from || *to - *from > free_space(file_own_fd(f)).share ||
	    reserve(f, file_own_fd(f), *from, *to) < 0) {
		f->zero_never = true; /* a full disk: no more luxury */
		return false;
	}
	if (f->zero_end == 0)
		atomic_store_explicit(&slot->size, f->ksize, memory_order_relaxed);
	atomic_store_explicit(&slot->padded_end, *to, memory_order_relaxed);
	atomic_fetch_or_explicit(&slot->flags, SLOT_PADDED, memory_order_release);
	f->zero_end = *to;
	kill_step();
	return true;
}

int prealloc_zeros_write(int fd, uint64_t from, uint64_t to)
{
	static const uint8_t zeros[64 << 10];
	static _Atomic bool refused;
	int r = -EOPNOTSUPP;

	if (!atomic_load(&refused)) {
		r = sys.fallocate(fd, FALLOC_FL_WRITE_ZEROES, (off_t)from, (off_t)(to - from));
		if (r == -EOPNOTSUPP || r == -EINVAL || r == -ENOSYS)
			atomic_store(&refused, true);
	}
	for (uint64_t at = from; r < 0 && at < to;) {
		struct iovec iov = {.iov_base = (void *)(uintptr_t)zeros,
		                    .iov_len = to - at < sizeof zeros ? to - at : sizeof zeros};
		ssize_t n = sys.pwritev(fd, &iov, 1, (off_t)at);

		if (n == -EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		kill_step();
		at += (uint64_t)n;
		if (at == to)
			r = 0;
	}
	return sys.fdatasync(fd);
}

void prealloc_zeros_done(struct file *f, uint64_t from, uint64_t to)
{
	f->zero_synced = true;
	if (f->prealloc_end == 0)
		f->prealloc_start = from;
	if (f->prealloc_end == 0 || (f->prealloc_end >= from && f->prealloc_end < to))
		note_reserved(f, to);
}

void prealloc_zeros_used(struct file *f)
{
	if (f->zero_end == 0)
		return;
	f->zero_wasted = 0;
	f->prealloc_step = zeros_ahead(f) * 2;
}

void prealloc_zeros_cut(struct file *f)
{
	struct arena_slot *slot = arena_slot_at(f->arena, (uint32_t)f->slot);
	int fd = file_own_fd(f) >= 0 ? file_own_fd(f) : flush_program_fd(f);
	int r = -EBADF;

	if (f->ksize >= f->zero_end) {
		r = 0; /* used up */
	} else if (fd >= 0) {
		f->zero_wasted++;
		r = truncate_unseen(fd, f->ksize, true);
		/* what was synced has that size on the device, too */
		if (r == 0 && f->zero_synced)
			r = sys.fdatasync(fd);
		/* what was reserved behind them has gone with them */
		forget(f);
	}
	if (r < 0)
		log_warn("%s stays padded with zeros: error %d", slot->path, -r);
	f->zero_end = 0;
	f->zero_synced = false;
	atomic_fetch_and_explicit(&slot->flags, ~(uint32_t)SLOT_PADDED, memory_order_release);
}
