// SPDX-License-Identifier: Apache-2.0
/*
 * blocks: which of a file's staged blocks are in the file; those are freed, oldest first.
 *
 * All functions: file lock held, or the flush token.
 */
#ifndef FASTWRITE_BLOCKS_H
#define FASTWRITE_BLOCKS_H

#include "files/file.h"

/* The first block that has bytes that are not in the kernel, or NULL. */
struct block_run *flush_first(const struct file *f);

/* Blocks from first to last are in the file: the slot says so, with one store. */
void flush_retire(struct file *f, struct block_run *first, const struct block_run *last);
/* By the holder of the token: of what is appended, from `first` (flush_first) on, `bytes` more are in the kernel.  The
 * slot says so first. */
void flush_note_done(struct file *f, struct block_run *first, uint64_t bytes);

/* Frees the blocks at the head of the file whose bytes are in the kernel. */
void flush_free_done(struct file *f);

#endif
