// SPDX-License-Identifier: Apache-2.0
/* bytes: compares and writes what a file holds. */
#ifndef FASTWRITE_BASE_BYTES_H
#define FASTWRITE_BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>

/* Writes all n bytes, which a dead process was told are accepted: at `offset`, or at the end.  0 or -errno.
 * *written: how many of them are in the file now, also after an error. */
int bytes_write(int fd, const uint8_t *p, uint64_t n, uint64_t offset, bool append, uint64_t *written);

/* 0; -EPERM: the descriptor appends all that is written to it, as that of an append-only file does; other
 * -errno. */
int bytes_have_offsets(int fd);

/* How many of the n bytes at p the file holds at `offset`, up to the first other one.  Fewer also when it
 * cannot be read. */
uint64_t bytes_alike(int fd, const uint8_t *p, uint64_t n, uint64_t offset);

/* The file holds all of them.  False also when it cannot be read. */
bool bytes_equal(int fd, const uint8_t *p, uint64_t n, uint64_t offset);

/* The file holds zeros in [from, to).  False also when it cannot be read. */
bool bytes_are_zeros(int fd, uint64_t from, uint64_t to);

#endif
