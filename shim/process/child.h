// SPDX-License-Identifier: Apache-2.0
/*
 * child: children that share our memory, and what a new program inherits.
 *
 * A child of vfork runs in our memory, with its own copy of the descriptor table.  The thread that made it
 * waits.  Before the vfork everything is drained, and the gate is held until the child has gone: other
 * threads' writes go to the kernel.  So all calls of the child can pass to the kernel, and none changes the
 * library's state (base/fork_guard.h, fork_guard_vforked).  Files that must be bypassed because of the child
 * are noted in struct file.give_up.  The parent bypasses them when it wakes up.
 *
 * A program that inherits a description shares its offset, and the library does not see its writes.  So the
 * file is bypassed from then on.  Nothing proves that the last such program has gone: a lease counts
 * descriptions, not processes, and /proc shows neither all processes nor descriptors in flight.
 */
#ifndef FASTWRITE_PROCESS_CHILD_H
#define FASTWRITE_PROCESS_CHILD_H

#include <stdbool.h>
#include <stdint.h>

/* Around vfork, and around a clone that works alike.  No malloc; the child takes no lock. */
struct child_vfork {
	uint64_t signals;
	uint32_t tid;
	bool outer; /* the caller is itself such a child */
};
void child_vfork_prepare(struct child_vfork *v);
void child_vfork_child(const struct child_vfork *v);
void child_vfork_parent(const struct child_vfork *v, bool made);

/* In such a child. */
void child_exec_prepare(void); /* notes what the new program inherits */
void child_exec_failed(void);
void child_forks(void); /* notes that everything is inherited */
void child_ends(void);

/* Before posix_spawn and the like, in the process itself.  `actions`: with file actions, which may duplicate
 * any descriptor that adddup2 was ever told. */
void child_spawn_prepare(bool actions);
void child_actions_dup(int fd);

/* A clone is about to share memory or descriptors in a way not covered above.  Drains everything; no file is
 * managed any more, on either side. */
void child_give_up(void);

#endif
