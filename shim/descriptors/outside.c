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

	atomic_store_explicit(&slots[hash % SLOTS], (hash & ~TIME) | (now() & TIME), memory_order_relaxed);
}

static bool is_recent(uint64_t then) { return then != 0 && ((now() - then) & TIME) <= UNITS_MOST; }

/* No dead process has left bytes: asked as often as a path. */
static bool none_left(void)
{
	static _Atomic uint64_t asked;

	if (is_recent(atomic_load_explicit(&asked, memory_order_relaxed)))
		return true;
	if (left_bytes_of_rules())
		return false;
	atomic_store_explicit(&asked, now(), memory_order_relaxed);
	return true;
}

bool outside_is(const char *path)
{
	uint64_t hash, slot;

	if (path[0] != '/')
		return false;
	hash = hash_of(path);
	slot = atomic_load_explicit(&slots[hash % SLOTS], memory_order_relaxed);
	return (slot & ~TIME) == (hash & ~TIME) && is_recent(slot) && none_left();
}
