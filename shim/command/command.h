// SPDX-License-Identifier: Apache-2.0
/*
 * command: `fastwrite`.  main.c picks the verb; each verb is one file with its argp parser.  Unlike the
 * library, the command uses stdio and malloc freely.
 *
 * Verbs (run, recover, status, config, check, enable) call the files below them, and these call down only:
 * prometheus.c, watch.c -> snapshot.c, waiting.c -> places.c -> recover_path.c; preload.c, settings.c, elf.c;
 * util.c.
 */
#ifndef FASTWRITE_COMMAND_COMMAND_H
#define FASTWRITE_COMMAND_COMMAND_H

#include "config/config.h"

#include <argp.h>
#include <stdio.h>

/* Exit statuses; those of `run` are the ones of env and timeout. */
enum {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,   /* wrong usage or wrong configuration */
	CLI_NO_RULE = 3, /* check PATH: no rule applies */
	CLI_RUN_FAILED = 125,
	CLI_RUN_NOT_EXECUTABLE = 126,
	CLI_RUN_NOT_FOUND = 127,
};

int cli_run(int argc, char **argv);
int cli_recover(int argc, char **argv);
int cli_status(int argc, char **argv);
int cli_config(int argc, char **argv);
int cli_check(int argc, char **argv);
int cli_enable(int argc, char **argv);
int cli_disable(int argc, char **argv);

struct json;

/* ---- waiting.c ---- */

/*
 * Prints the bytes of dead processes that wait to be recovered: in all places of the configuration, or for
 * the file `path` of a rule.  As text, or (json not NULL) into its open array.  Changes nothing.
 */
void cli_waiting_all(const struct config *c, struct json *json);
void cli_waiting_for(const struct rule *rule, const char *path, struct json *json);
/* Calls fn for each file of a dead process that has such bytes, in all places of the configuration.  How many
 * places and arenas could not be read; each was named on standard error. */
struct recover_event;
typedef void cli_waiting_fn(void *ctx, const struct recover_event *e);
int cli_waiting_each(const struct config *c, cli_waiting_fn *fn, void *ctx);

/* ---- status.c ---- */

/* For struct status_visitor: names on standard error what this version cannot show. */
void cli_say_newer(const char *arena, int pid, uint32_t version);

/* ---- prometheus.c, watch.c: other outputs of `status` ---- */

/* Both return an exit status.  c: where bytes of dead programs may wait; NULL: not known. */
int cli_prometheus(const struct config *c);
/* `count` tables (0: until SIGINT), one every `seconds`. */
int cli_watch(double seconds, unsigned long count);

/* ---- places.c: where programs may have staged ---- */

struct recover_options;
struct recover_report;

/* All add to *total and return the number of places that failed; each was named on standard error. */

/*
 * A PATH of the command line.  Staging directories above it, and those of the rules of c (may be NULL), are
 * only looked at; one that holds bytes for PATH counts as failed.
 */
int cli_recover_given(const char *path, const struct config *c, const struct recover_options *opt,
                      struct recover_report *total);
/* The places where bytes of the file `path` of a rule may be. */
struct rule;
int cli_recover_file(const struct rule *rule, const char *path, const struct recover_options *opt,
                     struct recover_report *total);
/* Every place that the configuration leads to. */
int cli_recover_all(const struct config *c, const struct recover_options *opt, struct recover_report *total);

/* ---- recover_path.c ---- */

/* recover_path, added to *total; a path without staging is no error. */
int cli_recover_path(const char *path, const struct recover_options *opt, struct recover_report *total);

/* The detail of an event with full paths.  buf[PATH_MAX]; returns it. */
const char *cli_recover_detail(const struct recover_event *e, char *buf);

/* Text for -errno of a path. */
const char *cli_recover_reason(int rc);

/* ---- preload.c ---- */

/*
 * The path of libfastwrite.so into out[PATH_MAX].  root: "", or the directory of a system that does not run;
 * the path is then that within it.  When there is none: says so, false.
 */
bool cli_find_library(const char *root, char *out);

/* How LD_PRELOAD is to name it, into out[CLI_PRELOAD_MAX].  When that is not possible: says so, false. */
enum { CLI_PRELOAD_MAX = PATH_MAX + 64 };
bool cli_preload_entry(const char *library, char *out);

