// SPDX-License-Identifier: Apache-2.0
/*
 * memory_limit: the limit of this process's memory control group.  An arena on tmpfs counts against it.
 *
 * Called by: attach.
 */
#ifndef FASTWRITE_STAGING_MEMORY_LIMIT_H
#define FASTWRITE_STAGING_MEMORY_LIMIT_H

#include <stdint.h>

/* Warns once if the arena behind `fd` lies in memory and `bytes` is over a quarter of the limit. */
void memory_limit_check(int fd, uint64_t bytes, const char *dir);

#endif
