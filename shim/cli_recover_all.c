// SPDX-License-Identifier: Apache-2.0
/*
 * cli_recover_all: `fastwrite recover --all`: every place where programs may have staged under this configuration.
 *
 * That is the directory that `staging` names, the one in a rule's own directory, and for files that are on another file
 * system, or where the rule's directory cannot be written to, the one beside them: these are searched for as deep as the
 * rule's patterns reach.
 */
#include "cli.h"

#include "arena.h"
#include "recover.h"
#include "rule.h"

#include <errno.h>
#include <fts.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

struct place {
	dev_t dev;
	ino_t ino;
};

struct walk {
	const struct recover_options *opt;
	struct recover_report *report;
	struct place *seen; /* several patterns lead to one place */
	size_t seen_count;
	int failed;
};

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

static void fail(struct walk *w, const char *path, int error)
{
	cli_error("%s: %s", path, cli_recover_reason(error));
	w->failed++;
}

/* A staging directory, if it is there. */
static void recover_place(struct walk *w, const char *dir)
{
	struct stat st;
	int rc = lstat(dir, &st) == 0 ? remember(w, &st) : -errno;

	if (rc == 0)
		rc = cli_recover_path(dir, w->opt, w->report);
	/* gone meanwhile, or not there: then nothing is staged */
	if (rc < 0 && rc != -ENOENT && rc != -ENOTDIR)
		fail(w, dir, rc);
	else if (rc == -ENOTDIR && lstat(dir, &st) == 0)
		fail(w, dir, rc);
}

/* Made up by the kernel: no files that anybody stages for. */
static bool is_made_up(const char *path)
{
	static const long kinds[] = {PROC_SUPER_MAGIC,    SYSFS_MAGIC,        CGROUP_SUPER_MAGIC,
	                             CGROUP2_SUPER_MAGIC, DEVPTS_SUPER_MAGIC, DEBUGFS_MAGIC,
	                             TRACEFS_MAGIC,       SECURITYFS_MAGIC,   BPF_FS_MAGIC,
	                             PSTOREFS_MAGIC,      EFIVARFS_MAGIC,     BINFMTFS_MAGIC};
	struct statfs st;

	if (statfs(path, &st) != 0)
		return false;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (st.f_type == kinds[i])
			return true;
	return false;
}

enum { ANY_DEPTH = -1 };

/* How many directories below its literal prefix may files lie that the pattern matches?  `rest` begins with '/'. */
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
			            is_made_up(e->fts_path))) {
				fts_set(fts, e, FTS_SKIP);
			}
			break;
		case FTS_SL: /* a staging directory is none when it is a link, and is not quietly passed over */
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

static void recover_rule(struct walk *w, const struct rule *rule)
{
	char path[PATH_MAX];

	if (rule->set.staging[0] != '\0') {
		recover_place(w, rule->set.staging);
		return;
	}
	/* where files of all its patterns stage, as long as they are on one file system */
	if (strcmp(rule->prefix, "/") != 0 && strlen(rule->prefix) + sizeof("/" ARENA_DIR) <= sizeof(path)) {
		snprintf(path, sizeof(path), "%.*s/" ARENA_DIR, (int)(sizeof(path) - sizeof("/" ARENA_DIR)),
		         rule->prefix);
		recover_place(w, path);
	}
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
