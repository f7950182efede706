// SPDX-License-Identifier: Apache-2.0
/*
 * never_staged: what stays true of a file or a rule whether or not anybody has a managed description of it:
 * that the file is mapped, or open where no call is seen.
 *
 * A process and all that it forks share the marks, for mappings and descriptors are inherited, and who stages
 * a file looks for both in its own process only.  A mark is never taken back.  Files are marked in a Bloom
 * filter: there is always room, and in it an answer may be wrong to the safe side only, for about one file in
 * twenty when a million have been marked.
 *
 * Called by: meta, fd, pass (to mark), attach, strict (to look), process (before a fork).
 */
#ifndef FASTWRITE_FILES_NEVER_STAGED_H
#define FASTWRITE_FILES_NEVER_STAGED_H

#include "files/file.h"

/* Before a fork: what is marked from now on holds for the child as well. */
void never_staged_share(void);
/* In a process that leaves the others: what is marked so far holds. */
void never_staged_unshare(void);

/* This file is never to be staged; why is BYPASS_MMAP or BYPASS_UNKNOWN_FD. */
void never_staged_never(uint64_t dev, uint64_t ino, enum bypass_reason why);
/* One of the two, or BYPASS_NONE. */
enum bypass_reason never_staged_why_never(uint64_t dev, uint64_t ino);

/* Others are told by memory what is written to the files of this rule, see flush/visibility.h. */
void never_staged_shares_memory(const struct rule *rule);
bool never_staged_memory_is_shared(const struct rule *rule);

#endif
