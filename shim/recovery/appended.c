// SPDX-License-Identifier: Apache-2.0
/*
 * recover_appended: which staged appends does the file have already?
 *
 * Asked after another mount in the same boot, when others have appended to the file, too.  An orderly unmount leaves the
 * arena as it was: none of its bytes is in the file.  A forced one may leave an older arena: then its blocks are in the
 * file, whole, or the last one in part, at the very end.  (recovery/internal.h says what is returned.)
 */
#include "base/sys.h"
#include "recovery/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

enum { LOOK_MAX = 64 << 20, HEAD = 16 };

/* Does what was appended end with the beginning of these bytes? */
static bool ends_torn(const uint8_t *region, size_t size, const uint8_t *bytes, size_t length)
{
	size_t head = length < HEAD ? length : HEAD;
	const uint8_t *end = region + size;
	const uint8_t *at = size > length ? end - length : region;

	while ((size_t)(end - at) >= head && (at = memmem(at, (size_t)(end - at), bytes, head)) != NULL) {
		if (memcmp(at, bytes, (size_t)(end - at) < length ? (size_t)(end - at) : length) == 0)
			return true;
		at++;
	}
	return false;
}

static int count_found(struct foreign_arena *a, int n, uint32_t skip, const uint8_t *region, size_t size)
{
	int found = 0;

	for (int i = 0; i < n; i++, skip = 0) {
		int r = foreign_read_block(a, a->order[i]);
		struct arena_extent x;
		bool here;

		if (r < 0)
			return r;
		x = foreign_extent(a, a->order[i], 0);
		if (COMMIT_COUNT(a->blocks[a->order[i]].commit) != 1 || skip >= x.length)
			return -EBADMSG;
		here = memmem(region, size, a->data + x.pos + skip, x.length - skip) != NULL;
		/* behind one that is not there none can be */
		if (here && found < i)
			return RECOVER_DOUBT;
		found += here;
		if (!here && found == i && ends_torn(region, size, a->data + x.pos + skip, x.length - skip))
			return RECOVER_DOUBT;
	}
	return found;
}

int recover_appended(struct foreign_arena *a, int n, uint32_t skip, int fd, uint64_t from, uint64_t size)
{
	uint8_t *region;
	int r;

	if (size <= from)
		return size == from ? 0 : RECOVER_DOUBT;
	if (size - from > LOOK_MAX)
		return RECOVER_DOUBT;
	region = sys.mmap(NULL, size - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(region))
		return (int)(intptr_t)region;
	r = sys_read_all(fd, region, size - from, from);
	if (r == 0)
		r = count_found(a, n, skip, region, size - from);
	sys.munmap(region, size - from);
	return r;
}
