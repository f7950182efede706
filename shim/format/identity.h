// SPDX-License-Identifier: Apache-2.0
/*
 * identity: tells a file from a later one with the same inode number.
 *
 * Some file systems have no birth times (ext4 with inodes of 128 bytes), others no generations or file
 * handles.  Each of these signs counts if both sides have it.
 */
#ifndef FASTWRITE_FORMAT_IDENTITY_H
#define FASTWRITE_FORMAT_IDENTITY_H

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

/* The identity of the file behind fd.  st: its statx with STATX_INO and STATX_BTIME. */
void identity_of(int fd, const struct statx *st, struct identity *out);

/* The same from statx alone: fewer signs. */
void identity_by_stat(const struct statx *st, struct identity *out);

void identity_of_entry(const struct arena_entry *entry, struct identity *out);

/* No sign says that a and b are two files. */
bool identity_same(const struct identity *a, const struct identity *b);

/* And at least one sign beside the inode number says that they are one file. */
bool identity_proved(const struct identity *a, const struct identity *b);

#endif
