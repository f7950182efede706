// SPDX-License-Identifier: Apache-2.0
/*
 * guard_format: has anybody else changed a file since the library last did?  The answer is in struct
 * arena_guard, in the file's entry in the arena.
 *
 * Recovery replays bytes at an offset only if nobody else has changed the file.  The guard holds the file's
 * size and time after the library's last change.  The library stamps the guard with the time before each of
 * its own changes.  So a kill between the change and the new guard is not taken for somebody else's change.
 *
 * Used by: guard (the live side), recovery.
 */
#ifndef FASTWRITE_FORMAT_GUARD_FORMAT_H
#define FASTWRITE_FORMAT_GUARD_FORMAT_H

#include "format/arena_format.h"

#include <sys/stat.h>

/* Stores size and time of the file; the stamps stay. */
void guard_fill(struct arena_guard *g, const struct statx *st);

/* The library is about to change the file. */
void guard_stamp(struct arena_guard *g);

/* The file, whose state now is st, is just as the library's last complete change left it. */
bool guard_is(const struct arena_guard *g, const struct statx *st);

/* The same, or a change of the library was under way at that time.  Others may have written to the file up to
 * a second later. */
bool guard_holds(const struct arena_guard *g, const struct statx *st);

#endif
