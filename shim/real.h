// SPDX-License-Identifier: Apache-2.0
/*
 * real: the functions behind the interposed symbols: the next definition in the search order, which is the C
 * library's or that of another preloaded library.  Only hook_*.c uses them.
 */
#ifndef FASTWRITE_REAL_H
#define FASTWRITE_REAL_H

#include <aio.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <utime.h>

struct real {
#define HOOK(result, name, parameters, arguments) result(*name) parameters;
#define VARIADIC(result, name, base)
#define ALIAS(result, name, of)
#include "hooks.def"
#undef HOOK
#undef VARIADIC
#undef ALIAS
};

extern struct real real;

/* Resolves all at once; called by the constructor.  Before that each pointer resolves itself when used. */
void real_resolve(void);

#endif
