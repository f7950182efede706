// SPDX-License-Identifier: Apache-2.0
/*
 * workers: the background threads, and the queue of files that wait for one.  The timer (attach/timer.h) says
 * what the threads do with a file, and when.
 *
 * Threads start with the first attached file and take no signal of the program (base/thread.h).  They end
 * after a second without staged bytes: a process whose main thread has called pthread_exit must be able to
 * end.
 */
#ifndef FASTWRITE_FILES_WORKERS_H
#define FASTWRITE_FILES_WORKERS_H

#include "files/file.h"

enum { WORKERS_MAX = 4, WORKERS_IDLE_MS = 1000 };

/* Set once, before any file is managed. */
struct workers_jobs {
	void (*file)(struct file *f); /* a file that workers_kick named */
	/* In one of the threads: what is due?  Nanoseconds until the next look.  *waits: nothing is staged,
	 * so a thread that stages must wake us.  *idle: and there is nothing else to watch. */
	uint64_t (*look)(uint32_t pace_ms, bool *idle, bool *waits);
	void (*tend)(void); /* between two files, see workers_nudge */
	void (*rest)(void); /* after a while without work */
};
void workers_set(const struct workers_jobs *jobs);

/* Makes sure that one thread runs: 0 or -errno. */
int workers_start(void);
/* Id of the thread that gets lease signals, 0 = none. */
pid_t workers_tid(void);
/* Queues f for a worker thread. */
void workers_kick(struct file *f);
/* Bytes were staged, or a relaxed sync became due: the timer must run.  False: it cannot. */
bool workers_arm(void);
/* Wakes every thread, which then calls workers_jobs.tend. */
void workers_nudge(void);
/* Time scale of the timer, 1..60000: smallest lag of all rules, or time until a relaxed sync. */
void workers_set_interval(uint32_t lag_ms);
/* True if files wait in the queue. */
bool workers_busy(void);
/* Number of threads that run now. */
uint32_t workers_threads(void);
/* Ends all threads, for calls that the kernel refuses to a process with several threads.  Before, nothing is
 * staged or it cannot be written, and no file can be attached.  Returns when the kernel has removed the
 * threads, or after a second. */
void workers_stop(void);
/* Undoes workers_stop.  0, or -errno: a thread cannot be made. */
int workers_resume(void);
/* In the child of a fork: no thread runs. */
void workers_after_fork(void);
/* True in a worker thread. */
bool workers_is_self(void);
/* Calls act(ctx); in a worker thread by sys_apart, since that thread runs beside the program, whose next
 * descriptor must get the lowest number. */
void workers_apart(void (*act)(void *ctx), void *ctx);

#endif
