// SPDX-License-Identifier: Apache-2.0
/* wal_replay: see recovery/wal_replay.h. */
#include "recovery/wal_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/parse.h"
#include "foreign/rights.h"
#include "format/identity.h"
#include "format/journal_format.h"
#include "format/wal_scan.h"
#include "recovery/aside.h"
#include "wal/spare.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* A file that the log names. */
struct named {
	struct arena_entry name;
	struct recover_target target;
	uint32_t number; /* by which the records of `epoch` call it */
	uint64_t epoch;
	bool changes;         /* the log has more of it than its name */
	struct wal_size size; /* of its last SIZE record */
	uint64_t kept; /* the file has bytes up to there that no image has, and the last epoch has, too */
	bool goes;     /* the last epoch says so: the program may have removed it */
	bool gone;     /* it has */
	uint64_t bytes;
};

struct replay {
	const struct wal_recovery *w;
	enum origin_verdict where;
	int64_t boot_ns; /* of this boot */
	struct wal_scan scan;
	struct wal_replay note; /* of this recovery, and of those before it */
	bool changes;           /* this one has changed a file */
	struct recover_place place;
	struct named *files;
	uint64_t count, room;
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

static struct named *file_of(const struct replay *r, const struct wal_item *item)
{
	for (uint64_t i = r->count; i > 0; i--)
		if (r->files[i - 1].epoch == item->epoch && r->files[i - 1].number == item->file)
			return &r->files[i - 1];
	return NULL;
}

static bool is_file(const struct arena_entry *e, const struct arena_entry *other)
{
	struct identity a, b;

	identity_of_entry(e, &a);
	identity_of_entry(other, &b);
	return e->dev == other->dev && identity_same(&a, &b);
}

/* The same file under the same name, as an earlier epoch has named it. */
static struct named *known(const struct replay *r, const struct wal_item *item)
{
	for (uint64_t i = 0; i < r->count; i++) {
		const struct arena_entry *e = &r->files[i].name;

		if (e->ino == item->name->ino && e->dev == item->name->dev &&
		    e->generation == item->name->generation && e->handle_hash == item->name->handle_hash &&
		    e->btime_sec == item->name->btime_sec && e->btime_nsec == item->name->btime_nsec &&
		    strcmp(e->path, item->path) == 0)
			return &r->files[i];
	}
	return NULL;
}

/* The file of any record; a name gives it the number of its epoch. */
static struct named *find_file(const struct replay *r, const struct wal_item *item)
{
	struct named *f = item->type == WAL_NAME ? known(r, item) : file_of(r, item);

