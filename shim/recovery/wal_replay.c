// SPDX-License-Identifier: Apache-2.0
/* wal_replay: see recovery/wal_replay.h. */
#include "recovery/wal_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "foreign/parse.h"
#include "foreign/rights.h"
#include "format/journal_format.h"
#include "format/wal_scan.h"
#include "recovery/aside.h"
#include "recovery/judge.h"
#include "recovery/wal_files.h"
#include "wal/spare.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

struct replay {
	const struct wal_recovery *w;
	enum origin_verdict where;
	int64_t boot_ns; /* of this boot */
	struct wal_scan scan;
	struct wal_replay note; /* of this recovery, and of those before it */
	bool changes;           /* this one has changed a file */
	struct recover_place place;
	struct wal_files files;
	bool cuts;         /* some files are maybe_cut */
	bool elsewhere;    /* some files are on other file systems than the log */
	const char *aside; /* why the log is put aside; NULL: it is not */
};

static void tell(const struct wal_recovery *w, const char *target, const char *action, uint64_t bytes,
                 int error, const char *detail)
{
	struct recover_event e = {.arena = w->path,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (w->opt->event)
		w->opt->event(w->opt->ctx, &e);
}

static void failed(const struct wal_recovery *w, const char *target, int error, const char *detail)
{
	w->report->failed++;
	tell(w, target, "failed", 0, error, detail);
}

bool wal_replay_is(int fd)
{
	uint64_t magic;

	return sys_read_all(fd, &magic, sizeof magic, 0) == 0 && magic == WAL_MAGIC;
}

/* ---- its files ---- */

static int visit_count(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;

	if (item->type != WAL_NAME)
		return 0;
	r->files.names++;
	r->files.path_bytes += item->name->path_bytes;
	r->elsewhere |= item->name->dev != r->scan.header.origin.dev;
	return 0;
}

/* Finds the cuts that a mount may have made. */
static int visit_cut(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	const struct wal_file *f = wal_files_find(&r->files, item);
	struct wal_file *same = NULL;

	if (!f || item->type != WAL_SIZE || !(item->size->flags & WAL_CUTS))
		return 0;
	while ((same = wal_files_same(&r->files, f, same)) != NULL)
		same->maybe_cut &= item->size->lowest != same->cut;
	return 0;
}

static const char *const changed_late = "was changed after the power loss, before recovery";

/* The times of some files may be those of the mount, which has made them as short as an epoch says. */
static void judge_cuts(struct replay *r)
{
	/* (after an error the others stay in doubt) */
	(void)wal_scan_each(&r->scan, visit_cut, r);
	for (uint64_t i = 0; i < r->files.count; i++)
		if (r->files.files[i].maybe_cut)
			r->aside = changed_late;
}

/* The file may have got this time by a recovery that did not end, in this boot or an earlier one. */
static bool is_ours(const struct replay *r, int64_t changed)
{
	/* (the moment of the boot moves when the clock is set) */
	bool here = r->note.begun_ns >= r->boot_ns || (r->note.boot_ns >= r->boot_ns - ORIGIN_SLACK_NS &&
	                                               r->note.boot_ns <= r->boot_ns + ORIGIN_SLACK_NS);

	return r->note.boot_ns && changed >= r->note.begun_ns && changed <= r->note.until_ns &&
	       (here || changed < r->boot_ns);
}

/* After another boot: the time is of this one.  One that is yet to come is not: a clock without a battery
 * goes behind until a server of time is asked. */
static bool is_of_this_boot(const struct replay *r, int64_t changed)
{
	return r->where == ORIGIN_OTHER && changed >= r->boot_ns && changed <= sys_wall_fine_ns();
}

/*
 * Was the file changed since the log was written, by somebody else?  After another boot: in this one, by a
 * program that did not wait for recovery.  It may have been a mount: see judge_cuts.
 */
static bool is_changed(struct replay *r, struct wal_file *f, int fd)
{
	const struct identity id = {
		.ino = f->name.ino, .btime_sec = f->name.btime_sec, .btime_nsec = f->name.btime_nsec};
	struct statx st;
	int64_t changed;

	if (r->w->opt->force)
		return false;
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
		return true;
	changed = judge_changed_ns(r->w->held, f->name.dev, &id, &st);
	/* (the log may have waited for several boots) */
	if (is_ours(r, changed) ||
	    (changed <= r->scan.written_ns + WAL_LATE_NS && !is_of_this_boot(r, changed)))
		return false;
	f->cut = st.stx_size;
	f->maybe_cut =
		st.stx_mtime.tv_sec == st.stx_ctime.tv_sec && st.stx_mtime.tv_nsec == st.stx_ctime.tv_nsec;
	r->cuts |= f->maybe_cut;
	return !f->maybe_cut;
}

/* (it may have had another name before) */
static void take_size(const struct replay *r, const struct wal_file *f, const struct wal_size *size)
{
	struct wal_file *same = NULL;

	while ((same = wal_files_same(&r->files, f, same)) != NULL) {
		if (size->flags & WAL_IN_FILE)
			same->kept = size->size;
		else if (size->lowest < same->kept)
			same->kept = size->lowest;
	}
}

/* A start waits no longer than this for a log that another user has made. */
static int go_on(const struct replay *r)
{
	if (!claim_gave_up())
		return 0;
	failed(r->w, "", -ETIMEDOUT, "it names more files than a start may look for; left alone");
	return -ETIMEDOUT;
}

/* Before the replay: what each file is, and what of it the replay must not cut. */
static int visit_file(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	struct wal_file *f;
	int e = go_on(r);

	if (e < 0)
		return e;
	if (item->type == WAL_NAME)
		return wal_files_take(&r->files, item);
	f = wal_files_find(&r->files, item);
	if (!f)
		return -EBADMSG;
	if (item->type == WAL_SIZE) {
		take_size(r, f, item->size);
		f->changes = true;
	}
	return 0;
}

static const char *failure(int error)
{
	if (error == RECOVER_ELSEWHERE)
		return "its directory is not there: mounted elsewhere, or in a container?  left in the log";
	if (error == RECOVER_UNMOUNTED)
		return "it was on another volume than its directory is: not mounted?  left in the log; if it is "
		       "gone, `fastwrite recover --force` with the log's name makes an orphan";
	return "left in the log";
}

/* A file that is missing gets an orphan.  Descriptor or -errno. */
static int open_target(struct replay *r, struct wal_file *f)
{
	int fd = wal_files_open(&r->files, f, &r->place);

	if (fd < 0 && (f->missing || fd != -ENOENT))
		failed(r->w, wal_files_path(&r->files, f), fd, failure(fd));
	return fd;
}

static int open_file(struct replay *r, struct wal_file *f)
{
	int fd = open_target(r, f), e;

	f->missing = fd == -ENOENT;
	f->gone = f->missing && f->goes;
	if (fd < 0)
		return f->missing ? 0 : fd;
	e = bytes_have_offsets(fd);
	if (e < 0) {
		failed(r->w, wal_files_path(&r->files, f), e, "it is append-only; left in the log");
		return e;
	}
	if (is_changed(r, f, fd))
		r->aside = changed_late;
	return 0;
}

static int open_all(struct replay *r)
{
	int e = wal_scan_each(&r->scan, visit_file, r);

	if (e < 0 && e != -ETIMEDOUT)
		failed(r->w, "", e, "damaged, or cannot be read; left alone");
	for (uint64_t i = 0; i < r->files.count && e == 0; i++) {
		e = go_on(r);
		if (e == 0)
			e = open_file(r, &r->files.files[i]);
	}
	if (e == 0 && r->cuts && !r->aside)
		judge_cuts(r);
	return e;
}

/* The log is about to be replayed: what it has of files that are gone is kept. */
static int keep_gone(struct replay *r)
{
	int e = 0;

	for (uint64_t i = 0; i < r->files.count && e == 0; i++) {
		struct wal_file *f = &r->files.files[i];

		if (f->missing && f->changes && !f->gone)
			e = open_target(r, f);
		e = e < 0 ? e : 0;
	}
	return e;
}

/* ---- replay ---- */

static int put_note(struct replay *r, int64_t until_ns)
{
	uint64_t written;
	int e;

	r->note.boot_ns = r->boot_ns;
	r->note.until_ns = until_ns;
	e = bytes_write(r->w->fd, (const uint8_t *)&r->note, sizeof r->note, WAL_REPLAY_AT, false, &written);
	kill_step();
	return e < 0 ? e : sys.fdatasync(r->w->fd);
}

/* We are about to change a file: notes until when, durably, so that the next recovery knows our changes, also
 * if power is lost again.  (If a recovery before us noted its own, nobody else has changed the files since.)
 */
static int note_change(struct replay *r)
{
	int64_t now = sys_wall_ns(), ahead = WAL_REPLAY_AHEAD_NS;
	int e = 0;

	if (!r->changes) {
		/* so that what others wrote up to now has an older time than what we write */
		sys_nap(WAL_TICK_NS);
		now = sys_wall_ns();
	}
	if (!r->note.boot_ns || now - WAL_TICK_NS / 2 < r->note.begun_ns)
		r->note.begun_ns = now - WAL_TICK_NS / 2;
	/* (a slow device: the note must hold for longer than it takes to write it) */
	for (; e == 0 && (!r->changes || now + WAL_REPLAY_AHEAD_NS / 4 * 3 > r->note.until_ns); ahead *= 2) {
		e = put_note(r, now + ahead > r->note.until_ns ? now + ahead : r->note.until_ns);
		r->changes |= e == 0;
		now = sys_wall_ns();
	}
	return e;
}

/* This recovery changes nothing any more: what comes now is of others. */
static void end_changes(struct replay *r)
{
	int64_t until_ns = sys_wall_ns() + WAL_TICK_NS;

	if (r->changes && until_ns < r->note.until_ns)
		(void)put_note(r, until_ns);
}

static int resize(int fd, uint64_t size)
{
	int r;

	kill_step();
	r = sys.ftruncate(fd, (off_t)size);
	kill_step();
	return r;
}

static uint64_t no_less_than_kept(const struct wal_file *f, uint64_t size)
{
	return size > f->kept ? size : f->kept;
}

static int replay_size(struct wal_file *f, int fd, const struct wal_size *size)
{
	uint64_t lowest = no_less_than_kept(f, size->lowest);
	struct statx st;
	int e = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	f->size = *size;
	if (e == 0 && st.stx_size > lowest)
		e = resize(fd, lowest);
	return e == 0 ? resize(fd, no_less_than_kept(f, size->size)) : e;
}

static int replay_page(struct wal_file *f, int fd, const struct wal_item *item)
{
	uint64_t at = item->page * WAL_PAGE_BYTES, n, written;
	int e;

	if (at >= f->size.size)
		return -EBADMSG;
	n = f->size.size - at < WAL_PAGE_BYTES ? f->size.size - at : WAL_PAGE_BYTES;
	e = bytes_write(fd, item->image, n, at, false, &written);
	f->bytes += written;
	kill_step();
	return e;
}

static int visit_replay(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	struct wal_file *f = wal_files_find(&r->files, item);
	int e, fd;

	if (f && f->gone)
		return 0;
	e = f ? note_change(r) : -EBADMSG;
	if (e < 0 || item->type == WAL_NAME)
		return e;
	fd = f->changes ? wal_files_open(&r->files, f, &r->place) : -EBADMSG;
	if (fd < 0)
		return fd;
	return item->type == WAL_SIZE ? replay_size(f, fd, item->size) : replay_page(f, fd, item);
}

/* The file is as the program saw it: its time, too, if we may set it. */
static int finish(struct replay *r, struct wal_file *f)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
	                            {.tv_sec = f->size.mtime_sec, .tv_nsec = f->size.mtime_nsec}};
	int fd = wal_files_open(&r->files, f, &r->place);

	if (fd < 0)
		return fd;
	kill_step();
	sys_raw(SYS_utimensat, fd, 0, (long)times, 0, 0, 0);
	return sys.fsync(fd);
}

