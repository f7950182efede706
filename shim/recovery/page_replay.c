// SPDX-License-Identifier: Apache-2.0
/* page_replay: see recovery/page_replay.h. */
#include "recovery/page_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/sys.h"
#include "recovery/page_log.h"
#include "recovery/replay.h"

#include <fcntl.h>

static int set_size(struct recover_job *j, struct arena_entry *e, int fd, uint64_t size)
{
	int64_t since_ns = sys_wall_ns();
	int r;

	page_log_late(j, since_ns);
	/* (right before the change: the note may have taken long) */
	r = replay_stamp(j, e);
	if (r < 0)
		return r;
	kill_step();
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	page_log_late(j, since_ns);
	return r;
}

static int write_page(struct recover_job *j, struct arena_entry *e, int fd,
                      const struct page_scan_file *pages, uint32_t frame)
{
	uint32_t n = page_scan_bytes(&j->a.pages, pages, frame);
	int64_t since_ns = sys_wall_ns();
	BUFFER(uint8_t, data);
	uint64_t written;
	int r = foreign_read_frame(&j->a, frame, data, n);

	if (r < 0)
		return r;
	page_log_late(j, since_ns);
	r = replay_stamp(j, e);
	if (r < 0)
		return r;
	r = bytes_write(fd, data, n, j->a.pages.table[frame].page * PAGES_BYTES, false, &written);
	page_log_late(j, since_ns);
	return r;
}

int page_replay(struct recover_job *j, uint32_t entry, int fd, const struct page_scan_file *pages)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	if (r == 0)
		r = bytes_have_offsets(fd);
	if (r == 0 && st.stx_size > pages->lowest)
		r = set_size(j, e, fd, pages->lowest);
	for (uint32_t i = 0; r == 0 && i < pages->frames; i++)
		r = write_page(j, e, fd, pages, j->a.pages.order[i]);
	return r == 0 ? set_size(j, e, fd, pages->size) : r;
}
