// SPDX-License-Identifier: Apache-2.0
/*
 * kill: marked steps for the exhaustive kill-point tests.
 *
 * In a debug build the process kills itself with SIGKILL at its N-th marked step, N from FASTWRITE_KILL_STEP.
 * With FASTWRITE_KILL_CHILD_STEP the first child that it forks does so, at that child's N-th step.  A release
 * build contains no marks.
 */
#ifndef FASTWRITE_BASE_KILL_H
#define FASTWRITE_BASE_KILL_H

#ifdef FASTWRITE_DEBUG
void kill_step(void);
/* 0 disarms.  kill_steps_seen returns the number of steps since the last kill_arm. */
void kill_arm(unsigned long step);
unsigned long kill_steps_seen(void);
/* Arms the next forked child; 0 disarms. */
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
