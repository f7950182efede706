// SPDX-License-Identifier: Apache-2.0
/*
 * kill: marked steps for the exhaustive kill-point tests.  In a debug build the process kills itself with
 * SIGKILL at the N-th marked step, N from FASTWRITE_KILL_STEP, or the first child that it forks at its own N-th from
 * FASTWRITE_KILL_CHILD_STEP; in a release build the marks are nothing.
 */
#ifndef FASTWRITE_KILL_H
#define FASTWRITE_KILL_H

#ifdef FASTWRITE_DEBUG
void kill_step(void);
/* 0 disarms.  The number of steps passed since the last kill_arm is kept for kill_steps_seen. */
void kill_arm(unsigned long step);
unsigned long kill_steps_seen(void);
/* The same in the child that is forked next; 0 disarms. */
void kill_arm_children(unsigned long step);
/* In the child, after the fork. */
void kill_forked(void);
#else
static inline void kill_step(void) {}
static inline void kill_arm(unsigned long step) { (void)step; }
static inline unsigned long kill_steps_seen(void) { return 0; }
static inline void kill_arm_children(unsigned long step) { (void)step; }
static inline void kill_forked(void) {}
#endif

#endif
