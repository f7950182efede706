// SPDX-License-Identifier: Apache-2.0
/* real: see hooks/real.h. */
#include "hooks/real.h"

#include "base/log.h"
#include "base/sys.h"
#include "hooks/next.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Symbols with several incompatible versions: dlsym before glibc 2.36 returns the oldest. */
static const struct {
	const char *name, *version;
} versioned[] = {
	{"posix_spawn", "GLIBC_2.15"}, {"posix_spawnp", "GLIBC_2.15"}, {"lio_listio", "GLIBC_2.4"},
	{"quick_exit", "GLIBC_2.24"},  {"nftw", "GLIBC_2.3.3"},
};

_Atomic bool real_ready;
/*
 * glibc has the stat family as functions since 2.33, execveat and _Fork since 2.34.  With an older glibc a
 * program finds ours only if it looks for them at run time.  Then they make the system call.
 */
static long answer(long r)
{
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

static int old_fstatat(int dirfd, const char *path, struct stat *out, int flags)
{
	return (int)answer(sys_raw(SYS_newfstatat, dirfd, (long)path, (long)out, flags, 0, 0));
}

static int old_stat(const char *path, struct stat *out) { return old_fstatat(AT_FDCWD, path, out, 0); }

static int old_lstat(const char *path, struct stat *out)
{
	return old_fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

static int old_fstat(int fd, struct stat *out)
{
	return (int)answer(sys_raw(SYS_fstat, fd, (long)out, 0, 0, 0, 0));
}

static int old_execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	return (int)answer(sys_raw(SYS_execveat, dirfd, (long)path, (long)argv, (long)env, flags, 0));
}

/* The child could not correct what the C library knows about its process. */
static pid_t old_fork(void)
{
	errno = ENOSYS;
	return -1;
}

#define OLD(name, function) {#name, (void *)(uintptr_t)(function)}
static const struct {
	const char *name;
	void *function;
} stand_ins[] = {
	OLD(stat, old_stat),       OLD(lstat, old_lstat),       OLD(fstat, old_fstat),
	OLD(fstatat, old_fstatat), OLD(execveat, old_execveat), OLD(_Fork, old_fork),
};

static void *resolve(const char *name)
{
	void *found = next_function(name);

	if (found == NEXT_UNKNOWN) {
		found = NULL;
		for (size_t i = 0; i < sizeof versioned / sizeof *versioned; i++)
			if (strcmp(name, versioned[i].name) == 0)
				found = dlvsym(RTLD_NEXT, name, versioned[i].version);
		if (!found)
			found = dlsym(RTLD_NEXT, name);
	}
	for (size_t i = 0; i < sizeof stand_ins / sizeof *stand_ins && !found; i++)
		if (strcmp(name, stand_ins[i].name) == 0)
			found = stand_ins[i].function;
	return found;
}

/* For a function that this C library does not have. */
static void *resolve_or_die(const char *name)
{
	void *found = resolve(name);

	/* (of a library that was loaded since the start: shm_open before glibc 2.34) */
	if (!found)
		found = dlsym(RTLD_NEXT, name);
	if (!found) {
		log_error("this C library has no %s", name);
		__builtin_trap();
	}
	return found;
}

#define VARIADIC(result, name, base)
#define ALIAS(result, name, of)
#define OPTIONAL(result, name, parameters, arguments)

/* A use before the constructor ran: resolves this function, then calls it. */
#define HOOK(result, name, parameters, arguments) \
	static result first_##name parameters \
	{ \
		real.name = (result(*) parameters)(uintptr_t)resolve_or_die(#name); \
		return real.name arguments; \
	}
#include "hooks/hooks.def"
#undef HOOK

struct real real = {
#define HOOK(result, name, parameters, arguments) .name = first_##name,
#include "hooks/hooks.def"
#undef HOOK
};
#undef OPTIONAL

void real_resolve(void)
{
	void *found;

#define OPTIONAL HOOK
#define HOOK(result, name, parameters, arguments) \
	found = resolve(#name); \
	if (found) \
		real.name = (result(*) parameters)(uintptr_t)found;
#include "hooks/hooks.def"
#undef HOOK
	dlerror(); /* the program must not see the errors of our lookups */
	real_ready = true;
}
