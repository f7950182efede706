// SPDX-License-Identifier: Apache-2.0
/* stats: the summary at exit, FASTWRITE_STATS = stderr | FILE, with a line for each rule that was used. */
#ifndef FASTWRITE_STAGING_STATS_H
#define FASTWRITE_STAGING_STATS_H

#include "files/file.h"

/* The configuration with FASTWRITE_STATS; NULL = no summary. */
void stats_set(const struct config *c);
/* Adds the counters of an arena that is about to be destroyed. */
void stats_add(const struct arena *a);
/* In the child of a fork: the parent reports the counters so far. */
void stats_forget(void);
/* The process has a file of this rule. */
void stats_used(const struct rule *rule);
/* Counts a file of this rule that bypasses staging and has no arena to count it in. */
void stats_through(const struct rule *rule, enum bypass_reason why);
/* Writes the summary once, by raw writes. */
void stats_report(void);

#endif
