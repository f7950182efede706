// SPDX-License-Identifier: Apache-2.0
/*
 * signals: sections of code that no signal handler of the program interrupts.
 *
 * signals_hold blocks all signals: two system calls for each section.  signals_hold_short makes none.  It
 * works only while the kernel calls `handle` (signals.c) in place of each of the program's handlers: in a
 * short section it sends the signal again, with its information, and blocks all signals until the section is
 * over.  So the program's handler runs after the section, as it does with signals_hold.  A fault in a
 * section (SIGSEGV and the like) ends the process, as it does there.
 *
 * signals_catch puts `handle` in place once a process has a use for short sections.  From then on the hooks
 * of sigaction and signal (hooks/signal.c) do so for each new handler, and show the program its own.
 * signals_refuse: there is a handler without `handle`.  Then all sections block signals.
 *
 * A section within a section costs nothing.  A section ends by a return, in its thread: no fork, exec or exit
 * of the program is in one (signals_block is for those).  A child that shares this memory would leave the
 * state behind.
 */
#ifndef FASTWRITE_BASE_SIGNALS_H
#define FASTWRITE_BASE_SIGNALS_H

#include "base/publish.h"
#include "base/sys.h"

#include <signal.h>
#include <stdbool.h>

/* What a section returns in place of the signals that were blocked before.  (The kernel never says that
 * SIGKILL is blocked.) */
#define SIGNALS_INNER (~(sys_sigset)0)
#define SIGNALS_SHORT (~(sys_sigset)1)

enum signals_state {
	SIGNALS_FREE,
	SIGNALS_POSTPONED, /* in a short section, no signal has come */
	SIGNALS_BLOCKED,   /* in a section */
};
extern __thread _Atomic uint32_t signals_state; /* of this thread */
extern __thread sys_sigset signals_before;      /* SIGNALS_BLOCKED in a short section: blocked before it */
extern _Atomic bool signals_caught;             /* short sections are possible */

/* In a section: from here on signals are really blocked, so that no system call returns EINTR. */
void signals_harden_slow(void);
static inline void signals_harden(void)
{
	if (signals_state == SIGNALS_POSTPONED)
		signals_harden_slow();
}

/* Blocks all signals until sys_restore_signals: around a fork, an exec or an exit, which no section may
 * contain.  It may itself lie in a section. */
static inline sys_sigset signals_block(void)
{
	/* (else a hardening in between would note the blocked signals as those from before the section) */
	signals_harden();
	return sys_block_signals();
}

static inline sys_sigset signals_hold(void)
{
	sys_sigset before;

	if (signals_state != SIGNALS_FREE) {
		signals_harden();
		return SIGNALS_INNER;
	}
	before = sys_block_signals();
	signals_state = SIGNALS_BLOCKED;
	return before;
}

/* For a section that makes no system call that a signal could interrupt, or hardens before it. */
static inline sys_sigset signals_hold_short(void)
{
	if (signals_state != SIGNALS_FREE)
		return SIGNALS_INNER;
	if (!atomic_load_explicit(&signals_caught, memory_order_relaxed))
		return signals_hold();
	atomic_store_explicit(&signals_state, SIGNALS_POSTPONED, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst);
	return SIGNALS_SHORT;
}

static inline void signals_release(sys_sigset before)
{
	if (before == SIGNALS_INNER)
		return;
	if (before == SIGNALS_SHORT) {
		if (publish_swap_32(&signals_state, SIGNALS_POSTPONED, SIGNALS_FREE))
			return;
		before = signals_before;
	}
	signals_state = SIGNALS_FREE;
	sys_restore_signals(before);
}

/* Puts `handle` in place of the program's handlers.  From then on short sections are possible, unless a
 * handler forbids it. */
void signals_catch(void);
void signals_refuse(void);
/* Gives the program's handlers back to the kernel; from now on the hooks of sigaction and signal only pass.
 */
void signals_let_go(void);
/* In the child of a fork. */
void signals_fork_child(void);
/* signals_catch was called, perhaps by another thread just now. */
bool signals_catching(void);
/* A handler was set while signals_catching was false: it may have come too late to be found. */
void signals_recheck(int number);

/* sigaction of the program, by `next`.  `here`: false in a child that has this process's memory. */
int signals_action(int number, const struct sigaction *act, struct sigaction *old, bool here,
                   int (*next)(int number, const struct sigaction *act, struct sigaction *old));
/* The program's handler in place of the kernel's. */
void (*signals_handler(int number, void (*handler)(int)))(int);

#endif
