// SPDX-License-Identifier: Apache-2.0
/*
 * stats: the summary at exit, FASTWRITE_STATS = stderr | FILE: a line for each rule that had something to do.
 */
#ifndef FASTWRITE_STATS_H
#define FASTWRITE_STATS_H

#include "descriptors/file.h"

/* Whose FASTWRITE_STATS to follow; NULL = none. */
void stats_set(const struct config *c);
/* Adds an arena's totals; called before it is destroyed. */
void stats_add(const struct arena *a);
/* In the child of a fork: the totals so far are the parent's to report. */
void stats_forget(void);
/* This process has a file of this rule. */
void stats_used(const struct rule *rule);
/* A file of this rule is written through that has no arena to count it in. */
void stats_through(const struct rule *rule, enum bypass_reason why);
/* "writes", "bytes", ...: by enum slot_counter. */
const char *stats_counter_name(int counter);
/* Writes the summary once, if asked for; raw writes only. */
void stats_report(void);

#endif
