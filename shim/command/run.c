// SPDX-License-Identifier: Apache-2.0
/*
 * run: `fastwrite run CMD` starts the program with the library preloaded, passes signals on to it, and
 * recovers after its death.
 */
#include "command/command.h"

#include "base/quote.h"
#include "format/arena_format.h"
#include "recovery/recover.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OPTION_STATS = 0x100, OPTION_ON_ERROR, OPTION_STRICT };

struct run_args {
	bool verbose;
	char **command;
};

static const char doc[] =
	"Runs CMD with libfastwrite.so preloaded, and recovers what it leaves staged, however it ends.\n"
	"\vSignals sent to `fastwrite run' are passed on to CMD.  A program in which nothing can be "
	"preloaded (static, setuid, Go, musl, 32 bit) runs as it is, with a warning; with --on-error=stop "
	"it is not started.\n"
	"\n"
	"Exit status: that of CMD; when a signal ended CMD, the same signal ends `fastwrite run' (128 + its "
	"number in a shell).  125 fastwrite itself failed or refused, 126 CMD cannot be executed, 127 CMD "
	"was not found, 2 wrong usage.";

static const struct argp_option options[] = {
	{"stats", OPTION_STATS, "FILE", OPTION_ARG_OPTIONAL, "Print counters at exit (FASTWRITE_STATS)", 1},
	{"on-error", OPTION_ON_ERROR, "warn|stop", 0,
         "What to do when the configuration is wrong or nothing can be preloaded: start CMD without the "
         "library, or do not start it (FASTWRITE_ON_ERROR)",
         1},
	{"strict", OPTION_STRICT, NULL, OPTION_HIDDEN, NULL, 1}, /* its old name */
	{"verbose", 'v', NULL, 0, "Say what recovery did even when it had nothing to do", 1},
	{0},
};

static void set_stats(const char *file, struct argp_state *state)
{
	char path[PATH_MAX];

	if (file == NULL) {
		setenv("FASTWRITE_STATS", "stderr", 1);
		return;
	}
	if (cli_canonical(file, path) != 0)
		argp_error(state, "--stats=%s: the directory of this file does not exist", file);
	setenv("FASTWRITE_STATS", path, 1);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct run_args *args = state->input;

	switch (key) {
	case OPTION_STATS: set_stats(arg, state); return 0;
	case OPTION_STRICT:
		cli_error("--strict is the old name of --on-error=stop; it still works");
		setenv("FASTWRITE_ON_ERROR", "stop", 1);
		return 0;
	case OPTION_ON_ERROR:
		if (strcmp(arg, "warn") != 0 && strcmp(arg, "stop") != 0)
			argp_error(state, "--on-error=%s: allowed: warn, stop", arg);
		setenv("FASTWRITE_ON_ERROR", arg, 1);
		return 0;
	case 'v': args->verbose = true; return 0;
	case ARGP_KEY_ARG:
		args->command = state->argv + state->next - 1;
		state->next = state->argc; /* the rest is for the program */
		return 0;
	case ARGP_KEY_NO_ARGS:
		argp_error(state, "a program is missing: fastwrite run [OPTION...] [--] CMD [ARGUMENT...]");
		return 0;
	default: return ARGP_ERR_UNKNOWN;
	}
}

/* ---- before the start ---- */

/* `list` without its first entry when that is `entry`. */
static const char *behind_first(const char *list, const char *entry)
{
	size_t length = strlen(entry);

	if (strncmp(list, entry, length) != 0 || strchr(": ", list[length]) == NULL)
		return list; /* strchr finds the terminating NUL, too */
	return list + length + strspn(list + length, ": ");
}

#define NOT_STARTED "not started (FASTWRITE_ON_ERROR = stop)"

/* Of what the loader cannot load it says so in each program, and goes on without it. */
static bool is_library(const char *path)
{
	struct program p;

	if (program_inspect(path, &p) == 0 && p.library)
		return true;
	cli_error("%s: not a shared library of this machine; nothing is staged", path);
	return false;
}

