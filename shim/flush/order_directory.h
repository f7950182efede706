// SPDX-License-Identifier: Apache-2.0
/*
 * order_directory: the directory that a program with sync = ordered syncs, for the names in it.
 *
 * The next epoch makes these names durable.  A sync of the whole file system would also wait for what all
 * other programs have written there.  So a log knows one directory, the first that the program syncs, and its
 * epochs sync that one.
 *
 * Noting is lock-free; order_directory_sync and order_directory_reset need the lock of the log.
 */
#ifndef FASTWRITE_FLUSH_ORDER_DIRECTORY_H
#define FASTWRITE_FLUSH_ORDER_DIRECTORY_H

#include "format/arena_format.h"

#include <stdbool.h>

struct order_directory {
	_Atomic uint32_t state; /* which says whether the others are filled in */
	_Atomic bool unsynced;
	uint64_t dev, ino;
	_Atomic uint32_t links;
	char path[ARENA_PATH_MAX]; /* without symbolic links */
};

void order_directory_reset(struct order_directory *d);

/* Names may have come or gone in the directory with this identity.  False: another one is known, or it cannot
 * be synced by its path.  `path`: its files belong to the rule, and if none is known yet it may be this one;
 * else NULL. `links`: its hard links, which count its directories.  With a path 0: the rule has their files,
 * too.  Else the directory counts as another one when it has more or less. */
bool order_directory_note(struct order_directory *d, uint64_t dev, uint64_t ino, const char *path,
                          uint32_t links);
/* The same by the path of a file in it. */
bool order_directory_note_name(struct order_directory *d, const char *path);
/* The file of this path lies in the known directory. */
bool order_directory_has_name(const struct order_directory *d, const char *path);
/* Names may have come or gone in the known directory.  False: none is known. */
bool order_directory_note_known(struct order_directory *d);

/* The directory that the first n bytes of `path` lead to is the known one, and they are its path. */
bool order_directory_is_at(const struct order_directory *d, const char *path, size_t n);

bool order_directory_is_unsynced(const struct order_directory *d);
/* Syncs the directory if it was noted.  0; -ESTALE: the path names another one, and is never used again: sync
 * the whole file system; other -errno: it stays noted. */
int order_directory_sync(struct order_directory *d);
/* The whole file system is about to be synced. */
void order_directory_forget(struct order_directory *d);

#endif
