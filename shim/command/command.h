// SPDX-License-Identifier: Apache-2.0
/*
 * cli: the `fastwrite` command.  cli_main picks the verb; each verb is one file with its argp parser.  Unlike
 * the core, the command uses stdio and malloc freely.
 */
#ifndef FASTWRITE_CLI_H
#define FASTWRITE_CLI_H

#include "config/config.h"

#include <argp.h>
#include <stdio.h>

/* Exit statuses; `run` adds those that env and timeout use. */
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

/* ---- cli_recover ---- */

struct recover_options;
struct recover_report;

/* recover_path, its report added to *total; a path without staging is nothing wrong. */
int cli_recover_path(const char *path, const struct recover_options *opt, struct recover_report *total);

/* What an event says besides, in full: of "orphaned" the path of what was put aside.  buf[PATH_MAX]; returns it. */
struct recover_event;
const char *cli_recover_detail(const struct recover_event *e, char *buf);

/* Text for -errno of a path. */
const char *cli_recover_reason(int rc);

/* ---- cli_recover_all ---- */

/* The same for a PATH of the command line, and a look at the staging above it; how many places failed, or hold bytes for it
 * that were not brought (each was told of). */
int cli_recover_given(const char *path, const struct recover_options *opt, struct recover_report *total);

/* Every staging place that the configuration leads to; how many could not be looked at (each was told of). */
int cli_recover_all(const struct config *c, const struct recover_options *opt, struct recover_report *total);

/* ---- cli_waiting ---- */

/* Names the bytes of dead processes that wait in the places of the configuration, or for the file `path` of a rule; into the open
 * array of `json`, or as text when that is NULL.  How many files have some. */
struct json;
int cli_waiting_all(const struct config *c, struct json *json);
int cli_waiting_for(const struct rule *rule, const char *path, struct json *json);

/* ---- cli_util ---- */

/* "fastwrite VERB: text" on stderr. */
void cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The verb that cli_error names. */
void cli_set_verb(const char *verb);

/* Absolute path of program `name` as execvp would find it into out[PATH_MAX].  0, -ENOENT, or -EACCES when
 * something by that name is there and cannot be executed. */
int cli_find_program(const char *name, char *out);

/* `path` made absolute and canonical into out[PATH_MAX]; its last component need not exist.  0 or -errno. */
int cli_canonical(const char *path, char *out);

/* Names in a form that cannot steer a terminal: control bytes as '?'. */
void cli_put_name(FILE *out, const char *name);

/* JSON writing: commas and quotes are taken care of.  key = NULL inside arrays and at the top. */
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

/* ---- cli_settings: options that several verbs share, and the configuration they lead to ---- */

/* -c FILE, -p GLOBS, -o KEY=VALUE: set the FASTWRITE_ variables of this process. */
extern const struct argp cli_settings_argp;
/* One of them was given. */
extern bool cli_settings_given;

/* Loads the configuration from the environment; prints the error line.  NULL on failure. */
const struct config *cli_load_config(void);

/* Says what of the rules may not have been meant; `descriptors`: of this process's standard descriptors, too. */
void cli_say_doubts(const struct config *c, bool descriptors);

/* The same as cli_load_config, without a word. */
const struct config *cli_load_config_quietly(void);

/* True when there is a configuration, it is right, and says stdio = off.  Prints nothing. */
bool cli_streams_off(void);

/* "default", "environment", "FILE:LINE" into buf; returns buf. */
const char *cli_origin(const struct config *c, const struct rule *rule, enum config_key key, char *buf,
                       size_t size);

/* The settings of a rule, one line a key / one member a key. */
void cli_print_settings(const struct config *c, const struct rule *rule);
void cli_json_settings(struct json *j, const struct config *c, const struct rule *rule);

/* ---- cli_probe ---- */

/* Measures in `dir` what each way to make 4 KiB durable costs, and prints it: as text, or as an object into j. */
int cli_probe(const char *dir, struct json *j);

/* ---- cli_elf: what kind of program a file is ---- */

enum program_kind {
	PROGRAM_DYNAMIC, /* ELF of this machine with a dynamic loader */
	PROGRAM_STATIC,
	PROGRAM_FOREIGN, /* ELF of another machine or word size */
	PROGRAM_SCRIPT,  /* begins with "#!" */
	PROGRAM_OTHER,   /* nothing of these */
	PROGRAM_BROKEN,  /* an ELF file that contradicts itself */
};

struct program {
	enum program_kind kind;
	char interpreter[PATH_MAX]; /* of DYNAMIC: the loader; of SCRIPT: what the first line names */
	char argument[256];         /* of SCRIPT: the rest of the first line */
	bool go;
	bool musl;
	bool raised;     /* setuid, setgid or with file capabilities */
	bool privileged; /* the same, and it takes effect for the caller */
	bool libaio;
	bool liburing;
	bool io_uring_code; /* it seems to make an io_uring by machine instructions of its own */
};

/* cli_code: does this machine code seem to make an io_uring without a library? */
bool code_makes_io_uring(const unsigned char *code, size_t size);

/* 0 or -errno when the file cannot be read. */
int program_inspect(const char *path, struct program *out);

/* True when the kernel would not find the interpreter of a program, script or ELF file, which is then in out[PATH_MAX];
 * its error says that of the program. */
bool program_lacks_interpreter(const char *path, char *out);

/* Can libfastwrite.so work in it?  NULL, or why not; a static text that follows "NAME: ". */
const char *program_obstacle(const struct program *p);

/* Follows scripts to the ELF file that the kernel will start (an interpreter, env's argument).  path[PATH_MAX]
 * is replaced by it.  0 or -errno. */
int program_resolve(char *path, struct program *out);

#endif
