// SPDX-License-Identifier: Apache-2.0
/*
 * page_index: from a page of a file to its newest frame.  A radix tree for each file, with 64 slots a node.
 *
 * The caller holds the lock of the file.  A signal handler may interrupt it and use the same tree: every
 * change is one compare-and-swap.  Nodes are only given back all at once.
 */
#ifndef FASTWRITE_PAGES_PAGE_INDEX_H
#define FASTWRITE_PAGES_PAGE_INDEX_H

#include "pages/pool.h"

#include <stdbool.h>

enum { INDEX_BITS = 6, INDEX_SLOTS = 1 << INDEX_BITS, INDEX_HEIGHT_MAX = 9 };

struct page_node {
	_Atomic uint32_t slots[INDEX_SLOTS]; /* numbers of nodes or, in the lowest level, frames; 0 = none */
};

struct page_index {
	_Atomic uint64_t root; /* height << 32 | number of the node, 0 = empty */
};

/* The slot of a page.  NULL if there is none and `make` is not set, or if no node is free. */
_Atomic uint32_t *page_index_slot(struct page_index *x, struct pool *nodes, uint64_t page, bool make);

/* The first slot from *page on that is not 0; *page becomes its page.  NULL: there is none. */
_Atomic uint32_t *page_index_next(struct page_index *x, struct pool *nodes, uint64_t *page);

/* Gives all nodes back.  Not nested. */
void page_index_clear(struct page_index *x, struct pool *nodes);

#endif
