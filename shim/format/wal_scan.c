// SPDX-License-Identifier: Apache-2.0
/* wal_scan: see format/wal_scan.h. */
#include "format/wal_scan.h"

#include "base/crc32c.h"
#include "base/sys.h"
#include "format/arena_format.h"

#include <errno.h>
#include <string.h>

static const struct wal_batch *batch_of(const struct wal_scan *s)
{
	return (const struct wal_batch *)(const void *)s->batch;
}

static uint64_t whole_bytes(const struct wal_batch *b)
{
	return wal_head_bytes(b) + (uint64_t)b->images * WAL_PAGE_BYTES;
}

static bool header_sane(const struct wal_header *h)
{
	return h->magic == WAL_MAGIC && h->version >= WAL_VERSION_READ && h->version <= WAL_VERSION &&
	       h->checksum == wal_header_checksum(h) && h->bytes >= WAL_BYTES_MIN &&
	       h->bytes % WAL_PAGE_BYTES == 0 && h->bytes <= INT64_MAX && h->first != 0;
}

/* Reads the batch at `at` into s->batch.  1; 0: there is none; -errno. */
static int read_batch(struct wal_scan *s, uint64_t at)
{
	struct wal_batch *b = (struct wal_batch *)(void *)s->batch;
	uint32_t sum;
	int r;

	if (at > s->header.bytes - WAL_PAGE_BYTES)
		return 0;
	r = sys_read_all(s->fd, s->batch, WAL_PAGE_BYTES, at);
	if (r < 0)
		return r;
	if (b->magic != WAL_BATCH_MAGIC || memcmp(b->id, s->header.id, sizeof b->id) != 0 ||
	    b->bytes < sizeof *b || b->bytes > WAL_HEAD_MAX || b->images > WAL_IMAGES_MAX ||
	    whole_bytes(b) > s->header.bytes - at)
		return 0;
	r = sys_read_all(s->fd, s->batch + WAL_PAGE_BYTES, whole_bytes(b) - WAL_PAGE_BYTES,
	                 at + WAL_PAGE_BYTES);
	if (r < 0)
		return r;
	sum = wal_head_checksum(b, wal_head_bytes(b));
	return b->checksum == crc32c(sum, s->batch + wal_head_bytes(b), b->images * (size_t)WAL_PAGE_BYTES);
}

int wal_scan_begin(struct wal_scan *s, int fd, uint8_t *batch)
{
	uint64_t at = WAL_BATCHES_AT, epoch = 0;
	uint32_t part = 0;
	int r;

	*s = (struct wal_scan){.fd = fd, .batch = batch, .end = WAL_BATCHES_AT};
	r = sys_read_all(fd, &s->header, sizeof s->header, 0);
	if (r < 0)
		return r;
	if (s->header.magic == 0)
		return -ENODATA;
	if (s->header.magic == WAL_MAGIC && s->header.version > WAL_VERSION)
		return FORMAT_NEWER;
	if (!header_sane(&s->header))
		return -EBADMSG;
	s->written_ns = s->header.written_ns;
	s->absent = s->header.absent;
	while ((r = read_batch(s, at)) > 0) {
		const struct wal_batch *b = batch_of(s);
		bool begins = part == 0 && b->part == 0 && b->epoch > s->last && b->epoch >= s->header.first;

		if (!begins && (part == 0 || b->part != part || b->epoch != epoch))
			break;
		epoch = b->epoch;
		part = b->part + 1;
		at += whole_bytes(b);
		if (b->flags & WAL_END) {
			s->last = epoch;
			s->written_ns = b->written_ns;
			s->absent = b->absent;
			s->recovery = b->flags & WAL_RECOVERY;
			s->epochs++;
			s->end = at;
			part = 0;
		}
	}
	return r < 0 ? r : 0;
}

