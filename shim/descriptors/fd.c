// SPDX-License-Identifier: Apache-2.0
/* fd: see descriptors/fd.h. */
#include "descriptors/fd.h"

#include "attach/attach.h"
#include "attach/repair.h"
#include "attach/stop.h"
#include "attach/timer.h"
#include "attach/watcher.h"
#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "config/rule.h"
#include "descriptors/by_name.h"
#include "descriptors/fd_passing.h"
#include "descriptors/left_bytes.h"
#include "descriptors/outside.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "files/marked_fds.h"
#include "files/workers.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/token.h"
#include "flush/visibility.h"
#include "staging/arenas.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"
#include "staging/stats.h"
#include "staging/tail.h"
#include "sync/journal.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

static PROCESS_DATA pid_t process_id;
static _Atomic bool memory_shared; /* a child may have this memory */
/* Since the last fork: a file was opened that no rule matches.  Under another name a rule may match it. */
static _Atomic bool unmatched_opened;

void fd_set_process(void)
{
	process_id = sys_getpid();
	repair_set();
	timer_set();
	left_bytes_set_process();
}
void fd_leave_process(void)
{
	process_id = 0;
	fork_guard_stop();
}
bool fd_has_left(void) { return process_id == 0; }
/* (the id of its only thread) */
PROCESS_CODE void fd_fork_child(void)
{
	process_id = (pid_t)lock_self();
	left_bytes_set_process();
}
PROCESS_CODE bool fd_own_process(void) { return process_id && sys_getpid() == process_id; }
void fd_memory_shared(void) { atomic_store(&memory_shared, true); }

/* The process of whose descriptors this memory tells is another one.  (fork_guard tells all other
 * descendants, once it is set.) */
static bool memory_is_elsewhere(void)
{
	return fork_guard_elsewhere() ||
	       (atomic_load_explicit(&memory_shared, memory_order_relaxed) && !fd_own_process());
}

bool fd_foreign_process(void) { return memory_is_elsewhere() || (!fork_guard_here() && !fd_own_process()); }

static struct file *file_of(struct ofd *o) { return atomic_load_explicit(&o->file, memory_order_acquire); }

/* The file of fd, without its lock: only its atomics may be read.  NULL when fd is not managed. */
static struct file *file_now(int fd)
{
	struct ofd *o = fork_guard_here() ? fdtable_get(fd) : NULL;

	return o ? file_of(o) : NULL;
}

/* Locks the file of fd; NULL when fd is not managed.  *o is the description of fd. */
static struct file *lock_fd_by(struct file_guard (*take)(struct file *f), int fd, struct ofd **o,
                               struct file_guard *g)
{
	if (!fork_guard_here())
		return NULL;
	for (;;) {
		struct file *f;

		*o = fdtable_get(fd);
		if (!*o)
			return NULL;
		f = file_of(*o);
		*g = take(f);
		if (fdtable_get(fd) == *o && file_of(*o) == f) {
			return f;
		}
		file_unlock(f, *g);
	}
}

static struct file *lock_fd(int fd, struct ofd **o, struct file_guard *g)
{
	return lock_fd_by(file_lock, fd, o, g);
}

/* Drains the file with this identity before an open cuts it.  0 or -errno. */
static long drain_identity(uint64_t dev, uint64_t ino)
{
	struct file *f = file_find(dev, ino);
	struct file_guard g;
	long r;

	if (!f || f->mode != FILE_ATTACHED)
		return 0;
	g = file_lock(f);
	r = flush_drain(f);
	/* a replay of the journal would bring back the bytes that are about to be cut off */
	if (r == 0)
		r = journal_retire(f);
	file_unlock(f, g);
	return r;
}

/* Called after the kernel has accepted the path.  `is_new`: no dead process can have left bytes for the file.
 */
static void look_at_path(struct fd_open *op, bool is_new)
{
	op->looks = false;
	if (is_new)
		op->unresolved = true;
	else if (op->flags & O_TRUNC)
		op->unresolved = !left_bytes_beside(op->dirfd, op->path);
	else
		op->unsure |= left_bytes_possible(op->dirfd, op->path);
}

bool fd_lease_over(struct fd_open *op)
{
	enum { WAITS_MAX = 200 }; /* the lease may belong to another program */
	uint32_t releases = file_detaches();
	struct file_guard g;
	struct statx st;
	struct file *f;
	bool waited;

	if (!(op->flags & O_NONBLOCK) || !op->path || op->waits++ >= WAITS_MAX)
		return false;
	if (releases != op->releases) {
		op->releases = releases; /* a file was detached meanwhile: the open may have met its lease */
		return true;
	}
	if (by_name_idle() || sys.statx(op->dirfd, op->path, 0, STATX_INO, &st) < 0)
		return false;
	f = file_find(sys_dev_of(&st), st.stx_ino);
	if (!f || f->mode != FILE_ATTACHED)
		return false;
	g = file_lock(f);
	waited = !f->nested;
	if (waited)
		flush_wait_idle(f);
	file_unlock(f, g);
	watcher_before_open(sys_dev_of(&st), st.stx_ino);
	return waited;
}

/* A rule knows of each cut of its files: nobody else has them open, or they are in order. */
static bool any_knows_cuts(void)
{
	if (ordered_any())
		return true;
	for (uint32_t i = 0; i < live_config->rule_count; i++)
		if (live_config->rules[i].set.writers == WRITERS_EXCLUSIVE)
			return true;
	return false;
}

/* A cancellation would end the thread in the middle of the open. */
static void hold_cancels(struct fd_open *op)
{
	if (!op->uncancelled)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &op->cancels);
	op->uncancelled = true;
}

/* Between the drain and the kernel's cut no thread may stage: its bytes would land behind the new end.
 * Signals and cancellation are off meanwhile, so that the thread cannot leave the gate closed. */
static void before_cut(struct fd_open *op, uint64_t dev, uint64_t ino)
{
	const struct file *f = file_find(dev, ino);

	if ((!f || f->mode != FILE_ATTACHED) && !any_knows_cuts())
		return;
	op->cuts = true;
	op->signals = signals_block();
	hold_cancels(op);
	gate_change_begin();
	f = file_find(dev, ino);
	op->holds = f && f->mode == FILE_ATTACHED;
	if (op->holds) {
		gate_hold();
		op->error = drain_identity(dev, ino);
	}
	if (op->path)
		op->ordered = by_name_order(op->dirfd, op->path, &op->dev);
	else
		fd_open_unnamed(op);
}

void fd_open_unnamed(struct fd_open *op)
{
	if (!op->watch || !(op->flags & (O_CREAT | O_TRUNC)) || !ordered_any())
		return;
	hold_cancels(op);
	(void)ordered_barrier(NULL); /* (what could not be written stays staged) */
	if (!op->anywhere)
		ordered_calls_begin();
	op->anywhere = true;
}

void fd_open_temporary(struct fd_open *op, const char *template)
{
	if (!op->watch || !ordered_any())
		return;
	hold_cancels(op);
	op->ordered = by_name_order(AT_FDCWD, template, &op->dev);
}

/* The open succeeds only if it makes the file. */
static bool is_exclusive(int flags) { return (flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL); }

