// SPDX-License-Identifier: Apache-2.0
/*
 * rule: see config/rule.h.
 *
 * The matcher keeps two places to come back to: the last '*' of the component at hand and the last '**'.
 * Earlier ones need no second try.  '*' cannot leave its component, so the component ends at the same place
 * however earlier stars were filled.  And what an earlier '**' could take more, the last one can take as
 * well.
 */
#include "config/rule.h"

#include <string.h>

enum { COMPONENT_MAX = 255 };

/* Does the set at *glob ("[...]", valid) match `byte`?  *glob moves behind it. */
static bool set_takes(const char **glob, unsigned char byte)
{
	const char *g = *glob + 1;
	bool negated = *g == '!' || *g == '^';
	bool found = false;

	if (negated)
		g++;
	for (bool first = true; *g != '\0' && (first || *g != ']'); first = false) {
		if (*g == '\\' && g[1] != '\0')
			g++;
		unsigned char low = (unsigned char)*g++;
		unsigned char high = low;
		if (*g == '-' && g[1] != ']' && g[1] != '\0') {
			g++;
			if (*g == '\\' && g[1] != '\0')
				g++;
			high = (unsigned char)*g++;
		}
		if (byte >= low && byte <= high)
			found = true;
	}
	if (*g == ']')
		g++;
	*glob = g;
	return byte != '/' && found != negated;
}

/* Does the element at *glob match `byte`?  Then *glob moves behind it. */
static bool element_takes(const char **glob, unsigned char byte)
{
	const char *g = *glob;

	switch (*g) {
	case '\0': return false;
	case '?':
		if (byte == '/')
			return false;
		g++;
		break;
	case '[':
		if (!set_takes(&g, byte))
			return false;
		break;
	case '\\':
		g++;
		/* fall through */
	default:
		if ((unsigned char)*g != byte)
			return false;
		g++;
	}
	*glob = g;
	return true;
}

/* An open '**': where the pattern goes on, and where in the path. */
struct deep {
	const char *glob; /* NULL = none open */
	const char *path;
	bool whole_dirs; /* a component of its own that is not the last: matches whole directories */
};

static const char *deep_open(struct deep *deep, const char *glob, const char *at, const char *path)
{
	const char *after = at;

	while (*after == '*')
		after++;
	deep->whole_dirs = *after == '/' && at > glob && at[-1] == '/';
	deep->glob = deep->whole_dirs ? after + 1 : after;
	deep->path = path;
	return deep->glob;
}

static bool deep_take_more(struct deep *deep)
{
	const char *next = deep->whole_dirs ? strchr(deep->path, '/') : deep->path;

	if (next == NULL)
		return false;
	deep->path = next + 1;
	return true;
}

bool rule_glob(const char *glob, const char *path)
{
	const char *g = glob;
	const char *p = path;
	const char *star_glob = NULL;
	const char *star_path = NULL;
	struct deep deep = {0};

	for (;;) {
		if (g[0] == '*' && g[1] == '*') {
			g = deep_open(&deep, glob, g, p);
			star_glob = NULL;
			if (*g == '\0' && !deep.whole_dirs)
				return true;
			continue;
		}
		if (*g == '*') {
			star_glob = ++g;
			star_path = p;
			continue;
		}
		/* at the end of the path, a longer '*' or '**' would leave even less for the rest */
		if (*p == '\0')
			return *g == '\0';
		if (element_takes(&g, (unsigned char)*p)) {
			p++;
		} else if (star_glob != NULL && *star_path != '/') {
			p = ++star_path;
			g = star_glob;
		} else if (deep.glob != NULL && deep_take_more(&deep)) {
			p = deep.path;
			g = deep.glob;
			star_glob = NULL;
		} else {
			return false;
		}
	}
}

const struct pattern *rule_decide(const struct config *c, const char *path, const struct rule **rule)
{
	for (uint32_t r = 0; r < c->rule_count; r++) {
		for (uint32_t i = 0; i < c->rules[r].pattern_count; i++) {
			if (rule_glob(c->rules[r].patterns[i].glob, path)) {
				*rule = &c->rules[r];
				return &c->rules[r].patterns[i];
			}
		}
	}
	return NULL;
}

const struct rule *rule_match(const struct config *c, const char *path)
{
	const struct rule *rule = NULL;
	const struct pattern *pattern = NULL;

	if (c->rule_count > 0 && strstr(path, "/.fastwrite/") == NULL)
		pattern = rule_decide(c, path, &rule);
	return pattern != NULL && !pattern->exclude ? rule : NULL;
}

