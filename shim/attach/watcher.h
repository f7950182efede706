// SPDX-License-Identifier: Apache-2.0
/*
 * watcher: takes the leases of `visibility = strict` (flush/visibility.h), and gives way when somebody opens
 * such a file: a thread of its own is told by the kernel, settles the file and drops the lease.
 */
#ifndef FASTWRITE_ATTACH_WATCHER_H
#define FASTWRITE_ATTACH_WATCHER_H

#include "flush/visibility.h"

/*
 * File lock held, f attached.  1 when bytes may be staged; 0 when they must be written through this time,
 * since somebody else has the file open; -(enum bypass_reason) when the file cannot be staged at all (no
 * leases here, which is said once).  The sizes in f may change.
 */
int watcher_hold(struct file *f, struct ofd *o, bool nested);

/* This process is about to open `path`: a lease of its own must not make it wait, nor fail with O_NONBLOCK.
 */
void watcher_before_open(int dirfd, const char *path);

/*
 * File lock held, before a fork: a child shares the description and with it the lease, so that the kernel
 * would not take it for somebody else.  A strict file is written through by both from now on.  Descriptors
 * that are open at that time must never become strict files later.
 */
void watcher_fork(struct file *f, bool nested);
/* In the child of a fork: no watcher runs, no lease is held. */
void watcher_after_fork(void);

/* Settles every leased file and ends the watcher, which comes back by itself with the next lease; no lock
 * held. For calls that the kernel refuses to processes with several threads. */
void watcher_stop(void);

#endif