/* Puts the library in front of LD_PRELOAD, except for a program that would not start with it. */
static bool set_preload(const struct program *p, bool stop_on_error)
{
	char library[PATH_MAX];
	char entry[CLI_PRELOAD_MAX];
	const char *old = getenv("LD_PRELOAD");
	char *value;

	if (!cli_find_library("", library) || !cli_preload_entry(library, entry))
		return false;
	bool usable = is_library(library);
	if (!usable && stop_on_error) {
		cli_error(NOT_STARTED);
		return false;
	}
	old = behind_first(behind_first(old != NULL ? old : "", library), entry);
	if (!usable || p->kind == PROGRAM_FOREIGN || (p->musl && strcmp(entry, library) == 0))
		entry[0] = '\0';
	if (asprintf(&value, "%s%s%s", entry, *entry && *old ? ":" : "", old) < 0)
		return false;
	setenv("LD_PRELOAD", value, 1);
	free(value);
	return true;
}

/* 0, or the exit status with which to refuse. */
static int check_program(const char *name, bool stop_on_error, struct program *p)
{
	char path[PATH_MAX];
	char interpreter[PATH_MAX];
	int rc = cli_find_program(name, path);

	if (rc == -EACCES) {
		cli_error("%s: not executable; check its mode, or name another program", name);
		return CLI_RUN_NOT_EXECUTABLE;
	}
	if (rc != 0) {
		cli_error("%s: %s", name,
		          strchr(name, '/') != NULL ? "no such program" : "no such program in PATH");
		return CLI_RUN_NOT_FOUND;
	}
	if (program_lacks_interpreter(path, interpreter)) {
		cli_error("%s: its interpreter %s does not exist", path, interpreter);
		return CLI_RUN_NOT_EXECUTABLE;
	}
	if (program_resolve(path, p) != 0 || program_obstacle(p) == NULL)
		return 0;
	cli_error("%s: %s", path, program_obstacle(p));
	if (stop_on_error) {
		cli_error(NOT_STARTED);
		return CLI_RUN_FAILED;
	}
	cli_error("started without libfastwrite.so");
	return 0;
}

/* Relative paths would mean other files where the program, or a child of it, starts. */
static void make_paths_absolute(const struct config *c)
{
	if (c->file[0] != '\0')
		setenv("FASTWRITE_CONFIG", c->file, 1);
	if (c->stats_file[0] != '\0')
		setenv("FASTWRITE_STATS", c->stats_file, 1);
}

/*
 * The library reports a wrong configuration in the program.  Here only: refuse to start, and notices once for
 * the job.  0, or the exit status.
 */
static int check_configuration(const struct config *c, bool valid)
{
	if (!valid && c->on_error == ON_ERROR_STOP) {
		cli_error("%s", c->error);
		cli_error(NOT_STARTED);
		return CLI_RUN_FAILED;
	}
	if (valid)
		cli_say_notices(c, true);
	if (valid && c->rule_count == 0)
		cli_error(
			"no rule: nothing will be staged; set FASTWRITE_PATHS (-p) or FASTWRITE_CONFIG (-c)");
	return 0;
}

/*
 * Makes the file to which the library appends the path of every arena that it makes; out[PATH_MAX].  It is
 * read through the stream: in /tmp others may put something of theirs in the place of a name.  NULL: said
 * why.
 */
static FILE *make_registry(char *out)
{
	const char *dir = getenv("TMPDIR");

	if (dir == NULL || dir[0] != '/' || access(dir, W_OK | X_OK) != 0)
		dir = "/tmp";
	if (snprintf(out, PATH_MAX, "%s/fastwrite-run-XXXXXX", dir) >= PATH_MAX)
		return NULL;
	int fd = mkostemp(out, O_CLOEXEC);
	if (fd < 0) {
		cli_error("cannot make a file in %s: %m; set TMPDIR to a writable directory", dir);
		return NULL;
	}
	setenv("FASTWRITE_REGISTRY", out, 1);
	FILE *registry = fdopen(fd, "r");
	if (registry == NULL)
		cli_error("cannot read %s: %m", out);
	return registry;
}

/* ---- the child and its signals ---- */

static const int forwarded[] = {SIGHUP,   SIGINT,    SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE,
                                SIGWINCH, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR,  SIGURG,  SIGCONT};

static void signal_set(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGCHLD);
	for (size_t i = 0; i < sizeof(forwarded) / sizeof(forwarded[0]); i++)
		sigaddset(set, forwarded[i]);
	for (int s = SIGRTMIN; s <= SIGRTMAX; s++)
		sigaddset(set, s);
}

