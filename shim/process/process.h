// SPDX-License-Identifier: Apache-2.0
/*
 * process: fork, exec, exit.  Each drains the files first.  The comment at each function says what may be
 * staged afterwards.
 */
#ifndef FASTWRITE_PROCESS_PROCESS_H
#define FASTWRITE_PROCESS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_fork {
	uint64_t signals;
	bool watch;
	bool member;      /* the child joins the family */
	bool interrupted; /* a signal handler forked during a write, which continues in parent and child */
	bool alone;       /* no other thread runs */
};
/* Before the fork handlers of others, which may lock an allocator: no thread is started from now on until
 * thread_unhold, or in the child thread_unhold_child. */
void process_fork_soon(void);
/* Around fork.  Parent and child go on staging the files that are open now (files/family.h).  If they
 * cannot share them, both bypass these files and stage only files opened later. */
void process_fork_prepare(void);
void process_fork_parent(void);
void process_fork_child(void);
/* Around a clone whose child has thread ids or rights of its own kind (CLONE_NEWPID, CLONE_NEWUSER): it
 * cannot share locks, and never stages anything.  What is open now both sides write through. */
void process_part_prepare(void);
void process_part_child(void);

/*
 * A fork by system call: `call` makes it.  The C library prepared nothing for the child, which may not start
 * a thread: it never stages anything.  What is open now both sides write through.
 */
long process_raw_fork(long (*call)(long number, const long *arguments), long number, const long *arguments);
/* Before any other clone by system call.  Both sides may go on in the same memory with the same thread-local
 * variables: nothing is staged from now on. */
void process_raw_clone(void);

/* The parent of this thread's next fork ends right after it, unseen by any hook (daemon).  If the fork fails,
 * the caller says so with family_exiting(false). */
extern __thread bool process_forks_and_ends;

/* Before the kernel refuses calls of this thread (seccomp), or kills it for them: from now on the library
 * makes no call of its own in this process, and manages no file. */
void process_filter_prepare(void);

/* Before execve: drains everything and removes all arenas.  After a failed execve: staging goes on. */
void process_exec_prepare(void);
void process_exec_failed(void);

/* Before posix_spawn, system, popen: drains everything.  Files whose descriptions the new program inherits
 * (see process/child.h) are bypassed from now on, because it shares their offset. */
void process_spawn_prepare(void);
/* The same for posix_spawn with file actions. */
void process_spawn_actions_prepare(void);

/* exit and _exit: drains everything and removes all arenas.  Later writes go to the kernel. */
void process_exit(void);

#endif
