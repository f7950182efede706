// SPDX-License-Identifier: Apache-2.0
/*
 * repair: what killed processes of a family (files/family.h) leave behind.
 *
 * A dead process leaves its claims to descriptions, and perhaps a lock, the flush token or blocks.  What it
 * published is complete in the arena, as after any kill.  The first process that finds the lock or the token
 * writes the staged bytes to the file.  It uses the code that recovers a dead process's arena.  Then staging
 * starts anew for the file.
 */
#ifndef FASTWRITE_ATTACH_REPAIR_H
#define FASTWRITE_ATTACH_REPAIR_H

#include "files/file.h"

/* Call before any file is managed: sets the functions of file_care. */
void repair_set(void);

/* Withdraws the claims of dead processes.  No lock held, signals blocked. */
void repair_sweep(void);
/* In the child of a fork: gives up the child's claim to this description.  Another thread of the parent
 * closed its descriptor during the fork. */
void repair_give_up(struct ofd *o);
/* For attach_end_family: LOCK_ATTACH held, signals blocked. */
bool repair_end_family(void);

#endif
