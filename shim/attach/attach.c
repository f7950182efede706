// SPDX-License-Identifier: Apache-2.0
/* attach: see attach/attach.h. */
#include "attach/attach.h"

#include "attach/stop.h"
#include "base/buffer.h"
#include "base/fd_link.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "files/never_staged.h"
#include "files/workers.h"
#include "files/young.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/prealloc.h"
#include "flush/removal.h"
#include "flush/token.h"
#include "flush/visibility.h"
#include "format/identity.h"
#include "staging/arena.h"
#include "staging/arenas.h"
#include "staging/memory_limit.h"
#include "staging/paged.h"
#include "staging/registry.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"
#include "staging/stats.h"
#include "staging/tail.h"
#include "sync/journal_file.h"
#include "sync/sync.h"
#include "wal/spare.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

/* For FASTWRITE_LOG = info.  An exec or exit bypasses every file, which is not worth a message. */
static void say_through(const struct file *f, enum bypass_reason why)
{
	BUFFER(char, path);

	PROBE(bypass, PROBE_FILE(f), why);
	if (!log_enabled(LOG_INFO) || why == BYPASS_EXEC || why == BYPASS_EXIT)
		return;
	for (const struct ofd *o = f->ofds; o; o = o->next) {
		path[0] = '\0';
		if (ofd_fd(o) >= 0)
			fd_link_path(ofd_fd(o), path);
		if (path[0] == '/') {
			log_info("%s is bypassed: %s", path, bypass_reason_text(why));
			return;
		}
	}
}

void attach_nothing_staged(struct file *f)
{
	f->current = f->head = f->tail = NULL;
	f->overlay.pages = NULL;
	if (f->blocks > 0 && f->arena)
		atomic_fetch_sub(&f->arena->files, 1);
	f->blocks = 0;
	file_due_flush(f);
	f->staged_lo = f->staged_hi = 0;
	f->flush.append_skip = 0;
	f->flush.error = 0;
	f->space.end = 0;
	f->moving = NULL;
	f->needs_repair = false;
}

void attach_leave_arena(struct file *f)
{
	attach_nothing_staged(f);
	journal_file_keep(f);
	f->arena = NULL;
	f->entry = -1;
	staging_policy_restart(f);
}

/* All processes that had the arena are dead.  It has been recovered as a whole, or will be: nothing is staged
 * for f here. */
static void forget_staged(struct file *f, bool recovered)
{
	f->arena = NULL; /* it may be another arena by now */
	attach_leave_arena(f);
	f->flush.busy = 0;
	f->lease.on = NULL;
	/* positions in staged bytes died with the processes that staged them */
	for (struct ofd *o = f->ofds; o; o = o->next)
		o->pos_mode = POS_KERNEL;
	if (f->mode == FILE_ATTACHED) {
		file_become(f, recovered ? FILE_PASSIVE : FILE_BYPASSED,
		            recovered ? BYPASS_NONE : BYPASS_FORK);
	}
}

PROCESS_CODE bool attach_reaches(const struct file *f)
{
	/* (without other processes attach_to_arena does not wait) */
	return !f->arena || family_set_has(&f->arena->members, family_me) ||
	       !family_set_others(&f->arena->members) || arenas_join(f) == 0;
}

void attach_to_arena(struct file *f)
{
	while (f->arena && !family_set_has(&f->arena->members, family_me)) {
		int r = arenas_join(f);

		if (r == 0)
			return;
		if (r != -EWOULDBLOCK && !family_set_others(&f->arena->members)) {
			forget_staged(f, r == -ENOENT || r == -ESTALE);
			return;
		}
		/* The arena cannot be mapped here (another user, another root directory).  The process that
		 * staged the file must write it, and all processes bypass it from then on.  -EWOULDBLOCK: the
		 * arena is just being recovered. */
		if (r != -EWOULDBLOCK)
			file_want(f, WANT_BYPASS, BYPASS_FORK);
		lock_drop(&f->lock, LOCK_FILE);
		sys_nap(2000000);
		file_retake(f);
	}
}

