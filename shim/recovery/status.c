// SPDX-License-Identifier: Apache-2.0
/* status: see recovery/status.h. */
#include "recovery/status.h"

#include "base/log.h"
#include "base/sys.h"
#include "foreign/parse.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t blocks_used(const struct foreign_arena *a)
{
	uint32_t used = 0;

	for (uint32_t i = 0; i < a->header.block_count; i++)
		used += a->blocks[i].owner != 0;
	return used;
}

/* Bytes staged for a file entry.  (From the arena alone: the file may be written at this moment.) */
static uint64_t staged_bytes(struct foreign_arena *a, uint32_t entry)
{
	struct page_scan_file pages;
	uint64_t bytes = 0;
	int n = foreign_blocks(a, entry);

	for (int i = 0; i < n; i++) {
		uint32_t index = a->order[i];

		if (foreign_read_block(a, index) < 0)
			continue;
		for (uint32_t e = 0; e < COMMIT_COUNT(a->blocks[index].commit); e++)
			bytes += foreign_extent(a, index, e).length;
	}
	if (foreign_pages(a, entry, &pages) > 0)
		bytes += page_scan_total(&a->pages, &pages);
	return bytes;
}

static void add_counters(const struct arena_entry *s, uint64_t counters[COUNT_ALL])
{
	for (int c = 0; c < COUNT_MAX; c++)
		counters[c] += s->counters[c];
	counters[COUNT_JOURNALED] += s->journaled;
}

static void visit_entries(struct foreign_arena *a, const struct status_visitor *v)
{
	for (uint32_t i = 0; i < a->header.entry_count; i++) {
		struct arena_entry *s = foreign_entry(a, i);
		struct status_file f = {.path = s->path};

		if (!s->used)
			continue;
		s->path[ARENA_PATH_MAX - 1] = '\0';
		f.staged_bytes = staged_bytes(a, i);
		f.flags = s->flags;
		add_counters(s, f.counters);
		v->file(v->ctx, &f);
	}
}

/* Begun milliseconds count, because 0 says that there is no change.  (A time namespace may have another
 * clock.)
 */
static uint64_t age_ms(uint64_t since_ns)
{
	uint64_t now = sys_now_ns();

	return since_ns != 0 && since_ns < now ? (now - since_ns) / 1000000 + 1 : 0;
}

static void visit_arena(struct foreign_arena *a, int pid, const char *path, const struct status_visitor *v)
{
	struct status_arena out = {
		.path = path,
		.pid = pid,
		.pid_start = a->header.pid_start,
		.uid = a->header.uid,
		.program = a->header.program,
		.rule = a->header.rule,
		.total_bytes = a->header.total_bytes,
		.block_bytes = a->header.block_bytes,
		.block_count = a->header.block_count,
		.blocks_used = blocks_used(a),
	};

	a->header.program[sizeof a->header.program - 1] = '\0';
	a->header.rule[sizeof a->header.rule - 1] = '\0';
	for (int c = 0; c < COUNT_MAX; c++)
		out.counters[c] = a->header.live.counters[c];
	out.counters[COUNT_JOURNALED] = a->header.live.journaled;
	for (uint32_t i = 0; i < a->header.entry_count; i++)
		if (foreign_entry(a, i)->used)
			add_counters(foreign_entry(a, i), out.counters);
	for (int t = 0; t < BYPASS_COUNT; t++)
		out.through[t] = a->header.live.through[t];
	out.log_bytes = a->header.live.order.log_bytes;
	out.largest_epoch = a->header.live.order.largest;
	out.epochs = a->header.live.order.epochs;
	out.oldest_ms = age_ms(a->header.live.order.oldest_ns);
	v->arena(v->ctx, &out);
	visit_entries(a, v);
}

