// SPDX-License-Identifier: Apache-2.0
/* by_name: see descriptors/by_name.h. */
#include "descriptors/by_name.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "config/rule.h"
#include "descriptors/fd.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "files/marked_fds.h"
#include "files/never_staged.h"
#include "files/young.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/removal.h"
#include "staging/arena.h"
#include "staging/stage.h"
#include "staging/stats.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

static bool identify(int dirfd, const char *path, bool follow, struct statx *st)
{
	return path && sys.statx(dirfd, path, follow ? 0 : AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, st) == 0;
}

typedef int action(struct file *f, const void *ctx);

/* Runs `act` on the file with this identity if it is attached.  Result of `act`, or 0. */
static int with_file_by(struct file_guard (*take)(struct file *f), uint64_t dev, uint64_t ino, action *act,
                        const void *ctx)
{
	struct file *f = file_find(dev, ino);
	struct file_guard g;
	int r = 0;

	if (!f || f->mode != FILE_ATTACHED)
		return 0;
	g = take(f);
	if (f->refs && f->mode == FILE_ATTACHED && f->arena && f->dev == dev && f->ino == ino)
		r = act(f, ctx);
	file_unlock(f, g);
	return r;
}

static int with_file(uint64_t dev, uint64_t ino, action *act, const void *ctx)
{
	return with_file_by(file_lock, dev, ino, act, ctx);
}

static int act_drain(struct file *f, const void *ctx)
{
	(void)ctx;
	return file_is_staged(f) ? flush_drain_for_look(f) : 0;
}

static int act_detach(struct file *f, const void *ctx)
{
	(void)ctx;
	return detach_file(f);
}

static int act_bypass(struct file *f, const void *why)
{
	return attach_bypass(f, *(const enum bypass_reason *)why);
}

static int act_unlinked(struct file *f, const void *ctx)
{
	(void)ctx;
	return ordered_goes(f) ? 0 : attach_bypass(f, BYPASS_UNLINKED);
}

static bool is_attached(uint64_t dev, uint64_t ino)
{
	const struct file *f = by_name_idle() ? NULL : file_find(dev, ino);

	return f && f->mode == FILE_ATTACHED;
}

bool by_name_drain_identity(uint64_t dev, uint64_t ino, uint32_t releases)
{
	bool attached = is_attached(dev, ino);

	if (attached)
		with_file(dev, ino, act_drain, NULL);
	return attached || by_name_detaches() != releases;
}

bool by_name_overlays(void)
{
	if (by_name_idle())
		return false;
	for (uint32_t i = 0; i < live_config->rule_count; i++)
		if (config_orders(&live_config->rules[i].set))
			return true;
	return false;
}

bool by_name_paged(uint64_t dev, uint64_t ino, struct by_name_shown *out)
{
	struct file *f = by_name_overlays() ? file_find(dev, ino) : NULL;
	struct file_guard g;
	bool is;

	if (!f || !file_is_paged(f))
		return false;
	g = file_lock_short(f);
	is = f->refs && f->mode == FILE_ATTACHED && f->dev == dev && f->ino == ino && file_is_paged(f) &&
	     !f->needs_repair;
	if (is) {
		out->size = overlay_size(&f->overlay);
		out->mtime = overlay_mtime(&f->overlay);
		out->pages = overlay_has_pages(&f->overlay);
		f->time_shown = true;
	}
	file_unlock(f, g);
	return is;
}

static struct timespec time_of(struct statx_timestamp t)
{
	return (struct timespec){.tv_sec = t.tv_sec, .tv_nsec = t.tv_nsec};
}