bool fd_open_cuts_some(const struct fd_open *op)
{
	return op->watch && (op->flags & O_TRUNC) && !is_exclusive(op->flags) &&
	       (file_attached() > 0 || any_knows_cuts());
}

static void cuts_at(struct fd_open *op, int dirfd, const char *path, int flags)
{
	struct statx st;

	if (sys.statx(dirfd, path, flags, STATX_INO | STATX_TYPE, &st) == 0 &&
	    (st.stx_mode & S_IFMT) == S_IFREG)
		before_cut(op, sys_dev_of(&st), st.stx_ino);
}

void fd_open_cuts(struct fd_open *op, int target) { cuts_at(op, target, "", AT_EMPTY_PATH); }

void fd_open_end(struct fd_open *op)
{
	if (op->counts)
		fdtable_change_end();
	ordered_named(op->name);
	ordered_call_end(op->ordered, op->dev, false);
	if (op->anywhere)
		ordered_calls_end();
	if (op->cuts && op->holds)
		gate_unhold();
	if (op->cuts)
		gate_change_end();
	if (op->uncancelled)
		pthread_setcancelstate(op->cancels, NULL);
	if (op->cuts)
		sys_restore_signals(op->signals);
}

/* The open makes a file.  A cancellation would leave its name in use for ever. */
static void name_new(struct fd_open *op)
{
	struct transient_name *name;
	const struct rule *rule;
	bool sure;

	hold_cancels(op);
	op->young = young_coming();
	rule = by_name_order_new(op->dirfd, op->path, &op->dev, &name, &sure);
	op->name = name;
	if (!name) {
		op->ordered = rule;
		return;
	}
	op->rule = sure ? rule : NULL;
}

/* `known`: *st is of the file that the path names; else it is asked for. */
static void before_open(const struct fd_open *op, bool known, struct statx *st)
{
	bool leases = atomic_load_explicit(&visibility_leases, memory_order_relaxed) > 0;

	if (op->path && leases && (known || sys.statx(op->dirfd, op->path, 0, STATX_INO, st) == 0))
		watcher_before_open(sys_dev_of(st), st->stx_ino);
}

/* The attached file with this identity, if its rule is in order: this process alone looks at it, and has
 * asked already what dead processes have left. */
static struct file *overlay_file(const struct statx *st)
{
	struct file *f = file_find(sys_dev_of(st), st->stx_ino);

	return f && !f->shared && f->mode == FILE_ATTACHED && file_is_ordered(f) ? f : NULL;
}

/* What a file in order needs to know of the path before the open. */
struct before_open {
	bool absent;     /* O_CREAT makes a file */
	bool dangles;    /* where the path, a link, leads to */
	bool known;      /* st is of the file that the open opens */
	struct statx st; /* STATX_INO, STATX_TYPE */
};

static void look_before_open(struct fd_open *op, struct before_open *b)
{
	bool creates = op->flags & O_CREAT, waits;
	int r = -EINVAL;

	b->absent = b->dangles = b->known = op->ours = op->counts = false;
	if (!op->regular || !ordered_any())
		return;
	if (op->path)
		r = sys.statx(op->dirfd, op->path, creates ? AT_SYMLINK_NOFOLLOW : 0, STATX_INO | STATX_TYPE,
		              &b->st);
	b->absent = creates && r == -ENOENT;
	b->known = r == 0 && (b->st.stx_mode & S_IFMT) != S_IFLNK;
	b->dangles = creates && r == 0 && !b->known &&
	             sys.statx(op->dirfd, op->path, 0, STATX_INO, &b->st) == -ENOENT;
	waits = b->known && (b->st.stx_mode & S_IFMT) != S_IFREG; /* a pipe, perhaps for long */
	op->ours = b->known && overlay_file(&b->st);
	op->counts = !waits;
	if (op->counts)
		fdtable_change_begin();
}

void fd_open_prepare(struct fd_open *op, int dirfd, const char *path, int flags)
{
	bool writes = (flags & O_ACCMODE) != O_RDONLY;
	/* A process that attaches a file searches only its own descriptors.  So in a family, readers must be
	 * known, too. */
	bool shared = family_is_shared();
	struct before_open b;

	op->flags = flags;
	op->ordered = NULL;
	op->name = NULL;
	op->rule = NULL;
	op->dev = 0;
	op->error = 0;
	op->anywhere = op->uncancelled = op->exclusive = op->looks = op->unresolved = op->unsure = op->late =
		op->resolving = op->reader = op->cuts = false;
	op->releases = file_detaches();
	op->dirfd = dirfd;
	op->path = path;
	op->waits = 0;
	op->before = (struct timespec){0};
	op->regular = live_config && !(flags & (O_PATH | O_DIRECTORY)) && !fork_guard_elsewhere();
	look_before_open(op, &b);
	/* in a family every reader counts: another process may stage bytes that it reads */
	op->watch = op->regular && (writes || shared || file_attached() > 0);
	if (!op->watch)
		return;
	if (flags & O_CREAT)
		clock_gettime(CLOCK_REALTIME_COARSE, &op->before);
	if (path && fd_open_cuts_some(op))
		cuts_at(op, dirfd, path, 0);
	if (b.absent && !op->ordered)
		name_new(op);
	else
		before_open(op, b.known, &b.st);
	if (b.dangles)
		fd_open_unnamed(op);
	if ((!writes && !shared) || (flags & (O_SYNC | O_DSYNC)))
		return;
	op->unsure = shared;
	if (!writes || is_exclusive(flags)) {
		op->unresolved =
			true; /* a dead process cannot have left bytes for a file that this open creates */
	} else if (path && (flags & O_TRUNC)) {
		/* recover the bytes that this open cuts off before the cut, even if the process dies right
		 * after it */
		op->looks = !left_bytes_of_rules();
	} else if (path) {
		/* rules match few of these files: they are examined at their first use */
		op->looks = !shared;
		op->unresolved = true;
	}
}

static bool created_now(const struct fd_open *op, const struct statx *st)
{
	if (!(op->flags & O_CREAT) || (st->stx_size != 0 && !op->late))
		return false;
	if (op->flags & O_EXCL)
		return true;
	if (!(st->stx_mask & STATX_BTIME))
		return true; /* unknown: then a real fsync is the safe choice */
	return st->stx_btime.tv_sec > op->before.tv_sec ||
	       (st->stx_btime.tv_sec == op->before.tv_sec && st->stx_btime.tv_nsec >= op->before.tv_nsec);
}

/* True if this open certainly created the file, which then has no staged bytes.  Without a birth time only
 * O_EXCL proves that. */
static bool certainly_new(const struct fd_open *op, const struct statx *st)
{
	return created_now(op, st) && ((op->flags & O_EXCL) || (st->stx_mask & STATX_BTIME));
}

static uint32_t direct_mask(int flags, const struct statx *st)
{
	uint32_t align = ARENA_PAGE;

	if (!(flags & O_DIRECT))
		return 0;
#ifdef STATX_DIOALIGN
	if ((st->stx_mask & STATX_DIOALIGN) && st->stx_dio_offset_align && st->stx_dio_mem_align)
		align = st->stx_dio_offset_align > st->stx_dio_mem_align ? st->stx_dio_offset_align
		                                                         : st->stx_dio_mem_align;
#else
	(void)st;
#endif
	return align - 1;
}

