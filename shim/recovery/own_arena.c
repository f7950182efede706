// SPDX-License-Identifier: Apache-2.0
/* own_arena: see recovery/own_arena.h. */
#include "recovery/own_arena.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { OWN_MAX = 64 };
static const char *_Atomic own[OWN_MAX];

void own_arena_note(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *expected = NULL;

		if (atomic_compare_exchange_strong(&own[i], &expected, name))
			return;
	}
}

void own_arena_forget(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *expected = name;

		atomic_compare_exchange_strong(&own[i], &expected, NULL);
	}
}

bool own_arena_is(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *mine = atomic_load(&own[i]);

		if (mine && strcmp(mine, name) == 0)
			return true;
	}
	return false;
}
