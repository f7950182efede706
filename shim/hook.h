// SPDX-License-Identifier: Apache-2.0
/* hook: what the exported symbols share.  A hook asks the core and turns its answer into -1 and errno. */
#ifndef FASTWRITE_HOOK_H
#define FASTWRITE_HOOK_H

#include "fd.h"
#include "fdtable.h"
#include "io.h"
#include "lazy.h"
#include "meta.h"
#include "real.h"

#include <errno.h>

/* The headers promise that paths are not NULL; programs pass NULL all the same, and the kernel answers. */
#pragma GCC diagnostic ignored "-Wnonnull-compare"

#define EXPORT __attribute__((visibility("default")))

/* -errno from the core -> what a C library function returns.  errno is left alone on success. */
static inline long hook_result(long r)
{
	if (__builtin_expect(r < 0, 0)) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

#endif
