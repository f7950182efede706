// SPDX-License-Identifier: Apache-2.0
/*
 * gate: may bytes be staged, and files be attached?
 *
 * An attach first makes the file attached (file_become) and then looks at the gate.  Closing the gate first
 * changes the gate and then looks at the file.  So one of the two sees the other.
 *
 * Memory order.  Both sides store first and load another word then, which aarch64 may exchange: an atomic
 * read-modify-write is no barrier for a relaxed load behind it.  So whoever closes the gate has a fence
 * between the two, and an attach only seq_cst operations.  gate_stopped() is relaxed: attach_file has a fence
 * before it, all others hold the lock of a file that gate_stop's caller locks next.
 */
#ifndef FASTWRITE_FILES_GATE_H
#define FASTWRITE_FILES_GATE_H

#include "files/file.h"

struct gate {
	_Atomic uint32_t holds; /* nothing is staged, no file is attached */
	/* no file is attached; attached files stay so, and more may be staged for them */
	_Atomic uint32_t changes;
	/* execs under way, exit: no file is attached, and writes go to the kernel */
	_Atomic uint32_t stopped;
	/* Children of vfork that live.  Each may write through a description that it shares with us, and no
	 * lease shows that.  So no reserved space is cut off meanwhile. */
	_Atomic uint32_t children;
	/* enum bypass_reason: why nothing is staged while this process, or a child that it forks, lives */
	_Atomic uint32_t refusal;
	/* the same, found where no other file can be locked: attach_tend carries it out */
	_Atomic uint32_t soon;
	/* no other process of the family lives: attach_tend forgets the dead */
	_Atomic bool alone;
};
extern struct gate gate;

/* A file that is not attached after gate_hold stays so.  If it is attached, the caller takes its lock. */
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

/* Before the vfork, and when the files of its child that are bypassed are so. */
static inline void gate_child_begin(void)
{
	atomic_fetch_add(&gate.children, 1);
	atomic_thread_fence(memory_order_seq_cst);
}
static inline void gate_child_end(void) { atomic_fetch_sub(&gate.children, 1); }
static inline uint32_t gate_children(void) { return atomic_load(&gate.children); }

static inline void gate_stop(void)
{
	atomic_fetch_add(&gate.stopped, 1);
	atomic_thread_fence(memory_order_seq_cst);
}
/* True if no other thread has stopped it. */
static inline bool gate_resume(void) { return atomic_fetch_sub(&gate.stopped, 1) == 1; }
static inline bool gate_stopped(void)
{
	return atomic_load_explicit(&gate.stopped, memory_order_relaxed) > 0;
}

/* Closes the gate for good; the first reason stays. */
static inline void gate_refuse(enum bypass_reason why)
{
	uint32_t none = BYPASS_NONE;

	atomic_compare_exchange_strong(&gate.refusal, &none, why);
}
static inline enum bypass_reason gate_refusal(void) { return atomic_load(&gate.refusal); }

/* In the child of a fork: the parent's other threads hold nothing here.  (Their children may still share
 * descriptions with this process, too.) */
static inline void gate_fork_child(void) { gate.holds = gate.changes = 0; }

#endif
