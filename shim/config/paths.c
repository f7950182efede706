// SPDX-License-Identifier: Apache-2.0
/*
 * paths: lists of patterns.  Files are matched by their canonical path.  A pattern under a symbolic link
 * would never match, so links in its literal directory are resolved here.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "config/rule.h"

#include <fcntl.h>
#include <string.h>

bool config_path_of_fd(int fd, char *out)
{
	char link[40];

	log_format(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = sys.readlinkat(AT_FDCWD, link, out, PATH_MAX - 1);
	if (n <= 0 || out[0] != '/')
		return false;
	out[n] = '\0';
	return true;
}

/* Canonical path of something that exists into out[PATH_MAX].  0; -ENOSYS: /proc is not mounted; or -errno.
 */
static int resolve_existing(const char *path, int flags, char *out)
{
	int fd = sys.openat(AT_FDCWD, path, O_PATH | O_CLOEXEC | flags, 0);

	if (fd < 0)
		return fd;
	bool known = config_path_of_fd(fd, out);
	sys.close(fd);
	return known ? 0 : -ENOSYS;
}

/*
 * Resolves the part of directory `dir` that exists and keeps the rest; out[PATH_MAX].  0; -ENAMETOOLONG; or
 * -ENOTDIR and `dir` is cut behind the component that is no directory.  *why: 0; -ENOENT: not all of it
 * exists; -ENOSYS: /proc is not mounted, and nothing is resolved.
 */
static int resolve_directory(char *dir, char *out, int *why)
{
	char head[PATH_MAX];
	size_t cut = strlen(dir); /* length of the leading part that is tried */
	int rc;

	memcpy(head, dir, cut + 1);
	while ((rc = resolve_existing(head, O_DIRECTORY, out)) != 0) {
		if (rc == -ENOENT || rc == -ENOSYS)
			*why = rc;
		if (rc == -ENOTDIR && resolve_existing(head, 0, out) == 0) {
			dir[cut] = '\0';
			return -ENOTDIR;
		}
		while (cut > 0 && head[--cut] != '/')
			;
		if (cut == 0) {
			strcpy(out, dir);
			return 0;
		}
		head[cut] = '\0';
	}
	if (strlen(out) + strlen(dir + cut) >= PATH_MAX)
		return -ENAMETOOLONG;
	if (strcmp(out, "/") == 0 && dir[cut] == '/')
		out[0] = '\0';
	strcat(out, dir + cut);
	return 0;
}

/* Appends one byte to the storage of patterns; false when it is full. */
static bool text_put(struct config *c, char byte)
{
	if (c->text_used >= sizeof(c->text))
		return false;
	c->text[c->text_used++] = byte;
	return true;
}

/* Stores the literal `path` with its wildcards escaped, then `rest` as it is.  NULL when there is no room. */
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
	if (ok && text_put(c, '\0'))
		return c->text + start;
	c->text_used = start;
	return NULL;
}

/* ---- one pattern ---- */

static int fail_match(struct config *c, const struct setting *at, const char *why)
{
	return config_fail(c, -EINVAL, at, "cannot match: %s", why);
}

/* Resolves the links of a pattern that names one file.  1 when the file does not exist. */
static int resolve_file(struct config *c, const struct setting *at, const char *glob, char *real)
{
	char path[PATH_MAX];
	size_t used = 0;

	for (const char *g = glob; *g != '\0'; g++) {
		if (*g == '\\')
			g++;
		path[used++] = *g;
	}
	path[used] = '\0';
	if (resolve_existing(path, O_DIRECTORY, real) == 0)
		return fail_match(c, at, "it is a directory; add /** for everything below it");
	return resolve_existing(path, 0, real) != 0;
}

