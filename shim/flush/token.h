// SPDX-License-Identifier: Apache-2.0
/*
 * token: the one thread that flushes a file.  It holds the token while it is in the kernel without the file's
 * lock (file.flush).
 */
#ifndef FASTWRITE_FLUSH_TOKEN_H
#define FASTWRITE_FLUSH_TOKEN_H

#include "files/file.h"

/* File lock held. */
void flush_token_take(struct file *f);
void flush_token_give(struct file *f);

/* File lock held: waits until no flusher works on f; drops and retakes the lock. */
void flush_wait_idle(struct file *f);

#endif
