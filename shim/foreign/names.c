// SPDX-License-Identifier: Apache-2.0
/* names: see foreign/names.h. */
#include "foreign/names.h"

#include "base/buffer.h"
#include "base/log.h"
#include "format/arena_format.h"
#include "format/journal_format.h"

#include <string.h>

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), e = strlen(end);

	return n >= e && strcmp(s + n - e, end) == 0;
}

static bool has_suffix(const char *name, const char *suffix)
{
	return strlen(name) > strlen(suffix) && ends_with(name, suffix);
}

bool names_is_arena(const char *name) { return has_suffix(name, ARENA_SUFFIX); }
bool names_is_journal(const char *name) { return has_suffix(name, JOURNAL_SUFFIX); }

bool names_is_staging_dir(const char *path)
{
	return ends_with(path, "/" ARENA_DIR) || ends_with(path, "/" ARENA_DIR "/") ||
	       strcmp(path, ARENA_DIR) == 0;
}

static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool names_is_ours(const char *name, const char *suffix)
{
	const char *p = name;

	if (*p < '1' || *p > '9')
		return false;
	while (*p >= '0' && *p <= '9')
		p++;
	if (*p != '-' || !(p = strrchr(p + 1, '-')))
		return false;
	for (p++; is_hex(*p); p++)
		;
	return strcmp(p, suffix) == 0;
}

uint64_t names_time(const char *name)
{
	const char *p = names_is_ours(name, ARENA_SUFFIX) || names_is_ours(name, JOURNAL_SUFFIX)
	                        ? strrchr(name, '-') + 1
	                        : "";
	uint64_t value = 0;

	for (; is_hex(*p); p++)
		value = value << 4 | (uint64_t)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
	return value;
}

static bool is_before(const struct name_entry *a, const struct name_entry *b)
{
	return a->made != b->made ? a->made < b->made : strcmp(a->name, b->name) < 0;
}

void names_put(struct name_list *l, const char *name)
{
	BUFFER(struct name_entry, e);
	uint32_t at = l->count;

	e->made = names_time(name);
	log_format(e->name, sizeof e->name, "%s", name);
	if (l->last.name[0] && !is_before(&l->last, e))
		return;
	l->over |= l->count == l->room;
	while (at > 0 && is_before(e, &l->entries[at - 1]))
		at--;
	if (at == l->room)
		return;
	if (l->count < l->room)
		l->count++;
	memmove(&l->entries[at + 1], &l->entries[at], (l->count - 1 - at) * sizeof *e);
	l->entries[at] = *e;
}
