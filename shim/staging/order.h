// SPDX-License-Identifier: Apache-2.0
/*
 * order: which epoch a change in the overlay belongs to (sync = ordered; the epochs are made durable by
 * flush/ordered.h).
 *
 * Each log, that is each arena of a rule with this policy, counts epochs.  An epoch ends when a thread, its
 * leader, raises the number.  Then the leader takes the cut of every file of the log, one after the other.
 * So that a file's cut holds nothing of the next epoch, the first change of a file in an epoch takes the cut
 * of the last one itself, if the leader has not come yet.
 *
 * Complete: a change of epoch e was made under the file's lock, before the leader's visit; or after it, and
 * then it belongs to a later epoch, because the leader raised the number before its first visit.  (The lock
 * orders the two.  A file that the leader does not find is the exception: then both need the fence between
 * their store, of the number or of the file, and their look at the other one.)
 * Closed: of two changes, one of which happened before the other, the first has no later epoch.  The number
 * only grows, and it is loaded with acquire, before the bytes change.
 */
#ifndef FASTWRITE_STAGING_ORDER_H
#define FASTWRITE_STAGING_ORDER_H

#include "files/file.h"

struct order {
	_Atomic uint64_t epoch; /* of changes that are made now; 1 or more */
	_Atomic bool changed;   /* there have been changes since the last epoch ended */
	/* sys_now_ns() of the first of them; 0: none.  What the arena shows others may also be from the
	 * epoch before, until that is durable. */
	_Atomic uint64_t since_ns;
};

/* Of the arena's log, in this process. */
struct order *order_of(const struct arena *a);

/* There is a change that the next epoch has to make durable. */
void order_changed(const struct arena *a);
/* The epoch begins to be written: the changes that come now belong to the next one. */
void order_begin(const struct arena *a);
/* It is durable. */
void order_durable(const struct arena *a);

/* File lock held, f is paged: before a change of the overlay.  0, or as overlay_cut. */
int order_change(struct file *f);

#endif
