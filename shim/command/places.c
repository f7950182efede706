// SPDX-License-Identifier: Apache-2.0
/*
 * places: the staging directories that `fastwrite recover` looks at.
 *
 * recover PATH: the one in the directory, or the one beside the file.  Those above PATH are looked at but not
 * recovered: a rule may begin there, and its bytes for PATH must not stay unnoticed.  With a configuration in
 * the environment the same holds for the places of the rules that may have PATH.  Bytes in several places
 * have an order that only their owner knows.  Directories below PATH are not searched: a copy of a staging
 * directory (backup, image, container layer) would put old bytes over new ones.
 *
 * recover --all: the directory that `staging` names; the one in a rule's own directory; and those beside the
 * files, which are used on another file system or where the rule's directory is not writable.  These are
 * searched for as deep as the rule's patterns reach.
 */
#include "command/command.h"

#include "base/quote.h"
#include "config/rule.h"
#include "format/arena_format.h"
#include "recovery/recover.h"

#include <errno.h>
#include <fts.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

struct place {
	dev_t dev;
	ino_t ino;
};

struct walk {
	const struct recover_options *opt;
	struct recover_report *report;
	struct place *seen; /* several patterns may lead to one place */
	size_t seen_count;
	int failed;
};

/* 0, 1 when it is known already, or -ENOMEM. */
static int remember(struct walk *w, const struct stat *st)
{
	struct place *grown;

	for (size_t i = 0; i < w->seen_count; i++)
		if (w->seen[i].dev == st->st_dev && w->seen[i].ino == st->st_ino)
			return 1;
	grown = realloc(w->seen, (w->seen_count + 1) * sizeof(*grown));
	if (grown == NULL)
		return -ENOMEM;
	w->seen = grown;
	w->seen[w->seen_count++] = (struct place){st->st_dev, st->st_ino};
	return 0;
}

/* Length of the parent's path; 0 for the root directory. */
static size_t parent_length(const char *path, size_t length)
{
	while (length > 0 && path[length - 1] != '/')
		length--;
	return length > 0 ? length - 1 : 0;
}

static void fail(struct walk *w, const char *path, int error)
{
	cli_error("%s: %s", path, cli_recover_reason(error));
	w->failed++;
}

/* A staging directory, which need not exist. */
static void recover_place(struct walk *w, const char *dir)
{
	struct stat st;
	int rc = lstat(dir, &st) == 0 ? remember(w, &st) : -errno;

	if (rc == 0)
		rc = cli_recover_path(dir, w->opt, w->report);
	/* when it does not exist, nothing is staged */
	if (rc < 0 && rc != -ENOENT && (rc != -ENOTDIR || lstat(dir, &st) == 0))
		fail(w, dir, rc);
}

/* Other file systems of the kernel are mounted below these. */
static bool is_proc_or_sys(const char *path)
{
	struct statfs st;

	return statfs(path, &st) == 0 && (st.f_type == PROC_SUPER_MAGIC || st.f_type == SYSFS_MAGIC);
}

enum { ANY_DEPTH = -1 };

/* How deep below its literal directory a pattern reaches.  `rest` follows the directory: "/...". */
static int depth_of(const char *rest)
{
	int slashes = 0;

	if (strstr(rest, "**") != NULL)
		return ANY_DEPTH;
	for (; *rest != '\0'; rest++)
		slashes += *rest == '/';
	return slashes > 0 ? slashes - 1 : 0;
}

static void search(struct walk *w, char *top, int depth)
{
	char *const tops[] = {top, NULL};
	FTS *fts = fts_open(tops, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	FTSENT *e;

	if (fts == NULL) {
		fail(w, top, -errno);
		return;
	}
	while ((e = fts_read(fts)) != NULL) {
		switch (e->fts_info) {
		case FTS_D:
			if (strcmp(e->fts_name, ARENA_DIR) == 0 && e->fts_level > 0) {
				recover_place(w, e->fts_path);
				fts_set(fts, e, FTS_SKIP);
			} else if ((depth != ANY_DEPTH && e->fts_level > depth) ||
			           ((e->fts_level == 0 || e->fts_dev != e->fts_parent->fts_dev) &&
			            is_proc_or_sys(e->fts_path))) {
				fts_set(fts, e, FTS_SKIP);
			}
			break;
		case FTS_SL: /* a link is no staging directory: recover_place reports that */
			if (strcmp(e->fts_name, ARENA_DIR) == 0)
				recover_place(w, e->fts_path);
			break;
		case FTS_DNR:
		case FTS_NS:
		case FTS_ERR:
			if (e->fts_errno != ENOENT && e->fts_errno != ENOTDIR)
				fail(w, e->fts_path, -e->fts_errno);
			break;
		default: break;
		}
	}
	if (errno != 0)
		fail(w, top, -errno);
	fts_close(fts);
}

/* The staging directory in the rule's own directory, into out[PATH_MAX].  False: it has none. */
static bool rule_place(const struct rule *rule, char *out)
{
	if (strcmp(rule->prefix, "/") == 0 || strlen(rule->prefix) + sizeof("/" ARENA_DIR) > PATH_MAX)
		return false;
	snprintf(out, PATH_MAX, "%.*s/" ARENA_DIR, (int)(PATH_MAX - sizeof("/" ARENA_DIR)), rule->prefix);
	return true;
}

/* For files of all patterns of the rule.  Arenas that were made before `staging` was set are beside the data.
 */
static void recover_usual_places(struct walk *w, const struct rule *rule)
{
	char path[PATH_MAX];

	if (rule->set.staging[0] != '\0')
		recover_place(w, rule->set.staging);
	if (rule_place(rule, path))
		recover_place(w, path);
}

static void recover_rule(struct walk *w, const struct rule *rule)
{
	char path[PATH_MAX];

	recover_usual_places(w, rule);
	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		const char *glob = rule->patterns[i].glob;

		if (rule->patterns[i].exclude)
			continue;
		size_t prefix = rule_literal_split(glob, path);
		search(w, path, depth_of(glob + prefix));
	}
}

