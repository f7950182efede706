// SPDX-License-Identifier: Apache-2.0
/*
 * fdtable: descriptor number -> open file description, lock-free to read.
 *
 * Entries appear after the kernel made the descriptor and vanish before the kernel closes it.  A reader that
 * got an entry takes the file's lock and looks again (fdtable_get(fd) == o) before it trusts it.
 */
#ifndef FASTWRITE_FILES_FDTABLE_H
#define FASTWRITE_FILES_FDTABLE_H

#include "base/fork_guard.h"
#include "files/file.h"

#include <time.h>

enum { FDTABLE_CHUNK = 1024, FDTABLE_CHUNKS = 1024 };

extern struct ofd *_Atomic fdtable_first[FDTABLE_CHUNK];
extern struct ofd *_Atomic *_Atomic fdtable_chunks[FDTABLE_CHUNKS];

/* The entry itself, whoever asks. */
static inline struct ofd *fdtable_entry(int fd)
{
	struct ofd *_Atomic *chunk;

	if (__builtin_expect((unsigned)fd < FDTABLE_CHUNK, 1))
		return atomic_load_explicit(&fdtable_first[fd], memory_order_acquire);
	if ((unsigned)fd >= FDTABLE_CHUNK * FDTABLE_CHUNKS)
		return NULL;
	chunk = atomic_load_explicit(&fdtable_chunks[fd / FDTABLE_CHUNK], memory_order_acquire);
	return chunk ? atomic_load_explicit(&chunk[fd % FDTABLE_CHUNK], memory_order_acquire) : NULL;
}

/* What fd refers to; NULL when it is not managed, or this is a child that has our memory but its own
 * descriptors. */
static inline struct ofd *fdtable_get(int fd)
{
	struct ofd *o = fdtable_entry(fd);

	return __builtin_expect(o && fork_guard_elsewhere(), 0) ? NULL : o;
}

/* 0, -EMFILE for a number beyond the table, -ENOMEM. */
int fdtable_set(int fd, struct ofd *o);
/* Another number after each change of the entry, and an odd one while it changes. */
uint32_t fdtable_generation(int fd);
void fdtable_clear(int fd);
/* Empties the table: for the child of a fork. */
void fdtable_reset(void);
/*
 * The kernel copies the descriptors for the child of a fork first and the memory later; other threads open
 * and close in between.  What changed since fdtable_fork_prepare is nothing that the child knows about.
 */
void fdtable_fork_prepare(void);
void fdtable_fork_child(void);
/* A descriptor that refers to `o`, other than `except`; -1 when there is none. */
int fdtable_find(const struct ofd *o, int except);
/* Lowest managed descriptor in [from, to], or -1. */
int fdtable_next(unsigned from, unsigned to);

/* ---- descriptors that were opened for writing and have not been asked about yet, see
 * descriptors/unresolved.h ---- */

enum { UNRESOLVED_FDS = 1024 };
enum unresolved_state { UNRESOLVED_NONE, UNRESOLVED_NOTED, UNRESOLVED_UNSURE, UNRESOLVED_RESOLVING };

struct unresolved_fd {
	_Atomic uint32_t state;
	/* Writes under way in the kernel, and above them how often the number was noted: those that an
	 * earlier descriptor with this number has left, or a signal handler for good, are none of the later
	 * one's. */
	_Atomic uint64_t inflight;
	_Atomic uint32_t seen;  /* writes of at least one byte */
	int flags;              /* of the open */
	struct timespec before; /* the open, by the coarse clock */
};

extern struct unresolved_fd unresolved_fds[UNRESOLVED_FDS];

/* A note goes after the table shows what the descriptor turned out to be: who finds no note and then nothing
 * in the table knows that it is not managed.  The other way round it may have been resolved in between. */
static inline bool unresolved_is(int fd)
{
	return (unsigned)fd < UNRESOLVED_FDS &&
	       __builtin_expect(atomic_load_explicit(&unresolved_fds[fd].state, memory_order_acquire) !=
	                                UNRESOLVED_NONE,
	                        0) &&
	       !fork_guard_vforked;
}

/* Such calls under way. */
static inline uint32_t unresolved_inflight(int fd)
{
	return (unsigned)fd < UNRESOLVED_FDS ? (uint32_t)atomic_load(&unresolved_fds[fd].inflight) : 0;
}

/* Set once at the start: the C library's streams make their calls through the library (hooks/stream_table.c).
 */
extern bool fd_streams_seen;
/* A descriptor that the C library itself writes to: its messages go to 2 by internal calls, and so does what
 * streams that are not seen write to 0 and 1. */
static inline bool fd_is_standard(int fd) { return fd == 2 || ((unsigned)fd < 2 && !fd_streams_seen); }
#endif