/* The kernel has made this name, or not removed it, and the program stood before that, or behind it.  Its
 * file got no bytes.  Anything else is not what the log speaks of. */
static bool is_left(const struct replay *r, const struct statx *st)
{
	int64_t changed = st->stx_ctime.tv_sec * 1000000000ll + st->stx_ctime.tv_nsec;

	return (st->stx_mode & S_IFMT) == S_IFREG && st->stx_size == 0 && st->stx_nlink == 1 &&
	       changed <= r->scan.written_ns + WAL_LATE_NS && !is_of_this_boot(r, changed);
}

static int remove_name(const struct replay *r, const struct arena_entry *named)
{
	BUFFER(char, path);
	const char *name;
	struct statx st;
	int dirfd = recover_parent_open(named, &r->place, path, &name), e;

	if (dirfd < 0)
		return dirfd;
	e = sys.statx(dirfd, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st);
	kill_step();
	/* (the log has only names on its own file system) */
	if (e == 0 && sys_dev_of(&st) == r->place.dev_now && is_left(r, &st))
		e = sys.unlinkat(dirfd, name, 0);
	kill_step();
	sys.close(dirfd);
	return e;
}

/* What the last epoch says of names that come and go. */
static int remove_absent(struct replay *r)
{
	BUFFER(struct arena_entry, named);
	const struct wal_listed *listed;
	const char *path;
	uint32_t i = 0;
	int e;

	while ((e = wal_scan_absent(&r->scan, &i, &listed, &path)) > 0) {
		if (listed->path_bytes > ARENA_PATH_MAX)
			return -EBADMSG;
		named->below = listed->below;
		named->up = listed->up;
		memcpy(named->path, path, listed->path_bytes);
		e = remove_name(r, named);
		/* (the program's own removal was refused, too) */
		if (e < 0 && e != -ENOENT && e != RECOVER_ELSEWHERE && e != -EPERM && e != -EACCES)
			return e;
	}
	return e;
}

