// SPDX-License-Identifier: Apache-2.0
/*
 * registry: the arenas made under one `fastwrite run`.
 *
 * `fastwrite run` passes a file name in FASTWRITE_REGISTRY.  Each process adds a line with the path of each
 * arena that it makes, so that `run` can recover after any death.  In it "//" is a line feed.  A line that
 * begins with '#' is a message that one process printed for all.
 */
#ifndef FASTWRITE_STAGING_REGISTRY_H
#define FASTWRITE_STAGING_REGISTRY_H

#include "staging/arena.h"

/* NULL or "" = no registry.  The text is copied, because programs overwrite their environment. */
void registry_set(const char *path);
void registry_note(const struct arena *a);
/* True for the first process of a `run` that calls this with these arguments, and always without a `run`. */
bool registry_say_once(const char *rule, int error);

#endif
