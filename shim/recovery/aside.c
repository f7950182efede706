// SPDX-License-Identifier: Apache-2.0
/* aside: see recovery/aside.h. */
#include "recovery/aside.h"

#include "base/kill.h"
#include "base/sys.h"
#include "foreign/target.h"

#include <fcntl.h>

/* The arena may stay for long.  (A file system that cannot punch holes keeps the space.) */
static void give_back_space(const struct foreign_arena *a)
{
	const struct arena_header *h = &a->header;

	for (uint32_t i = 0, end; i < h->block_count; i = end + 1) {
		for (end = i; end < h->block_count; end++) {
			uint32_t owner = a->blocks[end].owner;

			if (owner != 0 && owner <= h->entry_count && foreign_entry(a, owner - 1)->used)
				break;
		}
		if (end > i && sys.fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
		                             (off_t)(h->data_at + (uint64_t)i * h->block_bytes),
		                             (off_t)((uint64_t)(end - i) * h->block_bytes)) < 0)
			return;
	}
}

int recover_move_aside(int staging_fd, const char *name)
{
	int dir = recover_keeping_dir(staging_fd, RECOVER_ASIDE);
	int r;

	if (dir < 0)
		return dir;
	kill_step();
	r = sys.renameat(staging_fd, name, dir, name);
	kill_step();
	/* after a power loss it must not be judged again, as if nothing had happened since */
	if (r == 0)
		r = sys.fsync(dir);
	if (r == 0)
		r = sys.fsync(staging_fd);
	sys.close(dir);
	return r;
}

int recover_put_aside(const struct foreign_arena *a, int staging_fd, const char *name)
{
	give_back_space(a);
	return recover_move_aside(staging_fd, name);
}
