// SPDX-License-Identifier: Apache-2.0
/*
 * arena: the recovery of one arena: is it dead and ours to touch?  Then the journal beside it, when that
 * comes first, and its file entries one after the other; then it is removed or put aside.
 */
#ifndef FASTWRITE_RECOVERY_ARENA_H
#define FASTWRITE_RECOVERY_ARENA_H

#include "recovery/job.h"

/* `name`: in j->dirfd.  Counts and reports everything. */
void recover_arena(struct recover_job *j, const char *name);

#endif
