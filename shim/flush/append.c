// SPDX-License-Identifier: Apache-2.0
/* append: see flush/append.h. */
#include "flush/append.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/probe.h"
#include "base/sys.h"
#include "flush/flush.h"
#include "staging/stage.h"

#include <fcntl.h>

void append_begin(struct file *f, enum append_flush how, uint64_t base, uint64_t bytes)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	atomic_store_explicit(&entry->flush_base, base, memory_order_relaxed);
	atomic_store_explicit(&entry->flush_bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&entry->flush_from, atomic_load(&entry->done), memory_order_relaxed);
	kill_step();
	atomic_store_explicit(&entry->flush_active, how, memory_order_release);
	kill_step();
}

void append_end(struct file *f)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);

	kill_step();
	atomic_store_explicit(&entry->flush_active, APPEND_NONE, memory_order_release);
	kill_step();
}

/* A description of the program with O_APPEND, or NULL. */
static struct ofd *append_ofd(const struct file *f)
{
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (o->writable && (o->flags & O_APPEND) && ofd_fd(o) >= 0)
			return o;
	return NULL;
}

static int file_size(int fd, uint64_t *size)
{
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	if (r == 0)
		*size = st.stx_size;
	return r;
}

struct batch {
	struct iovec iov[FLUSH_IOV_MAX];
	int count;
	uint64_t bytes;
	uint64_t offset; /* assumed file offset of the first byte */
};

/* Collects whole writes of the program from the head of the file, as many blocks as fit.  Leaves out the part
 * of a write that continues in a block that does not fit. */
static void gather(struct file *f, struct batch *b)
{
	uint32_t skip = f->flush.append_skip;
	struct block_run *run = flush_first(f);

	b->count = 0;
	b->bytes = 0;
	b->offset = run ? run->meta->first.offset + skip : 0;
	for (; run && b->count < FLUSH_IOV_MAX; run = run->next) {
		uint32_t length = COMMIT_LENGTH(arena_run_commit(run));

		b->iov[b->count].iov_base = run->base + skip;
		b->iov[b->count++].iov_len = length - skip;
		b->bytes += length - skip;
		skip = 0;
	}
	if (run && b->count > 1 && run->split_bytes < b->iov[b->count - 1].iov_len) {
		b->iov[b->count - 1].iov_len -= run->split_bytes;
		b->bytes -= run->split_bytes;
	}
}

/*
 * The `n` bytes with the assumed offset `offset` are now in the `n` bytes before `end`.  Moves each
 * description whose last write lies among them to the end of that write.  The kernel moves the position of
 * `used` with every append; its final position goes to *used_position.
 */
static void reposition(struct file *f, const struct ofd *used, uint64_t offset, uint64_t n, uint64_t end,
                       off_t *used_position)
{
	for (struct ofd *o = f->ofds; o; o = o->next) {
		uint64_t position = (uint64_t)o->pos;

		if (o->pos_mode != POS_USER || !(o->flags & O_APPEND) || position <= offset ||
		    position > offset + n)
			continue;
		if (o == used) {
			*used_position = (off_t)(end - n + (position - offset));
			continue;
		}
		o->pos = (off_t)(end - n + (position - offset));
		if (ofd_fd(o) < 0)
			continue;
		sys.lseek(ofd_fd(o), o->pos, SEEK_SET);
		o->pos_mode = POS_KERNEL;
	}
}

int append_shared(struct file *f)
{
	struct arena_entry *entry = arena_entry_at(f->arena, (uint32_t)f->entry);
	struct ofd *o = append_ofd(f);
	/* the internal descriptor if only other processes have a description with O_APPEND */
	int fd = o ? ofd_fd(o) : file_internal_fd(f);
	int flags = o ? o->flags : O_WRONLY | O_APPEND;
	bool buffered = false;
	off_t position = 0;
	uint64_t base;
	int r = 0;

	if (fd < 0)
		return -EBADF;
	stage_seal(f);
	if (o)
		position = o->pos_mode == POS_KERNEL ? sys.lseek(fd, 0, SEEK_CUR) : o->pos;
	while (f->tail && !f->tail->flushed) {
		BUFFER(struct batch, b);
		ssize_t n;

		/* recovery needs the size to tell which bytes are already in the file */
		r = file_size(fd, &base);
		if (r < 0)
			break;
		gather(f, b);
		append_begin(f, APPEND_SOMEWHERE, base, b->bytes);
		PROBE(flush_begin, PROBE_FILE(f));
		n = sys_append_accepted(fd, b->iov, b->count);
		if (n == -EINTR) {
			append_end(f);
			continue;
		}
		if (n == -EINVAL && (flags & O_DIRECT) && !buffered) {
			/* another process has appended, and the end of the file is no longer aligned */
			append_end(f);
			if (o)
				flush_borrow(o);
			buffered = sys.fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
			if (buffered)
				continue;
			r = (int)n;
			break;
		}
		if (n <= 0) {
			append_end(f);
			r = n < 0 ? (int)n : -EIO;
			PROBE(flush, PROBE_FILE(f), b->bytes, r);
			break;
		}
		atomic_fetch_add_explicit(&entry->counters[COUNT_FLUSHES], 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&entry->counters[COUNT_FLUSH_BYTES], (uint64_t)n,
		                          memory_order_relaxed);
		flush_note_done(f, flush_first(f), (uint64_t)n);
		reposition(f, o, b->offset, (uint64_t)n, (uint64_t)sys.lseek(fd, 0, SEEK_CUR), &position);
		append_end(f);
		PROBE(flush, PROBE_FILE(f), (uint64_t)n, 0);
		flush_free_done(f);
	}
	if (buffered && sys.fcntl(fd, F_SETFL, flags) == 0)
		buffered = false;
	if (o && o->borrowed == OFD_BORROWED)
		flush_return(o, buffered ? flags & ~O_DIRECT : flags);
	file_size(fd, &f->ksize);
	f->lsize = f->head && f->staged_hi > f->ksize ? f->staged_hi : f->ksize;
	if (o) {
		sys.lseek(fd, position, SEEK_SET);
		o->pos_mode = POS_KERNEL;
	}
	return r;
}
