// SPDX-License-Identifier: Apache-2.0
/*
 * snapshot: a copy of what `fastwrite status` visits, one row for each arena.  A program has an arena for
 * each rule and place in which it stages.
 *
 * Called by: prometheus, watch.
 */
#ifndef FASTWRITE_COMMAND_SNAPSHOT_H
#define FASTWRITE_COMMAND_SNAPSHOT_H

#include "recovery/status.h"

struct snapshot_row {
	struct status_arena arena; /* its strings belong to the row */
	uint64_t seen_ns;          /* CLOCK_MONOTONIC when its counters were read */
	uint64_t staged_bytes;     /* of all files */
	uint32_t files;            /* that have an entry in the arena */
};

struct snapshot {
	struct snapshot_row *rows;
	size_t count, room;
	bool failed; /* no memory */
};

/* Fills *out, which snapshot_free empties also after an error.  newer: as in struct status_visitor.  0 or
 * -errno. */
int snapshot_take(struct snapshot *out, status_newer *newer);
void snapshot_free(struct snapshot *s);

/* The row of the same arena of the same process; NULL: there is none. */
const struct snapshot_row *snapshot_find(const struct snapshot *s, const struct status_arena *a);

#endif