static bool is_modelled(long flags)
{
	return flags >= 0 && !(flags & (O_PATH | O_DIRECT | O_SYNC | O_DSYNC));
}

/* Makes an unresolved descriptor that this process opened a second description of the file. */
static bool adopt_noted(struct file *f, int fd)
{
	enum unresolved_state before = fdtable_begin_resolve(fd);
	bool adopted = false;

	if (before == UNRESOLVED_NONE)
		return false;
	/* No thread can close it now: does it still refer to the file? */
	if (unresolved_inflight(fd) == 0 && flush_is_the_file(f, fd) == 1) {
		long flags = sys.fcntl(fd, F_GETFL, 0);
		struct ofd *o;

		/* the reference first: a kill in between leaves one too many, not one too few */
		file_ref(f);
		o = is_modelled(flags) ? ofd_new(f, fd, (int)flags) : NULL;
		adopted = o && fdtable_set(fd, o) == 0;
		if (!adopted)
			file_put(f);
	}
	fdtable_set_state(fd, adopted ? UNRESOLVED_NONE : before);
	return adopted;
}

/* A descriptor whose open the library did not see: its use is unknown.  (A stdio stream that reads the file
 * would miss the staged bytes.)  An O_PATH descriptor can neither read nor write. */
static bool harmless_fd(struct file *f, int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);

	if (flags < 0 || (flags & O_PATH))
		return true;
	return unresolved_is(fd) && !fd_is_standard(fd) && is_modelled(flags) && adopt_noted(f, fd);
}

/*
 * Searches for descriptors of the file that came by ways the library does not see: inherited, received over a
 * socket, made by fopen or a raw system call.  Searches for an io_uring, too.  Returns the reason not to
 * attach, or BYPASS_NONE.
 */
static enum bypass_reason search_descriptors(struct file *f)
{
	BUFFER(char, buf);
	int dir = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	struct sys_dir entries = {.fd = dir, .buf = buf, .size = BUFFER_BYTES};
	enum bypass_reason why = BYPASS_NONE;
	const struct sys_dirent *d;
	struct statx st;

	if (dir < 0)
		return BYPASS_UNKNOWN_FD;
	while (why == BYPASS_NONE && (d = sys_dir_next(&entries)) != NULL) {
		int fd = sys_dirent_fd(d);

		if (fd < 0 || fd == dir || internal_fd_is(fd) || fdtable_get(fd) ||
		    sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_TYPE, &st) < 0)
			continue;
		if (st.stx_ino == f->ino && sys_dev_of(&st) == f->dev)
			why = harmless_fd(f, fd) ? BYPASS_NONE : BYPASS_UNKNOWN_FD;
		else if ((st.stx_mode & S_IFMT) == 0 && fd_link_is_io_uring(fd))
			why = BYPASS_IO_URING;
	}
	if (entries.filled < 0)
		why = BYPASS_UNKNOWN_FD;
	sys.close(dir);
	return why;
}

/* search_descriptors, unless f is young.  An io_uring may have come since the last search. */
static enum bypass_reason scan_descriptors(struct file *f, bool young)
{
	static _Atomic uint64_t last;
	uint64_t now = sys_now_coarse_ns();

	if (young && now - atomic_load(&last) < YOUNG_NS)
		return BYPASS_NONE;
	signals_harden();
	atomic_store(&last, now);
	return search_descriptors(f);
}

static bool has_standard_fd(const struct file *f)
{
	for (int fd = 0; fd <= 2; fd++) {
		struct ofd *o = fdtable_get(fd);

		if (fd_is_standard(fd) && o && atomic_load(&o->file) == f && o->writable)
			return true;
	}
	return false;
}

