// SPDX-License-Identifier: Apache-2.0
/* journaled: see flush/journaled.h. */
#include "flush/journaled.h"

uint64_t journaled_commit_of(const struct block_run *run)
{
	return COMMIT_REACH(atomic_load_explicit(&run->meta->commit, memory_order_acquire));
}

bool journaled_covers(const struct file *f, const struct block_run *run)
{
	return run->meta->seq < f->journal.block_seq || (run->meta->seq == f->journal.block_seq &&
	                                                 journaled_commit_of(run) <= f->journal.block_commit);
}

void journal_file_flushing(struct file *f, const struct block_run *last)
{
	if (!journaled_covers(f, last))
		journal_file_changed(f);
}
