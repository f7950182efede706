// SPDX-License-Identifier: Apache-2.0
/*
 * alive: a page that the kernel wipes in every child that has its own copy of our memory, however it was made.
 * A child that no fork handler prepared (a raw clone) would otherwise take the shared arena for its own.
 */
#ifndef FASTWRITE_ALIVE_H
#define FASTWRITE_ALIVE_H

#include <stdbool.h>
#include <stdint.h>

extern volatile uint32_t *alive_page;

/* This process manages files from now on; 0 or -errno, and without it nothing may be managed. */
int alive_set(void);

/* True when this process called alive_set; one load and a branch. */
static inline bool alive_here(void) { return alive_page && *alive_page; }
/* True when only an ancestor did. */
static inline bool alive_elsewhere(void) { return alive_page && !*alive_page; }

#endif
