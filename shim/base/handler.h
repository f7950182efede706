// SPDX-License-Identifier: Apache-2.0
/*
 * handler: whether the caller runs in a signal handler.
 *
 * The library makes its threads when it needs them, and the C library allocates memory for a new thread.  A handler may
 * have interrupted malloc: then its lock is held, or its lists are half changed.  So no thread is made in a handler.
 */
#ifndef FASTWRITE_HANDLER_H
#define FASTWRITE_HANDLER_H

#include <stdbool.h>

/* Looks for the frame that the kernel puts on the stack below a handler; takes microseconds.  True in doubt; what an
 * earlier handler left behind in memory that nobody has written since may look like one. */
bool handler_runs(void);

#endif
