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
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* The C library keeps it from programs and sends it to single threads only, to cancel them; ours are never
 * cancelled. */
enum { THREAD_SIGNAL = 32 };

/* The kernel knows a thread of this process by that id. */
bool thread_lives(uint32_t tid);
/* Starts a detached thread with a small stack.  Called with all signals blocked.  0 or -errno; -EDEADLK in a signal
 * handler, where none may be made (base/handler.h). */
int thread_make(void *(*run)(void *));
/* How many of them run in this process. */
unsigned thread_count(void);
/* In the child of a fork: none. */
void thread_after_fork(void);
/* The first thing that it calls. */
void thread_begin(void);
/*
 * A thread of which one runs at a time: it is started when somebody needs it, and ends by itself when nobody does.
 *
 * Its word says what it is: its id, 0 when none runs, THREAD_CHANGES while one starts or looks whether it may end.
 * Whoever needs it notes that first and looks at the word then; a thread that may end changes the word first and looks
 * for such notes then.  So either it stays, or the other one waits for its end and starts the next.
 */
enum { THREAD_CHANGES = ~0u };
struct thread_one {
	_Atomic uint32_t word; /* futex */
	_Atomic uint32_t
		last; /* id of the one that began last: the kernel knows it a little longer than the word */
};
/* Its id, 0 = none runs. */
pid_t thread_one_id(const struct thread_one *t);
/* Starts it if need be; its id, or -errno as thread_make, -EAGAIN when it does not begin in time. */
int thread_one_need(struct thread_one *t, void *(*run)(void *));
/* In that thread, instead of thread_begin. */
void thread_one_begin(struct thread_one *t);
/* True when it may end, and is to return at once.  `needed` looks for notes of those who need it. */
bool thread_one_leave(struct thread_one *t, bool (*needed)(void));
/* None runs, and the kernel knows none any more. */
bool thread_one_gone(const struct thread_one *t);
/* In the child of a fork: none runs. */
void thread_one_after_fork(struct thread_one *t);

/* Takes one THREAD_SIGNAL that was sent to this thread; 1, 0 when none came in time, or -errno (-EINTR). */
int thread_wait_signal(siginfo_t *info, const struct timespec *relative);

#endif