/* Starts the command.  The pid, or -errno; a pipe brings back the error of exec. */
static pid_t start(char **command, const sigset_t *mask, const struct sigaction *chld)
{
	int report[2];
	int error = 0;

	if (pipe2(report, O_CLOEXEC) != 0)
		return -errno;
	pid_t child = fork();
	if (child < 0) {
		error = errno;
		close(report[0]);
		close(report[1]);
		return -error;
	}
	if (child == 0) {
		sigaction(SIGCHLD, chld, NULL);
		sigprocmask(SIG_SETMASK, mask, NULL);
		execvp(command[0], command);
		error = errno;
		ssize_t n = write(report[1], &error, sizeof(error));
		_exit(n == sizeof(error) ? CLI_RUN_FAILED : CLI_RUN_NOT_FOUND);
	}
	close(report[1]);
	ssize_t n;
	do
		n = read(report[0], &error, sizeof(error));
	while (n < 0 && errno == EINTR);
	close(report[0]);
	if (n != sizeof(error))
		return child;
	waitpid(child, NULL, 0);
	return -error;
}

/*
 * Job control: when the terminal stops the child we stop too, so that the shell takes over.  Not after a
 * plain SIGSTOP: its sender would continue the child only.
 */
static void follow_stop(int stop_signal)
{
	if (stop_signal != SIGTSTP && stop_signal != SIGTTIN && stop_signal != SIGTTOU)
		return;
	int terminal = open("/dev/tty", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (terminal < 0)
		return;
	close(terminal);
	raise(SIGSTOP);
}

/*
 * The terminal sends these to the whole foreground group: the child has got them already.  A hang-up goes to
 * the leader of the session first: if that is this process, the child knows nothing of it.
 */
static bool is_group_signal(int number)
{
	return number == SIGINT || number == SIGQUIT || number == SIGWINCH ||
	       (number == SIGHUP && getsid(0) != getpid());
}

/* Waits for the end of the child; its wait status. */
static int attend(pid_t child, const sigset_t *set)
{
	siginfo_t info;
	int status;

	for (;;) {
		if (sigwaitinfo(set, &info) < 0)
			continue;
		if (info.si_signo != SIGCHLD) {
			if (info.si_code <= 0 || !is_group_signal(info.si_signo))
				kill(child, info.si_signo);
			continue;
		}
		/* as process 1 of a container we reap other processes, too */
		pid_t pid;
		while ((pid = waitpid(-1, &status, WUNTRACED | WNOHANG)) > 0) {
			if (pid != child)
				continue;
			if (!WIFSTOPPED(status))
				return status;
			follow_stop(WSTOPSIG(status));
		}
	}
}

/* ---- afterwards ---- */

static void on_event(void *ctx, const struct recover_event *e)
{
	const struct run_args *args = ctx;
	const char *name = e->target[0] != '\0' ? e->target : e->arena;
	const char *joint = e->detail[0] != '\0' ? ": " : "";
	char detail[PATH_MAX], word[QUOTE_PATH_MAX];

	if (e->error == FORMAT_NEWER)
		cli_error("recovery of %s failed: %s", name, e->detail);
	else if (strcmp(e->action, "failed") == 0)
		cli_error("recovery of %s failed: %s%s%s; run: fastwrite recover %s", name,
		          strerror(-e->error), joint, e->detail, quote_word(word, sizeof(word), e->arena));
	else if (strcmp(e->action, "orphaned") == 0)
		cli_error("%s is gone; %llu bytes of it kept%s%s", name, (unsigned long long)e->bytes, joint,
		          cli_recover_detail(e, detail));
	else if (strcmp(e->action, "aside") == 0)
		cli_error("%s: %llu bytes are put aside%s%s", name, (unsigned long long)e->bytes, joint,
		          e->detail);
	else if (args->verbose && strcmp(e->action, "live") != 0)
		cli_error("%s %s, %llu bytes", e->action, name, (unsigned long long)e->bytes);
}

/* (a path of the configuration may have two slashes of its own) */
static void decode_line_feeds(char *path)
{
	if (access(path, F_OK) == 0)
		return;
	for (char *at = path; (at = strstr(at, "//")) != NULL;) {
		*at++ = '\n';
		memmove(at, at + 1, strlen(at + 1) + 1);
	}
}

/* Recovers, or with dry_run looks at, every arena that the registry lists. */
static void each_listed(FILE *registry, const struct recover_options *opt, struct recover_report *report)
{
	char *line = NULL, word[QUOTE_PATH_MAX];
	size_t size = 0;
	ssize_t length;

	rewind(registry);
	while ((length = getline(&line, &size, registry)) > 0) {
		if (line[length - 1] == '\n')
			line[length - 1] = '\0';
		decode_line_feeds(line);
		if (line[0] != '/' || access(line, F_OK) != 0)
			continue;
		int rc = cli_recover_path(line, opt, report);
		if (rc < 0 && rc != -ENOENT && !opt->dry_run)
			cli_error("cannot recover %s: %s; run: fastwrite recover %s", line, strerror(-rc),
			          quote_word(word, sizeof(word), line));
	}
	free(line);
}

/*
 * The signal that killed CMD may be meant for its descendants, too (the OOM killer, a stopped container):
 * wait for their deaths, two seconds at most.
 */
static void wait_for_descendants(FILE *registry)
{
	const struct recover_options look = {.dry_run = true};

	for (long ms = 8; ms <= 1024; ms *= 2) {
		const struct timespec nap = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
		struct recover_report report = {0};

		each_listed(registry, &look, &report);
		if (report.live == 0)
			return;
		nanosleep(&nap, NULL);
	}
}

static void recover_listed(FILE *registry, struct run_args *args, bool killed)
{
	const struct recover_options opt = {.event = on_event, .ctx = args};
	struct recover_report report = {0};

	if (killed)
		wait_for_descendants(registry);
	each_listed(registry, &opt, &report);
	if (report.bytes > 0)
		cli_error("recovered %llu bytes", (unsigned long long)report.bytes);
	else if (args->verbose)
		cli_error("nothing to recover");
	if (report.live > 0 && (killed || args->verbose))
		cli_error("processes that CMD started go on staging; if they are killed, run: fastwrite "
		          "recover --all, with the same configuration");
}

/* Ends as the child did. */
static int end_like(int status)
{
	const struct rlimit none = {0, 0};
	sigset_t set;

	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	/* our core file must not overwrite that of the child */
	setrlimit(RLIMIT_CORE, &none);
	signal(WTERMSIG(status), SIG_DFL);
	fflush(NULL);
	raise(WTERMSIG(status));
	sigemptyset(&set);
	sigaddset(&set, WTERMSIG(status));
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	return 128 + WTERMSIG(status);
}

static int run_command(struct run_args *args, const char *name, FILE *registry)
{
	const struct sigaction plain = {.sa_handler = SIG_DFL};
	struct sigaction chld;
	sigset_t set;
	sigset_t before;

	signal_set(&set);
	sigprocmask(SIG_BLOCK, &set, &before);
	sigaction(SIGCHLD, &plain, &chld); /* an inherited SIG_IGN would hide the child's end from us */
	pid_t child = start(args->command, &before, &chld);
	if (child < 0) {
		unlink(name);
		sigprocmask(SIG_SETMASK, &before, NULL);
		cli_error("%s: %s", args->command[0], strerror(-child));
		return child == -ENOENT ? CLI_RUN_NOT_FOUND : CLI_RUN_NOT_EXECUTABLE;
	}
	int status = attend(child, &set);
	recover_listed(registry, args, WIFSIGNALED(status));
	unlink(name);
	return end_like(status);
}

int cli_run(int argc, char **argv)
{
	static const struct argp_child children[] = {{&cli_settings_argp, 0, NULL, 0}, {0}};
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .args_doc = "[--] CMD [ARGUMENT...]",
	                                 .doc = doc,
	                                 .children = children};
	struct run_args args = {0};
	struct program program = {0};
	char name[PATH_MAX];

	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &args) != 0)
		return CLI_USAGE;
	const struct config *config;
	bool valid = cli_load_config_quietly(&config);
	make_paths_absolute(config);
	bool stop_on_error = config->on_error == ON_ERROR_STOP;
	int refused = check_program(args.command[0], stop_on_error, &program);
	if (refused == 0)
		refused = check_configuration(config, valid);
	if (refused != 0)
		return refused;
	FILE *registry = set_preload(&program, stop_on_error) ? make_registry(name) : NULL;
	return registry != NULL ? run_command(&args, name, registry) : CLI_RUN_FAILED;
}
