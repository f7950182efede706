// SPDX-License-Identifier: Apache-2.0
/* page_log: see recovery/page_log.h. */
#include "recovery/page_log.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "format/journal_format.h"
#include "format/wal_scan.h"
#include "recovery/judge.h"
#include "wal/spare.h"
#include "wal/wal.h"

#include <fcntl.h>
#include <sys/mman.h>

/* A batch has fewer images: each stays as it is until its batch is written. */
enum { RING = 2 * WAL_IMAGES_MAX };

struct page_log {
	struct wal wal;
	_Alignas(WAL_PAGE_BYTES) uint8_t batch[WAL_BATCH_MOST]; /* of the scan */
	_Alignas(WAL_PAGE_BYTES) uint8_t ring[RING][WAL_PAGE_BYTES];
	uint32_t next; /* in the ring */
};

static bool is_ordered(const struct arena_entry *e)
{
	return e->used && (e->flags & ENTRY_ORDERED) && e->path[0] == '/';
}

/* The program has removed the file. */
static bool is_gone(const struct recover_job *j, const struct arena_entry *e)
{
	BUFFER(struct recover_target, t);
	int r;

	if (!(e->flags & ENTRY_REMOVED))
		return false;
	r = recover_target_open(t, e, &j->place, false);
	recover_target_close(t);
	return r == -ENOENT;
}

/* How many entries have pages in order; 0 also if one of them will not go to its file. */
static uint32_t count_files(struct recover_job *j)
{
	BUFFER(struct recover_target, t);
	struct page_scan_file pages;
	uint32_t count = 0;

	for (uint32_t i = 0; i < j->a.header.entry_count; i++) {
		struct arena_entry *e = foreign_entry(&j->a, i);
		const char *aside;

		e->path[ARENA_PATH_MAX - 1] = '\0';
		if (!is_ordered(e) || foreign_pages(&j->a, i, &pages) == 0 || is_gone(j, e))
			continue;
		if (foreign_pages(&j->a, i, &pages) < 0 || recover_target_open(t, e, &j->place, false) < 0)
			return 0;
		aside = judge_pages(j, i, t);
		recover_target_close(t);
		if (aside)
			return 0;
		count++;
	}
	return count;
}

static int put_page(struct page_log *p, struct recover_job *j, uint32_t number,
                    const struct page_scan_file *pages, uint32_t frame)
{
	uint32_t n = page_scan_bytes(&j->a.pages, pages, frame);
	uint8_t *page = p->ring[p->next++ % RING];
	int r = foreign_read_frame(&j->a, frame, page, n);

	return r < 0 ? r : wal_put_page(&p->wal, number, j->a.pages.table[frame].page, page, n);
}

static int put_file(struct page_log *p, struct recover_job *j, uint32_t number)
{
	const struct arena_entry *e = foreign_entry(&j->a, number);
	struct page_scan_file pages;
	int r = is_ordered(e) && !is_gone(j, e) ? foreign_pages(&j->a, number, &pages) : 0;

	if (r <= 0)
		return r;
	r = wal_put_name(&p->wal, number, e, 0);
	if (r == 0)
		r = wal_put_size(&p->wal, number,
		                 &(struct wal_size){.size = pages.size,
		                                    .lowest = pages.lowest,
		                                    .mtime_sec = pages.mtime_sec,
		                                    .mtime_nsec = pages.mtime_nsec});
	for (uint32_t i = 0; i < pages.frames && r == 0; i++)
		r = put_page(p, j, number, &pages, j->a.pages.order[i]);
	return r;
}

static int put_all(struct page_log *p, struct recover_job *j, int fd)
{
	struct wal_scan scan = {0};
	struct statx st;
	int r = claim_file_allowed(j->dirfd, fd);
	bool met;

	if (r == 0)
		r = claim_lock(fd, &met);
	if (r == 0)
		r = wal_scan_begin(&scan, fd, p->batch);
	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r == 0 && scan.header.ino != st.stx_ino)
		r = -ESTALE;
	if (r < 0)
		return r;
	(void)spare_give(fd); /* (then the disk may be too full) */
	wal_continue(&p->wal, fd, &scan.header, scan.last, scan.end);
	r = sys_read_all(fd, &p->wal.late, sizeof p->wal.late, WAL_REPLAY_AT);
	/* (an earlier try has put all of it there, and may have changed files) */
	if (r < 0 || scan.recovery)
		return r;
	/* what the dead process left to the kernel came before */
	r = (int)sys_raw(SYS_syncfs, fd, 0, 0, 0, 0, 0);
	if (r == 0)
		r = wal_make_room(&p->wal); /* (it may have died before it emptied the log) */
	if (r < 0)
		return r;
	wal_begin(&p->wal);
	for (uint32_t i = 0; i < j->a.header.entry_count && r == 0; i++)
		r = put_file(p, j, i);
	return r < 0 ? r : wal_commit(&p->wal);
}

static void say_unordered(const struct recover_job *j, int r)
{
	log_info("recovery: %s: not in order if power is lost now: error %d", j->arena, -r);
}

void page_log(struct recover_job *j, const char *name)
{
	struct page_log *p;
	BUFFER(char, log);
	int fd, r;

	if (count_files(j) == 0)
		return;
	journal_name_of(name, log);
	fd = sys.openat(j->dirfd, log, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return; /* (its process had not made it to the end) */
	p = sys.mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r = sys_is_error(p) ? (int)(intptr_t)p : put_all(p, j, fd);
	if (r == 0) {
		j->log = p;
		return;
	}
	say_unordered(j, r);
	if (!sys_is_error(p))
		sys.munmap(p, sizeof *p);
	sys.close(fd);
}

void page_log_late(struct recover_job *j, int64_t since_ns)
{
	int r = j->log ? wal_late(&j->log->wal, since_ns) : 0;

	if (r == 0)
		return;
	say_unordered(j, r);
	page_log_end(j);
}

void page_log_end(struct recover_job *j)
{
	struct page_log *p = j->log;

	if (!p)
		return;
	sys.close(p->wal.fd);
	sys.munmap(p, sizeof *p);
	j->log = NULL;
}
