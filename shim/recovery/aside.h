// SPDX-License-Identifier: Apache-2.0
/*
 * recover_aside: arenas and journals with bytes that nobody may replay without being told to.  They move to a
 * directory of their own in the staging directory, so that no program that starts looks at them again.
 */
#ifndef FASTWRITE_RECOVER_ASIDE_H
#define FASTWRITE_RECOVER_ASIDE_H

#include "recovery/parse.h"

#define RECOVER_ASIDE "aside"

/* Moves `name` there.  0 or -errno. */
int recover_move_aside(int staging_fd, const char *name);
/* The same with an arena, and gives back the space of the blocks that hold nothing.  0 or -errno. */
int recover_put_aside(const struct foreign_arena *a, int staging_fd, const char *name);

#endif
