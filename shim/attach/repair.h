// SPDX-License-Identifier: Apache-2.0
/*
 * repair: what killed members of a family (files/family.h) have left.
 *
 * A dead member leaves claims to descriptions, and perhaps a lock, the flush token, or blocks.  What it
 * published is whole in the arena, as after any kill.  Whoever finds its lock or token first puts the file's
 * staged bytes in place by the same code that recovers a dead process's arena, and goes on from an empty
 * staging.
 */
#ifndef FASTWRITE_ATTACH_REPAIR_H
#define FASTWRITE_ATTACH_REPAIR_H

#include "files/file.h"

/* Before any file is managed: says what file_care does. */
void repair_set(void);

/* Withdraws what dead members claim.  No lock held, signals blocked. */
void repair_sweep(void);
/* In the child of a fork: it was to have this description, which another thread of the parent closed
 * meanwhile. */
void repair_give_up(struct ofd *o);
/* The program needs descriptors: the family's goes when nobody else of it lives.  True when it was closed. */
bool repair_spare(void);

#endif
