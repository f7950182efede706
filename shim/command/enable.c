// SPDX-License-Identifier: Apache-2.0
/*
 * enable: `fastwrite enable UNIT` writes a drop-in by which systemd starts a service with the library, and
 * `fastwrite disable UNIT` removes it.  Both show the file first and ask.  systemctl is asked, never told.
 */
#include "command/command.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPTION_ROOT = 0x100, UNIT_MAX = 256 };

#define UNITS "/etc/systemd/system/"
#define DROP_IN "/50-fastwrite.conf"
#define SUFFIX ".service"
/* A file that begins otherwise is not ours. */
#define FIRST_LINE "# Written by `fastwrite enable'."

struct unit_args {
	char unit[UNIT_MAX];
	char root[PATH_MAX]; /* "" or canonical */
	bool yes;
	char directory[2 * PATH_MAX];
	char path[2 * PATH_MAX];
};

/* ---- arguments ---- */

static const struct argp_option options[] = {
	{"root", OPTION_ROOT, "DIR", 0, "Work on the system below DIR, such as an image", 1},
	{"yes", 'y', NULL, 0, "Do not ask", 1},
	{0},
};

/* True for "x.socket" and so on: a dot in "x.y" is a part of the name, as for systemctl. */
static bool is_other_kind(const char *name)
{
	static const char *const kinds[] = {"socket", "device", "mount", "automount", "swap",
	                                    "target", "path",   "timer", "slice",     "scope"};
	const char *dot = strrchr(name, '.');

	for (size_t i = 0; dot != NULL && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (strcmp(dot + 1, kinds[i]) == 0)
			return true;
	}
	return false;
}

/* systemd's rule for names of units. */
static bool is_unit_name(const char *name)
{
	for (const char *c = name; *c != '\0'; c++) {
		if (!isalnum((unsigned char)*c) && strchr(":-_.\\@", *c) == NULL)
			return false;
	}
	return *name != '\0' && *name != '@' && strcmp(name, SUFFIX) != 0;
}

static void set_unit(struct unit_args *args, const char *name, struct argp_state *state)
{
	size_t length = strlen(name), end = strlen(SUFFIX);
	bool whole = length >= end && strcmp(name + length - end, SUFFIX) == 0;

	if (args->unit[0] != '\0')
		argp_error(state,
		           "unexpected argument \"%s\"; several patterns are one argument, as in "
		           "--paths='/a/*:/b/*'",
		           name);
	if (is_other_kind(name))
		argp_error(state, "%s: only services (UNIT.service) run programs", name);
	if (!is_unit_name(name) || length + (whole ? 0 : end) >= UNIT_MAX)
		argp_error(state, "\"%s\" is no name of a unit; give the name that systemctl takes", name);
	snprintf(args->unit, sizeof(args->unit), "%s%s", name, whole ? "" : SUFFIX);
}

static void set_root(struct unit_args *args, const char *directory, struct argp_state *state)
{
	if (realpath(directory, args->root) == NULL)
		argp_error(state, "--root=%s: %s", directory, strerror(errno));
	if (strcmp(args->root, "/") == 0)
		args->root[0] = '\0';
}