static void add_description(struct file *f, int fd, const struct fd_open *op, const struct statx *st)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);
	struct file_guard g;
	struct ofd *o;

	if (flags < 0)
		return;
	g = file_lock_short(f);
	o = ofd_new(f, fd, (int)flags);
	if (o) {
		ofd_set_align(o, direct_mask((int)flags, st));
		if (created_now(op, st)) {
			f->sync.full = true;
			if (file_is_ordered(f) && !op->name)
				ordered_passed(f->rule, f->dev);
		} else if (o->writable)
			staging_policy_opened_again(f);
		if (f->mode == FILE_ATTACHED && f->arena && (op->flags & O_TRUNC)) {
			/* the kernel cut the file: forget its old size and reservation */
			signals_harden();
			f->space.end = 0;
			journal_file_changed(f);
			if (!flush_left(f))
				attach_refresh(f, fd);
		}
		if (fdtable_set(fd, o) < 0) {
			attach_bypass(f, BYPASS_UNKNOWN_FD);
			ofd_release(o);
			file_put(f);
		} else if (fd_is_standard(fd) && o->writable) {
			attach_bypass(f, BYPASS_STANDARD_FD);
		}
	} else {
		/* no memory for the description */
		attach_bypass(f, BYPASS_UNKNOWN_FD);
		file_put(f);
	}
	file_unlock(f, g);
}

static void recover_first(const struct fd_open *op, int fd, const struct rule *rule, const char *path,
                          uint64_t dev)
{
	/* a dead process wrote its bytes before this open, and this open cuts them off */
	if (left_bytes_recover_opened(fd, rule, path, dev) > 0 && (op->flags & O_TRUNC))
		sys.ftruncate(fd, 0);
}

/* fd is another description of an attached file: it must be registered at once.  `st`: of it, if known. */
static bool is_attached(int fd, const struct statx *st)
{
	struct statx now;
	struct file *f;

	if (!st && sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &now) < 0)
		return true;
	if (!st)
		st = &now;
	f = file_find(sys_dev_of(st), st->stx_ino);
	return f && f->mode == FILE_ATTACHED;
}

static bool others_hold_it(const struct file *f, const struct ofd *o)
{
	return f->shared && family_set_others(&o->holders);
}

/* The kernel has just returned fd, but the table still shows an old description: the program closed fd
 * unseen, or another thread has just replaced it.  Removes the entry and bypasses its file. */
static void entry_is_stale(int fd)
{
	struct file_guard g;
	struct ofd *o;
	struct file *f = lock_fd(fd, &o, &g);
	bool last;

	if (!f)
		return;
	fdtable_clear(fd);
	/* fd belongs to another file now: it must not set this description's position */
	if (ofd_fd(o) == fd && (ofd_local(o)->fd = fdtable_find(o, fd)) < 0)
		ofd_local(o)->refs = 0;
	else if (ofd_local(o)->refs > 0)
		ofd_local(o)->refs--;
	last = ofd_local(o)->refs == 0 && !others_hold_it(f, o);
	if (last) {
		stage_unstream(f);
		o->pos_mode = POS_KERNEL; /* no descriptor is left whose position could be set */
	}
	attach_bypass(f, BYPASS_UNKNOWN_FD);
	if (last && f->mode != FILE_ATTACHED) {
		if (file_local(f)->refs == 1)
			flush_close_internal(f);
		ofd_release(o);
		file_put(f);
	}
	file_unlock(f, g);
}

static bool look_at(int fd, struct statx *st)
{
	enum { DIOALIGN = 0x2000 };

	return sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | DIOALIGN, st) == 0;
}

/* The path has just led to a file that no rule matches, and fd is of no attached file. */
static bool leads_outside(const struct fd_open *op, int fd)
{
	return op->path && !family_is_shared() && !ordered_any() && outside_is(op->path) &&
	       (by_name_idle() || !is_attached(fd, NULL));
}

void fd_opened(struct fd_open *op, int fd)
{
	const struct rule *rule = NULL;
	BUFFER(char, path);
	bool writes = (op->flags & O_ACCMODE) != O_RDONLY;
	bool looked, makes, overlaid, outside;
	struct statx st;
	sys_sigset signals;
	struct file *f;

	/* (a new note needs no more: what a descendant noted is checked when it is resolved) */
	if (!op->watch || memory_is_elsewhere() || (fdtable_word(fd) && fd_foreign_process()))
		return;
	outside = leads_outside(op, fd);
	looked = (fd_open_makes(op) || by_name_overlays()) && look_at(fd, &st);
	makes = looked && fd_open_makes(op);
	if (makes && !young_made(op->young, sys_dev_of(&st), st.stx_ino))
		op->rule = NULL;
	overlaid = looked && !makes && overlay_file(&st);
	if (op->looks && !overlaid && !outside)
		look_at_path(op, looked && certainly_new(op, &st));
	if (!op->late && !op->resolving && fdtable_get(fd))
		entry_is_stale(fd);
	if (outside) {
		unresolved_clear(fd);
		atomic_store_explicit(&unmatched_opened, true, memory_order_relaxed);
		return;
	}
	if (op->unresolved && !makes && !overlaid &&
	    (by_name_idle() || !is_attached(fd, looked ? &st : NULL)) &&
	    unresolved_note(fd, op->flags, &op->before, op->unsure))
		return;
	/* An earlier descriptor of this number may have been closed unseen.  A descriptor that is being
	 * resolved keeps its state until the table shows it.  Otherwise writes would pass uncounted. */
	if (!op->late && !op->resolving)
		unresolved_clear(fd);
	if ((!looked && !look_at(fd, &st)) || (st.stx_mode & S_IFMT) != S_IFREG)
		return;
	f = overlaid ? overlay_file(&st) : NULL;
	if (f)
		rule = f->rule;
	/* (f may have become another file before its rule was read) */
	if (f && overlay_file(&st) != f)
		rule = NULL;
	if (makes && writes)
		rule = op->rule;
	if (!rule && (writes || op->reader || family_is_shared())) {
		if (st.stx_nlink > 0 && fd_link_path(fd, path) == 0) {
			rule = rule_match(live_config, path);
			if (!rule)
				outside_note(path);
		}
		if (writes && rule && !op->late && !certainly_new(op, &st))
			recover_first(op, fd, rule, path, sys_dev_of(&st));
	}
	if (!rule) {
		/* no rule matches the path, but fd may be another name, or a reader, of an attached file */
		f = file_find(sys_dev_of(&st), st.stx_ino);
		if (!f) {
			atomic_store_explicit(&unmatched_opened, true, memory_order_relaxed);
			return;
		}
		rule = f->rule;
	}
	/* checked again with signals blocked: a signal handler may have forked, and this may be the child */
	signals = signals_hold_short();
	if (fd_foreign_process() || file_pools_init() < 0 || fork_guard_set() < 0) {
		signals_release(signals);
		return;
	}
	/* A file may be bypassed only because of processes of the family that are dead.  It may even be an
	 * older file with the same inode number.  So repair the dead ones first. */
	if (family_is_shared()) {
		f = file_find(sys_dev_of(&st), st.stx_ino);
		signals_harden();
		if (f && f->mode == FILE_BYPASSED)
			repair_sweep();
	}
	f = file_get(sys_dev_of(&st), st.stx_ino, rule);
	if (f) {
		stats_used(rule);
		add_description(f, fd, op, &st);
	}
	signals_release(signals);
}

