// SPDX-License-Identifier: Apache-2.0
/*
 * machine: see machine.h.
 *
 *     machine run CONTROL LIST DIRECTORY [quick] [family]
 *     machine generate SEED FIRST COUNT [exclusive] [alone] [unlimited] [no-spawn] [gentle]
 *     machine prepare LIST DIRECTORY
 *     machine compare DIRECTORY DIRECTORY
 *
 * LIST has one operation per line, `[@PROCESS[.THREAD]] NAME ARGUMENT...`; `begin` starts a sequence, in a
 * directory of its own (DIRECTORY/s0, s1, ...).  CONTROL is a file that must not match a rule: what was noted
 * is found in it, whatever happens to the processes.
 */
#include "machine.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct control *control;
int me;
static __thread unsigned char *own_buffer;

static void op_begin(const long *a);

static const struct kind kinds[] = {
#define KIND(text, takes, name) {text, takes, op_##name},
	{"begin", "", op_begin},
	FILE_OPERATIONS(KIND) STREAM_OPERATIONS(KIND) MANY_OPERATIONS(KIND) PROCESS_OPERATIONS(KIND)
#undef KIND
};
enum { KINDS = sizeof kinds / sizeof *kinds };

int kind_find(const char *name)
{
	for (int i = 0; i < KINDS; i++)
		if (strcmp(kinds[i].name, name) == 0)
			return i;
	return -1;
}

const struct kind *kind_of(const struct op *op) { return &kinds[op->kind]; }

void fresh_errno(void) { errno = ERRNO_BEFORE; }

/* What happened is in the trace; nobody goes on. */
void unexpected(const char *what)
{
	say(" [%s]\n", what);
	__atomic_store_n(&control->failed, 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&control->bell, 1, __ATOMIC_SEQ_CST);
	raw_wake(&control->bell);
	raw(SYS_exit_group, 3, 0, 0, 0, 0, 0);
	__builtin_unreachable();
}

void say(const char *format, ...)
{
	uint64_t used = control->trace_used;
	va_list list;
	int n;

	va_start(list, format);
	n = vsnprintf(control->trace + used, TRACE_MAX - used, format, list);
	va_end(list);
	if (n < 0 || (uint64_t)n >= TRACE_MAX - used) {
		raw(SYS_exit_group, 4, 0, 0, 0, 0, 0);
		__builtin_unreachable();
	}
	control->trace_used = used + (uint64_t)n;
}

void say_result(long r)
{
	int error = errno;

	say(" %ld %d", r, error);
}

unsigned char *aligned_here(void)
{
	if (!own_buffer) {
		void *memory = mmap(NULL, BUFFER + 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		                    -1, 0);

		if (memory == MAP_FAILED)
			unexpected("no memory");
		own_buffer = memory;
	}
	return own_buffer;
}

/* Of no use for O_DIRECT: the kernel mixes parts of blocks with the page cache in ways that differ by chance.
 */
unsigned char *buffer_here(void) { return aligned_here() + 8; }

const char *place_of(const char *inside)
{
	static __thread char places[4][PATH_MAX];
	static __thread unsigned use;
	char *place = places[use++ % 4];

	if (snprintf(place, PATH_MAX, "%s/s%u/%s", control->directory, control->sequence, inside) >= PATH_MAX)
		unexpected("path too long");
	return place;
}

const char *name_of(long file)
{
	char inside[32];

	snprintf(inside, sizeof inside, file < 4 ? "f%ld" : "d/f%ld", file);
	return place_of(inside);
}

void fill(unsigned char *to, size_t n, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;

	for (size_t i = 0; i < n; i += 8) {
		size_t part = n - i < 8 ? n - i : 8;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		memcpy(to + i, &x, part);
	}
}

uint64_t digest(const unsigned char *from, size_t n, uint64_t h)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = 0;

		memcpy(&word, from + i, n - i < 8 ? n - i : 8);
		h = (h ^ word) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h ^ n;
}

/* ---- a sequence ---- */

static void no_limit(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	if (limit.rlim_cur != limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_FSIZE, &limit);
	}
}

static void end_sequence(void)
{
	processes_end_all();
	no_limit();
	streams_close_all();
	maps_close_all();
	slots_close_all();
	control->dirts = 0;
	control->last_description = 0;
	control->killed = false;
}

static void make_dir(const char *path)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST) {
		perror(path);
		unexpected("mkdir");
	}
}

