// SPDX-License-Identifier: Apache-2.0
/* arena: see recovery/arena.h. */
#include "recovery/arena.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "foreign/names.h"
#include "format/journal_format.h"
#include "recovery/aside.h"
#include "recovery/entry.h"
#include "recovery/journal.h"
#include "recovery/judge.h"
#include "recovery/living.h"
#include "recovery/page_log.h"

#include <fcntl.h>
#include <string.h>

static bool is_there(const struct recover_job *j, const char *name)
{
	return sys_raw(SYS_faccessat, j->dirfd, (long)name, 0, 0, 0, 0) == 0;
}

/*
 * After another boot or mount the journal comes first.  Its entries are whole, and the program was promised
 * that they are durable; the arena may be older.  A file that the journal changes is then not as the arena
 * left it, and the arena's bytes for it are put aside.
 */
static void journal_first(struct recover_job *j, const char *name)
{
	BUFFER(char, dir);
	BUFFER(char, journal);

	journal_name_of(name, journal);
	j->log_waits = j->where != ORIGIN_SAME && is_there(j, journal);
	if (!j->log_waits || j->only)
		return;
	log_format(dir, PATH_MAX, "%s", j->arena);
	*strrchr(dir, '/') = '\0';
	judge_note_held(j);
	if (recover_journal(dir, j->dirfd, journal, j->in_aside, &j->a, j->opt, j->report))
		j->where = ORIGIN_OTHER;
	j->log_waits = is_there(j, journal);
}

/* 0 when nothing in the arena waits for another try; else the last error. */
static int recover_entries(struct recover_job *j)
{
	int failed = 0;

	for (uint32_t i = 0; i < j->a.header.entry_count; i++) {
		int r;

		if (!foreign_entry(&j->a, i)->used)
			continue;
		if (j->only && !recover_target_is(j->only, foreign_entry(&j->a, i), &j->place)) {
			j->keeps = true;
			continue;
		}
		r = entry_recover(j, i);
		if (r < 0) {
			failed = r;
			j->report->failed++;
		}
	}
	return failed;
}

/* What was synced by sync = journal is about to be nowhere else on the disk.  (The kernel reports once what
 * it could not write.) */
static int put_aside(struct recover_job *j, const char *name)
{
	if (!j->synced)
		j->sync_error = sys.fdatasync(j->a.fd);
	j->synced = true;
	return j->sync_error < 0 ? j->sync_error : recover_put_aside(&j->a, j->dirfd, name);
}

/* The arena goes: away, or aside when it keeps something. */
static void put_away(struct recover_job *j, const char *name)
{
	int r = 0;

	if (!j->keeps)
		r = sys.unlinkat(j->dirfd, name, 0);
	else if (!j->in_aside && !j->only && !j->moved)
		r = put_aside(j, name);
	if (r < 0 && r != -ENOENT)
		job_failed(j, "", 0, r,
		           j->keeps ? "cannot be put aside; left where it is" : "cannot be removed");
}

/*
 * What the user forces for one file would come before what was synced for it, or a later replay of that would
 * write over it.
 */
static bool is_forced_too_early(const struct recover_job *j)
{
	for (uint32_t i = 0; j->only && j->log_waits && i < j->a.header.entry_count; i++) {
		const struct arena_entry *e = foreign_entry(&j->a, i);

		if (e->used && recover_target_is(j->only, e, &j->place))
			return true;
	}
	return false;
}