/* (noinline: keeps the stack of a recovery small) */
__attribute__((noinline)) static void tell_orphan(const struct replay *r, const struct wal_file *f)
{
	BUFFER(struct arena_entry, name);
	BUFFER(struct recover_target, t);
	int e;

	wal_files_entry(&r->files, f, name);
	e = recover_target_open(t, name, &r->place, true);
	tell(r->w, name->path, "orphaned", f->bytes, 0, t->path);
	if (e == 0)
		recover_target_close(t);
}

static void tell_done(const struct replay *r, const struct wal_file *f)
{
	if (f->orphan)
		tell_orphan(r, f);
	else
		tell(r->w, wal_files_path(&r->files, f), "recovered", f->bytes, 0,
		     "as the log of sync = ordered has it");
	r->w->report->orphans += f->orphan;
	r->w->report->recovered += !f->orphan;
	r->w->report->bytes += f->bytes;
}

static int visit_add(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	struct wal_file *f = wal_files_find(&r->files, item);

	if (f && item->type == WAL_PAGE)
		f->bytes += WAL_PAGE_BYTES;
	return 0;
}

static bool is_replayed(const struct wal_file *f) { return !f->gone && f->changes; }

static int replay_all(struct replay *r)
{
	bool dry_run = r->w->opt->dry_run;
	int e = 0;

	if (!dry_run) {
		(void)spare_give(r->w->fd); /* (then the disk may be too full) */
		e = keep_gone(r);
	}
	if (e < 0)
		return e;
	e = wal_scan_each(&r->scan, dry_run ? visit_add : visit_replay, r);
	for (uint64_t i = 0; i < r->files.count && e == 0 && !dry_run; i++)
		e = is_replayed(&r->files.files[i]) ? finish(r, &r->files.files[i]) : 0;
	if (e == 0 && !dry_run)
		e = remove_absent(r);
	if (e < 0) {
		end_changes(r);
		failed(r->w, "", e, "its files are not complete; left alone");
		return e;
	}
	for (uint64_t i = 0; i < r->files.count; i++)
		if (is_replayed(&r->files.files[i]))
			tell_done(r, &r->files.files[i]);
	return 0;
}

