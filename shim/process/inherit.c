// SPDX-License-Identifier: Apache-2.0
/* inherit: see process/inherit.h. */
#include "process/inherit.h"

#include "base/log.h"
#include "base/sys.h"
#include "base/user.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD="
#define PREFIX "FASTWRITE_"
static const char separators[] = ": "; /* of LD_PRELOAD */

#if defined(__x86_64__)
enum { OUR_MACHINE = EM_X86_64 };
#else
enum { OUR_MACHINE = EM_AARCH64 };
#endif

enum {
	ARG_STRING_MAX = 128 << 10, /* one string, for the kernel */
	ARGS_ALWAYS = 96 << 10,     /* all of them: never refused */
	ARGS_MARGIN = 8 << 10,
	COMMAND_MAX = 64 << 10,
};

/* What was in force at the start; in memory of its own. */
static struct {
	bool on;
	const char *library; /* absolute */
	const char *given;   /* its entry in LD_PRELOAD as it was written, NULL = it had none */
	const char *entry;   /* what is put in for it */
	const char *before;  /* the part of LD_PRELOAD in front of it */
	char **variables;    /* FASTWRITE_*, whole entries */
	size_t variable_count, variable_bytes;
} start;

static __thread struct {
	void *at;
	size_t size;
} mapped;

/* ---- entries of LD_PRELOAD ---- */

struct piece {
	const char *at;
	size_t length;
};

/* The next entry of a list; false at the end. */
static bool next_entry(const char **list, struct piece *entry)
{
	*list += strspn(*list, separators);
	entry->at = *list;
	entry->length = strcspn(*list, separators);
	*list += entry->length;
	return entry->length > 0;
}

static bool same_text(const struct piece *entry, const char *text)
{
	return text && strncmp(entry->at, text, entry->length) == 0 && text[entry->length] == '\0';
}

static bool contains(const char *list, const struct piece *wanted)
{
	struct piece entry;

	while (next_entry(&list, &entry))
		if (entry.length == wanted->length && memcmp(entry.at, wanted->at, entry.length) == 0)
			return true;
	return false;
}

static const char *base_name(const char *path, size_t length)
{
	const char *slash = memrchr(path, '/', length);

	return slash ? slash + 1 : path;
}

/* The loader searches for it, or fills in a part of it ($LIB): only the name of the file can be compared. */
static bool is_found_by_loader(const struct piece *entry)
{
	return !memchr(entry->at, '/', entry->length) || memchr(entry->at, '$', entry->length);
}

static bool same_base(const struct piece *entry, const char *library)
{
	const char *at = base_name(entry->at, entry->length);
	const struct piece base = {at, (size_t)(entry->at + entry->length - at)};

	return base.length > 0 && same_text(&base, base_name(library, strlen(library)));
}

/* By the names that it goes under: what the loader was told, where it found it, or its bare name. */
static bool names_library(const struct piece *entry)
{
	return same_text(entry, start.library) || same_text(entry, start.given) ||
	       same_text(entry, start.entry) ||
	       (is_found_by_loader(entry) && same_base(entry, start.library));
}

/* ---- the start ---- */

/* Is this entry, as the user wrote it, the file that the loader took us from? */
static bool is_library(const struct piece *entry, const char *library)
{
	char path[PATH_MAX];
	struct statx a, b;

	if (same_text(entry, library))
		return true;
	if (is_found_by_loader(entry))
		return same_base(entry, library);
	if (entry->length >= sizeof path)
		return false;
	memcpy(path, entry->at, entry->length);
	path[entry->length] = '\0';
	return sys.statx(AT_FDCWD, path, 0, STATX_INO, &a) == 0 &&
	       sys.statx(AT_FDCWD, library, 0, STATX_INO, &b) == 0 && a.stx_ino == b.stx_ino &&
	       sys_dev_of(&a) == sys_dev_of(&b);
}

/* Memory for what is remembered: strings and pointers. */
struct store {
	char *at;
};

static char *keep(struct store *s, const char *text, size_t length)
{
	char *kept = s->at;

	memcpy(kept, text, length);
	kept[length] = '\0';
	s->at += length + 1;
	return kept;
}

static int absolute(const char *path, char *out)
{
	size_t used = 0;

	if (path[0] != '/') {
		long n = sys_raw(SYS_getcwd, (long)out, PATH_MAX, 0, 0, 0, 0);

		if (n <= 1 || out[0] != '/')
			return -ENOENT;
		used = (size_t)n - 1;
		if (used > 1)
			out[used++] = '/';
	}
	if (strlen(path) >= PATH_MAX - used)
		return -ENAMETOOLONG;
	memcpy(out + used, path, strlen(path) + 1);
	return 0;
}

