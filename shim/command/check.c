// SPDX-License-Identifier: Apache-2.0
/* check: `fastwrite check`, can the library work in this program, which rule applies to this file. */
#include "command/command.h"

#include "config/rule.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTION_PROGRAM = 0x100, OPTION_FILE };

struct check_args {
	bool as_json;
	int forced; /* OPTION_PROGRAM, OPTION_FILE, or 0 */
	char **names;
	int count;
};

static const char doc[] =
	"For a program: says whether libfastwrite.so can work in it.  For any other path: says which rule "
	"applies to the file, which need not exist, and with which settings.\n"
	"\vAn argument without '/' is looked for in PATH first.  Scripts are followed to their "
	"interpreter.\n"
	"\n"
	"Exit status: 0 it works, or a rule applies; 1 it cannot work, or does not exist; 2 wrong usage or "
	"configuration; 3 no rule applies to a file.  With several arguments, the first status that is not "
	"0.";

static const struct argp_option options[] = {
	{"json", 'j', NULL, 0, "Print JSON, an array with one object per argument", 0},
	{"program", OPTION_PROGRAM, NULL, 0, "Take every argument as a program", 0},
	{"file", OPTION_FILE, NULL, 0, "Take every argument as a file that is written", 0},
	{0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct check_args *args = state->input;

	(void)arg;
	switch (key) {
	case 'j': args->as_json = true; return 0;
	case OPTION_PROGRAM:
	case OPTION_FILE: args->forced = key; return 0;
	case ARGP_KEY_ARGS:
		args->names = state->argv + state->next;
		args->count = state->argc - state->next;
		return 0;
	case ARGP_KEY_NO_ARGS: argp_error(state, "a PROGRAM or PATH is missing"); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* ---- programs ---- */

static const char *const kind_names[] = {
	[PROGRAM_DYNAMIC] = "dynamic", [PROGRAM_STATIC] = "static", [PROGRAM_FOREIGN] = "foreign",
	[PROGRAM_SCRIPT] = "script",   [PROGRAM_OTHER] = "other",   [PROGRAM_BROKEN] = "damaged",
};

/* A limit of the library in a program in which it works; NULL: none. */
static const char *note_of(const struct program *p)
{
	if (p->raised && !p->privileged)
		return "it is setuid, setgid or has file capabilities: the library works for you, but not for "
		       "users whose privileges the program raises, since the loader then ignores LD_PRELOAD";
	return NULL;
}

static void json_program(struct json *j, const char *name, const char *path, const struct program *p,
                         const char *obstacle, const char *note)
{
	json_open(j, NULL, '{');
	json_text(j, "name", name);
	json_text(j, "program", path);
	json_text(j, "kind", kind_names[p->kind]);
	json_bool(j, "works", obstacle == NULL);
	json_text(j, "obstacle", obstacle);
	json_open(j, "notes", '[');
	if (note != NULL)
		json_text(j, NULL, note);
	json_close(j, ']');
	json_bool(j, "go", p->go);
	json_bool(j, "musl", p->musl);
	json_bool(j, "privileged", p->privileged);
	json_close(j, '}');
}

static int report_program(const char *name, const char *path, const struct program *p, struct json *j)
{
	const char *obstacle = program_obstacle(p);
	const char *note = note_of(p);

	if (obstacle == NULL && p->kind == PROGRAM_OTHER)
		obstacle = "neither an ELF file nor a script with a #! line";
	if (j != NULL) {
		json_program(j, name, path, p, obstacle, note);
		return obstacle == NULL ? CLI_OK : CLI_FAILED;
	}
	printf("%s: ", name);
	if (strcmp(name, path) != 0)
		printf("%s: ", path);
	printf("%s\n", obstacle != NULL ? obstacle : "dynamically linked; libfastwrite.so can work in it");
	if (note != NULL && obstacle == NULL)
		printf("%s: note: %s\n", name, note);
	return obstacle == NULL ? CLI_OK : CLI_FAILED;
}

/* ---- files ---- */

/* The reason why a path is never managed, whatever the rules say; NULL: it can be. */
static const char *unmanageable(const char *path)
{
	struct stat st;

	if (strstr(path, "/.fastwrite/") != NULL)
		return "it lies in a .fastwrite directory, which is never managed";
	if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
		return NULL;
	return S_ISDIR(st.st_mode) ? "it is a directory; only regular files are managed"
	                           : "it is not a regular file; only regular files are managed";
}

static int report_file(const struct config *c, const char *name, const char *path, struct json *j)
{
	const struct rule *rule = NULL;
	const struct pattern *pattern = rule_decide(c, path, &rule);
	const char *never = unmanageable(path);
	bool managed = never == NULL && pattern != NULL && !pattern->exclude;

	if (j != NULL) {
		json_open(j, NULL, '{');
		json_text(j, "name", name);
		json_text(j, "file", path);
		json_bool(j, "managed", managed);
		json_text(j, "reason", never);
		json_text(j, "rule", pattern != NULL ? rule->name : NULL);
		json_text(j, "pattern", pattern != NULL ? pattern->glob : NULL);
		json_bool(j, "excluded", pattern != NULL && pattern->exclude);
		if (managed)
			cli_json_settings(j, c, rule);
		json_open(j, "waiting", '[');
		if (managed)
			cli_waiting_for(rule, path, j);
		json_close(j, ']');
		json_close(j, '}');
	} else if (never != NULL) {
		printf("%s: not managed: %s\n", path, never);
	} else if (pattern == NULL) {
		printf("%s: not managed: no rule applies%s\n", path,
		       c->rule_count == 0 ? " (there is none; set FASTWRITE_PATHS or FASTWRITE_CONFIG)" : "");
	} else if (pattern->exclude) {
		printf("%s: not managed: excluded by !%s of rule %s\n", path, pattern->glob, rule->name);
	} else {
		printf("%s: rule %s, by %s\n", path, rule->name, pattern->glob);
		cli_print_settings(c, rule);
		cli_waiting_for(rule, path, NULL);
	}
	return managed ? CLI_OK : CLI_NO_RULE;
}

/* ---- which of the two ---- */

static int fail(const char *name, const char *why, struct json *j)
{
	if (j != NULL) {
		json_open(j, NULL, '{');
		json_text(j, "name", name);
		json_text(j, "error", why);
		json_close(j, '}');
	} else {
		cli_error("%s: %s", name, why);
	}
	return CLI_FAILED;
}

static int check_program(const char *name, char *path, struct json *j)
{
	char interpreter[PATH_MAX], why[PATH_MAX + 64];
	struct program p;
	int rc;

	if (program_lacks_interpreter(path, interpreter)) {
		snprintf(why, sizeof(why), "its interpreter %s does not exist", interpreter);
		return fail(name, why, j);
	}
	rc = program_resolve(path, &p);
	return rc != 0 ? fail(name, strerror(-rc), j) : report_program(name, path, &p, j);
}

static int check_file(const char *name, struct json *j)
{
	static const struct config *c; /* loaded for the first file: programs need none */
	char path[PATH_MAX];
	int rc;

	if (c == NULL) {
		c = cli_load_config();
		if (c == NULL)
			return CLI_USAGE;
		if (j == NULL)
			cli_say_notices(c, false);
	}
	rc = cli_canonical(name, path);
	return rc != 0 ? fail(name, strerror(-rc), j) : report_file(c, name, path, j);
}

static int check_one(const struct check_args *args, const char *name, struct json *j)
{
	bool bare = strchr(name, '/') == NULL;
	char path[PATH_MAX];
	struct stat st;
	struct program p;
	int rc;

	if (args->forced == OPTION_FILE)
		return check_file(name, j);
	rc = cli_find_program(name, path);
	if (rc == 0 && (bare || (program_inspect(path, &p) == 0 && p.kind != PROGRAM_OTHER)))
		return check_program(name, path, j);
	if (args->forced == OPTION_PROGRAM)
		return fail(name,
		            rc == -EACCES ? "not executable"
		            : rc == 0     ? "not a program"
		                          : "no such program",
		            j);
	if (bare && stat(name, &st) != 0)
		return fail(name, "neither a program in PATH nor a file here (for a new file write ./NAME)",
		            j);
	return check_file(name, j);
}

int cli_check(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .args_doc = "PROGRAM|PATH...",
	                                 .doc = doc,
	                                 .children = children};
	struct check_args args = {0};
	struct json json = {.out = stdout};
	int status = CLI_OK;

	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
		return CLI_USAGE;
	struct json *j = args.as_json ? &json : NULL;
	if (j != NULL)
		json_open(j, NULL, '[');
	for (int i = 0; i < args.count; i++) {
		int one = check_one(&args, args.names[i], j);
		if (status == CLI_OK)
			status = one;
		if (one == CLI_USAGE)
			break;
	}
	if (j != NULL)
		json_close(j, ']');
	return status;
}
