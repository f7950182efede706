// SPDX-License-Identifier: Apache-2.0
/*
 * config_file: the INI file.  inih does the parsing; this file feeds it one line at a time from a raw
 * descriptor (no FILE is made, and the line number is known in every callback) and keeps the sections,
 * which inih does not report when they are empty.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <fcntl.h>
#include <ini.h>
#include <string.h>

enum {
	FILE_MAX = 1 << 20,  /* bytes of a configuration file */
	INI_LINE_MAX = 8192, /* bytes of a line, where inih lets us say so */
	RULE_NAME_MAX = 40,  /* inih keeps 49 bytes of a section's name */
};

/* Variables of the packaged inih; absent from builds that fix these when they are compiled. */
extern int ini_max_line __attribute__((weak));

enum section { SECTION_NONE, SECTION_DEFAULTS, SECTION_RULE };

struct reader {
	struct loader *l;
	struct origin at; /* file and line at hand */
	int fd;
	char buf[4096];
	size_t pos;
	size_t used;
	size_t total;
	enum section section;
	struct rule *rule; /* of SECTION_RULE */
	struct layer layer;
};

/* Next byte, or -1 at the end or after an error (recorded). */
static int next_byte(struct reader *r)
{
	if (r->pos == r->used) {
		ssize_t n;
		do
			n = sys.read(r->fd, r->buf, sizeof(r->buf));
		while (n == -EINTR);
		if (n < 0) {
			config_fail(r->l, (int)n, &r->at, "cannot be read (error %d)", (int)-n);
			return -1;
		}
		r->total += (size_t)n;
		if (r->total > FILE_MAX) {
			config_fail(r->l, -E2BIG, &r->at, "larger than a configuration can be (1M)");
			return -1;
		}
		r->pos = 0;
		r->used = (size_t)n;
		if (n == 0)
			return -1;
	}
	return (unsigned char)r->buf[r->pos++];
}

static bool is_blank(char byte) { return byte == ' ' || byte == '\t' || byte == '\r'; }

/* Every rule must have patterns; called when its section ends. */
static void end_section(struct reader *r)
{
	if (r->section != SECTION_RULE || r->l->status != 0)
		return;
	const struct origin at = {.file = r->at.file, .line = r->rule->paths_line};
	if (r->rule->pattern_count == 0)
		config_fail(r->l, -EINVAL, &at, "rule \"%s\" has no paths; add paths = /dir/**",
		            r->rule->name);
	else
		config_finish_patterns(r->l, r->rule, &at);
}

static bool name_is_sane(const char *name)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t length = strlen(name);

	return length > 0 && length <= RULE_NAME_MAX && strspn(name, allowed) == length;
}

static void begin_rule(struct reader *r, const char *name)
{
	struct config *c = r->l->c;

	if (!name_is_sane(name)) {
		config_fail(r->l, -EINVAL, &r->at,
		            "rule name \"%s\": allowed are 1..40 letters, digits, '.', '_' and '-'", name);
		return;
	}
	if (strcmp(name, "env") == 0) {
		config_fail(r->l, -EINVAL, &r->at,
		            "rule name \"env\" belongs to FASTWRITE_PATHS; use another");
		return;
	}
	for (uint32_t i = 0; i < c->rule_count; i++) {
		if (strcmp(c->rules[i].name, name) == 0) {
			config_fail(r->l, -EINVAL, &r->at, "rule \"%s\" is there twice; names must differ",
			            name);
			return;
		}
	}
	if (c->rule_count == CONFIG_RULES_MAX) {
		config_fail(r->l, -E2BIG, &r->at, "too many rules; at most %d are allowed", CONFIG_RULES_MAX);
		return;
	}
	r->rule = &c->rules[c->rule_count++];
	log_format(r->rule->name, sizeof(r->rule->name), "%s", name);
	r->rule->pattern_count = 0;
	r->rule->paths_line = r->at.line;
	memset(r->rule->source, 0, sizeof(r->rule->source));
	memset(r->rule->line, 0, sizeof(r->rule->line));
	r->layer = (struct layer){&r->rule->set, r->rule->source, r->rule->line};
	r->section = SECTION_RULE;
}

/* `line` begins with '['.  A missing ']' is left for inih to report. */
static void begin_section(struct reader *r, char *line)
{
	char *name = line + 1;
	char *end = strchr(name, ']');

	if (end == NULL)
		return;
	const char *tail = end + 1;
	while (is_blank(*tail))
		tail++;
	if (*tail != '\0' && *tail != ';' && *tail != '#') {
		config_fail(r->l, -EINVAL, &r->at, "text after the ']' of a section");
		return;
	}
	end_section(r);
	if (r->l->status != 0)
		return;
	*end = '\0';
	r->section = SECTION_NONE;
	if (strcmp(name, "defaults") == 0) {
		r->section = SECTION_DEFAULTS;
		r->layer = (struct layer){&r->l->base, r->l->base_source, r->l->base_line};
	} else if (strncmp(name, "rule ", 5) == 0) {
		begin_rule(r, name + 5);
	} else {
		config_fail(r->l, -EINVAL, &r->at, "unknown section [%s]; allowed: [defaults], [rule NAME]",
		            name);
	}
	*end = ']';
}

/*
 * The line source of inih, as fgets.  Leading blanks are dropped, so that an indented key is a key on every
 * build of inih and never the continuation of the line before.
 */