static bool is_variable(const char *entry)
{
	return strncmp(entry, PREFIX, sizeof PREFIX - 1) == 0 && strchr(entry, '=');
}
static bool is_preload(const char *entry) { return strncmp(entry, PRELOAD, sizeof PRELOAD - 1) == 0; }

static bool is_named(const char *entry, const char *name) { return strncmp(entry, name, strlen(name)) == 0; }

static void keep_variables(struct store *s, char *const *env, const struct inherit_files *files)
{
	for (; *env; env++) {
		char *kept = s->at;

		if (!is_variable(*env))
			continue;
		/* a relative path would mean another file elsewhere */
		const char *file = is_named(*env, PREFIX "CONFIG=")  ? files->config
		                   : is_named(*env, PREFIX "STATS=") ? files->stats
		                                                     : "";

		if (file[0]) {
			keep(s, *env, (size_t)(strchr(*env, '=') + 1 - *env));
			s->at--;
			keep(s, file, strlen(file));
		} else {
			keep(s, *env, strlen(*env));
		}
		start.variables[start.variable_count++] = kept;
		start.variable_bytes += (size_t)(s->at - kept);
	}
}

/* The last one counts, for the loader. */
static const char *preload_of(char *const *env)
{
	const char *found = NULL;

	for (; *env; env++)
		if (is_preload(*env))
			found = *env + sizeof PRELOAD - 1;
	return found;
}

static void keep_entry(struct store *s, const char *list, const char *library)
{
	const char *rest = list;
	struct piece entry;

	while (rest && next_entry(&rest, &entry)) {
		if (!is_library(&entry, library))
			continue;
		start.given = keep(s, entry.at, entry.length);
		start.entry = memchr(entry.at, '$', entry.length) ? start.given : start.library;
		start.before = keep(s, list, (size_t)(entry.at - list));
		return;
	}
}

int inherit_start(const char *library, char *const *env, const struct inherit_files *files)
{
	const char *list = preload_of(env);
	char path[PATH_MAX];
	size_t count = 0, bytes;
	struct store s;
	void *memory;
	int r = absolute(library, path);

	if (r < 0)
		return r;
	bytes = strlen(path) + strlen(files->config) + strlen(files->stats) + 64 +
	        (list ? 2 * strlen(list) + 2 : 0);
	for (char *const *e = env; *e; e++) {
		if (!is_variable(*e))
			continue;
		count++;
		bytes += strlen(*e) + 1;
	}
	bytes += count * sizeof(char *);
	memory = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(memory))
		return (int)(intptr_t)memory;
	memset(&start, 0, sizeof start);
	start.variables = memory;
	s = (struct store){.at = (char *)(start.variables + count)};
	start.library = keep(&s, path, strlen(path));
	keep_variables(&s, env, files);
	keep_entry(&s, list, library);
	start.on = true;
	return 0;
}

/* ---- the new program ---- */

/* As the kernel and execvp will find it, in out[PATH_MAX]; false when it is not found. */
static bool search_path(char *const *env, const char *file, char *out)
{
	const char *path = "/bin:/usr/bin";
	size_t length = strlen(file);

	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0) {
			path = *env + 5;
			break;
		}
	for (;;) {
		size_t n = strcspn(path, ":");

		if (n + length + 2 <= PATH_MAX) {
			memcpy(out, path, n);
			if (n > 0)
				out[n] = '/';
			memcpy(out + n + (n > 0), file, length + 1);
			if (sys_raw(SYS_faccessat, AT_FDCWD, (long)out, 1 /* X_OK */, 0, 0, 0) == 0)
				return true;
		}
		if (path[n] == '\0')
			return false;
		path += n + 1;
	}
}

/* Its loader ends a program that is given a library of glibc.  The loader's name stands behind the program headers. */
static bool is_musl(const unsigned char *head, ssize_t n)
{
	static const char loader[] = "/ld-musl-";

	return n > SELFMAG && memcmp(head, ELFMAG, SELFMAG) == 0 &&
	       memmem(head, (size_t)n, loader, sizeof loader - 1) != NULL;
}

static bool other_machine(const unsigned char *head, ssize_t n)
{
	uint16_t machine;

	if (n < 20 || memcmp(head, ELFMAG, SELFMAG) != 0)
		return false;
	memcpy(&machine, head + 18, sizeof machine);
	return head[EI_CLASS] != ELFCLASS64 || machine != OUR_MACHINE;
}

