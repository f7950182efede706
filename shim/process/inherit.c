// SPDX-License-Identifier: Apache-2.0
/* inherit: see process/inherit.h. */
#include "process/inherit.h"

#include "base/sys.h"
#include "base/user.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PRELOAD "LD_PRELOAD="
#define PREFIX "FASTWRITE_"
static const char separators[] = ": "; /* of LD_PRELOAD */

#if defined(__x86_64__)
enum { OUR_MACHINE = EM_X86_64 };
#else
enum { OUR_MACHINE = EM_AARCH64 };
#endif

/* What was in force at the start; in memory of its own. */
static struct {
	const char *library; /* absolute; NULL: nothing is remembered */
	const char *entry;   /* its entry of LD_PRELOAD; NULL: it had none */
	char **variables;    /* FASTWRITE_*, whole entries */
	size_t variable_count;
} start;

static _Atomic bool ended;

static __thread struct {
	void *at;
	size_t size;
} mapped;

static bool is_variable(const char *entry)
{
	return strncmp(entry, PREFIX, sizeof PREFIX - 1) == 0 && strchr(entry, '=');
}
static bool is_preload(const char *entry) { return strncmp(entry, PRELOAD, sizeof PRELOAD - 1) == 0; }
static bool is_named(const char *entry, const char *name) { return strncmp(entry, name, strlen(name)) == 0; }

/* ---- entries of LD_PRELOAD ---- */

static const char *base_name(const char *path, size_t length)
{
	const char *slash = memrchr(path, '/', length);

	return slash ? slash + 1 : path;
}

/* The entry of a list that names the library, and its length; NULL: there is none.  The loader may search for
 * the library, or expand a part of the path ($LIB).  So only the file's name can be compared. */
static const char *find_entry(const char *list, const char *library, size_t *length)
{
	const char *wanted = base_name(library, strlen(library));

	for (;; list += *length) {
		const char *base;
		size_t n;

		list += strspn(list, separators);
		*length = strcspn(list, separators);
		if (*length == 0)
			return NULL;
		base = base_name(list, *length);
		n = (size_t)(list + *length - base);
		if (n == strlen(wanted) && memcmp(base, wanted, n) == 0)
			return list;
	}
}

/* ---- the start ---- */

/* Memory for the strings and pointers to remember. */
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

static void keep_variables(struct store *s, char *const *env, const struct inherit_files *files)
{
	for (; *env; env++) {
		char *kept = s->at;

		if (!is_variable(*env))
			continue;
		/* a relative path would name another file elsewhere */
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
	}
}

static void keep_entry(struct store *s, const char *list, const char *library)
{
	size_t length;
	const char *given = list ? find_entry(list, library, &length) : NULL;

	/* what the loader expands ($LIB) is kept unexpanded, so that other loaders (of musl) pass over it */
	if (given && memchr(given, '$', length))
		start.entry = keep(s, given, length);
	else if (given)
		start.entry = start.library;
}

/* The last LD_PRELOAD counts for the loader. */
static const char *preload_of(char *const *env)
{
	const char *found = NULL;

	for (; *env; env++)
		if (is_preload(*env))
			found = *env + sizeof PRELOAD - 1;
	return found;
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
	bytes = strlen(path) + strlen(files->config) + strlen(files->stats) + (list ? strlen(list) : 0) + 64;
	for (char *const *e = env; *e; e++) {
		if (!is_variable(*e))
			continue;
		count++;
		bytes += strlen(*e) + 1;
	}
	bytes += count * sizeof(char *);
	/* (not sys.mmap: nothing is locked in memory yet) */
	memory = (void *)sys_raw(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
	                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(memory))
		return (int)(intptr_t)memory;
	memset(&start, 0, sizeof start);
	start.variables = memory;
	s = (struct store){.at = (char *)(start.variables + count)};
	keep_variables(&s, env, files);
	start.library = keep(&s, path, strlen(path));
	keep_entry(&s, list, path);
	return 0;
}

/* ---- the new program ---- */

/* Finds the program as the kernel and execvp will, in out[PATH_MAX].  False: not found. */
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

/* True for a program that must not get our entry.  The loader of another machine would complain.  The loader
 * of musl ends a program that is given a library of glibc.  The loader's name stands behind the program
 * headers. */
static bool refuses(const unsigned char *head, ssize_t n)
{
	static const char musl[] = "/ld-musl-";
	uint16_t machine; /* e_machine: at the same place in all formats */

	if (n < 20 || memcmp(head, ELFMAG, SELFMAG) != 0)
		return false;
	memcpy(&machine, head + 18, sizeof machine);
	return machine != OUR_MACHINE ||
	       (start.entry && !strchr(start.entry, '$') && memmem(head, (size_t)n, musl, sizeof musl - 1));
}

