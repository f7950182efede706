// SPDX-License-Identifier: Apache-2.0
/* young: see files/young.h. */
#include "files/young.h"

#include "base/sys.h"

#include <string.h>

_Atomic uint32_t young_changes;
_Atomic bool young_any;

static __thread struct {
	bool any;
	uint32_t changes; /* young_changes since the open: the file is young while that stays the same */
	uint64_t dev, ino;
	uint64_t made_ns;
	char path[YOUNG_PATH_MAX];
} made;

uint32_t young_coming(void)
{
	atomic_store(&young_any, true);
	made.any = false;
	made.path[0] = '\0';
	/* (a signal handler that comes here overwrites this thread's path, and counts) */
	return atomic_fetch_add(&young_changes, 1) + 1;
}

bool young_found(const char *path)
{
	if (strlen(path) >= YOUNG_PATH_MAX)
		return false;
	strcpy(made.path, path);
	return true;
}

bool young_made(uint32_t coming, uint64_t dev, uint64_t ino)
{
	if (!atomic_compare_exchange_strong(&young_changes, &coming, coming + 1)) {
		young_other();
		return false;
	}
	made.dev = dev;
	made.ino = ino;
	made.made_ns = sys_now_coarse_ns();
	made.any = true;
	atomic_signal_fence(memory_order_seq_cst);
	made.changes = coming + 1;
	return true;
}

bool young_is(uint64_t dev, uint64_t ino)
{
	return made.any && made.changes == atomic_load(&young_changes) && made.dev == dev &&
	       made.ino == ino && sys_now_coarse_ns() - made.made_ns < YOUNG_NS;
}

const char *young_path(void) { return made.path[0] ? made.path : NULL; }

void young_end(void) { made.any = false; }
