// SPDX-License-Identifier: Apache-2.0
/*
 * engine: the background threads that flush sealed blocks, keep the lag timer and do relaxed syncs.
 *
 * Threads start with the first engaged file, block every signal, and end by themselves after a second
 * without staged bytes (a process whose main thread called pthread_exit must be able to end).
 */
#ifndef FASTWRITE_ENGINE_H
#define FASTWRITE_ENGINE_H

#include "file.h"

/* The signal that a broken lease sends to an engine thread, which never lets it through. */
enum { ENGINE_LEASE_SIGNAL = 63, ENGINE_THREADS_MAX = 4 };

/* Makes sure that one thread runs; 0 or -errno. */
int engine_start(void);
/* Thread id that lease signals go to, 0 = none. */
pid_t engine_tid(void);
/* A sealed block of f waits to be flushed. */
void engine_kick(struct file *f);
/* Something was staged or a relaxed sync became due: the timer must run. */
void engine_arm(void);
/* Smallest lag of all rules, for the timer's pace; 1..60000. */
void engine_set_pace(uint32_t lag_ms);
/* In the child of a fork: no thread runs. */
void engine_after_fork(void);
/* True in an engine thread. */
bool engine_is_self(void);

#endif