/* The arena is dead, loaded and locked. */
static void recover_dead_arena(struct recover_job *j, const char *name, int fd)
{
	BUFFER(struct recover_rights, rights);
	int r = job_find_place(j, fd);

	if (r == 0)
		journal_first(j, name);
	if (r == 0 && is_forced_too_early(j)) {
		job_failed(j, "", 0, -EBUSY,
		           "what was synced for it is still in the log beside it; run `fastwrite recover` "
		           "without --force first; left alone");
		job_leave_place(j);
		foreign_unload(&j->a);
		return;
	}
	if (r == 0)
		r = job_take_rights(j, rights);
	if (r == 0) {
		if (j->where == ORIGIN_SAME && !j->in_aside && !j->only && !j->opt->dry_run)
			page_log(j, name);
		r = recover_entries(j);
		page_log_end(j);
		/* (with the owner's rights; where several users stage, `aside` is root's: put_away tries
		 * again as root) */
		if (r == 0 && j->keeps && !j->in_aside && !j->only && !j->opt->dry_run)
			j->moved = put_aside(j, name) == 0;
		recover_rights_drop(rights);
	} else {
		job_failed(j, "", 0, r, "cannot act with the rights of its owner; left alone");
	}
	job_leave_place(j);
	kill_step();
	if (r == 0 && !j->opt->dry_run)
		put_away(j, name);
	foreign_unload(&j->a);
	kill_step();
}

/* 0: the arena is loaded; -EWOULDBLOCK: the process that made it runs; other -errno. */
static int load_dead(struct recover_job *j, int fd)
{
	int r = foreign_load(&j->a, fd);

	if (r < 0)
		return r;
	r = claim_maker(fd, &j->a.header.origin, j->a.header.pid, j->a.header.pid_start,
	                j->opt->force && j->opt->named, &j->where);
	if (r < 0)
		foreign_unload(&j->a);
	return r;
}

/* (noinline: keeps the stack of a recovery small) */
__attribute__((noinline)) static void refuse_newer(const struct recover_job *j)
{
	char text[FORMAT_NEWER_MAX];

	j->report->beyond++;
	job_failed(j, "", 0, FORMAT_NEWER,
	           format_newer_text(j->a.header.version, ARENA_VERSION_NEWEST, text));
}

/* The arena cannot be recovered. */
static void refuse(struct recover_job *j, const char *name, int error)
{
	if (error == -ENODATA && !names_is_ours(name, ARENA_SUFFIX))
		error = -EBADMSG;
	if (error == -ENODATA) {
		/* (a journal beside it shows that its pages were lost) */
		memset(&j->a, 0, sizeof j->a);
		j->where = ORIGIN_OTHER;
		journal_first(j, name);
		job_tell(j, "", "nothing", 0, 0, "its process died before it used it");
		if (!j->opt->dry_run)
			sys.unlinkat(j->dirfd, name, 0);
		return;
	}
	if (error == FORMAT_NEWER) {
		refuse_newer(j);
		return;
	}
	j->report->beyond += error == CLAIM_OTHER_KIND;
	job_failed(j, "", 0, error,
	           error == -EBADMSG ? "not an arena, or damaged or truncated; left alone"
	                             : claim_refusal(error));
}

/* fd: of the arena, or the -errno of its open. */
static void recover_open(struct recover_job *j, const char *name, int fd)
{
	int r = fd < 0 ? fd : claim_file_allowed(j->dirfd, fd);
	bool met;

	if (r == 0) {
		r = claim_lock(fd, &met);
		/* (several that waited for it share the lock, as a living family does) */
		if ((r == 0 || r == -EWOULDBLOCK) && !sys_still_linked(fd)) {
			j->report->elsewhere += met;
			return;
		}
		if (r == -EWOULDBLOCK) {
			living_recover(j, fd);
			return;
		}
	}
	if (r == 0)
		r = load_dead(j, fd);
	if (r == 0) {
		recover_dead_arena(j, name, fd);
	} else if (r == -EWOULDBLOCK) {
		j->report->live++;
		job_tell(j, "", "live", 0, 0, "its process is running");
	} else {
		refuse(j, name, r);
	}
}

void recover_arena(struct recover_job *j, const char *name)
{
	struct sys_quiet quiet; /* beyond RLIMIT_FSIZE is an error like any other, and no SIGXFSZ */
	int fd;

	j->report->arenas++;
	if (claim_is_own(name)) {
		/* (opening it, or closing it, would be work for nothing) */
		j->report->live++;
		j->report->own++;
		return;
	}
	sys_quiet_begin(&quiet);
	fd = claim_open(j->dirfd, name, j->opt->dry_run);
	if (fd != -ENOENT)
		recover_open(j, name, fd);
	if (fd >= 0)
		sys.close(fd);
	sys_quiet_end(&quiet);
}