void by_name_refresh_stat(struct stat *st)
{
	uint64_t dev = sys_dev_of_stat(st);
	struct file_guard g;
	struct statx now;
	struct file *f;

	if (by_name_idle())
		return;
	f = file_find(dev, st->st_ino);
	if (!f || f->mode != FILE_ATTACHED)
		return;
	g = file_lock(f);
	/* also if nothing is staged now: a flush may have ended after the stat call */
	if (f->mode == FILE_ATTACHED && f->dev == dev && f->ino == st->st_ino &&
	    flush_drain_for_look(f) == 0 && flush_any_fd(f) >= 0 &&
	    sys.statx(flush_any_fd(f), "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now) == 0) {
		st->st_size = (off_t)now.stx_size;
		st->st_blocks = (blkcnt_t)now.stx_blocks;
		st->st_mtim = time_of(now.stx_mtime);
		st->st_ctim = time_of(now.stx_ctime);
	}
	file_unlock(f, g);
}

static void drain_identity(uint64_t dev, uint64_t ino) { (void)by_name_drain_identity(dev, ino, 0); }

/* Entries of the journal identify the file by its name.  After a crash the old name may be back, or name
 * another file. */
static int act_rename(struct file *f, const void *ctx)
{
	int r = act_drain(f, ctx);

	return r < 0 ? r : journal_retire(f);
}
static void before_rename(uint64_t dev, uint64_t ino) { with_file(dev, ino, act_rename, NULL); }

int by_name_drain_path(int dirfd, const char *path, bool follow)
{
	struct statx st;

	if (by_name_idle() || !identify(dirfd, path, follow, &st))
		return 0;
	return with_file(sys_dev_of(&st), st.stx_ino, act_drain, NULL);
}

/* Canonical path of (dirfd, path).  0 or -errno. */
static int path_at(int dirfd, const char *path, bool follow, char *out)
{
	int fd = sys.openat(dirfd, path, O_PATH | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW), 0);
	int r;

	if (fd < 0)
		return fd;
	r = fd_link_path(fd, out);
	sys.close(fd);
	return r;
}

/* The rule, if its files are ordered, of a name that comes or goes; NULL: none.  *dev: of its directory.
 * `path` can be read; `parent` has room for a path, and gets that of the name.  *sure: that is `path` itself.
 */
static const struct rule *ordered_path(int dirfd, const char *path, uint64_t *dev, char *parent, bool *sure)
{
	const struct rule *rule;
	const char *slash, *base;
	struct statx st;
	size_t n;

	slash = strrchr(path, '/');
	base = slash ? slash + 1 : path;
	n = slash ? (size_t)(slash - path) + 1 : 0;
	if (n + 2 > PATH_MAX)
		return NULL;
	memcpy(parent, path, n);
	*sure = n > 1 && ordered_directory_is_at(path, n - 1, dev);
	if (*sure) {
		parent[--n] = '\0';
	} else {
		memcpy(parent + n, ".", 2);
		if (path_at(dirfd, parent, true, parent) < 0 ||
		    sys.statx(AT_FDCWD, parent, 0, STATX_INO, &st) < 0)
			return NULL;
		*dev = sys_dev_of(&st);
		n = strlen(parent);
	}
	if (n + strlen(base) + 2 > PATH_MAX)
		return NULL;
	log_format(parent + n, PATH_MAX - n, "%s%s", n == 1 ? "" : "/", base);
	rule = rule_match(live_config, parent);
	return rule && config_orders(&rule->set) ? rule : NULL;
}

static const struct rule *ordered_rule(int dirfd, const char *path, uint64_t *dev, char *found)
{
	struct statx st;
	bool sure;

	/* only the kernel can tell whether the path may be read */
	if (sys.statx(dirfd, path, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) == -EFAULT)
		return NULL;
	return ordered_path(dirfd, path, dev, found, &sure);
}

/* As by_name_order; `found` gets the path. */
static const struct rule *order_path(int dirfd, const char *path, uint64_t *dev, char *found)
{
	const struct rule *rule = path && ordered_any() ? ordered_rule(dirfd, path, dev, found) : NULL;

	if (rule)
		(void)ordered_barrier(rule); /* (what could not be written stays staged) */
	return rule;
}

