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

#endif
