// SPDX-License-Identifier: Apache-2.0
/* order: see staging/order.h. */
#include "staging/order.h"

#include <errno.h>

static struct order orders[FILE_ARENAS];

struct order *order_of(const struct arena *a) { return &orders[file_arena_index(a)]; }

int order_change(struct file *f)
{
	struct order *o;
	uint64_t epoch;
	int r;

	if (!file_is_ordered(f))
		return 0;
	o = order_of(f->arena);
	if (f->order.epoch == atomic_load_explicit(&o->epoch, memory_order_acquire))
		return 0;
	/* a leader that comes after this load sees that this process has the file */
	atomic_thread_fence(memory_order_seq_cst);
	epoch = atomic_load(&o->epoch);
	/* (of an epoch that could not be written the cut has been taken) */
	r = overlay_cut(&f->overlay, false);
	if (r < 0 && r != -EBUSY)
		return r;
	f->order.epoch = epoch;
	atomic_store(&o->changed, true);
	return 0;
}
