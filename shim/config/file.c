// SPDX-License-Identifier: Apache-2.0
/*
 * file: the INI file.  inih parses the lines.  This file reads them by raw system calls, one at a time, so
 * that each callback knows its line number, and keeps the section, since inih does not report an empty one.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <ini.h>
#include <string.h>

enum {
	FILE_MAX = 1 << 20,  /* bytes of a configuration file */
	INI_LINE_MAX = 8192, /* bytes of a line, where inih lets us choose */
	RULE_NAME_MAX = 40,  /* inih keeps 49 bytes of a section's name */
};

/* A variable of the packaged inih; builds that fix it at compile time have none. */
extern int ini_max_line __attribute__((weak));

enum section { SECTION_NONE, SECTION_DEFAULTS, SECTION_RULE };

struct reader {
	struct config *c;
	uint32_t line;
	int rc; /* 0, or the error; then nothing more is read */
	int fd;
	char buf[4096];
	size_t pos;
	size_t used;
	size_t total;
	enum section section;
	struct rule *rule; /* NULL in [defaults] */
};

static struct config_origin here(const struct reader *r)
{
	return (struct config_origin){r->section == SECTION_RULE ? SOURCE_RULE : SOURCE_FILE, r->line};
}

/* An error in the line at hand. */
#define fail(r, code, ...) \
	((r)->rc = config_fail((r)->c, (code), &(struct setting){.origin = here(r)}, __VA_ARGS__))

/* ---- sections ---- */

/* Each rule must have patterns. */
static int end_section(struct reader *r)
{
	const struct rule *rule = r->rule;

	if (rule == NULL || r->rc != 0)
		return r->rc;
	if (rule->pattern_count > 0)
		return r->rc = config_finish_patterns(r->c, r->rule);
	r->line = rule->paths_origin.line;
	return fail(r, -EINVAL, "rule \"%s\" has no paths; add paths = /dir/**", rule->name);
}

static bool name_is_valid(const char *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t length = strlen(name);

	return length > 0 && length <= RULE_NAME_MAX && strspn(name, allowed) == length;
}

struct rule *config_add_rule(struct config *c, const char *name, struct config_origin origin)
{
	struct rule *rule;

	if (c->rule_count == CONFIG_RULES_MAX)
		return NULL;
	rule = &c->rules[c->rule_count++];
	log_format(rule->name, sizeof(rule->name), "%s", name);
	rule->pattern_count = 0;
	rule->paths_origin = origin;
	memset(rule->origin, 0, sizeof(rule->origin));
	return rule;
}

static int begin_rule(struct reader *r, const char *name)
{
	if (!name_is_valid(name))
		return fail(r, -EINVAL,
		            "rule name \"%s\": allowed are 1..40 letters, digits, '.', '_' and '-'", name);
	if (strcmp(name, "env") == 0)
		return fail(r, -EINVAL, "rule name \"env\" belongs to FASTWRITE_PATHS; use another");
	for (uint32_t i = 0; i < r->c->rule_count; i++)
		if (strcmp(r->c->rules[i].name, name) == 0)
			return fail(r, -EINVAL, "rule \"%s\" is there twice; names must differ", name);
	r->section = SECTION_RULE;
	r->rule = config_add_rule(r->c, name, here(r));
	if (r->rule == NULL)
		return fail(r, -E2BIG, "too many rules; at most %d are allowed", CONFIG_RULES_MAX);
	return 0;
}

static bool is_blank(char byte) { return byte == ' ' || byte == '\t' || byte == '\r'; }

/* `line` begins with '['.  inih reports a missing ']'. */
static int begin_section(struct reader *r, char *line)
{
	char *name = line + 1;
	char *end = strchr(name, ']');
	int rc;

	if (end == NULL)
		return 0;
	const char *tail = end + 1;
	while (is_blank(*tail))
		tail++;
	if (*tail != '\0' && *tail != ';' && *tail != '#')
		return fail(r, -EINVAL, "text after the ']' of a section");
	if (end_section(r) != 0)
		return r->rc;
	*end = '\0';
	r->section = SECTION_DEFAULTS;
	r->rule = NULL;
	if (strncmp(name, "rule ", 5) == 0)
		rc = begin_rule(r, name + 5);
	else if (strcmp(name, "defaults") == 0)
		rc = 0;
	else
		rc = fail(r, -EINVAL, "unknown section [%s]; allowed: [defaults], [rule NAME]", name);
	*end = ']';
	return rc;
}

/* ---- keys ---- */

static int fail_unknown_key(struct reader *r, const char *name)
{
	char known[CONFIG_ERROR_MAX];

	config_rule_keys(known, sizeof(known));
	return fail(r, -EINVAL, "unknown key \"%s\"; allowed: %s%s%s", name, r->rule != NULL ? "paths, " : "",
	            known, r->rule != NULL ? "" : ", inherit");
}

static int take_paths(struct reader *r, const char *value)
{
	if (r->rule == NULL)
		return fail(r, -EINVAL, "key \"paths\" is allowed in a [rule NAME] only");
	if (r->rule->pattern_count == 0)
		r->rule->paths_origin = here(r);
	return r->rc = config_add_patterns(r->c, r->rule, value, here(r));
}