static bool is_this_program(const struct statx *st)
{
	struct statx own;

	return sys.statx(AT_FDCWD, "/proc/self/exe", 0, STATX_INO, &own) == 0 && own.stx_ino == st->stx_ino &&
	       sys_dev_of(&own) == sys_dev_of(st);
}

/* What can be found out about the new program; `again`: it is this one, or a script, which may be this one. */
static bool takes_preload(const struct inherit_target *to, char *const *own_env, bool *again)
{
	unsigned char head[1024] = {0};
	char found[PATH_MAX];
	const char *path = to->path;
	struct statx st;
	ssize_t n = 0;
	int fd;

	*again = false;
	if (!path || !user_string_readable(path))
		return true;
	if (to->search && !strchr(path, '/')) {
		if (!search_path(own_env, path, found))
			return true;
		path = found;
	}
	if (sys.statx(to->dirfd, path, AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0 ||
	    (st.stx_mode & S_IFMT) != S_IFREG)
		return true; /* exec will say why not */
	if (st.stx_mode & S_ISUID || (st.stx_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
		return false;
	if (path[0] == '\0') {
		n = sys.pread(to->dirfd, head, sizeof head, 0);
	} else {
		fd = sys.openat(to->dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
		if (fd >= 0) {
			n = sys.pread(fd, head, sizeof head, 0);
			sys.close(fd);
		}
	}
	*again = (n >= 2 && memcmp(head, "#!", 2) == 0) || is_this_program(&st);
	return !other_machine(head, n) && !(is_musl(head, n) && start.entry && !strchr(start.entry, '$'));
}

/* After a chroot, a change of the user or in another mount namespace the loader would complain on standard error. */
static bool library_readable(void)
{
	int fd = sys.openat(AT_FDCWD, start.library, O_RDONLY | O_CLOEXEC, 0);

	if (fd >= 0)
		sys.close(fd);
	return fd >= 0;
}

/* ---- the decision ---- */

static const char *const nothing[] = {NULL};

static bool has_entry(const char *list)
{
	struct piece entry;

	while (next_entry(&list, &entry))
		if (names_library(&entry))
			return true;
	return false;
}

static size_t new_bytes(const struct inherit *in)
{
	bool replaces = in->preload < in->count;
	size_t bytes = (in->count + 1) * sizeof(char *);

	if (in->entry)
		bytes += strlen(replaces ? in->env[in->preload] : PRELOAD) + strlen(start.entry) + 2 +
		         (replaces ? 0 : sizeof(char *));
	if (in->variables)
		bytes += start.variable_count * sizeof(char *);
	return bytes;
}

void inherit_look(struct inherit *in, char *const *env, const struct inherit_target *to)
{
	bool any_variable = false, off = false, again;
	const char *list = NULL;

	*in = (struct inherit){.env = env ? env : (char *const *)nothing};
	/* (its own environment every program looks into by itself) */
	if (!start.on || (env && env != environ && !user_reads_list(env)))
		return;
	for (; in->env[in->count]; in->count++) {
		const char *e = in->env[in->count];

		if (is_preload(e)) {
			list = e + sizeof PRELOAD - 1;
			in->preload = in->count;
		} else if (is_variable(e)) {
			any_variable = true;
			off |= strcmp(e, PREFIX "INHERIT=0") == 0;
		}
	}
	if (!list)
		in->preload = in->count;
	in->entry = start.entry && !(list && has_entry(list));
	in->variables = !any_variable && start.variable_count > 0;
	if ((!in->entry && !in->variables) || off || !takes_preload(to, in->env, &again) ||
	    (again && in->entry && !list && any_variable) || !library_readable()) {
		in->entry = in->variables = false;
		return;
	}
	in->bytes = new_bytes(in);
	if (in->entry && in->preload < in->count &&
	    strlen(in->env[in->preload]) + strlen(start.entry) + 2 > ARG_STRING_MAX)
		in->bytes = 0;
}

/* ---- carrying it out ---- */

/* LD_PRELOAD with our entry in its place: behind the last of those that it followed at the start. */
static void merge(const char *list, char *out)
{
	const char *rest = list;
	struct piece entry;
	size_t head = 0;

	while (next_entry(&rest, &entry))
		if (contains(start.before, &entry))
			head = (size_t)(entry.at + entry.length - list);
	memcpy(out, list, head);
	out += head;
	if (head > 0)
		*out++ = ':';
	memcpy(out, start.entry, strlen(start.entry));
	out += strlen(start.entry);
	/* behind a head the list goes on with a separator */
	if (list[head] != '\0' && !strchr(separators, list[head]))
		*out++ = ':';
	memcpy(out, list + head, strlen(list + head) + 1);
}

/* So many bytes of memory that inherit_release gives back; NULL when there is none. */
static void *map_room(size_t bytes)
{
	void *room = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_is_error(room))
		return NULL;
	inherit_release();
	mapped.at = room;
	mapped.size = bytes;
	return room;
}

char *const *inherit_fill(const struct inherit *in, void *room)
{
	char **env = in->bytes == 0 || room ? room : map_room(in->bytes);
	size_t n = in->count;
	char *text;

	if (in->bytes == 0 || !env)
		return in->env;
	for (size_t i = 0; i < n; i++)
		env[i] = in->env[i];
	if (in->entry) {
		bool replaces = in->preload < in->count;
		const char *old = replaces ? in->env[in->preload] : PRELOAD;

		text = (char *)env + in->bytes - (strlen(old) + strlen(start.entry) + 2);
		memcpy(text, PRELOAD, sizeof PRELOAD - 1);
		merge(old + sizeof PRELOAD - 1, text + sizeof PRELOAD - 1);
		env[replaces ? in->preload : n++] = text;
	}
	if (in->variables)
		for (size_t i = 0; i < start.variable_count; i++)
			env[n++] = start.variables[i];
	env[n] = NULL;
	return env;
}

void inherit_release(void)
{
	if (mapped.at)
		sys.munmap(mapped.at, mapped.size);
	mapped.at = NULL;
}

static size_t strings_bytes(char *const *list)
{
	size_t bytes = sizeof(char *);

	for (; list && *list; list++)
		bytes += strlen(*list) + 1 + sizeof(char *);
	return bytes;
}

bool inherit_fits(const struct inherit *in, char *const *argv)
{
	struct {
		uint64_t soft, hard;
	} stack = {UINT64_MAX, UINT64_MAX};
	uint64_t most = 6 << 20;
	size_t bytes = in->bytes + start.variable_bytes;

	if (argv && !user_reads_list(argv))
		return false;
	bytes += strings_bytes(in->env) + strings_bytes(argv);
	if (bytes <= ARGS_ALWAYS)
		return true;
	sys_raw(SYS_prlimit64, 0, RLIMIT_STACK, 0, (long)&stack, 0, 0);
	if (stack.soft / 4 < most)
		most = stack.soft / 4;
	return bytes + ARGS_MARGIN + PATH_MAX <= most;
}

/* ---- commands for a shell ---- */

/* NAME='value' with a blank in front; the length. */
static size_t put_assignment(const char *entry, char *out)
{
	static const char quote[] = "'\\''";
	const char *value = strchr(entry, '=') + 1;
	size_t n = 0;

	if (strspn(entry, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != (size_t)(value - entry) - 1)
		return 0; /* no name for a shell */
	out[n++] = ' ';
	memcpy(out + n, entry, (size_t)(value - entry));
	n += (size_t)(value - entry);
	out[n++] = '\'';
	for (; *value; value++) {
		if (*value == '\'') {
			memcpy(out + n, quote, sizeof quote - 1);
			n += sizeof quote - 1;
		} else {
			out[n++] = *value;
		}
	}
	out[n++] = '\'';
	return n;
}

const char *inherit_command(const struct inherit *in, const char *command)
{
	static const char export[] = "export";
	size_t length, most, n;
	char *const *env;
	char *room, *out;

	/* where the shell might take the command for an option, or the kernel refuse it, it stays as it is */
	if (in->bytes == 0 || !user_string_readable(command) || command[0] == '-' || command[0] == '+')
		return command;
	length = strlen(command);
	most = in->bytes + 4 * (in->bytes + start.variable_bytes) + length + 64;
	if (most > COMMAND_MAX)
		return command;
	room = map_room(most);
	if (!room)
		return command;
	env = inherit_fill(in, room);
	out = room + in->bytes;
	memcpy(out, export, sizeof export);
	n = sizeof export - 1;
	for (size_t i = 0; env[i]; i++)
		if (i >= in->count || (in->entry && i == in->preload))
			n += put_assignment(env[i], out + n);
	memcpy(out + n, "; ", 2);
	memcpy(out + n + 2, command, length + 1);
	return out;
}
