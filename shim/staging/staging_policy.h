// SPDX-License-Identifier: Apache-2.0
/*
 * staging_policy: whether staging pays for a file.  It does not when the program looks at its file after
 * every write or two, nor when it syncs after every few and each sync has to ask the device, nor when the
 * file is made for a few writes and a few syncs, nor when its writes go into holes and every few need space
 * of their own: then there is more work to do than there are writes to save.  Such a file is given back to
 * the kernel.
 */
#ifndef FASTWRITE_STAGING_STAGING_POLICY_H
#define FASTWRITE_STAGING_STAGING_POLICY_H

#include "files/file.h"

/* File lock held, before what is staged goes out: the program wants to see it. */
void staging_policy_looked(struct file *f);

/* File lock held: pages of a hole are reserved for a write at `offset`. */
void staging_policy_hole(struct file *f, uint64_t offset);
/* And this one needed none. */
static inline void staging_policy_no_hole(struct file *f) { f->habit.holes = 0; }

/* File lock held, before what is staged goes out: the program syncs the file, attached or not. */
void staging_policy_synced(struct file *f);

/* File lock held, before what is staged goes out: nobody will write to it any more. */
void staging_policy_closed(struct file *f);

/* File lock held, f attached, another write is about to be staged: it is time to give the file back.  If so
 * it is staged again later. */
bool staging_policy_gives_back(struct file *f);

/* A file is about to be attached that is at `path` now: false when one of that name was synced after every
 * few writes (SQLite makes its rollback journal anew for each transaction); it is staged later. */
bool staging_policy_allows(struct file *f, const char *path);

#endif
