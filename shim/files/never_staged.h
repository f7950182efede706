// SPDX-License-Identifier: Apache-2.0
/*
 * never_staged: marks of files and rules that stay when no managed description is left: a file is mapped, or
 * is open where no call is seen.
 *
 * A process and its forked descendants share the marks, because mappings and descriptors are inherited.  An
 * attach searches only its own process for both.  A mark is never taken back.  Marked files are kept in Bloom
 * filters, in which there is always room.  A wrong answer errs to the safe side.  With a million marked
 * files, about one file in twenty gets a wrong answer.
 *
 * descriptors/by_name.c sets marks.  attach/attach.c and flush/visibility.c read them.
 */
#ifndef FASTWRITE_FILES_NEVER_STAGED_H
#define FASTWRITE_FILES_NEVER_STAGED_H

#include "files/file.h"

/* Before a fork: later marks of one process hold for the other, too. */
void never_staged_share(void);
/* In a process that leaves the others: keeps the marks that are set so far. */
void never_staged_unshare(void);

/* The file is never to be staged; `why` is BYPASS_MMAP or BYPASS_UNKNOWN_FD. */
void never_staged_never(uint64_t dev, uint64_t ino, enum bypass_reason why);
/* That reason, or BYPASS_NONE. */
enum bypass_reason never_staged_why_never(uint64_t dev, uint64_t ino);

/* Memory that processes share may tell them about writes to files of this rule: these files count as shared
 * (flush/visibility.h). */
void never_staged_shares_memory(const struct rule *rule);
bool never_staged_memory_is_shared(const struct rule *rule);

#endif
