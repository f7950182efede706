// SPDX-License-Identifier: Apache-2.0
/* thread: see thread.h. */
#include "thread.h"

#include "handler.h"
#include "sys.h"

#include <limits.h>
#include <pthread.h>
#include <unistd.h>

enum { STACK_BYTES = 128 * 1024, STACK_MOST = 1 << 30, SIGNAL_SETXID = 33 };

static sys_sigset bit(int number) { return (sys_sigset)1 << (number - 1); }

static _Atomic unsigned running;

unsigned thread_count(void) { return running; }
void thread_after_fork(void) { running = 0; }

static void *thread_main(void *run)
{
	((void *(*)(void *))run)(NULL);
	running--;
	return NULL;
}

/* 0 or the error; EINVAL: the stack is too small. */
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

	if (handler_runs())
		return -EDEADLK;
	/* the C library takes what the program has of thread-local variables from it, and says nowhere how much */
	for (r = make_with(stack, run); r == EINVAL && stack < STACK_MOST; stack *= 2)
		r = make_with(2 * stack, run);
	return -r;
}

void thread_begin(void) { sys_restore_signals(~bit(SIGNAL_SETXID)); }

int thread_wait_signal(siginfo_t *info, const struct timespec *relative)
{
	sys_sigset ours = bit(THREAD_SIGNAL);
	long r = sys_raw(SYS_rt_sigtimedwait, (long)&ours, (long)info, (long)relative, sizeof ours, 0, 0);

	if (r == -EAGAIN)
		return 0;
	return r < 0 ? (int)r : 1;
}
