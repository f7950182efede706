// SPDX-License-Identifier: Apache-2.0
/*
 * config: puts the sources together.  Runs once, in the library's constructor or at the start of the
 * command; everything that can be wrong is found here, so that nothing is ever half in force.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"
#include "config/rule.h"

#include <fcntl.h>
#include <string.h>

#define PREFIX "FASTWRITE_"

enum { SHOWN_VALUE_MAX = 120, SHOWN_FILE_MAX = 160 };

/* Variables that are no rule keys.  The reserved ones belong to the command and to tests. */
static const char *const variables[] = {"PATHS", "CONFIG", "STRICT", "STATS", "LOG", "INHERIT"};
static const char *const reserved[] = {"REGISTRY", "LIB", "KILL_STEP", "KILL_CHILD_STEP"};

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* ---- messages ---- */

static void record(struct loader *l, int code, const struct origin *at, const char *text)
{
	if (l->status != 0)
		return;
	l->status = code;
	l->status_line = at != NULL && at->variable == NULL ? at->line : 0;
	log_format(l->error, CONFIG_ERROR_MAX, "%s", text);
	for (char *t = l->error; *t != '\0'; t++) {
		if ((unsigned char)*t < 0x20 || *t == 0x7f)
			*t = '?';
	}
}

/* "FILE:LINE: ", a long path cut on the left: its end says more. */
static size_t put_place(char *buf, size_t size, const struct origin *at)
{
	size_t length = strlen(at->file);
	bool cut = length > SHOWN_FILE_MAX;
	const char *file = cut ? at->file + length - SHOWN_FILE_MAX : at->file;

	if (at->line == 0)
		return log_format(buf, size, "%s%s: ", cut ? "..." : "", file);
	return log_format(buf, size, "%s%s:%u: ", cut ? "..." : "", file, at->line);
}

int config_fail(struct loader *l, int code, const struct origin *at, const char *format, ...)
{
	char text[CONFIG_ERROR_MAX];
	size_t used = 0;
	va_list args;

	if (at != NULL)
		used = at->variable != NULL ? log_format(text, sizeof(text), "%s: ", at->variable)
		                            : put_place(text, sizeof(text), at);
	va_start(args, format);
	log_vformat(text + used, sizeof(text) - used, format, args);
	va_end(args);
	record(l, code, at, text);
	return code;
}

int config_fail_value(struct loader *l, const struct origin *at, const char *key, const char *value,
                      const char *format, ...)
{
	char text[CONFIG_ERROR_MAX];
	char shown[SHOWN_VALUE_MAX + 4];
	size_t used = 0;
	va_list args;

	log_format(shown, SHOWN_VALUE_MAX, "%s", value);
	if (strlen(value) >= SHOWN_VALUE_MAX)
		memcpy(shown + SHOWN_VALUE_MAX - 1, "...", 4);
	if (at->variable == NULL)
		used = put_place(text, sizeof(text), at);
	used += log_format(text + used, sizeof(text) - used,
	                   "%s = \"%s\": ", at->variable != NULL ? at->variable : key, shown);
	va_start(args, format);
	log_vformat(text + used, sizeof(text) - used, format, args);
	va_end(args);
	record(l, -EINVAL, at, text);
	return -EINVAL;
}

/* ---- environment ---- */

static const char *env_get(char *const *env, const char *name)
{
	size_t length = strlen(name);

	for (; env != NULL && *env != NULL; env++) {
		if (strncmp(*env, name, length) == 0 && (*env)[length] == '=')
			return (*env)[length + 1] != '\0' ? *env + length + 1 : NULL;
	}
	return NULL;
}

/* "relaxed_ms" -> "FASTWRITE_RELAXED_MS" */
static void variable_of_key(enum config_key key, char *out, size_t size)
{
	size_t used = log_format(out, size, PREFIX "%s", config_key_name(key));

	for (size_t i = 0; i < used; i++) {
		if (out[i] >= 'a' && out[i] <= 'z')
			out[i] = (char)(out[i] - 'a' + 'A');
	}
}

