// SPDX-License-Identifier: Apache-2.0
/* alive: see alive.h. */
#include "alive.h"

#include "sys.h"

#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

volatile uint32_t *alive_page;

int alive_set(void)
{
	if (!alive_page) {
		uint32_t *page = sys.mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE,
		                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (sys_is_error(page))
			return (int)(intptr_t)page;
		if (sys_raw(SYS_madvise, (long)page, PAGE_BYTES, MADV_WIPEONFORK, 0, 0, 0) < 0) {
			sys.munmap(page, PAGE_BYTES);
			return -ENOSYS;
		}
		alive_page = page;
	}
	*alive_page = 1;
	return 0;
}
