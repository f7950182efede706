// SPDX-License-Identifier: Apache-2.0
/*
 * takeover_format: how a process outside of a family flushes what a dead process of the family has staged,
 * while others of the family live.
 *
 * All processes of a family hold its arenas.  So one idle worker would keep everything that its dead master
 * has staged from recovery.  Instead a recoverer acts as one more flusher of the file.  It meets the family
 * in the arena's file, the only thing that both have:
 *
 * - Keeper.  The file entry names the process that last staged on the slow path (`keeper`); its timer flushes
 * in time. A keeper holds the lock on byte KEEPERS_AT + its number in the family until it ends.  This is a
 * POSIX lock: it belongs to one process, is not inherited, is visible across pid namespaces, and the kernel
 * drops it however the process ends.  A recoverer that gets this lock knows that the keeper is dead.
 * - Gate.  A process that flushes a file entry holds the lock on byte GATES_AT + index of the entry, from its
 * look at `done` until `done` counts what it wrote.  So no two processes write at the same time, and nobody
 * overtakes a process that is stopped in the middle of a write.
 * - Seal.  With the gate the recoverer seals the entry's blocks, so that no process stages into what it
 * writes.  The fast path publishes by an instruction that another processor may split (publish_swap).
 * membarrier waits until every such instruction is over.  Then the recoverer looks at the seals again.
 * It is a barrier on every processor, too: a block that the second look finds sealed has the bytes and
 * extents of its commit word.  (The kernel sets the bit by an atomic 32-bit operation in a word that the
 * family swaps as 64 bits.  Both work on one cache line, on aarch64 on one exclusive granule: neither loses
 * the other.)
 * - `takeovers` counts the take-overs of an entry.  A process of the family compares it under the file lock
 * or with the gate.  If it has changed, the process repairs the file as after the death of a process of its
 * own (attach/repair.h): it flushes what is left, if the recoverer was killed, and starts again with nothing
 * staged.
 *
 * A recoverer frees nothing and waits for no lock of the family.  It does no harm to a family that is at
 * work.  So a keeper may lose its lock: the program wants the number of our descriptor, or opens the arena
 * itself and closes it.  A process without a family takes no gates and has no keeper lock.  When it ends, the
 * whole arena is dead.
 *
 * Used by: staging/takeover (the family), recovery/living (the recoverer).
 */
#ifndef FASTWRITE_FORMAT_TAKEOVER_FORMAT_H
#define FASTWRITE_FORMAT_TAKEOVER_FORMAT_H

#include "base/sys.h"

#include <fcntl.h>

/* Bytes of the arena's file that are locked; nothing is stored there. */
#define TAKEOVER_GATES_AT ((off_t)1 << 40)
#define TAKEOVER_KEEPERS_AT ((off_t)1 << 41)

/* fcntl command `how` (F_SETLK, F_SETLKW, F_OFD_SETLK) for a lock of `type` on the byte at `at`. */
static inline long takeover_lock_byte(int fd, int how, short type, off_t at)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	return sys.fcntl(fd, how, (long)&lock);
}

#endif
