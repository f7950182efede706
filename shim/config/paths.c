// SPDX-License-Identifier: Apache-2.0
/*
 * config_paths: pattern lists.  Files are matched by canonical path, so a symbolic link in the literal
 * directory of a pattern is resolved here: a pattern under it would otherwise never match.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "config/rule.h"

#include <fcntl.h>
#include <string.h>

#ifndef O_PATH
#define O_PATH 010000000
#endif

/* Canonical path of an open descriptor into out[PATH_MAX]; false when the kernel does not say. */
static bool path_of_fd(int fd, char *out)
{
	char link[40];

	log_format(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = sys.readlinkat(AT_FDCWD, link, out, PATH_MAX - 1);
	if (n <= 0 || out[0] != '/')
		return false;
	out[n] = '\0';
	return true;
}

/* Resolves `path` into out[PATH_MAX].  0, or -errno with out untouched or unspecified. */
static int resolve_existing(const char *path, int flags, char *out)
{
	int fd = sys.openat(AT_FDCWD, path, O_PATH | O_CLOEXEC | flags, 0);

	if (fd < 0)
		return fd;
	bool known = path_of_fd(fd, out);
	sys.close(fd);
	return known ? 0 : -ENOENT;
}

/* Resolves the part of directory `dir` that exists and keeps the rest; out[PATH_MAX].  0, or -ENOTDIR with
 * *bad_length = length of the leading part of dir that is something else than a directory.  *missing: not all of it
 * exists. */
static int resolve_directory(const char *dir, char *out, size_t *bad_length, bool *missing)
{
	char head[PATH_MAX];
	char real[PATH_MAX];
	size_t cut = strlen(dir);

	memcpy(head, dir, cut + 1);
	for (;;) {
		int rc = resolve_existing(head, O_DIRECTORY, real);
		if (rc == 0)
			break;
		*missing = *missing || rc == -ENOENT;
		if (rc == -ENOTDIR && resolve_existing(head, 0, real) == 0) {
			*bad_length = cut;
			return -ENOTDIR;
		}
		while (cut > 0 && head[--cut] != '/')
			;
		if (cut == 0) {
			memcpy(out, dir, strlen(dir) + 1);
			return 0;
		}
		head[cut] = '\0';
	}
	size_t used = strcmp(real, "/") == 0 ? 0 : strlen(real);
	const char *rest = strcmp(dir, "/") == 0 ? "" : dir + cut;
	if (used + strlen(rest) >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(out, real, used);
	memcpy(out + used, rest, strlen(rest) + 1);
	if (out[0] == '\0')
		memcpy(out, "/", 2);
	return 0;
}

/* Appends one byte to the pattern storage; false when it is full. */
static bool text_put(struct config *c, char byte)
{
	if (c->text_used >= sizeof(c->text))
		return false;
	c->text[c->text_used++] = byte;
	return true;
}

/* Stores the literal `path` with wildcards escaped, then `rest` as it is.  NULL when the storage is full. */
static const char *text_add(struct config *c, const char *path, const char *rest)
{
	size_t start = c->text_used;
	bool ok = true;

	for (; *path != '\0' && ok; path++) {
		if (strchr("*?[\\", *path) != NULL)
			ok = text_put(c, '\\');
		ok = ok && text_put(c, *path);
	}
	for (; *rest != '\0' && ok; rest++)
		ok = text_put(c, *rest);
	if (!ok || !text_put(c, '\0')) {
		c->text_used = start;
		return NULL;
	}
	return c->text + start;
}

struct place {
	const struct origin *at;
	const char *key;
};

static int fail_pattern(struct loader *l, const struct place *place, const char *shown, const char *why)
{
	return config_fail_value(l, place->at, place->key, shown, "cannot match: %s", why);
}

/* A pattern without wildcards names one file: not a directory, and what a link points to. */
static int add_literal(struct loader *l, const char *glob, const struct place *place, const char *shown,
                       const char **out)
{
	char path[PATH_MAX];
	char real[PATH_MAX];
	size_t used = 0;

	for (const char *g = glob; *g != '\0'; g++) {
		if (*g == '\\')
			g++;
		path[used++] = *g;
	}
	path[used] = '\0';
	if (resolve_existing(path, O_DIRECTORY, real) == 0)
		return config_fail_value(l, place->at, place->key, shown,
		                         "cannot match: it is a directory; add /** for everything below it");
	if (resolve_existing(path, 0, real) != 0)
		return -ENOENT;
	*out = text_add(l->c, real, "");
	return 0;
}

/* Stores the pattern with its literal directory resolved. */
static int add_canonical(struct loader *l, const char *glob, const struct place *place, const char *shown,
                         const char **out, bool *missing)
{
	char dir[PATH_MAX];
	char real[PATH_MAX];
	size_t bad = 0;

	if (rule_is_literal(glob)) {
		int rc = add_literal(l, glob, place, shown, out);
		if (rc != -ENOENT)
			return rc;
	}
	const char *rest = glob + rule_literal_split(glob, dir);
	int rc = resolve_directory(dir, real, &bad, missing);
	if (rc == -ENOTDIR) {
		dir[bad] = '\0';
		return config_fail_value(l, place->at, place->key, shown,
		                         "cannot match: %s is not a directory", dir);
	}
	if (rc != 0)
		return fail_pattern(l, place, shown,
		                    "it is longer than a path can be once links are resolved");
	*out = text_add(l->c, strcmp(real, "/") == 0 ? "" : real, rest);
	return 0;
}

/* A blank or comma in front of a slash, or at the end: in names they stand elsewhere. */
static bool looks_like_several(const char *text)
{
	static const char separators[] = " \t,";

	for (; *text != '\0'; text++) {
		if (*text == '\\' && text[1] != '\0') {
			text++;
		} else if (strchr(separators, *text) != NULL) {
			const char *next = text + strspn(text, separators);

			if (*next == '\0' || *next == '/' || strncmp(next, "!/", 2) == 0)
				return true;
		}
	}
	return false;
}

static int add_pattern(struct loader *l, struct rule *rule, const char *text, const struct place *place)
{
	struct pattern *p = &rule->patterns[rule->pattern_count];
	const char *glob = text[0] == '!' ? text + 1 : text;
	const char *why;
	const char *stored = NULL;

	if (!rule_pattern_valid(glob, &why))
		return fail_pattern(l, place, text, why);
	if (rule->pattern_count == CONFIG_PATTERNS_MAX)
		return config_fail_value(l, place->at, place->key, text,
		                         "too many patterns; a rule takes at most %d", CONFIG_PATTERNS_MAX);
	bool missing = false;
	int rc = add_canonical(l, glob, place, text, &stored, &missing);
	if (rc != 0)
		return rc;
	if (stored == NULL)
		return config_fail(l, -E2BIG, place->at, "patterns take more than %lu bytes in all",
		                   (unsigned long)sizeof(l->c->text));
	p->glob = stored;
	p->exclude = text[0] == '!';
	p->several = looks_like_several(text);
	p->missing = missing;
	rule->pattern_count++;
	return 0;
}

int config_add_patterns(struct loader *l, struct rule *rule, const char *list, const struct origin *at,
                        const char *key)
{
	const struct place place = {at, key};
	char text[PATH_MAX + 2];
	size_t used = 0;

	for (;; list++) {
		if (*list != '\0' && *list != ':') {
			size_t take = *list == '\\' && list[1] != '\0' ? 2 : 1;
			if (used + take >= sizeof(text)) {
				text[used] = '\0';
				return fail_pattern(l, &place, text,
				                    "it is longer than a path can be (4095 bytes)");
			}
			memcpy(text + used, list, take);
			used += take;
			list += take - 1;
			continue;
		}
		text[used] = '\0';
		int rc = add_pattern(l, rule, text, &place);
		if (rc != 0 || *list == '\0')
			return rc;
		used = 0;
	}
}

/* The first match decides, so a pattern behind one that covers it and says the opposite is a mistake. */
static int check_shadowed(struct loader *l, const struct rule *rule, const struct origin *at)
{
	for (uint32_t i = 1; i < rule->pattern_count; i++) {
		for (uint32_t j = 0; j < i; j++) {
			const struct pattern *early = &rule->patterns[j];
			const struct pattern *late = &rule->patterns[i];
			char shown[PATH_MAX + 2];

			if (early->exclude == late->exclude || !rule_covers(early->glob, late->glob))
				continue;
			log_format(shown, sizeof(shown), "%s%s", late->exclude ? "!" : "", late->glob);
			return config_fail_value(
				l, at, "paths", shown,
				"cannot match: the first match decides and %s%s comes before; "
				"put this one first",
				early->exclude ? "!" : "", early->glob);
		}
	}
	return 0;
}

int config_finish_patterns(struct loader *l, struct rule *rule, const struct origin *at)
{
	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		if (rule->patterns[i].exclude)
			continue;
		rule_literal_prefix(rule->patterns[i].glob, rule->prefix);
		return check_shadowed(l, rule, at);
	}
	return config_fail(l, -EINVAL, at, "rule \"%s\" cannot match: it has no pattern without '!'",
	                   rule->name);
}

/* ---- what may not have been meant ---- */

static void put_several(const struct config *c, const struct rule *rule, const struct pattern *p, char *out,
                        size_t size)
{
	size_t used = 0;

	if (rule->paths_line != 0)
		used = log_format(out, size, "%s:%u: paths", c->file, rule->paths_line);
	else
		used = log_format(out, size, "FASTWRITE_PATHS");
	log_format(out + used, size - used,
	           " = \"%s%s\" is one pattern: they are separated by ':', not by blanks or commas",
	           p->exclude ? "!" : "", p->glob);
}

bool config_doubt(const struct config *c, const struct rule *rule, enum config_doubt which, char *out,
                  size_t size)
{
	char dir[PATH_MAX];

	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		const struct pattern *p = &rule->patterns[i];

		if (which == DOUBT_SEVERAL && p->several) {
			put_several(c, rule, p, out, size);
			return true;
		}
		if (which == DOUBT_MISSING && p->missing && !p->exclude) {
			rule_literal_prefix(p->glob, dir);
			log_format(out, size, "rule %s: the directory %s does not exist", rule->name, dir);
			return true;
		}
	}
	return false;
}

const struct rule *config_rule_of_fd(const struct config *c, int fd, char *out)
{
	int flags = (int)sys.fcntl(fd, F_GETFL, 0);

	if (flags < 0 || (flags & O_PATH) != 0 || (flags & O_ACCMODE) == O_RDONLY || !path_of_fd(fd, out))
		return NULL;
	return rule_match(c, out);
}

void config_fd_text(int fd, const char *path, const struct rule *rule, char *out, size_t size)
{
	static const char *const names[] = {"input", "output", "error"};

	log_format(out, size,
	           "standard %s is %s, a file of rule %s: what a program does not open itself is not staged",
	           names[fd], path, rule->name);
}
