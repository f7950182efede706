// SPDX-License-Identifier: Apache-2.0
/* token: see flush/token.h. */
#include "flush/token.h"

#include "base/lock.h"
#include "base/signals.h"
#include "base/sys.h"

void flush_token_take(struct file *f)
{
	atomic_store(&f->flush.io_done, 0);
	atomic_store(&f->flush.process, family_me);
	atomic_fetch_add(&f->flush.generation, 1);
	atomic_store(&f->flush.busy, lock_self());
}

void flush_token_give(struct file *f)
{
	f->flush.program_fd = f->flush.sets_direct = false;
	atomic_store(&f->flush.busy, 0);
	atomic_fetch_add(&f->flush.events, 1);
	if (f->flush.idle_waiters > 0)
		sys_futex_wake((uint32_t *)&f->flush.events, 1 << 20);
}

void flush_wait_idle(struct file *f)
{
	struct timespec tick = {.tv_nsec = 100000000};

	if (!atomic_load(&f->flush.busy))
		return;
	signals_harden();
	f->flush.idle_waiters++;
	while (atomic_load(&f->flush.busy)) {
		uint32_t seen = atomic_load(&f->flush.events);

		if (!atomic_load(&f->flush.busy))
			break;
		lock_drop(&f->lock, LOCK_FILE);
		sys_futex_wait((uint32_t *)&f->flush.events, seen, &tick);
		file_lock_again(f);
		if (file_flusher_died(f))
			file_repair(f);
	}
	if (f->flush.idle_waiters > 0)
		f->flush.idle_waiters--;
}