void fd_resolve(int fd, int flags, const struct timespec *before, bool unused, uint32_t written)
{
	struct fd_open op = {
		.flags = flags,
		.watch = true,
		.before = *before,
		.unsure = unused,
		.late = !unused,
		.resolving = true,
	};
	struct ofd *o;

	fd_opened(&op, fd);
	o = fdtable_get(fd);
	if (o && !unused)
		staging_policy_written_before(file_of(o), written);
}

/* The library does not see reads and writes through fd.  A later attach in this process searches for such
 * descriptors itself.  An attach in another process (`elsewhere`) may not have the descriptor, so the file is
 * never staged. */
static void mark_unknown(int fd, bool elsewhere)
{
	struct statx st;

	young_other();
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &st) < 0)
		return;
	if ((st.stx_mode & S_IFMT) == S_IFREG && elsewhere)
		by_name_never(sys_dev_of(&st), st.stx_ino, BYPASS_UNKNOWN_FD);
	else if ((st.stx_mode & S_IFMT) == S_IFREG)
		by_name_unknown_fd(sys_dev_of(&st), st.stx_ino);
	else if ((st.stx_mode & S_IFMT) == 0 && fd_link_is_io_uring(fd))
		attach_refuse(BYPASS_IO_URING);
}

/* `first`: no process of the family has looked at its descriptors. */
static void look_at_descriptors(bool first)
{
	struct fd_open op = {.flags = O_RDONLY, .watch = true, .late = true, .reader = true};
	struct sys_dir entries;
	BUFFER(char, buf);
	const struct sys_dirent *d;
	int dir;

	dir = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (dir < 0) {
		atomic_store(&unmatched_opened, true);
		return;
	}
	entries = (struct sys_dir){.fd = dir, .buf = buf, .size = BUFFER_BYTES};
	while ((d = sys_dir_next(&entries)) != NULL) {
		int fd = sys_dirent_fd(d);
		long flags;

		if (fd < 0 || fd == dir || internal_fd_is(fd) || fdtable_get(fd))
			continue;
		flags = sys.fcntl(fd, F_GETFL, 0);
		if (flags < 0 || (flags & O_PATH))
			continue;
		if (first && (flags & O_ACCMODE) == O_RDONLY)
			fd_opened(&op, fd);
		if (!fdtable_get(fd))
			mark_unknown(fd, true);
	}
	sys.close(dir);
}

PROCESS_CODE void fd_fork_prepare(void)
{
	bool first = !family_is_shared();

	/* after the first fork all are known or marked, except files that no rule matched */
	if (!first && !atomic_load(&unmatched_opened))
		return;
	atomic_store(&unmatched_opened, false);
	look_at_descriptors(first);
}

struct spare {
	bool any;
};

static void visit_spare(struct file *f, void *ctx)
{
	struct spare *s = ctx;
	struct file_guard g;

	if (!file_has_own_fd(f))
		return;
	g = file_lock(f);
	if (!f->nested && file_has_own_fd(f) && !atomic_load(&f->flush.busy)) {
		/* else it would have to be opened again for its flush */
		if (attach_keep_nothing(f) == 0) {
			flush_close_internal(f);
			s->any = true;
		}
	}
	file_unlock(f, g);
}

static bool vacate(int fd);

/* Moves one internal descriptor that is in use beyond RLIMIT_NOFILE, because no idle one is left to close. */
static bool move_internal(void)
{
	struct rlimit64 limit = {.rlim_cur = 0};

	sys_raw(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0);
	for (int fd = 0; limit.rlim_cur > 0; fd++) {
		fd = fd_next_internal((unsigned)fd, (unsigned)limit.rlim_cur - 1);
		if (fd < 0)
			return false;
		if (vacate(fd))
			return true;
	}
	return false;
}

bool fd_spare_internal(void)
{
	struct spare s = {.any = false};

	if (fork_guard_elsewhere())
		return false;
	file_for_each(visit_spare, &s);
	return s.any || attach_retire_dir(NULL) || attach_end_family(false) || move_internal();
}

/* Closes this process's last descriptor of a description that other processes of the family still hold. */
static long leave_description(struct file *f, struct ofd *o, int fd)
{
	long r = flush_drain(f);

	if (o->pos_mode == POS_STREAM)
		stage_unstream(f);
	if (o->pos_mode == POS_USER) {
		sys.lseek(fd, o->pos, SEEK_SET);
		o->pos_mode = POS_KERNEL;
	}
	family_set_remove(&o->holders, family_me);
	if (file_local(f)->refs == 1) {
		if (!f->nested)
			flush_wait_idle(f);
		flush_close_internal(f);
	}
	file_leave(f);
	return r;
}

static bool is_last_writer(const struct file *f, const struct ofd *o)
{
	if (!o->writable)
		return false;
	for (const struct ofd *other = f->ofds; other; other = other->next)
		if (other != o && other->writable)
			return false;
	return true;
}

/*
 * Drains the file before the table forgets its descriptor.  Another thread may still write through the
 * descriptor.  After the table forgets it, this write bypasses the library.  So everything must be in the
 * kernel by then.  The next drain reports an error again.  If the description has more descriptors, nothing
 * is drained: scripts close such duplicates all the time.
 */
static void drain_before_forgotten(struct file *f, struct ofd *o)
{
	enum { TRIES = 4 }; /* another thread may stage after each try */
	bool releases;

	/* the number may get another file at once */
	if (ofd_local(o)->refs > 1)
		flush_leave_program_fd(f);
	if (ofd_local(o)->refs > 1)
		return;
	releases = is_last_writer(f, o) && !others_hold_it(f, o);
	for (int i = 0; i < TRIES && f->mode == FILE_ATTACHED && f->arena; i++) {
		long r = releases ? detach_file(f) : flush_drain_and_reposition(f);

		if (r < 0 || f->nested || !flush_left(f))
			return;
	}
}

/* Descriptors that the library keeps of files that the program has closed. */
enum { KEPT_MAX = 64 };

/* The flush of a closed file needs a descriptor.  A copy, not a new open: nothing is asked of the file
 * system, and no watcher sees it. */
static bool keep_descriptor(struct file *f, const struct ofd *o, int fd)
{
	enum { UNFIT = O_DIRECT | O_SYNC | O_DSYNC };
	int own;

	if (file_internal_fd(f) >= 0)
		return true;
	if (!o->writable || (o->flags & UNFIT))
		return false;
	own = internal_fd_copy(fd, KEPT_MAX);
	if (own < 0)
		return false;
	file_set_internal_fd(f, own);
	file_local(f)->internal_flags = o->flags;
	return true;
}

/*
 * File lock held.  The program may have a lock on f when it has closed fd, its last descriptor that can
 * write: through the description, which would stay with a copy of fd, or through one that reads, which the
 * close of the copy would drop.
 */
static bool may_leave_locks(const struct file *f, int fd)
{
	return file_is_open_twice(f) || fd_link_has_locks(fd);
}

