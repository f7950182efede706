// SPDX-License-Identifier: Apache-2.0
/*
 * fdtable: descriptor number -> open file description, lock-free to read.
 *
 * Entries appear after the kernel made the descriptor and vanish before the kernel closes it.  A reader that
 * got an entry takes the file's lock and looks again (fdtable_get(fd) == o) before it trusts it.
 */
#ifndef FASTWRITE_FDTABLE_H
#define FASTWRITE_FDTABLE_H

#include "base/fork_guard.h"
#include "files/file.h"

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
uint32_t fdtable_turn(int fd);
void fdtable_clear(int fd);
/* Empties the table: for the child of a fork. */
void fdtable_reset(void);
/*
 * The kernel copies the descriptors for the child of a fork first and the memory later; other threads open and close
 * in between.  What changed since fdtable_fork_prepare is nothing that the child knows about.
 */
void fdtable_fork_prepare(void);
void fdtable_fork_child(void);
/* A descriptor that refers to `o`, other than `except`; -1 when there is none. */
int fdtable_find(const struct ofd *o, int except);
/* Lowest managed descriptor in [from, to], or -1. */
int fdtable_next(unsigned from, unsigned to);

#endif
