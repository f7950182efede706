// SPDX-License-Identifier: Apache-2.0
/* stats: the summary at exit, FASTWRITE_STATS = stderr | FILE. */
#ifndef FASTWRITE_STATS_H
#define FASTWRITE_STATS_H

#include "file.h"

/* Whose FASTWRITE_STATS to follow; NULL = none. */
void stats_set(const struct config *c);
/* Adds an arena's totals; called before it is destroyed. */
void stats_add(const struct arena *a);
/* In the child of a fork: the totals so far are the parent's to report. */
void stats_forget(void);
/* A file is written through that has no arena to count it in. */
void stats_through(enum through_reason why);
/* Writes the summary once, if asked for; raw writes only. */
void stats_report(void);

#endif
