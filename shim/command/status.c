// SPDX-License-Identifier: Apache-2.0
/* status: `fastwrite status`, arguments, text and JSON; recovery/status.c reads the counters. */
#include "command/command.h"

#include "recovery/status.h"

#include <stdlib.h>
#include <string.h>

enum { OPTION_PROMETHEUS = 0x100, OPTION_WATCH, OPTION_COUNT };

struct status_args {
	bool json, prometheus, watch;
	double seconds;      /* between two tables */
	unsigned long count; /* of tables, 0 = no end */
};

static const char doc[] =
	"Shows every running program that stages writes: what it staged, flushed and synced, in all and "
	"by file, and why files are bypassed.  Only root sees the programs of other users.  The number of "
	"staged bytes is exact; the counters are updated whenever a block is flushed.  With visibility = "
	"strict, a file's lease is \"held\" while bytes are staged, and \"busy\" while another process has "
	"the file open, which is then bypassed.  With a configuration (FASTWRITE_CONFIG, "
	"FASTWRITE_PATHS) it also shows, by file, the bytes of dead programs that wait to be recovered; "
	"--watch does not.\n"
	"\vExit status: 0 shown, also when there is none; 1 /proc could not be read; 2 wrong usage.";

/* NULL unless visibility = strict. */
static const char *lease_state(const struct status_file *f)
{
	if (!(f->flags & ENTRY_STRICT))
		return NULL;
	if (f->flags & ENTRY_LEASED)
		return "held";
	return f->flags & ENTRY_LEASE_BUSY ? "busy" : "none";
}

void cli_say_newer(const char *arena, int pid, uint32_t version)
{
	char text[FORMAT_NEWER_MAX];

	cli_error("%s of process %d: %s", arena, pid, format_newer_text(version, ARENA_VERSION_NEWEST, text));
}

/* ---- text ---- */

static void print_counters(const uint64_t *counters)
{
	for (int i = 0; i < COUNT_ALL; i++)
		printf("%s%s %llu", i > 0 ? ", " : "", counter_name(i), (unsigned long long)counters[i]);
	putchar('\n');
}

static void text_order(const struct status_arena *a)
{
	char log[32], epoch[32];

	if (a->log_bytes == 0)
		return;
	printf("  order    %llu epochs durable, ", (unsigned long long)a->epochs);
	if (a->oldest_ms != 0)
		printf("power loss would take the last %llu ms, ", (unsigned long long)a->oldest_ms);
	printf("log of %s, largest epoch %s\n", config_size_text(a->log_bytes, log, sizeof log),
	       config_size_text(a->largest_epoch, epoch, sizeof epoch));
}

static void text_arena(void *ctx, const struct status_arena *a)
{
	char total[32];

	(void)ctx;
	printf("%d ", a->pid);
	cli_put_name(stdout, a->program);
	printf("  rule ");
	cli_put_name(stdout, a->rule);
	printf("  %u of %u blocks, %s\n  arena    ", a->blocks_used, a->block_count,
	       config_size_text(a->total_bytes, total, sizeof(total)));
	cli_put_name(stdout, a->path);
	printf("\n  all      ");
	print_counters(a->counters);
	text_order(a);
	for (int i = 1; i < BYPASS_COUNT; i++) {
		if (a->through[i] != 0)
			printf("  bypassed %s: %llu\n", bypass_reason_name((enum bypass_reason)i),
			       (unsigned long long)a->through[i]);
	}
}

static void text_file(void *ctx, const struct status_file *f)
{
	(void)ctx;
	printf("  file     ");
	cli_put_name(stdout, f->path);
	printf("\n           staged %llu, ", (unsigned long long)f->staged_bytes);
	if (lease_state(f))
		printf("lease %s, ", lease_state(f));
	print_counters(f->counters);
}

/* ---- JSON ---- */

struct json_output {
	struct json json;
	bool in_arena;
};

static void json_counters(struct json *j, const uint64_t *counters)
{
	json_open(j, "counters", '{');
	for (int i = 0; i < COUNT_ALL; i++)
		json_number(j, counter_name(i), (long long)counters[i]);
	json_close(j, '}');
}

static void json_end_arena(struct json_output *o)
{
	if (!o->in_arena)
		return;
	json_close(&o->json, ']');
	json_close(&o->json, '}');
	o->in_arena = false;
}

