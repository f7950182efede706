// SPDX-License-Identifier: Apache-2.0
/*
 * takeover: recovers what a dead process of a family staged, while others of the family live
 * (format/takeover_format.h).
 *
 * Called by: recovery of an arena whose family lives.
 */
#ifndef FASTWRITE_RECOVERY_TAKEOVER_H
#define FASTWRITE_RECOVERY_TAKEOVER_H

#include "recovery/parse.h"

struct takeover {
	int fd;                       /* of the arena */
	bool dead[ARENA_KEEPERS_MAX]; /* keepers whose lock we hold now */
	bool left;                    /* something that they staged stays in the arena */
	uint8_t *gated;               /* for each of `entries` file entries: we hold its gate */
	uint32_t entries;
	int error; /* -errno: the blocks could not be sealed */
};

/* fd: an arena whose family lives, open for reading and writing.  True when one of its keepers has died.
 * Waits for other recoverers.  takeover_end must follow; it gives back every lock. */
bool takeover_begin(struct takeover *t, int fd);
/* The keeper of the file entry is dead, and blocks of the entry are damaged or not yet in the file. */
bool takeover_concerns(const struct takeover *t, struct foreign_arena *a, uint32_t entry);
/*
 * `a`: the arena, loaded.  Takes the gates of the entries that takeover_concerns, seals their blocks and
 * loads `a` again. 0, or -errno: then `a` is not loaded any more.
 */
int takeover_seal(struct takeover *t, struct foreign_arena *a);
/* After that, for an entry that takeover_concerns.  0: we may flush it.  -EBUSY: process *pid is flushing it
 * (0: not known which).  -EAGAIN: the family is at work on it and needs no help.  Other -errno. */
int takeover_allowed(const struct takeover *t, uint32_t entry, int *pid);
/* The first n > 0 blocks in a->order, all of this entry, are in the file: counts them in `done`.  0 or
 * -errno. */
int takeover_done(struct foreign_arena *a, uint32_t entry, int n);
/* An entry could not be flushed. */
static inline void takeover_failed(struct takeover *t) { t->left = true; }
void takeover_end(struct takeover *t);

#endif
