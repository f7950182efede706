// SPDX-License-Identifier: Apache-2.0
/*
 * workers: the background threads, and the queue of files that wait for one.  What they do with a file, and
 * when, is the timer's business (attach/timer.h).
 *
 * Threads start with the first attached file, take no signal of the program (base/thread.h), and end by
 * themselves after a second without staged bytes (a process whose main thread called pthread_exit must be
 * able to end).
 */
#ifndef FASTWRITE_FILES_WORKERS_H
#define FASTWRITE_FILES_WORKERS_H

#include "files/file.h"

enum { WORKERS_MAX = 4, WORKERS_IDLE_MS = 1000 };

/* Set once, before any file is managed. */
struct workers_jobs {
	void (*file)(struct file *f); /* one that workers_kick named */
	/* By one of the threads: what is due?  Nanoseconds until the next look.  *waits: nothing is staged
	 * anywhere, so that who stages must wake us; *idle: and there is nothing else to watch. */
	uint64_t (*look)(uint32_t pace_ms, bool *idle, bool *waits);
	void (*tend)(void); /* between two files, see workers_nudge */
	void (*rest)(void); /* nothing has been to do for a while */
};
void workers_set(const struct workers_jobs *jobs);

/* Makes sure that one thread runs; 0 or -errno. */
int workers_start(void);
/* Thread id that lease signals go to, 0 = none. */
pid_t workers_tid(void);
/* f is to be looked after. */
void workers_kick(struct file *f);
/* Something was staged or a relaxed sync became due: the timer must run.  False when nobody runs it. */
bool workers_arm(void);
/* Each is to tend, see above. */
void workers_nudge(void);
/* Smallest lag of all rules, or time until a relaxed sync, for the timer's pace; 1..60000. */
void workers_set_interval(uint32_t lag_ms);
/* Files wait in the queue. */
bool workers_busy(void);
/* Threads that run now. */
uint32_t workers_threads(void);
/* Ends them all, for calls that the kernel refuses to a process with threads; nothing is staged (or cannot be
 * written), and nothing can be attached.  Returns when the kernel knows them no more, or after a second. */
void workers_stop(void);
/* Afterwards: as before.  0, or -errno when there should be a thread and none can be made. */
int workers_resume(void);
/* Around a fork.  In the child no thread runs. */
void workers_fork_prepare(void);
void workers_fork_parent(void);
void workers_after_fork(void);
/* True in an engine thread. */
bool workers_is_self(void);

#endif
