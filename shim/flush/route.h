// SPDX-License-Identifier: Apache-2.0
/*
 * route: how a flush goes out: through which description, with which flags, past the page cache or not.
 *
 * All functions: file lock or flush token held.
 */
#ifndef FASTWRITE_FLUSH_ROUTE_H
#define FASTWRITE_FLUSH_ROUTE_H

#include "files/file.h"
#include "flush/direct_io.h"

struct route {
	struct flush_target target;
	struct ofd *borrowed; /* the program's description whose flags, and perhaps a lease, are borrowed */
	bool leased;
	bool own;
};

/* For `bytes` bytes that are to be written at `offset`.  0; 1 if only an append of the kernel will do; or
 * -errno. */
int route_find(struct file *f, struct route *rt, uint64_t offset, uint64_t bytes);

/*
 * Flushes through the program's own description, with changed flags for as long as the flush lasts.  Staged
 * appends go out as appends of the kernel.  A lease proves that they land at the assumed offset.  The flusher
 * may be stopped for so long that it loses the lease.  Then they land behind the appends of other processes,
 * and overwrite nothing.
 */
void route_program_fd(struct file *f, struct route *rt, int fd);

/* Counts the flush, which has written `bytes` bytes. */
void route_count(const struct file *f, const struct route *rt, uint64_t bytes);

/* The flush is over: gives back what was borrowed. */
void route_leave(struct file *f, struct route *rt);

#endif
