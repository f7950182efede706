// SPDX-License-Identifier: Apache-2.0
/*
 * page_log: before the pages of a killed process go to their files, puts them into its log, as one epoch.
 *
 * Files of sync = ordered stand in order after a power loss, also one that comes while the process is being
 * recovered.  Without the log the first file might be new then, and the second one old.
 */
#ifndef FASTWRITE_RECOVERY_PAGE_LOG_H
#define FASTWRITE_RECOVERY_PAGE_LOG_H

#include "recovery/job.h"

/* j: the arena `name`, of this boot and mount, loaded and locked, with its owner's rights.  Does nothing if
 * it has no pages in order, or if some of them will not go to their file.  Logs an error: then there is no
 * order, but the pages must go to their files all the same. */
void page_log(struct recover_job *j, const char *name);
/* Around each change of a file that began at `since_ns`, as wal_late.  Logs an error; there is no order from
 * then on. */
void page_log_late(struct recover_job *j, int64_t since_ns);
/* After the pages are in their files. */
void page_log_end(struct recover_job *j);

#endif