static bool is_this_program(const struct statx *st)
{
	struct statx own;

	return sys.statx(AT_FDCWD, "/proc/self/exe", 0, STATX_INO, &own) == 0 && own.stx_ino == st->stx_ino &&
	       sys_dev_of(&own) == sys_dev_of(st);
}

/* May the new program get the library?  `again`: it is this program, or a script, whose interpreter may
 * be. */
static bool takes_preload(const struct inherit_target *to, char *const *env, bool *again)
{
	unsigned char head[1024] = {0};
	char found[PATH_MAX];
	const char *path = to->path;
	struct statx st;
	ssize_t n = 0;
	int fd;

	*again = false;
	if (!user_string_readable(path))
		return true;
	if (to->search && !strchr(path, '/')) {
		if (!search_path(env, path, found))
			return true;
		path = found;
	}
	if (sys.statx(to->dirfd, path, AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0 ||
	    (st.stx_mode & S_IFMT) != S_IFREG)
		return true; /* exec will report the error */
	/* set-user-id: the loader ignores LD_PRELOAD there */
	if (st.stx_mode & S_ISUID || (st.stx_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
		return false;
	fd = path[0] ? (int)sys.openat(to->dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0)
	             : to->dirfd;
	if (fd >= 0)
		n = sys.pread(fd, head, sizeof head, 0);
	if (fd >= 0 && path[0])
		sys.close(fd);
	*again = (n >= 2 && memcmp(head, "#!", 2) == 0) || is_this_program(&st);
	return !refuses(head, n);
}

/* After a chroot, a change of the user or in another mount namespace the library may be unreadable.  Then the
 * loader would complain on standard error. */
static bool library_readable(void)
{
	int fd = sys.openat(AT_FDCWD, start.library, O_RDONLY | O_CLOEXEC, 0);

	if (fd >= 0)
		sys.close(fd);
	return fd >= 0;
}

/* ---- the new environment ---- */

/* The `count` entries of `env`, and those that are missing.  `list`: the value of its LD_PRELOAD, which is
 * entry `at`; or NULL.  Returns NULL if there is no memory. */
static char *const *extended(char *const *env, size_t count, bool entry, bool variables, size_t at,
                             const char *list)
{
	size_t text_bytes =
		sizeof PRELOAD + (entry ? strlen(start.entry) : 0) + (list ? strlen(list) + 1 : 0);
	size_t bytes = (count + start.variable_count + 2) * sizeof(char *) + text_bytes;
	char **made = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *text = (char *)made + bytes - text_bytes;

	if (sys_is_error(made))
		return NULL;
	inherit_release();
	mapped.at = made;
	mapped.size = bytes;
	memcpy(made, env, count * sizeof *env);
	if (entry) {
		made[list ? at : count++] = text;
		text = stpcpy(text, PRELOAD);
		if (list && *list) {
			text = stpcpy(text, list);
			*text++ = ':';
		}
		strcpy(text, start.entry);
	}
	for (size_t i = 0; variables && i < start.variable_count; i++)
		made[count++] = start.variables[i];
	return made;
}

void inherit_end(void) { atomic_store(&ended, true); }

char *const *inherit_environment(char *const *env, const struct inherit_target *to)
{
	static char *const none[] = {NULL};
	bool any_variable = false, off = false, again, entry, variables;
	char *const *made, *const *from = env ? env : none;
	size_t count = 0, at = 0, length;
	const char *list = NULL;

	/* (`environ` is not checked: every program reads its own environment) */
	if (atomic_load(&ended) || !start.library || (env && env != environ && !user_reads_list(env)))
		return env;
	for (; from[count]; count++) {
		const char *e = from[count];

		if (is_preload(e)) {
			list = e + sizeof PRELOAD - 1;
			at = count;
		} else if (is_variable(e)) {
			any_variable = true;
			off |= strcmp(e, PREFIX "INHERIT=0") == 0;
		}
	}
	entry = start.entry && !(list && find_entry(list, start.library, &length));
	variables = !any_variable && start.variable_count > 0;
	if ((!entry && !variables) || off || !takes_preload(to, from, &again) ||
	    (again && entry && !list && any_variable) || !library_readable())
		return env;
	made = extended(from, count, entry, variables, at, list);
	return made ? made : env;
}

void inherit_release(void)
{
	if (mapped.at)
		sys.munmap(mapped.at, mapped.size);
	mapped.at = NULL;
}