static void json_arena(void *ctx, const struct status_arena *a)
{
	struct json_output *o = ctx;
	struct json *j = &o->json;

	json_end_arena(o);
	json_open(j, NULL, '{');
	json_number(j, "pid", a->pid);
	json_text(j, "program", a->program);
	json_number(j, "uid", a->uid);
	json_text(j, "rule", a->rule);
	json_text(j, "arena", a->path);
	json_number(j, "total_bytes", (long long)a->total_bytes);
	json_number(j, "block_bytes", a->block_bytes);
	json_number(j, "blocks", a->block_count);
	json_number(j, "blocks_used", a->blocks_used);
	json_counters(j, a->counters);
	if (a->log_bytes != 0) {
		json_open(j, "order", '{');
		json_number(j, "epochs", (long long)a->epochs);
		json_number(j, "oldest_ms", (long long)a->oldest_ms);
		json_number(j, "log_bytes", (long long)a->log_bytes);
		json_number(j, "largest_epoch_bytes", (long long)a->largest_epoch);
		json_close(j, '}');
	}
	json_open(j, "through", '{');
	for (int i = 1; i < BYPASS_COUNT; i++) {
		if (a->through[i] != 0)
			json_number(j, bypass_reason_name((enum bypass_reason)i), (long long)a->through[i]);
	}
	json_close(j, '}');
	json_open(j, "files", '[');
	o->in_arena = true;
}

static void json_file(void *ctx, const struct status_file *f)
{
	struct json *j = &((struct json_output *)ctx)->json;

	json_open(j, NULL, '{');
	json_text(j, "path", f->path);
	json_number(j, "staged_bytes", (long long)f->staged_bytes);
	if (lease_state(f))
		json_text(j, "lease", lease_state(f));
	json_counters(j, f->counters);
	json_close(j, '}');
}

static int show_json(const struct config *c)
{
	struct json_output o = {.json = {.out = stdout}};
	const struct status_visitor visitor = {json_arena, json_file, &o, cli_say_newer};

	json_open(&o.json, NULL, '{');
	json_open(&o.json, "arenas", '[');
	int rc = status_visit(&visitor);
	json_end_arena(&o);
	json_close(&o.json, ']');
	json_open(&o.json, "waiting", '[');
	if (c != NULL)
		cli_waiting_all(c, &o.json);
	json_close(&o.json, ']');
	json_close(&o.json, '}');
	return rc;
}

static int show_text(const struct config *c)
{
	const struct status_visitor visitor = {text_arena, text_file, NULL, cli_say_newer};
	int rc = status_visit(&visitor);

	if (rc == 0)
		printf("no running program stages writes\n");
	if (c != NULL)
		cli_waiting_all(c, NULL);
	return rc;
}

/* ---- arguments ---- */

static const struct argp_option options[] = {
	{"json", 'j', NULL, 0, "Print JSON", 0},
	{"prometheus", OPTION_PROMETHEUS, NULL, 0, "Print metrics in the text format of Prometheus", 0},
	{"watch", OPTION_WATCH, "SECONDS", OPTION_ARG_OPTIONAL,
         "Print a table of what programs do, again every SECONDS (1), until SIGINT", 0},
	{"count", OPTION_COUNT, "N", 0, "End after N tables", 0},
	{0},
};

/* Only digits and one point: strtod takes much else. */
static double parse_seconds(const char *text, struct argp_state *state)
{
	double seconds = strtod(text, NULL);

	if (text[strspn(text, "0123456789.")] != '\0' || strchr(text, '.') != strrchr(text, '.') ||
	    seconds < 0.1 || seconds > 86400)
		argp_error(state, "--watch=%s: allowed: 0.1 to 86400 (seconds)", text);
	return seconds;
}

static unsigned long parse_count(const char *text, struct argp_state *state)
{
	unsigned long count = strtoul(text, NULL, 10);

	if (text[strspn(text, "0123456789")] != '\0' || count < 1 || count > 1000000000)
		argp_error(state, "--count=%s: allowed: 1 to 1000000000", text);
	return count;
}

static void check_together(const struct status_args *args, struct argp_state *state)
{
	if (args->json + args->prometheus + args->watch > 1)
		argp_error(state, "only one of --json, --prometheus and --watch is possible");
	if (args->count != 0 && !args->watch)
		argp_error(state, "--count needs --watch");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct status_args *args = state->input;

	switch (key) {
	case 'j': args->json = true; return 0;
	case OPTION_PROMETHEUS: args->prometheus = true; return 0;
	case OPTION_WATCH:
		args->watch = true;
		args->seconds = arg != NULL ? parse_seconds(arg, state) : 1;
		return 0;
	case OPTION_COUNT: args->count = parse_count(arg, state); return 0;
	case ARGP_KEY_ARG: argp_error(state, "unexpected argument \"%s\"", arg); return 0;
	case ARGP_KEY_END: check_together(args, state); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

int cli_status(int argc, char **argv)
{
	static const struct argp argp = {.options = options, .parser = parse, .doc = doc};
	struct status_args args = {0};

	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
		return CLI_USAGE;
	const struct config *c = NULL; /* then nothing says where bytes may wait */

	if (!args.prometheus)
		c = cli_load_config();
	else if (!cli_load_config_quietly(&c)) /* (the page says so) */
		c = NULL;
	if (args.watch)
		return cli_watch(args.seconds, args.count);
	if (args.prometheus)
		return cli_prometheus(c);
	int rc = args.json ? show_json(c) : show_text(c);
	if (rc < 0) {
		cli_error("cannot read /proc: %s", strerror(-rc));
		return CLI_FAILED;
	}
	return CLI_OK;
}
