// SPDX-License-Identifier: Apache-2.0
/* process_pages: see base/process_pages.h. */
#include "base/process_pages.h"

#include "base/sys.h"

#include <sys/auxv.h>
#include <sys/mman.h>

/* (a page that holds zeros is not copied) */
static void zero_words(uint64_t *begin, const uint64_t *end)
{
	for (uint64_t *at = begin; at < end; at++)
		if (*at)
			*at = 0;
}

PROCESS_CODE void process_pages_zero(uint64_t *begin, uint64_t *end)
{
	uint64_t *first = begin + (-(uintptr_t)begin & (PROCESS_PAGE - 1)) / sizeof *begin;
	uint64_t *last = end - ((uintptr_t)end & (PROCESS_PAGE - 1)) / sizeof *end;

	if (first >= last || getauxval(AT_PAGESZ) != PROCESS_PAGE ||
	    sys_raw(SYS_madvise, (long)first, (last - first) * (long)sizeof *first, MADV_DONTNEED, 0, 0, 0) <
	            0)
		first = last = end;
	zero_words(begin, first);
	zero_words(last, end);
}