/*
 * File lock held; no other thread can use fd.  Closes fd in the table and leaves the file attached, and
 * staged what the overlay has of it: its rule says that nobody else looks at it, or its lease stays with a
 * copy of fd.  A program that opens it again soon, as databases do with their journals, finds it as it is.
 * The timer flushes and detaches it.  False: it has to be drained.
 */
static bool close_staged(struct file *f, struct ofd *o, int fd)
{
	bool leased = file_needs_lease(f), writes = false;
	bool locked = leased ? f->cooperates : f->no_internal_fd || visibility_is(f);

	if (f->mode != FILE_ATTACHED || !f->arena || !file_is_ordered(f) || f->head || f->shared ||
	    f->nested || f->wanted || f->needs_repair || f->flush.error || atomic_load(&f->flush.busy) ||
	    gate_stopped() || gate_held() || ofd_local(o)->refs != 1)
		return false;
	/* nothing stays without a thread that flushes it */
	if (workers_tid() == 0 && !workers_arm())
		return false;
	for (const struct ofd *other = f->ofds; other; other = other->next)
		writes |= other != o && other->writable;
	if (leased && (writes || f->lease.on != o))
		return false;
	if (f->lease.on == o && !leased)
		visibility_drop(f);
	if (!writes && ((locked && may_leave_locks(f, fd)) || !keep_descriptor(f, o, fd)))
		return false;
	if (!writes)
		f->no_internal_fd = false;
	fdtable_clear(fd);
	if (writes || f->left) {
		if (leased)
			f->lease.on = f->left; /* our copy of fd is of its description */
		ofd_release(o);
		file_put(f);
	} else {
		ofd_local(o)->refs = 0;
		o->readable = o->writable = false;
		o->pos_mode = POS_KERNEL;
		f->left = o;
	}
	f->due[DUE_CLOSED] = sys_now_ns() + file_lag_ns(f);
	workers_arm();
	return true;
}

/* File lock held.  Removes fd from the table.  The last descriptor of a description drains the file.
 * *bypassed, unless NULL: the file was, so that writes through fd may be under way unseen. */
static long drop_descriptor(struct file *f, struct ofd *o, int fd, bool *bypassed)
{
	bool alone = f->ofds == o && !o->next;
	bool last = false; /* o is the last description that can write */
	long r = 0;

	signals_harden();
	drain_before_forgotten(f, o);
	if (fdtable_get(fd) != o)
		return 0; /* another thread has closed it meanwhile */
	if (bypassed)
		*bypassed |= f->mode == FILE_BYPASSED;
	fdtable_clear(fd);
	if (--ofd_local(o)->refs > 0) {
		if (ofd_local(o)->fd == fd) {
			int other = fdtable_find(o, fd);

			if (other >= 0)
				ofd_local(o)->fd = other;
		}
		/* closing any descriptor drops the process's POSIX locks: other programs may use the file
		 * now */
		return f->no_internal_fd ? flush_drain(f) : 0;
	}
	*ofd_local(o) = (struct ofd_local){.fd = fd, .refs = 1}; /* fd is still open, and needed below */
	if (others_hold_it(f, o)) {
		if (f->due[DUE_SYNC])
			sync_relaxed_due(f); /* the other processes may never run its relaxed sync */
		r = leave_description(f, o, fd);
		ofd_local(o)->refs = 0;
		return r;
	}
	if (o->writable) {
		last = is_last_writer(f, o);
		r = last || (file_needs_lease(f) && f->lease.on == o) ? detach_file(f)
		                                                      : flush_drain_and_reposition(f);
		if (!last && f->lease.on == o)
			journal_retire(f);
		/* some bytes cannot be written; the lease ends with its description */
		if (!last && f->lease.on == o)
			visibility_drop(f);
	}
	if (!o->writable && alone && f->mode == FILE_ATTACHED) {
		/* the writers were in other processes of the family, which are dead */
		last = true;
		r = !file_is_staged(f) || flush_possible(f) ? detach_file(f) : -EBADF;
	}
	/* a descriptor that only reads may have been synced, too */
	if (f->due[DUE_SYNC] && (last || file_local(f)->refs == 1))
		sync_relaxed_now(f);
	if (r == 0 && (o->writable || file_local(f)->refs == 1)) {
		r = file_take_sync_error(f, o);
	}
	/* only readers remain: no descriptor can write the staged bytes any more */
	if (r < 0 && last && f->mode == FILE_ATTACHED && f->arena &&
	    (file_is_staged(f) || f->needs_repair || ordered_holds(f)))
		attach_abandon(f);
	if (!o->writable && last)
		r = 0;
	if (last) {
		journal_retire(f); /* without a descriptor its entries could not be voided later */
		journal_file_keep(f);
	}
	if (file_local(f)->refs == 1)
		flush_close_internal(f);
	if (last && f->mode == FILE_ATTACHED && f->wanted && !f->left) {
		/* a signal handler closes fd: the interrupted write must release the description when it is
		 * over */
		visibility_drop(f);
		ofd_local(o)->refs = 0;
		o->writable = false;
		f->left = o;
		return r;
	}
	ofd_release(o);
	file_put(f);
	return r;
}

/* Descriptors through which locks were taken; those from UNRESOLVED_FDS on share one bit.  Their close drains
 * all files. */
static _Atomic uint64_t locked[UNRESOLVED_FDS / 64 + 1];

static _Atomic uint64_t *locked_word(int fd, uint64_t *bit)
{
	unsigned at = (unsigned)fd < UNRESOLVED_FDS ? (unsigned)fd : UNRESOLVED_FDS;

	*bit = 1ull << (at % 64);
	return &locked[at / 64];
}

static bool is_locked(int fd)
{
	uint64_t bit;
	const _Atomic uint64_t *word = locked_word(fd, &bit);

	return atomic_load_explicit(word, memory_order_relaxed) & bit;
}

static void before_close(int fd)
{
	uint64_t bit;
	_Atomic uint64_t *word = locked_word(fd, &bit);

	marked_fds_forget(fd);
	if (!is_locked(fd) || fd_foreign_process())
		return;
	if ((unsigned)fd < UNRESOLVED_FDS)
		atomic_fetch_and(word, ~bit);
	by_name_drain_for_lock();
}

bool fd_any_known(void) { return fdtable_highest() >= 0 || fork_guard_here(); }

/* `kept`: no other thread can use fd until it is closed.  *kept: the library keeps the description.
 * `bypassed`: as drop_descriptor. */
static long forget(int fd, bool *kept, bool *bypassed)
{
	struct file_guard g;
	struct file *f;
	struct ofd *o;
	long r;

	if (!fdtable_get(fd) || fd_foreign_process())
		return FD_PASS;
	f = lock_fd_by(file_lock_short, fd, &o, &g);
	if (!f)
		return FD_PASS;
	if (kept)
		*kept = close_staged(f, o, fd);
	r = kept && *kept ? 0 : drop_descriptor(f, o, fd, bypassed);
	file_unlock(f, g);
	return r < 0 ? r : FD_PASS;
}

long fd_close_prepare(int fd)
{
	if (internal_fd_is(fd))
		return -EBADF;
	if (fd < 0)
		return FD_PASS;
	before_close(fd);
	unresolved_end(fd);
	return forget(fd, NULL, NULL);
}