static char *read_line(char *line, int size, void *stream)
{
	static const char bom[] = "\xef\xbb\xbf";
	struct reader *r = stream;
	int used = 0;
	int byte;

	if (r->l->status != 0)
		return NULL;
	r->at.line++;
	while ((byte = next_byte(r)) >= 0 && byte != '\n') {
		if (byte == '\0') {
			config_fail(r->l, -EINVAL, &r->at, "a NUL byte: not a text file");
			return NULL;
		}
		if (used == 0 && is_blank((char)byte))
			continue;
		if (used + 1 >= size) {
			config_fail(r->l, -EINVAL, &r->at,
			            "line too long (at most %d bytes); give paths on several lines",
			            size - 1);
			return NULL;
		}
		line[used++] = (char)byte;
		if (r->at.line == 1 && used == 3 && memcmp(line, bom, 3) == 0)
			used = 0;
	}
	line[used] = '\0';
	if (r->l->status != 0 || (byte < 0 && used == 0))
		return NULL;
	if (line[0] == '[')
		begin_section(r, line);
	return r->l->status != 0 ? NULL : line;
}

static int fail_unknown_key(struct reader *r, const char *name)
{
	char known[CONFIG_ERROR_MAX];
	size_t used = 0;

	if (strcmp(name, "stats") == 0 || strcmp(name, "log") == 0 || strcmp(name, "strict") == 0)
		return config_fail(r->l, -EINVAL, &r->at,
		                   "key \"%s\" is not allowed in a file; use the variable FASTWRITE_%s", name,
		                   name[0] == 'l'   ? "LOG"
		                   : name[2] == 'a' ? "STATS"
		                                    : "STRICT");
	for (int key = 0; key < KEY_COUNT; key++)
		used += log_format(known + used, sizeof(known) - used, "%s%s", key > 0 ? ", " : "",
		                   config_key_name((enum config_key)key));
	return config_fail(r->l, -EINVAL, &r->at, "unknown key \"%s\"; allowed: %s%s%s", name,
	                   r->section == SECTION_RULE ? "paths, " : "", known,
	                   r->section == SECTION_RULE ? "" : ", inherit");
}

static int take_paths(struct reader *r, const char *value)
{
	if (r->section != SECTION_RULE)
		return config_fail(r->l, -EINVAL, &r->at, "key \"paths\" is allowed in a [rule NAME] only");
	if (r->rule->pattern_count == 0)
		r->rule->paths_line = r->at.line;
	return config_add_patterns(r->l, r->rule, value, &r->at, "paths");
}

static int take_inherit(struct reader *r, const char *value)
{
	const struct config *c = r->l->c;

	if (r->section != SECTION_DEFAULTS)
		return config_fail(r->l, -EINVAL, &r->at, "key \"inherit\" is allowed in [defaults] only");
	if (c->inherit_source == SOURCE_FILE)
		return config_fail(r->l, -EINVAL, &r->at, "key \"inherit\" is there twice (first in line %u)",
		                   c->inherit_line);
	return config_set_inherit(r->l, value, &r->at, SOURCE_FILE);
}

static int take_value(struct reader *r, const char *name, const char *value)
{
	enum config_source source = r->section == SECTION_RULE ? SOURCE_RULE : SOURCE_FILE;

	if (r->section == SECTION_NONE)
		return config_fail(r->l, -EINVAL, &r->at,
		                   "key \"%s\" stands before any section; allowed: [defaults], [rule NAME]",
		                   name);
	if (strcmp(name, "paths") == 0)
		return take_paths(r, value);
	if (strcmp(name, "inherit") == 0)
		return take_inherit(r, value);
	int key = config_key_find(name);
	if (key < 0)
		return fail_unknown_key(r, name);
	if (r->layer.source[key] == source)
		return config_fail(r->l, -EINVAL, &r->at, "key \"%s\" is there twice (first in line %u)",
		                   name, r->layer.line[key]);
	return config_set(r->l, &r->layer, (enum config_key)key, value, &r->at, source);
}

static int handle(void *user, const char *section, const char *name, const char *value)
{
	struct reader *r = user;

	(void)section;
	if (r->l->status != 0)
		return 0;
	return take_value(r, name, value != NULL ? value : "") == 0;
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
	/* inih goes on behind a line that it cannot read, so an error of ours may be a later one. */
	if (bad_line > 0 && (r->l->status == 0 || (uint32_t)bad_line < r->l->status_line)) {
		r->l->status = 0;
		r->at.line = (uint32_t)bad_line;
		return config_fail(r->l, -EINVAL, &r->at, "not a [section], a comment or key = value");
	}
	end_section(r);
	return r->l->status;
}

static int fail_open(struct loader *l, int code)
{
	const struct origin at = {.variable = "FASTWRITE_CONFIG"};
	const char *why = "it cannot be opened";

	if (code == -ENOENT || code == -ENOTDIR)
		why = "there is no such file";
	else if (code == -EACCES || code == -EPERM)
		why = "permission to read it is missing";
	else if (code == -EISDIR)
		why = "it is not a regular file";
	config_fail_value(l, &at, NULL, l->c->file, "%s; a readable INI file is allowed", why);
	l->status = code == -ENOENT || code == -EACCES ? code : -EINVAL;
	return l->status;
}

int config_read_file(struct loader *l)
{
	struct reader r = {.l = l, .at = {.file = l->c->file}};
	struct statx st;

	/* O_NONBLOCK: a FIFO must not stop the program's start. */
	r.fd = sys.openat(AT_FDCWD, l->c->file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
	if (r.fd < 0)
		return fail_open(l, r.fd);
	int rc = sys.statx(r.fd, "", AT_EMPTY_PATH, STATX_TYPE, &st);
	if (rc == 0 && !S_ISREG(st.stx_mode))
		rc = -EISDIR;
	rc = rc == 0 ? parse(&r) : fail_open(l, rc);
	sys.close(r.fd);
	return rc;
}
