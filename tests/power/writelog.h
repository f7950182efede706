// SPDX-License-Identifier: Apache-2.0
/* writelog: the log of everything that reached the disk, in order (see disk.c); power/cuts.py reads it, too.
 */
#ifndef POWER_WRITELOG_H
#define POWER_WRITELOG_H

#include <stdint.h>

enum { LOG_WRITE = 'W', LOG_ZERO = 'Z', LOG_FLUSH = 'F', LOG_MARK = 'M' };

/* Behind a write or a mark stand `length` bytes, behind the others nothing. */
struct log_event {
	uint32_t type;
	uint32_t length;
	uint64_t offset;
	uint64_t ns; /* CLOCK_MONOTONIC */
};

#endif
