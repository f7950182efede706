// SPDX-License-Identifier: Apache-2.0
/*
 * vfork: between hooks/vfork_entry.S, which is vfork, and the core.
 *
 * vfork is not replaced by fork, which copies the page tables.  A Python process of 500 MB that starts 200
 * programs by `subprocess` took 1.0 to 1.7 ms for each with vfork, and 64 to 125 ms with fork
 * (tests/test_exec.py counts it).
 *
 * vfork returns twice on one stack: the child returns first and uses the frames that its parent returns into
 * later.  Only registers and what lies outside the stack survive, so the return address waits in a slot of
 * the thread.
 */
#ifndef FASTWRITE_HOOKS_VFORK_H
#define FASTWRITE_HOOKS_VFORK_H

/* offsets in struct vfork_slot */
#define SLOT_RETURN 0 /* where the caller's vfork returns to */
#define SLOT_SAVED 8  /* the caller's value of the register that names the slot meanwhile */
#define SLOT_NEXT 16  /* the vfork behind this one */
#define SLOT_RESULT 24

#endif