static bool is_known_variable(const char *name)
{
	char variable[64];

	for (size_t i = 0; i < LENGTH(variables); i++) {
		if (strcmp(name + strlen(PREFIX), variables[i]) == 0)
			return true;
	}
	for (size_t i = 0; i < LENGTH(reserved); i++) {
		if (strcmp(name + strlen(PREFIX), reserved[i]) == 0)
			return true;
	}
	for (int key = 0; key < KEY_COUNT; key++) {
		variable_of_key((enum config_key)key, variable, sizeof(variable));
		if (strcmp(name, variable) == 0)
			return true;
	}
	return strncmp(name, PREFIX "TEST_", strlen(PREFIX "TEST_")) == 0;
}

static int fail_unknown_variable(struct loader *l, const char *name)
{
	char known[CONFIG_ERROR_MAX];
	char variable[64];
	size_t used = 0;

	for (size_t i = 0; i < LENGTH(variables); i++)
		used += log_format(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
		                   variables[i]);
	for (int key = 0; key < KEY_COUNT; key++) {
		variable_of_key((enum config_key)key, variable, sizeof(variable));
		used += log_format(known + used, sizeof(known) - used, ", %s", variable + strlen(PREFIX));
	}
	return config_fail(l, -EINVAL, NULL, "%s: unknown key; allowed after " PREFIX " are %s", name, known);
}

static int check_variable_names(struct loader *l, char *const *env)
{
	for (; env != NULL && *env != NULL; env++) {
		const char *equals = strchr(*env, '=');
		char name[128];

		if (strncmp(*env, PREFIX, strlen(PREFIX)) != 0 || equals == NULL)
			continue;
		size_t length = (size_t)(equals - *env);
		if (length >= sizeof(name))
			length = sizeof(name) - 1;
		memcpy(name, *env, length);
		name[length] = '\0';
		if (!is_known_variable(name))
			return fail_unknown_variable(l, name);
	}
	return 0;
}

/* ---- values ---- */

int config_set(struct loader *l, struct layer *to, enum config_key key, const char *text,
               const struct origin *at, enum config_source source)
{
	const char *refused;
	const char *name = config_key_name(key);

	if (source == SOURCE_RULE && config_key_for_all(key))
		return config_fail_value(l, at, name, text,
		                         "is the same for all rules: allowed in [defaults] and as an "
		                         "environment variable");
	if (config_key_parse(key, text, to->set, &refused) != 0) {
		if (refused != NULL)
			return config_fail_value(l, at, name, text,
			                         "not available in this version; use \"%s\"", refused);
		return config_fail_value(l, at, name, text, "allowed: %s", config_key_allowed(key));
	}
	to->source[key] = source;
	to->line[key] = at->variable == NULL ? at->line : 0;
	return 0;
}

static int load_env_keys(struct loader *l, char *const *env)
{
	struct layer base = {&l->base, l->base_source, l->base_line};
	char variable[64];

	for (int key = 0; key < KEY_COUNT; key++) {
		variable_of_key((enum config_key)key, variable, sizeof(variable));
		const struct origin at = {.variable = variable};
		const char *text = env_get(env, variable);
		if (text == NULL)
			continue;
		int rc = config_set(l, &base, (enum config_key)key, text, &at, SOURCE_ENV);
		if (rc != 0)
			return rc;
	}
	return 0;
}

