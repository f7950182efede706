// SPDX-License-Identifier: Apache-2.0
/* directory: see descriptors/directory.h. */
#include "descriptors/directory.h"

#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/sys.h"
#include "config/rule.h"
#include "flush/ordered.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

_Atomic uint64_t directory_noted[DIRECTORY_FDS / 64];

/* True if `path` is the directory `dir` or lies below it. */
static bool is_within(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return n == 1 || (strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

/* A sync of a directory need not ask the device: nobody was promised that it does, or the next epoch makes
 * the names durable. */
static bool is_promise(const struct settings *set) { return set->sync == SYNC_OFF || config_orders(set); }

/* True if the path as written may be a directory below such a rule. */
static bool looks_unsynced(const struct fd_open *op)
{
	if (!live_config || !op->path || (op->flags & O_ACCMODE) != O_RDONLY ||
	    (op->flags & (O_PATH | O_CREAT)))
		return false;
	for (uint32_t i = 0; i < live_config->rule_count; i++) {
		const struct rule *rule = &live_config->rules[i];

		if (is_promise(&rule->set) &&
		    (op->path[0] == '/' ? is_within(op->path, rule->prefix) : op->flags & O_DIRECTORY))
			return true;
	}
	return false;
}

void directory_opened(const struct fd_open *op, int fd)
{
	uint64_t bit = 1ull << fd % 64;
	_Atomic uint64_t *word;

	if ((unsigned)fd >= DIRECTORY_FDS)
		return;
	word = &directory_noted[fd / 64];
	if (looks_unsynced(op))
		atomic_fetch_or(word, bit);
	else if (atomic_load_explicit(word, memory_order_relaxed) & bit)
		atomic_fetch_and(word, ~bit);
}

/* The directory, with `links` hard links, has no directory in it but for that of arenas. */
static bool is_flat(const char *dir, uint32_t links)
{
	BUFFER(char, arenas);
	struct statx st;

	return links == 2 || (links == 3 && snprintf(arenas, PATH_MAX, "%s/" ARENA_DIR, dir) < PATH_MAX &&
	                      sys.statx(AT_FDCWD, arenas, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0 &&
	                      (st.stx_mode & S_IFMT) == S_IFDIR);
}

/*
 * The rules of every file in the directory, as a set of bits; 0 also if one of them is of another kind.  A
 * pattern that excludes files, or of a rule with another policy, may match one of them or something below:
 * then its name must become durable.  *level: the rules say nothing of files in directories below.
 */
static uint64_t rules_of(const char *dir, bool *level)
{
	bool covered = false, covered_below = false;
	BUFFER(char, prefix);
	uint64_t rules = 0;

	if (strstr(dir, "/" ARENA_DIR))
		return 0;
	for (uint32_t r = 0; r < live_config->rule_count; r++) {
		const struct rule *rule = &live_config->rules[r];

		for (uint32_t i = 0; i < rule->pattern_count; i++) {
			const struct pattern *p = &rule->patterns[i];
			const char *rest = p->glob + rule_literal_split(p->glob, prefix);

			if (!is_within(dir, prefix) && !is_within(prefix, dir))
				continue;
			if (p->exclude || !is_promise(&rule->set))
				return 0;
			rules |= 1ull << r;
			covered |= strcmp(dir, prefix) == 0 && strcmp(rest, "/*") == 0;
			covered_below |= is_within(dir, prefix) && strcmp(rest, "/**") == 0;
		}
	}
	*level = !covered_below;
	return covered || covered_below ? rules : 0;
}

/* A sync of the directory need not ask the device. */
static bool is_unsynced(const char *dir, const struct statx *st)
{
	bool level = false;
	uint64_t rules = rules_of(dir, &level);
	/* The name of a directory below must become durable.  (That of the arenas may go, and another one
	 * come: beside it this has to be asked each time.) */
	uint32_t links = !level ? 0 : st->stx_nlink == 2 ? 2 : UINT32_MAX;
	bool one = (rules & (rules - 1)) == 0, all = rules != 0 && (!level || is_flat(dir, st->stx_nlink));

	for (uint32_t r = 0; all && r < live_config->rule_count; r++) {
		const struct rule *rule = &live_config->rules[r];

		if ((rules >> r & 1) && config_orders(&rule->set))
			all = ordered_directory_follows(rule, sys_dev_of(st), st->stx_ino, one ? dir : NULL,
			                                links);
	}
	return all;
}

bool directory_is_unsynced_slow(int fd)
{
	BUFFER(char, path);
	struct statx st;
	long flags;

	if (!live_config || fork_guard_elsewhere())
		return false;
	/* the kernel reports a descriptor that is closed, or cannot be synced */
	flags = sys.fcntl(fd, F_GETFL, 0);
	if (flags < 0 || (flags & O_PATH) ||
	    sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_NLINK, &st) < 0 ||
	    (st.stx_mode & S_IFMT) != S_IFDIR)
		return false;
	return ordered_directory_is_known(sys_dev_of(&st), st.stx_ino, st.stx_nlink) ||
	       (fd_link_path(fd, path) == 0 && is_unsynced(path, &st));
}
