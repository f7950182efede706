// SPDX-License-Identifier: Apache-2.0
/*
 * epoch: one epoch of a log of sync = ordered: the cuts of its files go to the log, and then to the files.
 *
 * All functions: both locks of the log held (order_lead_begin), no file lock, if not said otherwise.  They
 * drop and retake LOCK_ORDER.  0 or -errno.
 */
#ifndef FASTWRITE_FLUSH_EPOCH_H
#define FASTWRITE_FLUSH_EPOCH_H

#include "flush/order_log.h"

/*
 * Everything staged up to now is in the log, durably, and in the files.  An epoch that failed, or has only
 * come to the log, is ended instead, as it was.  `states`: the log says of transient names afterwards what is
 * so.
 */
int epoch_end(struct order_log *l, bool states);
/* Its first half: everything is in the log.  epoch_finish must follow, perhaps later. */
int epoch_commit(struct order_log *l, bool states);
/* The second half: what the log has goes to the files.  `r`: of the first half. */
int epoch_finish(struct order_log *l, int r);
/* What the log has becomes durable in the files, and the log is emptied.  Until then its epochs stay, so that
 * a file is synced once for many of them. */
int epoch_checkpoint(struct order_log *l);
/* Everything is in the files, durably: no epoch counts on the device from now on.  Keeps the locks. */
int epoch_void(struct order_log *l);
/* The log is half full, or longer than a checkpoint that takes `ordered_ms`. */
bool epoch_checkpoint_is_due(const struct order_log *l);
/* No lock held: everything staged before this call. */
int epoch_end_all(struct order_log *l);
/* The same, durably in the files. */
int epoch_checkpoint_all(struct order_log *l);

/* The device gets what the kernel has of f; `fd` is of f, as far as is known.  An error breaks the log. */
int epoch_sync(struct order_log *l, struct file *f, int fd);

/* The device may not know that transient names came, or, with `all`, that any came or went.  The next epoch
 * syncs the directory that it knows, if they lie there; else the whole file system. */
void epoch_names_pass(struct order_log *l, bool all);
/* What is not in a log, and came before this epoch, is durable before it.  *whole: the file system of which
 * everything has been synced for that, ORDER_ANYWHERE: of all; or 0. */
int epoch_sync_loose(struct order_log *l, uint64_t *whole);

#endif
