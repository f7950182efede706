// SPDX-License-Identifier: Apache-2.0
/* wal_files: see recovery/wal_files.h. */
#include "recovery/wal_files.h"

#include "base/buffer.h"
#include "base/crc32c.h"
#include "base/sys.h"
#include "format/identity.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* A program may be at its soft limit for descriptors with fewer files than its log names. */
enum { OPEN_MAX_FILES = 32 };
/* Whoever makes a log chooses the keys, and must not make a recovery search for hours. */
enum { TRIES_MOST = 1024, SAME_MOST = 4096 };
/* (places in the table have 32 bits) */
enum { NAMES_MOST = 1 << 24 };

struct wal_place {
	uint64_t key, epoch; /* a number and its epoch; or that of an inode (key_of) and its device */
	uint32_t file;       /* 1 + its place; 0: free */
};

/* ---- memory ---- */

static void *take_memory(uint64_t bytes)
{
	return sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	                0);
}

/* (nothing is mapped for a log without names) */
static uint64_t files_bytes(const struct wal_files *w) { return (w->names + 1) * sizeof *w->files; }
static uint64_t table_bytes(const struct wal_files *w) { return sizeof(struct wal_place) << w->bits; }
static uint64_t paths_bytes(const struct wal_files *w) { return w->path_bytes + 1; }

int wal_files_begin(struct wal_files *w)
{
	if (w->names > NAMES_MOST)
		return -EBADMSG;
	w->bits = 4;
	while (1ull << w->bits < 2 * w->names)
		w->bits++;
	w->files = take_memory(files_bytes(w));
	w->numbers = take_memory(table_bytes(w));
	w->inodes = take_memory(table_bytes(w));
	w->paths = take_memory(paths_bytes(w));
	return sys_is_error(w->files) || sys_is_error(w->numbers) || sys_is_error(w->inodes) ||
	                       sys_is_error(w->paths)
	               ? -ENOMEM
	               : 0;
}

static void close_all(struct wal_files *w)
{
	for (uint64_t i = 0; i < w->count; i++) {
		if (w->files[i].fd_plus_1)
			sys.close(w->files[i].fd_plus_1 - 1);
		w->files[i].fd_plus_1 = 0;
	}
	w->open = 0;
}

static void give_memory(void *memory, uint64_t bytes)
{
	if (memory && !sys_is_error(memory))
		sys.munmap(memory, bytes);
}

void wal_files_end(struct wal_files *w)
{
	close_all(w);
	give_memory(w->files, files_bytes(w));
	give_memory(w->numbers, table_bytes(w));
	give_memory(w->inodes, table_bytes(w));
	give_memory(w->paths, paths_bytes(w));
}

/* ---- tables ---- */

/* The place of a key, or a free one.  NULL: the keys are none of ours.  `epoch` is a part of the key if
 * `both`. */
static struct wal_place *place_of(const struct wal_files *w, struct wal_place *table, uint64_t key,
                                  uint64_t epoch, bool both)
{
	uint64_t hash = (key ^ (both ? epoch << 40 : 0)) * 0x9e3779b97f4a7c15ull >> (64 - w->bits);

	for (uint64_t i = 0; i < TRIES_MOST; i++) {
		struct wal_place *p = &table[(hash + i) & ((1ull << w->bits) - 1)];

		if (!p->file || (p->key == key && (!both || p->epoch == epoch)))
			return p;
	}
	return NULL;
}

/* (an inode number is used again; several files may share a key) */
static uint64_t key_of(const struct wal_name *name)
{
	return name->ino ^ ((uint64_t)name->btime_sec << 32) ^ ((uint64_t)name->btime_nsec << 20);
}

static struct wal_place *inode_of(const struct wal_files *w, const struct wal_name *name)
{
	return place_of(w, w->inodes, key_of(name), name->dev, true);
}

static bool is_named(const struct wal_files *w, const struct wal_file *f, const struct wal_item *item,
                     uint32_t sum)
{
	const struct wal_name *a = &f->name, *b = item->name;

	return a->ino == b->ino && a->dev == b->dev && a->generation == b->generation &&
	       a->handle_hash == b->handle_hash && a->btime_sec == b->btime_sec &&
	       a->btime_nsec == b->btime_nsec && f->path_sum == sum && a->path_bytes == b->path_bytes &&
	       memcmp(wal_files_path(w, f), item->path, b->path_bytes) == 0;
}

/* The same file under the same name, as an earlier record has named it.  *count: of the names that were
 * looked at. */
static struct wal_file *known(const struct wal_files *w, const struct wal_item *item, uint32_t sum,
                              uint32_t *count)
{
	const struct wal_place *p = inode_of(w, item->name);
	uint32_t i;

	for (i = p ? p->file : 0; i > 0; i = w->files[i - 1].next) {
		++*count;
		if (is_named(w, &w->files[i - 1], item, sum))
			return &w->files[i - 1];
	}
	return NULL;
}

