// SPDX-License-Identifier: Apache-2.0
/*
 * fork_guard: a page that the kernel wipes in every child that has its own copy of our memory, however it was made.
 * A child that no fork handler prepared (a raw clone) would otherwise take the shared arena for its own.
 */
#ifndef FASTWRITE_ALIVE_H
#define FASTWRITE_ALIVE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern _Atomic uint32_t *_Atomic fork_guard_page;

/* 1 in the process that called fork_guard_set, -1 in a descendant with memory of its own, 0 before. */
static inline int fork_guard_state(void)
{
	_Atomic uint32_t *page = atomic_load_explicit(&fork_guard_page, memory_order_acquire);

	return page ? (atomic_load_explicit(page, memory_order_relaxed) ? 1 : -1) : 0;
}

/*
 * True in a child of vfork (or of a clone that works alike) until it execs or ends: it runs in our memory, on the
 * storage of the thread that waits for it, with descriptors of its own.  What it does must not touch what is
 * known about ours.
 */
extern __thread bool fork_guard_vforked;

/* This process manages files from now on; 0 or -errno, and without it nothing may be managed. */
int fork_guard_set(void);
/* This process never manages anything again: its memory and descriptors are shared in ways that the library
 * cannot follow.  Everything must have been settled. */
void fork_guard_stop(void);

/* True when this process called fork_guard_set; a few loads and a branch. */
static inline bool fork_guard_here(void) { return fork_guard_state() > 0 && !fork_guard_vforked; }
/* True when only an ancestor did, or the process that shares its memory with us. */
static inline bool fork_guard_elsewhere(void) { return fork_guard_vforked || fork_guard_state() < 0; }

#endif
