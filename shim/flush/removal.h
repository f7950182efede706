// SPDX-License-Identifier: Apache-2.0
/*
 * removal: a file in order whose only name the program removes (enum order_removal).
 *
 * All functions: file lock held.
 */
#ifndef FASTWRITE_FLUSH_REMOVAL_H
#define FASTWRITE_FLUSH_REMOVAL_H

#include "flush/order_log.h"

/* The program has no descriptor of f, not even one that reads. */
bool removal_is_closed(const struct file *f);
/* The program may remove f, and nobody misses what is staged of it then. */
bool removal_is_possible(const struct order_log *l, const struct file *f);
/* And nobody but its removal knows f: no epoch has it, and the kernel has nothing of it. */
bool removal_is_unlogged(const struct order_log *l, const struct file *f);

/* The program is about to do it.  After a kill, recovery finds out whether the file is there. */
void removal_begin(struct file *f, enum order_removal how);
/* Somebody else needs what is staged of f, whether the program removes it or not. */
void removal_keep(struct file *f);
/* The program does not remove f.  (It may be detached.) */
void removal_cancel(struct file *f);
/* False: it has not removed f, or f has another name; then this is removal_cancel. */
bool removal_is_done(struct file *f);

/* Around a call that gives a file one more name: no removal begins meanwhile. */
void removal_link_begin(void);
void removal_link_end(void);
/* In the child of a fork: the parent's other threads call nothing here. */
void removal_link_forget(void);

/* File lock held, f has no name any more, so no open of f begins.  The program has no descriptor of f, and
 * gets none. */
bool removal_is_unopened(const struct file *f);

#endif
