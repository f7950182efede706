// SPDX-License-Identifier: Apache-2.0
/* fork_guard: see base/fork_guard.h. */
#include "base/fork_guard.h"

#include "base/process_pages.h"
#include "base/sys.h"

#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

_Atomic uint32_t *_Atomic fork_guard_page;
__thread bool fork_guard_vforked;
static _Atomic uint32_t stopped; /* stays 0 */

void fork_guard_stop(void) { atomic_store(&fork_guard_page, &stopped); }

PROCESS_CODE int fork_guard_set(void)
{
	_Atomic uint32_t *page = atomic_load(&fork_guard_page), *expected = NULL;

	if (page == &stopped)
		return -ECHILD;

	if (!page) {
		page = sys.mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (sys_is_error((void *)page))
			return (int)(intptr_t)page;
		if (sys_raw(SYS_madvise, (long)page, PAGE_BYTES, MADV_WIPEONFORK, 0, 0, 0) < 0) {
			sys.munmap((void *)page, PAGE_BYTES);
			return -ENOSYS;
		}
		/* before other threads see the page: 0 would mean that we are a child */
		atomic_store(page, 1);
		if (!atomic_compare_exchange_strong(&fork_guard_page, &expected, page)) {
			sys.munmap((void *)page, PAGE_BYTES);
			page = expected;
		}
	}
	atomic_store(page, 1);
	return 0;
}