const struct rule *by_name_order(int dirfd, const char *path, uint64_t *dev)
{
	BUFFER(char, found);
	BUFFER(char, target);
	const struct rule *rule;
	struct statx st;

	/* (the rule is that of the file, and the path may be that of a link to it) */
	if (path && ordered_any() && sys.statx(dirfd, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0 &&
	    (st.stx_mode & S_IFMT) == S_IFLNK && path_at(dirfd, path, true, target) == 0)
		path = target;
	rule = order_path(dirfd, path, dev, found);
	ordered_call_begin(rule, *dev, false);
	return rule;
}

const struct rule *by_name_order_new(int dirfd, const char *path, uint64_t *dev, struct transient_name **name,
                                     bool *sure)
{
	BUFFER(char, found);
	const struct rule *rule = ordered_path(dirfd, path, dev, found, sure);

	*sure = rule && *sure && young_found(found);
	*name = rule ? ordered_create(rule, found, *dev) : NULL;
	if (!*name)
		ordered_call_begin(rule, *dev, false);
	return rule;
}

/* True if a rule matches the file's present name. */
static bool is_matched(int dirfd, const char *path, bool follow)
{
	BUFFER(char, found);
	int r = path[0] ? path_at(dirfd, path, follow, found) : fd_link_path(dirfd, found);

	return r == 0 && rule_match(live_config, found);
}

/*
 * The file is about to get another name.  While no rule matched it, processes of the family may have opened
 * it, and nothing recorded these descriptors.  A process that stages it under the new name would not find
 * them.  So it is never staged.
 */
static void before_other_name(int dirfd, const char *path, bool follow, const struct statx *st)
{
	if (family_is_shared() && (st->stx_mode & S_IFMT) == S_IFREG &&
	    (st->stx_nlink == 0 || !is_matched(dirfd, path, follow)))
		by_name_never(sys_dev_of(st), st->stx_ino, BYPASS_UNKNOWN_FD);
}

int by_name_detach_fd(int fd)
{
	struct ofd *o = unresolved_used(fd);
	struct statx st;
	struct file *f;

	/* an unmanaged descriptor may refer to an attached file: O_PATH */
	if (!o && (by_name_idle() || sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) < 0))
		return 0;
	if (!o)
		return with_file(sys_dev_of(&st), st.stx_ino, act_detach, NULL);
	f = atomic_load(&o->file);
	return with_file(f->dev, f->ino, act_detach, NULL);
}

/* Repeats FIEMAP up to the end of the file only.  The kernel has just written to `map`, so it is writable. */
static void map_up_to(int fd, uint64_t end, struct fiemap *map)
{
	uint64_t length = map->fm_length;
	struct fiemap_extent *last;

	if (map->fm_start >= end) {
		map->fm_mapped_extents = 0;
		return;
	}
	map->fm_length = end - map->fm_start;
	if (sys_raw(SYS_ioctl, fd, FS_IOC_FIEMAP, (long)map, 0, 0, 0) == 0 && map->fm_mapped_extents > 0 &&
	    map->fm_extent_count > 0) {
		last = &map->fm_extents[map->fm_mapped_extents - 1];
		/* older kernels set the flag only if no extent at all follows */
		if (map->fm_mapped_extents < map->fm_extent_count ||
		    last->fe_logical + last->fe_length >= end)
			last->fe_flags |= FIEMAP_EXTENT_LAST;
	}
	map->fm_length = length;
}

void by_name_extents_asked(int fd, struct fiemap *map)
{
	struct ofd *o = live_config ? fdtable_get(fd) : NULL;
	uint64_t kept = o ? atomic_load(&atomic_load(&o->file)->space.kept_end) : 0;
	struct statfs space;
	struct statx st;
	uint64_t end;

	if (kept == 0 || map->fm_length == 0 || map->fm_flags & FIEMAP_FLAG_XATTR ||
	    sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st) < 0 ||
	    sys_raw(SYS_fstatfs, fd, (long)&space, 0, 0, 0, 0) < 0)
		return;
	end = (st.stx_size + (uint64_t)space.f_bsize - 1) / (uint64_t)space.f_bsize * (uint64_t)space.f_bsize;
	if (end < kept && (map->fm_start >= end || map->fm_length > end - map->fm_start))
		map_up_to(fd, end, map);
}

int by_name_detach_at(int dirfd, const char *path)
{
	struct statx st;

	/* without a path dirfd is the file; only the kernel may read the path */
	if (dirfd >= 0)
		unresolved_use(dirfd);
	if (by_name_idle() || !path || sys.statx(dirfd, path, AT_EMPTY_PATH, STATX_INO, &st) < 0)
		return 0;
	return with_file(sys_dev_of(&st), st.stx_ino, act_detach, NULL);
}

