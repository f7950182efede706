// SPDX-License-Identifier: Apache-2.0
/* sync: fsync and fdatasync of a managed file, by the rule's policy.  See the table in docs/guarantees.md. */
#ifndef FASTWRITE_SYNC_SYNC_H
#define FASTWRITE_SYNC_SYNC_H

#include "files/file.h"

#include <limits.h>

/* Nothing was done, because fd refers to another description by now. */
enum { SYNC_ANOTHER = INT_MIN };
/* The program called fsync (full) or fdatasync on fd, which refers to o.  0 or -errno, or SYNC_ANOTHER. */
int sync_file(int fd, struct ofd *o, bool full);
/* True if the policy lets a sync return before the bytes are on the device.  Then a synced write through o
 * may be staged. */
bool sync_is_promise(const struct ofd *o);
/* After such a write was accepted: acts as a sync does under the policy.  0 or -errno, or SYNC_ANOTHER. */
int sync_written(int fd, struct ofd *o, uint32_t releases);
/* File lock held: makes the background sync that a relaxed fsync or write promised.  Does nothing if this
 * process has no descriptor. */
void sync_relaxed_due(struct file *f);
/* The same, without draining the file first. */
void sync_relaxed_now(struct file *f);
/* The same at once, for a file that is about to be renamed.  Otherwise the rename could become durable before
 * the bytes, and would replace the durable file of that name. */
void sync_relaxed_named(uint64_t dev, uint64_t ino);

#endif
