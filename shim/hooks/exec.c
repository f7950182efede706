// SPDX-License-Identifier: Apache-2.0
/* hook_exec: other programs start, this one ends.  fork is seen through pthread_atfork (hooks/init.c). */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "base/fork_guard.h"
#include "base/user.h"
#include "process/child.h"
#include "process/inherit.h"
#include "process/process.h"

#include <alloca.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

/* The environment for the program at (`in_dir`, `file`): `env`, or what process/inherit.h makes of it, on the stack. */
#define ENVIRONMENT(in, made, env, in_dir, file, searched) \
	const struct inherit_target to = {.dirfd = (in_dir), .path = (file), .search = (searched)}; \
	struct inherit in; \
	char *const *made; \
	inherit_look(&in, env, &to); \
	made = inherit_fill(&in, in.bytes > 0 && in.bytes <= INHERIT_STACK_MAX ? alloca(in.bytes) : NULL)

/* `call` uses the environment `made`, `plain` the program's own: the kernel may find that ours is too large. */
#define EXEC(env, in_dir, file, searched, plain, call) \
	ENVIRONMENT(in, made, env, in_dir, file, searched); \
	int r; \
	process_exec_prepare(); \
	r = in.bytes > 0 ? (call) : (plain); \
	if (r < 0 && in.bytes > 0 && errno == E2BIG) \
		r = (plain); \
	inherit_release(); \
	process_exec_failed(); \
	return r

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
	EXEC(env, AT_FDCWD, path, false, real.execve(path, argv, env), real.execve(path, argv, made));
}
EXPORT int execv(const char *path, char *const argv[])
{
	EXEC(environ, AT_FDCWD, path, false, real.execv(path, argv), real.execve(path, argv, made));
}
EXPORT int execvp(const char *file, char *const argv[])
{
	EXEC(environ, AT_FDCWD, file, true, real.execvp(file, argv), real.execvpe(file, argv, made));
}
EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
	EXEC(env, AT_FDCWD, file, true, real.execvpe(file, argv, env), real.execvpe(file, argv, made));
}
EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
	if (!env)
		return real.fexecve(fd, argv, env); /* which the C library refuses */
	EXEC(env, fd, "", false, real.fexecve(fd, argv, env), real.fexecve(fd, argv, made));
}
EXPORT int execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	EXEC(env, dirfd, path, false, real.execveat(dirfd, path, argv, env, flags),
	     real.execveat(dirfd, path, argv, made, flags));
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
	EXEC(environ, AT_FDCWD, path, false, real.execv(path, argv), real.execve(path, argv, made));
}

EXPORT int execlp(const char *file, const char *arg, ...)
{
	COLLECT(arg, arg, argv);
	va_end(list);
	EXEC(environ, AT_FDCWD, file, true, real.execvp(file, argv), real.execvpe(file, argv, made));
}

EXPORT int execle(const char *path, const char *arg, ...)
{
	char *const *env;

	COLLECT(arg, arg, argv);
	(void)va_arg(list, char *); /* the NULL that ends the arguments */
	env = va_arg(list, char *const *);
	va_end(list);
	EXEC(env, AT_FDCWD, path, false, real.execve(path, argv, env), real.execve(path, argv, made));
}

/* Not tried again: the file actions may not bear it.  So it must be certain that the kernel takes it. */
#define SPAWN(file, searched, call) \
	ENVIRONMENT(in, made, env, AT_FDCWD, file, searched); \
	int r; \
	if (actions) \
		process_spawn_actions_prepare(); \
	else \
		process_spawn_prepare(); \
	if (in.bytes > 0 && !inherit_fits(&in, argv)) \
		made = env; \
	r = (call); \
	inherit_release(); \
	return r

EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	SPAWN(path, false, real.posix_spawn(pid, path, actions, attr, argv, made));
}

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	SPAWN(file, true, real.posix_spawnp(pid, file, actions, attr, argv, made));
}

/* glibc 2.39; who finds our symbol on an older one is told that there is no such thing. */
EXPORT int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attr, char *const argv[], char *const env[]);
EXPORT int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[]);

EXPORT int pidfd_spawn(int *pidfd, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	if (!real.pidfd_spawn)
		return ENOSYS;
	SPAWN(path, false, real.pidfd_spawn(pidfd, path, actions, attr, argv, made));
}