bool by_name_keeps_owner(int fd, uid_t uid, gid_t gid)
{
	struct ofd *o = live_config ? fdtable_get(fd) : NULL;
	const struct file *f = o ? atomic_load(&o->file) : NULL;
	struct statx st;

	return f && atomic_load(&f->mode) == FILE_ATTACHED && file_is_ordered(f) &&
	       sys.statx(fd, "", AT_EMPTY_PATH, STATX_UID | STATX_GID, &st) == 0 &&
	       (uid == (uid_t)-1 || uid == st.stx_uid) && (gid == (gid_t)-1 || gid == st.stx_gid);
}

/* ---- changes ---- */

static void change_begin(struct by_name_change *c)
{
	c->ordered = NULL;
	c->dev = 0;
	c->fd = -1;
	c->begun = live_config && !fork_guard_elsewhere();
	if (c->begun) {
		c->signals = signals_block();
		gate_change_begin();
	}
}

/* As by_name_order, of the file of fd. */
static void order_fd(struct by_name_change *c, int fd)
{
	BUFFER(char, path);
	const struct ofd *o;
	const struct rule *rule = NULL;

	if (!c->begun || !ordered_any())
		return;
	c->fd = fd;
	o = fdtable_get(fd);
	if (o) {
		c->dev = atomic_load(&o->file)->dev;
		rule = atomic_load(&o->file)->rule;
	} else if (fd_link_path(fd, path) == 0) {
		rule = rule_match(live_config, path);
	}
	if (!rule || !config_orders(&rule->set))
		return;
	c->ordered = rule;
	(void)ordered_barrier(rule); /* (what could not be written stays staged) */
	ordered_call_begin(rule, c->dev, false);
}

int by_name_change_fd(struct by_name_change *c, int fd)
{
	struct ofd *o;
	int r;

	change_begin(c);
	r = by_name_detach_fd(fd);
	/* now, when nothing more is staged in it */
	order_fd(c, fd);
	/* what the program reserves itself is its own */
	o = live_config ? fdtable_get(fd) : NULL;
	if (r == 0 && o)
		atomic_load(&o->file)->space.kept_end = 0;
	return r;
}

int by_name_change_at(struct by_name_change *c, int dirfd, const char *path)
{
	struct statx st;
	int r;

	/* only the kernel can tell whether the path may be read */
	if (live_config && !fork_guard_elsewhere() && identify(dirfd, path, true, &st))
		(void)left_bytes_recover_named(dirfd, path);
	change_begin(c);
	r = by_name_detach_at(dirfd, path);
	if (c->begun)
		c->ordered = by_name_order(dirfd, path, &c->dev);
	return r;
}

void by_name_change_end(struct by_name_change *c)
{
	const struct ofd *o = c->begun && c->ordered && c->fd >= 0 ? fdtable_get(c->fd) : NULL;

	if (o)
		atomic_store(&atomic_load(&o->file)->order.passed, true);
	if (c->begun) {
		ordered_call_end(c->ordered, c->dev, false);
		gate_change_end();
		sys_restore_signals(c->signals);
	}
}

/* ---- names ---- */

struct everywhere {
	action *act;
	const void *ctx;
};

/* Runs the action on all files, including those of other processes: any of them may be below the renamed
 * directory. */
static void visit_named(struct file *f, void *ctx)
{
	const struct everywhere *e = ctx;

	with_file(f->dev, f->ino, e->act, e->ctx);
}

static void name_all(action *act, const void *ctx)
{
	struct everywhere e = {.act = act, .ctx = ctx};

	if (!by_name_idle())
		file_for_each_shared(visit_named, &e);
}

static void visit_relaxed(struct file *f, void *ctx)
{
	(void)ctx;
	sync_relaxed_named(f->dev, f->ino);
}

/* Prepares the files below a directory that is about to be renamed. */
static void before_tree(void)
{
	name_all(act_rename, NULL);
	if (!by_name_idle())
		file_for_each_shared(visit_relaxed, NULL);
}

