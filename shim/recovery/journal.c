// SPDX-License-Identifier: Apache-2.0
/* journal: see recovery/journal.h. */
#include "recovery/journal.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "foreign/names.h"
#include "foreign/rights.h"
#include "recovery/aside.h"
#include "recovery/journal_replay.h"
#include "recovery/wal_replay.h"

#include <fcntl.h>
#include <sys/mman.h>

static bool is_own(const char *name)
{
	BUFFER(char, arena);

	journal_arena_of(name, arena);
	return claim_is_own(arena);
}

/*
 * In the same boot the arena of the same process may still be there: its recovery failed for some files.  Of
 * those the journal keeps what was synced.  1: loaded, *a; 0: there is none; or -errno.
 */
static int load_waiting(const struct journal_scan *s, const char *name, struct foreign_arena *a)
{
	BUFFER(char, arena);
	int fd, r;

	journal_arena_of(name, arena);
	fd = sys.openat(s->dirfd, arena, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	r = foreign_load(a, fd);
	if (r < 0)
		sys.close(fd);
	return r < 0 ? r : 1;
}

static void recover_loaded(struct journal_scan *s, const char *name, bool replay)
{
	BUFFER(struct recover_rights, rights);
	bool moved = false;
	struct statx st;
	int r = sys.statx(s->fd, "", AT_EMPTY_PATH, STATX_UID, &st);

	if (r == 0)
		r = recover_rights_take(rights, st.stx_uid);
	if (r < 0) {
		scan_failed(s, "", 0, r, "cannot act with the rights of its owner; left alone");
		return;
	}
	r = scan_take_batch(s);
	if (r == 0)
		r = journal_replay_all(s, replay);
	if (r == 0 && s->keeps && !s->in_aside && !s->opt->dry_run)
		moved = recover_move_aside(s->dirfd, name) == 0;
	recover_rights_drop(rights);
	if (r < 0 && !s->told) {
		scan_failed(s, "", 0, r,
		            r == -EBADMSG ? "damaged; left alone" : "cannot be read; left alone");
	}
	if (r == 0 && s->keeps && !s->in_aside && !moved && !s->opt->dry_run) {
		r = recover_move_aside(s->dirfd, name);
		if (r < 0) {
			scan_failed(s, "", 0, r, "cannot be put aside; left where it is");
		}
	} else if (r == 0 && !s->keeps && !s->opt->dry_run) {
		kill_step();
		r = scan_end_for_good(s);
		kill_step();
		if (r == 0) {
			sys.unlinkat(s->dirfd, name, 0);
		} else {
			scan_failed(s, "", 0, r, "its files are done, but it cannot be removed");
		}
	}
	files_forget(s);
	if (s->batch)
		sys.munmap(s->batch, JOURNAL_BATCH_MAX);
}

/* The boot of this kernel, from which the files' times come. */
static int note_boot(struct journal_scan *s)
{
	struct origin now;
	int r = origin_here(s->fd, &now);

	if (r < 0)
		return r;
	s->boot_ns = now.boot_ns;
	return journal_replay_load(s);
}

bool recover_journal(const char *dir, int dirfd, const char *name, bool in_aside,
                     const struct foreign_arena *held, const struct recover_options *opt,
                     struct recover_report *report)
{
	BUFFER(char, path);
	BUFFER(struct journal_scan, s);
	BUFFER(struct foreign_arena, arena);
	struct sys_quiet quiet;
	bool replay, met;
	int r;

	log_format(path, BUFFER_BYTES, "%s/%s", dir, name);
	*s = (struct journal_scan){.opt = opt,
	                           .report = report,
	                           .path = path,
	                           .dirfd = dirfd,
	                           .in_aside = in_aside,
	                           .held = held};
	s->place.staging_fd =
		in_aside ? sys.openat(dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0) : dirfd;
	report->arenas++;
	if (is_own(name)) {
		report->live++;
		report->own++;
		return false;
	}
	if (s->place.staging_fd < 0)
		return false;
	s->fd = claim_open(dirfd, name, opt->dry_run);
	if (s->fd == -ENOENT && !in_aside)
		return false;
	sys_quiet_begin(&quiet);
	r = s->fd < 0 ? s->fd : claim_file_allowed(dirfd, s->fd);
	if (r == 0)
		r = claim_lock(s->fd, &met);
	if (r == 0 && !sys_still_linked(s->fd)) {
		report->elsewhere += met;
		goto out;
	}
	if (r == 0 && wal_replay_is(s->fd)) {
		/* the file of sync = ordered has the same name */
		wal_replay(&(struct wal_recovery){.opt = opt,
		                                  .report = report,
		                                  .path = path,
		                                  .fd = s->fd,
		                                  .dirfd = dirfd,
		                                  .in_aside = in_aside,
		                                  .staging_fd = s->place.staging_fd,
		                                  .held = held},
		           name);
		goto out;
	}
	if (r == 0)
		r = scan_load_header(s);
	if (r == 0)
		r = claim_maker(s->fd, &s->header.origin, s->header.pid, s->header.pid_start,
		                opt->force && opt->named, &s->where);
	if (r == 0)
		r = note_boot(s);
	if (r == -EWOULDBLOCK) {
		report->live++;
		goto out;
	}
	/* (what was put aside is judged no more: another boot's clock may have been like this one's) */
	replay = s->where != ORIGIN_SAME || in_aside;
	if (r == 0 && !replay && !opt->dry_run) {
		r = load_waiting(s, name, arena);
		if (r < 0)
			goto out; /* (nobody can tell of which files it holds bytes) */
		if (r > 0)
			s->waiting = arena;
		r = 0;
	}
	if (r == 0) {
		recover_loaded(s, name, replay);
		if (s->waiting) {
			sys.close(arena->fd);
			foreign_unload(arena);
		}
	} else if (r == -ENODATA && names_is_ours(name, JOURNAL_SUFFIX)) {
		if (!opt->dry_run)
			sys.unlinkat(dirfd, name, 0);
	} else {
		report->beyond += r == CLAIM_OTHER_KIND;
		scan_failed(s, "", 0, r,
		            r == -EBADMSG || r == -ENODATA
		                    ? "not a journal of this version, or damaged; left alone"
		                    : claim_refusal(r));
	}
out:
	if (s->fd >= 0)
		sys.close(s->fd);
	if (in_aside && s->place.staging_fd >= 0)
		sys.close(s->place.staging_fd);
	sys_quiet_end(&quiet);
	return s->where == ORIGIN_MOUNT && s->replayed.lost;
}