static uint32_t sum_of(const struct wal_item *item) { return crc32c(0, item->path, item->name->path_bytes); }

static int give_number(struct wal_files *w, const struct wal_file *f, const struct wal_item *item)
{
	struct wal_place *p = place_of(w, w->numbers, item->file, 0, false);

	if (!p)
		return -EBADMSG;
	*p = (struct wal_place){
		.key = item->file, .epoch = item->epoch, .file = (uint32_t)(f - w->files) + 1};
	return 0;
}

struct wal_file *wal_files_find(struct wal_files *w, const struct wal_item *item)
{
	const struct wal_place *p;
	struct wal_file *f;
	uint32_t count = 0;

	if (item->type == WAL_NAME) {
		f = known(w, item, sum_of(item), &count);
		return f && give_number(w, f, item) == 0 ? f : NULL;
	}
	p = place_of(w, w->numbers, item->file, 0, false);
	return p && p->file && p->epoch == item->epoch ? &w->files[p->file - 1] : NULL;
}

static struct wal_file *add(struct wal_files *w, const struct wal_item *item, uint32_t sum)
{
	struct wal_place *p = inode_of(w, item->name);
	struct wal_file *f = &w->files[w->count];

	/* (the log is read twice, and may have changed since its names were counted) */
	if (!p || w->count >= w->names || item->name->path_bytes > w->path_bytes - w->paths_end)
		return NULL;
	*f = (struct wal_file){
		.name = *item->name, .path_at = w->paths_end, .path_sum = sum, .next = p->file};
	memcpy(w->paths + w->paths_end, item->path, item->name->path_bytes);
	w->paths_end += item->name->path_bytes;
	*p = (struct wal_place){
		.key = key_of(item->name), .epoch = item->name->dev, .file = (uint32_t)++w->count};
	return f;
}

int wal_files_take(struct wal_files *w, const struct wal_item *item)
{
	uint32_t sum = sum_of(item), count = 0;
	struct wal_file *f;

	if (item->name->path_bytes > ARENA_PATH_MAX)
		return -EBADMSG;
	f = known(w, item, sum, &count);
	if (!f && count < SAME_MOST)
		f = add(w, item, sum);
	if (!f)
		return -EBADMSG;
	f->goes = item->name->flags & WAL_GOES;
	return give_number(w, f, item);
}

static void identity_of_name(const struct wal_name *name, struct identity *out)
{
	*out = (struct identity){.ino = name->ino,
	                         .btime_sec = name->btime_sec,
	                         .btime_nsec = name->btime_nsec,
	                         .generation = name->generation,
	                         .handle_hash = name->handle_hash};
}

struct wal_file *wal_files_same(const struct wal_files *w, const struct wal_file *f,
                                const struct wal_file *last)
{
	const struct wal_place *p = last ? NULL : inode_of(w, &f->name);
	struct identity a, b;

	identity_of_name(&f->name, &a);
	for (uint32_t i = last ? last->next : p ? p->file : 0; i > 0; i = w->files[i - 1].next) {
		identity_of_name(&w->files[i - 1].name, &b);
		if (w->files[i - 1].name.dev == f->name.dev && identity_same(&a, &b))
			return &w->files[i - 1];
	}
	return NULL;
}

/* ---- files ---- */

const char *wal_files_path(const struct wal_files *w, const struct wal_file *f)
{
	return w->paths + f->path_at;
}

void wal_files_entry(const struct wal_files *w, const struct wal_file *f, struct arena_entry *out)
{
	memset(out, 0, sizeof *out);
	out->dev = f->name.dev;
	out->ino = f->name.ino;
	out->btime_sec = f->name.btime_sec;
	out->btime_nsec = f->name.btime_nsec;
	out->generation = f->name.generation;
	out->handle_hash = f->name.handle_hash;
	out->below = f->name.below;
	out->up = f->name.up;
	out->flags = f->goes ? ENTRY_REMOVED : 0;
	memcpy(out->path, wal_files_path(w, f), f->name.path_bytes);
}

int wal_files_open(struct wal_files *w, struct wal_file *f, const struct recover_place *place)
{
	BUFFER(struct arena_entry, name);
	BUFFER(struct recover_target, t);
	int r;

	if (f->fd_plus_1)
		return f->fd_plus_1 - 1;
	if (w->open >= OPEN_MAX_FILES)
		close_all(w);
	wal_files_entry(w, f, name);
	r = recover_target_open(t, name, place, f->missing);
	if (r < 0)
		return r;
	f->orphan |= t->orphan;
	f->fd_plus_1 = t->fd + 1;
	w->open++;
	return t->fd;
}
