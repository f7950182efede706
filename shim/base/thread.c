// SPDX-License-Identifier: Apache-2.0
/* thread: see base/thread.h. */
#include "base/thread.h"

#include "base/handler.h"
#include "base/lock.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <unistd.h>

enum { STACK_BYTES = 128 * 1024, STACK_MOST = 1 << 30, SIGNAL_SETXID = 33 };

extern char __libc_single_threaded __attribute__((weak));

static sys_sigset bit(int number) { return (sys_sigset)1 << (number - 1); }

static PROCESS_DATA _Atomic unsigned running; /* from before they are made */
static PROCESS_DATA _Atomic unsigned begun;   /* of these, those that the kernel certainly has */

unsigned thread_count(void) { return running; }

unsigned thread_of_program_count(void)
{
	struct statx st;
	unsigned ours = begun;

	/* links: . and .. and one directory per thread */
	if (sys.statx(AT_FDCWD, "/proc/self/task", 0, STATX_NLINK, &st) < 0 || st.stx_nlink < 2 + ours)
		return 0;
	return st.stx_nlink - 2 - ours;
}

static PROCESS_DATA _Atomic unsigned making; /* in thread_make */
static PROCESS_DATA _Atomic unsigned holds;

PROCESS_CODE void thread_hold(void)
{
	holds++;
	while (making)
		sys_nap(50000);
}

PROCESS_CODE void thread_unhold(void) { holds--; }
PROCESS_CODE void thread_unhold_child(void) { holds = making = 0; }

PROCESS_CODE void thread_after_fork(void) { running = begun = 0; }

static void *thread_main(void *run)
{
	begun++;
	((void *(*)(void *))run)(NULL);
	begun--;
	running--;
	return NULL;
}

/* 0 or the error number; EINVAL: the stack is too small. */
static int make_with(size_t stack, void *(*run)(void *))
{
	pthread_attr_t attr;
	pthread_t thread;
	int r = pthread_attr_init(&attr);

	if (r != 0)
		return r;
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, stack);
	running++;
	r = pthread_create(&thread, &attr, thread_main, (void *)run);
	if (r != 0)
		running--;
	pthread_attr_destroy(&attr);
	return r;
}

int thread_make(void *(*run)(void *))
{
	long least = sysconf(_SC_THREAD_STACK_MIN);
	size_t stack = STACK_BYTES + (least > 0 ? (size_t)least : PTHREAD_STACK_MIN);
	int r;

	making++;
	if (handler_runs() || holds) {
		making--;
		return -EDEADLK;
	}
	/* the program's thread-local variables take part of the stack; the C library does not say how much */
	for (r = make_with(stack, run); r == EINVAL && stack < STACK_MOST && !sys_children_go_elsewhere();
	     stack *= 2)
		r = make_with(2 * stack, run);
	making--;
	return -r;
}

void thread_begin(void) { sys_restore_signals(~bit(SIGNAL_SETXID)); }

bool thread_lives(uint32_t tid) { return sys_raw(SYS_tgkill, sys_getpid(), tid, 0, 0, 0, 0) == 0; }

static _Atomic bool unseen;

void thread_unseen(void) { atomic_store(&unseen, true); }

bool thread_is_only(void)
{
	/* (glibc 2.32) */
	return &__libc_single_threaded && __libc_single_threaded && !atomic_load(&unseen);
}

static void set_word(struct thread_one *t, uint32_t word)
{
	atomic_store(&t->word, word);
	sys_futex_wake((uint32_t *)&t->word, INT_MAX);
}

pid_t thread_one_id(const struct thread_one *t)
{
	uint32_t word = atomic_load(&t->word);

	return word == THREAD_CHANGES ? 0 : (pid_t)word;
}

/* Starts the thread, unless another caller does so now. */
static int start(struct thread_one *t, void *(*run)(void *))
{
	/* a signal handler of this thread would wait for the start that it interrupted */
	sys_sigset signals = signals_block();
	uint32_t none = 0;
	int r = 0;

	if (atomic_compare_exchange_strong(&t->word, &none, THREAD_CHANGES)) {
		r = thread_make(run);
		if (r < 0)
			set_word(t, 0);
	}
	sys_restore_signals(signals);
	return r;
}

int thread_one_need(struct thread_one *t, void *(*run)(void *))
{
	/* counted, not timed: the process may be stopped meanwhile */
	enum { TRIES = 200, PAUSE_NS = 50000000 };
	struct timespec pause = {.tv_nsec = PAUSE_NS};

	for (int tries = 0; tries < TRIES; tries++) {
		uint32_t word = atomic_load(&t->word);
		int r;

		if (word != 0 && word != THREAD_CHANGES)
			return (int)word;
		r = word == 0 ? start(t, run) : 0;
		if (r < 0)
			return r;
		sys_futex_wait((uint32_t *)&t->word, THREAD_CHANGES, &pause);
	}
	return -EAGAIN;
}

void thread_one_begin(struct thread_one *t)
{
	thread_begin();
	atomic_store(&t->last, lock_self());
	set_word(t, lock_self());
}

bool thread_one_leave(struct thread_one *t, bool (*needed)(void))
{
	bool stays;

	atomic_store(&t->word, THREAD_CHANGES);
	stays = needed();
	set_word(t, stays ? lock_self() : 0);
	return !stays;
}

bool thread_one_gone(const struct thread_one *t)
{
	uint32_t last = atomic_load(&t->last);

	return atomic_load(&t->word) == 0 && (last == 0 || !thread_lives(last));
}

PROCESS_CODE void thread_one_after_fork(struct thread_one *t) { t->word = t->last = 0; }

int thread_wait_signal(siginfo_t *info, const struct timespec *relative)
{
	sys_sigset ours = bit(THREAD_SIGNAL);
	long r = sys_raw(SYS_rt_sigtimedwait, (long)&ours, (long)info, (long)relative, sizeof ours, 0, 0);

	if (r == -EAGAIN)
		return 0;
	return r < 0 ? (int)r : 1;
}
