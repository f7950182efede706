// SPDX-License-Identifier: Apache-2.0
/* sort: puts numbers in an order that the caller knows.  In place, no recursion, cheap for numbers that are
 * mostly in order.  Not stable.  Called by what reads arenas. */
#ifndef FASTWRITE_BASE_SORT_H
#define FASTWRITE_BASE_SORT_H

#include <stdbool.h>
#include <stdint.h>

/* `before`: a comes before b. */
void sort_numbers(uint32_t *numbers, uint32_t n, bool (*before)(const void *ctx, uint32_t a, uint32_t b),
                  const void *ctx);

#endif