static void visit_full_sync(struct file *f, void *ctx)
{
	(void)ctx;
	file_named(f->dev, f->ino);
}

/* The epochs of both rules wait for the rename. */
static void ordered_renames(struct by_name_rename *r, int fromfd, const char *from)
{
	BUFFER(char, found);

	if (!ordered_any())
		return;
	(void)ordered_barrier(NULL); /* (what could not be written stays staged; a directory has any rules) */
	if (from)
		r->change.ordered = ordered_rule(fromfd, from, &r->change.dev, found);
	if (r->to)
		r->ordered = ordered_rule(r->tofd, r->to, &r->ordered_dev, found);
	ordered_call_begin(r->change.ordered, r->change.dev, false);
	ordered_call_begin(r->ordered, r->ordered_dev, false);
}

void by_name_rename_prepare(struct by_name_rename *r, int fromfd, const char *from, int tofd, const char *to,
                            bool exchange)
{
	bool staged = false;
	struct statx st;

	*r = (struct by_name_rename){.watch = live_config && !fork_guard_elsewhere(),
	                             .exchange = exchange,
	                             .tofd = tofd,
	                             .to = to};
	if (!r->watch)
		return;
	young_other();
	/* bytes that another thread stages now would be recovered under the old name */
	change_begin(&r->change);
	r->holds = !by_name_idle();
	if (r->holds)
		gate_hold();
	ordered_renames(r, fromfd, from);
	if (identify(fromfd, from, false, &st)) {
		(void)left_bytes_recover_named(fromfd, from);
		r->dev = sys_dev_of(&st);
		r->ino = st.stx_ino;
		r->tree = (st.stx_mode & S_IFMT) == S_IFDIR;
		staged = is_attached(r->dev, r->ino);
		if (r->tree)
			before_tree();
		before_other_name(fromfd, from, false, &st);
		before_rename(r->dev, r->ino);
		sync_relaxed_named(r->dev, r->ino);
	}
	if ((exchange || !by_name_idle()) && identify(tofd, to, false, &st)) {
		r->old_dev = sys_dev_of(&st);
		r->old_ino = st.stx_ino;
		staged |= exchange && is_attached(r->old_dev, r->old_ino);
		/* an exchange may concern two directories */
		if ((st.stx_mode & S_IFMT) == S_IFDIR && !r->tree) {
			r->tree = true;
			before_tree();
		}
		before_rename(r->old_dev, r->old_ino);
		if (exchange) {
			before_other_name(tofd, to, false, &st);
			sync_relaxed_named(r->old_dev, r->old_ino);
		}
	}
	if (r->tree)
		ordered_calls_begin();
	if (by_name_idle() || r->ino == 0 || (!r->tree && !staged))
		return;
	r->from = buffer_take();
	if (path_at(fromfd, from, false, r->from) < 0)
		r->from[0] = '\0';
}

/* The paths of a rename; an empty one is unknown. */
struct move {
	const char *from, *to;
	bool exchange;
};

/* If `path` is `from` or lies below it, writes the path with `to` instead.  False otherwise. */
static bool replace_prefix(const char *path, const char *from, const char *to, char *out)
{
	size_t n = strlen(from);

	if (n == 0 || !to[0] || strncmp(path, from, n) != 0 || (path[n] != '\0' && path[n] != '/'))
		return false;
	log_format(out, PATH_MAX, "%s%s", to, path + n);
	return true;
}

/*
 * Path of the file after the rename.  Asks a descriptor if this process has one.  Otherwise the old name may
 * be gone, or only other processes have the file open.  Then applies the rename to the path in the file
 * entry, and checks that the file is there.
 */
static bool path_now(const struct file *f, const struct move *m, char *out)
{
	const char *old = arena_entry_at(f->arena, (uint32_t)f->entry)->path;
	int fd = flush_any_fd(f);
	struct statx st;

	if (fd >= 0 && fd_link_path(fd, out) == 0)
		return strlen(out) < ARENA_PATH_MAX;
	if (!replace_prefix(old, m->from, m->to, out) &&
	    (!m->exchange || !replace_prefix(old, m->to, m->from, out)))
		log_format(out, PATH_MAX, "%s", old);
	return strlen(out) < ARENA_PATH_MAX && identify(AT_FDCWD, out, false, &st) && st.stx_ino == f->ino &&
	       sys_dev_of(&st) == f->dev;
}