EXPORT int pidfd_spawnp(int *pidfd, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
	if (!real.pidfd_spawnp)
		return ENOSYS;
	SPAWN(file, true, real.pidfd_spawnp(pidfd, file, actions, attr, argv, made));
}

EXPORT int posix_spawn_file_actions_init(posix_spawn_file_actions_t *actions)
{
	int r = real.posix_spawn_file_actions_init(actions);

	if (r == 0)
		child_actions_made();
	return r;
}

EXPORT int posix_spawn_file_actions_destroy(posix_spawn_file_actions_t *actions)
{
	child_actions_gone();
	return real.posix_spawn_file_actions_destroy(actions);
}

EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int newfd)
{
	child_actions_dup(fd);
	return real.posix_spawn_file_actions_adddup2(actions, fd, newfd);
}

static const char *shell_command(const char *command)
{
	static const struct inherit_target shell = {.dirfd = AT_FDCWD, .path = "/bin/sh"};
	struct inherit in;

	if (!command)
		return NULL;
	inherit_look(&in, environ, &shell);
	return inherit_command(&in, command);
}

EXPORT int system(const char *command)
{
	int r;

	process_spawn_prepare();
	r = real.system(shell_command(command));
	inherit_release();
	return r;
}

EXPORT FILE *popen(const char *command, const char *mode)
{
	FILE *stream;

	process_spawn_prepare();
	stream = real.popen(shell_command(command), mode);
	inherit_release();
	return stream;
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

enum clone_kind {
	CLONE_LIKE_FORK,
	CLONE_LIKE_VFORK,
	CLONE_LIKE_THREAD,
	CLONE_OTHER,
};

static enum clone_kind kind_of_clone(int flags)
{
	enum { THREAD = CLONE_VM | CLONE_FILES | CLONE_THREAD | CLONE_SETTLS };

	if ((flags & THREAD) == THREAD)
		return CLONE_LIKE_THREAD;
	if (flags & CLONE_FILES)
		return CLONE_OTHER; /* one descriptor table, and two who keep account of it */
	if (!(flags & CLONE_VM))
		return CLONE_LIKE_FORK;
	return flags & CLONE_VFORK ? CLONE_LIKE_VFORK : CLONE_OTHER;
}

struct clone_start {
	int (*start)(void *);
	void *arg;
	enum clone_kind kind;
	struct child_vfork state;
};

static int clone_main(void *arg)
{
	/* on the stack of the parent: of our copy of it, or of one who waits for us */
	const struct clone_start *s = arg;
	int r;

	if (s->kind == CLONE_LIKE_FORK)
		process_fork_child();
	else
		child_vfork_child(&s->state);
	r = s->start(s->arg);
	if (s->kind == CLONE_LIKE_FORK)
		process_exit(); /* to return from here is _exit by another name */
	else
		child_ends();
	return r;
}

/* The C library puts two there before the call: it must not fault while everything waits for the child. */
static bool takes_words(const void *stack)
{
	enum { BYTES = 2 * sizeof(void *) };

	return (uintptr_t)stack > BYTES && user_readable((const char *)stack - BYTES, BYTES);
}

/* The child starts on another stack: no need for the tricks of vfork. */
EXPORT int clone(int (*start)(void *), void *stack, int flags, void *arg, ...)
{
	struct clone_start s = {.start = start, .arg = arg, .kind = kind_of_clone(flags)};
	pid_t *parent_tid, *child_tid;
	va_list list;
	void *tls;
	int r;

	va_start(list, arg);
	parent_tid = va_arg(list, pid_t *);
	tls = va_arg(list, void *);
	child_tid = va_arg(list, pid_t *);
	va_end(list);
	if (!live_config || !start || !takes_words(stack) || fork_guard_elsewhere() ||
	    s.kind == CLONE_LIKE_THREAD) {
		if (fork_guard_vforked)
			child_forks();
		return real.clone(start, stack, flags, arg, parent_tid, tls, child_tid);
	}
	switch (s.kind) {
	case CLONE_LIKE_FORK: process_fork_prepare(); break;
	case CLONE_LIKE_VFORK: child_vfork_prepare(&s.state); break;
	default: child_give_up(); return real.clone(start, stack, flags, arg, parent_tid, tls, child_tid);
	}
	r = real.clone(clone_main, stack, flags, &s, parent_tid, tls, child_tid);
	if (s.kind == CLONE_LIKE_FORK)
		process_fork_parent();
	else
		child_vfork_parent(&s.state, r >= 0);
	return r;
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

ALIAS_OF(__clone, clone);
