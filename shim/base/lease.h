// SPDX-License-Identifier: Apache-2.0
/*
 * lease: proves that no other open file description of a file exists, as long as the lease is held.
 *
 * The kernel grants a write lease only while the description behind fd is the only one.  An open by another
 * process then waits until lease_drop.  Taking and dropping cost about 1.5 us together on a 6.x kernel.
 */
#ifndef FASTWRITE_BASE_LEASE_H
#define FASTWRITE_BASE_LEASE_H

#include <stdbool.h>
#include <sys/types.h>

/* For a short time.  If another process asks for the file, the kernel signals this thread, which must have
 * all signals blocked; lease_drop_own takes the signal out of the queue.  0, or -errno (-EAGAIN: another
 * description exists; -EACCES: not the owner of the file; -EINVAL: this file system has no leases). */
int lease_take_own(int fd);
void lease_drop_own(int fd);
/* For a long time: the library's thread `tid` waits for the signal (base/thread.h) that another process opens
 * the file. */
int lease_take_for(int fd, pid_t tid);
void lease_drop(int fd);

/*
 * True if the lease is held and no process has asked for the file.  The kernel revokes the lease of a process
 * that is stopped for longer than /proc/sys/fs/lease-break-time.  So ask right before a write that relies on
 * the lease.  A stop between the answer and the write goes unnoticed: a write that overwrites bytes must not
 * rely on it.
 */
bool lease_holds(int fd);

/* A lease is known to one kernel only.  On a cluster or network file system it proves nothing.  True for the
 * file systems known to belong to one machine. */
bool lease_proves(int fd);
bool lease_proves_on(unsigned kind); /* statfs.f_type */

#endif
