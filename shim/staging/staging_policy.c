// SPDX-License-Identifier: Apache-2.0
/* staging_policy: see staging/staging_policy.h. */
#include "staging/staging_policy.h"

#include "config/config.h"

enum {
	WRITE_NS = 1000, /* a small write into the page cache, where it is not measured */
	/* to attach a file and to detach it, until it was measured: on ext4, two processors */
	COST_NS = 250000,
	COST_LEAST_NS = 50000,
	COST_MOST_NS = 1000000,
	PAID_BY_LEAST = 4,   /* calls */
	DOUBLINGS_LATER = 4, /* at least, without measurement */
	DOUBLINGS_MOST = 20,
	RESOLVE_AT = 8,
};

uint32_t staging_policy_resolve_at = 2;
bool staging_policy_sync_resolves = true;

/* What it costs to attach a file and to detach it: a moving average. */
static _Atomic uint64_t cost_ns = COST_NS;

static bool adapts(const struct file *f) { return f->rule->set.adapt == ADAPT_ON; }

static uint64_t load(const _Atomic uint64_t *p) { return atomic_load_explicit(p, memory_order_relaxed); }

bool staging_policy_attaches(const struct file *f)
{
	if (config_orders(&f->rule->set))
		return f->balance.doublings == 0 ||
		       load(&f->balance.rent_ns) >= load(&cost_ns) << f->balance.doublings;
	if (staging_policy_stays_passive(f))
		return false;
	return load(&f->balance.rent_ns) >= (adapts(f) ? load(&cost_ns) : WRITE_NS) << f->balance.doublings;
}

uint64_t staging_policy_average(uint64_t mean, uint64_t ns)
{
	return mean - mean / 8 + (ns < 4 * mean ? ns : 4 * mean) / 8;
}

static uint64_t write_ns(const struct file *f)
{
	uint64_t ns = load(&f->balance.write_ns);

	return ns ? ns : WRITE_NS;
}

static uint64_t since(uint64_t begin) { return begin ? sys_now_ns() - begin : WRITE_NS; }

/* One slow call proves little: another program had the processor, or the device. */
static void add_rent(struct file *f, uint64_t ns)
{
	uint64_t most = load(&cost_ns) / PAID_BY_LEAST;

	atomic_fetch_add_explicit(&f->balance.rent_ns, ns < most ? ns : most, memory_order_relaxed);
}

void staging_policy_written(struct file *f, uint64_t begin)
{
	uint64_t ns = since(begin);

	add_rent(f, ns);
	f->balance.write_ns = staging_policy_average(write_ns(f), ns);
}

void staging_policy_written_before(struct file *f, uint32_t count)
{
	add_rent(f, (uint64_t)count * WRITE_NS);
}

void staging_policy_synced(struct file *f, uint64_t begin)
{
	if (begin)
		add_rent(f, since(begin));
}

void staging_policy_wanted(struct file *f)
{
	atomic_store_explicit(&f->balance.rent_ns, (uint64_t)COST_MOST_NS << DOUBLINGS_MOST,
	                      memory_order_relaxed);
}

void staging_policy_pays(struct file *f) { f->balance.credit_ns = (int64_t)load(&cost_ns); }

void staging_policy_attached(struct file *f, uint64_t begin)
{
	uint64_t cost = load(&cost_ns);

	staging_policy_pays(f);
	if (!begin)
		return;
	cost = staging_policy_average(cost, 2 * since(begin)); /* to detach it costs about as much */
	atomic_store(&cost_ns, cost < COST_LEAST_NS  ? COST_LEAST_NS
	                       : cost > COST_MOST_NS ? COST_MOST_NS
	                                             : cost);
}

static void charge(struct file *f, uint64_t ns, uint64_t most)
{
	if (f->mode == FILE_ATTACHED)
		f->balance.credit_ns -= (int64_t)(ns < most ? ns : most);
}

void staging_policy_cost(struct file *f, uint64_t begin, uint64_t most)
{
	if (begin)
		charge(f, since(begin), most);
}

void staging_policy_drained(struct file *f, uint64_t begin, uint64_t most)
{
	uint64_t ns = since(begin);

	if (!begin)
		return;
	/* where the kernel's writes were measured while the processor was busy, staging would seem to pay for
	 * ever */
	if (ns < write_ns(f))
		f->balance.write_ns = staging_policy_average(write_ns(f), ns);
	charge(f, ns, most);
}

void staging_policy_drained_direct(struct file *f, uint64_t begin)
{
	uint64_t ns = since(begin), device = write_ns(f);

	if (begin)
		charge(f, ns < device ? ns + device : ns, STAGING_COST_MOST);
}

static int64_t credit(const struct file *f)
{
	return f->balance.credit_ns + (int64_t)(f->writes * write_ns(f));
}

void staging_policy_saved(struct file *f)
{
	int64_t now = credit(f), most = (int64_t)load(&cost_ns);

	f->balance.credit_ns = now < most ? now : most;
}

/* (an overlay saves more than writes: reads, syncs and closes drain nothing) */
bool staging_policy_gives_back(const struct file *f)
{
	return adapts(f) && !file_is_ordered(f) && (credit(f) < 0 || staging_policy_stays_passive(f));
}

void staging_policy_opened_again(struct file *f)
{
	if (file_is_ordered(f))
		atomic_store_explicit(&f->balance.rent_ns, load(&cost_ns), memory_order_relaxed);
}

void staging_policy_gave_back(struct file *f)
{
	if (f->balance.doublings < DOUBLINGS_MOST && !staging_policy_stays_passive(f))
		f->balance.doublings++;
}

void staging_policy_later(struct file *f)
{
	staging_policy_gave_back(f);
	if (!adapts(f) && f->balance.doublings < DOUBLINGS_LATER)
		f->balance.doublings = DOUBLINGS_LATER;
}

void staging_policy_configure(void)
{
	staging_policy_resolve_at = RESOLVE_AT;
	staging_policy_sync_resolves = false;
	for (uint32_t i = 0; i < live_config->rule_count; i++) {
		const struct settings *set = &live_config->rules[i].set;
		uint32_t at = config_orders(set) ? 1 : set->adapt != ADAPT_ON ? 2 : RESOLVE_AT;

		if (at < staging_policy_resolve_at)
			staging_policy_resolve_at = at;
		if (set->adapt != ADAPT_ON || (set->sync != SYNC_FDATASYNC && set->sync != SYNC_FSYNC))
			staging_policy_sync_resolves = true;
	}
}
