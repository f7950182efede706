// SPDX-License-Identifier: Apache-2.0
/*
 * config: puts the sources together, once, in the library's constructor or at the start of the command.
 * Everything that can be wrong is found here: a configuration is in force as a whole or not at all.
 */
#include "config/internal.h"

#include "base/log.h"
#include "base/sys.h"

#include <string.h>

#define PREFIX "FASTWRITE_"

const struct config *live_config;

/* Variables that are no keys: for the command and for tests. */
static const char *const reserved[] = {"REGISTRY", "LIB", "KILL_STEP", "KILL_CHILD_STEP"};

#define LENGTH(a) (sizeof(a) / sizeof((a)[0]))

/* ---- environment ---- */

static const struct config_origin from_env = {.source = SOURCE_ENV};

/* What follows the name in a variable of this key, or NULL: it is another's.  (As config_variable, in a tenth
 * of the time: each program that starts compares each variable with each key.) */
static const char *behind_name(const char *variable, enum config_key key)
{
	const char *name = config_key_name(key);

	if (strncmp(variable, PREFIX, strlen(PREFIX)) != 0)
		return NULL;
	for (variable += strlen(PREFIX); *name != '\0'; variable++, name++)
		if (*variable != (*name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name))
			return NULL;
	return variable;
}

/* The value of a key's variable, NULL when it is unset or empty. */
static const char *env_get(char *const *env, enum config_key key)
{
	for (; env != NULL && *env != NULL; env++) {
		const char *value = behind_name(*env, key);

		if (value != NULL && *value == '=')
			return value[1] != '\0' ? value + 1 : NULL;
	}
	return NULL;
}

static bool is_known_variable(const char *name)
{
	for (int key = 0; key < KEY_ALL; key++) {
		const char *end = behind_name(name, key);

		if (end != NULL && *end == '\0')
			return true;
	}
	for (size_t i = 0; i < LENGTH(reserved); i++) {
		if (strcmp(name + strlen(PREFIX), reserved[i]) == 0)
			return true;
	}
	return strncmp(name, PREFIX "TEST_", strlen(PREFIX "TEST_")) == 0;
}

static int fail_unknown_variable(struct config *c, const char *name)
{
	const struct setting at = {0};
	char known[CONFIG_ERROR_MAX];
	char variable[64];
	size_t used = 0;

	for (int key = 0; key < KEY_ALL; key++) {
		if (key == KEY_STRICT)
			continue;
		config_variable(config_key_name(key), variable, sizeof(variable));
		used += log_format(known + used, sizeof(known) - used, "%s%s", used > 0 ? ", " : "",
		                   variable + strlen(PREFIX));
	}
	return config_fail(c, -EINVAL, &at, "%s: unknown key; allowed after " PREFIX " are %s", name, known);
}

static int check_variable_names(struct config *c, char *const *env)
{
	for (; env != NULL && *env != NULL; env++) {
		size_t length = strcspn(*env, "=");
		char name[128];

		if (strncmp(*env, PREFIX, strlen(PREFIX)) != 0 || (*env)[length] == '\0')
			continue;
		log_format(name, length < sizeof(name) ? length + 1 : sizeof(name), "%s", *env);
		if (!is_known_variable(name))
			return fail_unknown_variable(c, name);
	}
	return 0;
}

/* The keys from `first` up to `end` that a variable sets. */
static int load_keys(struct config *c, char *const *env, int first, int end)
{
	for (int key = first; key < end; key++) {
		const char *text = env_get(env, key);
		int rc = text != NULL ? config_set(c, NULL, key, text, from_env) : 0;

		if (rc != 0)
			return rc;
	}
	return 0;
}

/* `text` into out[PATH_MAX], absolute, so that it means the same after a chdir and in children. */
static int put_absolute(struct config *c, enum config_key key, const char *text, char *out)
{
	const struct setting at = {from_env, config_key_name(key), text};
	size_t used = 0;

	if (text[0] != '/') {
		long n = sys_raw(SYS_getcwd, (long)out, PATH_MAX, 0, 0, 0, 0);
		if (n <= 1 || out[0] != '/') {
			out[0] = '\0';
			return config_fail(c, -EINVAL, &at,
			                   "the current directory is not known; use an absolute path");
		}
		used = (size_t)n - 1;
		if (used > 1)
			out[used++] = '/';
	}
	if (strlen(text) >= PATH_MAX - used) {
		out[0] = '\0';
		return config_fail(c, -EINVAL, &at, "longer than a path can be (4095 bytes)");
	}
	memcpy(out + used, text, strlen(text) + 1);
	return 0;
}

static bool ends_in(const char *text, const char *end)
{
	size_t length = strlen(text);

	return length > strlen(end) && strcmp(text + length - strlen(end), end) == 0;
}

