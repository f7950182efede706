// SPDX-License-Identifier: Apache-2.0
/* at_fork: see base/at_fork.h. */
#include "base/at_fork.h"

#include "base/sys.h"

#include <sys/mman.h>

/* (a page that holds zeros is not copied) */
static void zero_words(uint64_t *begin, const uint64_t *end)
{
	for (uint64_t *at = begin; at < end; at++)
		if (*at)
			*at = 0;
}

AT_FORK_CODE void at_fork_zero(uint64_t *begin, uint64_t *end)
{
	uint64_t *first = begin + (-(uintptr_t)begin & (AT_FORK_PAGE - 1)) / sizeof *begin;
	uint64_t *last = end - ((uintptr_t)end & (AT_FORK_PAGE - 1)) / sizeof *end;

	if (first >= last || sys_raw(SYS_madvise, (long)first, (last - first) * (long)sizeof *first,
	                             MADV_DONTNEED, 0, 0, 0) < 0)
		first = last = end;
	zero_words(begin, first);
	zero_words(last, end);
}
