// SPDX-License-Identifier: Apache-2.0
/*
 * judge: may the blocks of a file entry be replayed into the file that was found for it?
 *
 * In the same boot and mount the arena is complete.  Then bytes at an offset wait only for the answer to one
 * question: has anybody else written the file since?  After another boot or mount the arena may be older than
 * the file.  Then it counts if the file is just as the guard in the arena says.  A synced overwrite spoils
 * that: the file's time does not show it.
 *
 *   where    same: the same boot and mount; mount: the same boot, another mount; boot: another boot
 *   proved   more than the inode number says that it is the file
 *   as left  the file has size and time of the guard; or a change of our own was under way (not after a boot:
 *            such a change may have left anything), and nothing but staged bytes and zeros stands behind the
 *            guard's size where the blocks lie
 *
 * The first row that fits decides.
 *
 *      where        blocks      the file                                                 verdict
 *    -----------------------------------------------------------------------------------------------------
 *     1 any         any         no blocks, forced, asked by the family, or file is gone  replay
 *     2 same        appends     proved                                                   replay
 *     3 any         any         cannot be examined                                       put aside
 *     4 boot        any         the blocks leave a gap                                   put aside
 *     5 same        any         as left                                                  replay
 *     6 mount, boot any         as left; no overwrite was synced, or all blocks lie      replay
 *                               behind the guard's size
 *     7 same        any         older than the guard: its own file system has lost       replay
 *                               what it had not written
 *     8 same, mount at offsets  proved, not cut, all blocks lie behind its end           replay
 *     9 mount       appends     proved, and it shows which blocks it has                 replay the others
 *    10 mount, boot any         was as left before the journal was replayed; the blocks  replay at offsets
 *                               leave no gap and overwrite equal bytes only
 *    11 any         any         anything else                                            put aside
 */
#ifndef FASTWRITE_RECOVERY_JUDGE_H
#define FASTWRITE_RECOVERY_JUDGE_H

#include "format/identity.h"
#include "recovery/job.h"

/*
 * The verdict on the pages of a file entry.  They have no checksum, so they count only where everything that
 * was stored in the arena is sure to be there.
 *
 *      where        the file                                                 verdict
 *    -----------------------------------------------------------------------------------------------------
 *     1 any         forced, asked by the family, or file is gone             replay
 *     2 mount, boot any                                                      put aside
 *     3 same        as left, or older than the guard, as in row 7            replay
 *     4 same        changed since, or it cannot be examined                  put aside
 */
struct judgement {
	const char *aside; /* why the blocks are put aside; NULL: they may be replayed */
	int found;         /* row 9: so many of the first blocks are in the file */
	bool by_offset;    /* row 10: appends go to the offsets where they were expected to land */
};

/* n: blocks of the entry, in j->a.order. */
struct judgement judge(struct recover_job *j, uint32_t entry, const struct recover_target *t, int n);

/* Why its pages are put aside; NULL: they may be replayed. */
const char *judge_pages(const struct recover_job *j, uint32_t entry, const struct recover_target *t);

/* Before the journal beside the arena is replayed, which changes the files: which entries' files are as left?
 * Their guards (in memory) get JUDGE_HELD in `known`. */
enum { JUDGE_HELD = 2 };
void judge_note_held(struct recover_job *j);

/*
 * When a file was changed, by its times in `st`; for the logs beside the arena `held` (NULL: there is none).
 *
 * That is its mtime.  But a restore of a backup gives the file an old one (`cp -p`, `rsync -t`): it is older
 * than the library knows it, and the file was changed since.  Then the ctime counts.  After a power loss the
 * mtime may be older than the guard's by what the file system had not written: up to JUDGE_BACK_S, nobody has
 * set it.  The ctime alone says nothing: a chmod and a rename change it, too.
 */
enum { JUDGE_BACK_S = 60 };
int64_t judge_changed_ns(const struct foreign_arena *held, uint64_t dev, const struct identity *id,
                         const struct statx *st);

#endif