int status_visit_fd(int fd, int maker, int pid, const char *path, const struct status_visitor *v)
{
	struct foreign_arena a;
	int shown = 0, r = foreign_load(&a, fd);

	if (r == FORMAT_NEWER && v->newer)
		v->newer(path, pid, a.header.version);
	if (r < 0)
		return 0;
	if (maker == 0 || a.header.pid == maker) {
		visit_arena(&a, pid, path, v);
		shown = 1;
	}
	foreign_unload(&a);
	return shown;
}

/* The pid by which a process knows itself: in a container it is another one than here. */
static int own_pid(const char *pid)
{
	static const char field[] = "NSpid:"; /* of one namespace after the other, its own last */
	int own = atoi(pid);
	char path[64];
	char *line = NULL, *last;
	size_t room = 0;
	FILE *status;

	log_format(path, sizeof path, "/proc/%s/status", pid);
	status = fopen(path, "re");
	if (!status)
		return own;
	while (getline(&line, &room, status) > 0)
		if (strncmp(line, field, sizeof field - 1) == 0 && (last = strrchr(line, '\t')) != NULL)
			own = atoi(last + 1);
	free(line);
	fclose(status);
	return own;
}

/* Through the mapping, which works from another mount namespace; by path where that is not allowed.
 * Without waiting: the file is a user's, who may hold a lease on it or show a FIFO there. */
static int open_arena(const char *pid, const char *range, const char *path)
{
	const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
	char link[128];
	struct statx st;
	int fd;

	log_format(link, sizeof link, "/proc/%s/map_files/%s", pid, range);
	fd = sys.openat(AT_FDCWD, link, flags, 0);
	if (fd < 0)
		fd = sys.openat(AT_FDCWD, path, flags | O_NOFOLLOW, 0);
	if (fd < 0 || (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &st) == 0 && S_ISREG(st.stx_mode)))
		return fd;
	sys.close(fd);
	return -EINVAL;
}

/* In `maps` a line feed of a path is \012, and nothing else is escaped: a path may have these four characters
 * itself. */
static void decode_path(char *path)
{
	if (access(path, F_OK) == 0)
		return;
	for (char *at = path; (at = strstr(at, "\\012")) != NULL;) {
		*at++ = '\n';
		memmove(at, at + 3, strlen(at + 3) + 1);
	}
}

static int visit_mapping(const char *pid, char *line, const struct status_visitor *v)
{
	char *path = strchr(line, '/');
	char *range_end = strchr(line, ' ');
	size_t n = path ? strcspn(path, "\n") : 0;
	int fd, shown;

	if (!path || !range_end || n < sizeof ARENA_SUFFIX || !strstr(line, " rw-s 00000000 "))
		return 0; /* (madvise may have cut the mapping in two: the first part counts) */
	path[n] = '\0';
	*range_end = '\0';
	if (strcmp(path + n - sizeof ARENA_SUFFIX + 1, ARENA_SUFFIX) != 0)
		return 0;
	decode_path(path);
	fd = open_arena(pid, line, path);
	if (fd < 0)
		return 0;
	/* (a forked child may still map its parent's arena: it is shown under its maker) */
	shown = status_visit_fd(fd, own_pid(pid), atoi(pid), path, v);
	sys.close(fd);
	return shown;
}

static int visit_process(const char *pid, const struct status_visitor *v)
{
	char path[64];
	char *line = NULL;
	size_t room = 0;
	int shown = 0;
	FILE *maps;

	log_format(path, sizeof path, "/proc/%s/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		return 0; /* (gone, or we may not examine it) */
	while (getline(&line, &room, maps) > 0)
		if (strstr(line, ARENA_SUFFIX))
			shown += visit_mapping(pid, line, v);
	free(line);
	fclose(maps);
	return shown;
}

int status_visit(const struct status_visitor *v)
{
	DIR *proc = opendir("/proc");
	struct dirent *d;
	int shown = 0;

	if (!proc)
		return -errno;
	while ((d = readdir(proc)) != NULL)
		if (d->d_name[0] >= '0' && d->d_name[0] <= '9')
			shown += visit_process(d->d_name, v);
	closedir(proc);
	return shown;
}