/* Drains the file first: a process killed in the middle of the change leaves a file entry without a path. */
static void set_path(struct file *f, const char *path)
{
	if (flush_left(f) && (flush_drain(f) < 0 || f->mode != FILE_ATTACHED || flush_left(f)))
		return;
	arena_entry_name(f->arena, (uint32_t)f->entry, path);
}

static void note_new_path(struct file *f, const struct move *m)
{
	BUFFER(char, path);
	bool known = path_now(f, m, path);

	journal_file_named(f, known);
	/* else recovery finds it by inode in the old directory, or keeps the bytes in a separate file */
	if (known)
		set_path(f, path);
}

static int act_named(struct file *f, const void *ctx)
{
	int r = flush_drain(f);

	/* another thread may have synced the file since the prepare */
	if (r == 0)
		r = journal_retire(f);
	if (r == 0 && f->mode == FILE_ATTACHED && f->arena && (!f->nested || !flush_left(f)))
		note_new_path(f, ctx);
	else
		journal_file_named(f, false);
	return r;
}

/* One name has gone, and the file has others.  What is staged under a name that recovery cannot find would
 * come to no file. */
static int act_name_gone(struct file *f, const void *ctx)
{
	static const struct move none = {.from = "", .to = ""};
	BUFFER(char, path);
	int r = act_named(f, &none);

	(void)ctx;
	return r == 0 && f->mode == FILE_ATTACHED && f->arena && !path_now(f, &none, path)
	               ? attach_bypass(f, BYPASS_PATH)
	               : r;
}

/* The new name is durable only after a full fsync. */
static void named(uint64_t dev, uint64_t ino, const struct move *m)
{
	file_named(dev, ino);
	with_file(dev, ino, act_named, m);
}

static void renamed(const struct by_name_rename *r)
{
	BUFFER(char, to);
	struct move m = {.from = r->from ? r->from : "", .to = to, .exchange = r->exchange};

	if (!r->from || path_at(r->tofd, r->to, false, to) < 0)
		to[0] = '\0';
	if (r->tree) {
		name_all(act_named, &m);
		file_for_each_shared(visit_full_sync, NULL);
	}
	named(r->dev, r->ino, &m);
	if (!r->old_ino || (r->old_ino == r->ino && r->old_dev == r->dev))
		return;
	if (r->exchange)
		named(r->old_dev, r->old_ino, &m);
	else
		with_file(r->old_dev, r->old_ino, act_unlinked, NULL);
}

void by_name_rename_done(struct by_name_rename *r, bool done)
{
	if (r->tree)
		ordered_calls_end();
	if (done) {
		young_other();
		marked_fds_renamed();
		if (r->ino)
			renamed(r);
	}
	if (r->from)
		buffer_give(r->from);
	if (r->holds)
		gate_unhold();
	ordered_call_end(r->ordered, r->ordered_dev, false);
	by_name_change_end(&r->change);
}

void by_name_link_prepare(struct by_name_link *l, int dirfd, const char *path, bool follow, int tofd,
                          const char *to)
{
	BUFFER(char, found);
	struct statx st;

	*l = (struct by_name_link){0};
	removal_link_begin();
	/* linkat may name the descriptor itself */
	if (!live_config || fork_guard_elsewhere() || !path ||
	    sys.statx(dirfd, path, AT_EMPTY_PATH | (follow ? 0 : AT_SYMLINK_NOFOLLOW), STATX_BASIC_STATS,
	              &st) < 0)
		return;
	(void)left_bytes_recover_named(dirfd, path);
	before_other_name(dirfd, path, follow, &st);
	drain_identity(sys_dev_of(&st), st.stx_ino);
	(void)ordered_barrier(NULL);
	sync_relaxed_named(sys_dev_of(&st), st.stx_ino);
	l->ordered = to && ordered_any() ? ordered_rule(tofd, to, &l->dev, found) : NULL;
	ordered_call_begin(l->ordered, l->dev, false);
}

