// SPDX-License-Identifier: Apache-2.0
/* cli_settings: the configuration as the command sees it: the same environment that a program would get. */
#include "command/command.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;

static void set_config_file(const char *file, struct argp_state *state)
{
	char path[PATH_MAX];

	/* absolute: the program may run elsewhere */
	if (file[0] == '/' || getcwd(path, sizeof(path)) == NULL) {
		setenv("FASTWRITE_CONFIG", file, 1);
		return;
	}
	size_t used = strlen(path);
	if (used + 1 + strlen(file) >= sizeof(path))
		argp_error(state, "--config: the path is too long");
	snprintf(path + used, sizeof(path) - used, "/%s", file);
	setenv("FASTWRITE_CONFIG", path, 1);
}

static void fail_unknown_key(struct argp_state *state, const char *name)
{
	char known[512];
	size_t used = 0;

	for (int key = 0; key < KEY_COUNT; key++)
		used += (size_t)snprintf(known + used, sizeof(known) - used, "%s%s", key > 0 ? ", " : "",
		                         config_key_name((enum config_key)key));
	argp_error(state, "unknown key \"%s\"; allowed: %s", name, known);
}

static void set_key(const char *text, struct argp_state *state)
{
	char name[64];
	char variable[80] = "FASTWRITE_";
	const char *equals = strchr(text, '=');
	bool found = false;

	if (equals == NULL || (size_t)(equals - text) >= sizeof(name))
		argp_error(state, "-o %s: KEY=VALUE is expected", text);
	memcpy(name, text, (size_t)(equals - text));
	name[equals - text] = '\0';
	for (int key = 0; key < KEY_COUNT; key++)
		found = found || strcmp(name, config_key_name((enum config_key)key)) == 0;
	if (!found)
		fail_unknown_key(state, name);
	size_t used = strlen(variable);
	for (const char *c = name; *c != '\0'; c++)
		variable[used++] = (char)toupper((unsigned char)*c);
	variable[used] = '\0';
	setenv(variable, equals + 1, 1);
}

static const struct argp_option options[] = {
	{"config", 'c', "FILE", 0, "Read this configuration file (FASTWRITE_CONFIG)", 0},
	{"paths", 'p', "GLOBS", 0, "Stage files that match, colon-separated (FASTWRITE_PATHS)", 0},
	{"set", 'o', "KEY=VALUE", 0, "Set one key, for instance sync=off (FASTWRITE_SYNC)", 0},
	{0},
};

bool cli_settings_given;

static error_t parse(int key, char *arg, struct argp_state *state)
{
	if (key == 'c' || key == 'p' || key == 'o')
		cli_settings_given = true;
	switch (key) {
	case 'c': set_config_file(arg, state); return 0;
	case 'p': setenv("FASTWRITE_PATHS", arg, 1); return 0;
	case 'o': set_key(arg, state); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

const struct argp cli_settings_argp = {.options = options, .parser = parse};

const struct config *cli_load_config(void)
{
	char error[CONFIG_ERROR_MAX];

	if (config_load(&config, environ, error) != 0) {
		cli_error("%s", error);
		return NULL;
	}
	return &config;
}

const struct config *cli_load_config_quietly(void)
{
	char error[CONFIG_ERROR_MAX];

	return config_load(&config, environ, error) == 0 ? &config : NULL;
}

bool cli_streams_off(void)
{
	const struct config *c = cli_load_config_quietly();

	return c != NULL && c->rule_count > 0 && c->rules[0].set.stdio == STDIO_OFF;
}

/* Once for each rule. */
static void say_descriptors(const struct config *c)
{
	bool said[CONFIG_RULES_MAX] = {0};
	char path[PATH_MAX];
	char text[PATH_MAX + 256];

	for (int fd = 0; fd <= 2; fd++) {
		const struct rule *rule = config_rule_of_fd(c, fd, path);

		if (rule == NULL || said[rule - c->rules])
			continue;
		said[rule - c->rules] = true;
		config_fd_text(fd, path, rule, text, sizeof(text));
		cli_error("%s", text);
	}
}

void cli_say_doubts(const struct config *c, bool descriptors)
{
	char text[PATH_MAX + 256];

	for (uint32_t i = 0; i < c->rule_count; i++) {
		if (config_doubt(c, &c->rules[i], DOUBT_SEVERAL, text, sizeof(text)))
			cli_error("%s", text);
		if (config_doubt(c, &c->rules[i], DOUBT_MISSING, text, sizeof(text)))
			cli_error("%s", text);
	}
	if (descriptors)
		say_descriptors(c);
}

const char *cli_origin(const struct config *c, const struct rule *rule, enum config_key key, char *buf,
                       size_t size)
{
	switch (rule->source[key]) {
	case SOURCE_FILE:
	case SOURCE_RULE: snprintf(buf, size, "%s:%u", c->file, rule->line[key]); break;
	default: snprintf(buf, size, "%s", config_source_name(rule->source[key]));
	}
	return buf;
}

void cli_print_settings(const struct config *c, const struct rule *rule)
{
	for (int key = 0; key < KEY_COUNT; key++) {
		char value[PATH_MAX];
		char origin[PATH_MAX + 32];

		config_value_text(&rule->set, (enum config_key)key, value, sizeof(value));
		cli_origin(c, rule, (enum config_key)key, origin, sizeof(origin));
		printf("  %-14s %-12s %s\n", config_key_name((enum config_key)key),
		       value[0] != '\0' ? value : "(beside data)", origin);
	}
}

void cli_json_settings(struct json *j, const struct config *c, const struct rule *rule)
{
	json_open(j, "settings", '{');
	for (int key = 0; key < KEY_COUNT; key++) {
		char value[PATH_MAX];

		config_value_text(&rule->set, (enum config_key)key, value, sizeof(value));
		json_open(j, config_key_name((enum config_key)key), '{');
		json_text(j, "value", value);
		json_text(j, "source", config_source_name(rule->source[key]));
		if (rule->line[key] != 0) {
			json_text(j, "file", c->file);
			json_number(j, "line", rule->line[key]);
		}
		json_close(j, '}');
	}
	json_close(j, '}');
}