static void fill_entry(const struct file *f, struct arena *a, uint32_t index, const char *path, int fd,
                       const struct statx *st)
{
	struct arena_entry *entry = arena_entry_at(a, index);
	/* blocks of the entry's last file are done; blocks to come have larger sequence numbers */
	uint64_t done = DONE_MAKE(atomic_load(&a->header->live.next_seq), 0);

	struct identity id;

	identity_of(fd, st, &id);
	entry->dev = f->dev;
	entry->ino = f->ino;
	entry->btime_sec = id.btime_sec;
	entry->btime_nsec = id.btime_nsec;
	entry->generation = id.generation;
	entry->handle_hash = id.handle_hash;
	entry->guard.known = 0;
	entry->guard.begun_ns = 0;
	entry->flush_active = APPEND_NONE;
	entry->flush_base = 0;
	entry->prealloc_end = 0;
	entry->keeper = 0;
	entry->flags = f->rule->set.writers == WRITERS_EXCLUSIVE ? ENTRY_EXCLUSIVE : 0;
	if (f->rule->set.sync == SYNC_RELAXED)
		entry->flags |= ENTRY_RELAXED;
	if (file_is_ordered(f))
		entry->flags |= ENTRY_ORDERED;
	arena_entry_name(a, index, path);
	atomic_store(&entry->done, done);
	kill_step();
	atomic_store_explicit(&entry->used, 1, memory_order_release);
	kill_step();
}

static void probe_direct(struct file *f, const struct statx *st)
{
	f->flush.direct_ok = true; /* try it: EINVAL says no */
#ifdef STATX_DIOALIGN
	if (st->stx_mask & STATX_DIOALIGN)
		f->flush.direct_ok = st->stx_dio_mem_align != 0 && st->stx_dio_mem_align <= ARENA_PAGE &&
		                     st->stx_dio_offset_align != 0 && st->stx_dio_offset_align <= ARENA_PAGE;
#else
	(void)st;
#endif
}

/* Counts and reports a file that is not attached and shall not be. */
static void count_bypass(const struct file *f, enum bypass_reason why)
{
	signals_harden();
	stats_through(f->rule, why);
	say_through(f, why);
}

/* f stays passive, and this is why: said and counted once. */
static void passes_for_now(struct file *f, enum bypass_reason why)
{
	if (f->why != why)
		count_bypass(f, why);
	f->why = why;
}

/*
 * What stands against it may go.  A descriptor whose use is unknown may be closed, or another thread is about
 * to register it.  The program may raise a limit.  So try again, less and less often.
 */
static enum bypass_reason attach_later(struct file *f, enum bypass_reason why)
{
	passes_for_now(f, why);
	staging_policy_later(f);
	return BYPASS_COUNT;
}

static bool entry_reclaim(struct arena *a);

/* True if the file has fewer blocks than bytes.  Space that we reserved beyond the end does not count. */
static bool has_holes(const struct file *f, const struct statx *st)
{
	uint64_t allocated = st->stx_blocks * 512ull;
	uint64_t behind = f->space.end > st->stx_size ? f->space.end - st->stx_size : 0;

	return allocated < st->stx_size + behind;
}

struct attributes {
	bool synchronous; /* writes must be durable when they return: mount -o sync, chattr +S */
	bool append_only; /* chattr +a */
	bool plain;       /* a page takes one page of space */
};

/* LOCK_ATTACH held.  What the file system says of itself holds for a while for files that were just made. */
static void ask_system(const struct file *f, int fd, bool young, struct statfs *system)
{
	static struct statfs last;
	static uint64_t dev, asked_ns;
	uint64_t now = sys_now_coarse_ns();

	if (!young || f->dev != dev || now - asked_ns >= YOUNG_NS) {
		last = (struct statfs){0};
		sys_raw(SYS_fstatfs, fd, (long)&last, 0, 0, 0, 0);
		dev = f->dev;
		asked_ns = now;
	}
	*system = last;
}

/*
 * /proc, /sys, control groups and the like make up what their files have: each write is a command, which the
 * kernel may refuse.  They have no blocks.  tmpfs without a limit says so, too, and so may a server, or an
 * overlay of those.  (f_type is 0 where the call has failed.)
 */
