// SPDX-License-Identifier: Apache-2.0
/* entry: the recovery of one file entry of an arena: finds its file, has it judged and replayed, reports. */
#ifndef FASTWRITE_RECOVERY_ENTRY_H
#define FASTWRITE_RECOVERY_ENTRY_H

#include "recovery/job.h"

/* 0: the entry is done, or stays in an arena that is put aside (j->keeps).  -errno: it is left as it is,
 * which has been told; the caller counts it in report->failed. */
int entry_recover(struct recover_job *j, uint32_t entry);

/* The same into `fd`, an open file description that the program may use, too: its flags and offset end as
 * they were.  0 or -errno. */
int entry_recover_into(struct recover_job *j, uint32_t entry, int fd);

#endif
