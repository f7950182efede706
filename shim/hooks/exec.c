// SPDX-License-Identifier: Apache-2.0
/* exec: other programs start, this one ends.  fork is seen through handlers like those of pthread_atfork. */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "base/fork_guard.h"
#include "base/thread.h"
#include "base/user.h"
#include "process/child.h"
#include "process/inherit.h"
#include "process/process.h"

#include <alloca.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

typedef int next_exec(const struct inherit_target *to, char *const argv[], char *const env[]);

static int by_path(const struct inherit_target *to, char *const argv[], char *const env[])
{
	return real.execve(to->path, argv, env);
}
static int by_search(const struct inherit_target *to, char *const argv[], char *const env[])
{
	return real.execvpe(to->path, argv, env);
}
static int by_fd(const struct inherit_target *to, char *const argv[], char *const env[])
{
	return real.fexecve(to->dirfd, argv, env);
}
static int by_dir(const struct inherit_target *to, char *const argv[], char *const env[])
{
	return real.execveat(to->dirfd, to->path, argv, env, to->flags);
}

static int execute(next_exec *next, const struct inherit_target *to, char *const argv[], char *const env[])
{
	char *const *made = inherit_environment(env, to);
	int r;

	process_exec_prepare();
	r = next(to, argv, made);
	if (r < 0 && made != env && errno == E2BIG)
		r = next(to, argv, env);
	inherit_release();
	process_exec_failed();
	return r;
}

static int execute_path(const char *path, char *const argv[], char *const env[])
{
	return execute(by_path, &(struct inherit_target){.dirfd = AT_FDCWD, .path = path}, argv, env);
}
static int execute_searched(const char *file, char *const argv[], char *const env[])
{
	const struct inherit_target to = {.dirfd = AT_FDCWD, .path = file, .search = true};

	return execute(by_search, &to, argv, env);
}

EXPORT int execve(const char *path, char *const argv[], char *const env[])
{
	return execute_path(path, argv, env);
}
EXPORT int execv(const char *path, char *const argv[]) { return execute_path(path, argv, environ); }
EXPORT int execvp(const char *file, char *const argv[]) { return execute_searched(file, argv, environ); }
EXPORT int execvpe(const char *file, char *const argv[], char *const env[])
{
	return execute_searched(file, argv, env);
}
EXPORT int fexecve(int fd, char *const argv[], char *const env[])
{
	if (!env)
		return real.fexecve(fd, argv, env); /* which the C library refuses */
	return execute(by_fd, &(struct inherit_target){.dirfd = fd, .path = ""}, argv, env);
}
EXPORT int execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags)
{
	const struct inherit_target to = {.dirfd = dirfd, .path = path, .flags = flags};

	return execute(by_dir, &to, argv, env);
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
	return execute_path(path, argv, environ);
}

EXPORT int execlp(const char *file, const char *arg, ...)
{
	COLLECT(arg, arg, argv);
	va_end(list);
	return execute_searched(file, argv, environ);
}

EXPORT int execle(const char *path, const char *arg, ...)
{
	char *const *env;

	COLLECT(arg, arg, argv);
	(void)va_arg(list, char *); /* the NULL that ends the arguments */
	env = va_arg(list, char *const *);
	va_end(list);
	return execute_path(path, argv, env);
}

typedef int next_spawn(int *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attr, char *const argv[], char *const env[]);

static int spawn(next_spawn *next, bool search, int *pid, const char *path,
                 const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attr, char *const argv[],
                 char *const env[])
{
	const struct inherit_target to = {.dirfd = AT_FDCWD, .path = path, .search = search};
	char *const *made;
	int r;

	if (!next)
		return ENOSYS; /* pidfd_spawn before glibc 2.39 */
	made = inherit_environment(env, &to);
	if (actions)
		process_spawn_actions_prepare();
	else
		process_spawn_prepare();
	r = next(pid, path, actions, attr, argv, made);
	if (r == E2BIG && made != env)
		r = next(pid, path, actions, attr, argv, env);
	inherit_release();
	return r;
}

#define SPAWN(name, search) \
	EXPORT int name(int *pid, const char *path, const posix_spawn_file_actions_t *actions, \
	                const posix_spawnattr_t *attr, char *const argv[], char *const env[]) \
	{ \
		return spawn(real.name, search, pid, path, actions, attr, argv, env); \
	}