int cli_recover_all(const struct config *c, const struct recover_options *opt, struct recover_report *report)
{
	struct walk w = {.opt = opt, .report = report};

	for (uint32_t i = 0; i < c->rule_count; i++)
		recover_rule(&w, &c->rules[i]);
	free(w.seen);
	return w.failed;
}

int cli_recover_file(const struct rule *rule, const char *path, const struct recover_options *opt,
                     struct recover_report *report)
{
	struct walk w = {.opt = opt, .report = report};
	char beside[PATH_MAX];
	size_t n = parent_length(path, strlen(path));

	recover_usual_places(&w, rule);
	if (n + sizeof("/" ARENA_DIR) <= sizeof(beside)) {
		snprintf(beside, sizeof(beside), "%.*s/" ARENA_DIR, (int)n, path);
		recover_place(&w, beside);
	}
	free(w.seen);
	return w.failed;
}

/* ---- one PATH ---- */

/* `path` is `dir`, or lies below it. */
static bool is_within(const char *dir, const char *path)
{
	size_t n = strcmp(dir, "/") == 0 ? 0 : strlen(dir);

	return strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* Not a directory that the key `staging` names by another name. */
static bool is_beside_data(const char *place)
{
	return strcmp(place + parent_length(place, strlen(place)), "/" ARENA_DIR) == 0;
}

/* Whether a staging directory holds bytes for `path`, or below it. */
struct found {
	const char *path;
	bool any;
};

static void on_found(void *ctx, const struct recover_event *e)
{
	struct found *f = ctx;

	if (!is_within(f->path, e->target))
		return;
	f->any |= strcmp(e->action, "nothing") != 0 && strcmp(e->action, "live") != 0;
}

/*
 * Where everybody may make a staging directory, only those of root and of the owner of PATH count.  Another
 * user's must not delay a recovery or make it fail.
 */
static bool is_of_another_user(const char *place, uid_t of, uid_t owner)
{
	char parent[PATH_MAX];
	struct stat st;

	if (geteuid() != 0)
		return of != geteuid();
	snprintf(parent, sizeof(parent), "%.*s/", (int)parent_length(place, strlen(place)), place);
	return of != 0 && of != owner && (stat(parent, &st) != 0 || (st.st_mode & S_IWOTH));
}

/* Does this staging directory hold bytes for `path`?  Also true when it cannot be read. */
static bool look_at(const char *place, const char *path, uid_t owner)
{
	struct recover_report report = {0};
	struct found found = {.path = path};
	const struct recover_options look = {.dry_run = true, .event = on_found, .ctx = &found};
	char dir[PATH_MAX], word[QUOTE_PATH_MAX];
	struct stat st;
	size_t n;
	int rc;

	if (lstat(place, &st) != 0 || !S_ISDIR(st.st_mode))
		return false;
	if (is_of_another_user(place, st.st_uid, owner)) {
		cli_error("%s: not looked at: it belongs to another user", place);
		return false;
	}
	rc = cli_recover_path(place, &look, &report);
	if (rc < 0 && rc != -ENOENT) {
		cli_error("%s: %s", place, cli_recover_reason(rc));
		return true;
	}
	if (found.any) {
		n = is_beside_data(place) ? parent_length(place, strlen(place)) : strlen(place);
		snprintf(dir, sizeof(dir), "%.*s", (int)n, place);
		cli_error("%s: bytes for it are staged in %s; to write them: fastwrite recover %s", path,
		          place, quote_word(word, sizeof(word), dir));
	}
	return found.any;
}

/* How many staging directories above the one that recover_path looks at hold bytes for `path`. */
static int look_above(const char *path, bool is_dir, uid_t owner)
{
	char place[PATH_MAX];
	size_t n = strcmp(path, "/") == 0 ? 0 : strlen(path);
	int count = 0;

	if (!is_dir)
		n = parent_length(path, n);
	while (n > 0) {
		n = parent_length(path, n);
		if (n + sizeof("/" ARENA_DIR) > sizeof(place))
			continue;
		snprintf(place, sizeof(place), "%.*s/" ARENA_DIR, (int)n, path);
		count += look_at(place, path, owner);
	}
	return count;
}

/* May `path`, or something below it, be a file of the rule? */
static bool rule_reaches(const struct rule *rule, const char *path)
{
	char dir[PATH_MAX];

	for (uint32_t i = 0; i < rule->pattern_count; i++) {
		if (rule->patterns[i].exclude)
			continue;
		rule_literal_prefix(rule->patterns[i].glob, dir);
		if (is_within(dir, path) || is_within(path, dir))
			return true;
	}
	return false;
}

/* The same for a place of a rule, unless look_above or the recovery of `path` itself has come to it. */
static int look_at_place(struct walk *w, const char *place, const char *path, uid_t owner)
{
	char parent[PATH_MAX];
	struct stat st;

	snprintf(parent, sizeof(parent), "%.*s", (int)parent_length(place, strlen(place)), place);
	if (is_beside_data(place) && is_within(parent[0] != '\0' ? parent : "/", path))
		return 0;
	return lstat(place, &st) == 0 && remember(w, &st) == 0 && look_at(place, path, owner);
}

static int look_at_rules(const struct config *c, const char *path, uid_t owner)
{
	struct walk w = {0};
	char place[PATH_MAX];
	int count = 0;

	for (uint32_t i = 0; i < c->rule_count; i++) {
		const struct rule *rule = &c->rules[i];

		if (!rule_reaches(rule, path))
			continue;
		if (rule->set.staging[0] != '\0')
			count += look_at_place(&w, rule->set.staging, path, owner);
		if (rule_place(rule, place))
			count += look_at_place(&w, place, path, owner);
	}
	free(w.seen);
	return count;
}

/* A staging directory, or an arena or orphan in one: nothing above it can matter. */
static bool in_staging(const char *path)
{
	for (const char *p = path; (p = strstr(p, ARENA_DIR)) != NULL; p += strlen(ARENA_DIR))
		if ((p == path || p[-1] == '/') &&
		    (p[strlen(ARENA_DIR)] == '/' || p[strlen(ARENA_DIR)] == '\0'))
			return true;
	return false;
}

static bool has_dots(const char *path)
{
	for (const char *p = path; (p = strstr(p, "..")) != NULL; p += 2)
		if ((p == path || p[-1] == '/') && (p[2] == '/' || p[2] == '\0'))
			return true;
	return false;
}

/* `given` made absolute, with its links kept; false for a path with "..", which then may mean another one. */
static bool literal(const char *given, char *out)
{
	size_t n = 0;
	int more;

	if (has_dots(given))
		return false;
	while (strncmp(given, "./", 2) == 0) {
		given += 2;
		given += strspn(given, "/");
	}
	if (strcmp(given, ".") == 0)
		given = "";
	if (given[0] != '/') {
		if (getcwd(out, PATH_MAX) == NULL)
			return false;
		n = strlen(out);
		out[n++] = '/';
	}
	more = snprintf(out + n, PATH_MAX - n, "%s", given);
	if (more < 0 || (size_t)more >= PATH_MAX - n)
		return false;
	n += (size_t)more;
	while (n > 1 && out[n - 1] == '/')
		out[--n] = '\0';
	return true;
}

int cli_recover_given(const char *given, const struct config *c, const struct recover_options *opt,
                      struct recover_report *report)
{
	char path[PATH_MAX], other[PATH_MAX];
	struct stat st = {0}, itself;
	bool is_dir = stat(given, &st) == 0 && S_ISDIR(st.st_mode);
	bool known = literal(given, path);
	bool canonical = cli_canonical(given, other) == 0;
	/* a directory may be given as a link, a staging directory may not */
	bool linked = is_dir && canonical && known && !in_staging(path) && lstat(path, &itself) == 0 &&
	              S_ISLNK(itself.st_mode);
	/* absolute, so that messages have full paths */
	int failed = 0, rc = -ENOENT;

	if (given[0] == '\0') {
		cli_error("an empty PATH: %s", cli_recover_reason(rc));
		return 1;
	}
	rc = cli_recover_path(linked ? other : known ? path : given, opt, report);
	if (rc < 0) {
		cli_error("%s: %s", given, cli_recover_reason(rc));
		failed++;
	}
	if (known && in_staging(path))
		return failed;
	if (known)
		failed += look_above(path, is_dir, st.st_uid);
	if (canonical && !in_staging(other) && (!known || strcmp(path, other) != 0))
		failed += look_above(other, is_dir, st.st_uid);
	if (c != NULL && (canonical || known))
		failed += look_at_rules(c, canonical ? other : path, st.st_uid);
	return failed;
}
