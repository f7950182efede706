// SPDX-License-Identifier: Apache-2.0
/*
 * signal: the functions that set a signal's handler.  Once the process has files of a rule with
 * sync = ordered, the kernel calls a handler of the library in place of each, see base/signals.h.
 */
#include "hooks/hook.h"

#include "base/signals.h"

#include <signal.h>

/* (the thread sanitizer's own functions of these names begin before this library can) */
#ifndef __SANITIZE_THREAD__

typedef void handler_function(int number);

/* The handler was perhaps set too late to be found by signals_catch of another thread. */
static void recheck(int number)
{
	if (signals_catching() && !fd_foreign_process())
		signals_recheck(number);
}

/* Signals that interrupt system calls, as siginterrupt has set them. */
static _Atomic uint64_t interrupts;

EXPORT int sigaction(int number, const struct sigaction *act, struct sigaction *old)
{
	if (!signals_catching()) {
		int r = real.sigaction(number, act, old);

		recheck(number);
		return r;
	}
	return signals_action(number, act, old, !fd_foreign_process(), real.sigaction);
}

EXPORT handler_function *signal(int number, handler_function *handler)
{
	struct sigaction act = {.sa_handler = handler}, old;

	if (!signals_catching() || handler == SIG_DFL || handler == SIG_IGN || handler == SIG_ERR ||
	    number < 1 || number > 64) {
		handler = real.signal(number, handler);
		recheck(number);
		return signals_handler(number, handler);
	}
	sigemptyset(&act.sa_mask);
	sigaddset(&act.sa_mask, number);
	if (!(atomic_load(&interrupts) >> (number - 1) & 1))
		act.sa_flags = SA_RESTART;
	return sigaction(number, &act, &old) < 0 ? SIG_ERR : old.sa_handler;
}

EXPORT int siginterrupt(int number, int flag)
{
	int r = real.siginterrupt(number, flag);

	if (r == 0 && number >= 1 && number <= 64) {
		uint64_t bit = 1ull << (number - 1);

		if (flag)
			atomic_fetch_or(&interrupts, bit);
		else
			atomic_fetch_and(&interrupts, ~bit);
	}
	return r;
}

/* Sets a handler that is not caught: these functions are rare, and each has rules of its own. */
static handler_function *set_uncaught(handler_function *(*next)(int, handler_function *), int number,
                                      handler_function *handler)
{
	if (!next) {
		errno = ENOSYS;
		return SIG_ERR;
	}
	if (handler != SIG_DFL && handler != SIG_IGN)
		signals_refuse();
	return signals_handler(number, next(number, handler));
}

EXPORT handler_function *sysv_signal(int number, handler_function *handler)
{
	return set_uncaught(real.sysv_signal, number, handler);
}

EXPORT handler_function *__sysv_signal(int number, handler_function *handler);
EXPORT handler_function *__sysv_signal(int number, handler_function *handler)
{
	return set_uncaught(real.__sysv_signal, number, handler);
}

EXPORT handler_function *sigset(int number, handler_function *handler)
{
	return set_uncaught(real.sigset, number, handler);
}

ALIAS_OF(bsd_signal, signal);
ALIAS_OF(ssignal, signal);
ALIAS_OF(__sigaction, sigaction);

#else
typedef int signal_unused;
#endif
