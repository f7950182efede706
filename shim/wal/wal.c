// SPDX-License-Identifier: Apache-2.0
/* wal: see wal/wal.h. */
#include "wal/wal.h"

#include "base/bytes.h"
#include "base/crc32c.h"
#include "base/kill.h"
#include "base/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum { TAILS = sizeof((struct wal *)NULL)->tail / sizeof((struct wal *)NULL)->tail[0] };

static int write_vector(int fd, struct iovec *iov, int count, uint64_t offset)
{
	while (count > 0) {
		ssize_t n = sys_pwritev_accepted(fd, iov, count, (off_t)offset);

		if (n == -EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? (int)n : -EIO;
		offset += (uint64_t)n;
		for (; count > 0 && (size_t)n >= iov->iov_len; iov++, count--)
			n -= (ssize_t)iov->iov_len;
		if (count > 0) {
			iov->iov_base = (uint8_t *)iov->iov_base + n;
			iov->iov_len -= (size_t)n;
		}
	}
	return 0;
}

static int write_header(struct wal *w)
{
	uint64_t written;
	int r;

	w->header.checksum = wal_header_checksum(&w->header);
	memset(w->head, 0, WAL_PAGE_BYTES);
	memcpy(w->head, &w->header, sizeof w->header);
	memcpy(w->head + WAL_REPLAY_AT, &w->late, sizeof w->late);
	kill_step();
	r = bytes_write(w->fd, w->head, WAL_PAGE_BYTES, 0, false, &written);
	kill_step();
	return r;
}

static int put_header(struct wal *w, bool sync)
{
	int r = write_header(w);

	return r == 0 && sync ? sys.fdatasync(w->fd) : r;
}

/* [0, to).  The log is to be made, so its head is still zeros.  In few calls: the program waits. */
static int write_zeros(struct wal *w, uint64_t to)
{
	enum { MOST = sizeof w->iov / sizeof w->iov[0] };
	int r = 0;

	for (uint64_t at = 0, end; at < to && r == 0; at = end) {
		int count = 0;

		for (end = at; end < to && count < MOST; end += w->iov[count++].iov_len)
			w->iov[count] = (struct iovec){.iov_base = w->head,
			                               .iov_len = to - end < sizeof w->head ? to - end
			                                                                    : sizeof w->head};
		r = write_vector(w->fd, w->iov, count, at);
	}
	return r;
}

/* Space for all of it.  What is not written yet costs one commit of the file system's journal when an epoch
 * first gets there; most never do.  To write it all would keep the program's first write waiting. */
static int get_space(struct wal *w, uint64_t bytes)
{
	enum { WRITTEN = 1 << 20 };
	int r = sys.fallocate(w->fd, 0, 0, (off_t)bytes);

	if (r < 0 && r != -EOPNOTSUPP)
		return r;
	return write_zeros(w, r == 0 && bytes > WRITTEN ? WRITTEN : bytes);
}

int wal_make(struct wal *w, int fd, uint64_t bytes, const uint8_t id[16], const struct origin *origin)
{
	struct statx st;
	int r;

	if (bytes < WAL_BYTES_MIN || bytes % WAL_PAGE_BYTES != 0)
		return -EINVAL;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r < 0)
		return r;
	memset(w, 0, sizeof *w);
	w->fd = fd;
	w->header = (struct wal_header){.magic = WAL_MAGIC,
	                                .version = WAL_VERSION,
	                                .bytes = bytes,
	                                .first = 1,
	                                .ino = st.stx_ino,
	                                .origin = *origin};
	memcpy(w->header.id, id, sizeof w->header.id);
	r = get_space(w, bytes);
	if (r < 0)
		return r;
	w->end = WAL_BATCHES_AT;
	w->voided = true;
	return put_header(w, true);
}

void wal_continue(struct wal *w, int fd, const struct wal_header *header, uint64_t last, uint64_t end)
{
	memset(w, 0, sizeof *w);
	w->fd = fd;
	w->header = *header;
	w->device = header->absent;
	w->epoch = last >= header->first ? last : header->first - 1;
	w->end = end;
	w->recovery = true;
	w->written_ns = sys_wall_ns() - 2 * WAL_LATE_NS; /* (unknown) */
}

int wal_make_room(struct wal *w)
{
	int r;

	if (w->end <= w->header.bytes / 2)
		return 0;
	r = sys.ftruncate(w->fd, (off_t)(2 * w->end));
	/* (a header that says more than there is would be that of a damaged log) */
	if (r == 0)
		r = sys.fdatasync(w->fd);
	if (r < 0)
		return r;
	w->header.bytes = 2 * w->end;
	return put_header(w, true);
}