next_spawn pidfd_spawn, pidfd_spawnp;
SPAWN(posix_spawn, false)
SPAWN(posix_spawnp, true)
SPAWN(pidfd_spawn, false)
SPAWN(pidfd_spawnp, true)

EXPORT int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *actions, int fd, int newfd)
{
	child_actions_dup(fd);
	return real.posix_spawn_file_actions_adddup2(actions, fd, newfd);
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

extern void *__dso_handle __attribute__((visibility("hidden")));
static bool forks_watched;

/*
 * Our handlers are the oldest of all, also where a library registers its own in a constructor that runs
 * before ours.  So theirs run while the files are managed, and wait for nothing that we hold.
 */
static int watch_forks(void)
{
	if (!forks_watched)
		forks_watched = real.__register_atfork(process_fork_prepare, process_fork_parent,
		                                       process_fork_child, __dso_handle) == 0;
	return forks_watched ? 0 : ENOMEM;
}

/* An allocator has registered its handlers by now: these come around them. */
int hook_watch_forks(void)
{
	int r = watch_forks();

	return r ? r
	         : real.__register_atfork(process_fork_soon, thread_unhold, thread_unhold_child,
	                                  __dso_handle);
}

#ifndef __SANITIZE_THREAD__ /* its run time calls this before any code that it checks can run */
/* Behind pthread_atfork; in no header. */
extern int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner);
EXPORT int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *owner)
{
	int r = watch_forks();

	return r ? r : real.__register_atfork(prepare, parent, child, owner);
}
#endif

/* (A probe of the kernel has no filter.) */
void hook_before_prctl(long option, long mode, long filter)
{
	if (option == PR_SET_SECCOMP &&
	    (mode == SECCOMP_MODE_STRICT || (mode == SECCOMP_MODE_FILTER && filter)))
		process_filter_prepare();
}

EXPORT int prctl(int option, ...)
{
	unsigned long a[4];
	va_list list;

	va_start(list, option);
	for (int i = 0; i < 4; i++)
		a[i] = va_arg(list, unsigned long);
	va_end(list);
	hook_before_prctl(option, (long)a[0], (long)a[1]);
	return real.prctl(option, a[0], a[1], a[2], a[3]);
}

/* In the child of a fork without the handlers of others.  (Another thread may have been in its own fork.) */
static void child_of_fork(void)
{
	process_fork_child();
	thread_unhold_child();
}

/* fork without the handlers of pthread_atfork */
EXPORT pid_t _Fork(void)
{
	pid_t pid;

	process_fork_prepare();
	pid = real._Fork();
	if (pid == 0)
		child_of_fork();
	else
		process_fork_parent();
	return pid;
}

enum clone_kind {
	CLONE_LIKE_FORK,
	CLONE_LIKE_VFORK,
	CLONE_LIKE_THREAD,
	CLONE_APART, /* see process_part_prepare */
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
		return flags & (CLONE_NEWPID | CLONE_NEWUSER) ? CLONE_APART : CLONE_LIKE_FORK;
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

	switch (s->kind) {
	case CLONE_LIKE_FORK: child_of_fork(); break;
	case CLONE_APART: process_part_child(); break;
	default: child_vfork_child(&s->state);
	}
	r = s->start(s->arg);
	if (s->kind == CLONE_LIKE_VFORK)
		child_ends();
	else
		process_exit(); /* to return from here is _exit by another name */
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
		if (s.kind == CLONE_LIKE_THREAD)
			thread_unseen();
		return real.clone(start, stack, flags, arg, parent_tid, tls, child_tid);
	}
	switch (s.kind) {
	case CLONE_LIKE_FORK: process_fork_prepare(); break;
	case CLONE_APART: process_part_prepare(); break;
	case CLONE_LIKE_VFORK: child_vfork_prepare(&s.state); break;
	default: child_give_up(); return real.clone(start, stack, flags, arg, parent_tid, tls, child_tid);
	}
	r = real.clone(clone_main, stack, flags, &s, parent_tid, tls, child_tid);
	if (s.kind == CLONE_LIKE_VFORK)
		child_vfork_parent(&s.state, r >= 0);
	else
		process_fork_parent();
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