long fd_close(int fd)
{
	sys_sigset signals = signals_hold_short();
	bool blocked, noted, kept = false, counts = ordered_any();
	long staged, r;

	if (counts)
		fdtable_change_begin();
	before_close(fd);
	blocked = unresolved_block(fd, &noted);
	staged = forget(fd, blocked ? &kept : NULL, NULL);
	/* (a close that ends a description may wait for the file system) */
	if (!kept)
		signals_harden();
	r = sys.close(fd);
	if (counts)
		fdtable_change_end();
	if (blocked)
		unresolved_unblock(fd);
	signals_release(signals);
	/* close frees the descriptor even on failure; the error of the staged bytes matters more than its
	 * own */
	return r == 0 && staged != FD_PASS ? staged : r;
}

void fd_dup_begin(struct fd_copy *c, int oldfd)
{
	unresolved_resolve(oldfd);
	c->oldfd = oldfd;
	c->generation = fdtable_generation(oldfd);
	c->o = fdtable_get(oldfd);
}

/* True if oldfd still refers to the same description as before the call.  A thread that replaces a
 * descriptor clears its entry first.  If there was no entry, it makes all threads that ask wait
 * (fd_dup_onto_prepare). */
static bool copied_is_known(const struct fd_copy *c)
{
	if (fdtable_get(c->oldfd) != c->o || fdtable_generation(c->oldfd) != c->generation)
		return false;
	return c->o || (!unresolved_is(c->oldfd) && (c->oldfd < UNRESOLVED_FDS || !gate_held()));
}

/* Registers newfd as a descriptor of oldfd's description. */
static void share_description(const struct fd_copy *c, int newfd)
{
	struct file_guard g;
	struct file *f;
	struct ofd *o;

	if (!c->o)
		young_other(); /* another thread may be about to register oldfd */
	if ((!c->o && copied_is_known(c)) || fd_foreign_process())
		return;
	f = c->o ? lock_fd(c->oldfd, &o, &g) : NULL;
	if (!copied_is_known(c)) {
		if (f)
			file_unlock(f, g);
		mark_unknown(newfd, family_is_shared());
		return;
	}
	if (!f)
		return;
	if (fdtable_set(newfd, o) < 0)
		attach_bypass(f, BYPASS_UNKNOWN_FD);
	else
		ofd_local(o)->refs++;
	if (fd_is_standard(newfd) && o->writable)
		attach_bypass(f, BYPASS_STANDARD_FD);
	file_unlock(f, g);
}

void fd_dup_done(const struct fd_copy *c, int newfd)
{
	if (newfd >= 0 && c->oldfd != newfd) {
		marked_fds_forget(newfd);
		/* an earlier descriptor of this number may have been closed unseen */
		unresolved_clear(newfd);
		if (fdtable_get(newfd))
			entry_is_stale(newfd);
		share_description(c, newfd);
	}
}

struct vacate {
	int fd;
};

static void visit_vacate(struct file *f, void *ctx)
{
	const struct vacate *v = ctx;
	struct file_guard g;

	if (file_internal_fd(f) != v->fd && file_reader(f) != v->fd)
		return;
	g = file_lock(f);
	if (!f->nested) {
		flush_wait_idle(f);
		if (attach_keep_nothing(f) < 0 && f->lease.on == f->left)
			visibility_drop(f); /* (what could not be written stays staged) */
		if (file_internal_fd(f) == v->fd || file_reader(f) == v->fd)
			flush_close_internal(f);
	}
	file_unlock(f, g);
}

/* The program wants the number of an internal descriptor: moves or closes ours.  False if that is
 * impossible. */
static bool vacate(int fd)
{
	struct vacate v = {.fd = fd};

	file_for_each(visit_vacate, &v);
	return !internal_fd_is(fd) || arenas_move_fd(fd) || journal_move_fd(fd) || ordered_move_fd(fd) ||
	       family_move_fd(fd);
}

/* True if dup2 from oldfd onto newfd will succeed, unless a sandbox refuses it. */
static bool can_replace(int oldfd, int newfd)
{
	struct rlimit64 limit = {.rlim_cur = RLIM64_INFINITY};

	sys_raw(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, (long)&limit, 0, 0);
	return (uint64_t)newfd < limit.rlim_cur && sys.fcntl(oldfd, F_GETFD, 0) >= 0;
}

static bool writes_counted(int fd, const struct file *f)
{
	return unresolved_inflight(fd) > 0 || (f && atomic_load(&f->inflight) > 0);
}

/* Waits until counted writes through fd are over.  Not forever: a write to a pipe may wait for a reader that
 * never comes.  False: some are not over. */
static bool let_writes_end(int fd, const struct file *f)
{
	enum { PAUSES = 20 * UNRESOLVED_YIELDS };

	for (int i = 0; i < PAUSES && writes_counted(fd, f); i++)
		unresolved_pause();
	return !writes_counted(fd, f);
}

/* Another thread may be writing through fd. */
static bool others_may_write(int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);

	return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && thread_of_program_count() != 1;
}

long fd_dup_onto_prepare(struct fd_dup_onto *d, int oldfd, int newfd)
{
	*d = (struct fd_dup_onto){.newfd = newfd};
	if (internal_fd_is(oldfd) || (internal_fd_is(newfd) && !vacate(newfd)))
		return -EBADF;
	/* before newfd is blocked: otherwise two threads could wait for each other's descriptors */
	fd_dup_begin(&d->copy, oldfd);
	if (oldfd == newfd)
		return FD_PASS;
	marked_fds_forget(newfd);
	d->forgotten = fdtable_knows(newfd);
	/* (if nothing of newfd is known, a dup2 that fails does no harm) */
	d->holds = (d->forgotten || d->copy.o) &&
	           ((newfd >= 0 && !d->forgotten && !is_locked(newfd)) || can_replace(oldfd, newfd));
	d->forgotten &= d->holds;
	if (d->holds) {
		const struct file *f;
		bool noted, over, unseen;

		/* Another thread may write to newfd just now, for example to a log file that is being
		 * rotated.  It must wait until newfd's new file is known: that file may have staged bytes. */
		d->signals = signals_block();
		before_close(newfd);
		d->blocked = unresolved_block(newfd, &noted);
		f = file_now(newfd);
		d->forgotten |= noted || f; /* (another thread has just got that number) */
		/* The library passes writes to a bypassed file to the kernel, without a count and without a
		 * lock.  Another thread may bypass the file now, until newfd has left the table. */
		unseen = !noted && (!f || atomic_load(&f->mode) == FILE_BYPASSED);
		/* dup2 reports no error of the close that it implies */
		forget(newfd, NULL, &unseen);
		over = !d->copy.o || !unseen || !others_may_write(newfd);
		over &= let_writes_end(newfd, f);
		/* Such a write may reach the new file, at the kernel's position: that must be the right one.
		 */
		if (!over)
			fd_use_unmodelled(oldfd, BYPASS_REPLACED);
		if (!d->blocked) {
			/* nothing makes other threads wait for newfd: so nothing may be staged */
			gate_hold();
			fd_drain(oldfd);
		}
	} else if (is_locked(newfd) && can_replace(oldfd, newfd)) {
		before_close(newfd); /* the close of newfd drops its locks */
	}
	return FD_PASS;
}

