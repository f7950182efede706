// SPDX-License-Identifier: Apache-2.0
/* signals: see base/signals.h. */
#include "base/signals.h"

#include "base/process_pages.h"

#include <string.h>
#include <ucontext.h>

/* Between the standard and the real-time signals are those of the C library itself (the cancellation of a
 * thread, setuid in all threads).  Their handlers stay. */
enum { SIGNALS = 64, STANDARD = 31, REAL_TIME = 34 };

typedef void handler_function(int number, siginfo_t *info, void *context);

/* What the kernel knows as a signal's action. */
struct kernel_action {
	handler_function *handler;
	unsigned long flags;
	void (*restorer)(void);
	sys_sigset mask;
};

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
	case SIGBUS: return info->si_code > 0 && info->si_code != BUS_MCEERR_AO;
	case SIGTRAP:
		return info->si_code == TRAP_BRKPT || info->si_code == TRAP_TRACE ||
		       info->si_code == SI_KERNEL;
	case SIGSEGV:
	case SIGFPE:
	case SIGILL:
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
	/* (a sandbox may forbid the first: then its information is lost) */
	if (sys_raw(SYS_rt_tgsigqueueinfo, pid, tid, number, (long)info, 0, 0) < 0)
		sys_raw(SYS_tgkill, pid, tid, number, 0, 0, 0);
}

static void handle(int number, siginfo_t *info, void *context)
{
	static const struct kernel_action none;
	handler_function *handler = atomic_load(&caught[number].handler);

	if (signals_state == SIGNALS_FREE)
		handler(number, info, context);
	else if (is_fault(number, info))
		/* it comes again at once, and ends the process: as where signals are blocked */
		sys_raw(SYS_rt_sigaction, number, (long)&none, 0, sizeof none.mask, 0, 0);
	else
		postpone(number, info, context);
}

static bool is_programs(int number)
{
	return number >= 1 && number <= SIGNALS && (number <= STANDARD || number >= REAL_TIME);
}

/* A handler is noted and given to the kernel by one thread at a time. */
static PROCESS_DATA _Atomic bool changing;

static sys_sigset begin_change(void)
{
	sys_sigset before = signals_hold();

	while (atomic_exchange(&changing, true))
		sys_nap(1000);
	return before;
}

static void end_change(sys_sigset before)
{
	atomic_store(&changing, false);
	signals_release(before);
}

PROCESS_CODE void signals_fork_child(void) { atomic_store(&changing, false); }

static bool is_function(handler_function *handler)
{
	return (uintptr_t)handler != (uintptr_t)SIG_DFL && (uintptr_t)handler != (uintptr_t)SIG_IGN &&
	       handler != handle;
}

/*
 * False: the signal cannot be sent again as it was, and short sections end.  The kernel forgets an action
 * with SA_RESETHAND before it calls the handler.  Real-time signals have an order, and their queue may be
 * full.  SIGCONT discards pending stop signals, and a stop signal a pending SIGCONT.
 */
static bool can_be_caught(int number, unsigned long flags)
{
	if ((flags & (unsigned)SA_RESETHAND) || number > STANDARD || number == SIGCONT || number == SIGTSTP ||
	    number == SIGTTIN || number == SIGTTOU)
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
	    !is_function(action.handler) || !can_be_caught(number, action.flags))
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
		signals_recheck(number);
	atomic_store(&signals_caught, true);
	if (atomic_load(&refused))
		atomic_store(&signals_caught, false);
}

void signals_refuse(void)
{
	atomic_store(&refused, true);
	atomic_store(&signals_caught, false);
}

static void let_go(int number)
{
	struct kernel_action action;

	if (sys_raw(SYS_rt_sigaction, number, 0, (long)&action, sizeof action.mask, 0, 0) < 0 ||
	    action.handler != handle)
		return;
	action.handler = atomic_load(&caught[number].handler);
	if (!atomic_load(&caught[number].wants_info))
		action.flags &= ~(unsigned long)SA_SIGINFO;
	sys_raw(SYS_rt_sigaction, number, (long)&action, 0, sizeof action.mask, 0, 0);
}

void signals_let_go(void)
{
	sys_sigset before;

	if (!signals_catching())
		return;
	before = begin_change();
	signals_refuse();
	for (int number = 1; number <= SIGNALS; number++)
		if (is_programs(number))
			let_go(number);
	atomic_store(&catching, false);
	end_change(before);
}

bool signals_catching(void) { return atomic_load(&catching); }

void signals_recheck(int number)
{
	sys_sigset before;

	if (!signals_catching() || !is_programs(number) || atomic_load(&refused))
		return;
	before = begin_change();
	catch_one(number);
	end_change(before);
}

int signals_action(int number, const struct sigaction *act, struct sigaction *old, bool here,
                   int (*next)(int number, const struct sigaction *act, struct sigaction *old))
{
	struct sigaction mine, shown;
	handler_function *handler;
	sys_sigset before;
	bool wants_info;
	int r;

	if (!is_programs(number))
		return next(number, act, old);
	if (act)
		mine = *act; /* (a wild pointer is the program's fault, which its handler may expect) */
	before = begin_change();
	handler = atomic_load(&caught[number].handler);
	wants_info = atomic_load(&caught[number].wants_info);
	if (here && act && is_function(mine.sa_sigaction) && number != SIGKILL && number != SIGSTOP &&
	    can_be_caught(number, (unsigned)mine.sa_flags)) {
		/* (the old handler's signal may call the new handler a moment too early) */
		note(number, mine.sa_sigaction, (unsigned)mine.sa_flags);
		mine.sa_sigaction = handle;
		mine.sa_flags |= SA_SIGINFO;
	}
	r = next(number, act ? &mine : NULL, old ? &shown : NULL);
	end_change(before);
	if (r < 0 || !old)
		return r;
	if (shown.sa_sigaction == handle) {
		shown.sa_sigaction = handler;
		if (!wants_info)
			shown.sa_flags &= ~SA_SIGINFO;
	}
	*old = shown;
	return r;
}

void (*signals_handler(int number, void (*handler)(int)))(int)
{
	if ((uintptr_t)handler != (uintptr_t)handle)
		return handler;
	return (void (*)(int))(uintptr_t)atomic_load(&caught[number].handler);
}