/* `text` into out[PATH_MAX], absolute, so that it means the same after a chdir and in children. */
static int put_absolute(struct loader *l, const struct origin *at, const char *text, char *out)
{
	size_t used = 0;

	if (text[0] != '/') {
		long n = sys_raw(SYS_getcwd, (long)out, PATH_MAX, 0, 0, 0, 0);
		if (n <= 1 || out[0] != '/') {
			out[0] = '\0';
			return config_fail_value(l, at, NULL, text,
			                         "the current directory is not known; use an absolute path");
		}
		used = (size_t)n - 1;
		if (used > 1)
			out[used++] = '/';
	}
	if (strlen(text) >= PATH_MAX - used) {
		out[0] = '\0';
		return config_fail_value(l, at, NULL, text, "longer than a path can be (4095 bytes)");
	}
	memcpy(out + used, text, strlen(text) + 1);
	return 0;
}

static bool ends_in(const char *text, const char *end)
{
	size_t length = strlen(text);

	return length > strlen(end) && strcmp(text + length - strlen(end), end) == 0;
}

static int load_stats(struct loader *l, char *const *env)
{
	const struct origin at = {.variable = PREFIX "STATS"};
	const char *text = env_get(env, at.variable);

	l->c->stats = STATS_NONE;
	l->c->stats_file[0] = '\0';
	l->c->stats_json = false;
	if (text == NULL)
		return 0;
	if (strcmp(text, "stderr") == 0) {
		l->c->stats = STATS_STDERR;
		return 0;
	}
	if (strcmp(text, "stdout") == 0)
		return config_fail_value(l, &at, NULL, text, "allowed: stderr or the path of a file");
	l->c->stats = STATS_FILE;
	l->c->stats_json = ends_in(text, ".json");
	return put_absolute(l, &at, text, l->c->stats_file);
}

static int load_log(struct loader *l, char *const *env)
{
	static const char *const levels[] = {"off", "error", "warn", "info", "debug"};
	const struct origin at = {.variable = PREFIX "LOG"};
	const char *text = env_get(env, at.variable);

	l->c->log = LOG_WARN;
	if (text == NULL)
		return 0;
	for (size_t i = 0; i < LENGTH(levels); i++) {
		if (strcmp(text, levels[i]) == 0) {
			l->c->log = (enum log_level)i;
			return 0;
		}
	}
	return config_fail_value(l, &at, NULL, text, "allowed: off, error, warn, info, debug");
}

static int load_strict(struct loader *l, char *const *env)
{
	const struct origin at = {.variable = PREFIX "STRICT"};
	const char *text = env_get(env, at.variable);

	l->c->strict = text != NULL && strcmp(text, "1") == 0;
	if (text != NULL && strcmp(text, "1") != 0 && strcmp(text, "0") != 0)
		return config_fail_value(l, &at, NULL, text, "allowed: 0, 1");
	return 0;
}

int config_set_inherit(struct loader *l, const char *text, const struct origin *at, enum config_source source)
{
	if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
		return config_fail_value(l, at, "inherit", text, "allowed: 0, 1");
	l->c->inherit = text[0] == '1';
	l->c->inherit_source = source;
	l->c->inherit_line = at->variable == NULL ? at->line : 0;
	return 0;
}

static int load_inherit(struct loader *l, char *const *env)
{
	const struct origin at = {.variable = PREFIX "INHERIT"};
	const char *text = env_get(env, at.variable);

	return text == NULL ? 0 : config_set_inherit(l, text, &at, SOURCE_ENV);
}

/* ---- the pieces together ---- */

static int load_file(struct loader *l, char *const *env)
{
	const struct origin at = {.variable = PREFIX "CONFIG"};
	const char *text = env_get(env, at.variable);
	int rc;

	l->c->file[0] = '\0';
	if (text == NULL)
		return 0;
	rc = put_absolute(l, &at, text, l->c->file);
	if (rc != 0)
		return rc;
	return config_read_file(l);
}

