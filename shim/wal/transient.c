// SPDX-License-Identifier: Apache-2.0
/* transient: see wal/transient.h. */
#include "wal/transient.h"

#include "base/sys.h"

#include <fcntl.h>
#include <string.h>

void transient_reset(struct transient *t)
{
	t->count = t->next = 0;
	t->listed = false;
	t->stated = false;
}

void transient_forget(struct transient *t)
{
	for (uint32_t i = 0; i < WAL_NAMES_MAX; i++)
		t->names[i].busy = t->names[i].goes = 0;
	transient_reset(t);
}

int transient_find(const struct transient *t, const char *path)
{
	for (uint32_t i = 0; i < t->count; i++)
		if (strcmp(t->names[i].path, path) == 0)
			return (int)i;
	return -1;
}

/* One that no file has, in turn. */
static int replaceable(struct transient *t)
{
	for (uint32_t tries = 0; tries < t->count; tries++) {
		uint32_t i = t->next++ % t->count;

		if (!t->names[i].there && atomic_load(&t->names[i].busy) == 0)
			return (int)i;
	}
	return -1;
}

int transient_add(struct transient *t, const struct arena_entry *e, bool *replaced)
{
	int i = transient_find(t, e->path);

	*replaced = false;
	if (i >= 0)
		return i;
	*replaced = t->count == WAL_NAMES_MAX;
	i = *replaced ? replaceable(t) : (int)t->count++;
	if (i < 0)
		return -1;
	strcpy(t->names[i].path, e->path);
	t->names[i].below = e->below;
	t->names[i].up = e->up;
	t->names[i].there = t->names[i].unsynced = true;
	t->listed = false;
	return i;
}

bool transient_is_stated(const struct transient *t, int i)
{
	return t->listed && t->stated && (t->absent >> i & 1) &&
	       sys_now_ns() - t->stated_ns < WAL_LATE_NS / 2;
}

void transient_look(struct transient *t)
{
	struct statx st;

	for (uint32_t i = 0; i < t->count; i++) {
		struct transient_name *n = &t->names[i];
		bool was = n->there && t->stated;

		n->looked_at = atomic_load(&n->busy) == 0;
		if (!n->looked_at)
			continue;
		n->there = sys.statx(AT_FDCWD, n->path, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) != -ENOENT;
		n->unsynced = n->there && (n->unsynced || !was);
	}
}

void transient_synced(struct transient *t)
{
	for (uint32_t i = 0; i < t->count; i++)
		if (t->names[i].looked_at)
			t->names[i].unsynced = false;
}

int transient_list(struct transient *t, struct wal *w)
{
	struct wal_path paths[WAL_NAMES_MAX];
	int r;

	if (t->listed || t->count == 0)
		return 0;
	for (uint32_t i = 0; i < t->count; i++)
		paths[i] = (struct wal_path){
			.path = t->names[i].path, .below = t->names[i].below, .up = t->names[i].up};
	r = wal_list(w, paths, t->count);
	t->listed = r == 0;
	t->stated = t->stated && r < 0; /* (what it says is of the list before) */
	return r;
}

static uint32_t absent(const struct transient *t)
{
	uint32_t names = 0;

	for (uint32_t i = 0; i < t->count; i++)
		names |= (uint32_t)!t->names[i].there << i;
	return names;
}

bool transient_is_due(const struct transient *t)
{
	return t->count > 0 && (!t->listed || !t->stated || t->absent != absent(t) ||
	                        sys_now_ns() - t->stated_ns >= WAL_LATE_NS / 2);
}

void transient_put(struct transient *t, struct wal *w)
{
	t->stated = t->count > 0 && t->listed;
	t->absent = absent(t);
	t->stated_ns = sys_now_ns();
	if (t->stated)
		wal_put_absent(w, t->absent);
}
