// SPDX-License-Identifier: Apache-2.0
/* main: `fastwrite VERB ...`. */
#include "command/command.h"

#include "base/kill.h"

#include <stdlib.h>
#include <string.h>

#ifndef FASTWRITE_VERSION
#define FASTWRITE_VERSION "unknown"
#endif
/* The commit with a blank and parentheses; empty where the sources do not know it. */
#ifndef FASTWRITE_COMMIT
#define FASTWRITE_COMMIT ""
#endif

/* Replaces glibc's, so it must leave the executable. */
__attribute__((visibility("default"))) const char *argp_program_version =
	"fastwrite " FASTWRITE_VERSION FASTWRITE_COMMIT;

struct verb {
	const char *name;
	int (*run)(int argc, char **argv);
};

static const struct verb verbs[] = {
	{"run", cli_run},     {"recover", cli_recover}, {"status", cli_status},   {"config", cli_config},
	{"check", cli_check}, {"enable", cli_enable},   {"disable", cli_disable},
};

#define VERB_NAMES "run, recover, status, config, check, enable, disable, help, version"

static const char doc[] =
	"Runs programs with their small writes staged in memory and written in large blocks, and recovers "
	"what they leave behind when they are killed.\n"
	"\vVerbs:\n"
	"  run      run a program with libfastwrite.so; recover after its death\n"
	"  recover  write the staged bytes of dead programs to their files\n"
	"  status   show what the running programs stage and write\n"
	"  config   show the settings in force, and where each comes from\n"
	"  check    can it work for this program?  which rule applies to this file?\n"
	"  enable   let a systemd service run with the library\n"
	"  disable  undo that\n"
	"\n"
	"`fastwrite help VERB' or `fastwrite VERB --help' says more.  FASTWRITE_PATHS, or the file that "
	"FASTWRITE_CONFIG names, selects the files to stage; without either nothing is staged.\n"
	"\n"
	"Exit status: 0 done, 1 something failed, 2 wrong usage or configuration, 3 no rule applies "
	"(check); run: that of the program.";

struct main_args {
	const struct verb *verb;
	int at; /* index of the verb in argv */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct main_args *args = state->input;

	switch (key) {
	case ARGP_KEY_ARG:
		for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
			if (strcmp(arg, verbs[i].name) == 0)
				args->verb = &verbs[i];
		}
		if (args->verb == NULL)
			argp_error(state, "unknown verb \"%s\"; allowed: " VERB_NAMES, arg);
		args->at = state->next - 1;
		state->next = state->argc; /* the rest is for the verb */
		return 0;
	case ARGP_KEY_NO_ARGS: argp_error(state, "a verb is missing; allowed: " VERB_NAMES); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* `help', `help VERB' and `version' as words. */
static void words_to_options(int argc, char **argv)
{
	static char help[] = "--help", version[] = "--version";

	if (argc == 2 && strcmp(argv[1], "help") == 0) {
		argv[1] = help;
	} else if (argc == 2 && strcmp(argv[1], "version") == 0) {
		argv[1] = version;
	} else if (argc == 3 && strcmp(argv[1], "help") == 0) {
		argv[1] = argv[2];
		argv[2] = help;
	}
}

int main(int argc, char **argv)
{
	static const struct argp argp = {.parser = parse, .args_doc = "VERB [ARGUMENT...]", .doc = doc};
	static char own_name[] = "fastwrite";
	struct main_args args = {0};
	char name[64];

	argp_err_exit_status = CLI_USAGE;
	if (argc > 0)
		argv[0] = own_name;
	words_to_options(argc, argv);
	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &args) != 0 || args.verb == NULL)
		return CLI_USAGE;
	cli_set_verb(args.verb->name);
	snprintf(name, sizeof(name), "fastwrite %s", args.verb->name);
	argv[args.at] = name;
#ifdef FASTWRITE_DEBUG
	/* with `run' the step is the program's */
	if (args.verb->run == cli_recover && getenv("FASTWRITE_KILL_STEP") != NULL)
		kill_arm(strtoul(getenv("FASTWRITE_KILL_STEP"), NULL, 10));
#endif
	int status = args.verb->run(argc - args.at, argv + args.at);
	/* (of an earlier write that failed only the stream knows) */
	if ((fflush(stdout) != 0 || ferror(stdout)) && status == CLI_OK) {
		cli_error("cannot write all of the output");
		status = CLI_FAILED;
	}
	return status;
}
