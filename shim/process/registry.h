// SPDX-License-Identifier: Apache-2.0
/*
 * registry: `fastwrite run` passes a file name in FASTWRITE_REGISTRY; every arena that is made under it adds its
 * path as a line, so that `run` can recover after any death.  What one process has said for all of them is there, too:
 * a line that begins with '#'.
 */
#ifndef FASTWRITE_REGISTRY_H
#define FASTWRITE_REGISTRY_H

#include "staging/arena.h"

/* NULL or "" = nobody listens.  The text is copied: programs overwrite their
 * environment to show a title. */
void registry_set(const char *path);
void registry_note(const struct arena *a);
/* True for the first process under that `run` that asks with these words, and where there is no `run`. */
bool registry_say_once(const char *rule, int error);

#endif