/* The old name may be removed later, when the new one can no longer be found out.  So the file entry gets the
 * new one now. */
static int act_linked(struct file *f, const void *ctx)
{
	const char *path = ctx;
	int r = flush_drain(f);

	if (r == 0 && f->mode == FILE_ATTACHED && f->arena && !flush_left(f) && strlen(path) < ARENA_PATH_MAX)
		set_path(f, path);
	return r;
}

static void linked(int tofd, const char *to)
{
	struct statx st;

	if (!live_config || fork_guard_elsewhere() || !identify(tofd, to, false, &st))
		return;
	young_other();
	file_named(sys_dev_of(&st), st.stx_ino);
	if (is_attached(sys_dev_of(&st), st.stx_ino)) {
		BUFFER(char, path);

		if (path_at(tofd, to, false, path) == 0)
			with_file(sys_dev_of(&st), st.stx_ino, act_linked, path);
	}
}

void by_name_link_done(const struct by_name_link *l, int tofd, const char *to, bool done)
{
	ordered_call_end(l->ordered, l->dev, false);
	if (done)
		linked(tofd, to);
	removal_link_end();
}

/* Holds signals until the call is over, if the log says that the name is gone. */
static void order_removal_of(struct by_name_unlink *u, const char *path)
{
	u->signals = signals_hold_short();
	u->name = ordered_remove(u->dev, u->ino, path, &u->logged);
	if (!u->name)
		signals_release(u->signals);
}

/* The log does not say that the name is gone: everything before is durable first. */
static void order_removal(struct by_name_unlink *u, int dirfd, const char *path)
{
	BUFFER(char, found);

	u->ordered = order_path(dirfd, path, &u->ordered_dev, found);
	u->in_directory = u->ordered && ordered_directory_has(u->ordered, u->ordered_dev, found);
	ordered_call_begin(u->ordered, u->ordered_dev, u->in_directory);
}

void by_name_unlink_prepare(struct by_name_unlink *u, int dirfd, const char *path)
{
	struct statx st;

	*u = (struct by_name_unlink){0};
	if ((by_name_idle() && !ordered_any()) || !identify(dirfd, path, false, &st))
		return;
	if (!by_name_idle()) {
		u->dev = sys_dev_of(&st);
		u->ino = st.stx_ino;
		u->last = st.stx_nlink <= 1;
		if (u->last && ordered_any())
			order_removal_of(u, path);
		if (!u->name)
			before_rename(u->dev, u->ino);
	}
	if (!u->name)
		order_removal(u, dirfd, path);
}

static int act_removed(struct file *f, const void *ctx)
{
	(void)ctx;
	ordered_removed(f);
	return 0;
}

void by_name_unlink_done(const struct by_name_unlink *u, bool done)
{
	if (u->logged)
		ordered_gone(u->name, done);
	if (u->last && ordered_any())
		with_file_by(file_lock_short, u->dev, u->ino, act_removed, NULL);
	ordered_named(u->name);
	/* the log says that it is gone */
	if (u->name && !done)
		(void)ordered_barrier(NULL);
	if (u->name)
		signals_release(u->signals);
	ordered_call_end(u->ordered, u->ordered_dev, u->in_directory);
	if (!done)
		return;

	if (u->ino && u->last)
		with_file_by(file_lock_short, u->dev, u->ino, act_unlinked, NULL);
	else if (u->ino)
		with_file(u->dev, u->ino, act_name_gone, NULL);
}

bool by_name_rmdir_again(int dirfd, const char *path)
{
	BUFFER(char, dir);
	size_t n;

	if (!live_config || !path || fork_guard_elsewhere() || path_at(dirfd, path, false, dir) < 0)
		return false;
	n = strlen(dir);
	if (n + sizeof ARENA_DIR + 1 >= PATH_MAX)
		return false;
	memcpy(dir + n, "/" ARENA_DIR, sizeof ARENA_DIR + 1);
	return attach_retire_dir(dir);
}

