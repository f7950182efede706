// SPDX-License-Identifier: Apache-2.0
/*
 * pool: with `pool = N` a rule has up to N files ready, really written with zeros and on the device, in its staging
 * directory.  One of them becomes the file that the program creates: it is made known and engaged, as a file with
 * nothing in it before its zeros (prealloc.h), and the slot of the arena names its target before it is moved there
 * without replacing anything.  So whatever looks at it finds an empty file, and so does recovery after a kill at any
 * step.
 *
 * Files of the pool are called <arena>.<number>.pool: recovery removes those whose arena is gone.
 *
 * They are made by a thread of its own, with a descriptor table of its own, so that it takes no number that the
 * program expects to get next.
 */
#ifndef FASTWRITE_POOL_H
#define FASTWRITE_POOL_H

#include "arena.h"
#include "fd.h"

#define POOL_SUFFIX ".pool"

/* Some rule has a pool, and files may be ready in it. */
extern _Atomic bool pool_active;

/* Engage lock held: an arena was made, or joined; its rule may want a pool. */
void pool_attach(const struct arena *a);
/* Removes what is ready and waits for who is at work on it.  NULL: all of them. */
void pool_close(const struct arena *a);
/* The disk is full: gives back what is ready, and makes no more.  True when there was something. */
bool pool_give_back(void);
/* In the child of a fork: the files are the parent's. */
void pool_fork_child(void);

/* Instead of an open that creates a file: its descriptor, or -1 when the kernel is to be asked, as if nothing had
 * happened.  After fd_open_prepare, with op->pool. */
int pool_open(int dirfd, const char *path, int flags, mode_t mode);

/* For pool_open: a file that is ready is taken out. */
struct pool_file {
	const struct arena *arena;
	const char *staging;
	char name[ARENA_FILE_NAME_MAX + 24];
	uint64_t bytes, ino;
	uint64_t flags;   /* of the inode, as it was made */
	uint32_t project; /* likewise */
	uint32_t pool, entry;
};
enum pool_end {
	POOL_MOVED,     /* it is a file of the program's now */
	POOL_UNTOUCHED, /* as it was: for another one */
	POOL_SPOILT,    /* to be removed */
};
bool pool_take(struct pool_file *file, const struct rule *rule, uint64_t dev);
/* Signals blocked. */
void pool_done(const struct pool_file *file, enum pool_end end);
/* Inode flags that files inherit, and the project; -errno when the file system does not say. */
int pool_attributes(int fd, uint64_t *flags, uint32_t *project);

#endif
