// SPDX-License-Identifier: Apache-2.0
/*
 * memory_limit: what this process's memory control group may use.  An arena in memory (tmpfs) counts against it.
 *
 * Called by: attach.
 */
#ifndef FASTWRITE_MEMORY_LIMIT_H
#define FASTWRITE_MEMORY_LIMIT_H

#include <stdint.h>

/* Says once, on stderr, when an arena of so many bytes behind `fd` lies in memory, and the limit leaves little besides. */
void memory_limit_check(int fd, uint64_t bytes, const char *dir);

#endif
