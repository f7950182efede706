// SPDX-License-Identifier: Apache-2.0
/* settings: the configuration as the command sees it, from the environment that a program would get. */
#include "command/command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;

const struct argp_option cli_json_options[] = {
	{"json", 'j', NULL, 0, "Print JSON", 0},
	{0},
};

error_t cli_json_parse(int key, char *arg, struct argp_state *state)
{
	bool *as_json = state->input;

	switch (key) {
	case 'j': *as_json = true; return 0;
	case ARGP_KEY_ARG: argp_error(state, "unexpected argument \"%s\"", arg); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

static void set_key(const char *text, struct argp_state *state)
{
	char name[64], variable[80], known[CONFIG_ERROR_MAX];
	const char *equals = strchr(text, '=');

	if (equals == NULL || (size_t)(equals - text) >= sizeof(name))
		argp_error(state, "-o %s: KEY=VALUE is expected", text);
	snprintf(name, sizeof(name), "%.*s", (int)(equals - text), text);
	if (config_rule_key(name) < 0)
		argp_error(state, "unknown key \"%s\"; allowed: %s", name,
		           config_rule_keys(known, sizeof(known)));
	if (equals[1] == '\0')
		argp_error(state, "-o %s: the value is empty", text);
	setenv(config_variable(name, variable, sizeof(variable)), equals + 1, 1);
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
	if ((key == 'c' || key == 'p') && *arg == '\0')
		argp_error(state, "-%c: the value is empty", key);
	switch (key) {
	case 'c': setenv("FASTWRITE_CONFIG", arg, 1); return 0;
	case 'p': setenv("FASTWRITE_PATHS", arg, 1); return 0;
	case 'o': set_key(arg, state); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

const struct argp cli_settings_argp = {.options = options, .parser = parse};

bool cli_load_config_quietly(const struct config **c)
{
	*c = &config;
	return config_load(&config, environ) == 0;
}

const struct config *cli_load_config(void)
{
	const struct config *c;

	if (cli_load_config_quietly(&c))
		return c;
	cli_error("%s", c->error);
	return NULL;
}

static void say_notice(void *ctx, enum log_level level, const char *text)
{
	(void)ctx, (void)level;
	cli_error("%s", text);
}

void cli_say_notices(const struct config *c, bool descriptors)
{
	config_notices(c, descriptors, say_notice, NULL);
}

const char *cli_origin(const struct config *c, struct config_origin origin, char *buf, size_t size)
{
	if (origin.line != 0)
		snprintf(buf, size, "%s:%u", c->file, origin.line);
	else
		snprintf(buf, size, "%s", config_source_name(origin.source));
	return buf;
}

void cli_print_settings(const struct config *c, const struct rule *rule)
{
	for (int key = 0; key < KEY_COUNT; key++) {
		char value[PATH_MAX];
		char origin[PATH_MAX + 32];

		config_value_text(&rule->set, key, value, sizeof(value));
		printf("  %-14s %-12s %s\n", config_key_name(key), value[0] != '\0' ? value : "(beside data)",
		       cli_origin(c, rule->origin[key], origin, sizeof(origin)));
	}
}

void cli_json_settings(struct json *j, const struct config *c, const struct rule *rule)
{
	json_open(j, "settings", '{');
	for (int key = 0; key < KEY_COUNT; key++) {
		const struct config_origin *origin = &rule->origin[key];
		char value[PATH_MAX];

		json_open(j, config_key_name(key), '{');
		json_text(j, "value", config_value_text(&rule->set, key, value, sizeof(value)));
		json_text(j, "source", config_source_name(origin->source));
		if (origin->line != 0) {
			json_text(j, "file", c->file);
			json_number(j, "line", origin->line);
		}
		json_close(j, '}');
	}
	json_close(j, '}');
}
