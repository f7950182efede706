// SPDX-License-Identifier: Apache-2.0
/* signals: see base/signals.h. */
#include "base/signals.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

/* From LIBRARY on, below SIGRTMIN: those of the C library itself (the cancellation of a thread, setuid in all
 * threads).  Their handlers stay. */
enum { SIGNALS = 64, LIBRARY = 32 };

typedef void handler_function(int number, siginfo_t *info, void *context);

/* The program's handler of each signal that `handle` catches. */
struct caught {
	handler_function *_Atomic handler;
	_Atomic bool wants_info; /* SA_SIGINFO */
};
static struct caught caught[SIGNALS + 1];

__thread _Atomic uint32_t signals_state;
__thread sys_sigset signals_before;
_Atomic bool signals_caught;
static _Atomic bool catching, refused;

void signals_harden_slow(void)
{
	sys_sigset before = sys_block_signals();

	/* else a signal has come in between, and signals_before is known */
	if (publish_swap_32(&signals_state, SIGNALS_POSTPONED, SIGNALS_BLOCKED))
		signals_before = before;
}

/* The instruction that was interrupted would fault again at once: the signal cannot wait. */
static bool is_fault(int number, const siginfo_t *info)
{
	switch (number) {
	case SIGSEGV:
	case SIGBUS:
	case SIGFPE:
	case SIGILL:
	case SIGTRAP:
	case SIGSYS: return info->si_code > 0;
	default: return false;
	}
}

/*
 * Sends the signal again, and blocks all signals when `context` goes on.  If the kernel calls handlers of
 * several signals, each before the last one has begun, the one that runs last returns to the section.  So its
 * context has the right signals.
 */
static void postpone(int number, siginfo_t *info, ucontext_t *context)
{
	const sys_sigset all = ~(sys_sigset)0;
	long pid = sys_getpid(), tid = sys_gettid();

	(void)sys_block_signals(); /* (with SA_NODEFER it would come at once) */
	memcpy(&signals_before, &context->uc_sigmask, sizeof signals_before);
	memcpy(&context->uc_sigmask, &all, sizeof all);
	signals_state = SIGNALS_BLOCKED;
	/* a full queue of real-time signals: its information is lost */
	if (sys_raw(SYS_rt_tgsigqueueinfo, pid, tid, number, (long)info, 0, 0) < 0)
		sys_raw(SYS_tgkill, pid, tid, number, 0, 0, 0);
}

static void handle(int number, siginfo_t *info, void *context)
{
	handler_function *handler = atomic_load(&caught[number].handler);

	if (signals_state != SIGNALS_FREE && !is_fault(number, info))
		postpone(number, info, context);
	else
		handler(number, info, context);
}

void signals_left(void)
{
	log_error("the handler of a fault has left a call of the library for good: the process cannot go on");
	abort();
}

static bool is_caught(int number)
{
	return number >= 1 && number <= SIGNALS && number != SIGKILL && number != SIGSTOP &&
	       (number < LIBRARY || number >= SIGRTMIN);
}

/* What the kernel knows as a signal's action. */
struct kernel_action {
	handler_function *handler;
	unsigned long flags;
	void (*restorer)(void);
	sys_sigset mask;
};

static bool is_function(handler_function *handler)
{
	return (uintptr_t)handler != (uintptr_t)SIG_DFL && (uintptr_t)handler != (uintptr_t)SIG_IGN &&
	       handler != handle;
}

/* The kernel forgets an action with SA_RESETHAND before it calls the handler: it could not send the signal
 * again. */
static bool can_be_caught(unsigned long flags)
{
	if (flags & (unsigned)SA_RESETHAND)
		signals_refuse();
	return !atomic_load(&refused);
}

static void note(int number, handler_function *handler, unsigned long flags)
{
	atomic_store(&caught[number].wants_info, (flags & SA_SIGINFO) != 0);
	atomic_store(&caught[number].handler, handler);
}

static void catch_one(int number)
{
	struct kernel_action action;

	if (sys_raw(SYS_rt_sigaction, number, 0, (long)&action, sizeof action.mask, 0, 0) < 0 ||
	    !is_function(action.handler) || !can_be_caught(action.flags))
		return;
	note(number, action.handler, action.flags);
	action.handler = handle;
	action.flags |= SA_SIGINFO;
	if (sys_raw(SYS_rt_sigaction, number, (long)&action, 0, sizeof action.mask, 0, 0) < 0)
		signals_refuse();
}

void signals_catch(void)
{
	/* (the sanitizers have handlers of their own) */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	signals_refuse();
#endif
	if (atomic_load(&catching) || atomic_exchange(&catching, true))
		return;
	for (int number = 1; number <= SIGNALS && !atomic_load(&refused); number++)
		if (is_caught(number))
			catch_one(number);
	atomic_store(&signals_caught, true);
	if (atomic_load(&refused))
		atomic_store(&signals_caught, false);
}

void signals_refuse(void)
{
	atomic_store(&refused, true);
	atomic_store(&signals_caught, false);
}

bool signals_catching(void) { return atomic_load(&catching); }

void signals_recheck(int number)
{
	if (signals_catching() && is_caught(number) && !atomic_load(&refused))
		catch_one(number);
}

int signals_action(int number, const struct sigaction *act, struct sigaction *old, bool here,
                   int (*next)(int number, const struct sigaction *act, struct sigaction *old))
{
	handler_function *handler;
	struct sigaction mine;
	bool wants_info;
	int r;

	if (!is_caught(number))
		return next(number, act, old);
	handler = atomic_load(&caught[number].handler);
	wants_info = atomic_load(&caught[number].wants_info);
	if (here && act && is_function(act->sa_sigaction) && can_be_caught((unsigned)act->sa_flags)) {
		/* (the old handler's signal may call the new handler a moment too early) */
		note(number, act->sa_sigaction, (unsigned)act->sa_flags);
		mine = *act;
		mine.sa_sigaction = handle;
		mine.sa_flags |= SA_SIGINFO;
		act = &mine;
	}
	r = next(number, act, old);
	if (r == 0 && old && old->sa_sigaction == handle) {
		old->sa_sigaction = handler;
		if (!wants_info)
			old->sa_flags &= ~SA_SIGINFO;
	}
	return r;
}

void (*signals_handler(int number, void (*handler)(int)))(int)
{
	if ((uintptr_t)handler != (uintptr_t)handle)
		return handler;
	return (void (*)(int))(uintptr_t)atomic_load(&caught[number].handler);
}
