// SPDX-License-Identifier: Apache-2.0
/* journal_policy: see sync/journal_policy.h. */
#include "sync/journal_policy.h"

#include "base/sys.h"

enum {
	TURN = 32, /* syncs of the shortest turn */
	DOUBLINGS_MOST = 7,
	TRIAL = 10,
	UNTIMED = 2, /* of a turn or trial */
};

static uint32_t load(const _Atomic uint32_t *p) { return atomic_load_explicit(p, memory_order_relaxed); }

static void store(_Atomic uint32_t *p, uint32_t value)
{
	atomic_store_explicit(p, value, memory_order_relaxed);
}

static void time_sync(_Atomic uint64_t *mean, uint64_t ns)
{
	uint64_t now = atomic_load_explicit(mean, memory_order_relaxed);

	atomic_store_explicit(mean, now ? staging_policy_average(now, ns) : ns, memory_order_relaxed);
}

static void use(struct file *f, bool device)
{
	atomic_store_explicit(&f->turn.device, device, memory_order_relaxed);
	/* (a file that is not staged has nothing for the journal) */
	if (!device)
		staging_policy_wanted(f);
}

/* The turn, or the trial, is over. */
static void turn_over(struct file *f)
{
	bool device = atomic_load_explicit(&f->turn.device, memory_order_relaxed);
	uint32_t doublings = load(&f->turn.doublings);

	store(&f->turn.syncs, 0);
	if (!atomic_exchange_explicit(&f->turn.trial, true, memory_order_relaxed)) {
		atomic_store_explicit(&f->turn.mean_ns[!device], 0, memory_order_relaxed);
		use(f, !device);
		return;
	}
	atomic_store_explicit(&f->turn.trial, false, memory_order_relaxed);
	if (atomic_load(&f->turn.mean_ns[device]) < atomic_load(&f->turn.mean_ns[!device])) {
		store(&f->turn.doublings, 0);
		return;
	}
	store(&f->turn.doublings, doublings < DOUBLINGS_MOST ? doublings + 1 : doublings);
	use(f, !device);
}

void journal_policy_synced(struct file *f, bool device, bool shared)
{
	bool trial = atomic_load_explicit(&f->turn.trial, memory_order_relaxed);
	uint64_t now = staging_policy_clock(f), before;
	uint32_t syncs;

	if (!now)
		return;
	before = atomic_exchange_explicit(&f->turn.last_ns, now, memory_order_relaxed);
	/* (the device answers, too, where the journal cannot) */
	if (device == journal_policy_uses(f) || (shared && !trial))
		return;
	syncs = atomic_fetch_add_explicit(&f->turn.syncs, 1, memory_order_relaxed) + 1;
	if (syncs > UNTIMED && now > before)
		time_sync(&f->turn.mean_ns[device], now - before);
	if (syncs >= (trial ? (uint32_t)TRIAL : (uint32_t)TURN << load(&f->turn.doublings)))
		turn_over(f);
}
