// SPDX-License-Identifier: Apache-2.0
/* pages_flush: see flush/pages_flush.h. */
#include "flush/pages_flush.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/journaled.h"
#include "flush/ordered.h"
#include "flush/route.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/stage.h"

#include <fcntl.h>
#include <sys/stat.h>

/* The next pieces of the cut that are contiguous in the file.  How many; 0: there is none left. */
static int next_pieces(const struct overlay *o, uint32_t *cursor, struct iovec *iov, uint64_t *offset,
                       uint64_t *bytes)
{
	struct overlay_piece piece;
	uint32_t at = *cursor;
	int count = 0;

	*bytes = 0;
	while (count < FLUSH_IOV_MAX && overlay_cut_piece(o, &at, &piece)) {
		if (count > 0 && piece.offset != *offset + *bytes)
			break;
		if (count == 0)
			*offset = piece.offset;
		iov[count++] =
			(struct iovec){.iov_base = (void *)(uintptr_t)piece.data, .iov_len = piece.bytes};
		*bytes += piece.bytes;
		*cursor = at;
	}
	return count;
}

static int resize(struct file *f, int fd, uint64_t size)
{
	int r;

	kill_step();
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	if (r == 0)
		f->ksize = size;
	return r;
}

/* The cut into the file. */
static int write_cut(struct file *f, struct route *rt, uint64_t *written)
{
	struct overlay *o = &f->overlay;
	BUFFER(struct iovec, iov);
	uint64_t offset, bytes;
	uint32_t cursor = 0;
	int r = 0, count;

	/* (only an ordered file is made shorter than it was) */
	if (o->cut.lowest < f->ksize) {
		r = resize(f, rt->target.fd, o->cut.lowest);
		/* what was reserved is gone */
		f->space.end = 0;
		f->space.kept_end = 0;
	}
	while (r == 0 && (count = next_pieces(o, &cursor, iov, &offset, &bytes)) > 0) {
		uint64_t done = 0;

		r = direct_io_write(&rt->target, iov, count, offset, &done);
		*written += done;
		if (offset + done > f->ksize)
			f->ksize = offset + done;
	}
	return r == 0 && f->ksize < o->cut.size ? resize(f, rt->target.fd, o->cut.size) : r;
}

int pages_flush_cut(struct file *f)
{
	uint64_t written = 0;
	struct route rt;
	int r = route_find(f, &rt, 0, 0);

	if (r < 0)
		return r;
	guard_change(f);
	rt.target.guard = &arena_entry_at(f->arena, (uint32_t)f->entry)->guard;
	r = write_cut(f, &rt, &written);
	route_leave(f, &rt);
	f->flush.program_fd = f->flush.sets_direct = false;
	guard_take(f, rt.target.fd);
	route_count(f, &rt, written);
	return r == 0 ? overlay_done(&f->overlay, false) : r;
}

/* The file gets the time that the program was shown.  Nothing is staged: no guard has to know.  (A user who
 * does not own the file may not.) */
static void keep_time(const struct file *f)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, f->overlay.cut.mtime};
	int fd = flush_writable_fd(f);

	if (fd >= 0)
		sys_raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0);
}

void pages_flush_end(struct file *f)
{
	overlay_detach(&f->overlay);
	if (f->time_shown)
		keep_time(f);
	f->due[DUE_FLUSH] = 0;
	/* (a lease says that bytes are staged) */
	if (!journal_file_holds(f))
		visibility_drop(f);
}

int pages_flush(struct file *f)
{
	int r;

	/* the bytes of a killed process of the family could not be recovered yet */
	if (f->needs_repair)
		return f->flush.error ? f->flush.error : -EIO;
	if (file_is_ordered(f))
		return ordered_drain(f);
	stage_count(f, f->bytes);
	f->bytes = 0;
	/* -EBUSY: an earlier cut that could not be written comes first */
	while ((r = overlay_cut(&f->overlay, false)) > 0 || r == -EBUSY) {
		r = pages_flush_cut(f);
		if (r < 0)
			break;
	}
	if (r < 0) {
		if (f->flush.error == 0)
			log_warn("flush failed: error %d; the bytes stay staged", -r);
		f->flush.error = r;
		return r;
	}
	f->flush.error = 0;
	pages_flush_end(f);
	return 0;
}
