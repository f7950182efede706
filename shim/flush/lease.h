// SPDX-License-Identifier: Apache-2.0
/*
 * lease: proof that nobody else has a file open, for as long as it is held.
 *
 * A write lease is granted only while the one open file description behind fd is the only one; an open by
 * anybody else then waits until lease_drop.  About 1.5 us for both on a 6.x kernel.
 */
#ifndef FASTWRITE_LEASE_H
#define FASTWRITE_LEASE_H

#include <stdbool.h>
#include <sys/types.h>

/* For a moment.  The signal of one that is asked for goes to this thread, which must have all signals blocked;
 * lease_drop_own takes it out of the queue.  0, or -errno (-EAGAIN: somebody else has it open; -EACCES: not the owner;
 * -EINVAL: no leases here). */
int lease_take_own(int fd);
void lease_drop_own(int fd);
/* The same, held for long: a thread of ours waits for the signal (base/thread.h) that somebody opens the file. */
int lease_take_for(int fd, pid_t tid);
void lease_drop(int fd);

/*
 * It is held, and nobody has asked for it.  The kernel takes it away from a process that is stopped for longer than
 * /proc/sys/fs/lease-break-time.  So ask right before what nobody else's bytes may come between.  A stop between the
 * answer and that call is not seen: what overwrites bytes must not rely on it.
 */
bool lease_holds(int fd);

/* Leases are kept by the kernel of one machine.  Where others may have the file system, too, they prove nothing: true for
 * those that are known to be of one machine. */
bool lease_proves(int fd);
bool lease_proves_on(unsigned kind); /* statfs.f_type */

#endif
