// SPDX-License-Identifier: Apache-2.0
/*
 * real: the functions behind the interposed symbols: the next definition in the search order, which is the C
 * library's or that of another preloaded library.  Only files of shim/hooks use them.
 */
#ifndef FASTWRITE_HOOKS_REAL_H
#define FASTWRITE_HOOKS_REAL_H

#include <aio.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <linux/capability.h>
#include <pthread.h>
#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <utime.h>
#include <utmp.h>
#include <utmpx.h>
#include <wordexp.h>

struct real {
#define HOOK(result, name, parameters, arguments) result(*name) parameters;
#define OPTIONAL HOOK
#define VARIADIC(result, name, base)
#define ALIAS(result, name, of)
#include "hooks/hooks.def"
#undef HOOK
#undef OPTIONAL
#undef VARIADIC
#undef ALIAS
};

extern struct real real;

/* Resolves all pointers; called by the constructor.  Before that each pointer resolves itself at its first
 * use; those of OPTIONAL symbols are NULL. */
void real_resolve(void);
/* real_resolve is done. */
extern _Atomic bool real_ready;

#endif
