// SPDX-License-Identifier: Apache-2.0
/* prealloc: see prealloc.h. */
#include "prealloc.h"

#include "kill.h"
#include "lease.h"
#include "stage.h"
#include "sys.h"

#include <fcntl.h>
#include <sys/vfs.h>

enum {
	STEP_FIRST = 1 << 20,
	FREE_SHARE = 16, /* a step takes at most 1/16 of the free space */
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

/* Bytes may fall into holes: reserve the pages that they touch and no more, so that the file stays sparse. */
static int reserve_pages(int fd, uint64_t offset, uint64_t need, uint64_t *granted)
{
	uint64_t end = within_limit(page_ceil(offset + need));
	int r = end < offset + need ? -EFBIG : keep_size(fd, page_floor(offset), end);

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

/* On a disk that fills up, reserving ahead would make others see it full before it is. */
static uint64_t free_share(int fd)
{
	struct statfs st;

	if (sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) < 0)
		return 0;
	return page_floor((uint64_t)st.f_bavail * (uint64_t)st.f_bsize / FREE_SHARE);
}

/* The file grows at its end: reserve ahead, in doubling steps; when the disk is nearly full, ever less. */
static int reserve_ahead(struct file *f, int fd, uint64_t offset, uint64_t need)
{
	uint64_t start = f->prealloc_end > page_floor(offset) ? f->prealloc_end : page_floor(offset);
	uint64_t least = within_limit(page_ceil(offset + need));
	uint64_t step = f->prealloc_step ? f->prealloc_step : STEP_FIRST;
	uint64_t most = f->rule->set.prealloc_bytes;
	uint64_t share = free_share(fd);
	uint64_t end;
	int r;

	if (step > most)
		step = most;
	if (step > share)
		step = share;
	if (least < offset + need)
		return -EFBIG;
	end = within_limit(page_ceil(start + step));
	if (end < least)
		end = least;
	if (f->prealloc_end == 0)
		f->prealloc_start = start;
	/* noted before it is done: recovery may trim too much room, never too little */
	note_reserved(f, end);
	kill_step();
	for (;;) {
		r = keep_size(fd, start, end);
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
		*granted = f->prealloc_end - offset;
		return 0;
	}
	/* into a hole, of the file or behind its end */
	if (offset < size || offset > logical) {
		if (offset > logical)
			f->sparse = true;
		return reserve_pages(fd, offset, need, granted);
	}
	/* what was reserved lies elsewhere, behind a hole: nothing to build on */
	if (f->prealloc_end && (offset < f->prealloc_start || offset > f->prealloc_end))
		return reserve_pages(fd, offset, need, granted);
	r = reserve_ahead(f, fd, offset, need);
	if (r == 0)
		*granted = f->prealloc_end - offset;
	return r;
}

static void cut(struct file *f, int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) == 0 && st.stx_size < f->prealloc_end) {
		kill_step();
		sys.ftruncate(fd, (off_t)st.stx_size);
		kill_step();
	}
}

static void forget(struct file *f)
{
	f->prealloc_end = 0;
	f->prealloc_step = 0;
	if (f->slot >= 0)
		atomic_store_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->prealloc_end, 0,
		                      memory_order_relaxed);
}

void prealloc_trim(struct file *f, int fd)
{
	bool exclusive = f->rule->set.writers == WRITERS_EXCLUSIVE;

	if (f->prealloc_end == 0)
		return;
	/* somebody else's append between statx and ftruncate would be cut off: only while nobody else has it */
	if (exclusive || lease_take(fd) == 0) {
		cut(f, fd);
		if (!exclusive)
			lease_drop(fd);
	}
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
