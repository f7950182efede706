// SPDX-License-Identifier: Apache-2.0
/* sync: what fsync and fdatasync of a managed file do, by the rule's policy.  See the table in docs/guarantees.md. */
#ifndef FASTWRITE_SYNC_H
#define FASTWRITE_SYNC_H

#include "files/file.h"

#include <limits.h>

/* fd refers to another description by now, and nothing was done. */
enum { SYNC_ANOTHER = INT_MIN };
/* The program called fsync (full) or fdatasync on fd, which refers to o.  0 or -errno, or SYNC_ANOTHER. */
int sync_file(int fd, struct ofd *o, bool full);
/* The policy lets a sync return before the file has the bytes on the device, so that a synced write through o need not go
 * there. */
bool sync_is_promise(const struct ofd *o);
/* Such a write was accepted: what a sync does by the policy.  0 or -errno, or SYNC_ANOTHER. */
int sync_written(int fd, struct ofd *o, uint32_t releases);
/* File lock held: does the background sync that a relaxed fsync or write promised, if this process has a descriptor. */
void sync_relaxed_due(struct file *f);
/* The same for what is in the kernel. */
void sync_relaxed_now(struct file *f);
/* The same without waiting until it is due, for a file that is about to get another name: the name could become durable
 * before the bytes do, and with it the end of what had the name until now. */
void sync_relaxed_named(uint64_t dev, uint64_t ino);

#endif
