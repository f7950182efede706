// SPDX-License-Identifier: Apache-2.0
/* left_bytes: see descriptors/left_bytes.h. */
#include "descriptors/left_bytes.h"

#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/sys.h"
#include "config/rule.h"
#include "recovery/recover.h"
#include "staging/arenas.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static bool as_root; /* at any left_bytes_set_process so far */

void left_bytes_set_process(void)
{
	if (!as_root)
		as_root = sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0) == 0;
}

enum { LAST_DIR_MAX = 256 };
/* Directory of this thread's last open whose files stage in the directory of the rule's prefix. */
static __thread char last_dir[LAST_DIR_MAX];

/* True if files in the directory path[0..n) stage in the directory of `rule`: same file system, and writable.
 * Never true for root.  Root may recover bytes of other users, who may have staged elsewhere. */
static bool stages_above(const struct rule *rule, const char *path, size_t n)
{
	BUFFER(char, dir);
	BUFFER(char, place);
	struct statx st;

	if (as_root || path[0] != '/' || n >= LAST_DIR_MAX)
		return false;
	if (memcmp(last_dir, path, n) == 0 && last_dir[n] == '\0')
		return true;
	memcpy(dir, path, n);
	dir[n] = '\0';
	if (sys.statx(AT_FDCWD, dir, 0, STATX_INO, &st) < 0 ||
	    arenas_staging_dir(rule, path, sys_dev_of(&st), place) < 0)
		return false;
	log_format(dir, PATH_MAX, "%s/" ARENA_DIR, rule->prefix);
	if (strcmp(dir, place) != 0)
		return false;
	memcpy(last_dir, path, n);
	last_dir[n] = '\0';
	return true;
}

/* More checks than these cost more than a lookup of path and rule. */
enum { PLACES_MAX = 3 };

/* True if the previous rule has the same staging directory. */
static bool place_repeats(uint32_t i)
{
	const struct rule *rules = live_config->rules;

	return i > 0 && !rules[i - 1].set.staging[0] && strcmp(rules[i - 1].prefix, rules[i].prefix) == 0;
}

static bool below_prefix(const struct rule *rule, const char *path)
{
	size_t n = strlen(rule->prefix);

	return strncmp(path, rule->prefix, n) == 0 && (n == 1 || path[n] == '/');
}

/* True if the path as written lies below no rule's prefix.  Through a symlink a rule may match the file all
 * the same. */
static bool looks_unmatched(const char *path)
{
	if (path[0] != '/')
		return false;
	for (uint32_t i = 0; i < live_config->rule_count; i++)
		if (below_prefix(&live_config->rules[i], path))
			return false;
	return true;
}

/*
 * True if dead processes may have left bytes in the staging directory `dir`.  recover_needed does not always
 * tell arenas of the living from those of the dead.  So once in a while recovery examines the directory, and
 * recover_needed returns 0 until it changes.
 */
static bool place_needed(const char *dir, const struct rule *rule)
{
	static _Atomic time_t looked;
	struct timespec now;

	if (!recover_needed(AT_FDCWD, dir))
		return false;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
	if (now.tv_sec - atomic_load_explicit(&looked, memory_order_relaxed) <= 1)
		return true;
	atomic_store_explicit(&looked, now.tv_sec, memory_order_relaxed);
	recover_dead(dir, -1, rule->set.mem_bytes);
	return recover_needed(AT_FDCWD, dir);
}

