// SPDX-License-Identifier: Apache-2.0
/*
 * family: a process and its forked descendants, as long as they do not exec.
 *
 * They share files as the kernel does: files, descriptions, their positions and what is staged for them live
 * in shared memory at the same addresses, under the same locks, in the same arenas, whoever opened them and
 * when.  An arena that is made after a fork is mapped by the other members when they come upon it, in a place
 * that was kept free for it since the first fork.
 *
 * Membership.  Each member has a number, and for as long as it lives a lock on that byte of a memory file,
 * through an open file description that only it has: the kernel drops the lock when the process ends in any
 * way, and when it execs, since the descriptor is close-on-exec.  A parent takes the lock for its child
 * before it forks, and the child's claim to every description with it; nothing can be released in between.
 *
 * A dead member leaves claims to descriptions (attach/repair.h withdraws them), and perhaps a lock, the flush
 * token, or blocks.  What it published is whole in the arena, as after any kill (format/arena_format.h).
 * Whoever finds its lock or token first puts the file's staged bytes in place by the same code that recovers
 * a dead process's arena, and goes on from an empty staging (attach/repair.h).
 */
#ifndef FASTWRITE_FILES_FAMILY_H
#define FASTWRITE_FILES_FAMILY_H

#include "base/lock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAMILY_MAX = 256, FAMILY_WORDS = FAMILY_MAX / 64 };

/* A set of members. */
struct family_set {
	_Atomic uint64_t words[FAMILY_WORDS];
};

enum family_state {
	MEMBER_FREE,
	MEMBER_LIVE,
	MEMBER_EXITING, /* will stage nothing more */
};

struct family {
	struct lock lock;                   /* LOCK_FAMILY */
	_Atomic uint32_t state[FAMILY_MAX]; /* enum family_state */
	_Atomic uint32_t highest;           /* number ever used; 0 = nobody forked */
	/* Room at the same address in every member, for an arena that one of them makes after the fork: one
	 * piece for each of the first FAMILY_PLACES arenas of the pool.  NULL: there was none. */
	uint8_t *places;
	uint64_t place_bytes;
	uint8_t *runs; /* and for its table of blocks */
	uint64_t runs_bytes;
	struct family_set refusing; /* members that nothing can be staged beside, see attach/stop.h */
	_Atomic uint32_t refusal;   /* enum bypass_reason: why, as one of them has it */
};
enum { FAMILY_PLACES = 16 };

extern uint32_t family_me; /* this process's number; the first process has 0 */

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
/* True when somebody other than this process is in it who has not died.  Asks the kernel only if there is
 * somebody. Among members that exit at the same time the others do not count: the last one clears up. */
bool family_set_others(const struct family_set *s);
/* True when every member of `a` is in `b`. */
bool family_set_within(const struct family_set *a, const struct family_set *b);

uint32_t family_set_count(const struct family_set *s);

/* Other members have lived at some time: what is shared may be in use elsewhere. */
bool family_is_shared(void);

/* The process's own number: the first fork makes the memory file.  1: it did so now, 0: it was there, -1: no
 * child can belong to the family. */
int family_found(void);
/* Before a fork: a number for the child, whose lock it has; FAMILY_MAX: there is none. */
bool family_has_room(void);
uint32_t family_child_begin(void);
/* Afterwards, when there was one. */
void family_fork_parent(void);
void family_fork_child(void);
/* In a process that does not belong to the family, or no more. */
void family_forget(void);
/* To the others this process has died. */
void family_leave(void);
/* The descriptor that names this process as a member was wanted by the program: it takes another.  False when
 * fd is not that one, or there is no other. */
bool family_move_fd(int fd);

/* Closes that descriptor when nobody else lives; true when it did. */
bool family_can_close(void);
bool family_close_alone(void);

/* This process ends, and stages nothing more. */
void family_exiting(void);

/* Nothing can be staged beside that member (enum bypass_reason says why). */
void family_refuse(uint32_t member, uint32_t why);
/* Why nothing can be staged beside another member, enum bypass_reason. */
uint32_t family_refused(void);

/* True when that member is another process and has died. */
bool family_member_died(uint32_t member);

/* From now on children do not belong to the family: they live in another pid namespace, say, where the thread
 * ids in our locks mean other threads. */
void family_end(void);

#endif
