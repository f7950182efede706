// SPDX-License-Identifier: Apache-2.0
/*
 * flush: writes staged blocks to the file.
 *
 * One flusher per file at a time; it holds the busy token.  Blocks go out in the order of seq.  A block is
 * freed only after its bytes are in the kernel and entry.done says so.  All functions: file lock held,
 * signals blocked.
 */
#ifndef FASTWRITE_FLUSH_FLUSH_H
#define FASTWRITE_FLUSH_FLUSH_H

#include "flush/blocks.h"
#include "flush/fds.h"

/*
 * Flushes a run of blocks from the head of the file.  Blocks whose bytes are contiguous in the file go out as
 * one write of at most FLUSH_RUN_BYTES.  The current block is flushed only after it was sealed.  `keep_lock`:
 * never drop the file lock; otherwise it is dropped during the write.  The caller has seen f->flush.busy ==
 * 0.  0, or -errno, also stored in f->flush.error; only blocks that are in the file have been freed.
 */
int flush_run(struct file *f, bool keep_lock);

/* Drains the file: flushes until nothing is staged, including bytes staged during the call.  May drop and
 * retake the lock while another flusher finishes; never does so when f->nested. */
int flush_drain(struct file *f);

/* True if enough is staged for a background flush, and no flusher is at work. */
bool flush_worth(const struct file *f);

/* Drains the file because the program looks at it (read, seek, stat); see staging/staging_policy.h. */
int flush_drain_for_look(struct file *f);

/* Drains the file, then gives the position of every description back to the kernel. */
int flush_drain_and_reposition(struct file *f);

/* Before a descriptor of the program is closed: waits until no flusher uses one.  Drops and retakes the lock,
 * except in a signal handler. */
void flush_leave_program_fd(struct file *f);

enum { FLUSH_RUN_BYTES = 2 << 20, FLUSH_DIRECT_MIN = 64 << 10, FLUSH_IOV_MAX = 64 };

#endif
