// SPDX-License-Identifier: Apache-2.0
/*
 * fd_link: what /proc/self/fd says of a descriptor.
 */
#ifndef FASTWRITE_BASE_FD_LINK_H
#define FASTWRITE_BASE_FD_LINK_H

#include <stdbool.h>

/* Canonical path of an open descriptor, in out[PATH_MAX]; 0 or -errno (-ENOENT: unlinked). */
int fd_link_path(int fd, char *out);

bool fd_link_is_io_uring(int fd);

/* The process has a lock or a lease on the file through fd, or it is not known. */
bool fd_link_has_locks(int fd);

#endif