/* The error of the set at *glob, or NULL; then *glob moves to its ']'. */
static const char *set_problem(const char **glob)
{
	const char *g = *glob + 1;

	if (*g == '!' || *g == '^')
		g++;
	for (bool first = true; first || *g != ']'; first = false) {
		if (*g == '\\')
			g++;
		if (*g == '\0')
			return "a [set] is not closed by ']'";
		if (*g == '/')
			return "a [set] holds '/', which separates directories";
		unsigned char low = (unsigned char)*g++;
		if (*g != '-' || g[1] == ']' || g[1] == '\0')
			continue;
		g++;
		if (*g == '\\')
			g++;
		if (*g == '\0' || *g == '/')
			return "a [set] is not closed by ']'";
		if ((unsigned char)*g++ < low)
			return "a range in a [set] runs backwards";
	}
	*glob = g;
	return NULL;
}

/* The error of the component at *glob, or NULL; then *glob moves to its end. */
static const char *component_problem(const char **glob)
{
	static const char own[] = ".fastwrite";
	const char *start = *glob;
	const char *g = start;
	size_t shortest = 0;

	for (; *g != '\0' && *g != '/'; g++) {
		if (*g == '*')
			continue;
		shortest++;
		if (*g == '[') {
			const char *problem = set_problem(&g);
			if (problem != NULL)
				return problem;
		} else if (*g == '\\') {
			g++;
			if (*g == '\0')
				return "it ends in a lone backslash";
			if (*g == '/')
				return "a backslash stands before '/'";
		}
	}
	size_t length = (size_t)(g - start);
	*glob = g;
	if (length == 0)
		return "it has an empty component ('//' or a '/' at the end; write /dir/** for all below "
		       "/dir)";
	if ((length == 1 && start[0] == '.') || (length == 2 && start[0] == '.' && start[1] == '.'))
		return "it has a '.' or '..' component";
	if (length == sizeof(own) - 1 && memcmp(start, own, length) == 0)
		return "it lies in a .fastwrite directory, which is never managed";
	if (shortest > COMPONENT_MAX)
		return "a component is longer than a file name can be (255 bytes)";
	return NULL;
}

bool rule_pattern_valid(const char *glob, const char **why)
{
	if (*glob == '\0') {
		*why = "it is empty";
		return false;
	}
	if (*glob != '/') {
		*why = "it must be absolute, beginning with '/' ('~' and variables are not expanded)";
		return false;
	}
	if (strlen(glob) >= PATH_MAX) {
		*why = "it is longer than a path can be (4095 bytes)";
		return false;
	}
	while (*glob != '\0') {
		glob++;
		const char *problem = component_problem(&glob);
		if (problem != NULL) {
			*why = problem;
			return false;
		}
	}
	return true;
}

size_t rule_literal_split(const char *glob, char *out)
{
	size_t in = 0;
	size_t used = 0;
	size_t in_slash = 0;
	size_t used_slash = 0;

	while (glob[in] != '\0' && strchr("*?[", glob[in]) == NULL && used < PATH_MAX - 1) {
		if (glob[in] == '/') {
			in_slash = in;
			used_slash = used;
		}
		if (glob[in] == '\\' && glob[in + 1] != '\0')
			in++;
		out[used++] = glob[in++];
	}
	if (used_slash == 0)
		out[used_slash++] = '/';
	out[used_slash] = '\0';
	return in_slash;
}

void rule_literal_prefix(const char *glob, char *out) { rule_literal_split(glob, out); }

bool rule_is_literal(const char *glob)
{
	for (; *glob != '\0'; glob++) {
		if (*glob == '\\' && glob[1] != '\0')
			glob++;
		else if (strchr("*?[", *glob) != NULL)
			return false;
	}
	return true;
}

bool rule_covers(const char *earlier, const char *later)
{
	char outer[PATH_MAX];
	char inner[PATH_MAX];

	if (strcmp(earlier, later) == 0)
		return true;
	if (strcmp(earlier + rule_literal_split(earlier, outer), "/**") != 0)
		return false;
	rule_literal_split(later, inner);
	size_t length = strlen(outer);
	if (length == 1)
		return true;
	return strncmp(outer, inner, length) == 0 && (inner[length] == '/' || inner[length] == '\0');
}
