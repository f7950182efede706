// SPDX-License-Identifier: Apache-2.0
/* cli_config: `fastwrite config`: the settings in force per rule, and where each comes from. */
#include "command/command.h"

#include <string.h>

static const char doc[] =
	"Prints the settings in force for every rule and where each value comes from: a built-in default, "
	"the "
	"environment, or a line of the configuration file.\n"
	"\v"
	"--probe measures what making 4 KiB durable costs by each method, in DIRECTORY or in the directory of "
	"every rule; it takes about two seconds for each and writes some megabytes there.\n"
	"\n"
	"Exit status: 0 the configuration is right, 1 a directory cannot be probed, 2 the configuration is wrong (one "
	"line on standard error says what).";

struct config_args {
	bool as_json;
	bool probe;
	const char *dir; /* to probe, NULL = those of the rules */
};

static const struct argp_option options[] = {
	{"json", 'j', NULL, 0, "Print JSON", 0},
	{"probe", 'P', NULL, 0, "Measure the methods of sync", 0},
	{0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct config_args *args = state->input;

	switch (key) {
	case ARGP_KEY_INIT: return 0;
	case 'j': args->as_json = true; return 0;
	case 'P': args->probe = true; return 0;
	case ARGP_KEY_ARG:
		if (args->dir != NULL)
			argp_error(state, "unexpected argument \"%s\"", arg);
		args->dir = arg;
		return 0;
	case ARGP_KEY_END:
		if (args->dir != NULL && !args->probe)
			argp_error(state, "unexpected argument \"%s\"", args->dir);
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

static const char *const log_names[] = {"off", "error", "warn", "info", "debug"};

static const char *stats_text(const struct config *c)
{
	return c->stats == STATS_NONE ? "none" : c->stats == STATS_STDERR ? "stderr" : c->stats_file;
}

static void print_text(const struct config *c)
{
	printf("file    %s\n", c->file[0] != '\0' ? c->file : "none (FASTWRITE_CONFIG)");
	printf("strict  %d\nlog     %s\nstats   %s\n", c->strict, log_names[c->log], stats_text(c));
	printf("inherit %d (", c->inherit);
	if (c->inherit_line != 0)
		printf("%s:%u)\n", c->file, c->inherit_line);
	else
		printf("%s)\n", config_source_name(c->inherit_source));
	if (c->rule_count == 0)
		printf("\nno rule: nothing is staged; set FASTWRITE_PATHS or FASTWRITE_CONFIG\n");
	for (uint32_t r = 0; r < c->rule_count; r++) {
		const struct rule *rule = &c->rules[r];

		printf("\nrule %s", rule->name);
		if (rule->paths_line != 0)
			printf(" (%s:%u)\n", c->file, rule->paths_line);
		else
			printf(" (FASTWRITE_PATHS)\n");
		for (uint32_t i = 0; i < rule->pattern_count; i++)
			printf("  %-14s %s%s\n", i == 0 ? "paths" : "", rule->patterns[i].exclude ? "!" : "",
			       rule->patterns[i].glob);
		cli_print_settings(c, rule);
	}
}

/* Rules may share a directory. */
static bool prefix_seen(const struct config *c, uint32_t r)
{
	for (uint32_t i = 0; i < r; i++)
		if (strcmp(c->rules[i].prefix, c->rules[r].prefix) == 0)
			return true;
	return false;
}

static int probe(const struct config *c, const struct config_args *args, struct json *j)
{
	int status = CLI_OK;

	if (args->dir != NULL)
		return cli_probe(args->dir, j);
	for (uint32_t r = 0; r < c->rule_count; r++)
		if (!prefix_seen(c, r) && cli_probe(c->rules[r].prefix, j) != CLI_OK)
			status = CLI_FAILED;
	return status;
}

static int print_json(const struct config *c, const struct config_args *args)
{
	struct json j = {.out = stdout};
	int status = CLI_OK;

	json_open(&j, NULL, '{');
	json_text(&j, "file", c->file[0] != '\0' ? c->file : NULL);
	json_bool(&j, "strict", c->strict);
	json_text(&j, "log", log_names[c->log]);
	json_text(&j, "stats", stats_text(c));
	json_bool(&j, "inherit", c->inherit);
	json_open(&j, "rules", '[');
	for (uint32_t r = 0; r < c->rule_count; r++) {
		const struct rule *rule = &c->rules[r];

		json_open(&j, NULL, '{');
		json_text(&j, "name", rule->name);
		if (rule->paths_line != 0)
			json_number(&j, "line", rule->paths_line);
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
	if (args->probe) {
		json_open(&j, "probe", '[');
		status = probe(c, args, &j);
		json_close(&j, ']');
	}
	json_close(&j, '}');
	return status;
}

int cli_config(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.args_doc = "[DIRECTORY]",
		.doc = doc,
		.children = children,
	};
	struct config_args args = {0};

	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
		return CLI_USAGE;
	const struct config *c = cli_load_config();
	if (c == NULL)
		return CLI_USAGE;
	if (args.as_json)
		return print_json(c, &args);
	cli_say_doubts(c, false);
	print_text(c);
	return args.probe ? probe(c, &args, NULL) : CLI_OK;
}