/* The record at `at` of the batch.  False: it makes no sense. */
static bool take(const struct wal_scan *s, uint32_t at, uint32_t image, struct wal_item *item)
{
	const struct wal_batch *b = batch_of(s);
	const struct wal_record *r = (const struct wal_record *)(const void *)(s->batch + at);
	const void *content = r + 1;
	uint32_t room;

	if (b->bytes - at < sizeof *r || r->bytes < sizeof *r || r->bytes % 8 != 0 ||
	    r->bytes > b->bytes - at)
		return false;
	room = r->bytes - (uint32_t)sizeof *r;
	*item = (struct wal_item){.epoch = b->epoch, .file = r->file, .type = (enum wal_type)r->type};
	switch (item->type) {
	case WAL_NAME:
		item->name = content;
		item->path = (const char *)(item->name + 1);
		return room > sizeof *item->name && item->name->path_bytes > 1 &&
		       item->name->path_bytes <= room - sizeof *item->name &&
		       item->name->path_bytes <= WAL_PATH_MAX && item->path[0] == '/' &&
		       strnlen(item->path, item->name->path_bytes) == item->name->path_bytes - 1u;
	case WAL_SIZE:
		item->size = content;
		return room == sizeof *item->size && item->size->size <= INT64_MAX &&
		       item->size->lowest <= item->size->size && item->size->mtime_nsec < 1000000000;
	case WAL_PAGE:
		if (room != sizeof(struct wal_page) || image >= b->images)
			return false;
		item->page = ((const struct wal_page *)content)->page;
		item->image = s->batch + wal_head_bytes(b) + (size_t)image * WAL_PAGE_BYTES;
		return item->page <= INT64_MAX / WAL_PAGE_BYTES;
	default: return false;
	}
}

static int visit_batch(struct wal_scan *s, wal_visit *visit, void *ctx)
{
	const struct wal_batch *b = batch_of(s);
	uint32_t image = 0;

	for (uint32_t at = sizeof *b; at < b->bytes;) {
		struct wal_item item;
		int r;

		if (!take(s, at, image, &item))
			return -EBADMSG;
		image += item.type == WAL_PAGE;
		r = visit(ctx, &item);
		if (r != 0)
			return r;
		at += ((const struct wal_record *)(const void *)(s->batch + at))->bytes;
	}
	return image == b->images ? 0 : -EBADMSG;
}

int wal_scan_each(struct wal_scan *s, wal_visit *visit, void *ctx)
{
	for (uint64_t at = WAL_BATCHES_AT; at < s->end; at += whole_bytes(batch_of(s))) {
		int r = read_batch(s, at);

		if (r <= 0)
			return r < 0 ? r : -EBADMSG;
		r = visit_batch(s, visit, ctx);
		if (r != 0)
			return r;
	}
	return 0;
}

static const struct wal_names *list_of(const struct wal_scan *s)
{
	return (const struct wal_names *)(const void *)s->batch;
}

static int read_list(struct wal_scan *s)
{
	const struct wal_names *list = list_of(s);
	int r = sys_read_all(s->fd, s->batch, WAL_NAMES_BYTES, wal_names_at(s->absent.list));

	if (r < 0)
		return r;
	return list->magic == WAL_NAMES_MAGIC && memcmp(list->id, s->header.id, sizeof list->id) == 0 &&
	                       list->number == s->absent.list && list->count <= WAL_NAMES_MAX &&
	                       list->bytes >= sizeof *list && list->bytes <= WAL_NAMES_BYTES &&
	                       list->checksum == wal_names_checksum(list)
	               ? 0
	               : -EBADMSG;
}

/* The name at `at` of the list; it ends at the result.  0: it makes no sense. */
static uint32_t take_listed(const struct wal_scan *s, uint32_t at, const struct wal_listed **name,
                            const char **path)
{
	uint32_t room = list_of(s)->bytes - at;

	if (room < sizeof **name)
		return 0;
	room -= (uint32_t)sizeof **name;
	*name = (const struct wal_listed *)(const void *)(s->batch + at);
	*path = (const char *)(*name + 1);
	if ((*name)->path_bytes < 2 || (*name)->path_bytes > room || (*name)->path_bytes > WAL_PATH_MAX ||
	    (*path)[0] != '/' || strnlen(*path, (*name)->path_bytes) != (*name)->path_bytes - 1 ||
	    wal_padded((*name)->path_bytes) > room)
		return 0;
	return at + (uint32_t)sizeof **name + wal_padded((*name)->path_bytes);
}

int wal_scan_absent(struct wal_scan *s, uint32_t *i, const struct wal_listed **name, const char **path)
{
	uint32_t at = sizeof(struct wal_names);
	int r = s->absent.list && *i == 0 ? read_list(s) : 0;

	if (r < 0 || !s->absent.list)
		return r;
	for (uint32_t n = 0; n < list_of(s)->count; n++) {
		at = take_listed(s, at, name, path);
		if (at == 0)
			return -EBADMSG;
		if (n < *i || !(s->absent.names >> n & 1))
			continue;
		*i = n + 1;
		return 1;
	}
	return 0;
}
