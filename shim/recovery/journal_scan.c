// SPDX-License-Identifier: Apache-2.0
/* journal_scan: see recovery/journal_scan.h. */
#include "recovery/journal_scan.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

_Static_assert(JOURNAL_UNIT_MAX <= JOURNAL_HEADER_BYTES, "a header is read and written whole");

void scan_tell(const struct journal_scan *s, const char *target, const char *action, uint64_t bytes,
               int error, const char *detail)
{
	struct recover_event e = {.arena = s->path,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (s->opt->event)
		s->opt->event(s->opt->ctx, &e);
}

void scan_failed(const struct journal_scan *s, const char *target, uint64_t bytes, int error,
                 const char *detail)
{
	s->report->failed++;
	scan_tell(s, target, "failed", bytes, error, detail);
}

int scan_load_header(struct journal_scan *s)
{
	struct journal_header *h = &s->header;
	struct statx st;
	int r = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r < 0)
		return r;
	s->place.dev_now = sys_dev_of(&st);
	if (st.stx_size < JOURNAL_HEADER_BYTES)
		return -ENODATA;
	r = sys_read_all(s->fd, h, sizeof *h, 0);
	if (r < 0)
		return r;
	if (h->magic == 0 && h->checksum == 0)
		return -ENODATA;
	if (h->magic != JOURNAL_MAGIC || h->version < JOURNAL_VERSION_READ || h->version > JOURNAL_VERSION ||
	    h->checksum != journal_header_checksum(h))
		return -EBADMSG;
	if (h->unit < JOURNAL_UNIT_MIN || h->unit > JOURNAL_UNIT_MAX || (h->unit & (h->unit - 1)) ||
	    h->half_bytes % h->unit || h->half_bytes == 0 || h->half_bytes > (UINT64_C(1) << 40) ||
	    h->total_bytes != JOURNAL_HEADER_BYTES + 2 * h->half_bytes || h->total_bytes != st.stx_size)
		return -EBADMSG;
	/* (it lies beside the arena, on the same file system) */
	s->place.dev_then = h->origin.dev;
	return h->ino != 0 && h->ino != st.stx_ino ? -ESTALE : 0;
}

int scan_take_batch(struct journal_scan *s)
{
	uint8_t *p =
		sys.mmap(NULL, JOURNAL_BATCH_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_is_error(p))
		return (int)(intptr_t)p;
	s->batch = p;
	return 0;
}

/*
 * Reads the batch at this place of the half into s->batch.  `seq` 0: any.  1: it is whole and its checksum
 * fits; 0: there is none; -errno: it cannot be read, and nobody knows what stands there.
 */
static int read_batch(struct journal_scan *s, unsigned half, uint64_t at, uint64_t seq)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;
	uint64_t from = journal_half_at(&s->header, half) + at;
	uint64_t left = s->header.half_bytes - at;
	int r;

	if (left < s->header.unit)
		return 0;
	r = sys_read_all(s->fd, s->batch, s->header.unit, from);
	if (r < 0)
		return r;
	if (b->magic != JOURNAL_BATCH_MAGIC || b->seq == 0 || (seq && b->seq != seq) ||
	    memcmp(b->id, s->header.id, sizeof b->id) != 0 || b->bytes < sizeof *b ||
	    b->bytes > JOURNAL_BATCH_MAX || b->bytes > left)
		return 0;
	if (b->bytes > s->header.unit)
		r = sys_read_all(s->fd, s->batch + s->header.unit, b->bytes - s->header.unit,
		                 from + s->header.unit);
	if (r < 0)
		return r;
	return b->checksum == journal_batch_checksum(b);
}

static uint64_t batch_step(const struct journal_scan *s)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	return ((uint64_t)b->bytes + s->header.unit - 1) & ~((uint64_t)s->header.unit - 1);
}

static int walk(struct journal_scan *s, const struct journal_chain *c, journal_visitor *visit)
{
	uint64_t at = 0;

	for (uint64_t i = 0; i < c->batches; i++) {
		const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

		int got = read_batch(s, c->half, at, c->first_seq + i);

		if (got <= 0)
			return got < 0 ? got : -EIO; /* (it was there a moment ago) */
		for (uint32_t p = sizeof *b; p < b->bytes;) {
			struct journal_found f = {.seq = b->seq, .at = p};
			int r;

			if (b->bytes - p < sizeof f.e)
				return -EBADMSG;
			memcpy(&f.e, s->batch + p, sizeof f.e);
			if (f.e.length > JOURNAL_BATCH_MAX ||
			    journal_entry_bytes(f.e.length) > b->bytes - p || f.e.file == 0)
				return -EBADMSG;
			f.content = s->batch + p + sizeof f.e;
			f.content_at = journal_half_at(&s->header, c->half) + at + p + sizeof f.e;
			p += journal_entry_bytes(f.e.length);
			r = visit(s, &f);
			if (r < 0)
				return r;
		}
		at += batch_step(s);
	}
	return 0;
}

