// SPDX-License-Identifier: Apache-2.0
/*
 * fdtable: what a descriptor is: one atomic word for each.  Readers take no lock.
 *
 *	0                     free, or not managed
 *	state                 unresolved (descriptors/unresolved.h)
 *	description           managed
 *	description | state   managed, while it is resolved, closed or replaced
 *
 * A description appears after the kernel has made the descriptor, and vanishes before the kernel closes it.
 * A reader takes the file's lock and reads the word again (fdtable_get(fd) == o) before it trusts it.
 *
 * Memory order.  The word is stored by seq_cst and loaded with acquire: who finds a description finds it
 * filled in.  A close clears the word and then takes the file's lock.  So a writer that holds the lock either
 * finds the word cleared, or has staged its bytes before the close drains the file.  Calls that go to the
 * kernel without the lock are counted first, by seq_cst (file.inflight, unresolved_fd.inflight).  Then they
 * load the file's mode or the state by seq_cst, which also orders the later load of the word.
 */
#ifndef FASTWRITE_FILES_FDTABLE_H
#define FASTWRITE_FILES_FDTABLE_H

#include "base/fork_guard.h"
#include "files/file.h"

#include <time.h>

enum { FDTABLE_CHUNK = 1024, FDTABLE_CHUNKS = 1024 };

/*
 * Around the opens and closes of a process with files in order: the kernel may have descriptions that the
 * table does not show.  (An open that a handler leaves with longjmp, or in which a thread is cancelled,
 * counts for ever.  Then a removed file is written and not dropped, and locked files have no lease.)
 */
extern _Atomic uint32_t fdtable_changing, fdtable_changes;
static inline void fdtable_change_begin(void)
{
	atomic_fetch_add(&fdtable_changes, 1);
	atomic_fetch_add(&fdtable_changing, 1);
}
static inline void fdtable_change_end(void) { atomic_fetch_sub(&fdtable_changing, 1); }
/* One is under way. */
static inline bool fdtable_is_changing(void) { return atomic_load(&fdtable_changing) != 0; }
/* One has begun since the number was read from fdtable_changes. */
static inline bool fdtable_has_changed(uint32_t since) { return atomic_load(&fdtable_changes) != since; }

/* The state of an unresolved descriptor.  UNRESOLVED_RESOLVING also blocks a descriptor that is closed or
 * replaced: threads that use it wait.  Only descriptors below UNRESOLVED_FDS have a state. */
enum unresolved_state { UNRESOLVED_NONE, UNRESOLVED_NOTED, UNRESOLVED_UNSURE, UNRESOLVED_RESOLVING };
enum { UNRESOLVED_FDS = FDTABLE_CHUNK };
#define FDTABLE_STATE ((uintptr_t)3) /* of the word; descriptions are aligned to 4 bytes at least */

extern _Atomic uintptr_t fdtable_first[FDTABLE_CHUNK];
extern _Atomic uintptr_t *_Atomic fdtable_chunks[FDTABLE_CHUNKS];

/* The word itself, in whichever process. */
static inline uintptr_t fdtable_word(int fd)
{
	_Atomic uintptr_t *chunk;

	if (__builtin_expect((unsigned)fd < FDTABLE_CHUNK, 1))
		return atomic_load_explicit(&fdtable_first[fd], memory_order_acquire);
	if ((unsigned)fd >= FDTABLE_CHUNK * FDTABLE_CHUNKS)
		return 0;
	chunk = atomic_load_explicit(&fdtable_chunks[fd / FDTABLE_CHUNK], memory_order_acquire);
	return chunk ? atomic_load_explicit(&chunk[fd % FDTABLE_CHUNK], memory_order_acquire) : 0;
}

/* The description in a word.  NULL: the descriptor is not managed, or this is a child that has our memory but
 * its own descriptors. */
static inline struct ofd *fdtable_description(uintptr_t word)
{
	struct ofd *o = (struct ofd *)(word & ~FDTABLE_STATE);

	return __builtin_expect(o && fork_guard_elsewhere(), 0) ? NULL : o;
}
static inline struct ofd *fdtable_get(int fd) { return fdtable_description(fdtable_word(fd)); }

