// SPDX-License-Identifier: Apache-2.0
/* recover: `fastwrite recover`, arguments and output; shim/recovery does the work. */
#include "command/command.h"

#include "format/arena_format.h"
#include "recovery/recover.h"

#include <errno.h>
#include <string.h>

struct recover_args {
	bool as_json;
	bool dry_run;
	bool force;
	bool quiet;
	bool all;
	char **paths;
	int count;
};

static const char doc[] =
	"Writes the staged bytes of dead programs to their files.  A PATH is an arena file, a staging "
	"directory (.fastwrite), a directory that has one, or a file beside one.  Bytes for PATH in a "
	"staging directory above it, or in one of the configuration in the environment, are named, and "
	"count as a failure: recover that directory.  Directories below PATH are not searched.  Arenas of "
	"running programs are left alone.  It may be interrupted and run again.\n"
	"With --all, or with a configuration instead of a PATH, it looks at every place where programs may "
	"have staged under that configuration.\n"
	"\vThe result for each arena or file: live (in use, left alone), recovered, nothing (no byte was "
	"missing), orphaned (the file is gone; its bytes are kept under .fastwrite/orphans/), aside (the "
	"file was changed after the program died, or the bytes may be older than what was synced; they are "
	"kept under .fastwrite/aside/, and --force writes them), failed.\n"
	"\n"
	"Exit status: 0 done, or nothing to do, or only bytes of an earlier boot that no sync covered were "
	"put aside; 1 something failed or was put aside; 2 wrong usage.";

