// SPDX-License-Identifier: Apache-2.0
/* route: see flush/route.h. */
#include "flush/route.h"

#include "base/lease.h"
#include "base/sys.h"
#include "flush/append.h"
#include "flush/device_speed.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/journaled.h"
#include "flush/visibility.h"

#include <fcntl.h>

/* While O_DIRECT is set in a description, reads through it must wait for the end of the flush.  So a file
 * that is read often is flushed through the page cache. */
static bool may_set_direct(const struct file *f, const struct ofd *borrowed)
{
	if (!borrowed || !borrowed->readable)
		return true;
	return atomic_load(&f->flush.reads) == 0 &&
	       (f->rule->set.flush == FLUSH_DIRECT || !f->flush.was_read);
}

/*
 * Direct writes end there.  ext4 keeps a file on its list of orphans while a direct write makes it longer.
 * After a power loss the mount cuts such a file to its size, and sets its time.  Recovery would then take the
 * file for one that was written in the new boot, and put aside what the journal or the log has of it.
 */
static uint64_t direct_end(const struct file *f)
{
	return journal_file_is(f) || file_is_ordered(f) ? f->ksize : UINT64_MAX;
}

/* Past the page cache if that is faster?  (What an ordered file loses in the cache is read again soon: the
 * rest of a page that is written in part.) */
static bool prefers_direct(const struct file *f)
{
	return !file_is_ordered(f) && device_speed_choose(f->dev) == DEVICE_SPEED_DIRECT;
}

static bool wants_direct(const struct file *f, const struct ofd *borrowed)
{
	enum flush_mode mode = f->rule->set.flush;

	return f->flush.direct_ok && may_set_direct(f, borrowed) &&
	       (mode == FLUSH_DIRECT || (mode == FLUSH_AUTO && prefers_direct(f)));
}

static uint64_t direct_min(const struct file *f)
{
	return f->rule->set.flush == FLUSH_DIRECT ? ARENA_PAGE : FLUSH_DIRECT_MIN;
}

void route_program_fd(struct file *f, struct route *rt, int fd)
{
	rt->borrowed = flush_borrow_fd(f, fd);
	rt->target = (struct flush_target){.fd = fd, .flags = rt->borrowed->flags};
	f->flush.program_fd = true;
	direct_io_set_flags(&rt->target, rt->borrowed->flags &
	                                         ~(f->kind == STAGE_APPEND ? O_DIRECT : O_APPEND | O_DIRECT));
}

int route_find(struct file *f, struct route *rt, uint64_t offset, uint64_t bytes)
{
	int fd = flush_trusted_fd(f);
	struct statx st;

	*rt = (struct route){.borrowed = NULL};
	if (fd < 0 && fd != -EBADF)
		return fd;
	if (fd < 0) {
		flush_reopen_internal(f, -1);
		if (file_internal_fd(f) < 0)
			return -EBADF;
	}
	if (f->kind == STAGE_APPEND) {
		if (!visibility_proves(f)) {
			if (fd < 0 || f->lease.on || f->rule->set.writers == WRITERS_SHARED ||
			    !flush_take_lease(f, fd))
				return 1;
			rt->leased = true;
		}
		if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) < 0 || st.stx_size != offset) {
			if (rt->leased)
				flush_drop_lease(f, fd);
			return 1;
		}
		append_begin(f, APPEND_AT_BASE, offset, bytes);
		route_program_fd(f, rt, fd);
	} else if (fd >= 0) {
		route_program_fd(f, rt, fd);
		if (rt->target.flags & O_APPEND) { /* the file has become append-only */
			route_leave(f, rt);
			return -EPERM;
		}
	} else {
		rt->own = true;
		rt->target = (struct flush_target){.fd = file_internal_fd(f),
		                                   .flags = file_local(f)->internal_flags};
	}
	rt->target.direct_ok = wants_direct(f, rt->borrowed);
	f->flush.sets_direct = rt->target.direct_ok && rt->borrowed && rt->borrowed->readable;
	f->flush.was_read = false;
	rt->target.direct_min = direct_min(f);
	rt->target.direct_end = direct_end(f);
	return 0;
}

void route_leave(struct file *f, struct route *rt)
{
	if (rt->own)
		file_local(f)->internal_flags = rt->target.flags;
	if (rt->borrowed)
		direct_io_set_flags(&rt->target, rt->borrowed->flags);
	if (rt->leased)
		lease_drop_own(rt->target.fd);
	if (rt->borrowed)
		flush_return(rt->borrowed, rt->target.flags);
	if (rt->target.direct_refused && rt->target.direct_bytes == 0)
		f->flush.direct_ok = false;
	if (rt->target.direct_bytes > 0)
		device_speed_note(f->dev, DEVICE_SPEED_DIRECT, rt->target.direct_bytes, rt->target.direct_ns);
	if (rt->target.buffered_bytes > 0)
		device_speed_note(f->dev, DEVICE_SPEED_BUFFERED, rt->target.buffered_bytes,
		                  rt->target.buffered_ns);
}

void route_count(const struct file *f, const struct route *rt, uint64_t bytes)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	atomic_fetch_add_explicit(&entry->counters[COUNT_FLUSHES], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->counters[COUNT_FLUSH_BYTES], bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&entry->counters[COUNT_DIRECT_BYTES], rt->target.direct_bytes,
	                          memory_order_relaxed);
}
