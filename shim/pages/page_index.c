// SPDX-License-Identifier: Apache-2.0
/* page_index: see pages/page_index.h. */
#include "pages/page_index.h"

#include <string.h>

#define ROOT_MAKE(height, node) ((uint64_t)(height) << 32 | (node))
#define ROOT_HEIGHT(root) ((unsigned)((root) >> 32))
#define ROOT_NODE(root) ((uint32_t)(root))

static struct page_node *node_at(const struct pool *nodes, uint32_t number)
{
	return (struct page_node *)(void *)nodes->things + (number - 1);
}

static uint32_t node_take(struct pool *nodes)
{
	uint32_t number = pool_take(nodes);

	if (number != 0)
		memset(node_at(nodes, number), 0, sizeof(struct page_node));
	return number;
}

/* True if a tree of this height has a slot for the page. */
static bool reaches(unsigned height, uint64_t page) { return height > 0 && page >> INDEX_BITS * height == 0; }

/* Makes the tree higher, an empty one as high as the page needs.  False: no node is free. */
static bool grow(struct page_index *x, struct pool *nodes, uint64_t root, uint64_t page)
{
	uint32_t number = node_take(nodes);
	unsigned height = ROOT_HEIGHT(root) + 1;

	if (number == 0)
		return false;
	node_at(nodes, number)->slots[0] = ROOT_NODE(root);
	while (root == 0 && !reaches(height, page))
		height++;
	if (!atomic_compare_exchange_strong(&x->root, &root, ROOT_MAKE(height, number)))
		pool_give(nodes, number); /* a signal handler was first */
	return true;
}

/* The node below a slot; made if there is none.  0: no node is free. */
static uint32_t child_make(struct pool *nodes, _Atomic uint32_t *slot)
{
	uint32_t child = atomic_load_explicit(slot, memory_order_acquire), number;

	if (child != 0)
		return child;
	number = node_take(nodes);
	if (number == 0 || atomic_compare_exchange_strong(slot, &child, number))
		return number;
	pool_give(nodes, number);
	return child;
}

_Atomic uint32_t *page_index_slot(struct page_index *x, struct pool *nodes, uint64_t page, bool make)
{
	uint64_t root = atomic_load_explicit(&x->root, memory_order_acquire);
	unsigned level;
	uint32_t number;

	while (!reaches(ROOT_HEIGHT(root), page)) {
		if (!make || page >> INDEX_BITS * INDEX_HEIGHT_MAX != 0 || !grow(x, nodes, root, page))
			return NULL;
		root = atomic_load_explicit(&x->root, memory_order_acquire);
	}
	number = ROOT_NODE(root);
	for (level = ROOT_HEIGHT(root) - 1; level > 0; level--) {
		_Atomic uint32_t *slot =
			&node_at(nodes, number)->slots[page >> INDEX_BITS * level & (INDEX_SLOTS - 1)];

		number = make ? child_make(nodes, slot) : atomic_load_explicit(slot, memory_order_acquire);
		if (number == 0)
			return NULL;
	}
	return &node_at(nodes, number)->slots[page & (INDEX_SLOTS - 1)];
}

/* The first slot of the node from `from` on that is not 0; INDEX_SLOTS if there is none. */
static unsigned used_slot(struct page_node *node, unsigned from)
{
	while (from < INDEX_SLOTS && atomic_load_explicit(&node->slots[from], memory_order_acquire) == 0)
		from++;
	return from;
}

_Atomic uint32_t *page_index_next(struct page_index *x, struct pool *nodes, uint64_t *page)
{
	uint64_t root = atomic_load_explicit(&x->root, memory_order_acquire);

	while (reaches(ROOT_HEIGHT(root), *page)) {
		uint32_t number = ROOT_NODE(root);
		unsigned level = ROOT_HEIGHT(root) - 1;

		for (;; level--) {
			struct page_node *node = node_at(nodes, number);
			uint64_t above = *page >> INDEX_BITS * level;
			unsigned at = used_slot(node, above & (INDEX_SLOTS - 1));

			if (at == INDEX_SLOTS) {
				/* the first page behind this node */
				*page = ((above >> INDEX_BITS) + 1) << INDEX_BITS * (level + 1);
				break;
			}
			if (at != (above & (INDEX_SLOTS - 1)))
				*page = (above >> INDEX_BITS << INDEX_BITS | at) << INDEX_BITS * level;
			if (level == 0)
				return &node->slots[at];
			number = atomic_load_explicit(&node->slots[at], memory_order_acquire);
		}
	}
	return NULL;
}

void page_index_clear(struct page_index *x, struct pool *nodes)
{
	uint64_t root = atomic_exchange(&x->root, 0);
	uint32_t path[INDEX_HEIGHT_MAX]; /* the nodes above the current one, from the root on */
	unsigned depth = 0;

	if (root == 0)
		return;
	path[0] = ROOT_NODE(root);
	for (;;) {
		struct page_node *node = node_at(nodes, path[depth]);
		unsigned at = depth + 1 < ROOT_HEIGHT(root) ? used_slot(node, 0) : INDEX_SLOTS;

		if (at < INDEX_SLOTS) {
			path[depth + 1] = atomic_exchange(&node->slots[at], 0);
			depth++;
			continue;
		}
		pool_give(nodes, path[depth]);
		if (depth == 0)
			return;
		depth--;
	}
}
