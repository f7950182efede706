// SPDX-License-Identifier: Apache-2.0
/* snapshot: see command/snapshot.h. */
#include "command/snapshot.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool make_room(struct snapshot *s)
{
	size_t room = s->room > 0 ? 2 * s->room : 16;
	struct snapshot_row *rows;

	if (s->count < s->room)
		return true;
	rows = reallocarray(s->rows, room, sizeof *rows);
	if (rows == NULL)
		return false;
	s->rows = rows;
	s->room = room;
	return true;
}

static void free_row(struct snapshot_row *row)
{
	free((char *)row->arena.path);
	free((char *)row->arena.program);
	free((char *)row->arena.rule);
}

static void add_arena(void *ctx, const struct status_arena *a)
{
	struct snapshot *s = ctx;
	struct snapshot_row row = {.arena = *a, .seen_ns = sys_now_ns()};

	if (s->failed)
		return;
	row.arena.path = strdup(a->path);
	row.arena.program = strdup(a->program);
	row.arena.rule = strdup(a->rule);
	s->failed = !row.arena.path || !row.arena.program || !row.arena.rule || !make_room(s);
	if (s->failed)
		free_row(&row);
	else
		s->rows[s->count++] = row;
}

static void add_file(void *ctx, const struct status_file *f)
{
	struct snapshot *s = ctx;

	if (s->failed)
		return;
	s->rows[s->count - 1].staged_bytes += f->staged_bytes;
	s->rows[s->count - 1].files++;
}

int snapshot_take(struct snapshot *out, status_newer *newer)
{
	const struct status_visitor visitor = {add_arena, add_file, out, newer};

	*out = (struct snapshot){0};
	int rc = status_visit(&visitor);
	if (rc < 0)
		return rc;
	return out->failed ? -ENOMEM : 0;
}

void snapshot_free(struct snapshot *s)
{
	for (size_t i = 0; i < s->count; i++)
		free_row(&s->rows[i]);
	free(s->rows);
	*s = (struct snapshot){0};
}

const struct snapshot_row *snapshot_find(const struct snapshot *s, const struct status_arena *a)
{
	for (size_t i = 0; i < s->count; i++) {
		const struct status_arena *b = &s->rows[i].arena;

		if (b->pid == a->pid && b->pid_start == a->pid_start && strcmp(b->path, a->path) == 0)
			return &s->rows[i];
	}
	return NULL;
}
