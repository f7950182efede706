// SPDX-License-Identifier: Apache-2.0
/*
 * gate: may bytes be staged, and files be attached?
 *
 * Whoever attaches a file says so first (file_become) and looks here then; whoever closes the gate counts
 * first and looks at the file then.  So one of them sees the other.
 */
#ifndef FASTWRITE_FILES_GATE_H
#define FASTWRITE_FILES_GATE_H

#include "files/file.h"

struct gate {
	_Atomic uint32_t holds;   /* nothing is staged, nothing becomes attached */
	_Atomic uint32_t changes; /* nothing becomes attached; what is staged stays so, and more may be staged
	                             for it */
	/* execs under way, exit: nothing becomes attached, and what is written goes to the kernel */
	_Atomic uint32_t stopped;
	/* enum bypass_reason: why nothing is staged any more where this process, and those that it forks,
	 * live */
	_Atomic uint32_t refusal;
	_Atomic uint32_t
		soon; /* the same, seen where no other file can be locked: attach/stop.h refuses for it */
};
extern struct gate gate;

/* Who holds first and then sees a file that is not attached knows that it stays so; of one that is, he takes
 * the lock. */
static inline void gate_hold(void)
{
	atomic_fetch_add(&gate.holds, 1);
	atomic_thread_fence(memory_order_seq_cst);
}
static inline void gate_unhold(void) { atomic_fetch_sub(&gate.holds, 1); }
static inline bool gate_held(void) { return atomic_load(&gate.holds) > 0; }

static inline void gate_change_begin(void)
{
	atomic_fetch_add(&gate.changes, 1);
	atomic_thread_fence(memory_order_seq_cst);
}
static inline void gate_change_end(void) { atomic_fetch_sub(&gate.changes, 1); }
static inline bool gate_changing(void) { return atomic_load(&gate.changes) > 0; }

static inline void gate_stop(void) { atomic_fetch_add(&gate.stopped, 1); }
/* True when nobody else has stopped it. */
static inline bool gate_resume(void) { return atomic_fetch_sub(&gate.stopped, 1) == 1; }
static inline bool gate_stopped(void)
{
	return atomic_load_explicit(&gate.stopped, memory_order_relaxed) > 0;
}

/* For good; the first reason stays. */
static inline void gate_refuse(enum bypass_reason why)
{
	uint32_t none = BYPASS_NONE;

	atomic_compare_exchange_strong(&gate.refusal, &none, why);
}
static inline enum bypass_reason gate_refusal(void) { return atomic_load(&gate.refusal); }

/* In the child of a fork: other threads of the parent hold nothing here. */
static inline void gate_fork_child(void) { gate.holds = gate.changes = 0; }

#endif
