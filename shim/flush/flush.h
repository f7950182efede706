// SPDX-License-Identifier: Apache-2.0
/*
 * flush: staged blocks -> file.
 *
 * One flusher per file at a time, by the busy token; blocks go out in seq order; a block is freed only after
 * its bytes are in the kernel and slot.done says so.  All functions: file lock held, signals blocked.
 */
#ifndef FASTWRITE_FLUSH_H
#define FASTWRITE_FLUSH_H

#include "files/file.h"

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

/* fd is open on f: 1, 0, or -errno when the file system does not say. */
int flush_is_the_file(const struct file *f, int fd);

/* Waits until no flusher works on f; drops and retakes the lock. */
void flush_wait_idle(struct file *f);

/* A descriptor of the program on f that can be written to, or -1. */
int flush_program_fd(const struct file *f);

/* This process can write what is staged: it has a descriptor, or could open one. */
bool flush_possible(struct file *f);

/* The first block that has bytes that are not in the kernel, or NULL. */
struct block_run *flush_first(const struct file *f);

/* By the holder of the token: of what is appended, from `first` (flush_first) on, `bytes` more are in the kernel.  The
 * slot says so first. */
void flush_note_done(struct file *f, struct block_run *first, uint64_t bytes);

/* File lock or token held: the description's flags, or the lease on it, are a flush's from now on, and whoever finds us
 * dead knows it. */
void flush_lend(struct ofd *o);
/* For a moment, by the holder of the file lock: proof that nobody else has the file open; false: there is none. */
bool flush_take_lease(const struct file *f, int fd);
void flush_give_lease(const struct file *f, int fd);
/* That is over; `flags` are those that the kernel has now, the program's if all went well. */
void flush_give_back(struct ofd *o, int flags);

/* Frees the blocks at the head of the file whose bytes are in the kernel. */
void flush_free_done(struct file *f);

/* Opens it, through a descriptor of the program.  For a thread of the program: descriptors that come and go in others
 * would change the numbers that the program gets. */
void flush_open_own(struct file *f, int fd);
/* Closes our own description on the file. */
void flush_close_own(struct file *f);

enum { FLUSH_RUN_BYTES = 2 << 20, FLUSH_DIRECT_MIN = 64 << 10, FLUSH_IOV_MAX = 64 };

#endif
