// SPDX-License-Identifier: Apache-2.0
/*
 * outside: paths that have just led to files that no rule matches.
 *
 * A program opens a log for each line, or a file for each request.  To ask the kernel each time where such a
 * path leads costs as much as the open, the write and the close.  So the answer counts for some 40 ms, as the
 * one about bytes of dead processes does.  Only canonical paths are kept: no symlink leads elsewhere.
 */
#ifndef FASTWRITE_DESCRIPTORS_OUTSIDE_H
#define FASTWRITE_DESCRIPTORS_OUTSIDE_H

#include <stdbool.h>

/* `path`: what the kernel says of a descriptor; no rule matches it. */
void outside_note(const char *path);
/* An open of this path leads there. */
bool outside_is(const char *path);

#endif
