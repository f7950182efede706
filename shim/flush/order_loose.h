// SPDX-License-Identifier: Apache-2.0
/*
 * order_loose: by rule, whether the kernel has changes that may not be durable and are in no log.  They are
 * synced before the next epoch counts.
 */
#ifndef FASTWRITE_FLUSH_ORDER_LOOSE_H
#define FASTWRITE_FLUSH_ORDER_LOOSE_H

#include "config/config.h"

#include <stdbool.h>
#include <stdint.h>

#define ORDER_ANYWHERE UINT64_MAX

/* There are some, on the file system with this device number; 0: unknown. */
void order_loose_note(const struct rule *rule, uint64_t dev);
/* From now on they may come at any time. */
void order_loose_always(const struct rule *rule);
/* Are there some? */
bool order_loose_any(const struct rule *rule);
/* Where; ORDER_ANYWHERE: on any file system; 0: there are none.  From now on there are none, unless a call is
 * under way. */
uint64_t order_loose_take(const struct rule *rule);

/*
 * A call that makes such changes is under way.  It notes them before it begins and before it ends.  Other
 * threads see a change at any time between: what is noted stays so, and every epoch syncs it.
 */
void order_loose_begin(void);
void order_loose_end(void);
bool order_loose_is_coming(void);
/* In the child of a fork, where only the calls of this thread go on. */
void order_loose_forget(void);

#endif
