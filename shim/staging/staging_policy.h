// SPDX-License-Identifier: Apache-2.0
/*
 * staging_policy: does staging pay for a file?  It does not in these cases:
 * - the program looks at the file after every write or two;
 * - it syncs after every few writes, and each sync has to ask the device;
 * - the file is made for a few writes and a few syncs;
 * - its writes go into holes, and every few of them need space of their own.
 *
 * Then staging makes more work than it saves.  Such a file is detached.
 */
#ifndef FASTWRITE_STAGING_STAGING_POLICY_H
#define FASTWRITE_STAGING_STAGING_POLICY_H

#include "files/file.h"

/* File lock held, before staged bytes are drained: the program is about to look at them. */
void staging_policy_looked(struct file *f);

/* File lock held: space in a hole is reserved for a write at `offset`. */
void staging_policy_hole(struct file *f, uint64_t offset);
/* A write needed no such space. */
static inline void staging_policy_no_hole(struct file *f) { f->habit.holes = 0; }

/* File lock held, before staged bytes are drained: the program syncs the file, attached or not. */
void staging_policy_synced(struct file *f);

/* File lock held, before staged bytes are drained: the program will not write to the file any more. */
void staging_policy_closed(struct file *f);

/* File lock held, f attached, before another write is staged.  True: detach the file now; it is attached
 * again later. */
bool staging_policy_gives_back(struct file *f);

/* A file, at `path` now, is about to be attached.  False: a file of that name was synced after every few
 * writes, so attach it later.  (SQLite makes its rollback journal anew for each transaction.) */
bool staging_policy_allows(struct file *f, const char *path);

#endif
