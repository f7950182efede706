// SPDX-License-Identifier: Apache-2.0
/*
 * outside: paths that have just led to files that no rule matches.
 *
 * A program opens a log for each line, or a file for each request.  To ask the kernel each time where such a
 * path leads costs as much as the open, the write and the close.  So the answer counts for some 50 ms.  Only
 * canonical paths are kept, and only while no dead process has left bytes in the directories of the rules. So
 * what goes unseen is that one dies, and the path comes to lead to its file, both within that time.
 */
#ifndef FASTWRITE_DESCRIPTORS_OUTSIDE_H
#define FASTWRITE_DESCRIPTORS_OUTSIDE_H

#include <stdbool.h>

/* `path`: what the kernel says of a descriptor; no rule matches it. */
void outside_note(const char *path);
/* An open of this path leads there.  (Asks for bytes of dead processes, at most once in 50 ms.) */
bool outside_is(const char *path);

#endif
