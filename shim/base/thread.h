// SPDX-License-Identifier: Apache-2.0
/*
 * thread: the library's own threads, and the one signal that they wait for.
 *
 * The program's signals must not reach these threads.  So they block all signals but SIGSETXID: the C library
 * sends it to every thread when one calls setuid, and waits until each has answered.  They wait for no signal
 * that the program may use: a signal pending for the process goes to the first thread that asks, and the
 * program would miss it.
 */
#ifndef FASTWRITE_BASE_THREAD_H
#define FASTWRITE_BASE_THREAD_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

/* SIGCANCEL: hidden from programs by the C library, which sends it to cancel a thread.  Our threads are never
 * cancelled. */
enum { THREAD_SIGNAL = 32 };

/* True if this process has a thread of that id. */
bool thread_lives(uint32_t tid);
/* No other thread runs. */
bool thread_is_only(void);
/* The program makes one of which the C library does not know. */
void thread_unseen(void);
/* Starts a detached thread with a small stack.  Called with all signals blocked.  0 or -errno; -EDEADLK in a
 * signal handler, where no thread may be started (base/handler.h), and within thread_hold. */
int thread_make(void *(*run)(void *));
/* From now on no thread is started, and none is just being started: that takes memory from the program's
 * allocator.  Such calls may be made by several threads. */
void thread_hold(void);
void thread_unhold(void);
/* The same in the child of a fork. */
void thread_unhold_child(void);
/* How many such threads run in this process. */
unsigned thread_count(void);
/* How many threads of the program there are, or one more while one of ours begins or ends; 0: unknown.  The
 * question takes no descriptor: the program's next one
 * must have the lowest number, and another thread of ours may ask. */
unsigned thread_of_program_count(void);
/* In the child of a fork, which has none. */
void thread_after_fork(void);
/* Each thread calls this first. */
void thread_begin(void);
/*
 * A thread that runs at most once at a time.  It starts on demand and ends by itself when it has nothing to
 * do.
 *
 * Its state word is the thread id, 0 when none runs, or THREAD_CHANGES while the thread starts or checks
 * whether it may end.  A caller that needs the thread first publishes its work, then reads the word.  A
 * thread that may end first sets THREAD_CHANGES, then looks for work.  So either the thread sees the work, or
 * the caller sees the change, waits for the end and starts the next thread.
 */
enum { THREAD_CHANGES = ~0u };
struct thread_one {
	_Atomic uint32_t word; /* futex */
	_Atomic uint32_t last; /* id of the last thread: it exists a little longer than `word` says */
};
/* Its thread id, 0 = none runs. */
pid_t thread_one_id(const struct thread_one *t);
/* Starts it unless it runs.  Its thread id, -errno of thread_make, or -EAGAIN if it does not begin. */
int thread_one_need(struct thread_one *t, void *(*run)(void *));
/* Called in that thread, instead of thread_begin. */
void thread_one_begin(struct thread_one *t);
/* True if the thread may end; it must then return at once.  `needed` looks for work. */
bool thread_one_leave(struct thread_one *t, bool (*needed)(void));
/* True if none runs and the last one has left the kernel, too. */
bool thread_one_gone(const struct thread_one *t);
/* In the child of a fork, where none runs. */
void thread_one_after_fork(struct thread_one *t);

/* Waits for a THREAD_SIGNAL sent to this thread.  1, 0 on timeout, or -errno (-EINTR). */
int thread_wait_signal(siginfo_t *info, const struct timespec *relative);

#endif
