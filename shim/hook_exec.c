// SPDX-License-Identifier: Apache-2.0
/* hook_exec: other programs start, this one ends.  fork is seen through pthread_atfork (init.c). */
#include "hook.h"

#include "process.h"

#include <alloca.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#define EXEC(call) \
	int r; \
	process_exec_prepare(); \
	r = (call); \
	process_exec_failed(); \
	return r

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
	EXEC(real.execve(path, argv, env));
}
EXPORT int execv(const char *path, char *const argv[]) { EXEC(real.execv(path, argv)); }
EXPORT int execvp(const char *file, char *const argv[]) { EXEC(real.execvp(file, argv)); }
EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
	EXEC(real.execvpe(file, argv, env));
}
EXPORT int fexecve(int fd, char *const argv[], char *const env[]) { EXEC(real.fexecve(fd, argv, env)); }
EXPORT int execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	EXEC(real.execveat(dirfd, path, argv, env, flags));
}

static size_t count_args(va_list list)
{
	size_t n = 1;

	while (va_arg(list, char *))
		n++;
	return n;
}

/* The argument list on the stack, as execl is used after vfork, where malloc is not allowed. */
#define COLLECT(last, first_arg, argv) \
	va_list list; \
	char **argv; \
	size_t n; \
	va_start(list, last); \
	n = (first_arg) ? count_args(list) : 0; \
	va_end(list); \
	argv = alloca((n + 1) * sizeof *argv); \
	argv[0] = (char *)(uintptr_t)(first_arg); \
	va_start(list, last); \
	for (size_t i = 1; i <= n; i++) \
	argv[i] = i < n ? va_arg(list, char *) : NULL

EXPORT int execl(const char *path, const char *arg, ...)
{
	COLLECT(arg, arg, argv);
	va_end(list);
	EXEC(real.execv(path, argv));
}

EXPORT int execlp(const char *file, const char *arg, ...)
{
	COLLECT(arg, arg, argv);
	va_end(list);
	EXEC(real.execvp(file, argv));
}

EXPORT int execle(const char *path, const char *arg, ...)
{
	char *const *env;

	COLLECT(arg, arg, argv);
	(void)va_arg(list, char *); /* the NULL that ends the arguments */
	env = va_arg(list, char *const *);
	va_end(list);
	EXEC(real.execve(path, argv, env));
}

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	process_spawn_prepare();
	return real.posix_spawn(pid, path, actions, attr, argv, env);
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	process_spawn_prepare();
	return real.posix_spawnp(pid, file, actions, attr, argv, env);
}

EXPORT int system(const char *command)
{
	process_spawn_prepare();
	return real.system(command);
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	process_spawn_prepare();
	return real.popen(command, mode);
}

/* fork without the handlers of pthread_atfork */
EXPORT pid_t _Fork(void)
{
	pid_t pid;

	process_fork_prepare();
	pid = real._Fork();
	if (pid == 0)
		process_fork_child();
	else
		process_fork_parent();
	return pid;
}

EXPORT void _exit(int status)
{
	process_exit();
	real._exit(status);
	__builtin_unreachable();
}

EXPORT void _Exit(int status)
{
	process_exit();
	real._Exit(status);
	__builtin_unreachable();
}

EXPORT void quick_exit(int status)
{
	process_exit();
	real.quick_exit(status);
	__builtin_unreachable();
}