static bool takes_commands(const struct statfs *system)
{
	enum { OVERLAY = 0x794c7630, EFIVARFS = 0xde5e81e4 /* its blocks are the firmware's */ };
	uint32_t kind = (uint32_t)system->f_type;

	return kind == (uint32_t)EFIVARFS ||
	       (system->f_blocks == 0 && kind != 0 && kind != OVERLAY && sys_has_disk(kind));
}

static struct attributes attributes_of(int fd, const struct statfs *system)
{
	int flags = 0;

	sys_raw(SYS_ioctl, fd, FS_IOC_GETFLAGS, (long)&flags, 0, 0, 0);
	return (struct attributes){.synchronous = (system->f_flags & ST_SYNCHRONOUS) || (flags & FS_SYNC_FL),
	                           .append_only = flags & FS_APPEND_FL,
	                           .plain = system->f_type == SPARE_EXT4 && (flags & FS_EXTENT_FL)};
}

/*
 * Recovery has the rights of the arena's owner and opens the file by its path.  If the owner may not write to
 * the file, its bytes would stay in the arena.  So ask for the owner without capabilities.  If the process
 * acts as another user for a while, that user owns the arena and can read it.  Then the user must have the
 * right to read the file, too.
 *
 * `young`: what statx says of a file that this process has just made by this path; or NULL.
 */
static bool is_recoverable(const char *path, const struct statx *young)
{
	enum { SYS_FACCESSAT2 = 439, READ_OK = 4, WRITE_OK = 2, OWNERS = S_IRUSR | S_IWUSR };
	uint32_t u[3], g[3];

	if (young && young->stx_uid == sys_geteuid() && (young->stx_mode & OWNERS) == OWNERS)
		return true;
	if (sys_raw(SYS_getresuid, (long)&u[0], (long)&u[1], (long)&u[2], 0, 0, 0) < 0 ||
	    sys_raw(SYS_getresgid, (long)&g[0], (long)&g[1], (long)&g[2], 0, 0, 0) < 0)
		return false;
	if (u[0] == u[1] && u[1] == u[2] && g[0] == g[1] && g[1] == g[2])
		return sys_raw(SYS_faccessat, AT_FDCWD, (long)path, WRITE_OK, 0, 0, 0) == 0;
	return sys_raw(SYS_FACCESSAT2, AT_FDCWD, (long)path, READ_OK | WRITE_OK, AT_EACCESS, 0, 0) == 0;
}

/*
 * The order of a rule is that of one process.  False: another process of the family lives, or its end is not
 * noticed yet.  Every ORDER_LOOK_NS there is another look; in between this costs no system call.
 */
static bool may_order(struct file *f)
{
	enum { ORDER_LOOK_NS = 10000000 };
	static _Atomic uint64_t next;
	uint64_t now;

	if (!ordered_ended() && !family_is_shared())
		return ordered_pays(f->rule);
	passes_for_now(f, BYPASS_FORK);
	now = sys_now_coarse_ns();
	if (ordered_ended() || now < atomic_load(&next))
		return false;
	atomic_store(&next, now + ORDER_LOOK_NS);
	return true;
}

/* LOCK_ATTACH held, so that nobody forks: no other process has f, nor files that are ordered with it. */
static bool is_alone(struct file *f)
{
	if (ordered_ended())
		return false;
	if (family_is_shared()) {
		/* a worker forgets the dead, and the next look finds no family */
		if (family_is_alone() && workers_start() == 0) {
			atomic_store(&gate.alone, true);
			workers_nudge();
		}
		return false;
	}
	if (!f->shared)
		return true;
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (ofd_fd(o) < 0)
			return false;
	/* (`give_up`: the child of a vfork had it, and its parent was killed) */
	if (atomic_load(&f->flush.busy) || f->needs_repair || atomic_load(&f->give_up) != BYPASS_NONE)
		return false;
	f->shared = false;
	if (f->why == BYPASS_FORK)
		f->why = BYPASS_NONE;
	return true;
}