static int load_env_rule(struct loader *l, char *const *env)
{
	const struct origin at = {.variable = PREFIX "PATHS"};
	const char *text = env_get(env, at.variable);
	struct rule *rule = &l->c->rules[0];

	if (text == NULL)
		return 0;
	l->c->rule_count = 1;
	log_format(rule->name, sizeof(rule->name), "env");
	rule->pattern_count = 0;
	rule->paths_line = 0;
	memset(rule->source, 0, sizeof(rule->source));
	int rc = config_add_patterns(l, rule, text, &at, "paths");
	return rc != 0 ? rc : config_finish_patterns(l, rule, &at);
}

/* Keys that a rule does not set itself come from the base. */
static void inherit(const struct loader *l, struct rule *rule)
{
	for (int key = 0; key < KEY_COUNT; key++) {
		if (rule->source[key] == SOURCE_RULE)
			continue;
		config_key_copy((enum config_key)key, &l->base, &rule->set);
		rule->source[key] = l->base_source[key];
		rule->line[key] = l->base_line[key];
	}
}

static uint64_t least_mem(const struct rule *rule)
{
	return 8 * (uint64_t)rule->set.block_bytes + CONFIG_TABLES_BYTES;
}

/* A block size that the user did not choose must not make a `mem` wrong that is allowed. */
static void fit_block(struct rule *rule)
{
	enum { LEAST = 64 << 10 }; /* see config/key.c; the least `mem` holds eight of these */

	while (rule->source[KEY_BLOCK] == SOURCE_DEFAULT && rule->set.mem_bytes < least_mem(rule) &&
	       rule->set.block_bytes > LEAST)
		rule->set.block_bytes /= 2;
}

static int check_mem(struct loader *l, const struct rule *rule)
{
	uint64_t least = least_mem(rule);
	enum config_key key = rule->source[KEY_MEM] == SOURCE_DEFAULT ? KEY_BLOCK : KEY_MEM;
	char value[32];
	char block[32];
	char need[32];
	char tables[32];
	struct origin at = {.file = l->c->file, .line = rule->line[key]};

	if (rule->set.mem_bytes >= least)
		return 0;
	if (rule->source[key] == SOURCE_ENV)
		at.variable = key == KEY_MEM ? PREFIX "MEM" : PREFIX "BLOCK";
	config_value_text(&rule->set, key, value, sizeof(value));
	config_size_text(rule->set.block_bytes, block, sizeof(block));
	config_size_text(least, need, sizeof(need));
	config_size_text(CONFIG_TABLES_BYTES, tables, sizeof(tables));
	return config_fail_value(l, &at, config_key_name(key), value,
	                         "mem must be at least 8 x block + %s, that is %s for block = %s", tables,
	                         need, block);
}

static int load(struct loader *l, char *const *env)
{
	int rc = load_strict(l, env);

	if (rc == 0)
		rc = check_variable_names(l, env);
	if (rc == 0)
		rc = load_log(l, env);
	if (rc == 0)
		rc = load_stats(l, env);
	if (rc == 0)
		rc = load_env_rule(l, env);
	if (rc == 0)
		rc = load_file(l, env);
	if (rc == 0)
		rc = load_env_keys(l, env);
	if (rc == 0)
		rc = load_inherit(l, env);
	for (uint32_t i = 0; rc == 0 && i < l->c->rule_count; i++) {
		inherit(l, &l->c->rules[i]);
		fit_block(&l->c->rules[i]);
		rc = check_mem(l, &l->c->rules[i]);
	}
	return rc;
}

int config_load(struct config *c, char *const *env, char *error)
{
	struct loader l = {.c = c, .error = error};

	/* The rules are left as they are: clearing them would touch every page of a large structure. */
	error[0] = '\0';
	c->rule_count = 0;
	c->text_used = 0;
	c->stats = STATS_NONE;
	c->log = LOG_WARN;
	c->inherit = true;
	c->inherit_source = SOURCE_DEFAULT;
	c->inherit_line = 0;
	c->file[0] = '\0';
	config_key_defaults(&l.base);
	int rc = load(&l, env);
	if (rc != 0)
		c->rule_count = 0;
	return rc;
}
