// SPDX-License-Identifier: Apache-2.0
/* config: `fastwrite config`, the settings in force for each rule and where each comes from. */
#include "command/command.h"

static const char doc[] =
	"Prints the settings in force for every rule, and where each value comes from: a built-in default, "
	"the environment, or a line of the configuration file.\n"
	"\vExit status: 0 the configuration is valid; 2 it is not, and one line on standard error says why.";

static const char *stats_text(const struct config *c)
{
	return c->stats == STATS_NONE ? "none" : c->stats == STATS_STDERR ? "stderr" : c->stats_file;
}

static void print_text(const struct config *c)
{
	char origin[PATH_MAX + 32];

	printf("file     %s\n", c->file[0] != '\0' ? c->file : "none (FASTWRITE_CONFIG)");
	printf("on_error %s\n", config_word(KEY_ON_ERROR, c->on_error));
	printf("log      %s\n", config_word(KEY_LOG, c->log));
	printf("log_to   %s\n", config_word(KEY_LOG_TO, c->log_to));
	printf("stats    %s\n", stats_text(c));
	printf("inherit  %s (%s)\n", config_word(KEY_INHERIT, c->inherit),
	       cli_origin(c, c->origin[KEY_INHERIT], origin, sizeof(origin)));
	if (c->rule_count == 0)
		printf("\nno rule: nothing is staged; set FASTWRITE_PATHS or FASTWRITE_CONFIG\n");
	for (uint32_t r = 0; r < c->rule_count; r++) {
		const struct rule *rule = &c->rules[r];

		printf("\nrule %s (%s)\n", rule->name,
		       rule->paths_origin.source == SOURCE_ENV
		               ? "FASTWRITE_PATHS"
		               : cli_origin(c, rule->paths_origin, origin, sizeof(origin)));
		for (uint32_t i = 0; i < rule->pattern_count; i++)
			printf("  %-14s %s%s\n", i == 0 ? "paths" : "", rule->patterns[i].exclude ? "!" : "",
			       rule->patterns[i].glob);
		cli_print_settings(c, rule);
	}
}

static void print_json(const struct config *c)
{
	struct json j = {.out = stdout};

	json_open(&j, NULL, '{');
	json_text(&j, "file", c->file[0] != '\0' ? c->file : NULL);
	json_text(&j, "on_error", config_word(KEY_ON_ERROR, c->on_error));
	json_bool(&j, "strict", c->on_error == ON_ERROR_STOP); /* its old name */
	json_text(&j, "log", config_word(KEY_LOG, c->log));
	json_text(&j, "log_to", config_word(KEY_LOG_TO, c->log_to));
	json_text(&j, "stats", stats_text(c));
	json_bool(&j, "inherit", c->inherit);
	json_open(&j, "rules", '[');
	for (uint32_t r = 0; r < c->rule_count; r++) {
		const struct rule *rule = &c->rules[r];

		json_open(&j, NULL, '{');
		json_text(&j, "name", rule->name);
		if (rule->paths_origin.line != 0)
			json_number(&j, "line", rule->paths_origin.line);
		json_text(&j, "prefix", rule->prefix);
		json_open(&j, "paths", '[');
		for (uint32_t i = 0; i < rule->pattern_count; i++) {
			json_open(&j, NULL, '{');
			json_text(&j, "glob", rule->patterns[i].glob);
			json_bool(&j, "exclude", rule->patterns[i].exclude);
			json_close(&j, '}');
		}
		json_close(&j, ']');
		cli_json_settings(&j, c, rule);
		json_close(&j, '}');
	}
	json_close(&j, ']');
	json_close(&j, '}');
}

int cli_config(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {
		.options = cli_json_options, .parser = cli_json_parse, .doc = doc, .children = children};
	bool as_json = false;

	if (argp_parse(&argp, argc, argv, 0, NULL, &as_json) != 0)
		return CLI_USAGE;
	const struct config *c = cli_load_config();
	if (c == NULL)
		return CLI_USAGE;
	if (as_json) {
		print_json(c);
	} else {
		cli_say_notices(c, false);
		print_text(c);
	}
	return CLI_OK;
}
