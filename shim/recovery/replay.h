// SPDX-License-Identifier: Apache-2.0
/*
 * replay: brings the staged blocks of a file entry into the file, and puts the file's end right.
 *
 * Before each change it notes in the arena what it is about to do, so that it can be killed anywhere and run
 * again.
 *
 * entry: the file entry; n: its blocks, in j->a.order; fd: the file, open for writing.
 */
#ifndef FASTWRITE_RECOVERY_REPLAY_H
#define FASTWRITE_RECOVERY_REPLAY_H

#include "recovery/job.h"

/* `bytes`: of the n blocks.  at_offsets: to the offsets of the blocks; else each byte is appended once.  0;
 * APPENDED_DOUBT: nobody can tell how much of an append that was under way is in the file; other -errno. */
int replay_blocks(struct recover_job *j, uint32_t entry, int fd, int n, uint64_t bytes, bool at_offsets);

/* All n blocks are in the file: its end becomes as the program left it.  0 or -errno. */
int replay_finish(struct recover_job *j, uint32_t entry, int fd);

/* We are about to change the file: a recovery after a kill of ours must not take that for a change by others.
 * 0 or -errno. */
int replay_stamp(struct recover_job *j, struct arena_entry *e);

/* The replay has failed.  From now on a change of the file counts as one by others again. */
void replay_stopped(struct recover_job *j, uint32_t entry, int fd);

#endif
