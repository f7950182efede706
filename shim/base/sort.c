// SPDX-License-Identifier: Apache-2.0
/* sort: see base/sort.h.  Shell sort. */
#include "base/sort.h"

void sort_numbers(uint32_t *numbers, uint32_t n, bool (*before)(const void *ctx, uint32_t a, uint32_t b),
                  const void *ctx)
{
	for (uint32_t gap = n / 2; gap > 0; gap /= 2) {
		for (uint32_t i = gap; i < n; i++) {
			uint32_t moving = numbers[i], at = i;

			for (; at >= gap && before(ctx, moving, numbers[at - gap]); at -= gap)
				numbers[at] = numbers[at - gap];
			numbers[at] = moving;
		}
	}
}