static void name_files(struct unit_args *args)
{
	snprintf(args->directory, sizeof(args->directory), "%s" UNITS "%s.d", args->root, args->unit);
	snprintf(args->path, sizeof(args->path), "%s" UNITS "%s.d" DROP_IN, args->root, args->unit);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct unit_args *args = state->input;

	switch (key) {
	case OPTION_ROOT: set_root(args, arg, state); return 0;
	case 'y': args->yes = true; return 0;
	case ARGP_KEY_ARG: set_unit(args, arg, state); return 0;
	case ARGP_KEY_NO_ARGS: argp_error(state, "a UNIT is missing"); return 0;
	case ARGP_KEY_END: name_files(args); return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

static bool is_below(const char *path, const char *directory)
{
	size_t length = strlen(directory);

	return strncmp(path, directory, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

/* False: a link in an image leads out of it, which was said.  (Nobody changes the image meanwhile.) */
static bool stays_below_root(const struct unit_args *args)
{
	char part[2 * PATH_MAX], real[PATH_MAX] = "";

	snprintf(part, sizeof(part), "%s", args->directory);
	while (realpath(part, real) == NULL && errno == ENOENT && strlen(part) > strlen(args->root))
		*strrchr(part, '/') = '\0';
	if (args->root[0] == '\0' || is_below(real, args->root))
		return true;
	cli_error("%s leads out of %s", args->directory, args->root);
	return false;
}

/* ---- the drop-in that is there ---- */

/* Its text, which the caller frees; NULL and errno when it cannot be read. */
static char *read_drop_in(const char *path)
{
	FILE *in = fopen(path, "re");
	char *text = NULL;
	size_t size = 0;

	if (in == NULL)
		return NULL;
	bool any = getdelim(&text, &size, '\0', in) >= 0;
	int error = ferror(in) ? errno : 0;
	if (!any) {
		free(text);
		text = error != 0 ? NULL : strdup("");
	}
	fclose(in);
	if (error != 0)
		errno = error;
	return text;
}

static bool is_ours(const char *text) { return strncmp(text, FIRST_LINE, strlen(FIRST_LINE)) == 0; }

/* False: it is there and somebody else's, or cannot be read; this was said. */
static bool is_free(const struct unit_args *args)
{
	char *text = read_drop_in(args->path);
	bool free_for_us = text != NULL ? is_ours(text) : errno == ENOENT;

	if (text == NULL && !free_for_us)
		cli_error("cannot read %s: %m", args->path);
	else if (!free_for_us)
		cli_error("%s: not written by `fastwrite enable'; move it away", args->path);
	free(text);
	return free_for_us;
}

/* ---- what systemd says about the unit ---- */

/* The line "PROPERTY=..." of systemctl's answer, without its name, ended by a NUL; NULL: none. */
static char *property(char *answer, const char *name)
{
	size_t length = strlen(name);

	for (char *line = answer; line != NULL; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (strncmp(line, name, length) == 0 && line[length] == '=')
			return strndup(line + length + 1, strcspn(line + length + 1, "\n"));
	}
	return NULL;
}

/* systemctl's answer, which the caller frees; NULL: there is no systemd here, or it does not answer. */
static char *ask_systemd(const struct unit_args *args)
{
	char command[UNIT_MAX + 128];
	char *answer = NULL;
	size_t size = 0;

	if (args->root[0] != '\0' || strstr(args->unit, "@" SUFFIX) != NULL)
		return NULL; /* nothing runs below another root, and a template is no unit */
	/* a unit's name has no quotes */
	snprintf(
		command, sizeof(command),
		"systemctl show -p LoadState,Environment,EnvironmentFiles,UnsetEnvironment,ExecStart -- '%s' "
		"2>/dev/null",
		args->unit);
	FILE *in = popen(command, "re");
	if (in == NULL)
		return NULL;
	ssize_t length = getdelim(&answer, &size, '\0', in);
	if (pclose(in) == 0 && length > 0)
		return answer;
	free(answer);
	return NULL;
}

/* Says what keeps the program of "{ path=/usr/bin/x ; argv[]=..." from being preloaded. */
static void warn_about_program(const char *exec_start)
{
	static const char before[] = "{ path=";
	const char *end = strstr(exec_start, " ; ");
	char path[PATH_MAX];
	struct program p;

	if (strncmp(exec_start, before, strlen(before)) != 0 || end == NULL)
		return;
	exec_start += strlen(before);
	if (snprintf(path, sizeof(path), "%.*s", (int)(end - exec_start), exec_start) >= PATH_MAX)
		return;
	if (program_resolve(path, &p) == 0 && program_obstacle(&p) != NULL)
		cli_error("warning: %s: %s", path, program_obstacle(&p));
}

/* The length of the setting at `value`, if it names more than our library; else 0. */
static int is_other_preload(const char *value, bool quoted)
{
	static const char ours[] = "/libfastwrite.so";
	size_t length = strcspn(value, quoted ? "\"" : " ");
	bool several = strcspn(value, ": ") < length;

	if (!several && length > strlen(ours) &&
	    strncmp(value + length - strlen(ours), ours, strlen(ours)) == 0)
		return 0;
	return (int)length;
}

/* An LD_PRELOAD among "A=b \"C=d e\"" that names more than our library; its length, 0: none. */
static int other_preload(const char *variables, const char **found)
{
	static const char name[] = "LD_PRELOAD=";
	int length = 0;

	for (const char *at = variables; length == 0 && (at = strstr(at, name)) != NULL; at++) {
		char before = ' ';

		if (at > variables)
			before = at[-1];
		if (before == ' ' || before == '"')
			length = is_other_preload(at, before == '"');
		*found = at;
	}
	return length;
}

/* What the drop-in cannot set for good. */
static void warn_about_variables(const char *answer_files, const char *answer_unset)
{
	if (answer_files != NULL && *answer_files != '\0')
		cli_error("warning: the unit reads %s, too: an LD_PRELOAD there counts instead",
		          answer_files);
	if (answer_unset != NULL && strstr(answer_unset, "LD_PRELOAD") != NULL)
		cli_error("warning: the unit has UnsetEnvironment=%s: the library is not loaded",
		          answer_unset);
}

/*
 * False: refused.  Of two Environment= of one variable systemd takes the later one, which would be ours: what
 * the unit preloads itself would be lost.
 */
static bool check_unit(const struct unit_args *args)
{
	char *answer = ask_systemd(args);
	char *state = property(answer, "LoadState");
	char *variables = property(answer, "Environment");
	char *start = property(answer, "ExecStart");
	char *files = property(answer, "EnvironmentFiles");
	char *unset = property(answer, "UnsetEnvironment");
	const char *preload = NULL;
	int refused = variables != NULL ? other_preload(variables, &preload) : 0;

	if (refused)
		cli_error("%s has a setting already: %.*s; add the library there by hand", args->unit,
		          refused, preload);
	if (!refused && state != NULL && strcmp(state, "not-found") == 0)
		cli_error("warning: systemd knows no %s", args->unit);
	if (!refused && start != NULL)
		warn_about_program(start);
	if (!refused)
		warn_about_variables(files, unset);
	free(unset);
	free(files);
	free(start);
	free(variables);
	free(state);
	free(answer);
	return !refused;
}

/* ---- the settings ---- */

/* A variable of the library, other than the one that this command itself reads. */
static bool is_setting(const char *variable)
{
	return strncmp(variable, "FASTWRITE_", 10) == 0 && strncmp(variable, "FASTWRITE_LIB=", 14) != 0;
}

/* The service gets what the command line says, and nothing of our own environment. */
static void forget_settings(void)
{
	for (char **variable = environ; *variable != NULL;) {
		char *name = is_setting(*variable) ? strndup(*variable, strcspn(*variable, "=")) : NULL;

		if (name == NULL || unsetenv(name) != 0) /* else the next one moves here */
			variable++;
		free(name);
	}
}

static bool is_utf8(const char *text)
{
	for (size_t length; *text != '\0'; text += length) {
		length = cli_utf8_length(text);
		if (length == 0)
			return false;
	}
	return true;
}

static bool are_all_utf8(void)
{
	for (char **variable = environ; *variable != NULL; variable++) {
		if (is_setting(*variable) && !is_utf8(*variable)) {
			cli_error("%s: not UTF-8; systemd would leave it out", *variable);
			return false;
		}
	}
	return true;
}

/* Loads what the service will load.  The configuration file lies below the root. */
static const struct config *load(const struct unit_args *args)
{
	const char *file = getenv("FASTWRITE_CONFIG");
	char within[PATH_MAX], whole[2 * PATH_MAX];

	if (file == NULL || args->root[0] == '\0') {
		const struct config *c = cli_load_config();
		if (c != NULL && c->file[0] != '\0')
			setenv("FASTWRITE_CONFIG", c->file, 1); /* absolute */
		return c;
	}
	if (file[0] != '/') {
		cli_error("--config=%s: with --root the path must be absolute, and is taken below it", file);
		return NULL;
	}
	snprintf(within, sizeof(within), "%s", file);
	snprintf(whole, sizeof(whole), "%s%s", args->root, within);
	setenv("FASTWRITE_CONFIG", whole, 1);
	const struct config *c = cli_load_config();
	setenv("FASTWRITE_CONFIG", within, 1);
	return c;
}

/* Where the service will find this command; out[PATH_MAX]. */
static void find_command(const struct unit_args *args, char *out)
{
	static const char local[] = "/usr/local/bin/fastwrite";
	char whole[2 * PATH_MAX];
	ssize_t n = args->root[0] == '\0' ? readlink("/proc/self/exe", out, PATH_MAX - 1) : -1;

	if (n > 0) {
		out[n] = '\0';
		return;
	}
	snprintf(whole, sizeof(whole), "%s%s", args->root, local);
	snprintf(out, PATH_MAX, "%s", access(whole, X_OK) == 0 ? local : "/usr/bin/fastwrite");
}

/* With some settings systemd empties these between two runs of a service. */
static void warn_about_staging(const struct unit_args *args, const struct config *c)
{
	static const char *const emptied[] = {"/tmp", "/var/tmp", "/run", "/var/run", "/dev/shm"};
	char command[PATH_MAX];

	find_command(args, command);
	for (uint32_t r = 0; r < c->rule_count; r++) {
		char staging[PATH_MAX];

		if (cli_canonical(c->rules[r].set.staging, staging) != 0)
			snprintf(staging, sizeof(staging), "%s", c->rules[r].set.staging);
		for (size_t i = 0; i < sizeof(emptied) / sizeof(emptied[0]); i++) {
			if (is_below(staging, emptied[i]))
				cli_error("warning: staging = %s: with PrivateTmp=, RuntimeDirectory=, "
				          "RemoveIPC= or DynamicUser= systemd empties it when the service is "
				          "killed, and staged bytes are lost; such a unit needs "
				          "ExecStopPost=-%s recover --all",
				          staging, command);
		}
	}
}

/* Who may change the library may change what the service does. */
static void warn_about_owner(const char *library)
{
	char directory[PATH_MAX];
	struct stat file, place;

	snprintf(directory, sizeof(directory), "%.*s", (int)(strrchr(library, '/') - library), library);
	if (stat(library, &file) == 0 && stat(*directory != '\0' ? directory : "/", &place) == 0 &&
	    (file.st_uid != 0 || place.st_uid != 0 || ((file.st_mode | place.st_mode) & 022) != 0))
		cli_error("warning: %s: others than root may change it, and so the service", library);
}

static bool check_settings(const struct unit_args *args)
{
	const struct config *c = are_all_utf8() ? load(args) : NULL;

	if (c == NULL)
		return false;
	if (c->rule_count == 0) {
		cli_error("no rule: nothing would be staged; give --paths or --config");
		return false;
	}
	if (args->root[0] == '\0')
		cli_say_notices(c, false);
	warn_about_staging(args, c);
	return true;
}

/* ---- text of the drop-in ---- */

/* Within quotes, as systemd reads it: C's escapes, and '%' begins a specifier. */
static void put_quoted(FILE *out, const char *text)
{
	for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
		if (*c == '"' || *c == '\\')
			fprintf(out, "\\%c", *c);
		else if (*c == '%')
			fputs("%%", out);
		else if (*c < 0x20 || *c == 0x7f)
			fprintf(out, "\\x%02x", *c);
		else
			fputc(*c, out);
	}
}

/* Of the names that the library knows; others cannot be quoted. */
static bool is_plain(const char *name)
{
	return name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")] == '\0';
}

static void put_variable(FILE *out, const char *name, const char *value)
{
	fprintf(out, "Environment=\"%s=", name);
	put_quoted(out, value);
	fputs("\"\n", out);
}

static void put_settings(FILE *out)
{
	for (char **variable = environ; *variable != NULL; variable++) {
		char *equals = strchr(*variable, '=');

		if (equals == NULL || !is_setting(*variable))
			continue;
		*equals = '\0';
		if (is_plain(*variable))
			put_variable(out, *variable, equals + 1);
		*equals = '=';
	}
}

/* The caller frees it; NULL: no memory. */
static char *make_text(const struct unit_args *args, const char *preload)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (out == NULL)
		return NULL;
	fprintf(out, FIRST_LINE "  `fastwrite disable %s' removes it.\n", args->unit);
	fprintf(out,
	        "[Unit]\nWants=fastwrite-recover.service\nAfter=fastwrite-recover.service\n\n[Service]\n");
	put_variable(out, "LD_PRELOAD", preload);
	put_settings(out);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

/* ---- asking, writing, removing ---- */

static void show(const char *path, const char *text)
{
	printf("%s:\n\n", path);
	/* patterns come from outside, too */
	for (const char *line = text; *line != '\0';) {
		int length = (int)strcspn(line, "\n");
		char *copy = strndup(line, (size_t)length);

		cli_put_name(stdout, copy != NULL ? copy : "");
		free(copy);
		fputc('\n', stdout);
		line += length + (line[length] == '\n');
	}
	fputc('\n', stdout);
}

/* 0, or the exit status with which to end. */
static int confirm(const struct unit_args *args, const char *question)
{
	char answer[8] = "";

	if (args->yes)
		return CLI_OK;
	if (!isatty(STDIN_FILENO)) {
		cli_error("nothing was changed: there is no terminal to ask; say --yes");
		return CLI_USAGE;
	}
	printf("%s [y/N] ", question);
	fflush(stdout);
	if (fgets(answer, sizeof(answer), stdin) != NULL && (strcmp(answer, "y\n") == 0))
		return CLI_OK;
	cli_error("nothing was changed");
	return CLI_FAILED;
}

static void say_commands(const struct unit_args *args)
{
	const char *at = strstr(args->unit, "@" SUFFIX);
	const char *quote = strchr(args->unit, '\\') != NULL ? "'" : "";

	if (args->root[0] != '\0')
		return;
	printf("Now run:\n  systemctl daemon-reload\n");
	if (at != NULL)
		printf("  systemctl restart '%.*s@*" SUFFIX "'\n", (int)(at - args->unit), args->unit);
	else
		printf("  systemctl restart %s%s%s\n", quote, args->unit, quote);
}

static bool make_directories(const char *path)
{
	char part[2 * PATH_MAX];

	for (const char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
		size_t length = slash != NULL ? (size_t)(slash - path) : strlen(path);

		snprintf(part, sizeof(part), "%.*s", (int)length, path);
		if (mkdir(part, 0755) != 0 && errno != EEXIST)
			return false;
		if (slash == NULL)
			return true;
	}
}

static bool write_all(int fd, const char *text)
{
	while (*text != '\0') {
		ssize_t n = write(fd, text, strlen(text));
		if (n < 0 && errno != EINTR)
			return false;
		text += n > 0 ? n : 0;
	}
	return fchmod(fd, 0644) == 0 && fsync(fd) == 0;
}

static void sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd >= 0) {
		fsync(fd);
		close(fd);
	}
}

/* Either the whole file has its name, or the one before.  False and errno. */
static bool write_drop_in(const struct unit_args *args, const char *text)
{
	char fresh[sizeof(args->directory) + 32];

	/* systemd reads names that end in .conf only */
	snprintf(fresh, sizeof(fresh), "%s/.fastwrite-XXXXXX", args->directory);
	int fd = make_directories(args->directory) ? mkostemp(fresh, O_CLOEXEC) : -1;
	if (fd < 0)
		return false;
	bool written = write_all(fd, text);
	close(fd);
	if (written && rename(fresh, args->path) == 0) {
		sync_directory(args->directory);
		return true;
	}
	int error = errno;
	unlink(fresh);
	rmdir(args->directory);
	errno = error;
	return false;
}

static int remove_drop_in(const struct unit_args *args)
{
	if (unlink(args->path) != 0) {
		cli_error("cannot remove %s: %m", args->path);
		return CLI_FAILED;
	}
	if (rmdir(args->directory) != 0)
		sync_directory(args->directory); /* it has other files */
	printf("removed\n");
	return CLI_OK;
}

/* ---- the verbs ---- */

static const char enable_doc[] =
	"Lets systemd start a service with libfastwrite.so: writes a drop-in of the unit, " UNITS
	"UNIT.d" DROP_IN ".  Shows it first, and asks.\n"
	"\vUNIT is a service; \".service\" may be left out.  What -c, -p and -o say is checked first.  "
	"systemd reads the drop-in at `systemctl daemon-reload', and the service at its next start.\n"
	"\n"
	"Exit status: 0 written, 1 not written, 2 wrong usage or configuration, or there is neither a "
	"terminal nor --yes.";

static const char disable_doc[] =
	"Removes the drop-in that `fastwrite enable UNIT' wrote.  Shows it first, and asks.\n"
	"\vExit status: 0 removed, 1 not removed, 2 wrong usage, or there is neither a terminal nor --yes.";

static int enable(const struct unit_args *args, const char *text)
{
	show(args->path, text);
	int refused = confirm(args, "Write it?");
	if (refused != CLI_OK)
		return refused;
	if (!write_drop_in(args, text)) {
		cli_error("cannot write %s: %m", args->path);
		return CLI_FAILED;
	}
	printf("written\n");
	say_commands(args);
	return CLI_OK;
}

int cli_enable(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .args_doc = "UNIT",
	                                 .doc = enable_doc,
	                                 .children = children};
	struct unit_args args = {0};
	char library[PATH_MAX], preload[CLI_PRELOAD_MAX];

	forget_settings();
	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0 || !check_settings(&args))
		return CLI_USAGE;
	if (!stays_below_root(&args) || !is_free(&args) || !check_unit(&args) ||
	    !cli_find_library(args.root, library) || !cli_preload_entry(library, preload))
		return CLI_FAILED;
	if (args.root[0] == '\0')
		warn_about_owner(library);
	char *text = make_text(&args, args.root[0] == '\0' ? preload : library);
	if (text == NULL) {
		cli_error("no memory");
		return CLI_FAILED;
	}
	int status = enable(&args, text);
	free(text);
	return status;
}

static int disable(const struct unit_args *args, const char *text)
{
	if (!is_ours(text)) {
		cli_error("%s: not written by `fastwrite enable'; remove it by hand", args->path);
		return CLI_FAILED;
	}
	show(args->path, text);
	int status = confirm(args, "Remove it?");
	if (status == CLI_OK)
		status = remove_drop_in(args);
	if (status == CLI_OK)
		say_commands(args);
	return status;
}

int cli_disable(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options, .parser = parse, .args_doc = "UNIT", .doc = disable_doc};
	struct unit_args args = {0};

	if (argp_parse(&argp, argc, argv, 0, NULL, &args) != 0)
		return CLI_USAGE;
	if (!stays_below_root(&args))
		return CLI_FAILED;
	char *text = read_drop_in(args.path);
	if (text == NULL) {
		cli_error("%s: %m", args.path);
		return CLI_FAILED;
	}
	int status = disable(&args, text);
	free(text);
	return status;
}