	if (f && item->type == WAL_NAME) {
		f->number = item->file;
		f->epoch = item->epoch;
	}
	return f;
}

static int visit_count(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;

	r->room += item->type == WAL_NAME;
	r->elsewhere |= item->type == WAL_NAME && item->name->dev != r->scan.header.origin.dev;
	return 0;
}

static void take_name(struct arena_entry *e, const struct wal_item *item)
{
	e->dev = item->name->dev;
	e->ino = item->name->ino;
	e->btime_sec = item->name->btime_sec;
	e->btime_nsec = item->name->btime_nsec;
	e->generation = item->name->generation;
	e->handle_hash = item->name->handle_hash;
	e->below = item->name->below;
	e->up = item->name->up;
	memcpy(e->path, item->path, item->name->path_bytes);
}

struct cut_search {
	struct replay *r;
	const struct named *f;
	uint64_t size;
	bool found;
};

static int visit_cut(void *ctx, const struct wal_item *item)
{
	struct cut_search *s = ctx;
	const struct named *f = find_file(s->r, item);

	if (f && is_file(&f->name, &s->f->name) && item->type == WAL_SIZE && (item->size->flags & WAL_CUTS) &&
	    item->size->lowest == s->size)
		s->found = true;
	return 0;
}

/* The time of the file may be that of the mount, which has made it as short as an epoch says. */
static bool is_cut_by_mount(struct replay *r, const struct named *f, const struct statx *st)
{
	struct cut_search s = {.r = r, .f = f, .size = st->stx_size};

	return st->stx_mtime.tv_sec == st->stx_ctime.tv_sec &&
	       st->stx_mtime.tv_nsec == st->stx_ctime.tv_nsec &&
	       wal_scan_each(&r->scan, visit_cut, &s) == 0 && s.found;
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
 * program that did not wait for recovery.
 */
static bool is_changed(struct replay *r, const struct named *f)
{
	struct statx st;
	int64_t changed;

	if (f->target.fd < 0 || f->target.orphan || r->w->opt->force)
		return false;
	if (sys.statx(f->target.fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0)
		return true;
	changed = st.stx_mtime.tv_sec * 1000000000ll + st.stx_mtime.tv_nsec;
	if (is_ours(r, changed))
		return false;
	/* (the log may have waited for several boots) */
	return (changed > r->scan.written_ns + WAL_LATE_NS || is_of_this_boot(r, changed)) &&
	       !is_cut_by_mount(r, f, &st);
}

static int take_file(struct replay *r, const struct wal_item *item)
{
	struct named *f;

	if (item->name->path_bytes > ARENA_PATH_MAX)
		return -EBADMSG;
	f = find_file(r, item);
	if (!f) {
		f = &r->files[r->count++];
		f->target.fd = -1;
		f->number = item->file;
		f->epoch = item->epoch;
		take_name(&f->name, item);
	}
	f->goes = item->name->flags & WAL_GOES;
	return 0;
}

/* (it may have had another name before) */
static void take_size(const struct replay *r, const struct named *f, const struct wal_size *size)
{
	for (uint64_t i = 0; i < r->count; i++) {
		struct named *same = &r->files[i];

		if (!is_file(&same->name, &f->name))
			continue;
		if (size->flags & WAL_IN_FILE)
			same->kept = size->size;
		else if (size->lowest < same->kept)
			same->kept = size->lowest;
	}
}

/* Before the replay: what each file is, and what of it the replay must not cut. */
static int visit_file(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	struct named *f;

	if (item->type == WAL_NAME)
		return take_file(r, item);
	f = find_file(r, item);
	if (!f)
		return -EBADMSG;
	if (item->type == WAL_SIZE) {
		take_size(r, f, item->size);
		f->changes = true;
	}
	return 0;
}

/* With `keep`, a file that is gone gets an orphan. */
static int open_target(const struct replay *r, struct named *f, bool keep)
{
	int e = recover_target_open(&f->target, &f->name, &r->place, keep);

	if (e < 0 && (keep || e != -ENOENT))
		failed(r->w, f->name.path, e,
		       e == RECOVER_ELSEWHERE
		               ? "its directory is not there: mounted elsewhere, or in a container?  left in "
		                 "the log"
		               : "left in the log");
	return e;
}

static int open_file(struct replay *r, struct named *f)
{
	int e = open_target(r, f, false);

	f->gone = e == -ENOENT && f->goes;
	if (e < 0)
		return e == -ENOENT ? 0 : e;
	e = bytes_have_offsets(f->target.fd);
	if (e < 0) {
		failed(r->w, f->name.path, e, "it is append-only; left in the log");
		return e;
	}
	if (is_changed(r, f))
		r->aside = "was changed after the power loss, before recovery";
	return 0;
}

static int open_all(struct replay *r)
{
	int e = wal_scan_each(&r->scan, visit_file, r);

	for (uint64_t i = 0; i < r->count && e == 0; i++)
		e = open_file(r, &r->files[i]);
	return e;
}

/* The log is about to be replayed: what it has of files that are gone is kept. */
static int keep_gone(struct replay *r)
{
	int e = 0;

	for (uint64_t i = 0; i < r->count && e == 0; i++) {
		struct named *f = &r->files[i];

		if (f->target.fd < 0 && f->changes && !f->gone)
			e = open_target(r, f, true);
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

static int resize(const struct named *f, uint64_t size)
{
	int r;

	kill_step();
	r = sys.ftruncate(f->target.fd, (off_t)size);
	kill_step();
	return r;
}

static uint64_t no_less_than_kept(const struct named *f, uint64_t size)
{
	return size > f->kept ? size : f->kept;
}

static int replay_size(struct named *f, const struct wal_size *size)
{
	uint64_t lowest = no_less_than_kept(f, size->lowest);
	struct statx st;
	int e = sys.statx(f->target.fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	f->size = *size;
	if (e == 0 && st.stx_size > lowest)
		e = resize(f, lowest);
	return e == 0 ? resize(f, no_less_than_kept(f, size->size)) : e;
}

static int replay_page(struct named *f, const struct wal_item *item)
{
	uint64_t at = item->page * WAL_PAGE_BYTES, n, written;
	int e;

	if (at >= f->size.size)
		return -EBADMSG;
	n = f->size.size - at < WAL_PAGE_BYTES ? f->size.size - at : WAL_PAGE_BYTES;
	e = bytes_write(f->target.fd, item->image, n, at, false, &written);
	f->bytes += written;
	kill_step();
	return e;
}

static int visit_replay(void *ctx, const struct wal_item *item)
{
	struct replay *r = ctx;
	struct named *f = find_file(r, item);
	int e;

	if (f && f->gone)
		return 0;
	e = f ? note_change(r) : -EBADMSG;
	if (e < 0)
		return e;
	switch (item->type) {
	case WAL_NAME: return 0;
	case WAL_SIZE: return replay_size(f, item->size);
	default: return replay_page(f, item);
	}
}

/* The file is as the program saw it: its time, too, if we may set it. */
static int finish(const struct named *f)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
	                            {.tv_sec = f->size.mtime_sec, .tv_nsec = f->size.mtime_nsec}};

	kill_step();
	sys_raw(SYS_utimensat, f->target.fd, 0, (long)times, 0, 0, 0);
	return sys.fsync(f->target.fd);
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

static void tell_done(const struct wal_recovery *w, const struct named *f)
{
	bool orphan = f->target.orphan;

	tell(w, f->name.path, orphan ? "orphaned" : "recovered", f->bytes, 0,
	     orphan ? f->target.path : "as the log of sync = ordered has it");
	w->report->orphans += orphan;
	w->report->recovered += !orphan;
	w->report->bytes += f->bytes;
}

static int visit_add(void *ctx, const struct wal_item *item)
{
	struct named *f = find_file(ctx, item);

	if (f && item->type == WAL_PAGE)
		f->bytes += WAL_PAGE_BYTES;
	return 0;
}

static int replay_all(struct replay *r)
{
	int e = 0;

	if (!r->w->opt->dry_run) {
		(void)spare_give(r->w->fd); /* (then the disk may be too full) */
		e = keep_gone(r);
	}
	if (e < 0)
		return e;
	e = wal_scan_each(&r->scan, r->w->opt->dry_run ? visit_add : visit_replay, r);
	for (uint64_t i = 0; i < r->count && e == 0 && !r->w->opt->dry_run; i++)
		e = r->files[i].gone || !r->files[i].changes ? 0 : finish(&r->files[i]);
	if (e == 0 && !r->w->opt->dry_run)
		e = remove_absent(r);
	if (e < 0) {
		end_changes(r);
		failed(r->w, "", e, "its files are not complete; left alone");
		return e;
	}
	for (uint64_t i = 0; i < r->count; i++)
		if (!r->files[i].gone && r->files[i].changes)
			tell_done(r->w, &r->files[i]);
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
	for (uint64_t i = 0; i < r->count; i++) {
		r->w->report->aside++;
		tell(r->w, r->files[i].name.path, "aside", 0, 0, detail);
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
	r->where = origin_compare(&r->scan.header.origin, &now);
	r->boot_ns = now.boot_ns;
	r->place = (struct recover_place){.staging_fd = r->w->staging_fd,
	                                  .dev_then = r->scan.header.origin.dev,
	                                  .dev_now = sys_dev_of(&st)};
	e = sys_read_all(r->w->fd, &r->note, sizeof r->note, WAL_REPLAY_AT);
	return e < 0 ? e : wal_scan_each(&r->scan, visit_count, r);
}

static void replay_loaded(struct replay *r, const char *name)
{
	uint64_t bytes = (r->room + 1) * sizeof *r->files;

	r->files = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(r->files)) {
		failed(r->w, "", (int)(intptr_t)r->files, "no memory; left alone");
		return;
	}
	if (open_all(r) == 0) {
		if (r->w->in_aside && !r->w->opt->force)
			r->aside = "was changed after the power loss, before recovery";
		if (r->aside)
			put_aside(r, name);
		else if (replay_all(r) == 0 && !r->w->opt->dry_run)
			remove_log(r, name);
	}
	for (uint64_t i = 0; i < r->count; i++)
		recover_target_close(&r->files[i].target);
	sys.munmap(r->files, bytes);
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

	r->w->report->newer++;
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
		failed(r->w, "", e,
		       e == -ESTALE ? "a copy: what it holds may be older than the files; left alone"
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
