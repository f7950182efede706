// SPDX-License-Identifier: Apache-2.0
/* page_replay: see recovery/page_replay.h. */
#include "recovery/page_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/sys.h"
#include "recovery/replay.h"

#include <fcntl.h>

static int set_size(int fd, uint64_t size)
{
	int r;

	kill_step();
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	return r;
}

static int write_page(const struct recover_job *j, int fd, const struct page_scan_file *pages, uint32_t frame)
{
	uint32_t n = page_scan_bytes(&j->a.pages, pages, frame);
	BUFFER(uint8_t, data);
	uint64_t written;
	int r = foreign_read_frame(&j->a, frame, data, n);

	if (r < 0)
		return r;
	return bytes_write(fd, data, n, j->a.pages.table[frame].page * PAGES_BYTES, false, &written);
}

int page_replay(struct recover_job *j, uint32_t entry, int fd, const struct page_scan_file *pages)
{
	struct statx st;
	struct arena_entry *e = foreign_entry(&j->a, entry);
	int r = replay_stamp(j, e);

	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (r == 0 && st.stx_size > pages->lowest)
		r = set_size(fd, pages->lowest);
	for (uint32_t i = 0; r == 0 && i < pages->frames; i++) {
		r = replay_stamp(j, e);
		if (r == 0)
			r = write_page(j, fd, pages, j->a.pages.order[i]);
	}
	if (r == 0)
		r = set_size(fd, pages->size);
	return r;
}