/* ---- the log ---- */

/* What the log has may be in the files, and only in the page cache. */
static int sync_files(const struct replay *r)
{
	if (r->elsewhere)
		sys_raw(SYS_sync, 0, 0, 0, 0, 0, 0);
	return (int)sys_raw(SYS_syncfs, r->w->fd, 0, 0, 0, 0, 0);
}

/* No epoch counts any more, whatever becomes of the power. */
static int end_for_good(const struct replay *r)
{
	struct wal_header h = r->scan.header;
	uint64_t written;
	int e;

	h.first = r->scan.last >= h.first ? r->scan.last + 1 : h.first;
	h.absent = (struct wal_absent){0};
	h.checksum = wal_header_checksum(&h);
	kill_step();
	e = bytes_write(r->w->fd, (const uint8_t *)&h, sizeof h, 0, false, &written);
	return e < 0 ? e : sys.fdatasync(r->w->fd);
}

static int remove_log(struct replay *r, const char *name)
{
	bool counts = r->scan.epochs > 0 || r->scan.absent.list;
	int e = counts ? sync_files(r) : 0;

	if (e == 0 && counts)
		e = end_for_good(r);
	kill_step();
	if (e == 0)
		e = sys.unlinkat(r->w->dirfd, name, 0);
	kill_step();
	if (e < 0) {
		end_changes(r);
		failed(r->w, "", e, "its files are done, but it cannot be removed");
	}
	return e;
}

static void put_aside(struct replay *r, const char *name)
{
	BUFFER(char, detail);
	int e = 0;

	if (!r->w->in_aside && !r->w->opt->dry_run)
		e = recover_move_aside(r->w->dirfd, name);
	if (e < 0) {
		failed(r->w, "", e, "cannot be put aside; left where it is");
		return;
	}
	log_format(detail, BUFFER_BYTES,
	           "a file of the log of sync = ordered %s; `fastwrite recover --force` with the log's name "
	           "writes them all",
	           r->aside);
	for (uint64_t i = 0; i < r->files.count; i++) {
		r->w->report->aside++;
		tell(r->w, wal_files_path(&r->files, &r->files.files[i]), "aside", 0, 0, detail);
	}
}

