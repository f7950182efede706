// SPDX-License-Identifier: Apache-2.0
/*
 * direct_io: writes bytes from memory to one range of a file, its aligned middle by O_DIRECT if that pays.
 */
#ifndef FASTWRITE_FLUSH_DIRECT_IO_H
#define FASTWRITE_FLUSH_DIRECT_IO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

struct arena_guard;

struct flush_target {
	int fd;
	struct arena_guard *guard; /* the file's guard; NULL: none */
	int flags;             /* current status flags of fd; with O_APPEND the file must end at the offset */
	bool direct_ok;        /* try O_DIRECT; cleared when the file system refuses it */
	bool direct_refused;   /* out: the file system refused it */
	uint64_t direct_min;   /* smallest aligned middle that pays */
	uint64_t direct_end;   /* what reaches beyond it goes through the page cache */
	uint64_t direct_bytes; /* out: bytes written by O_DIRECT */
	uint64_t direct_ns;    /* out: and their time */
	/* out: the same for ranges of at least direct_min through the page cache */
	uint64_t buffered_bytes, buffered_ns;
};

/*
 * Writes iov[0..count), count <= FLUSH_IOV_MAX, at `offset`.  0 or -errno.  *done: the bytes that are in the
 * file from `offset` on without a gap, also on failure.  May leave O_DIRECT set or cleared in the
 * description; t->flags says which.
 */
int direct_io_write(struct flush_target *t, const struct iovec *iov, int count, uint64_t offset,
                    uint64_t *done);

/* Sets the status flags of the description to `flags`. */
void direct_io_set_flags(struct flush_target *t, int flags);

#endif
