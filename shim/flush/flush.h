// SPDX-License-Identifier: Apache-2.0
/*
 * flush: staged blocks -> file.
 *
 * One flusher per file at a time, by the busy token; blocks go out in seq order; a block is freed only after
 * its bytes are in the kernel and slot.done says so.  All functions: file lock held, signals blocked.
 */
#ifndef FASTWRITE_FLUSH_H
#define FASTWRITE_FLUSH_H

#include "flush/blocks.h"
#include "flush/fds.h"

/*
 * Flushes a run of blocks from the head of the file: neighbours that form one stretch of the file go out as
 * one write, of at most FLUSH_RUN_BYTES.  The current block is flushed only after it was sealed.
 * `keep_lock`: hold the file lock all the time; otherwise it is dropped around the device's work.
 * The caller has seen f->busy == 0.  0, or -errno (nothing freed beyond what is in the file; also latched).
 */
int flush_run(struct file *f, bool keep_lock);

/* Flushes everything that is staged at the time of the call and later, until nothing is staged.  May drop
 * and retake the lock while another flusher finishes; never does so when `nested`. */
int flush_settle(struct file *f, bool nested);

/* The same for a sync: zeros that stand ahead of the end of the file (prealloc_mode = zero) stay. */
int flush_settle_for_sync(struct file *f, bool nested);

/* In a thread of the engine: writes such zeros.  Drops and retakes the lock. */
void flush_zeros(struct file *f);

/* Enough blocks are sealed that a background flush pays, and nobody is at it. */
bool flush_worth(const struct file *f);

/* flush_settle because the program looks (read, seek, stat); see staging/staging_policy.h. */
int flush_show(struct file *f, bool nested);

/* flush_settle, then every description's offset is the kernel's business again. */
int flush_hand_over(struct file *f, bool nested);

/* Waits until no flusher works on f; drops and retakes the lock. */
void flush_wait_idle(struct file *f);

enum { FLUSH_RUN_BYTES = 2 << 20, FLUSH_DIRECT_MIN = 64 << 10, FLUSH_IOV_MAX = 64 };

#endif