int scan_walk(struct journal_scan *s, journal_visitor *visit)
{
	int r = walk(s, &s->chains[0], visit);

	return r < 0 ? r : walk(s, &s->chains[1], visit);
}

static int find_chain(struct journal_scan *s, unsigned half, struct journal_chain *c)
{
	int got;

	*c = (struct journal_chain){.half = half};
	while ((got = read_batch(s, half, c->end, c->batches ? c->first_seq + c->batches : 0)) > 0) {
		if (c->batches++ == 0)
			c->first_seq = ((const struct journal_batch *)(const void *)s->batch)->seq;
		c->end += batch_step(s);
	}
	return got;
}

int scan_find_chains(struct journal_scan *s)
{
	struct journal_chain a, b;
	int r = find_chain(s, 0, &a);

	if (r == 0)
		r = find_chain(s, 1, &b);
	if (r < 0)
		return r;
	s->chains[0] = a.first_seq <= b.first_seq ? a : b;
	s->chains[1] = a.first_seq <= b.first_seq ? b : a;
	s->newest = s->chains[1].batches ? s->chains[1].first_seq + s->chains[1].batches - 1
	                                 : s->chains[0].first_seq + s->chains[0].batches - 1;
	return 0;
}

/* Writes the first bytes of s->batch to the journal. */
static int write_durably(const struct journal_scan *s, uint64_t bytes, uint64_t at)
{
	uint64_t written;
	int r = bytes_write(s->fd, s->batch, bytes, at, false, &written);

	return r < 0 ? r : sys.fdatasync(s->fd);
}

/* Behind a damaged batch may stand batches that were never read.  They would continue a new batch in its
 * place, so they must not be readable then. */
static int end_chain(const struct journal_scan *s, uint64_t at, uint64_t end)
{
	static const struct journal_batch none;
	struct journal_batch next;
	uint64_t written;
	int r;

	if (at >= end)
		return 0;
	r = sys_read_all(s->fd, &next, sizeof next, at);
	if (r < 0 || next.magic != JOURNAL_BATCH_MAGIC)
		return r;
	r = bytes_write(s->fd, (const uint8_t *)&none, sizeof none, at, false, &written);
	return r < 0 ? r : sys.fdatasync(s->fd);
}

int scan_put_batch(struct journal_scan *s, struct journal_chain *c, uint32_t used)
{
	struct journal_batch *b = (struct journal_batch *)(void *)s->batch;
	uint64_t at = journal_half_at(&s->header, c->half) + c->end;
	uint32_t bytes = (used + s->header.unit - 1) & ~(s->header.unit - 1);
	int r;

	if (bytes > s->header.half_bytes - c->end)
		return -ENOSPC;
	b->magic = JOURNAL_BATCH_MAGIC;
	b->seq = s->newest + 1;
	memcpy(b->id, s->header.id, sizeof b->id);
	b->bytes = used;
	b->checksum = journal_batch_checksum(b);
	r = end_chain(s, at + bytes, at - c->end + s->header.half_bytes);
	if (r == 0)
		r = write_durably(s, bytes, at);
	if (r == 0) {
		c->end += bytes;
		s->newest++;
	}
	memset(s->batch, 0, bytes);
	return r;
}

int scan_end_for_good(struct journal_scan *s)
{
	memset(s->batch, 0, JOURNAL_HEADER_BYTES);
	return write_durably(s, JOURNAL_HEADER_BYTES, 0);
}

/* ---- files ---- */

enum { OPEN_MAX_FILES = 32 };
/* Each takes some 200 bytes of memory here. */
enum { NAMES_MOST = 1 << 22 };

uint64_t files_place(const struct journal_scan *s, uint64_t key)
{
	return key * 0x9e3779b97f4a7c15ull >> (64 - s->place_bits);
}

/* NULL: the numbers are none of ours. */
static struct entry_file *file_at(const struct journal_scan *s, uint64_t number)
{
	uint64_t i = files_place(s, number);

	for (int tries = 0; tries < FILES_TRIES_MOST; tries++) {
		struct entry_file *file = &s->files[(i + (uint64_t)tries) & (s->file_places - 1)];

		if (!file->number || file->number == number)
			return file;
	}
	return NULL;
}

static int visit_count(struct journal_scan *s, const struct journal_found *f)
{
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	s->names += f->e.type == JOURNAL_NAME;
	if (b->written_ns) {
		s->written_seq = b->seq;
		s->written_ns = b->written_ns;
	}
	return 0;
}

