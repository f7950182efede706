// SPDX-License-Identifier: Apache-2.0
/* order: see staging/order.h. */
#include "staging/order.h"

#include "base/sys.h"

#include <errno.h>

static struct order orders[FILE_ARENAS];

struct order *order_of(const struct arena *a) { return &orders[file_arena_index(a)]; }

void order_changed(const struct arena *a)
{
	struct order *o = order_of(a);
	uint64_t none = 0, now;

	atomic_store(&o->changed, true);
	if (atomic_load(&o->since_ns) != 0)
		return;
	now = sys_now_ns();
	if (atomic_compare_exchange_strong(&o->since_ns, &none, now)) {
		none = 0;
		atomic_compare_exchange_strong(&a->header->live.order.oldest_ns, &none, now);
		/* (a name that came: its epoch was over before we said so) */
		if (atomic_load(&o->since_ns) == 0)
			atomic_compare_exchange_strong(&a->header->live.order.oldest_ns, &now, 0);
	}
}

void order_begin(const struct arena *a)
{
	struct order *o = order_of(a);

	/* before the number is raised: a change of the next epoch is noted again */
	atomic_store(&o->changed, false);
	atomic_store(&o->since_ns, 0);
}

void order_durable(const struct arena *a)
{
	struct order *o = order_of(a);
	uint64_t since;

	/* (a change that comes meanwhile finds the older time there, and leaves it) */
	do {
		since = atomic_load(&o->since_ns);
		atomic_store(&a->header->live.order.oldest_ns, since);
	} while (since != atomic_load(&o->since_ns));
}

int order_change(struct file *f)
{
	struct order *o = order_of(f->arena);
	uint64_t epoch;
	int r;

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
	order_changed(f->arena);
	return 0;
}
