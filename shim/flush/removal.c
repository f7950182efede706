// SPDX-License-Identifier: Apache-2.0
/* removal: see flush/removal.h. */
#include "flush/removal.h"

#include "base/kill.h"
#include "base/process_pages.h"
#include "files/fdtable.h"
#include "flush/fds.h"

bool removal_is_closed(const struct file *f)
{
	return flush_is_kept(f) && file_local(f)->refs == 1 && f->refs == 1;
}

static _Atomic uint32_t links; /* calls */

void removal_link_begin(void) { atomic_fetch_add(&links, 1); }
void removal_link_end(void)
{
	uint32_t n = atomic_load(&links);

	/* (a signal handler that interrupted the call may have forked) */
	while (n > 0 && !atomic_compare_exchange_weak(&links, &n, n - 1))
		;
}
PROCESS_CODE void removal_link_forget(void)
{
	/* (each fork would pay for the page) */
	if (atomic_load(&links) != 0)
		atomic_store(&links, 0);
}

/* (An open that has ended since the first look has told of its descriptor.) */
bool removal_is_unopened(const struct file *f) { return !fdtable_is_changing() && removal_is_closed(f); }

bool removal_is_possible(const struct order_log *l, const struct file *f)
{
	return f->refs != 0 && f->mode == FILE_ATTACHED && f->arena == atomic_load(&l->arena) && !f->head &&
	       removal_is_closed(f) && !f->shared && !f->needs_repair && !f->flush.error &&
	       atomic_load(&file_local(f)->draining) == 0 && atomic_load(&links) == 0;
}

bool removal_is_unlogged(const struct order_log *l, const struct file *f)
{
	return removal_is_possible(l, f) && file_is_paged(f) && f->order.fresh && f->ksize == 0 &&
	       !overlay_is_cut(&f->overlay);
}

void removal_begin(struct file *f, enum order_removal how)
{
	f->order.removal = (uint8_t)how;
	atomic_fetch_or(&order_entry_of(f)->flags, ENTRY_REMOVED);
	kill_step();
}

void removal_keep(struct file *f) { f->order.removal = REMOVAL_NONE; }

void removal_cancel(struct file *f)
{
	if (f->arena)
		atomic_fetch_and(&order_entry_of(f)->flags, ~(uint32_t)ENTRY_REMOVED);
	removal_keep(f);
}

bool removal_is_done(struct file *f)
{
	if (flush_is_nameless(f))
		return true;
	removal_cancel(f);
	return false;
}
