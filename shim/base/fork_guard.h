// SPDX-License-Identifier: Apache-2.0
/*
 * fork_guard: a page that the kernel wipes in every child with its own copy of our memory (MADV_WIPEONFORK).
 *
 * It marks the child of a raw clone, which no fork handler prepared.  Without it that child would use the
 * parent's arena as its own.
 */
#ifndef FASTWRITE_BASE_FORK_GUARD_H
#define FASTWRITE_BASE_FORK_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t *_Atomic fork_guard_page;

/* 1 in the process that called fork_guard_set, -1 in a descendant with its own memory, 0 before the call. */
static inline int fork_guard_state(void)
{
	_Atomic uint32_t *page = atomic_load_explicit(&fork_guard_page, memory_order_acquire);

	return page ? (atomic_load_explicit(page, memory_order_relaxed) ? 1 : -1) : 0;
}

/*
 * True in a child of vfork, or of a clone with CLONE_VM | CLONE_VFORK, until it execs or ends.  The child
 * runs in our memory, with the thread-local storage of the waiting thread, and with its own descriptors.  It
 * must not change what the library knows about our descriptors.
 */
extern __thread bool fork_guard_vforked;

/* Marks this process as one that manages files.  0 or -errno; on failure it must manage none. */
int fork_guard_set(void);
/* This process manages no file from now on, because it shares its memory and descriptors in a way that the
 * library cannot follow.  Everything must be drained before. */
void fork_guard_stop(void);

/* True if this process called fork_guard_set; a few loads and a branch. */
static inline bool fork_guard_here(void) { return fork_guard_state() > 0 && !fork_guard_vforked; }
/* True if only an ancestor called it, or the process that shares its memory with us. */
static inline bool fork_guard_elsewhere(void) { return fork_guard_vforked || fork_guard_state() < 0; }

/* True if nothing here concerns a file that we manage: after fork_guard_stop, and in a descendant with its
 * own memory. */
static inline bool fork_guard_apart(void) { return !fork_guard_vforked && fork_guard_state() < 0; }

#endif
