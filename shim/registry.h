// SPDX-License-Identifier: Apache-2.0
/*
 * registry: `fastwrite run` passes a file name in FASTWRITE_REGISTRY; every arena that is made under it adds its
 * path as a line, so that `run` can recover after any death.
 */
#ifndef FASTWRITE_REGISTRY_H
#define FASTWRITE_REGISTRY_H

#include "arena.h"

/* NULL or "" = nobody listens.  The text is copied: programs overwrite their
 * environment to show a title. */
void registry_set(const char *path);
void registry_note(const struct arena *a);

#endif
