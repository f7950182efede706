// SPDX-License-Identifier: Apache-2.0
/* page_replay: see recovery/page_replay.h. */
#include "recovery/page_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/sys.h"
#include "recovery/replay.h"
#include "wal/wal.h"

#include <fcntl.h>

/* Around a change of a file. */
static int note_late(const struct recover_job *j, int64_t since_ns)
{
	return j->log ? wal_late(j->log, since_ns) : 0;
}

static int set_size(const struct recover_job *j, int fd, uint64_t size)
{
	int64_t since_ns = sys_wall_ns();
	int r = note_late(j, since_ns);

	if (r < 0)
		return r;
	kill_step();
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	return r < 0 ? r : note_late(j, since_ns);
}

static int write_page(const struct recover_job *j, int fd, const struct page_scan_file *pages, uint32_t frame)
{
	uint32_t n = page_scan_bytes(&j->a.pages, pages, frame);
	int64_t since_ns = sys_wall_ns();
	BUFFER(uint8_t, data);
	uint64_t written;
	int r = foreign_read_frame(&j->a, frame, data, n);

	if (r == 0)
		r = note_late(j, since_ns);
	if (r == 0)
		r = bytes_write(fd, data, n, j->a.pages.table[frame].page * PAGES_BYTES, false, &written);
	return r < 0 ? r : note_late(j, since_ns);
}

int page_replay(struct recover_job *j, uint32_t entry, int fd, const struct page_scan_file *pages)
{
	struct statx st;
	struct arena_entry *e = foreign_entry(&j->a, entry);
	int r = replay_stamp(j, e);

	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);
	if (r == 0 && st.stx_size > pages->lowest)
		r = set_size(j, fd, pages->lowest);
	for (uint32_t i = 0; r == 0 && i < pages->frames; i++) {
		r = replay_stamp(j, e);
		if (r == 0)
			r = write_page(j, fd, pages, j->a.pages.order[i]);
	}
	if (r == 0)
		r = set_size(j, fd, pages->size);
	return r;
}
