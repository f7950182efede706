// SPDX-License-Identifier: Apache-2.0
/*
 * appended: which staged appends does the file have already?
 *
 * Blocks are given as the first n > 0 indexes in a->order.
 */
#ifndef FASTWRITE_RECOVERY_APPENDED_H
#define FASTWRITE_RECOVERY_APPENDED_H

#include "foreign/parse.h"

/* Nobody can tell: too much has been appended, or others' bytes look like ours. */
#define APPENDED_DOUBT (-ETIME)

/*
 * An append of `bytes` bytes was under way when its process died.  It begins with byte `skip` of the first
 * block.  *have: so many of its bytes are in the file.  0; APPENDED_DOUBT, then *have is the best guess;
 * other -errno.
 *
 * It stands at the file's size of then (`base`), or, when the kernel chose the place, behind what others
 * appended meanwhile.  Only two things count as ours: the whole append, or a part that ends at a page
 * boundary of the file.  That is where the kernel stops a write when it kills the writer; what matches behind
 * the boundary may be chance.  A short match is another program's line that starts like ours.  To take it for
 * ours would lose bytes.
 */
struct appended_range {
	enum append_flush how;
	uint64_t base;
	uint64_t bytes;
	uint32_t skip;
};
int appended_part(struct foreign_arena *a, int n, int fd, const struct appended_range *range, uint64_t *have);

/*
 * After another mount in the same boot, when others have appended, too: the file had `from` bytes, and has
 * `size`.  How many of the first blocks are in the file as a whole, the first one without its first `skip`
 * bytes.  APPENDED_DOUBT also when later blocks, or a part of one, seem to be there.  Other -errno.
 *
 * After an orderly unmount the arena is as it was left: none of its bytes is in the file.  After a forced one
 * the arena may be older: then its blocks are in the file, whole, or the last one in part, at the very end.
 */
int appended_blocks(struct foreign_arena *a, int n, int fd, uint32_t skip, uint64_t from, uint64_t size);

#endif
