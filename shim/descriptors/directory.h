// SPDX-License-Identifier: Apache-2.0
/*
 * directory: syncs of directories below rules with `sync = off`.
 *
 * A directory is never managed.  An open that may be the open of such a directory is noted, by its path and
 * flags alone.  So a sync of any other descriptor costs one load.  The sync looks at what a noted descriptor
 * is.
 */
#ifndef FASTWRITE_DESCRIPTORS_DIRECTORY_H
#define FASTWRITE_DESCRIPTORS_DIRECTORY_H

#include "descriptors/fd.h"

enum { DIRECTORY_FDS = UNRESOLVED_FDS };

extern _Atomic uint64_t directory_noted[DIRECTORY_FDS / 64];

/* The open made fd. */
void directory_opened(const struct fd_open *op, int fd);
bool directory_is_unsynced_slow(int fd);

/* True if fd is a directory in which every file belongs to a rule with `sync = off`: its sync does nothing.
 */
static inline bool directory_is_unsynced(int fd)
{
	return (unsigned)fd < DIRECTORY_FDS &&
	       __builtin_expect(
		       atomic_load_explicit(&directory_noted[fd / 64], memory_order_relaxed) >> fd % 64 & 1,
		       0) &&
	       directory_is_unsynced_slow(fd);
}

#endif
