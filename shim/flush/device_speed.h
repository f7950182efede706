// SPDX-License-Identifier: Apache-2.0
/*
 * device_speed: how fast a device takes flushes, by O_DIRECT and through the page cache.
 *
 * On a slow device an O_DIRECT write makes the program wait, while the page cache takes a burst at once and
 * writes it back later.  When too many pages are dirty, the kernel throttles buffered writes, and O_DIRECT is
 * no slower.  The measured time of the flushes decides between the two.
 */
#ifndef FASTWRITE_FLUSH_DEVICE_SPEED_H
#define FASTWRITE_FLUSH_DEVICE_SPEED_H

#include <stdbool.h>
#include <stdint.h>

enum device_speed_way { DEVICE_SPEED_DIRECT, DEVICE_SPEED_BUFFERED };

/* The way of the next flush to the device (as in sys_dev_of).  Every 64th time the slower way, to measure it
 * again. */
enum device_speed_way device_speed_choose(uint64_t dev);

/* Records a flush of `bytes` that took `ns` nanoseconds. */
void device_speed_note(uint64_t dev, enum device_speed_way way, uint64_t bytes, uint64_t ns);

#endif
