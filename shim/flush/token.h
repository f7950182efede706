// SPDX-License-Identifier: Apache-2.0
/*
 * token: the one thread that flushes a file.  It holds the token while it is in the kernel without the file's
 * lock (file.flush).
 *
 * The token is taken under the lock, and everything in file.flush is stored before `busy`.  What the flusher
 * changes without the lock (done, flushed, result) is stored before io_done, by seq_cst.  A handler that ends
 * the flush in its place loads io_done first.  All others take the lock that the flusher has dropped since.
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
