// SPDX-License-Identifier: Apache-2.0
/*
 * blocks: which of a file's staged blocks are already in the file.  These are freed, oldest first.
 *
 * All functions: file lock or flush token held.
 */
#ifndef FASTWRITE_FLUSH_BLOCKS_H
#define FASTWRITE_FLUSH_BLOCKS_H

#include "files/file.h"

/* The first block with bytes that are not in the kernel, or NULL. */
struct block_run *flush_first(const struct file *f);

/* Bytes are staged that are not in the kernel, in blocks or in the overlay. */
static inline bool flush_left(const struct file *f) { return file_is_paged(f) || flush_first(f); }

/* Blocks from first to last are in the file: records that in the file entry, with one store. */
void flush_retire(struct file *f, struct block_run *first, const struct block_run *last);
/* The flush token is held.  `bytes` more of the staged appends are in the kernel, from `first` (flush_first)
 * on.  Records that in the file entry; the caller may then free the blocks. */
void flush_note_done(struct file *f, struct block_run *first, uint64_t bytes);

/* Frees the blocks at the head of the file whose bytes are in the kernel. */
void flush_free_done(struct file *f);

#endif