/* The reason why f cannot have a place in the order of its rule, or BYPASS_NONE. */
static enum bypass_reason cannot_order(struct file *f, struct arena *a, uint64_t size)
{
	int r;

	r = flush_make_readable(f);
	if (r == -EACCES)
		return BYPASS_RIGHTS;
	if ((r < 0 && r != -EBADF) || !paged_fits(f, a, size)) {
		/* a descriptor for reading may come */
		staging_policy_later(f);
		return BYPASS_COUNT;
	}
	r = ordered_ready(a);
	if (r < 0)
		return arenas_try_later(r) ? attach_later(f, BYPASS_NO_ARENA) : BYPASS_NO_ARENA;
	signals_catch();
	return BYPASS_NONE;
}

/* LOCK_ATTACH held.  Returns the reason not to attach, or BYPASS_NONE. */
static enum bypass_reason try_attach(struct file *f, struct ofd *o)
{
	BUFFER(char, path);
	enum bypass_reason why;
	bool busy = false, later = false, young;
	const char *known;
	struct attributes attributes;
	struct statfs system;
	struct statx st;
	struct arena *a;
	int entry, r;

	/* (the file may have been made in the middle of the first fork) */
	if (family_is_shared())
		f->shared = true;
	if (file_is_ordered(f) && !is_alone(f))
		return BYPASS_COUNT;
	if (sys.statx(ofd_fd(o), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | 0x2000u /* DIOALIGN */,
	              &st) < 0)
		return BYPASS_PATH;
	if (st.stx_nlink == 0)
		return BYPASS_UNLINKED;
	/* (the kernel takes them at each write, and programs see it at once) */
	if (sys_has_rights(ofd_fd(o), &st))
		return BYPASS_SET_ID;
	young = !f->shared && young_is(f->dev, f->ino);
	known = young ? young_path() : NULL;
	if (known) {
		strcpy(path, known);
	} else {
		signals_harden();
		if (fd_link_path(ofd_fd(o), path) < 0 || strlen(path) >= ARENA_PATH_MAX)
			return BYPASS_PATH;
	}
	young_end();
	if (has_standard_fd(f))
		return BYPASS_STANDARD_FD;
	ask_system(f, ofd_fd(o), young, &system);
	if (takes_commands(&system))
		return BYPASS_NO_PREALLOC;
	attributes = attributes_of(ofd_fd(o), &system);
	if (attributes.synchronous)
		return BYPASS_SYNC;
	/* (what is staged by its offset would be written behind the end) */
	if (attributes.append_only && (file_is_ordered(f) || f->rule->set.writers == WRITERS_EXCLUSIVE))
		return BYPASS_RIGHTS;
	if (!is_recoverable(path, known ? &st : NULL)) {
		log_info("%s is bypassed: recovery could not write to it by its path as user %u", path,
		         sys_geteuid());
		return BYPASS_RIGHTS;
	}
	why = never_staged_why_never(f->dev, f->ino);
	if (why == BYPASS_NONE) {
		why = scan_descriptors(f, young);
		/* (in a family the other processes would search only their own descriptors) */
		if (why == BYPASS_UNKNOWN_FD && !family_is_shared())
			return attach_later(f, why);
	}
	if (why == BYPASS_IO_URING) {
		atomic_store(&gate.soon, why);
		workers_nudge();
	}
	if (why != BYPASS_NONE)
		return why;
	/* (before a thread of ours shares the table of descriptors: the arena's number is high, and to make a
	 * shared table larger the kernel waits some 15 ms) */
	a = arenas_for(f, path, &busy, &later);
	if (busy)
		return BYPASS_COUNT;
	if (!a)
		return later ? attach_later(f, BYPASS_NO_ARENA) : BYPASS_NO_ARENA;
	r = workers_start();
	if (r < 0) /* in a signal handler: a later write tries again */
		return r == -EDEADLK ? BYPASS_COUNT : BYPASS_NO_THREAD;
	if (!arenas_may_hold(a, f, ofd_fd(o), &st))
		return BYPASS_ENCRYPTED;
	if (f->shared && !arenas_mapped_by_all(f, a)) {
		staging_policy_later(f);
		return BYPASS_COUNT;
	}
	why = file_is_ordered(f) ? cannot_order(f, a, st.stx_size) : BYPASS_NONE;
	if (why != BYPASS_NONE)
		return why;
	entry = arena_entry_take(a);
	if (entry < 0 && entry_reclaim(a))
		entry = arena_entry_take(a);
	if (entry < 0)
		return BYPASS_COUNT; /* all in use by busy files: stay passive, a later write tries again */
	/* Fill the entry before f gets it.  If this process is killed here, a repair of f must not find what
	 * the entry's last file left. */
	fill_entry(f, a, (uint32_t)entry, path, ofd_fd(o), &st);
	f->arena = a;
	tail_forget(f);
	f->ksize = f->lsize = st.stx_size;
	f->space.end = 0;
	f->sparse = has_holes(f, &st);
	f->staged_lo = f->staged_hi = 0;
	f->flush.error = 0;
	f->flush.append_skip = 0;
	f->space.step = 0;
	f->space.block = prealloc_block(&system);
	f->space.plain = attributes.plain;
	journal_file_begin(f);
	f->order.fresh = true;
	f->order.behind = false;
	f->order.sized = f->order.logged = 0;
	f->order.removal = REMOVAL_NONE;
	f->order.passed = false;
	file_want_less(f, WANT_DETACH);
	f->takeovers = arena_entry_at(a, (uint32_t)entry)->takeovers;
	probe_direct(f, &st);
	f->lease.proves = lease_proves_on((unsigned)system.f_type);
	atomic_signal_fence(memory_order_seq_cst);
	f->entry = entry;
	kill_step();
	return BYPASS_NONE;
}