/* dup2 failed, and newfd stays open.  The library has forgotten its position and its locks: bypass its
 * file. */
static void still_open(int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);
	struct fd_open op = {.flags = (int)flags, .watch = true, .late = true, .reader = true};

	if (flags < 0)
		return;
	fd_opened(&op, fd);
	fd_use_unmodelled(fd, BYPASS_UNKNOWN_FD);
}

void fd_dup_onto_done(const struct fd_dup_onto *d, bool made)
{
	marked_fds_forget(d->newfd);
	if (d->holds) {
		if (made)
			share_description(&d->copy, d->newfd);
		if (d->blocked)
			unresolved_unblock(d->newfd);
		else
			gate_unhold();
		sys_restore_signals(d->signals);
	} else {
		fd_dup_done(&d->copy, made ? d->newfd : -1);
	}
	if (!made && d->forgotten)
		still_open(d->newfd);
}

/* Drains and forgets all descriptors in the range. */
static void close_range_prepare(unsigned from, unsigned to)
{
	marked_fds_forget_range(from, to);
	if (fd_foreign_process())
		return;
	for (unsigned fd = from; fd <= to && fd < UNRESOLVED_FDS; fd++) {
		before_close((int)fd);
		unresolved_end((int)fd);
	}
	if (to >= UNRESOLVED_FDS)
		before_close(UNRESOLVED_FDS); /* the bit of all higher descriptors */
	for (int fd = fdtable_next(from, to); fd >= 0; fd = fdtable_next((unsigned)fd + 1, to))
		fd_close_prepare(fd);
}

enum { OWN_TOP = 1 << 16 };

int fd_next_internal(unsigned at, unsigned to)
{
	for (; at <= to && at < OWN_TOP; at++)
		if (internal_fd_is((int)at))
			return (int)at;
	return -1;
}

static long close_around_internal(unsigned at, unsigned to, int flags,
                                  long (*next)(unsigned from, unsigned to, int flags))
{
	for (;;) {
		int own = fd_next_internal(at, to);
		long r;

		if (own < 0)
			return at <= to ? next(at, to, flags) : 0;
		r = (unsigned)own > at ? next(at, (unsigned)own - 1, flags) : 0;
		if (r < 0)
			return r;
		if ((unsigned)own == to)
			return 0;
		at = (unsigned)own + 1;
	}
}

long fd_close_range(unsigned from, unsigned to, int flags,
                    long (*next)(unsigned from, unsigned to, int flags))
{
	long r;

	if (from > to || (flags & (int)~(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE)))
		return next(from, to, flags);
	/* Old kernels and sandboxes refuse close_range.  A call with an impossible range finds that out
	 * before any descriptor is forgotten. */
	r = flags & CLOSE_RANGE_CLOEXEC ? 0 : next(~0u, ~0u, flags);
	if (r == 0 && !(flags & CLOSE_RANGE_CLOEXEC))
		close_range_prepare(from, to);
	if (r == 0)
		r = close_around_internal(from, to, flags, next);
	return r;
}

/* Without a number that is free, the first descriptor from `from` on that can be closed makes room. */
static int open_list(int from)
{
	int dir;

	do
		dir = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	while (dir == -EMFILE && fd_spare_internal());
	for (int fd = from; dir == -EMFILE && fd < OWN_TOP; fd++)
		if (!internal_fd_is(fd) && fd_close(fd) != -EBADF)
			dir = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	return dir;
}

void fd_close_listed(int from)
{
	int dir = open_list(from);
	struct sys_dir entries;
	BUFFER(char, buf);
	const struct sys_dirent *d;

	if (dir < 0)
		return;
	entries = (struct sys_dir){.fd = dir, .buf = buf, .size = BUFFER_BYTES};
	while ((d = sys_dir_next(&entries)) != NULL) {
		int fd = sys_dirent_fd(d);

		if (fd >= from && fd != dir && !internal_fd_is(fd))
			fd_close(fd);
	}
	sys.close(dir);
}

long fd_drain(int fd)
{
	struct file_guard g;
	struct file *f;
	struct ofd *o;
	long r = 0;

	unresolved_use(fd);
	f = lock_fd(fd, &o, &g);
	if (!f)
		return 0;
	if (f->mode == FILE_ATTACHED && f->arena) {
		r = flush_drain_and_reposition(f);
		/* the previous owner of the program's lock may have written */
		if (r == 0 && f->mode == FILE_ATTACHED && f->arena && !flush_left(f))
			attach_refresh(f, fd);
	}
	file_unlock(f, g);
	return r;
}

void fd_forget_unresolved(int fd)
{
	if (unresolved_used(fd))
		return;
	unresolved_end(fd);
	/* A signal handler cannot wait for the thread that resolves fd, which would stage the file later. */
	if (fdtable_state(fd) == UNRESOLVED_RESOLVING)
		mark_unknown(fd, true);
}

long fd_use_unmodelled(int fd, int why)
{
	struct file_guard g;
	bool writable;
	struct file *f;
	struct ofd *o;
	long r = 0;

	fd_forget_unresolved(fd);
	/* asynchronous calls come by the hundred thousand: no lock for them */
	f = file_now(fd);
	if (f && atomic_load(&f->mode) == FILE_BYPASSED) {
		ordered_outside(f);
		return 0;
	}
	f = lock_fd(fd, &o, &g);
	if (!f)
		return 0;
	if (f->mode != FILE_BYPASSED) {
		if (o->writable)
			r = attach_bypass(f, (enum bypass_reason)why);
		else if (why == BYPASS_STDIO)
			r = attach_bypass(f, BYPASS_STDIO); /* a stream that reads past the library */
		else
			r = flush_drain_and_reposition(f); /* the kernel reads on from there */
	}
	writable = o->writable;
	file_unlock(f, g);
	if (writable)
		ordered_outside(f);
	return r;
}

/* fd_bypass_call for a file that is bypassed.  The call is counted as a write under way: dup2 onto fd waits
 * for it.  False: fd means something else by now. */
static bool call_bypassed(int fd, const struct ofd *o, struct file *f, long number, const long *a, long *r)
{
	bool valid;

	stage_pass_begin(f);
	valid = atomic_load(&f->mode) == FILE_BYPASSED && fdtable_get(fd) == o &&
	        file_of((struct ofd *)(uintptr_t)o) == f;
	if (valid)
		*r = sys_raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	stage_pass_end(f);
	return valid;
}

long fd_bypass_call(int fd, long number, const long *a)
{
	struct file_guard g;
	struct file *f;
	struct ofd *o;
	long r;

	for (int tries = 0; tries < ASK_TRIES && (o = unresolved_moved(fd)) != NULL; tries++) {
		f = file_of(o);
		file_restore(f);
		if (atomic_load(&f->mode) == FILE_BYPASSED && o->writable)
			ordered_outside(f);
		if (call_bypassed(fd, o, f, number, a, &r))
			return r;
		f = lock_fd(fd, &o, &g);
		if (!f)
			continue;
		r = attach_bypass(f, BYPASS_SYSCALL);
		if (r == 0 && f->mode == FILE_ATTACHED) {
			/* An interrupted write of this thread, or another process, must end the staging.  It
			 * must then know what the kernel has. */
			tail_forget(f);
			journal_file_changed(f);
			r = sys_raw(number, a[0], a[1], a[2], a[3], a[4], a[5]);
			if (f->arena && !flush_left(f))
				attach_refresh(f, fd);
		} else if (r == 0) {
			r = FD_PASS; /* bypassed: once more */
		}
		file_unlock(f, g);
		if (r != FD_PASS)
			return r;
	}
	return FD_PASS;
}

