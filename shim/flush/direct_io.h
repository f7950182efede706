// SPDX-License-Identifier: Apache-2.0
/*
 * direct_io: bytes in memory -> one stretch of a file, by O_DIRECT in its aligned middle where that pays.
 */
#ifndef FASTWRITE_FLUSH_IO_H
#define FASTWRITE_FLUSH_IO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct arena_guard;

struct flush_target {
	int fd;
	struct arena_guard *guard; /* of the file; NULL: none */
	int flags;      /* status flags of fd's description now; with O_APPEND its end is at the offset */
	bool direct_ok; /* O_DIRECT may be tried; cleared when the file system refuses it */
	bool direct_refused;   /* out: it did */
	uint64_t direct_min;   /* smallest aligned middle worth it */
	uint64_t direct_bytes; /* out: bytes written by O_DIRECT */
	uint64_t direct_ns;    /* out: and how long that took */
	/* out: the same of stretches of at least direct_min that went through the page cache */
	uint64_t buffered_bytes, buffered_ns;
};

/*
 * Writes iov[0..count) (at most FLUSH_IOV_MAX) to [offset, ...).  *done counts the bytes that are in the file
 * from `offset` on without a gap, also on failure.  0 or -errno.  The description's flags may be left with
 * O_DIRECT switched; t->flags says how.
 */
int direct_io_write(struct flush_target *t, const struct iovec *iov, int count, uint64_t offset,
                    uint64_t *done);

/* Sets the description's flags to exactly `flags`. */
void direct_io_set_flags(struct flush_target *t, int flags);

#endif
