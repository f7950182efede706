// SPDX-License-Identifier: Apache-2.0
/* order_loose: see flush/order_loose.h. */
#include "flush/order_loose.h"

#include "base/process_pages.h"

#include <stdatomic.h>

/* Device numbers; 0: none. */
static _Atomic uint64_t loose[CONFIG_RULES_MAX];
static _Atomic bool always[CONFIG_RULES_MAX];
static _Atomic uint32_t calls; /* under way */

static size_t index_of(const struct rule *rule) { return (size_t)(rule - live_config->rules); }

void order_loose_note(const struct rule *rule, uint64_t dev)
{
	_Atomic uint64_t *at = &loose[index_of(rule)];
	uint64_t before = 0;

	if (!atomic_compare_exchange_strong(at, &before, dev ? dev : ORDER_ANYWHERE) && before != dev)
		atomic_store(at, ORDER_ANYWHERE);
}

void order_loose_always(const struct rule *rule) { atomic_store(&always[index_of(rule)], true); }

void order_loose_begin(void) { atomic_fetch_add(&calls, 1); }

void order_loose_end(void)
{
	uint32_t n = atomic_load(&calls);

	/* (0: a signal handler has forked in the middle of the call, and this is the child) */
	while (n > 0 && !atomic_compare_exchange_weak(&calls, &n, n - 1))
		;
}

bool order_loose_is_coming(void) { return atomic_load(&calls) > 0; }

PROCESS_CODE void order_loose_forget(void)
{
	if (atomic_load(&calls) != 0)
		atomic_store(&calls, 0);
}

bool order_loose_any(const struct rule *rule) { return atomic_load(&loose[index_of(rule)]) != 0; }

uint64_t order_loose_take(const struct rule *rule)
{
	uint64_t dev = atomic_exchange(&loose[index_of(rule)], 0);

	if (dev && order_loose_is_coming())
		order_loose_note(rule, dev);
	return atomic_load(&always[index_of(rule)]) ? ORDER_ANYWHERE : dev;
}
