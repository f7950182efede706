// SPDX-License-Identifier: Apache-2.0
/* never_staged: see files/never_staged.h. */
#include "files/never_staged.h"

#include "base/sys.h"
#include "config/config.h"

#include <sys/mman.h>

enum { FILTER_LOG = 23, FILTER_WORDS = (1 << FILTER_LOG) / 64, HASHES = 2 };

struct filter {
	_Atomic uint64_t words[FILTER_WORDS];
};

/* Shared anonymous memory.  Untouched pages cost nothing. */
static struct marks {
	struct filter mapped, unknown;
	_Atomic bool shares_memory[CONFIG_RULES_MAX];
	_Atomic bool any;
} *_Atomic marks;            /* NULL: nothing is marked */
static _Atomic bool no_room; /* every file counts as marked */

static struct marks *place(void)
{
	struct marks *expected = NULL;
	struct marks *m = atomic_load(&marks);

	if (m)
		return m;
	m = sys.mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	             0);
	if (sys_is_error(m)) {
		atomic_store(&no_room, true);
		return NULL;
	}
	if (atomic_compare_exchange_strong(&marks, &expected, m))
		return m;
	sys.munmap(m, sizeof *m);
	return expected;
}

static _Atomic bool forked; /* other processes may have the marks, too */

void never_staged_share(void)
{
	place();
	if (!atomic_load(&forked))
		atomic_store(&forked, true);
}

void never_staged_unshare(void)
{
	struct marks *m = atomic_load(&marks);

	if (!m || !atomic_exchange(&forked, false))
		return;
	if (atomic_load(&m->any))
		sys_make_private(m, sizeof *m);
	else /* not read: reading alone would take memory */
		sys.mmap(m, sizeof *m, PROT_READ | PROT_WRITE,
		         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

/* The filter's word for this file and hash number `which`, and the bit in it. */
static uint32_t place_of(uint64_t dev, uint64_t ino, int which, uint64_t *bit)
{
	static const uint64_t factors[HASHES] = {0x9e3779b97f4a7c15ull, 0xc2b2ae3d27d4eb4full};
	uint64_t h = (ino ^ (dev << 40) ^ (dev >> 24)) * factors[which];

	h = (h ^ (h >> 32)) * factors[which] >> (64 - FILTER_LOG);
	*bit = 1ull << (h % 64);
	return (uint32_t)(h / 64);
}

static void add(struct filter *f, uint64_t dev, uint64_t ino)
{
	atomic_store(&atomic_load(&marks)->any, true);
	for (int i = 0; i < HASHES; i++) {
		uint64_t bit;
		uint32_t word = place_of(dev, ino, i, &bit);

		atomic_fetch_or(&f->words[word], bit);
	}
}

static bool has(const struct filter *f, uint64_t dev, uint64_t ino)
{
	for (int i = 0; i < HASHES; i++) {
		uint64_t bit;
		uint32_t word = place_of(dev, ino, i, &bit);

		if (!(atomic_load(&f->words[word]) & bit))
			return false;
	}
	return true;
}

void never_staged_never(uint64_t dev, uint64_t ino, enum bypass_reason why)
{
	struct marks *m = place();

	if (m)
		add(why == BYPASS_MMAP ? &m->mapped : &m->unknown, dev, ino);
}

enum bypass_reason never_staged_why_never(uint64_t dev, uint64_t ino)
{
	const struct marks *m = atomic_load(&marks);

	if (atomic_load(&no_room) || (m && has(&m->mapped, dev, ino)))
		return BYPASS_MMAP;
	return m && has(&m->unknown, dev, ino) ? BYPASS_UNKNOWN_FD : BYPASS_NONE;
}

void never_staged_shares_memory(const struct rule *rule)
{
	struct marks *m = place();

	if (m) {
		atomic_store(&m->any, true);
		atomic_store(&m->shares_memory[rule - live_config->rules], true);
	}
}

bool never_staged_memory_is_shared(const struct rule *rule)
{
	const struct marks *m = atomic_load_explicit(&marks, memory_order_relaxed);

	return atomic_load_explicit(&no_room, memory_order_relaxed) ||
	       (m &&
	        atomic_load_explicit(&m->shares_memory[rule - live_config->rules], memory_order_relaxed));
}
