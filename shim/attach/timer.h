// SPDX-License-Identifier: Apache-2.0
/*
 * timer: what the background threads (files/workers.h) do: they flush sealed blocks, and what is due by the
 * clock: what was staged `lag_ms` ago, relaxed syncs, leases and entries of the log that nobody needs any
 * more.
 */
#ifndef FASTWRITE_ATTACH_TIMER_H
#define FASTWRITE_ATTACH_TIMER_H

/* Before any file is managed. */
void timer_set(void);

#endif