static bool is_said(const struct wal *w, int64_t since, int64_t now)
{
	return since - WAL_TICK_NS >= w->late.begun_ns &&
	       now + WAL_REPLAY_AHEAD_NS / 4 * 3 <= w->late.until_ns;
}

int wal_late(struct wal *w, int64_t since_ns)
{
	int64_t now = sys_wall_ns(), ahead = WAL_REPLAY_AHEAD_NS;
	int r = 0;

	if (now - w->written_ns <= WAL_LATE_NS / 2)
		return 0;
	/* (a slow device: the note must hold for longer than it takes to write it) */
	for (; r == 0 && !is_said(w, since_ns, now); ahead *= 2) {
		struct wal_replay before = w->late;

		if (!before.boot_ns || since_ns - WAL_TICK_NS < before.begun_ns)
			w->late.begun_ns = since_ns - WAL_TICK_NS;
		if (now + ahead > before.until_ns)
			w->late.until_ns = now + ahead;
		w->late.boot_ns = w->header.origin.boot_ns;
		r = put_header(w, true);
		w->unsure = r < 0;
		if (r == 0)
			w->device = w->header.absent;
		else
			w->late = before;
		now = sys_wall_ns();
	}
	return r;
}

static void begin_batch(struct wal *w)
{
	w->bytes = sizeof(struct wal_batch);
	w->images = w->tails = 0;
}

void wal_begin(struct wal *w)
{
	w->epoch++;
	w->voided = false;
	w->at = w->end;
	w->absent = (struct wal_absent){0};
	w->part = 0;
	/* (epochs behind a header that says more than they do would not be found) */
	w->error = w->unsure ? put_header(w, true) : 0;
	w->unsure = w->error < 0;
	begin_batch(w);
}

void wal_begin_again(struct wal *w)
{
	wal_begin(w);
	w->absent = w->header.absent;
}

static int write_batch(struct wal *w, uint32_t flags)
{
	struct wal_batch *b = (struct wal_batch *)(void *)w->head;
	uint32_t head;
	uint64_t bytes;
	int r;

	*b = (struct wal_batch){.magic = WAL_BATCH_MAGIC,
	                        .epoch = w->epoch,
	                        .part = w->part,
	                        .flags = flags,
	                        .bytes = w->bytes,
	                        .images = w->images,
	                        .written_ns = w->put_ns = sys_wall_ns()};
	memcpy(b->id, w->header.id, sizeof b->id);
	if (flags & WAL_END)
		b->absent = w->absent;
	head = wal_head_bytes(b);
	bytes = head + (uint64_t)w->images * WAL_PAGE_BYTES;
	if (bytes > w->header.bytes - w->at)
		return -ENOSPC;
	memset(w->head + w->bytes, 0, head - w->bytes);
	w->iov[0] = (struct iovec){.iov_base = w->head, .iov_len = head};
	b->checksum = wal_head_checksum(b, head);
	for (uint32_t i = 1; i <= w->images; i++)
		b->checksum = crc32c(b->checksum, w->iov[i].iov_base, WAL_PAGE_BYTES);
	kill_step();
	r = write_vector(w->fd, w->iov, 1 + (int)w->images, w->at);
	kill_step();
	if (r < 0)
		return r;
	w->at += bytes;
	w->part++;
	begin_batch(w);
	return 0;
}

/* Room for a record with `bytes` bytes of content, or NULL: the epoch has failed. */
static void *record(struct wal *w, enum wal_type type, uint32_t file, uint32_t bytes)
{
	uint32_t whole = (uint32_t)sizeof(struct wal_record) + wal_padded(bytes);
	struct wal_record *r;

	if (w->error == 0 &&
	    (w->bytes + whole > WAL_HEAD_MAX || w->images == WAL_IMAGES_MAX || w->tails == TAILS))
		w->error = write_batch(w, 0);
	if (w->error < 0)
		return NULL;
	r = (struct wal_record *)(void *)(w->head + w->bytes);
	memset(r, 0, whole);
	*r = (struct wal_record){.type = (uint16_t)type, .bytes = (uint16_t)whole, .file = file};
	w->bytes += whole;
	return r + 1;
}