static inline enum unresolved_state fdtable_state(int fd)
{
	return (unsigned)fd < UNRESOLVED_FDS
	               ? (enum unresolved_state)(atomic_load(&fdtable_first[fd]) & FDTABLE_STATE)
	               : UNRESOLVED_NONE;
}

/* True if fd is managed or unresolved.  One question: between two, another thread could resolve fd. */
static inline bool fdtable_knows(int fd)
{
	uintptr_t word = fdtable_word(fd);

	return __builtin_expect(word != 0, 0) &&
	       (((word & FDTABLE_STATE) && !fork_guard_vforked) || fdtable_description(word));
}

/* The highest descriptor that was ever managed or unresolved; -1: none was. */
int fdtable_highest(void);
/* Raises it to fd, before fd becomes either of them. */
void fdtable_reach(int fd);
/* The state stays.  0; -EMFILE: fd is beyond the table; -ENOMEM. */
int fdtable_set(int fd, struct ofd *o);
/* Generation (seqlock) of the description: odd while it is being changed. */
uint32_t fdtable_generation(int fd);
void fdtable_clear(int fd);
/* Empties the table, in the child of a fork. */
void fdtable_reset(void);
/*
 * At a fork the kernel copies the descriptors first and the memory later.  Other threads open and close
 * descriptors in between.  So the child clears the entries that have changed since fdtable_fork_prepare.
 */
void fdtable_fork_prepare(void);
void fdtable_fork_child(void);
/* The child forgets what it has of descriptors above `top`: another thread may have raised fdtable_highest
 * just when that page was copied. */
void fdtable_zero_above(int top);
/* A descriptor that refers to `o`, other than `except`; -1: none. */
int fdtable_find(const struct ofd *o, int except);
/* Lowest managed descriptor in [from, to], or -1. */
int fdtable_next(unsigned from, unsigned to);

/* ---- unresolved descriptors: opened for writing and not looked at yet, see descriptors/unresolved.h ---- */

/* Changes the state if it is `from`; otherwise false.  The description stays.  fd < UNRESOLVED_FDS. */
static inline bool fdtable_change_state(int fd, enum unresolved_state from, enum unresolved_state to)
{
	uintptr_t word = atomic_load(&fdtable_first[fd]);

	while ((word & FDTABLE_STATE) == from)
		if (atomic_compare_exchange_weak(&fdtable_first[fd], &word, (word & ~FDTABLE_STATE) | to))
			return true;
	return false;
}

/* The same whatever the state is. */
static inline void fdtable_set_state(int fd, enum unresolved_state to)
{
	uintptr_t word = atomic_load(&fdtable_first[fd]);

	while (!atomic_compare_exchange_weak(&fdtable_first[fd], &word, (word & ~FDTABLE_STATE) | to))
		;
}

/* From now on the caller resolves fd; fdtable_set_state ends that.  Returns the state before.
 * UNRESOLVED_NONE: fd is not unresolved, or another thread resolves it. */
enum unresolved_state fdtable_begin_resolve(int fd);

struct unresolved_fd {
	/* Low half: writes under way in the kernel.  High half: a generation, raised when the descriptor is
	 * noted.  So two kinds of writes do not count: those through an earlier descriptor of the same
	 * number, and those that a signal handler left for good. */
	_Atomic uint64_t inflight;
	_Atomic uint32_t seen;  /* writes of at least one byte */
	int flags;              /* of the open */
	struct timespec before; /* coarse clock, before the open */
};

extern struct unresolved_fd unresolved_fds[UNRESOLVED_FDS];

static inline bool unresolved_is(int fd)
{
	return __builtin_expect(fdtable_state(fd) != UNRESOLVED_NONE, 0) && !fork_guard_vforked;
}

/* Writes under way in the kernel. */
static inline uint32_t unresolved_inflight(int fd)
{
	return (unsigned)fd < UNRESOLVED_FDS ? (uint32_t)atomic_load(&unresolved_fds[fd].inflight) : 0;
}

/* Set once at the start: the C library's streams make their calls through the library
 * (hooks/stream_table.c). */
extern bool fd_streams_seen;
/* True if the C library itself writes to fd.  Its messages go to 2 by internal calls.  Streams that the
 * library does not see write to 0 and 1. */
static inline bool fd_is_standard(int fd) { return fd == 2 || ((unsigned)fd < 2 && !fd_streams_seen); }
#endif
