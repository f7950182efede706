// SPDX-License-Identifier: Apache-2.0
/*
 * status: what running programs stage and write, from the counters in their arenas.  It finds arenas by the
 * mappings of processes that the caller may examine.  It locks and changes nothing.
 *
 * Called by: `fastwrite status`.
 */
#ifndef FASTWRITE_RECOVERY_STATUS_H
#define FASTWRITE_RECOVERY_STATUS_H

#include "format/arena_format.h"

struct status_arena {
	const char *path;
	int pid;            /* as the caller sees the process */
	uint64_t pid_start; /* clock ticks after boot: tells the process from a later one with its pid */
	uint32_t uid;
	const char *program;
	const char *rule;
	uint64_t total_bytes;
	uint32_t block_bytes;
	uint32_t block_count;
	uint32_t blocks_used;
	uint64_t counters[COUNT_ALL];   /* of all files, also those that are closed */
	uint64_t through[BYPASS_COUNT]; /* by enum bypass_reason */
	/* sync = ordered; zeros: no log has been made */
	uint64_t log_bytes, largest_epoch; /* in the log, bytes */
	uint64_t epochs;                   /* that were durable */
	uint64_t oldest_ms; /* age of the oldest change that a power loss would take; 0: none */
};

struct status_file {
	const char *path;
	uint64_t staged_bytes; /* accepted and not yet in the file */
	uint32_t flags;        /* enum entry_flags */
	uint64_t counters[COUNT_ALL];
};

/* An arena of a version that this library does not know yet; `pid` has it open. */
typedef void status_newer(const char *path, int pid, uint32_t version);

struct status_visitor {
	void (*arena)(void *ctx, const struct status_arena *a);
	void (*file)(void *ctx, const struct status_file *f); /* of the last arena visited */
	void *ctx;
	status_newer *newer; /* NULL: nobody asks */
};

/* Visits every live arena.  The number of arenas, or -errno. */
int status_visit(const struct status_visitor *v);

/* Visits the arena in an open file, of the process `pid`, which calls itself `maker`.  1; 0: it is none, or
 * another process made it, or it is of a newer version.  (`maker` 0: any process may have made it.) */
int status_visit_fd(int fd, int maker, int pid, const char *path, const struct status_visitor *v);

#endif
