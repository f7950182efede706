// SPDX-License-Identifier: Apache-2.0
/*
 * aside: arenas and journals with bytes that may be replayed only with --force.  They move to a directory of
 * their own in the staging directory.  Recovery at an open does not look there.
 */
#ifndef FASTWRITE_RECOVERY_ASIDE_H
#define FASTWRITE_RECOVERY_ASIDE_H

#include "foreign/parse.h"

#define RECOVER_ASIDE "aside"

/* Moves `name` there.  0 or -errno. */
int recover_move_aside(int staging_fd, const char *name);
/* The same for an arena; also frees the space of blocks that hold nothing.  0 or -errno. */
int recover_put_aside(const struct foreign_arena *a, int staging_fd, const char *name);

#endif
