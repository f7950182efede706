// SPDX-License-Identifier: Apache-2.0
/*
 * device_speed: how fast a device takes flushes, by O_DIRECT and through the page cache.
 *
 * A device that is much slower than memory makes a program wait that writes by O_DIRECT, while the page cache would
 * take a burst at once and write it back in its own time.  When too much in it is dirty the kernel makes writers wait,
 * and O_DIRECT is no worse.  Which of the two it is shows in the time that flushes take.
 */
#ifndef FASTWRITE_PACE_H
#define FASTWRITE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum device_speed_way { PACE_DIRECT, PACE_BUFFERED };

/* By which way the next flush to the device (as in sys_dev_of) goes; now and then the slower one, to measure it. */
enum device_speed_way device_speed_choose(uint64_t dev);

/* A flush of so many bytes took so many nanoseconds. */
void device_speed_note(uint64_t dev, enum device_speed_way way, uint64_t bytes, uint64_t ns);

#endif
