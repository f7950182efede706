// SPDX-License-Identifier: Apache-2.0
/* paged: see staging/paged.h. */
#include "staging/paged.h"

#include "base/probe.h"
#include "base/sys.h"
#include "files/workers.h"
#include "staging/order.h"
#include "staging/tail.h"
#include "staging/takeover.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>

/* overlay_source */
static int read_file(void *ctx, void *to, size_t n, uint64_t offset)
{
	const struct file *f = ctx;
	int fd = file_readable_fd(f);
	struct statx st;
	int r;

	if (fd < 0)
		return tail_read(f, to, n, offset);
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	/* (the program may have closed the descriptor unseen) */
	if (r == 0 && (st.stx_ino != f->ino || sys_dev_of(&st) != f->dev))
		r = -EBADF;
	while (r == 0 && n > 0) {
		ssize_t got = sys.pread(fd, to, n, (off_t)offset);

		if (got == -EINTR)
			continue;
		if (got < 0)
			return (int)got;
		if (got == 0) {
			memset(to, 0, n);
			return 0;
		}
		to = (uint8_t *)to + got;
		n -= (size_t)got;
		offset += (uint64_t)got;
	}
	return r;
}

bool paged_fits(const struct file *f, const struct arena *a, uint64_t size)
{
	return a->pages.frame_count != 0 && !f->head && (file_readable_fd(f) >= 0 || tail_reaches(f, size));
}

bool paged_suits(const struct file *f) { return file_is_paged(f) || paged_fits(f, f->arena, f->ksize); }

static struct timespec coarse_now(void)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return now;
}

static int begin(struct file *f, const struct timespec *now)
{
	int r = overlay_attach(&f->overlay, &f->arena->pages, (uint32_t)f->entry, f->ksize, now, read_file,
	                       f);

	if (r < 0)
		f->overlay.pages = NULL;
	f->time_shown = false;
	f->order.epoch = 0;
	return r;
}

/* The overlay has taken its first change. */
static void begun(struct file *f)
{
	f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	tail_forget(f);
}

int paged_put(struct file *f, struct ofd *stream, const struct iovec *iov, int count, size_t n,
              uint64_t offset)
{
	struct timespec now = coarse_now();
	bool begins = !file_is_paged(f);
	/* the timer of this process must watch the file */
	bool watch = begins || !takeover_keeps(f);
	int r = begins ? begin(f, &now) : 0;

	if (r < 0)
		return r;
	takeover_keep(f);
	f->moving_from = offset;
	f->moving_bytes = n;
	f->moving_since = pages_file(f->overlay.pages, f->overlay.file)->published;
	atomic_signal_fence(memory_order_seq_cst);
	f->moving = stream;
	r = order_change(f);
	if (r == 0)
		r = overlay_write(&f->overlay, iov, count, n, offset, &now, false);
	if (r == 0 && stream) {
		stream->pos = (off_t)(offset + n);
		stream->pos_mode = POS_USER;
	}
	atomic_signal_fence(memory_order_seq_cst);
	f->moving = NULL;
	if (r < 0) {
		if (begins)
			overlay_detach(&f->overlay);
		return r;
	}
	f->kind = STAGE_POSITIONAL;
	f->writes++;
	f->bytes += n;
	if (offset + n > f->lsize)
		f->lsize = offset + n;
	PROBE(stage, PROBE_FILE(f), n);
	if (begins)
		begun(f);
	if (watch)
		workers_arm();
	return 0;
}

/* Would the kernel cut the file? */
static bool may_be_cut(const struct file *f)
{
	enum { FIXED = STATX_ATTR_APPEND | STATX_ATTR_IMMUTABLE };
	int fd = file_readable_fd(f);
	struct statx st;

	return sys.statx(fd >= 0 ? fd : file_fd(f), "", AT_EMPTY_PATH, STATX_INO, &st) == 0 &&
	       !(st.stx_attributes & FIXED);
}

int paged_truncate(struct file *f, uint64_t size)
{
	struct timespec now = coarse_now();
	bool begins = !file_is_paged(f);
	int r;

	if (size > f->lsize || (size < f->ksize && !may_be_cut(f)))
		return -EINVAL;
	r = begins ? begin(f, &now) : 0;
	if (r == 0)
		r = order_change(f);
	if (r == 0)
		r = overlay_truncate(&f->overlay, size, &now, false);
	if (r < 0 && begins && file_is_paged(f))
		overlay_detach(&f->overlay);
	if (r < 0)
		return r;
	f->kind = STAGE_POSITIONAL;
	f->lsize = size;
	takeover_keep(f);
	if (begins)
		begun(f);
	workers_arm();
	return 0;
}

ssize_t paged_readv(struct file *f, const struct iovec *iov, int count, uint64_t offset)
{
	ssize_t sum = 0;

	for (int i = 0; i < count; i++) {
		ssize_t n =
			overlay_read(&f->overlay, iov[i].iov_base, iov[i].iov_len, offset + (uint64_t)sum);

		if (n < 0)
			return sum > 0 ? sum : n;
		sum += n;
		if ((size_t)n < iov[i].iov_len)
			break;
	}
	return sum;
}