static int load_stats(struct config *c, char *const *env)
{
	const char *text = env_get(env, KEY_STATS);
	const struct setting at = {from_env, "stats", text};

	if (text == NULL)
		return 0;
	if (strcmp(text, "stdout") == 0)
		return config_fail(c, -EINVAL, &at, "allowed: stderr or the path of a file");
	if (strcmp(text, "stderr") == 0) {
		c->stats = STATS_STDERR;
		return 0;
	}
	c->stats = STATS_FILE;
	c->stats_json = ends_in(text, ".json");
	return put_absolute(c, KEY_STATS, text, c->stats_file);
}

static int load_file(struct config *c, char *const *env)
{
	const char *text = env_get(env, KEY_CONFIG);
	int rc;

	if (text == NULL)
		return 0;
	rc = put_absolute(c, KEY_CONFIG, text, c->file);
	return rc != 0 ? rc : config_read_file(c);
}

static int load_env_rule(struct config *c, char *const *env)
{
	const char *text = env_get(env, KEY_PATHS);
	struct rule *rule;
	int rc;

	if (text == NULL)
		return 0;
	rule = config_add_rule(c, "env", from_env);
	rc = config_add_patterns(c, rule, text, from_env);
	return rc != 0 ? rc : config_finish_patterns(c, rule);
}

/* ---- across keys ---- */

static uint64_t least_mem(const struct rule *rule)
{
	return 8 * (uint64_t)rule->set.block_bytes + CONFIG_TABLES_BYTES;
}

/* A default block size must not make a `mem` wrong that is allowed. */
static void fit_block(struct rule *rule)
{
	enum { LEAST = 64 << 10 }; /* the least `mem` holds eight of these */

	while (rule->origin[KEY_BLOCK].source == SOURCE_DEFAULT && rule->set.mem_bytes < least_mem(rule) &&
	       rule->set.block_bytes > LEAST)
		rule->set.block_bytes /= 2;
}

static int check_mem(struct config *c, const struct rule *rule)
{
	enum config_key key = rule->origin[KEY_MEM].source == SOURCE_DEFAULT ? KEY_BLOCK : KEY_MEM;
	uint64_t least = least_mem(rule);
	char value[32], block[32], need[32], tables[32];
	const struct setting at = {rule->origin[key], config_key_name(key), value};

	if (rule->set.mem_bytes >= least)
		return 0;
	config_value_text(&rule->set, key, value, sizeof(value));
	config_size_text(rule->set.block_bytes, block, sizeof(block));
	config_size_text(least, need, sizeof(need));
	config_size_text(CONFIG_TABLES_BYTES, tables, sizeof(tables));
	return config_fail(c, -EINVAL, &at, "mem must be at least 8 x block + %s, that is %s for block = %s",
	                   tables, need, block);
}

static int load(struct config *c, char *const *env)
{
	int rc = load_keys(c, env, KEY_LOG_TO, KEY_STATS);

	if (rc == 0)
		rc = check_variable_names(c, env);
	if (rc == 0)
		rc = load_stats(c, env);
	if (rc == 0)
		rc = load_env_rule(c, env);
	if (rc == 0)
		rc = load_file(c, env);
	if (rc == 0)
		rc = load_keys(c, env, 0, KEY_LOG_TO); /* after the file: a variable wins over [defaults] */
	for (uint32_t i = 0; rc == 0 && i < c->rule_count; i++) {
		config_set_from_base(c, &c->rules[i]);
		fit_block(&c->rules[i]);
		rc = check_mem(c, &c->rules[i]);
	}
	return rc;
}

/* Those that concern the library, into out[most + 1].  If there are more: all. */
static char *const *own_variables(char *const *env, char **out, size_t most)
{
	char *const *all = env;
	size_t count = 0;

	for (; env != NULL && *env != NULL; env++) {
		if (strncmp(*env, PREFIX, strlen(PREFIX)) != 0)
			continue;
		if (count == most)
			return all;
		out[count++] = *env;
	}
	out[count] = NULL;
	return out;
}

int config_load(struct config *c, char *const *env)
{
	enum { MOST = 2 * KEY_ALL };
	char *own[MOST + 1];
	int rc;

	/* c->rules stays as it is: clearing it would touch every page of a large structure */
	c->rule_count = 0;
	c->text_used = 0;
	c->no_proc = false;
	c->stats = STATS_NONE;
	c->stats_json = false;
	c->stats_file[0] = '\0';
	c->file[0] = '\0';
	c->error[0] = '\0';
	config_set_defaults(c);
	rc = load(c, own_variables(env, own, MOST));
	if (rc != 0)
		c->rule_count = 0;
	return rc;
}