void fd_use_stdio(int fd)
{
	struct statx st;
	struct file *f;

	young_other();
	fd_forget_unresolved(fd);
	if (fork_guard_elsewhere())
		return;
	if (fdtable_get(fd)) {
		fd_use_unmodelled(fd, BYPASS_STDIO);
		return;
	}
	/* a stream with its own description (fopen): the library does not see its writes */
	if (file_attached() == 0 || sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st) < 0)
		return;
	f = file_find(sys_dev_of(&st), st.stx_ino);
	if (f) {
		struct file_guard g = file_lock(f);

		if (f->refs && f->mode == FILE_ATTACHED)
			attach_bypass(f, BYPASS_STDIO);
		file_unlock(f, g);
	}
}

/* Has the file bytes in blocks, which a lock hands over?  (What the overlay has nobody else looks at.) */
static bool has_blocks(const struct file *f)
{
	return atomic_load(&f->mode) == FILE_ATTACHED && f->due[DUE_FLUSH] != 0 && !file_is_paged(f);
}

static void visit_blocks(struct file *f, void *ctx) { *(bool *)ctx |= has_blocks(f); }

/* True if no file has anything that the release of a lock must drain. */
static bool releases_freely(void)
{
	bool any = family_is_shared();

	if (!by_name_idle())
		file_for_each(visit_blocks, &any);
	return by_name_idle() || !any;
}

/*
 * True if another lock on the file needs no action: nothing of it is to be drained, and any later staging
 * respects locks.  Takes no file lock, because a database takes several locks per transaction.
 */
static bool lock_is_known(int fd, enum fd_lock_range range)
{
	struct file *f = file_now(fd);

	if (!f || !f->cooperates || !f->no_internal_fd || file_has_own_fd(f))
		return false;
	return atomic_load(&f->mode) != FILE_ATTACHED ||
	       (file_is_ordered(f) && !f->shared && !has_blocks(f) && range == LOCK_AT_OFFSET);
}

bool fd_lock_changes_nothing(int fd)
{
	uint64_t bit;

	return !live_config || fd < 0 ||
	       (by_name_idle() && (atomic_load(locked_word(fd, &bit)) & bit) && !unresolved_is(fd) &&
	        (!fdtable_get(fd) || lock_is_known(fd, LOCK_FROM_POSITION)));
}

long fd_before_lock(int fd, bool releases, enum fd_lock_range range)
{
	_Atomic uint64_t *word;
	struct file_guard g;
	uint64_t bit;
	struct file *f;
	struct ofd *o;
	long r = 0;

	if (!live_config || fd < 0)
		return 0;
	word = locked_word(fd, &bit);
	/* nothing to do: saves the system call that identifies the process */
	if ((releases ? releases_freely() : (atomic_load(word) & bit) != 0) && !unresolved_is(fd) &&
	    (!fdtable_get(fd) || lock_is_known(fd, range)))
		return 0;
	/* while nothing is staged, only a child that shares our memory must be told apart */
	if (by_name_idle() ? fork_guard_elsewhere() : fd_foreign_process())
		return 0;
	if (releases)
		by_name_drain_for_lock();
	else
		atomic_fetch_or(word, bit);
	unresolved_resolve(fd);
	if (lock_is_known(fd, range))
		return 0;
	f = lock_fd(fd, &o, &g);
	if (!f)
		return 0;
	/* no descriptor that could write would be left, once our own is closed */
	if (flush_is_kept(f))
		r = attach_keep_nothing(f);
	else if (f->mode == FILE_ATTACHED && f->arena && (!file_is_paged(f) || range == LOCK_FROM_POSITION))
		r = flush_drain_and_reposition(f);
	/* Closing any descriptor of a file drops the process's POSIX locks on it.  So our own descriptor must
	 * be closed before the program takes one. */
	if (r == 0 && range != LOCK_WHOLE) {
		f->no_internal_fd = true;
		/* (a thread may be writing through it) */
		if (file_has_own_fd(f) && !f->nested)
			flush_wait_idle(f);
		flush_close_internal(f);
	}
	if (r == 0 && !releases)
		f->cooperates = true;
	file_unlock(f, g);
	return r;
}

void fd_locked(int fd, bool released)
{
	const struct file *f = file_now(fd);

	/* the file was drained before the release; another thread may have staged since */
	if (f && !file_is_paged(f) && !lock_is_known(fd, LOCK_AT_OFFSET) &&
	    !(released && f->due[DUE_FLUSH] == 0))
		fd_drain(fd);
}

long fd_fcntl(int fd, struct ofd *o, int cmd, long arg)
{
	struct file *f;
	struct file_guard g;
	long r = FD_PASS;

	switch (cmd) {
	case F_GETFL:
	case F_SETFL:
	case F_SETLEASE:
	case F_SETSIG:
	case F_SETOWN:
	case F_SETOWN_EX:
	case F_NOTIFY:
	case F_GETLEASE:
	case F_GETSIG:
	case F_GETOWN:
	case F_GETOWN_EX: break;
	default: return FD_PASS;
	}
	f = lock_fd(fd, &o, &g);
	if (!f)
		return FD_PASS;
	switch (cmd) {
	case F_GETFL:
		/* A running flush may have changed the kernel's flags.  The file lock keeps a new flush from
		 * starting. */
		r = f->flush.program_fd ? o->flags : sys.fcntl(fd, F_GETFL, 0);
		if (r >= 0 && f->lease.on == o)
			r &= ~(long)O_ASYNC | o->flags; /* the kernel sets O_ASYNC with a lease */
		break;
	case F_SETFL: {
		struct statx st = {0};

		r = detach_file(f);
		if (r < 0)
			break;
		r = sys.fcntl(fd, F_SETFL, arg);
		if (r == 0) {
			long now = sys.fcntl(fd, F_GETFL, 0);

			o->flags = now >= 0 ? (int)now : o->flags;
			sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | 0x2000u, &st);
			ofd_set_align(o, direct_mask(o->flags, &st));
		}
		break;
	}
	case F_SETLEASE:
	case F_SETSIG:
	case F_SETOWN:
	case F_SETOWN_EX:
	case F_NOTIFY:
		r = attach_bypass(f, BYPASS_IOCTL);
		r = r < 0 ? r : FD_PASS;
		break;
	default:
		/* the program must not see our lease, nor the thread that the kernel signals for it */
		if (file_needs_lease(f))
			detach_file(f);
		else
			flush_drain_and_reposition(f);
		journal_retire(f);
		visibility_drop(f);
		r = sys.fcntl(fd, cmd, arg);
	}
	file_unlock(f, g);
	return r;
}
