// SPDX-License-Identifier: Apache-2.0
/*
 * spare: space that the file of a log holds behind its end for the pages of all its files.
 *
 * So a page is accepted without space of its own.  To reserve that in each file would cost more than anything
 * else where files come and go.  When the disk is nearly full, the log gives its space back once and for all,
 * and the pages go there; from then on every file reserves its own.  Another program may take that space in
 * between.  Then the bytes stay staged, and in the log.
 */
#ifndef FASTWRITE_WAL_SPARE_H
#define FASTWRITE_WAL_SPARE_H

#include <stdbool.h>
#include <stdint.h>

/* statfs.f_type of the only file system where that holds.  xfs keeps a part of what it is given back when it
 * is full; others copy on write. */
enum { SPARE_EXT4 = 0xef53 };

/* Pages may rely on the spare only below this offset: ext4 accepts a page at any lower one. */
#define SPARE_OFFSET_MOST ((uint64_t)1 << 40)

/* Reserves `bytes` bytes, a multiple of 4096, behind the end of the file.  0; or -errno: the log has no
 * spare.  -EOPNOTSUPP: this file system may refuse a page although it was given that space back. */
int spare_take(int fd, uint64_t bytes);
/* True if the disk is nearly full: only a few times `bytes` bytes are free for this user.  Once others have
 * filled up what is kept for root, what is given back goes there first. */
bool spare_is_due(int fd, uint64_t bytes);
/* Gives back what is reserved behind the end, if anything; also for recovery.  0 or -errno. */
int spare_give(int fd);

#endif
