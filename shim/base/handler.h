// SPDX-License-Identifier: Apache-2.0
/*
 * handler: does the caller run in a signal handler?
 *
 * The library starts its threads on demand, and the C library allocates memory for a new thread.  A signal
 * handler may have interrupted malloc while malloc's lock is held or its lists are half changed.  So the
 * library starts no thread in a handler.
 */
#ifndef FASTWRITE_BASE_HANDLER_H
#define FASTWRITE_BASE_HANDLER_H

#include <stdbool.h>

/* Searches the stack for the frame that the kernel puts there before it calls a handler; takes microseconds.
 * True in doubt.  May also be true when an earlier handler's frame is still on the stack and was not
 * overwritten. */
bool handler_runs(void);

#endif