/* The reason why this process, or another living one of the family, refuses staging. */
static enum bypass_reason refused(void)
{
	enum bypass_reason why = gate_refusal();

	return why == BYPASS_NONE ? family_refused() : why;
}

bool attach_file(struct file *f, struct ofd *o)
{
	uint64_t begin = staging_policy_clock(f);
	enum bypass_reason why;

	atomic_thread_fence(memory_order_seq_cst); /* (f is in the table: see gate_stop and file_any) */
	if (gate_stopped() || gate_held() || !o->writable || (file_is_ordered(f) && !may_order(f)))
		return false;
	why = refused();
	if (why != BYPASS_NONE) {
		count_bypass(f, why);
		file_become(f, FILE_BYPASSED, why);
		return false;
	}
	/* Become attached first.  A thread that opens the file after the search for descriptors then sees
	 * that it must register its descriptor.  A thread that is about to change what is looked up below
	 * sees it, too. */
	file_become(f, FILE_ATTACHED, f->why);
	/* If another thread is in the kernel with this file, the next write tries again.  The lock is only
	 * tried: its holder may wait for this file's lock.  Or this is a signal handler, and the holder waits
	 * for the interrupted thread. */
	if (atomic_load(&f->inflight) != 0 || gate_held() || gate_changing() || !arenas_try()) {
		file_attach_undo(f, FILE_PASSIVE, f->why);
		return false;
	}
	why = try_attach(f, o);
	arenas_unlock_tried();
	staging_policy_restart(f);
	if (why == BYPASS_NONE) {
		staging_policy_attached(f, begin);
		PROBE(attach, PROBE_FILE(f));
		return true;
	}
	f->arena = NULL;
	f->entry = -1;
	if (why != BYPASS_COUNT)
		count_bypass(f, why);
	file_attach_undo(f, why == BYPASS_COUNT ? FILE_PASSIVE : FILE_BYPASSED,
	                 why == BYPASS_COUNT ? f->why : why);
	return false;
}

