// SPDX-License-Identifier: Apache-2.0
/*
 * timer: the jobs of the worker threads (files/workers.h).  They flush sealed blocks and do what is due by
 * the clock: bytes staged `lag_ms` ago, relaxed syncs, leases and journal entries that are no longer needed.
 */
#ifndef FASTWRITE_ATTACH_TIMER_H
#define FASTWRITE_ATTACH_TIMER_H

/* Call before any file is managed. */
void timer_set(void);

#endif