/* The arena of the same process waits for another try: until then the log stays. */
static bool arena_waits(const struct wal_recovery *w, const char *name)
{
	BUFFER(char, arena);

	journal_arena_of(name, arena);
	return sys_raw(SYS_faccessat, w->dirfd, (long)arena, 0, 0, 0, 0) == 0;
}

static int load(struct replay *r)
{
	struct origin now;
	struct statx st;
	int e = sys.statx(r->w->fd, "", AT_EMPTY_PATH, STATX_INO, &st);

	if (e == 0)
		e = origin_here(r->w->fd, &now);
	if (e == 0)
		e = wal_scan_begin(&r->scan, r->w->fd, r->scan.batch);
	if (e < 0)
		return e;
	if (r->scan.header.ino != st.stx_ino)
		return -ESTALE;
	if (origin_other_kind(&r->scan.header.origin, &now) && !(r->w->opt->force && r->w->opt->named))
		return CLAIM_OTHER_KIND;
	r->where = origin_compare(&r->scan.header.origin, &now);
	r->boot_ns = now.boot_ns;
	r->place = (struct recover_place){.staging_fd = r->w->staging_fd,
	                                  .dev_then = r->scan.header.origin.dev,
	                                  .dev_now = sys_dev_of(&st),
	                                  .given_up = r->w->opt->force && r->w->opt->named};
	e = sys_read_all(r->w->fd, &r->note, sizeof r->note, WAL_REPLAY_AT);
	return e < 0 ? e : wal_scan_each(&r->scan, visit_count, r);
}

static void replay_loaded(struct replay *r, const char *name)
{
	int e = wal_files_begin(&r->files);

	if (e < 0) {
		failed(r->w, "", e, e == -ENOMEM ? "no memory; left alone" : "damaged; left alone");
	} else if (open_all(r) == 0) {
		if (r->w->in_aside && !r->w->opt->force)
			r->aside = changed_late;
		if (r->aside)
			put_aside(r, name);
		else if (replay_all(r) == 0 && !r->w->opt->dry_run)
			remove_log(r, name);
	}
	wal_files_end(&r->files);
}

/* The arena beside it is of a newer version: nobody here can tell what it has of the same files. */
static bool arena_is_newer(const struct wal_recovery *w, const char *name)
{
	BUFFER(char, arena);
	bool newer;
	int fd;

	journal_arena_of(name, arena);
	fd = sys.openat(w->dirfd, arena, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	if (fd < 0)
		return false;
	newer = foreign_is_newer(fd);
	sys.close(fd);
	return newer;
}

/* (noinline: keeps the stack of a recovery small) */
__attribute__((noinline)) static void failed_newer(const struct replay *r)
{
	char text[FORMAT_NEWER_MAX];

	r->w->report->beyond++;
	failed(r->w, "", FORMAT_NEWER, format_newer_text(r->scan.header.version, WAL_VERSION, text));
}

static void with_batch(struct replay *r, const char *name)
{
	int e = load(r);

	if (e == FORMAT_NEWER) {
		failed_newer(r);
		return;
	}
	if (e < 0) {
		r->w->report->beyond += e == CLAIM_OTHER_KIND;
		failed(r->w, "", e,
		       e == -ESTALE || e == CLAIM_OTHER_KIND ? claim_refusal(e)
		                                             : "not a log, or damaged; left alone");
		return;
	}
	if (arena_is_newer(r->w, name))
		return;
	if (r->where == ORIGIN_SAME && !r->w->in_aside) {
		/* (the arena has everything, and comes first) */
		if (!r->w->opt->dry_run && !arena_waits(r->w, name))
			remove_log(r, name);
		return;
	}
	replay_loaded(r, name);
}

void wal_replay(const struct wal_recovery *w, const char *name)
{
	BUFFER(struct recover_rights, rights);
	BUFFER(struct replay, r);
	struct statx st;
	int e = sys.statx(w->fd, "", AT_EMPTY_PATH, STATX_UID, &st);

	*r = (struct replay){.w = w};
	r->scan.batch =
		sys.mmap(NULL, WAL_BATCH_MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (e == 0 && sys_is_error(r->scan.batch))
		e = (int)(intptr_t)r->scan.batch;
	if (e == 0)
		e = recover_rights_take(rights, st.stx_uid);
	if (e == 0) {
		with_batch(r, name);
		recover_rights_drop(rights);
	} else {
		failed(w, "", e, "cannot act with the rights of its owner; left alone");
	}
	if (!sys_is_error(r->scan.batch))
		sys.munmap(r->scan.batch, WAL_BATCH_MOST);
}
