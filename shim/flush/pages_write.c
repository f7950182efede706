// SPDX-License-Identifier: Apache-2.0
/* pages_write: see flush/pages_write.h. */
#include "flush/pages_write.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/probe.h"
#include "base/sys.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/journaled.h"
#include "flush/order_log.h"
#include "flush/visibility.h"
#include "staging/guard.h"
#include "staging/tail.h"

#include <fcntl.h>
#include <sys/stat.h>

/* The next pieces of the cut that are contiguous in the file.  How many; 0: there is none left. */
static int next_pieces(const struct overlay *o, uint64_t from, uint32_t *cursor, struct iovec *iov,
                       uint64_t *offset, uint64_t *bytes)
{
	struct overlay_piece piece;
	uint32_t at = *cursor;
	int count = 0;

	*bytes = 0;
	while (count < FLUSH_IOV_MAX && overlay_cut_piece(o, &at, &piece)) {
		if (piece.offset < from)
			continue;
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

static int resize(const struct file *f, struct pages_write *w, uint64_t size)
{
	struct wal *log = order_log_of(f->arena)->wal;
	int64_t since_ns = sys_wall_ns();
	int r = wal_late(log, since_ns);

	if (r < 0)
		return r;
	kill_step();
	guard_stamp(w->route.target.guard);
	r = sys.ftruncate(w->route.target.fd, (off_t)size);
	kill_step();
	if (r < 0)
		return r;
	w->end = size;
	return wal_late(log, since_ns);
}

int pages_write_begin(struct file *f, struct pages_write *w)
{
	int r = route_find(f, &w->route, 0, 0);

	if (r < 0)
		return r;
	PROBE(flush_begin, PROBE_FILE(f));
	guard_change(f);
	w->route.target.guard = &arena_entry_at(f->arena, (uint32_t)f->entry)->guard;
	w->bytes = w->from = w->until_ns = 0;
	w->end = f->ksize;
	w->r = 0;
	if (f->overlay.cut.lowest < f->ksize) {
		w->r = resize(f, w, f->overlay.cut.lowest);
		/* what was reserved is gone */
		f->space.end = 0;
		f->space.kept_end = 0;
		f->ksize = w->end;
	}
	if (w->end < w->route.target.direct_end)
		w->route.target.direct_end = w->end;
	/* the program reads through it beside the pieces */
	w->route.target.direct_ok &= !w->route.borrowed || !w->route.borrowed->readable;
	return 0;
}

/* The device begins while the next pieces are copied.  (It may be slow, and keep us waiting.) */
static int begin_sync(const struct pages_write *w, uint64_t offset, uint64_t bytes)
{
	sys_raw(SYS_sync_file_range, w->route.target.fd, (long)offset, (long)bytes, SYNC_FILE_RANGE_WRITE, 0,
	        0);
	return sys_now_ns() > w->until_ns ? -ETIME : 0;
}

void pages_write_pieces(struct file *f, struct pages_write *w)
{
	struct wal *log = order_log_of(f->arena)->wal;
	const struct overlay *o = &f->overlay;
	BUFFER(struct iovec, iov);
	uint64_t offset = 0, bytes;
	uint32_t cursor = 0;
	int count;

	while (w->r == 0 && (count = next_pieces(o, w->from, &cursor, iov, &offset, &bytes)) > 0) {
		int64_t since_ns = sys_wall_ns();
		uint64_t done = 0;
		int r;

		w->r = wal_late(log, since_ns);
		if (w->r == 0)
			w->r = direct_io_write(&w->route.target, iov, count, offset, &done);
		w->bytes += done;
		if (offset + done > w->end)
			w->end = offset + done;
		r = wal_late(log, since_ns);
		w->r = w->r == 0 ? r : w->r;
		if (w->until_ns && w->r == 0)
			w->r = begin_sync(w, offset, done);
	}
	if (w->r == 0 && w->end < o->cut.size)
		w->r = resize(f, w, o->cut.size);
	route_leave(f, &w->route);
}

int pages_write_end_append(struct file *f, struct pages_write *w)
{
	f->flush.program_fd = f->flush.sets_direct = false;
	f->ksize = w->end;
	guard_take(f, w->route.target.fd);
	route_count(f, &w->route, w->bytes);
	PROBE(flush, PROBE_FILE(f), w->bytes, w->r);
	return w->r;
}

int pages_write_end(struct file *f, struct pages_write *w)
{
	int r = pages_write_end_append(f, w);

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

void pages_all_written(struct file *f)
{
	/* (another program that waits to open f may change what is kept before the file's times tell) */
	if (file_readable_fd(f) < 0 && visibility_lease_intact(f))
		tail_keep(f);
	overlay_detach(&f->overlay);
	if (f->time_shown)
		keep_time(f);
	tail_stamp(f);
	f->due[DUE_FLUSH] = 0;
	/* (a lease says that bytes are staged) */
	if (!visibility_stays(f))
		visibility_drop(f);
}
