// SPDX-License-Identifier: Apache-2.0
/*
 * system: functions of the C library that open, write, duplicate or fork by internal calls, on files that the
 * program may have staged.
 */
#include "hooks/hook.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "process/process.h"

#include <execinfo.h>
#include <mntent.h>
#include <pty.h>
#include <string.h>
#include <ulimit.h>
#include <unistd.h>
#include <utmp.h>
#include <utmpx.h>
#include <wordexp.h>

/* Forgets descriptors 0 to 2, which the C library has replaced by internal calls. */
static void forget_standard(int except)
{
	int before = errno;

	for (int fd = 0; fd <= 2; fd++)
		if (fd != except)
			fd_close_prepare(fd);
	errno = before;
}

/* Where the standard descriptors are replaced in a child, which forgets them afterwards: nothing may be
 * staged for them, or it would go to the new ones. */
static void before_standard(void)
{
	int before = errno;

	for (int fd = 0; fd <= 2; fd++)
		if (fdtable_knows(fd))
			fd_use_unmodelled(fd, BYPASS_STANDARD_FD);
	errno = before;
}

EXPORT int login_tty(int fd)
{
	int r;

	before_standard();
	r = real.login_tty(fd);
	if (r == 0)
		forget_standard(fd);
	return r;
}

EXPORT pid_t forkpty(int *master, char *name, const struct termios *terminal, const struct winsize *size)
{
	pid_t pid;

	before_standard();
	pid = real.forkpty(master, name, terminal, size);
	if (pid == 0)
		forget_standard(-1);
	return pid;
}

/* The parent ends with an internal _exit that the library does not see.  It must leave no arena behind. */
EXPORT int daemon(int nochdir, int noclose)
{
	int r;

	if (!noclose)
		before_standard();
	attach_retire_dir(NULL);
	process_forks_and_ends = true;
	r = real.daemon(nochdir, noclose);
	process_forks_and_ends = false;
	if (r < 0)
		family_exiting(false);
	if (r == 0 && !noclose)
		forget_standard(-1);
	return r;
}

/* Command substitution starts a shell. */
EXPORT int wordexp(const char *words, wordexp_t *expansion, int flags)
{
	if (!(flags & WRDE_NOCMD) && words && (strchr(words, '`') || strstr(words, "$(")))
		process_spawn_prepare();
	return real.wordexp(words, expansion, flags);
}

EXPORT void backtrace_symbols_fd(void *const *addresses, int count, int fd)
{
	int before = errno;

	if (fdtable_knows(fd))
		fd_use_unmodelled(fd, BYPASS_STDIO);
	errno = before;
	real.backtrace_symbols_fd(addresses, count, fd);
}

static void drain_all(void)
{
	int before = errno;

	by_name_drain_all();
	errno = before;
}

EXPORT long ulimit(int command, ...)
{
	va_list list;
	struct by_name_change change;
	int before = errno;
	long limit, r;

	va_start(list, command);
	limit = va_arg(list, long);
	va_end(list);
	if (command != UL_SETFSIZE)
		return real.ulimit(command, limit);
	by_name_limit_begin(&change);
	errno = before;
	r = real.ulimit(command, limit);
	by_name_limit_end(&change);
	return r;
}

EXPORT int vlimit(int resource, int value);
EXPORT int vlimit(int resource, int value)
{
	struct by_name_change change;
	int before = errno, r;

	by_name_limit_begin(&change);
	errno = before;
	r = real.vlimit(resource, value);
	by_name_limit_end(&change);
	return r;
}

/* These append and rewrite login records by internal calls. */
EXPORT struct utmp *pututline(const struct utmp *entry)
{
	drain_all();
	return real.pututline(entry);
}

EXPORT struct utmpx *pututxline(const struct utmpx *entry)
{
	drain_all();
	return real.pututxline(entry);
}

EXPORT void updwtmp(const char *path, const struct utmp *entry)
{
	drain_all();
	real.updwtmp(path, entry);
}

EXPORT void updwtmpx(const char *path, const struct utmpx *entry)
{
	drain_all();
	real.updwtmpx(path, entry);
}

EXPORT void login(const struct utmp *entry)
{
	drain_all();
	real.login(entry);
}

EXPORT int logout(const char *line)
{
	drain_all();
	return real.logout(line);
}

EXPORT void logwtmp(const char *line, const char *name, const char *host)
{
	drain_all();
	real.logwtmp(line, name, host);
}

ALIAS_OF(__backtrace_symbols_fd, backtrace_symbols_fd);