static bool is_link(int dirfd, const char *path)
{
	struct statx st;

	return sys.statx(dirfd, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0 && S_ISLNK(st.stx_mode);
}

bool left_bytes_of_rules(void)
{
	BUFFER(char, dir);
	int looks = 0;

	for (uint32_t i = 0; i < live_config->rule_count; i++) {
		const struct rule *rule = &live_config->rules[i];

		if (rule->set.staging[0])
			log_format(dir, PATH_MAX, "%s", rule->set.staging);
		else if (strlen(rule->prefix) <= 1 || place_repeats(i))
			continue;
		else
			log_format(dir, PATH_MAX, "%s/" ARENA_DIR, rule->prefix);
		if (++looks > PLACES_MAX || place_needed(dir, rule))
			return true;
	}
	return false;
}

bool left_bytes_beside(int dirfd, const char *path)
{
	const char *slash = strrchr(path, '/');
	BUFFER(char, dir);
	size_t n = slash ? (size_t)(slash - path) + 1 : 0;
	bool covered = false;

	for (uint32_t i = 0; i < live_config->rule_count; i++) {
		const struct rule *rule = &live_config->rules[i];
		size_t prefix = strlen(rule->prefix);

		if (rule->set.staging[0])
			continue;
		if (prefix <= 1) {
			/* below, nothing follows a symlink in the last component */
			if (is_link(dirfd, path))
				return true;
			continue;
		}
		covered |= (n == prefix + 1 && memcmp(path, rule->prefix, prefix) == 0) ||
		           (live_config->rule_count == 1 && below_prefix(rule, path) &&
		            stages_above(rule, path, n));
	}
	if (covered)
		return false;
	if (n + sizeof ARENA_DIR >= PATH_MAX)
		return true;
	memcpy(dir, path, n);
	memcpy(dir + n, ARENA_DIR, sizeof ARENA_DIR);
	return recover_needed(dirfd, dir);
}

bool left_bytes_possible(int dirfd, const char *path)
{
	return looks_unmatched(path) || left_bytes_of_rules() || left_bytes_beside(dirfd, path);
}

/*
 * The path as written, made absolute; NULL: not possible.  The working directory is asked for once.  After a
 * chdir a relative path may match the wrong rule or none.  That costs a needless recovery, or a later one.
 */
static const char *written_path(int dirfd, const char *path, char *out)
{
	static char start[LAST_DIR_MAX];
	static _Atomic uint32_t found; /* 0: not asked; 1: a thread asks; 2: known; 3: unknown */
	uint32_t expected = 0;

	if (path[0] == '/')
		return path;
	if (dirfd != AT_FDCWD || path[0] == '\0')
		return NULL;
	if (atomic_load(&found) == 0 && atomic_compare_exchange_strong(&found, &expected, 1)) {
		long n = sys_raw(SYS_getcwd, (long)start, sizeof start, 0, 0, 0, 0);

		atomic_store(&found, n > 1 && start[0] == '/' ? 2 : 3);
	}
	if (atomic_load(&found) != 2)
		return NULL;
	if (path[0] == '.' && path[1] == '/')
		path += 2;
	log_format(out, PATH_MAX, "%s/%s", start[1] ? start : "", path);
	return out;
}

/* Recovers the dead processes in the staging directory `dir`.  Where a recovery fails, recover_needed stays
 * true: a repeated answer counts only once in 50 ms.  Staged bytes of the living, too, become visible with a
 * delay. */
static bool place_recovered(int dirfd, const char *dir, const struct rule *rule)
{
	enum { AGAIN_NS = 50000000 };
	static _Atomic uint64_t looked;
	static _Atomic uint64_t looked_at;
	BUFFER(char, place);
	uint64_t now, key;
	unsigned files;
	int fd;

	key = recover_needed(dirfd, dir);
	if (!key)
		return false;
	now = sys_now_ns();
	if (atomic_load(&looked_at) == key && now - atomic_load(&looked) < AGAIN_NS)
		return false;
	fd = sys.openat(dirfd, dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	files = fd_link_path(fd, place) == 0 ? recover_dead(place, -1, rule->set.mem_bytes) : 0;
	sys.close(fd);
	atomic_store(&looked_at, key);
	atomic_store(&looked, sys_now_ns());
	return files > 0;
}

bool left_bytes_recover_named(int dirfd, const char *path)
{
	BUFFER(char, text);
	BUFFER(char, dir);
	const struct rule *rule;
	const char *written, *slash;
	bool any = false;
	size_t n;

	if (!live_config || !path || fork_guard_elsewhere())
		return false;
	written = written_path(dirfd, path, text);
	rule = written ? rule_match(live_config, written) : NULL;
	if (!rule)
		return false;
	if (rule->set.staging[0])
		return place_recovered(AT_FDCWD, rule->set.staging, rule);
	slash = strrchr(path, '/');
	n = slash ? (size_t)(slash - path) + 1 : 0;
	if (rule->prefix[0] && strcmp(rule->prefix, "/") != 0) {
		log_format(dir, PATH_MAX, "%s/" ARENA_DIR, rule->prefix);
		any = place_recovered(AT_FDCWD, dir, rule);
		if ((n == strlen(rule->prefix) + 1 && strncmp(path, rule->prefix, n - 1) == 0) ||
		    stages_above(rule, path, n))
			return any;
	}
	if (n + sizeof ARENA_DIR > PATH_MAX)
		return any;
	memcpy(dir, path, n);
	memcpy(dir + n, ARENA_DIR, sizeof ARENA_DIR);
	return place_recovered(dirfd, dir, rule) || any;
}

/* The staging directory beside the file.  A user who may not write to the rule's directory stages there. */
static bool place_beside(const char *path, const char *other, char *dir)
{
	size_t n = (size_t)(strrchr(path, '/') - path) + 1;

	if (n + sizeof ARENA_DIR > PATH_MAX)
		return false;
	memcpy(dir, path, n);
	memcpy(dir + n, ARENA_DIR, sizeof ARENA_DIR);
	return strcmp(dir, other) != 0;
}

unsigned left_bytes_recover_opened(int fd, const struct rule *rule, const char *path, uint64_t dev)
{
	BUFFER(char, dir);
	BUFFER(char, beside);
	unsigned files;

	if (arenas_staging_dir(rule, path, dev, dir) < 0)
		return 0;
	files = recover_dead(dir, fd, rule->set.mem_bytes);
	if (as_root && !rule->set.staging[0] && place_beside(path, dir, beside))
		files += recover_dead(beside, fd, rule->set.mem_bytes);
	return files;
}