/* True if the kernel's offset of every description is right, or this process can set it. */
static bool positions_reachable(const struct file *f)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (o->pos_mode != POS_KERNEL && ofd_fd(o) < 0)
			return false;
	return true;
}

void attach_refresh(struct file *f, int fd)
{
	struct statx st;

	/* (the program may have closed the descriptor unseen) */
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0 || st.stx_ino != f->ino ||
	    sys_dev_of(&st) != f->dev) {
		tail_forget(f);
		return;
	}
	tail_check(f, &st);
	f->ksize = f->lsize = st.stx_size;
	f->sparse = has_holes(f, &st);
	if (!journal_file_alone(f))
		journal_file_changed(f);
}

static void release_left(struct file *f)
{
	struct ofd *o = f->left;

	if (!o || !family_set_has(&o->holders, family_me))
		return;
	f->left = NULL;
	ofd_release(o);
	file_put(f);
}

int detach_file(struct file *f)
{
	enum { TRIES = 4 }; /* another thread may stage while f is synced */
	struct arena *a;
	uint32_t entry;
	int r, fd;

	if (f->mode != FILE_ATTACHED || !f->arena)
		return 0;
	/* (a file that came and went in order has nothing staged or reserved: no call below waits) */
	if (!file_is_ordered(f) || file_is_staged(f) || f->space.end != 0)
		signals_harden();
	for (int tries = 0; tries < TRIES; tries++) {
		r = flush_drain_and_reposition(f);
		if (r < 0)
			return r;
		if (f->mode != FILE_ATTACHED || !f->arena || flush_left(f))
			return 0; /* another thread was quicker, or other processes have to write it */
		if (!f->order.behind && !ordered_holds(f))
			break;
		r = ordered_leave(f);
		if (r < 0)
			return r;
	}
	if (ordered_holds(f)) {
		/* another thread has staged all the time */
		file_want(f, WANT_DETACH, BYPASS_NONE);
		return 0;
	}
	/* The caller's next change must not be undone by a replay of the journal, whichever thread detaches
	 * f. */
	r = journal_retire(f);
	if (r < 0)
		return r;
	if (f->mode != FILE_ATTACHED || !f->arena || flush_left(f))
		return 0;
	if (!positions_reachable(f)) {
		/* another process has to give a position back; until then nothing more is staged */
		file_want(f, WANT_DETACH, BYPASS_NONE);
		return 0;
	}
	visibility_drop(f);
	fd = flush_writable_fd(f);
	if (fd < 0 || fd != flush_kept_fd(f))
		flush_close_internal(f);
	if (fd >= 0)
		prealloc_trim(f, fd);
	flush_close_internal(f);
	if (file_is_staged(f)) {
		/* a signal handler leaves the block into which the interrupted write may copy */
		file_want(f, WANT_DETACH, BYPASS_NONE);
		return 0;
	}
	file_want_less(f, WANT_DETACH);
	if (f->order.fresh)
		f->order.passed = true;
	a = f->arena;
	entry = (uint32_t)f->entry;
	tail_forget(f);
	/* Clear these before another file can get the entry.  A kill here must not leave f with the entry of
	 * another file. */
	f->entry = -1;
	f->arena = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	kill_step();
	arena_entry_free(a, entry);
	/* a worker thread removes the arena when it has been idle for a while */
	if (a->entries_used == 0 && !gate_stopped())
		workers_arm();
	staging_policy_restart(f);
	file_become(f, FILE_PASSIVE, f->why);
	PROBE(detach, PROBE_FILE(f));
	release_left(f);
	return 0;
}

int attach_bypass(struct file *f, enum bypass_reason why)
{
	struct arena *a = f->arena;
	int r = detach_file(f);

	if (r == 0 && f->mode == FILE_ATTACHED && f->arena) {
		/* nothing more is staged until a process that can bypass it has done so (descriptors/io.c) */
		file_want(f, WANT_BYPASS, why);
	} else if (r == 0 && f->mode == FILE_PASSIVE) {
		file_become(f, FILE_BYPASSED, why);
		say_through(f, why);
		/* at exit every file is bypassed: not counted */
		if (a && why != BYPASS_EXIT)
			atomic_fetch_add(&a->header->live.through[why], 1);
	}
	return r;
}