int wal_put_name(struct wal *w, uint32_t file, const struct arena_entry *e, unsigned flags)
{
	size_t n = strlen(e->path) + 1;
	struct wal_name *name = record(w, WAL_NAME, file, (uint32_t)(sizeof *name + n));

	if (!name)
		return w->error;
	*name = (struct wal_name){.dev = e->dev,
	                          .ino = e->ino,
	                          .btime_sec = e->btime_sec,
	                          .btime_nsec = e->btime_nsec,
	                          .handle_hash = e->handle_hash,
	                          .generation = e->generation,
	                          .path_bytes = (uint16_t)n,
	                          .flags = (uint16_t)flags,
	                          .below = e->below,
	                          .up = e->up};
	memcpy(name + 1, e->path, n);
	return 0;
}

int wal_put_size(struct wal *w, uint32_t file, const struct wal_size *size)
{
	struct wal_size *s = record(w, WAL_SIZE, file, sizeof *s);

	if (!s)
		return w->error;
	*s = *size;
	return 0;
}

int wal_put_page(struct wal *w, uint32_t file, uint64_t page, const uint8_t *data, uint32_t counting)
{
	struct wal_page *p;

	if (counting == 0 || counting > WAL_PAGE_BYTES)
		return -EINVAL;
	p = record(w, WAL_PAGE, file, sizeof *p);
	if (!p)
		return w->error;
	p->page = page;
	if (counting < WAL_PAGE_BYTES) {
		uint8_t *tail = w->tail[w->tails++];

		memcpy(tail, data, counting);
		memset(tail + counting, 0, WAL_PAGE_BYTES - counting);
		data = tail;
	}
	w->iov[1 + w->images++] =
		(struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = WAL_PAGE_BYTES};
	return 0;
}

void wal_put_absent(struct wal *w, uint32_t names)
{
	w->absent = (struct wal_absent){.list = w->list, .names = names};
}

int wal_list(struct wal *w, const struct wal_path *paths, uint32_t count)
{
	struct wal_names *list = (struct wal_names *)(void *)w->head;
	uint32_t bytes = sizeof *list;
	uint64_t written;
	int r;

	memset(w->head, 0, sizeof w->head);
	for (uint32_t i = 0; i < count; i++) {
		struct wal_listed *name = (struct wal_listed *)(void *)(w->head + bytes);
		uint32_t n = (uint32_t)strlen(paths[i].path) + 1;
		uint32_t whole = (uint32_t)sizeof *name + wal_padded(n);

		if (whole > WAL_NAMES_BYTES - bytes)
			return -ENAMETOOLONG;
		*name = (struct wal_listed){.below = paths[i].below, .up = paths[i].up, .path_bytes = n};
		memcpy(name + 1, paths[i].path, n);
		bytes += whole;
	}
	*list = (struct wal_names){
		.magic = WAL_NAMES_MAGIC, .number = w->list + 1, .count = count, .bytes = bytes};
	memcpy(list->id, w->header.id, sizeof list->id);
	list->checksum = wal_names_checksum(list);
	kill_step();
	r = bytes_write(w->fd, w->head, WAL_NAMES_BYTES, wal_names_at(list->number), false, &written);
	if (r == 0)
		r = sys.fdatasync(w->fd);
	kill_step();
	if (r == 0)
		w->list++;
	return r;
}

int wal_commit(struct wal *w)
{
	if (w->error == 0)
		w->error = write_batch(w, w->recovery ? WAL_END | WAL_RECOVERY : WAL_END);
	if (w->error == 0)
		w->error = sys.fdatasync(w->fd);
	kill_step();
	if (w->error == 0) {
		w->end = w->at;
		w->header.absent = w->absent;
		w->written_ns = w->put_ns;
	}
	return w->error;
}

static bool is_same(const struct wal_absent *a, const struct wal_absent *b)
{
	return a->list == b->list && a->names == b->names;
}

int wal_empty(struct wal *w, bool sync)
{
	uint64_t before = w->header.first;
	/* what is said of names stands nowhere else once the epoch is written over */
	bool says = !is_same(&w->header.absent, &w->device);
	int r;

	w->header.first = w->epoch + 1;
	w->header.written_ns = sys_wall_ns();
	r = put_header(w, sync || says);
	w->unsure = r < 0;
	if (r < 0) {
		w->header.first = before;
		return r;
	}
	w->device = w->header.absent;
	w->end = WAL_BATCHES_AT;
	return 0;
}

int wal_void(struct wal *w)
{
	int r;

	w->header.absent = (struct wal_absent){0};
	r = w->voided ? 0 : wal_empty(w, true);
	if (r == 0)
		w->voided = true;
	return r;
}
