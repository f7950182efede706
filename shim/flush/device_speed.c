// SPDX-License-Identifier: Apache-2.0
/* device_speed: see flush/device_speed.h. */
#include "flush/device_speed.h"

#include <stdatomic.h>
#include <stddef.h>

enum {
	DEVICES = 16,
	SLOW = 8000, /* nanoseconds per KiB, 128 MB/s: a faster device always gets O_DIRECT */
	MARGIN = 2,  /* how many times as fast the page cache must be */
	AGAIN = 64,  /* flushes between two measurements of the slower way */
	SHARE = 4,   /* the new figure counts 1/SHARE in the mean */
	NS_MAX = 1 << 24,
};

struct device {
	_Atomic uint64_t id;    /* device + 1, 0 = none */
	_Atomic uint32_t ns[2]; /* per KiB, a running mean; 0 = not known */
	_Atomic uint32_t flushes;
};

static struct device devices[DEVICES];

static struct device *find(uint64_t dev, bool make)
{
	for (int i = 0; i < DEVICES; i++) {
		uint64_t id = atomic_load(&devices[i].id);

		if (id == 0 && !make)
			return NULL;
		if (id == 0 && atomic_compare_exchange_strong(&devices[i].id, &id, dev + 1))
			return &devices[i];
		if (id == dev + 1)
			return &devices[i];
	}
	return NULL;
}

enum device_speed_way device_speed_choose(uint64_t dev)
{
	struct device *d = find(dev, false);
	uint64_t direct, buffered;
	enum device_speed_way way;

	if (!d)
		return DEVICE_SPEED_DIRECT;
	direct = atomic_load_explicit(&d->ns[DEVICE_SPEED_DIRECT], memory_order_relaxed);
	buffered = atomic_load_explicit(&d->ns[DEVICE_SPEED_BUFFERED], memory_order_relaxed);
	if (direct < SLOW)
		return DEVICE_SPEED_DIRECT;
	way = buffered * MARGIN < direct ? DEVICE_SPEED_BUFFERED : DEVICE_SPEED_DIRECT;
	if (buffered && atomic_fetch_add_explicit(&d->flushes, 1, memory_order_relaxed) % AGAIN == AGAIN - 1)
		way = way == DEVICE_SPEED_DIRECT ? DEVICE_SPEED_BUFFERED : DEVICE_SPEED_DIRECT;
	return way;
}

void device_speed_note(uint64_t dev, enum device_speed_way way, uint64_t bytes, uint64_t ns)
{
	struct device *d = bytes >= 1024 ? find(dev, true) : NULL;
	uint64_t now, before;

	if (!d)
		return;
	now = ns / (bytes / 1024);
	now = now > NS_MAX ? NS_MAX : now == 0 ? 1 : now;
	before = atomic_load_explicit(&d->ns[way], memory_order_relaxed);
	/* two concurrent updates may lose one measurement */
	atomic_store_explicit(&d->ns[way], (uint32_t)(before ? (before * (SHARE - 1) + now) / SHARE : now),
	                      memory_order_relaxed);
}