/* Resolves the literal part of the pattern into real[PATH_MAX]; *rest is the remainder. */
static int resolve_pattern(struct config *c, const struct setting *at, const char *glob, char *real,
                           const char **rest, int *why)
{
	char dir[PATH_MAX];
	int rc;

	*rest = "";
	if (rule_is_literal(glob)) {
		rc = resolve_file(c, at, glob, real);
		if (rc <= 0)
			return rc;
	}
	*rest = glob + rule_literal_split(glob, dir);
	rc = resolve_directory(dir, real, why);
	if (rc == -ENOTDIR)
		return config_fail(c, -EINVAL, at, "cannot match: %s is not a directory", dir);
	if (rc != 0)
		return fail_match(c, at, "it is longer than a path can be once links are resolved");
	if (strcmp(real, "/") == 0)
		real[0] = '\0';
	return 0;
}

/* A blank or comma before a slash or at the end: in names they stand elsewhere. */
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

static int add_pattern(struct config *c, struct rule *rule, const char *text, struct config_origin origin)
{
	const struct setting at = {origin, "paths", text};
	const char *glob = text[0] == '!' ? text + 1 : text;
	const char *why, *rest;
	char real[PATH_MAX];
	int missing = 0;
	int rc;

	if (!rule_pattern_valid(glob, &why))
		return fail_match(c, &at, why);
	rc = config_check_comment(c, &at);
	if (rc != 0)
		return rc;
	if (rule->pattern_count == CONFIG_PATTERNS_MAX)
		return config_fail(c, -EINVAL, &at, "too many patterns; a rule takes at most %d",
		                   CONFIG_PATTERNS_MAX);
	rc = resolve_pattern(c, &at, glob, real, &rest, &missing);
	if (rc != 0)
		return rc;
	glob = text_add(c, real, rest);
	if (glob == NULL)
		return config_fail(c, -E2BIG, &at, "all patterns together take more than %zu bytes",
		                   sizeof(c->text));
	rule->patterns[rule->pattern_count++] = (struct pattern){
		.glob = glob,
		.exclude = text[0] == '!',
		.several = looks_like_several(text),
		.missing = missing == -ENOENT,
	};
	c->no_proc |= missing == -ENOSYS;
	return 0;
}

int config_add_patterns(struct config *c, struct rule *rule, const char *list, struct config_origin origin)
{
	char text[PATH_MAX + 2];
	size_t used = 0;

	for (;; list++) {
		if (*list == '\0' || *list == ':') {
			text[used] = '\0';
			int rc = add_pattern(c, rule, text, origin);
			if (rc != 0 || *list == '\0')
				return rc;
			used = 0;
			continue;
		}
		if (used + 2 >= sizeof(text)) {
			const struct setting at = {origin, "paths", text};

			text[used] = '\0';
			return fail_match(c, &at, "it is longer than a path can be (4095 bytes)");
		}
		if (*list == '\\' && list[1] != '\0') /* "\:" separates nothing */
			text[used++] = *list++;
		text[used++] = *list;
	}
}

/* ---- all patterns of a rule ---- */

/* The first match decides: a pattern behind one that covers it and says the opposite is a mistake. */
static int check_shadowed(struct config *c, const struct rule *rule)
{
	char shown[PATH_MAX + 2];
	const struct setting at = {rule->paths_origin, "paths", shown};

	for (uint32_t i = 1; i < rule->pattern_count; i++) {
		for (uint32_t j = 0; j < i; j++) {
			const struct pattern *early = &rule->patterns[j];
			const struct pattern *late = &rule->patterns[i];

			if (early->exclude == late->exclude || !rule_covers(early->glob, late->glob))
				continue;
			log_format(shown, sizeof(shown), "%s%s", late->exclude ? "!" : "", late->glob);
			return config_fail(c, -EINVAL, &at,
			                   "cannot match: the first match decides and %s%s comes before; "
			                   "put this one first",
			                   early->exclude ? "!" : "", early->glob);
		}
	}
	return 0;
}

int config_finish_patterns(struct config *c, struct rule *rule)
{
	const struct setting at = {rule->paths_origin, "paths", NULL};

	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		if (rule->patterns[i].exclude)
			continue;
		rule_literal_prefix(rule->patterns[i].glob, rule->prefix);
		return check_shadowed(c, rule);
	}
	return config_fail(c, -EINVAL, &at, "rule \"%s\" cannot match: it has no pattern without '!'",
	                   rule->name);
}
