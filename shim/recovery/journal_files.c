// SPDX-License-Identifier: Apache-2.0
/* journal_files: see recovery/journal_files.h. */
#include "recovery/journal_files.h"

#include "base/buffer.h"
#include "base/sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { OPEN_MAX_FILES = 32 };

static struct entry_file *file_at(const struct journal_scan *s, uint64_t number)
{
	uint64_t i = number * 0x9e3779b97f4a7c15ull;

	for (i &= s->file_places - 1; s->files[i].number && s->files[i].number != number;)
		i = (i + 1) & (s->file_places - 1);
	return &s->files[i];
}

static int visit_count(struct journal_scan *s, const struct journal_found *f)
{
	s->names += f->e.type == JOURNAL_NAME;
	return 0;
}

static int visit_collect(struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = file_at(s, f->e.file);
	struct journal_name name;

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
	default: return -EBADMSG;
	}
}

struct entry_file *files_of_entry(const struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = file_at(s, f->e.file);

	if (f->e.type != JOURNAL_DATA || !file->number || f->seq < file->void_seq ||
	    (f->seq == file->void_seq && f->at < file->void_at))
		return NULL;
	return file;
}

static int visit_measure(struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = files_of_entry(s, f);
	const struct journal_batch *b = (const struct journal_batch *)(const void *)s->batch;

	if (file && file->bytes == 0)
		file->first_ns = b->written_ns;
	if (file)
		file->bytes += f->e.length;
	return 0;
}

static int take_files(struct journal_scan *s)
{
	struct entry_file *files;

	s->file_places = 16;
	while (s->file_places < 2 * s->names)
		s->file_places *= 2;
	files = sys.mmap(NULL, s->file_places * sizeof *files, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(files))
		return (int)(intptr_t)files;
	s->files = files;
	return 0;
}

int files_load_name(const struct journal_scan *s, const struct entry_file *file, struct arena_slot *out)
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
	BUFFER(struct arena_slot, name);
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
