// SPDX-License-Identifier: Apache-2.0
/*
 * fdtable: maps a descriptor to its open file description.  Readers take no lock.
 *
 * An entry appears after the kernel has made the descriptor, and vanishes before the kernel closes it.  A
 * reader takes the file's lock and reads the entry again (fdtable_get(fd) == o) before it trusts the entry.
 */
#ifndef FASTWRITE_FILES_FDTABLE_H
#define FASTWRITE_FILES_FDTABLE_H

#include "base/fork_guard.h"
#include "files/file.h"

#include <time.h>

enum { FDTABLE_CHUNK = 1024, FDTABLE_CHUNKS = 1024 };

extern struct ofd *_Atomic fdtable_first[FDTABLE_CHUNK];
extern struct ofd *_Atomic *_Atomic fdtable_chunks[FDTABLE_CHUNKS];

/* The entry itself, in whichever process. */
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

/* The description of fd.  NULL: fd is not managed, or this is a child that has our memory but its own
 * descriptors. */
static inline struct ofd *fdtable_get(int fd)
{
	struct ofd *o = fdtable_entry(fd);

	return __builtin_expect(o && fork_guard_elsewhere(), 0) ? NULL : o;
}

/* 0; -EMFILE: fd is beyond the table; -ENOMEM. */
int fdtable_set(int fd, struct ofd *o);
/* Generation (seqlock): odd while the entry is being changed. */
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
/* A descriptor that refers to `o`, other than `except`; -1: none. */
int fdtable_find(const struct ofd *o, int except);
/* Lowest managed descriptor in [from, to], or -1. */
int fdtable_next(unsigned from, unsigned to);

/* ---- unresolved descriptors: opened for writing and not looked at yet, see descriptors/unresolved.h ---- */

enum { UNRESOLVED_FDS = 1024 };
enum unresolved_state { UNRESOLVED_NONE, UNRESOLVED_NOTED, UNRESOLVED_UNSURE, UNRESOLVED_RESOLVING };

struct unresolved_fd {
	_Atomic uint32_t state;
	/* Low half: writes under way in the kernel.  High half: a generation, raised when the descriptor is
	 * noted.  So two kinds of writes do not count: those through an earlier descriptor of the same
	 * number, and those that a signal handler left for good. */
	_Atomic uint64_t inflight;
	_Atomic uint32_t seen;  /* writes of at least one byte */
	int flags;              /* of the open */
	struct timespec before; /* coarse clock, before the open */
};

extern struct unresolved_fd unresolved_fds[UNRESOLVED_FDS];

/* A note is removed after the table has the result.  So look for the note first: no note, and then no entry,
 * means not managed.  In the other order the descriptor may have been resolved in between. */
static inline bool unresolved_is(int fd)
{
	return (unsigned)fd < UNRESOLVED_FDS &&
	       __builtin_expect(atomic_load_explicit(&unresolved_fds[fd].state, memory_order_acquire) !=
	                                UNRESOLVED_NONE,
	                        0) &&
	       !fork_guard_vforked;
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
