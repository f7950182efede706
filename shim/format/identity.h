// SPDX-License-Identifier: Apache-2.0
/*
 * identity: which file it is, beyond the inode number: numbers are used again.
 *
 * Birth times are missing on some file systems (ext4 with inodes of 128 bytes), generations and file handles
 * on others.  Each sign counts where both sides have it.
 */
#ifndef FASTWRITE_IDENTITY_H
#define FASTWRITE_IDENTITY_H

#include "format/arena_format.h"

#include <stdbool.h>
#include <sys/stat.h>

struct identity {
	uint64_t ino;
	int64_t btime_sec; /* 0/0: not known */
	uint32_t btime_nsec;
	uint32_t generation;  /* FS_IOC_GETVERSION, 0: not known */
	uint64_t handle_hash; /* of type and bytes of the file handle, 0: not known */
};

/* Of the file behind fd, whose statx (with STATX_INO and STATX_BTIME asked for) is st. */
void identity_of(int fd, const struct statx *st, struct identity *out);

/* By statx alone. */
void identity_by_stat(const struct statx *st, struct identity *out);

void identity_of_slot(const struct arena_slot *slot, struct identity *out);

/* No sign says that these are two files. */
bool identity_same(const struct identity *a, const struct identity *b);

/* And one beside the inode number says that they are one. */
bool identity_proved(const struct identity *a, const struct identity *b);

#endif
