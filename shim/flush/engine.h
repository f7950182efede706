// SPDX-License-Identifier: Apache-2.0
/*
 * engine: the background threads that flush sealed blocks, keep the lag timer and do relaxed syncs.
 *
 * Threads start with the first attached file, take no signal of the program (base/thread.h), and end by themselves
 * after a second without staged bytes (a process whose main thread called pthread_exit must be able to end).
 */
#ifndef FASTWRITE_ENGINE_H
#define FASTWRITE_ENGINE_H

#include "descriptors/file.h"

enum { ENGINE_THREADS_MAX = 4 };

/* Makes sure that one thread runs; 0 or -errno. */
int engine_start(void);
/* Thread id that lease signals go to, 0 = none. */
pid_t engine_tid(void);
/* A sealed block of f waits to be flushed. */
void engine_kick(struct file *f);
/* Something was staged or a relaxed sync became due: the timer must run.  False when nobody runs it. */
bool engine_arm(void);
/* attach_tend has something to do. */
void engine_nudge(void);
/* Smallest lag of all rules, or time until a relaxed sync, for the timer's pace; 1..60000. */
void engine_set_pace(uint32_t lag_ms);
/* Threads that run now. */
uint32_t engine_threads(void);
/* Ends them all, for calls that the kernel refuses to a process with threads; nothing is staged (or cannot be
 * written), and nothing can be attached.  Returns when the kernel knows them no more, or after a second. */
void engine_stop(void);
/* Afterwards: as before.  0, or -errno when there should be a thread and none can be made. */
int engine_resume(void);
/* Around a fork.  In the child no thread runs. */
void engine_fork_prepare(void);
void engine_fork_parent(void);
void engine_after_fork(void);
/* True in an engine thread. */
bool engine_is_self(void);

#endif
