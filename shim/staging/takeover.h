// SPDX-License-Identifier: Apache-2.0
/*
 * takeover: a process outside of a family flushes what a dead member of it had staged, while other members live.
 *
 * An arena is held by every member that has it, so one idle worker of a dead master would keep all that the master had
 * staged from recovery.  Instead a recoverer acts as one more flusher of the file.  Members and recoverers meet in the
 * arena's file, the only thing that both have:
 *
 * - Keepers.  The last member that staged on the slow path is named in the slot (`keeper`): it flushes in time, for its
 *   timer ticks.  A keeper holds the lock on byte KEEPERS_AT + its number of the arena's file until it ends.  The locks
 *   are POSIX locks: of one process, not inherited, dropped by the kernel when the process ends in any way, visible
 *   across pid namespaces.  A recoverer that gets such a lock knows that the keeper is dead.
 * - Gate.  Who brings bytes of a slot to the file holds the lock on byte GATES_AT + slot, from the look at `done` until
 *   `done` says what was written.  So no two of them write at the same time, and a member that is stopped or slow in
 *   the middle of a write is not overtaken.
 * - Seal.  With the gate the recoverer seals the slot's blocks, so that no member stages into what it writes.  The fast
 *   path publishes by an instruction that another processor may split (stage_publish_fast).  membarrier waits until
 *   every such instruction is over, and then the seals are looked at again.
 * - `takeovers` counts the take-overs of a slot.  A member that finds another number than it knows, under the file lock
 *   or with the gate, repairs the file as it does after the death of a member (family_repair): it brings what is left,
 *   if the recoverer was killed, and begins anew from an empty staging.
 *
 * A recoverer frees nothing and waits for no lock of the family.  It does no harm to a family that is at work, so it
 * does not matter when a lock of a keeper is lost (the program wants the number of our descriptor).
 */
#ifndef FASTWRITE_TAKEOVER_H
#define FASTWRITE_TAKEOVER_H

#include "files/file.h"
#include "recovery/parse.h"

#define TAKEOVER_GATES_AT ((off_t)1 << 40)
#define TAKEOVER_KEEPERS_AT ((off_t)1 << 41)

/* ---- members ---- */

/* fd: a new arena.  True when its bytes can be locked.  (Not on NFS, where flock locks all of them.) */
bool takeover_possible(int fd);
/* This process has mapped an arena at this place of the pool, or is the child of a fork. */
void takeover_joined(const struct arena *a);
void takeover_forked(void);

/* File lock held: this member is about to stage for f. */
void takeover_keep_slow(struct file *f);
static inline bool takeover_keeps(const struct file *f)
{
	return arena_slot_at(f->arena, (uint32_t)f->slot)->keeper == family_me + 1;
}
static inline void takeover_keep(struct file *f)
{
	if (__builtin_expect(!takeover_keeps(f), 0))
		takeover_keep_slow(f);
}

/* A process outside of the family has brought staged bytes of f to the file, or is about to. */
static inline bool takeover_happened(const struct file *f)
{
	return f->shared && f->mode == FILE_ENGAGED && f->arena && f->slot >= 0 &&
	       atomic_load_explicit(&arena_slot_at(f->arena, (uint32_t)f->slot)->takeovers,
	                            memory_order_relaxed) != f->takeovers;
}

/* Around whatever brings bytes of f's slot to the file.  Waits for a recoverer; file lock or flush token held, signals
 * blocked. */
bool takeover_gate(const struct file *f);
void takeover_ungate(const struct file *f, bool gated); /* `gated`: what takeover_gate said */

/* Closes or moves a descriptor of an arena by `act`, which drops this process's locks on the arena. */
int takeover_move_fd(int (*act)(int fd), int fd);

/* ---- recoverers ---- */

struct takeover {
	int fd;                /* the arena */
	bool dead[FAMILY_MAX]; /* keepers whose lock this process has now */
	bool left;             /* something of theirs stays in the arena */
	uint8_t *gated;        /* by slot, `slots` of them: its gate is ours */
	uint32_t slots;
	int error; /* -errno: the blocks could not be sealed */
};

/* True when a keeper of the living arena fd, open for reading and writing, has died.  Waits for other recoverers.
 * takeover_end must follow, and gives back every lock. */
bool takeover_begin(struct takeover *t, int fd);
/* Slot `slot` has blocks that are not in the file, or damaged ones, and its keeper is dead. */
bool takeover_concerns(const struct takeover *t, struct foreign_arena *a, uint32_t slot);
/*
 * `a`: the arena, loaded.  Takes the gates of the slots that takeover_concerns, seals their blocks and loads `a` anew.  0,
 * or -errno: then nothing is loaded any more.
 */
int takeover_seal(struct takeover *t, struct foreign_arena *a);
/* After that, for a slot that takeover_concerns: 0: its blocks may be brought to the file; -EBUSY: process *pid is at
 * it, 0 = not known; -EAGAIN: the family is at work on it and needs no help; other -errno. */
int takeover_slot(const struct takeover *t, uint32_t slot, int *pid);
/* The first n > 0 blocks in a->order, all of that slot, are in the file: the slot says so.  0 or -errno. */
int takeover_done(struct foreign_arena *a, uint32_t slot, int n);
/* That slot could not be dealt with. */
static inline void takeover_failed(struct takeover *t) { t->left = true; }
void takeover_end(struct takeover *t);

#endif
