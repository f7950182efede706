// SPDX-License-Identifier: Apache-2.0
/*
 * thread: how the library makes its own threads, and the signal that they use among themselves and the kernel.
 *
 * They must be invisible to the program's signals.  So they block everything but SIGSETXID, by which the C
 * library makes every thread follow a setuid: one that blocked it would hang the program's setuid for ever.  And
 * they wait for no signal that the program may use: what is pending for the process is handed to whoever asks
 * first, and would be missing where the program waits for it.
 */
#ifndef FASTWRITE_THREAD_H
#define FASTWRITE_THREAD_H

#include <signal.h>
#include <time.h>

/* The C library keeps it from programs and sends it to single threads only, to cancel them; ours are never
 * cancelled. */
enum { THREAD_SIGNAL = 32 };

/* Starts a detached thread with a small stack.  Called with all signals blocked.  0 or -errno; -EDEADLK in a signal
 * handler, where none may be made (handler.h). */
int thread_make(void *(*run)(void *));
/* How many of them run in this process. */
unsigned thread_count(void);
/* In the child of a fork: none. */
void thread_after_fork(void);
/* The first thing that it calls. */
void thread_begin(void);
/* Takes one THREAD_SIGNAL that was sent to this thread; 1, 0 when none came in time, or -errno (-EINTR). */
int thread_wait_signal(siginfo_t *info, const struct timespec *relative);

#endif