int attach_let_go(struct file *f)
{
	return flush_is_kept(f) ? detach_file(f) : flush_drain_and_reposition(f);
}

int attach_keep_nothing(struct file *f)
{
	if (!f->nested)
		flush_wait_idle(f); /* a thread may be writing through it */
	if (flush_is_kept(f) && f->mode == FILE_ATTACHED && f->arena)
		return detach_file(f);
	/* (a handler that closes it sets a wish, too: the interrupted write goes on with it) */
	if (f->left && !f->nested && !f->wanted) {
		flush_close_internal(f);
		release_left(f);
	}
	return 0;
}

void attach_closed_due(struct file *f)
{
	f->due[DUE_CLOSED] = 0;
	if (attach_keep_nothing(f) < 0)
		f->due[DUE_CLOSED] = sys_now_ns() + file_lag_ns(f);
}

int attach_as_wanted(struct file *f)
{
	if (f->wanted == WANT_BYPASS)
		return attach_bypass(f, f->wanted_why);
	return f->wanted == WANT_DETACH ? detach_file(f) : 0;
}

void attach_abandon(struct file *f)
{
	const struct arena *a = f->arena;
	bool ordered = file_is_ordered(f);

	if (ordered)
		ordered_lock(f);
	if (f->arena != a || !(file_is_staged(f) || ordered_holds(f))) {
		/* it was written after all, while the lock was free */
		if (ordered)
			ordered_unlock(a);
		(void)detach_file(f);
		return;
	}
	if (file_is_staged(f))
		log_error(
			"closing %s with bytes that cannot be written (error %d): they stay in %s, see `fastwrite "
			"recover`",
			arena_entry_at(f->arena, (uint32_t)f->entry)->path, -f->flush.error, f->arena->dir);
	if (ordered) {
		(void)removal_is_done(f);
		ordered_leave_led(f);
	}
	visibility_drop(f);
	flush_close_internal(f);
	attach_leave_arena(f);
	file_become(f, FILE_BYPASSED, f->why);
	release_left(f);
	if (ordered)
		ordered_unlock(a);
}

/* Visits attached files with nothing staged.  Their locks are only tried. */
struct idle {
	struct arena *arena; /* NULL: any */
	bool reserved;       /* only files with reserved space */
	bool all;            /* all such files, or only the first */
	bool done;
};

static void visit_idle(struct file *f, void *ctx)
{
	struct idle *i = ctx;
	uint32_t tid = lock_self();

	if ((i->done && !i->all) || f->mode != FILE_ATTACHED || !lock_try(&f->lock, tid))
		return;
	/* (another process's arena may not be mapped here) */
	if (f->mode == FILE_ATTACHED && f->arena && !file_is_staged(f) && !atomic_load(&f->flush.busy) &&
	    !f->needs_repair && !f->order.behind && !ordered_holds(f) &&
	    (!f->shared || family_set_has(&f->arena->members, family_me)) &&
	    (!i->arena || f->arena == i->arena) && (!i->reserved || f->space.end != 0))
		i->done |= detach_file(f) == 0;
	lock_drop_fast(&f->lock, tid);
}

static bool entry_reclaim(struct arena *a)
{
	struct idle i = {.arena = a};

	file_for_each(visit_idle, &i);
	return i.done;
}

bool detach_reserved(void)
{
	struct idle i = {.reserved = true, .all = true};

	file_for_each(visit_idle, &i);
	return i.done;
}

bool attach_stays_open(const struct file *f)
{
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		struct ofd *o = fdtable_get(fd);

		if (o && o->writable && atomic_load(&o->file) == f &&
		    !(sys.fcntl(fd, F_GETFD, 0) & FD_CLOEXEC))
			return true;
	}
	return false;
}