struct drain_all {
	uint64_t dev; /* file system whose errors are reported */
	int r;
	/* the kernel is about to sync all files: a replay of the journal would bring back older bytes */
	bool sync;
	bool lock; /* a lock is about to be released */
};

static void visit_drain(struct file *f, void *ctx)
{
	struct drain_all *all = ctx;
	struct file_guard g;

	if (f->mode != FILE_ATTACHED)
		return;
	g = file_lock(f);
	if (f->mode == FILE_ATTACHED && f->arena && !(all->lock && file_is_paged(f))) {
		int r = flush_is_kept(f) ? detach_file(f) : flush_drain(f);

		if (r == 0 && all->sync)
			r = journal_retire(f);
		if (r < 0 && all->r == 0 && f->dev == all->dev)
			all->r = r;
	}
	file_unlock(f, g);
}

static void drain_all(bool lock)
{
	struct drain_all all = {.lock = lock};

	if (by_name_idle())
		return;
	file_for_each(visit_drain, &all);
	if (!lock)
		(void)ordered_barrier(NULL);
	attach_drain_elsewhere();
}

void by_name_drain_all(void) { drain_all(false); }

void by_name_drain_for_lock(void) { drain_all(true); }

/* Processes that share this memory may tell each other about any file of its rule.  So these files count as
 * shared from now on. */
static void shares_memory(const char *path)
{
	const struct rule *rule = rule_match(live_config, path);
	struct drain_all all = {0};

	if (!rule)
		return;
	stats_used(rule);
	never_staged_shares_memory(rule);
	if (!by_name_idle())
		file_for_each_shared(visit_drain, &all);
}

int by_name_never(uint64_t dev, uint64_t ino, enum bypass_reason why)
{
	/* mark first: an attach that is under way is found below, and a later one finds the mark */
	never_staged_never(dev, ino, why);
	if (fork_guard_vforked)
		file_give_up(dev, ino, why); /* for our parent, with which this vfork child shares memory */
	return with_file(dev, ino, act_bypass, &why);
}

void by_name_unknown_fd(uint64_t dev, uint64_t ino)
{
	const enum bypass_reason why = BYPASS_UNKNOWN_FD;

	with_file(dev, ino, act_bypass, &why);
}

static int map_unknown(int fd, bool shares)
{
	struct marked_fds_question q = marked_fds_ask(fd);
	BUFFER(char, path);
	struct statx st;
	int r;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &st) < 0 ||
	    (st.stx_mode & S_IFMT) != S_IFREG)
		return 0;
	if (shares && fd_link_path(fd, path) == 0)
		shares_memory(path);
	else
		shares = false;
	/* also if no rule matches its present name: it may get another name */
	r = by_name_never(sys_dev_of(&st), st.stx_ino, BYPASS_MMAP);
	/* a file that could not be drained is drained before the next call */
	if (!is_attached(sys_dev_of(&st), st.stx_ino))
		marked_fds_tell(fd, q, shares);
	return r;
}

int by_name_map(int fd, bool shares)
{
	if (!live_config || fd < 0 || fork_guard_apart() || marked_fds_is(fd, shares))
		return 0;
	unresolved_use(fd);
	return map_unknown(fd, shares);
}

/* The kernel syncs the writes of all processes, so this concerns the whole family. */
void by_name_drain_for_sync(void)
{
	struct drain_all all = {.sync = true};

	if (!by_name_idle())
		file_for_each_shared(visit_drain, &all);
}

int by_name_drain_for_syncfs(int fd)
{
	struct drain_all all = {.sync = true};
	struct statx st;

	if (by_name_idle())
		return 0;
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) == 0)
		all.dev = sys_dev_of(&st);
	file_for_each_shared(visit_drain, &all);
	return all.r;
}

void by_name_limit_begin(struct by_name_change *c)
{
	change_begin(c);
	if (c->begun)
		gate_hold();
	stage_limit_changes();
	by_name_drain_all();
}

void by_name_limit_end(struct by_name_change *c)
{
	if (c->begun)
		gate_unhold();
	by_name_change_end(c);
}
