// SPDX-License-Identifier: Apache-2.0
/*
 * process: fork, exec, exit.  Before any of them the files are settled; see the comments at each function for
 * what may be staged afterwards.
 */
#ifndef FASTWRITE_PROCESS_H
#define FASTWRITE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process_fork {
	uint64_t signals;
	bool watch;
	bool member;      /* the child belongs to the family */
	bool interrupted; /* a write goes on when the handler that forked returns, in the child, too */
};
/* Around fork.  What is open now both sides go on staging together (process/family.h); if that cannot be, both write it
 * through, and only files opened later are staged. */
void process_fork_prepare(void);
void process_fork_parent(void);
void process_fork_child(void);

/* The parent of this thread's next fork will end at once, where nobody sees it. */
extern __thread bool process_forks_and_ends;

/* Before execve: everything settled, all arenas gone.  After a failed one: as before. */
void process_exec_prepare(void);
void process_exec_failed(void);

/* Before posix_spawn, system, popen: settled; descriptions that the new program inherits (see process/child.h) are written
 * through from now on, since it shares their offset. */
void process_spawn_prepare(void);
/* The same with file actions. */
void process_spawn_actions_prepare(void);

/* Normal end or _exit: everything settled and arenas gone; later writes go to the kernel directly. */
void process_exit(void);

#endif
