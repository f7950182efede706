// SPDX-License-Identifier: Apache-2.0
/* merge: turns the extents of one block, in writing order, into disjoint pieces in file order.  The newest
 * bytes win. */
#ifndef FASTWRITE_FLUSH_MERGE_H
#define FASTWRITE_FLUSH_MERGE_H

#include "staging/arena.h"

/* n extents can make at most 2n - 1 pieces */
enum { MERGE_MAX = 2 * ARENA_EXTENTS_MAX };

/* Fills pieces[MERGE_MAX] and returns their number.  `get` returns extent i < count, the oldest first. */
uint32_t merge_extents(struct arena_extent (*get)(const void *ctx, uint32_t i), const void *ctx,
                       uint32_t count, struct arena_extent *pieces);

#endif