static int take_value(struct reader *r, const char *name, const char *value)
{
	char variable[64];
	int key = config_key_find(name);

	if (r->section == SECTION_NONE)
		return fail(r, -EINVAL,
		            "key \"%s\" stands before any section; allowed: [defaults], [rule NAME]", name);
	if (key < 0)
		return fail_unknown_key(r, name);
	if (key == KEY_PATHS)
		return take_paths(r, value);
	if (config_key_scope(key) == SCOPE_ENVIRONMENT)
		return fail(
			r, -EINVAL, "key \"%s\" is not allowed in a file; use the variable %s", name,
			config_variable(key == KEY_STRICT ? "on_error" : name, variable, sizeof(variable)));
	if (config_key_scope(key) == SCOPE_DEFAULTS && r->rule != NULL)
		return r->rc = config_fail(r->c, -EINVAL, &(struct setting){here(r), name, value},
		                           "allowed in [defaults] only: it is the same for all rules");
	const struct config_origin *before = r->rule != NULL ? &r->rule->origin[key] : &r->c->origin[key];
	if (before->source == here(r).source)
		return fail(r, -EINVAL, "key \"%s\" is there twice (first in line %u)", name, before->line);
	return r->rc = config_set(r->c, r->rule, key, value, here(r));
}

/* ---- lines ---- */

/* Next byte, or -1 at the end or after an error. */
static int next_byte(struct reader *r)
{
	if (r->pos == r->used) {
		ssize_t n;
		do
			n = sys.read(r->fd, r->buf, sizeof(r->buf));
		while (n == -EINTR);
		if (n < 0)
			fail(r, (int)n, "cannot be read (error %d)", (int)-n);
		if (n <= 0)
			return -1;
		r->total += (size_t)n;
		if (r->total > FILE_MAX) {
			fail(r, -E2BIG, "larger than a configuration can be (1M)");
			return -1;
		}
		r->pos = 0;
		r->used = (size_t)n;
	}
	return (unsigned char)r->buf[r->pos++];
}

/*
 * The line source of inih, as fgets.  Leading blanks are dropped, so that an indented key is a key with every
 * build of inih and never continues the line before.
 */
static char *read_line(char *line, int size, void *stream)
{
	static const char bom[] = "\xef\xbb\xbf";
	struct reader *r = stream;
	int used = 0;
	int byte;

	if (r->rc != 0)
		return NULL;
	r->line++;
	while ((byte = next_byte(r)) >= 0 && byte != '\n') {
		if (used == 0 && is_blank((char)byte))
			continue;
		if (byte == '\0')
			fail(r, -EINVAL, "a NUL byte: not a text file");
		else if (used + 1 >= size)
			fail(r, -EINVAL, "line too long (at most %d bytes); give paths on several lines",
			     size - 1);
		if (r->rc != 0)
			return NULL;
		line[used++] = (char)byte;
		if (r->line == 1 && used == 3 && memcmp(line, bom, 3) == 0)
			used = 0;
	}
	line[used] = '\0';
	if (r->rc != 0 || (byte < 0 && used == 0))
		return NULL;
	return line[0] == '[' && begin_section(r, line) != 0 ? NULL : line;
}

static int handle(void *user, const char *section, const char *name, const char *value)
{
	struct reader *r = user;

	(void)section;
	return r->rc == 0 && take_value(r, name, value != NULL ? value : "") == 0;
}

static int parse(struct reader *r)
{
	int line_max = 0;

	if (&ini_max_line != NULL) {
		line_max = ini_max_line;
		ini_max_line = INI_LINE_MAX;
	}
	int bad_line = ini_parse_stream(read_line, r, handle, r);
	if (&ini_max_line != NULL)
		ini_max_line = line_max;
	/* inih goes on behind a line that it cannot read, so an error of ours may be a later one */
	if (bad_line > 0 && (r->rc == 0 || (uint32_t)bad_line < r->line)) {
		r->line = (uint32_t)bad_line;
		return fail(r, -EINVAL, "not a [section], a comment or key = value");
	}
	return end_section(r);
}

static int fail_open(struct config *c, int code)
{
	const struct setting at = {{.source = SOURCE_ENV}, "config", c->file};
	const char *why = "it cannot be opened";

	if (code == -ENOENT || code == -ENOTDIR)
		why = "there is no such file";
	else if (code == -EACCES || code == -EPERM)
		why = "permission to read it is missing";
	else if (code == -EISDIR)
		why = "it is not a regular file";
	return config_fail(c, code == -ENOENT || code == -EACCES ? code : -EINVAL, &at,
	                   "%s; a readable INI file is allowed", why);
}

int config_read_file(struct config *c)
{
	struct reader r = {.c = c};
	struct statx st;
	int rc;

	/* O_NONBLOCK: a FIFO must not stop the program's start */
	r.fd = sys.openat(AT_FDCWD, c->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	if (r.fd < 0)
		return fail_open(c, r.fd);
	rc = sys.statx(r.fd, "", AT_EMPTY_PATH, STATX_TYPE, &st);
	if (rc == 0 && !S_ISREG(st.stx_mode))
		rc = -EISDIR;
	rc = rc == 0 ? parse(&r) : fail_open(c, rc);
	sys.close(r.fd);
	return rc;
}
