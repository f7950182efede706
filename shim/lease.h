// SPDX-License-Identifier: Apache-2.0
/*
 * lease: proof that nobody else has a file open, for as long as it is held.
 *
 * A write lease is granted only while the one open file description behind fd is the only one; an open by
 * anybody else then waits until lease_drop.  About 1.5 us for both on a 6.x kernel.
 */
#ifndef FASTWRITE_LEASE_H
#define FASTWRITE_LEASE_H

#include <sys/types.h>

/* 0, or -errno (-EAGAIN: somebody else has it open; -EACCES: not the owner; -EINVAL: no leases here). */
int lease_take(int fd);
void lease_drop(int fd);
/* The same, held for long: a thread of ours waits for the signal (thread.h) that somebody opens the file. */
int lease_take_for(int fd, pid_t tid);
/* For recovery, which may run without an engine: signals go to this thread, which must have them all blocked;
 * lease_drop_own takes a broken lease's signal out of the queue. */
int lease_take_own(int fd);
void lease_drop_own(int fd);

#endif
