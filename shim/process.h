// SPDX-License-Identifier: Apache-2.0
/*
 * process: fork, exec, exit.  Before any of them the files are settled; see the comments at each function for
 * what may be staged afterwards.
 */
#ifndef FASTWRITE_PROCESS_H
#define FASTWRITE_PROCESS_H

#include <stdint.h>

struct process_fork {
	uint64_t signals;
	int watch;
};
/* Around fork.  Both sides write the files that are open now through; files opened later are staged. */
void process_fork_prepare(void);
void process_fork_parent(void);
void process_fork_child(void);

/* Before execve: everything settled, all arenas gone.  After a failed one: as before. */
void process_exec_prepare(void);
void process_exec_failed(void);

/* Before posix_spawn, system, popen: settled; descriptions that the new program inherits (not close-on-exec)
 * are written through from now on, since it shares their offset. */
void process_spawn_prepare(void);

/* Normal end or _exit: everything settled and arenas gone; later writes go to the kernel directly. */
void process_exit(void);

#endif
