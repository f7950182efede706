// SPDX-License-Identifier: Apache-2.0
/* outside: see descriptors/outside.h. */
#include "descriptors/outside.h"

#include "base/sys.h"
#include "descriptors/left_bytes.h"

#include <stdatomic.h>
#include <stdint.h>

enum {
	SLOTS = 64,
	TIME_BITS = 24,  /* of a slot: the lower ones; the others are of the path's hash */
	UNIT_SHIFT = 24, /* of 17 ms */
	UNITS_MOST = 2,
};

static _Atomic uint64_t slots[SLOTS];

/* FNV-1a */
static uint64_t hash_of(const char *path)
{
	uint64_t hash = 0xcbf29ce484222325;

	while (*path)
		hash = (hash ^ (uint8_t)*path++) * 0x100000001b3;
	return hash;
}

static uint64_t now(void) { return sys_now_coarse_ns() >> UNIT_SHIFT; }

static const uint64_t TIME = (1ull << TIME_BITS) - 1;

void outside_note(const char *path)
{
	uint64_t hash = hash_of(path);

	if (left_bytes_of_rules())
		return;

	atomic_store_explicit(&slots[hash % SLOTS], (hash & ~TIME) | (now() & TIME), memory_order_relaxed);
}

bool outside_is(const char *path)
{
	uint64_t hash, slot;

	if (path[0] != '/')
		return false;
	hash = hash_of(path);
	slot = atomic_load_explicit(&slots[hash % SLOTS], memory_order_relaxed);
	return (slot & ~TIME) == (hash & ~TIME) && slot != 0 && ((now() - slot) & TIME) <= UNITS_MOST;
}