static int visit_collect(struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = file_at(s, f->e.file);
	struct journal_name name;

	if (!file)
		return -EBADMSG;
	switch (f->e.type) {
	case JOURNAL_NAME:
		if (f->e.length < sizeof(struct journal_name) + 2 ||
		    f->e.length > sizeof(struct journal_name) + ARENA_PATH_MAX)
			return -EBADMSG;
		file->number = f->e.file;
		file->name_at = f->content_at;
		file->name_bytes = f->e.length;
		memcpy(&name, f->content, sizeof name);
		file->ino = name.ino;
		file->btime_sec = name.btime_sec;
		file->btime_nsec = name.btime_nsec;
		return 0;
	case JOURNAL_DATA:
		file->late_ns = 0;
		/* (each half names the files of its entries; the names of a half that is gone count no more)
		 */
		return f->e.offset > (uint64_t)INT64_MAX - f->e.length ? -EBADMSG : 0;
	case JOURNAL_VOID:
		if (file->number && (f->e.offset > file->void_seq ||
		                     (f->e.offset == file->void_seq && f->e.where > file->void_at))) {
			file->void_seq = f->e.offset;
			file->void_at = f->e.where;
		}
		return 0;
	case JOURNAL_LATE:
		file->late_ns = f->e.offset < (uint64_t)INT64_MAX ? (int64_t)f->e.offset : 0;
		return 0;
	default: return -EBADMSG;
	}
}

struct entry_file *files_of_entry(const struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = file_at(s, f->e.file);

	if (f->e.type != JOURNAL_DATA || !file || !file->number || f->seq < file->void_seq ||
	    (f->seq == file->void_seq && f->at < file->void_at))
		return NULL;
	return file;
}

static int visit_measure(struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = files_of_entry(s, f);
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	if (file && file->bytes == 0)
		file->first_ns = f->e.where ? (int64_t)f->e.where : b->written_ns;
	if (file)
		file->bytes += f->e.length;
	return 0;
}

static int take_files(struct journal_scan *s)
{
	struct entry_file *files;

	if (s->names > NAMES_MOST)
		return -EBADMSG;
	s->place_bits = 4;
	while (1ull << s->place_bits < 2 * s->names)
		s->place_bits++;
	s->file_places = 1ull << s->place_bits;
	files = sys.mmap(NULL, s->file_places * sizeof *files, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(files))
		return (int)(intptr_t)files;
	s->files = files;
	return 0;
}

int files_load_name(const struct journal_scan *s, const struct entry_file *file, struct arena_entry *out)
{
	uint32_t path_bytes = file->name_bytes - (uint32_t)sizeof(struct journal_name);
	struct journal_name name;
	int r = sys_read_all(s->fd, &name, sizeof name, file->name_at);

	memset(out, 0, sizeof *out);
	if (r == 0)
		r = sys_read_all(s->fd, out->path, path_bytes, file->name_at + sizeof name);
	if (r < 0)
		return r;
	if (name.path_bytes != path_bytes || out->path[path_bytes - 1] != '\0' || out->path[0] != '/')
		return -EBADMSG;
	/* (the journal lies on the same file system as its files) */
	out->dev = s->place.dev_then;
	out->ino = name.ino;
	out->btime_sec = name.btime_sec;
	out->btime_nsec = name.btime_nsec;
	out->generation = name.generation;
	out->handle_hash = name.handle_hash;
	out->below = name.below;
	out->up = name.up;
	return 0;
}

void files_close(struct journal_scan *s, struct entry_file *file)
{
	if (file->fd_plus_1 == 0)
		return;
	sys.close(file->fd_plus_1 - 1);
	file->fd_plus_1 = 0;
	s->open_files--;
}

void files_close_all(struct journal_scan *s)
{
	for (uint64_t i = 0; i < s->file_places; i++)
		files_close(s, &s->files[i]);
}

int files_open(struct journal_scan *s, struct entry_file *file, bool keep)
{
	BUFFER(struct arena_entry, name);
	BUFFER(struct recover_target, t);
	int r;

	if (file->fd_plus_1)
		return file->fd_plus_1 - 1;
	if (s->open_files >= OPEN_MAX_FILES)
		files_close_all(s);
	r = files_load_name(s, file, name);
	if (r == 0)
		r = recover_target_open(t, name, &s->place, keep);
	if (r < 0)
		return r;
	file->orphan |= t->orphan;
	file->fd_plus_1 = t->fd + 1;
	file->appends = sys.fcntl(t->fd, F_GETFL, 0) & O_APPEND;
	s->open_files++;
	return t->fd;
}

int files_collect(struct journal_scan *s)
{
	int r = scan_walk(s, visit_count);

	if (r == 0)
		r = take_files(s);
	if (r == 0)
		r = scan_walk(s, visit_collect);
	if (r == 0)
		r = scan_walk(s, visit_measure);
	return r;
}

void files_forget(struct journal_scan *s)
{
	if (s->files)
		sys.munmap(s->files, s->file_places * sizeof *s->files);
	s->files = NULL;
}
