// SPDX-License-Identifier: Apache-2.0
/*
 * family: a process and its forked descendants, until they exec.
 *
 * The processes of a family share files as in the kernel.  Files, descriptions, positions and staged bytes
 * live in shared memory, at the same addresses, under the same locks, in the same arenas.  It does not matter
 * which process opened a file, or when.  An arena that is made after a fork is mapped by the other processes
 * when they first need it.  Its place has been kept free since the first fork.
 *
 * Membership.  Each process has an index.  While it lives, it has a lock on the byte of that index in a
 * memory file.  It holds the lock through an open file description of its own.  The kernel drops the lock
 * when the process ends in any way.  It also does so at an exec, because the descriptor is close-on-exec.
 * Before a fork, the parent takes the child's lock, and claims every description for the child.  So nothing
 * can be released in between.
 *
 * A dead process leaves its claims to descriptions, and perhaps a lock, the flush token or blocks.  What it
 * published is complete in the arena, as after any kill (format/arena_format.h).  The first process that
 * finds the lock or the token repairs the file (attach/repair.h).
 */
#ifndef FASTWRITE_FILES_FAMILY_H
#define FASTWRITE_FILES_FAMILY_H

#include "base/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAMILY_MAX = 256, FAMILY_WORDS = FAMILY_MAX / 64 };

/* A set of processes, by index. */
struct family_set {
	_Atomic uint64_t words[FAMILY_WORDS];
};

enum family_state {
	MEMBER_FREE,
	MEMBER_LIVE,
	MEMBER_EXITING, /* stages nothing more */
};

struct family {
	struct lock lock;                   /* LOCK_FAMILY */
	_Atomic uint32_t state[FAMILY_MAX]; /* enum family_state */
	_Atomic uint32_t highest;           /* highest index ever used; 0 = no fork yet */
	/* Room for arenas that are made after the fork, at the same address in every process.  One place for
	 * each of the first place_count arenas of the pool.  NULL: no room was found. */
	uint8_t *places;
	uint32_t place_count;
	uint64_t place_bytes;
	uint8_t *runs; /* the same for their tables of blocks */
	uint64_t runs_bytes;
	_Atomic bool strangers;     /* family_has_strangers */
	struct family_set refusing; /* processes that forbid staging, see attach/stop.h */
	_Atomic uint32_t refusal;   /* enum bypass_reason: the reason of one of them */
};
/* The most places, and how many for each rule: the children have the address space of all. */
enum { FAMILY_PLACES = 16, FAMILY_PLACES_OF_RULE = 4 };

extern uint32_t family_me; /* index of this process; the first process has 0 */

static inline void family_set_add(struct family_set *s, uint32_t member)
{
	atomic_fetch_or(&s->words[member / 64], 1ull << (member % 64));
}
static inline void family_set_remove(struct family_set *s, uint32_t member)
{
	atomic_fetch_and(&s->words[member / 64], ~(1ull << (member % 64)));
}
static inline bool family_set_has(const struct family_set *s, uint32_t member)
{
	return atomic_load(&s->words[member / 64]) >> (member % 64) & 1;
}
/* True if the set has a living process other than this one.  Asks the kernel only if another process is in
 * the set.  To a process that exits, others that exit do not count: the last one clears up. */
bool family_set_others(const struct family_set *s);
/* True if every living process of `a` is in `b`. */
bool family_set_within(const struct family_set *a, const struct family_set *b);

uint32_t family_set_count(const struct family_set *s);

/* True if the family has ever had a second process: shared data may be in use elsewhere. */
bool family_is_shared(void);

/* Gives this process its lock; the first fork makes the memory file.  1: made now.  0: had it already.  -1:
 * no child can belong to the family. */
int family_found(void);
/* Before a fork.  family_child_begin returns an index for the child and takes its lock.  FAMILY_MAX: no index
 * or no lock can be had. */
bool family_has_room(void);
uint32_t family_child_begin(void);
/* After the fork, if the child got an index. */
void family_fork_parent(void);
void family_fork_child(void);
/* In a process that does not belong to the family, or no longer does. */
void family_forget(void);
/* From now on the other processes take this process for dead. */
void family_leave(void);
/* The program wants `fd`.  If `fd` has this process's lock, moves the lock to another descriptor.  False:
 * `fd` does not have the lock, or cannot be moved. */
bool family_move_fd(int fd);

/* True if no other process of the family lives, nor is about to.  One system call. */
bool family_is_alone(void);
/* True if another process of the family is about to end, and all others have. */
bool family_is_left(void);
/* family_close_alone closes that descriptor if no other process lives; true if it did. */
bool family_can_close(void);
bool family_close_alone(void);

/* A process that was of the family, or should be, goes on by itself: nobody sees when it ends. */
void family_note_stranger(void);
bool family_has_strangers(void);

/* This process ends and stages nothing more.  false: it goes on after all. */
void family_exiting(bool exits);

/* Process `member` forbids staging; `why` is an enum bypass_reason. */
void family_refuse(uint32_t member, uint32_t why);
/* The reason (enum bypass_reason) why another living process forbids staging, or BYPASS_NONE. */
uint32_t family_refused(void);

/* True if `member` is another process and has died. */
bool family_member_died(uint32_t member);

/* From now on children do not belong to the family.  They live in another pid namespace, say, where the
 * thread ids in our locks name other threads. */
void family_end(void);

#endif
