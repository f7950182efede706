// SPDX-License-Identifier: Apache-2.0
/*
 * own_arena: the arenas that this process has mapped, by file name.  Its own recovery leaves them alone.
 *
 * The pid in a file name proves nothing: in a container the process that died may have had the same one.
 *
 * Called by: arena (notes, forgets); recovery (asks).  Any thread, also in a signal handler.
 */
#ifndef FASTWRITE_OWN_ARENA_H
#define FASTWRITE_OWN_ARENA_H

#include <stdbool.h>

/* `name` stays where it is until it is forgotten. */
void own_arena_note(const char *name);
void own_arena_forget(const char *name);
bool own_arena_is(const char *name);

#endif
