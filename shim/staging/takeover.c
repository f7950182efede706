// SPDX-License-Identifier: Apache-2.0
/* takeover: see staging/takeover.h. */
#include "staging/takeover.h"

#include "base/kill.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "format/takeover_format.h"
#include "staging/arenas.h"

#include <fcntl.h>

_Static_assert((int)ARENA_KEEPERS_MAX == (int)FAMILY_MAX, "each process of a family has its byte");

static PROCESS_DATA _Atomic uint32_t
	kept; /* bit i: this process has its keeper lock in arena i of the pool */
static PROCESS_DATA _Atomic uint32_t gates;  /* gates that this process has, or is about to take */
static PROCESS_DATA _Atomic uint32_t moving; /* threads that wait until this process has no gate */

bool takeover_possible(int fd)
{
	return takeover_lock_byte(fd, F_SETLK, F_WRLCK, TAKEOVER_KEEPERS_AT + (off_t)family_me) == 0;
}

static uint32_t bit_of(const struct arena *a)
{
	uint32_t i = file_arena_index(a);

	return i < FILE_ARENAS ? 1u << i : 0;
}

void takeover_joined(const struct arena *a) { atomic_fetch_and(&kept, ~bit_of(a)); }

PROCESS_CODE void takeover_forked(void) { kept = gates = moving = 0; }

static void drop_keeper_lock(struct arena *a)
{
	const off_t at = TAKEOVER_KEEPERS_AT + (off_t)family_me;

	/* (waits for a recoverer that has just found the lock free) */
	takeover_lock_byte(arenas_fd(a), F_SETLKW, F_WRLCK, at);
	atomic_store(&a->header->live.keepers[family_me], 0);
	takeover_lock_byte(arenas_fd(a), F_SETLK, F_UNLCK, at);
	atomic_fetch_and(&kept, ~bit_of(a));
}

static void take_keeper_lock(struct arena *a)
{
	signals_harden();
	/* (a recoverer may hold the lock for a dead process that had our index in the family) */
	if (takeover_lock_byte(arenas_fd(a), F_SETLKW, F_WRLCK, TAKEOVER_KEEPERS_AT + (off_t)family_me) == 0)
		atomic_store(&a->header->live.keepers[family_me], 1);
	atomic_fetch_or(&kept, bit_of(a));
	/* (the family may have ended meanwhile: then takeover_alone has seen the bit, or we see the end) */
	if (!family_is_shared())
		drop_keeper_lock(a);
}

void takeover_keep_slow(struct file *f)
{
	struct arena *a = f->arena;

	/* (a process without a family needs no keeper: with its end the arena is dead) */
	if (a->gated && family_is_shared() &&
	    (!(atomic_load(&kept) & bit_of(a)) || !atomic_load(&a->header->live.keepers[family_me])))
		take_keeper_lock(a);
	kill_step();
	atomic_store(&arena_entry_at(a, (uint32_t)f->entry)->keeper, family_me + 1);
}

void takeover_share(struct file *f)
{
	if (f->mode == FILE_ATTACHED && f->arena && f->entry >= 0 &&
	    arena_entry_at(f->arena, (uint32_t)f->entry)->keeper == family_me + 1)
		takeover_keep_slow(f);
}

void takeover_alone(void)
{
	for (uint32_t i = 0; i < arenas_count(); i++)
		if (arenas_at(i) && (atomic_load(&kept) & bit_of(arenas_at(i))))
			drop_keeper_lock(arenas_at(i));
}

bool takeover_gate(const struct file *f)
{
	if (!f->shared || !f->arena->gated)
		return false;
	while (atomic_fetch_add(&gates, 1), atomic_load(&moving)) {
		atomic_fetch_sub(&gates, 1);
		sys_nap(50000);
	}
	takeover_lock_byte(arenas_fd(f->arena), F_SETLKW, F_WRLCK, TAKEOVER_GATES_AT + f->entry);
	return true;
}

void takeover_ungate(const struct file *f, bool gated)
{
	if (!gated)
		return;
	takeover_lock_byte(arenas_fd(f->arena), F_SETLK, F_UNLCK, TAKEOVER_GATES_AT + f->entry);
	atomic_fetch_sub(&gates, 1);
}

int takeover_move_fd(int (*act)(int fd), int fd)
{
	int r;

	atomic_fetch_add(&moving, 1);
	while (atomic_load(&gates))
		sys_nap(50000);
	r = act(fd);
	/* the keeper locks are taken again when something is staged */
	atomic_store(&kept, 0);
	atomic_fetch_sub(&moving, 1);
	return r;
}
