// SPDX-License-Identifier: Apache-2.0
/*
 * watcher: takes the leases of `visibility = strict` (flush/visibility.h), and gives one up if the file is
 * opened elsewhere.  The kernel signals the watcher's thread, which drains the file and drops the lease.
 */
#ifndef FASTWRITE_ATTACH_WATCHER_H
#define FASTWRITE_ATTACH_WATCHER_H

#include "flush/visibility.h"

/*
 * File lock held, f attached.  1: bytes may be staged.  0: this write bypasses staging, e.g. because the file
 * is open elsewhere.  Negative, -(enum bypass_reason): the file cannot be staged at all, e.g. because it can
 * have no lease, which is reported once.  The sizes in f may change.
 */
int watcher_hold(struct file *f, struct ofd *o);

/* This process is about to open this file.  Gives up its own lease on it: the open would wait for it, or
 * fail with O_NONBLOCK. */
void watcher_before_open(uint64_t dev, uint64_t ino);

/*
 * File lock held, before a fork.  A child shares the description and so the lease: the kernel would not break
 * the lease for the child.  Both bypass a strict file from now on.  A description that is open at the fork
 * must never get a lease later.
 */
void watcher_fork(struct file *f);
/* In the child of a fork: no watcher runs, no lease is held. */
void watcher_after_fork(void);

/* Drains every leased file and ends the watcher's thread; the next lease starts it again.  No lock held.  For
 * calls that the kernel refuses to a process with several threads. */
void watcher_stop(void);

#endif