static void op_begin(const long *a)
{
	long fd;

	(void)a;
	clock_gettime(CLOCK_REALTIME_COARSE, &control->began);
	make_dir(place_of(""));
	make_dir(place_of("d"));
	/* opened for writing whenever a dead process may have left something to be recovered */
	fd = raw(SYS_openat, AT_FDCWD, (long)place_of("r"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600, 0, 0);
	if (fd < 0) {
		say(" error %ld", -fd);
		unexpected("cannot make a file");
	}
	raw(SYS_close, fd, 0, 0, 0, 0, 0);
}

static void execute(const struct op *op)
{
	const struct kind *kind = kind_of(op);
	int actor = me;

	if (op->kind == 0) {
		end_sequence();
		control->sequence = op->sequence;
	}
	say("%u @%d %s", (unsigned)(op - control->op), me, kind->name);
	processes_before(op);
	if (op->thread == 0) {
		fresh_errno();
		kind->run(op->a);
	} else {
		threads_run(op);
	}
	if (me != actor)
		return; /* in the child of a fork: the turn is the parent's */
	processes_after(op);
	say("\n");
	processes_done();
}

static void run_all(void)
{
	const struct op *op;

	while ((op = processes_next()))
		execute(op);
}

/* ---- lists ---- */

/* What makes or ends a process is the main thread's business. */
static bool can_thread(int kind)
{
	return kind != 0 && kinds[kind].run != op_fork && kinds[kind].run != op_exit &&
	       kinds[kind].run != op_exec;
}

static bool parse_line(const char *line, uint32_t *sequences, struct op *op)
{
	unsigned process = 0, thread = 0;
	char name[32];
	int used = 0;

	*op = (struct op){0};
	if (line[0] == '@') {
		if (sscanf(line, "@%u.%u %n", &process, &thread, &used) < 2 || used == 0) {
			thread = 0;
			if (sscanf(line, "@%u %n", &process, &used) < 1)
				return false;
		}
	}
	line += used;
	if (process >= PROCESSES || thread >= THREADS || sscanf(line, "%31s", name) < 1)
		return false;
	if (sscanf(line + strlen(name), "%ld %ld %ld %ld %ld %ld %ld", &op->a[0], &op->a[1], &op->a[2],
	           &op->a[3], &op->a[4], &op->a[5], &op->a[6]) < -1)
		return false;
	if (kind_find(name) < 0)
		return false;
	op->kind = (uint16_t)kind_find(name);
	op->process = (uint8_t)process;
	op->thread = (uint8_t)(can_thread(op->kind) ? thread : 0);
	if (op->kind == 0)
		++*sequences;
	if (*sequences == 0)
		return false; /* no `begin` */
	op->sequence = *sequences - 1;
	return true;
}

/* Only what exists may be named; what is in range but closed, or not there, is the kernel's to judge. */
static bool plausible(const struct op *op)
{
	const char *takes = kind_of(op)->takes;
	int i = 0;

	for (; *takes; takes++) {
		long v;

		if (*takes == 'A')
			continue;
		v = op->a[i++];
		if (strchr("swtx", *takes) && (v < 0 || v >= SLOTS))
			return false;
		if (strchr("fF", *takes) && (v < 0 || v >= FILES))
			return false;
		if (*takes == 'k' && (v < 0 || v >= STREAMS))
			return false;
		if (*takes == 'm' && (v < 0 || v >= MAPS))
			return false;
	}
	return true;
}

static int load(const char *path)
{
	FILE *list = fopen(path, "r");
	uint32_t sequences = 0, n = 0;
	char line[256];

	if (!list) {
		perror(path);
		return 2;
	}
	while (fgets(line, sizeof line, list)) {
		if (line[0] == '#' || line[0] == '\n')
			continue;
		if (n == OPS_MAX || !parse_line(line, &sequences, &control->op[n]) ||
		    !plausible(&control->op[n])) {
			fprintf(stderr, "machine: no such operation: %s", line);
			fclose(list);
			return 2;
		}
		n++;
	}
	fclose(list);
	control->ops = n;
	return n > 0 ? 0 : 2;
}

static struct control *map_control(const char *path, int flags)
{
	int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
	struct control *c;

	if (fd < 0 || ((flags & O_CREAT) && ftruncate(fd, sizeof *c) < 0)) {
		perror(path);
		exit(2);
	}
	c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (c == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	close(fd);
	return c;
}

static void begin_process(void)
{
	struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	umask(022);
	files_start();
}

static int run(int argc, char **argv)
{
	int r;

	control = map_control(argv[2], O_CREAT | O_TRUNC);
	control->trace_at = offsetof(struct control, trace);
	if (!realpath(argv[4], control->directory) || !realpath(argv[2], control->control_path) ||
	    readlink("/proc/self/exe", control->program, sizeof control->program - 1) < 0) {
		perror(argv[4]);
		return 2;
	}
	for (int i = 5; i < argc; i++) {
		control->no_sleep |= strcmp(argv[i], "quick") == 0;
		control->family_exact |= strcmp(argv[i], "family") == 0;
	}
	r = load(argv[3]);
	if (r != 0)
		return r;
	/* whoever loses its parent is reaped here; and who started us must not leave us behind */
	prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	begin_process();
	processes_start();
	run_all();
	end_sequence();
	return 0;
}

static int resume(char **argv)
{
	control = map_control(argv[2], 0);
	begin_process();
	processes_resume(atoi(argv[3]));
	run_all();
	return 0;
}

/* The files that sequences begin with, made beforehand: for a lower layer. */
static int prepare(const char *list, const char *directory)
{
	int r;

	control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE,
	               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (control == MAP_FAILED || !realpath(directory, control->directory))
		return 2;
	r = load(list);
	for (uint32_t i = 0; r == 0 && i < control->ops; i++) {
		control->sequence = control->op[i].sequence;
		control->trace_used = 0;
		if (control->op[i].kind == 0)
			op_begin(NULL);
		else if (kind_of(&control->op[i])->run == op_make)
			op_make(control->op[i].a);
	}
	return r;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "run") == 0 && argc >= 5)
		return run(argc, argv);
	if (strcmp(what, "resume") == 0 && argc == 4)
		return resume(argv);
	if (strcmp(what, "generate") == 0 && argc >= 5)
		return generate(argc, argv);
	if (strcmp(what, "prepare") == 0 && argc == 4)
		return prepare(argv[2], argv[3]);
	if (strcmp(what, "compare") == 0 && argc == 4)
		return compare(argv[2], argv[3]);
	if (strcmp(what, "helper") == 0 && argc == 5)
		return helper(argc, argv);
	fprintf(stderr, "usage: see machine.c\n");
	return 2;
}