/* ---- settings.c: options that several verbs share, and the configuration they lead to ---- */

/* --json alone, for verbs without arguments; argp's input is the bool that it sets. */
extern const struct argp_option cli_json_options[];
error_t cli_json_parse(int key, char *arg, struct argp_state *state);

/* -c FILE, -p GLOBS, -o KEY=VALUE: set the FASTWRITE_ variables of this process. */
extern const struct argp cli_settings_argp;
/* One of them was given. */
extern bool cli_settings_given;

/* Loads the configuration from the environment.  When it is wrong: prints why, NULL. */
const struct config *cli_load_config(void);
/* The same without a word.  When it is wrong: false, and (*c)->error says why. */
bool cli_load_config_quietly(const struct config **c);

/* Prints probable mistakes; `descriptors`: also those of this process's standard descriptors. */
void cli_say_notices(const struct config *c, bool descriptors);

/* "default", "environment", "FILE:LINE" into buf; returns buf. */
const char *cli_origin(const struct config *c, struct config_origin origin, char *buf, size_t size);

/* The settings of a rule, a line or a member for each key. */
void cli_print_settings(const struct config *c, const struct rule *rule);
void cli_json_settings(struct json *j, const struct config *c, const struct rule *rule);

/* ---- elf.c: the kind of a program ---- */

enum program_kind {
	PROGRAM_DYNAMIC, /* ELF of this machine with a dynamic loader */
	PROGRAM_STATIC,
	PROGRAM_FOREIGN, /* ELF of another machine or word size */
	PROGRAM_SCRIPT,  /* begins with "#!" */
	PROGRAM_OTHER,   /* none of these */
	PROGRAM_BROKEN,  /* an ELF file that contradicts itself */
};

struct program {
	enum program_kind kind;
	char interpreter[PATH_MAX]; /* of DYNAMIC: the loader; of SCRIPT: what the first line names */
	char argument[256];         /* of SCRIPT: the rest of the first line */
	bool library;               /* ELF of this machine that a loader can load into a program */
	bool go;
	bool musl;
	bool raised;     /* setuid, setgid or with file capabilities */
	bool privileged; /* the same, and it raises the caller's privileges */
};

/* 0 or -errno when the file cannot be read. */
int program_inspect(const char *path, struct program *out);

/*
 * True when the interpreter of a script or an ELF file does not exist; its name is then in out[PATH_MAX].
 * (The kernel's error reads as if the program did not exist.)
 */
bool program_lacks_interpreter(const char *path, char *out);

/* Why libfastwrite.so cannot work in it, a text that follows "NAME: "; NULL when it can. */
const char *program_obstacle(const struct program *p);

/*
 * Follows scripts to the ELF file that the kernel will start: the interpreter, or the program that env
 * starts. path[PATH_MAX] is replaced by it.  0 or -errno.
 */
int program_resolve(char *path, struct program *out);

/* ---- util.c ---- */

/* "fastwrite VERB: text" on standard error. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The verb that cli_error names. */
void cli_set_verb(const char *verb);

/*
 * Path of program `name` as execvp would find it, canonical, into out[PATH_MAX].  0, -ENOENT, or -EACCES when
 * there is something by that name that cannot be executed.
 */
int cli_find_program(const char *name, char *out);

/* `path` made canonical into out[PATH_MAX].  Its last component need not exist; if that is a link, neither
 * need what it names: an open makes that.  0 or -errno. */
int cli_canonical(const char *path, char *out);

/* A name that cannot steer a terminal: control bytes as '?'. */
void cli_put_name(FILE *out, const char *name);

/* Length of the UTF-8 sequence at s, which is not at its end; 0 when it is not valid. */
size_t cli_utf8_length(const char *s);

/* JSON.  Commas and quotes are taken care of.  key = NULL inside arrays and at the top. */
struct json {
	FILE *out;
	unsigned depth;
	bool comma;
};
void json_open(struct json *j, const char *key, char bracket);      /* '{' or '[' */
void json_close(struct json *j, char bracket);                      /* '}' or ']'; ends the line at the top */
void json_text(struct json *j, const char *key, const char *value); /* NULL = null */
void json_number(struct json *j, const char *key, long long value);
void json_bool(struct json *j, const char *key, bool value);

#endif
