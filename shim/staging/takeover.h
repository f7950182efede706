// SPDX-License-Identifier: Apache-2.0
/*
 * takeover: lets a recoverer outside of the family flush what a dead process of the family staged
 * (format/takeover_format.h).  The processes of the family name the keeper of each file, and hold the file's
 * gate while they flush it.
 */
#ifndef FASTWRITE_STAGING_TAKEOVER_H
#define FASTWRITE_STAGING_TAKEOVER_H

#include "files/file.h"

/* fd: a new arena.  True if single bytes of its file can be locked.  (Not on NFS, where flock locks all
 * bytes.) */
bool takeover_possible(int fd);
/* This process has mapped an arena at this place of the pool, or is the child of a fork: it has no keeper
 * lock there yet. */
void takeover_joined(const struct arena *a);
void takeover_forked(void);

/* This process is about to stage for f and becomes its keeper.  In a family it takes its keeper lock, again
 * if a recoverer has found it free.  File lock held. */
void takeover_keep_slow(struct file *f);
static inline bool takeover_keeps(const struct file *f)
{
	return arena_entry_at(f->arena, (uint32_t)f->entry)->keeper == family_me + 1 &&
	       (!f->shared || !f->arena->gated ||
	        atomic_load_explicit(&f->arena->header->live.keepers[family_me], memory_order_relaxed) ||
	        !family_is_shared());
}
static inline void takeover_keep(struct file *f)
{
	if (__builtin_expect(!takeover_keeps(f), 0))
		takeover_keep_slow(f);
}

/* f now belongs to a family, and this process, which kept it alone, may have no keeper lock yet.  File lock
 * held, signals blocked. */
void takeover_share(struct file *f);
/* This process has no family any more: without gates it must not be taken for a dead keeper.  LOCK_ATTACH
 * held. */
void takeover_alone(void);

/* Around every flush of f.  Waits for a recoverer that holds the gate.  File lock or flush token held,
 * signals blocked. */
bool takeover_gate(const struct file *f);
void takeover_ungate(const struct file *f, bool gated); /* `gated`: what takeover_gate returned */

/* Closes or moves an arena's descriptor by `act`, which drops this process's locks on the arena.  First waits
 * until this process has no gate. */
int takeover_move_fd(int (*act)(int fd), int fd);

#endif