static const struct argp_option options[] = {
	{"all", 'a', NULL, 0, "Look at every place of the configuration (FASTWRITE_CONFIG, FASTWRITE_PATHS)",
         0},
	{"force", 'f', NULL, 0, "Also write what was put aside, over what the file has now", 0},
	{"dry-run", 'n', NULL, 0, "Say what would be done, change nothing", 0},
	{"json", 'j', NULL, 0, "Print JSON", 0},
	{"quiet", 'q', NULL, 0, "Print failures only", 0},
	{0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct recover_args *args = state->input;

	(void)arg;
	switch (key) {
	case 'a': args->all = true; return 0;
	case 'f': args->force = true; return 0;
	case 'n': args->dry_run = true; return 0;
	case 'j': args->as_json = true; return 0;
	case 'q': args->quiet = true; return 0;
	case ARGP_KEY_ARGS:
		args->paths = state->argv + state->next;
		args->count = state->argc - state->next;
		return 0;
	case ARGP_KEY_END:
		args->all |= args->count == 0 && cli_settings_given;
		if (args->count == 0 && !args->all)
			argp_error(state,
			           "a PATH is missing: an arena, a directory or a file that was written to; "
			           "or --all, or --config=FILE");
		if (args->count > 0 && (args->all || cli_settings_given))
			argp_error(state, "give a PATH or a configuration, not both");
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

struct output {
	const struct recover_args *args;
	struct json *json;
};

static void on_event(void *ctx, const struct recover_event *e)
{
	const struct output *o = ctx;
	bool failed = strcmp(e->action, "failed") == 0 || strcmp(e->action, "aside") == 0;
	char detail[PATH_MAX];

	if (o->json != NULL) {
		json_open(o->json, NULL, '{');
		json_text(o->json, "arena", e->arena);
		json_text(o->json, "target", e->target[0] != '\0' ? e->target : NULL);
		json_text(o->json, "action", e->action);
		json_number(o->json, "bytes", (long long)e->bytes);
		if (e->error != 0)
			json_text(o->json, "error", strerror(-e->error));
		if (e->detail[0] != '\0')
			json_text(o->json, "detail", e->detail);
		json_close(o->json, '}');
		return;
	}
	if (!failed && o->args->quiet)
		return;
	FILE *out = failed ? stderr : stdout;
	fflush(stdout);
	fprintf(out, "%-9s  ", e->action);
	cli_put_name(out, e->target[0] != '\0' ? e->target : e->arena);
	if (e->bytes > 0)
		fprintf(out, "  %llu bytes", (unsigned long long)e->bytes);
	if (e->error != 0 && e->error != FORMAT_NEWER)
		fprintf(out, "  %s", strerror(-e->error));
	if (e->detail[0] != '\0') {
		fputs("  (", out);
		cli_put_name(out, cli_recover_detail(e, detail));
		fputc(')', out);
	}
	fputc('\n', out);
}

/* The counts that are not 0; false when all are 0. */
static bool print_counts(const struct recover_report *r)
{
	const struct {
		uint64_t count;
		const char *what;
	} counts[] = {{r->live, "live"},
	              {r->recovered, "recovered"},
	              {r->orphans, "orphaned"},
	              {r->aside, "put aside"},
	              {r->failed, "failed"}};
	const char *comma = "";

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		if (counts[i].count == 0)
			continue;
		printf("%s%llu %s", comma, (unsigned long long)counts[i].count, counts[i].what);
		comma = ", ";
	}
	if (r->bytes > 0)
		printf(" (%llu bytes)", (unsigned long long)r->bytes);
	return *comma != '\0';
}

/* c: the places of its rules were looked at, too; NULL: there is no configuration. */
static void print_totals(const struct recover_args *args, const struct config *c,
                         const struct recover_report *r)
{
	const char *elsewhere = c == NULL ? "; what is staged elsewhere is found with --config or --all" : "";

	if (args->quiet)
		return;
	if (r->arenas == 0) {
		if (args->all)
			printf("nothing to recover\n");
		else
			printf("nothing to recover (directories below are not searched%s)\n", elsewhere);
		return;
	}
	printf("%s%llu arenas: ", args->dry_run ? "dry run: " : "", (unsigned long long)r->arenas);
	if (!print_counts(r))
		printf("nothing was missing in the files; %s", args->dry_run ? "to be removed" : "removed");
	putchar('\n');
}

static void json_totals(struct json *j, const struct recover_args *args, const struct recover_report *r)
{
	json_bool(j, "dry_run", args->dry_run);
	json_number(j, "arenas", (long long)r->arenas);
	json_number(j, "live", (long long)r->live);
	json_number(j, "recovered", (long long)r->recovered);
	json_number(j, "aside", (long long)r->aside);
	json_number(j, "unsynced", (long long)r->unsynced);
	json_number(j, "orphans", (long long)r->orphans);
	json_number(j, "failed", (long long)r->failed);
	json_number(j, "bytes", (long long)r->bytes);
}

/* For a PATH: the configuration in the environment; NULL: there is none, or it is wrong. */
static const struct config *known_rules(void)
{
	const struct config *c;

	if (!cli_load_config_quietly(&c)) {
		cli_error("%s; the places of its rules are not looked at", c->error);
		return NULL;
	}
	return c->rule_count > 0 ? c : NULL;
}

int cli_recover(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .args_doc = "PATH...\n--all\n--config=FILE",
	                                 .doc = doc,
	                                 .children = children};
	const struct config *config = NULL;
	struct recover_args args = {0};
	struct recover_report report = {0};
	struct json json = {.out = stdout};
	bool failed = false;

	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
		return CLI_USAGE;
	if (args.all && (config = cli_load_config()) == NULL)
		return CLI_USAGE;
	if (args.all && config->rule_count == 0) {
		cli_error("no rule says where to look; give --config or --paths, or set FASTWRITE_CONFIG or "
		          "FASTWRITE_PATHS");
		return CLI_USAGE;
	}
	if (!args.all)
		config = known_rules();
	struct output output = {&args, args.as_json ? &json : NULL};
	const struct recover_options opt = {
		.dry_run = args.dry_run, .force = args.force, .event = on_event, .ctx = &output};
	if (args.as_json) {
		json_open(&json, NULL, '{');
		json_open(&json, "events", '[');
	}
	if (args.all && cli_recover_all(config, &opt, &report) > 0)
		failed = true;
	for (int i = 0; i < args.count; i++)
		if (cli_recover_given(args.paths[i], config, &opt, &report) > 0)
			failed = true;
	if (args.as_json) {
		json_close(&json, ']');
		json_totals(&json, &args, &report);
		json_close(&json, '}');
	} else {
		print_totals(&args, config, &report);
	}
	return failed || report.failed > 0 || report.aside > report.unsynced ? CLI_FAILED : CLI_OK;
}
