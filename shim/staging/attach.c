// SPDX-License-Identifier: Apache-2.0
/* attach: see staging/attach.h. */
#include "staging/attach.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "descriptors/fd.h"
#include "descriptors/fd_passing.h"
#include "descriptors/fdtable.h"
#include "descriptors/never_staged.h"
#include "descriptors/unresolved.h"
#include "flush/engine.h"
#include "flush/flush.h"
#include "flush/lease.h"
#include "flush/prealloc.h"
#include "flush/visibility.h"
#include "format/identity.h"
#include "process/fork_guard.h"
#include "process/registry.h"
#include "staging/memory_limit.h"
#include "staging/stage.h"
#include "staging/staging_policy.h"
#include "staging/stats.h"
#include "staging/takeover.h"
#include "sync/journal_file.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

enum { ARENAS_MAX = 32 };

const struct config *attach_config;

static struct {
	struct lock lock; /* LOCK_ENGAGE */
	struct {
		struct arena *arena;      /* in shared memory; NULL = free, or refused */
		int fd;                   /* this process's descriptor of it */
		_Atomic uint32_t claimed; /* somebody fills it */
		/* creation failed: written through, said once */
		const struct rule *refused;
		uint64_t refused_dev;
	} arenas[ARENAS_MAX];
	_Atomic uint32_t count;
	/* by so many (execs under way, exit): nothing becomes attached, and in files that are nothing is staged any more */
	_Atomic uint32_t stopped;
} attach;

/* Why nothing is staged any more where this process, and those that it forks, live; BYPASS_NONE = it is. */
static _Atomic uint32_t refusal;
static _Atomic bool refuse_soon; /* an io_uring was seen where no other file can be locked */

int attach_path_of(int fd, char *out)
{
	static const char gone[] = " (deleted)";
	char link[64];
	ssize_t n;

	log_format(link, sizeof link, "/proc/self/fd/%d", fd);
	n = sys.readlinkat(AT_FDCWD, link, out, PATH_MAX - 1);
	if (n < 0)
		return (int)n;
	out[n] = '\0';
	if (out[0] != '/')
		return -EINVAL;
	if ((size_t)n > sizeof gone && strcmp(out + n - (ssize_t)sizeof gone + 1, gone) == 0)
		return -ENOENT;
	return 0;
}

int attach_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out)
{
	struct statx st;
	size_t n;

	if (rule->set.staging[0]) {
		log_format(out, PATH_MAX, "%s", rule->set.staging);
		return 0;
	}
	/* the rule's own directory if it can hold the staging, else the file's */
	if (strcmp(rule->prefix, "/") != 0 && rule->prefix[0] &&
	    sys.statx(AT_FDCWD, rule->prefix, 0, STATX_BASIC_STATS, &st) == 0 && sys_dev_of(&st) == dev &&
	    sys_raw(SYS_faccessat, AT_FDCWD, (long)rule->prefix, 2 /* W_OK */, 0, 0, 0) == 0) {
		n = log_format(out, PATH_MAX, "%s/" ARENA_DIR, rule->prefix);
	} else {
		const char *slash = strrchr(path, '/');

		n = (size_t)(slash - path);
		if (n + sizeof ARENA_DIR + 1 >= PATH_MAX)
			return -ENAMETOOLONG;
		memcpy(out, path, n);
		memcpy(out + n, "/" ARENA_DIR, sizeof ARENA_DIR + 1);
		n = 0;
	}
	return n + 1 >= PATH_MAX ? -ENAMETOOLONG : 0;
}

/* May this process stage what belongs there?  An arena is its maker's: who has his rights can read and forge it. */
static bool arena_fits(const struct arena *a, const struct rule *rule, uint64_t dev)
{
	/* a staging directory of the user's own may lie on another file system */
	return a->rule == rule && (a->dev == dev || rule->set.staging[0]) && a->uid == sys_geteuid() &&
	       a->gid == sys_getegid();
}

static struct arena *arena_find(const struct rule *rule, uint64_t dev, bool *refused)
{
	for (uint32_t i = 0; i < attach.count; i++) {
		struct arena *a = attach.arenas[i].arena;

		if (a && arena_fits(a, rule, dev))
			return a;
		if (attach.arenas[i].refused == rule &&
		    (attach.arenas[i].refused_dev == dev || rule->set.staging[0])) {
			*refused = true;
			return NULL;
		}
	}
	return NULL;
}

/* FASTWRITE_LOG = info.  At an exec or exit every file goes that way. */
static void say_through(const struct file *f, enum bypass_reason why)
{
	BUFFER(char, path);

	if (!log_enabled(LOG_INFO) || why == BYPASS_EXEC || why == BYPASS_EXIT)
		return;
	for (const struct ofd *o = f->ofds; o; o = o->next) {
		path[0] = '\0';
		if (ofd_fd(o) >= 0)
			attach_path_of(ofd_fd(o), path);
		if (path[0] == '/') {
			log_info("%s is not staged: %s", path, bypass_reason_text(why));
			return;
		}
	}
}

/* Why there can be no staging in a directory, and what to do about it. */
static const struct {
	int error;
	const char *text, *cure;
} refusals[] = {
	{EPERM, "the directory belongs to somebody else, or others may write to it",
         "give it to this user, with mode 0700, or "},
	{EACCES, "Permission denied (EACCES)", "let this user write there, or "},
	{ENOENT, "No such file or directory (ENOENT)", "make the directory that it is to be in, or "},
	{ENOTDIR, "Not a directory (ENOTDIR)", "remove what is in its place, or "},
	{ELOOP, "a symbolic link (ELOOP)", "remove what is in its place, or "},
	{ENOSPC, "No space left on device (ENOSPC)", "free some, set a smaller `mem`, or "},
	{EDQUOT, "Disk quota exceeded (EDQUOT)", "free some space, set a smaller `mem`, or "},
	{ENOMEM, "Cannot allocate memory (ENOMEM)", "set a smaller `mem`, or "},
	{EROFS, "Read-only file system (EROFS)", ""},
	{EIO, "Input/output error (EIO)", ""},
	{EOPNOTSUPP, "fallocate is not supported there (EOPNOTSUPP)", ""},
	{-ARENA_COPIES, "a file system that copies on write", ""},
};

/* Once for all processes of `fastwrite run`, else once for each. */
static void say_refused(const struct rule *rule, const char *dir, int r)
{
	const char *text = "it cannot be used", *cure = "";
	char number[32];

	if (!registry_say_once(rule->name, -r))
		return;
	log_format(number, sizeof number, " (error %d)", -r);
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		if (refusals[i].error != -r)
			continue;
		text = refusals[i].text;
		cure = refusals[i].cure;
		number[0] = '\0';
	}
	log_warn(
		"rule %s: no staging in %s: %s%s; its files are written through: %sset `staging` to another directory",
		rule->name, dir, text, number, cure);
}

/* Entry i of the table, which the caller has claimed.  0 or -errno. */
static int join(uint32_t i, struct arena *a)
{
	int fd = arena_join(a);

	if (fd < 0)
		return fd;
	attach.arenas[i].fd = fd;
	takeover_joined(a);
	attach.arenas[i].arena = a;
	family_set_add(&a->members, family_me);
	return 0;
}

/* A place in the table; only threads with LOCK_ENGAGE, or with the lock of a file whose arena is not mapped, come. */
static int claim_entry(void)
{
	for (uint32_t i = 0; i < ARENAS_MAX; i++) {
		uint32_t expected = 0;

		if (!attach.arenas[i].arena && !attach.arenas[i].refused &&
		    atomic_compare_exchange_strong(&attach.arenas[i].claimed, &expected, 1)) {
			uint32_t seen = atomic_load(&attach.count);

			while (seen <= i && !atomic_compare_exchange_weak(&attach.count, &seen, i + 1))
				;
			return (int)i;
		}
	}
	return -1;
}

struct join {
	const struct rule *rule;
	uint64_t dev;
	struct arena *found;
};

static void visit_join(struct arena *a, void *ctx)
{
	struct join *j = ctx;

	if (!j->found && atomic_load(&a->ready) && a->placed && arena_fits(a, j->rule, j->dev))
		j->found = a;
}

/* The arena that another member has for this rule.  NULL: none, or *busy. */
static struct arena *arena_of_family(const struct rule *rule, uint64_t dev, bool *busy)
{
	struct join j = {.rule = rule, .dev = dev};
	struct family *m = file_family();
	int i;

	if (!family_is_shared())
		return NULL;
	/* whoever has it may be about to remove one; a file lock is held here, so that it is only tried */
	*busy = !lock_try(&m->lock, lock_self());
	if (*busy)
		return NULL;
	file_arena_for_each(visit_join, &j);
	if (j.found) {
		i = claim_entry();
		if (i >= 0 && join((uint32_t)i, j.found) < 0)
			j.found = NULL;
		if (i >= 0)
			atomic_store(&attach.arenas[i].claimed, 0);
		else
			j.found = NULL;
	}
	lock_drop_fast(&m->lock, lock_self());
	return j.found;
}

/* 0, or -errno. */
static int join_of_file(const struct file *f)
{
	int i = f->arena->placed ? claim_entry() : -1;
	int r = -EACCES;

	if (i < 0)
		return r;
	r = join((uint32_t)i, f->arena);
	atomic_store(&attach.arenas[i].claimed, 0);
	return r;
}

void attach_nothing_staged(struct file *f)
{
	f->current = f->head = f->tail = NULL;
	if (f->blocks > 0 && f->arena)
		atomic_fetch_sub(&f->arena->files, 1);
	f->blocks = 0;
	f->staged_lo = f->staged_hi = 0;
	f->append_skip = 0;
	f->error = 0;
	f->prealloc_end = 0;
	f->moving = NULL;
	f->damaged = false;
}

void attach_leave_arena(struct file *f)
{
	attach_nothing_staged(f);
	journal_file_keep(f);
	f->zero_end = 0; /* recovery cuts them off */
	f->arena = NULL;
	f->slot = -1;
	f->small_seen = 0;
}

/* All who had the arena are dead, and it has been recovered as a whole, or will be: nothing is staged for f here. */
static void forget_staged(struct file *f, bool recovered)
{
	f->arena = NULL; /* it may be another one by now */
	attach_leave_arena(f);
	f->busy = 0;
	f->leased = NULL;
	/* those that staged there are gone with their holders */
	for (struct ofd *o = f->ofds; o; o = o->next)
		o->pos_mode = POS_KERNEL;
	if (f->mode == FILE_ENGAGED) {
		f->mode = recovered ? FILE_PASSIVE : FILE_THROUGH;
		f->why = recovered ? BYPASS_NONE : BYPASS_FORK;
		file_engaged_add(-1);
	}
}

bool attach_reaches(const struct file *f)
{
	/* (with nobody else there attach_to_arena waits for nobody) */
	return !f->arena || family_set_has(&f->arena->members, family_me) ||
	       !family_set_others(&f->arena->members) || join_of_file(f) == 0;
}

void attach_to_arena(struct file *f)
{
	while (f->arena && !family_set_has(&f->arena->members, family_me)) {
		int r = join_of_file(f);

		if (r == 0)
			return;
		if (r != -EWOULDBLOCK && !family_set_others(&f->arena->members)) {
			forget_staged(f, r == -ENOENT || r == -ESTALE);
			return;
		}
		/* It cannot be reached from here (another user, another root directory): who staged it has to write it,
		 * and everybody writes the file through from then on.  Or somebody is just recovering it. */
		if (r != -EWOULDBLOCK)
			f->bypass_wanted = BYPASS_FORK;
		lock_drop(&f->lock, LOCK_FILE);
		sys_nap(2000000);
		file_retake(f);
	}
}

static struct arena *arena_open(const struct rule *rule, const char *path, uint64_t dev)
{
	struct arena_place place = {0};
	BUFFER(char, dir);
	struct arena *a;
	int i = claim_entry();
	int r;

	if (i < 0)
		return NULL;
	a = file_arena_take();
	if (!a) {
		atomic_store(&attach.arenas[i].claimed, 0);
		return NULL;
	}
	family_place(a, &place.map, &place.runs);
	r = attach_staging_dir(rule, path, dev, dir);
	if (r == 0)
		r = arena_create_at(a, dir, rule, &place);
	if (r < 0) {
		file_arena_give(a);
		if (r != -EMFILE && r != -ENFILE && r != -EFBIG && r != -EAGAIN) {
			attach.arenas[i].refused = rule;
			attach.arenas[i].refused_dev = dev;
			say_refused(rule, dir, r);
		} /* else: the program's own doing (EAGAIN: mlockall); another file may have more luck */
		atomic_store(&attach.arenas[i].claimed, 0);
		return NULL;
	}
	family_set_add(&a->members, family_me);
	memory_limit_check(a->fd, a->total_bytes, a->dir);
	attach.arenas[i].fd = a->fd;
	takeover_joined(a);
	attach.arenas[i].arena = a;
	atomic_store(&attach.arenas[i].claimed, 0);
	atomic_store(&a->ready, true);
	return a;
}

int attach_arena_fd(const struct arena *a)
{
	for (uint32_t i = 0; i < attach.count; i++)
		if (attach.arenas[i].arena == a)
			return attach.arenas[i].fd;
	return -1;
}

/* LOCK_ENGAGE held.  Removes arena i if it holds nothing and nobody else has it. */
static bool arena_close(uint32_t i)
{
	struct arena *a = attach.arenas[i].arena;
	struct family *m = file_family();
	bool closes;

	if (!a)
		return false;
	lock_take(&m->lock, LOCK_FAMILY);
	/* of members that end at the same time each takes the others for gone: one of them has removed it, and the
	 * entry may be another arena's by now */
	if (!atomic_load(&a->ready) || !family_set_has(&a->members, family_me)) {
		attach.arenas[i].arena = NULL;
		lock_drop(&m->lock, LOCK_FAMILY);
		return false;
	}
	/* bytes that could not be flushed wait there for `fastwrite recover` */
	closes = a->slots_used == 0 && !family_set_others(&a->members);
	if (closes) {
		atomic_store(&a->ready, false);
		attach.arenas[i].arena = NULL;
		stats_add(a);
		journal_destroy(a);
		a->fd = attach.arenas[i].fd;
		arena_destroy(a);
		file_arena_give(a);
	}
	lock_drop(&m->lock, LOCK_FAMILY);
	return closes;
}

static struct arena *arena_for(struct file *f, const char *path, bool *busy)
{
	bool refused = false;
	struct arena *a = arena_find(f->rule, f->dev, &refused);

	if (!a && !refused)
		a = arena_of_family(f->rule, f->dev, busy);
	return a || refused || *busy ? a : arena_open(f->rule, path, f->dev);
}

static bool is_modelled(long flags)
{
	return flags >= 0 && !(flags & (O_PATH | O_DIRECT | O_SYNC | O_DSYNC));
}

/* A descriptor that this process opened and has not been asked about yet: a second description of the file. */
static bool adopt_noted(struct file *f, int fd)
{
	struct lazy *l = &unresolved_fds[fd];
	uint32_t before = atomic_load(&l->state);
	uint32_t expected = before;
	bool adopted = false;

	if ((before != UNRESOLVED_NOTED && before != UNRESOLVED_UNSURE) ||
	    !atomic_compare_exchange_strong(&l->state, &expected, UNRESOLVED_RESOLVING))
		return false;
	/* Only now nobody closes it: is it still what was looked at? */
	if (unresolved_inflight(fd) == 0 && flush_is_the_file(f, fd) == 1) {
		long flags = sys.fcntl(fd, F_GETFL, 0);
		struct ofd *o;

		/* the reference first: who is killed in between leaves one too many, not one too few */
		file_ref(f);
		o = is_modelled(flags) ? ofd_new(f, fd, (int)flags) : NULL;
		adopted = o && fdtable_set(fd, o) == 0;
		if (!adopted)
			file_put(f);
	}
	atomic_store(&l->state, adopted ? UNRESOLVED_NONE : before);
	return adopted;
}

/* A descriptor that the library did not see opened: who uses it, and how, is unknown.  (A stdio stream that
 * reads the file would not see what is staged.)  O_PATH ones can neither read nor write. */
static bool harmless_fd(struct file *f, int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);

	if (flags < 0 || (flags & O_PATH))
		return true;
	return unresolved_is(fd) && !fd_is_standard(fd) && is_modelled(flags) && adopt_noted(f, fd);
}

/*
 * Looks for descriptors on the file that came by ways the library does not see: inherited, received over a
 * socket, made by fopen or a raw system call; and for an io_uring.  Why not to attach, or BYPASS_NONE.
 */
static enum bypass_reason scan_descriptors(struct file *f)
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
		else if ((st.stx_mode & S_IFMT) == 0 && fd_passing_is_io_uring(fd))
			why = BYPASS_IO_URING;
	}
	if (entries.filled < 0)
		why = BYPASS_UNKNOWN_FD;
	sys.close(dir);
	return why;
}

/*
 * A descriptor is unknown.  Another thread may be about to open the file, or to write, and will soon have said so; or it
 * will be closed: so it is tried again, less and less often.
 */
static enum bypass_reason attach_later(struct file *f)
{
	enum { FIRST = 16, MOST = 1 << 20 };
	uint32_t after = f->attach_after;

	if (f->why != BYPASS_UNKNOWN_FD) {
		stats_through(f->rule, BYPASS_UNKNOWN_FD);
		say_through(f, BYPASS_UNKNOWN_FD);
	}
	f->why = BYPASS_UNKNOWN_FD;
	f->attach_after = after < FIRST ? FIRST : after < MOST ? 2 * after : after;
	return BYPASS_COUNT;
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

static void fill_slot(const struct file *f, struct arena *a, uint32_t index, const char *path, int fd,
                      const struct statx *st)
{
	struct arena_slot *slot = arena_slot_at(a, index);
	/* the blocks of the slot's last owner are done with; those to come have larger numbers */
	uint64_t done = DONE_MAKE(atomic_load(&a->header->live.next_seq), 0);

	struct identity id;

	identity_of(fd, st, &id);
	slot->dev = f->dev;
	slot->ino = f->ino;
	slot->btime_sec = id.btime_sec;
	slot->btime_nsec = id.btime_nsec;
	slot->generation = id.generation;
	slot->handle_hash = id.handle_hash;
	slot->guard.known = 0;
	slot->guard.begun_ns = 0;
	slot->flush_active = APPEND_NONE;
	slot->flush_base = 0;
	slot->prealloc_end = 0;
	slot->padded_end = 0;
	slot->size = 0;
	slot->keeper = 0;
	slot->flags = f->rule->set.writers == WRITERS_EXCLUSIVE ? SLOT_EXCLUSIVE : 0;
	arena_slot_name(a, index, path);
	atomic_store(&slot->done, done);
	kill_step();
	atomic_store_explicit(&slot->used, 1, memory_order_release);
	kill_step();
}

static void probe_direct(struct file *f, const struct statx *st)
{
	f->direct_ok = true; /* tried, and EINVAL says no */
#ifdef STATX_DIOALIGN
	if (st->stx_mask & STATX_DIOALIGN)
		f->direct_ok = st->stx_dio_mem_align != 0 && st->stx_dio_mem_align <= ARENA_PAGE &&
		               st->stx_dio_offset_align != 0 && st->stx_dio_offset_align <= ARENA_PAGE;
#else
	(void)st;
#endif
}

static void become_through(struct file *f, enum bypass_reason why)
{
	if (f->mode != FILE_THROUGH) {
		stats_through(f->rule, why);
		say_through(f, why);
	}
	f->mode = FILE_THROUGH;
	f->why = why;
}

static bool slot_reclaim(struct arena *a);

/* Fewer blocks than bytes; what we reserved behind the end does not count. */
static bool has_holes(const struct file *f, const struct statx *st)
{
	uint64_t allocated = st->stx_blocks * 512ull;
	uint64_t behind = f->prealloc_end > st->stx_size ? f->prealloc_end - st->stx_size : 0;

	return allocated < st->stx_size + behind;
}

/* Members that share a description write to where the other one stages, without looking twice (stage_fast); the
 * others map the arena when they come to the file (attach_to_arena). */
static bool mapped_by_all(const struct file *f, const struct arena *a)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (family_set_count(&o->holders) > 1 && !family_set_within(&o->holders, &a->members))
			return false;
	return true;
}

/* Writes are to be durable when they return, whatever the description says: mount -o sync, chattr +S. */
static bool is_synchronous(int fd)
{
	struct statfs st;
	int flags = 0;

	if (sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) == 0 && (st.f_flags & ST_SYNCHRONOUS))
		return true;
	return sys_raw(SYS_ioctl, fd, FS_IOC_GETFLAGS, (long)&flags, 0, 0, 0) == 0 && (flags & FS_SYNC_FL);
}

/* The policy that the file system encrypts it by; its size, or -errno. */
static long encryption_of(int fd, struct fscrypt_get_policy_ex_arg *policy)
{
	long r;

	memset(policy, 0, sizeof *policy);
	policy->policy_size = sizeof policy->policy;
	r = sys_raw(SYS_ioctl, fd, FS_IOC_GET_ENCRYPTION_POLICY_EX, (long)policy, 0, 0, 0);
	return r < 0 ? r : (long)policy->policy_size;
}

/* What is staged for a file that its file system encrypts must be encrypted by the same key: in a staging directory that
 * was made inside the encrypted one it is. */
static bool may_hold(const struct arena *a, const struct file *f, int fd, const struct statx *st)
{
	static _Atomic bool told;
	struct fscrypt_get_policy_ex_arg here, there;
	long size;

	if (!(st->stx_attributes & STATX_ATTR_ENCRYPTED))
		return true;
	size = encryption_of(fd, &there);
	if (size > 0 && encryption_of(attach_arena_fd(a), &here) == size &&
	    memcmp(&here.policy, &there.policy, (size_t)size) == 0)
		return true;
	if (!atomic_exchange(&told, true))
		log_warn(
			"rule %s: encrypted files are not staged in %s, which is not encrypted, or by another key; they are written through",
			f->rule->name, a->dir);
	return false;
}

/*
 * Recovery has the rights of the arena's owner, and opens the file by its path: what he may not write to would stay in
 * the arena.  Asked as he is without capabilities, unless the process acts as somebody else for a while: then the bytes
 * must be such as that user may read, too, since he can read the arena.
 */
static bool is_recoverable(const char *path)
{
	enum { SYS_FACCESSAT2 = 439, READ_OK = 4, WRITE_OK = 2 };
	uint32_t u[3], g[3];

	if (sys_raw(SYS_getresuid, (long)&u[0], (long)&u[1], (long)&u[2], 0, 0, 0) < 0 ||
	    sys_raw(SYS_getresgid, (long)&g[0], (long)&g[1], (long)&g[2], 0, 0, 0) < 0)
		return false;
	if (u[0] == u[1] && u[1] == u[2] && g[0] == g[1] && g[1] == g[2])
		return sys_raw(SYS_faccessat, AT_FDCWD, (long)path, WRITE_OK, 0, 0, 0) == 0;
	return sys_raw(SYS_FACCESSAT2, AT_FDCWD, (long)path, READ_OK | WRITE_OK, AT_EACCESS, 0, 0) == 0;
}

/* LOCK_ENGAGE held.  Returns why not, or BYPASS_NONE. */
static enum bypass_reason try_attach(struct file *f, struct ofd *o)
{
	BUFFER(char, path);
	enum bypass_reason why;
	bool busy = false;
	struct statx st;
	struct arena *a;
	int slot, r;

	if (sys.statx(ofd_fd(o), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | 0x2000u /* DIOALIGN */,
	              &st) < 0)
		return BYPASS_PATH;
	if (st.stx_nlink == 0)
		return BYPASS_UNLINKED;
	if (attach_path_of(ofd_fd(o), path) < 0 || strlen(path) >= ARENA_PATH_MAX)
		return BYPASS_PATH;
	if (!staging_policy_allows(f, path))
		return BYPASS_COUNT;
	if (has_standard_fd(f))
		return BYPASS_STANDARD_FD;
	if (is_synchronous(ofd_fd(o)))
		return BYPASS_SYNC;
	if (!is_recoverable(path)) {
		log_info("%s is written through: user %u may not write to it by its path, to recover it",
		         path, sys_geteuid());
		return BYPASS_RIGHTS;
	}
	why = never_staged_why_never(f->dev, f->ino);
	if (why == BYPASS_NONE) {
		why = scan_descriptors(f);
		/* (in a family others would look for it in their own process only) */
		if (why == BYPASS_UNKNOWN_FD && !family_is_shared())
			return attach_later(f);
	}
	if (why == BYPASS_IO_URING) {
		atomic_store(&refuse_soon, true);
		engine_nudge();
	}
	if (why != BYPASS_NONE)
		return why;
	r = engine_start();
	if (r < 0) /* in a signal handler: with a later write */
		return r == -EDEADLK ? BYPASS_COUNT : BYPASS_NO_THREAD;
	a = arena_for(f, path, &busy);
	if (busy)
		return BYPASS_COUNT;
	if (!a)
		return BYPASS_NO_ARENA;
	if (!may_hold(a, f, ofd_fd(o), &st))
		return BYPASS_ENCRYPTED;
	if (f->shared && !mapped_by_all(f, a)) {
		f->attach_after = FILE_ENGAGE_LATER;
		return BYPASS_COUNT;
	}
	slot = arena_slot_take(a);
	if (slot < 0 && slot_reclaim(a))
		slot = arena_slot_take(a);
	if (slot < 0)
		return BYPASS_COUNT; /* all in use by busy files: stay passive, try again with a later write */
	/* before it is the file's: a repair of one that is killed here must not take what the slot's last owner left for it */
	fill_slot(f, a, (uint32_t)slot, path, ofd_fd(o), &st);
	f->arena = a;
	f->ksize = f->lsize = st.stx_size;
	f->prealloc_end = 0;
	f->sparse = has_holes(f, &st);
	f->staged_lo = f->staged_hi = 0;
	f->error = 0;
	f->append_skip = 0;
	f->prealloc_step = 0;
	journal_file_begin(f);
	f->zero_end = 0;
	f->zero_wanted = f->zero_synced = false;
	f->release_wanted = false;
	f->takeovers = arena_slot_at(a, (uint32_t)slot)->takeovers;
	probe_direct(f, &st);
	f->lease_proves = lease_proves(ofd_fd(o));
	atomic_signal_fence(memory_order_seq_cst);
	f->slot = slot;
	kill_step();
	return BYPASS_NONE;
}

/* Here or by another member of the family who lives. */
static enum bypass_reason refused(void)
{
	enum bypass_reason why = atomic_load(&refusal);

	return why == BYPASS_NONE ? family_refused() : why;
}

bool attach_file(struct file *f, struct ofd *o)
{
	enum bypass_reason why;

	if (atomic_load(&attach.stopped) || file_held() || !o->writable)
		return false;
	why = refused();
	if (why != BYPASS_NONE) {
		become_through(f, why);
		return false;
	}
	/* First of all: who opens the file after the search for descriptors is to see that he must say so, and so does
	 * whoever is about to change what is looked up below. */
	file_engaged_begin();
	atomic_store(&f->mode, FILE_ENGAGED);
	/* When another thread is inside the kernel with this file the next write tries again.  The lock is only tried:
	 * whoever holds it may wait for this file's lock, or this may be a signal handler that interrupted somebody whom
	 * the holder waits for. */
	if (atomic_load(&f->inflight) != 0 || file_held() || file_changing() ||
	    !lock_try(&attach.lock, lock_self())) {
		atomic_store(&f->mode, FILE_PASSIVE);
		file_engaged_undo();
		return false;
	}
	why = try_attach(f, o);
	lock_drop_fast(&attach.lock, lock_self());
	if (why == BYPASS_NONE)
		return true;
	f->arena = NULL;
	f->slot = -1;
	f->small_seen = 0;
	if (why == BYPASS_COUNT)
		f->mode = FILE_PASSIVE;
	else
		become_through(f, why);
	file_engaged_undo();
	return false;
}

bool attach_stopped(void) { return atomic_load_explicit(&attach.stopped, memory_order_relaxed); }

/* The kernel's offset of every description is right, or will be after a hand-over by this process. */
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

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_BLOCKS, &st) < 0)
		return;
	f->ksize = f->lsize = st.stx_size;
	f->sparse = has_holes(f, &st);
	if (!journal_file_alone(f))
		journal_file_changed(f);
}

int detach_file(struct file *f, bool nested)
{
	struct arena *a;
	uint32_t slot;
	int r, fd;

	if (f->mode != FILE_ENGAGED || !f->arena)
		return 0;
	r = flush_hand_over(f, nested);
	if (r < 0)
		return r;
	if (f->mode != FILE_ENGAGED || !f->arena || flush_first(f))
		return 0; /* somebody else was quicker, or others have to write it */
	/* what the caller does next must not be undone by a replay, whoever gives the file back */
	r = journal_retire(f, nested);
	if (r < 0)
		return r;
	if (f->mode != FILE_ENGAGED || !f->arena || flush_first(f))
		return 0;
	if (!positions_reachable(f)) {
		/* another member has to do it; until then nothing is staged by what was known before */
		f->release_wanted = true;
		return 0;
	}
	visibility_drop(f);
	flush_close_own(f);
	fd = flush_program_fd(f);
	if (fd >= 0)
		prealloc_trim(f, fd);
	if (f->head) {
		/* a signal handler leaves the block behind that the interrupted write may copy into */
		f->release_wanted = true;
		return 0;
	}
	f->release_wanted = false;
	a = f->arena;
	slot = (uint32_t)f->slot;
	/* before anybody else may have it: who is killed here leaves no file behind with a slot of another one */
	f->slot = -1;
	f->arena = NULL;
	atomic_signal_fence(memory_order_seq_cst);
	kill_step();
	arena_slot_free(a, slot);
	/* the engine removes it when it has been of no use for a while */
	if (a->slots_used == 0 && !attach_stopped())
		engine_arm();
	f->small_seen = 0;
	f->mode = FILE_PASSIVE;
	file_engaged_add(-1);
	if (f->left && family_set_has(&f->left->holders, family_me)) {
		struct ofd *o = f->left;

		f->left = NULL;
		ofd_release(o);
		file_put(f);
	}
	return 0;
}

int attach_bypass(struct file *f, enum bypass_reason why, bool nested)
{
	struct arena *a = f->arena;
	int r = detach_file(f, nested);

	if (r == 0 && f->mode == FILE_ENGAGED && f->arena) {
		/* until whoever can do it does, nothing more is staged (descriptors/io.c) */
		f->bypass_wanted = why;
	} else if (r == 0 && f->mode == FILE_PASSIVE) {
		f->mode = FILE_THROUGH;
		f->why = why;
		say_through(f, why);
		/* at the end of the process nothing of it need be written any more */
		if (a && why != BYPASS_EXIT)
			atomic_fetch_add(&a->header->live.through[why], 1);
	}
	return r;
}

void attach_abandon(struct file *f)
{
	log_error(
		"closing %s with bytes that cannot be written (error %d): they stay in %s, see `fastwrite recover`",
		arena_slot_at(f->arena, (uint32_t)f->slot)->path, -f->error, f->arena->dir);
	flush_close_own(f);
	visibility_drop(f);
	attach_leave_arena(f);
	f->mode = FILE_THROUGH;
	file_engaged_add(-1);
}

/* Files with nothing staged, other than the caller's: their locks are only tried. */
struct idle {
	struct arena *arena; /* NULL = any */
	bool reserved;       /* only those that hold reserved space */
	bool all;            /* every one of them, or just the first */
	bool done;
};

static void visit_idle(struct file *f, void *ctx)
{
	struct idle *i = ctx;
	uint32_t tid = lock_self();

	if ((i->done && !i->all) || f->mode != FILE_ENGAGED || !lock_try(&f->lock, tid))
		return;
	/* (an arena of another member may not be mapped here) */
	if (f->mode == FILE_ENGAGED && f->arena && !f->head && !atomic_load(&f->busy) && !f->damaged &&
	    (!f->shared || family_set_has(&f->arena->members, family_me)) &&
	    (!i->arena || f->arena == i->arena) && (!i->reserved || f->prealloc_end != 0))
		i->done |= detach_file(f, true) == 0;
	lock_drop_fast(&f->lock, tid);
}

static bool slot_reclaim(struct arena *a)
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

struct stop {
	enum bypass_reason why;
	bool failed;
};

/* Others of the family go on with it: they must find everything in the kernel's hands. */
bool attach_others_have(const struct file *f)
{
	for (const struct ofd *o = f->ofds; f->shared && o; o = o->next)
		if (family_set_others(&o->holders))
			return true;
	return false;
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

static void visit_stop(struct file *f, void *ctx)
{
	struct stop *s = ctx;
	struct file_guard g;
	int r = 0;

	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (f->refs != 0 && f->mode != FILE_THROUGH) {
		if (!attach_others_have(f) || (s->why == BYPASS_EXEC && attach_stays_open(f)))
			r = attach_bypass(f, s->why, g.nested);
		else if (f->arena)
			r = flush_hand_over(f, g.nested);
	}
	/* the thread that would do it later ends with this program */
	if (f->refs != 0 && f->relaxed_due_ns)
		sync_relaxed_due(f);
	s->failed |= r < 0;
	file_unlock(f, g);
}

void attach_stop_all(enum bypass_reason why)
{
	struct stop s = {.why = why};
	sys_sigset signals;

	atomic_fetch_add(&attach.stopped, 1);
	/* first: whoever comes to have a file now sees that */
	if (why == BYPASS_EXEC && !file_any())
		return;
	signals = sys_block_signals();
	if (why == BYPASS_EXIT)
		family_exiting();
	if (family_is_shared())
		family_sweep();
	file_for_each(visit_stop, &s);
	lock_take(&attach.lock, LOCK_ENGAGE);
	for (uint32_t i = 0; file_family() && i < attach.count; i++)
		arena_close(i);
	lock_drop(&attach.lock, LOCK_ENGAGE);
	if (s.failed)
		log_warn(
			"some bytes could not be written; they stay in the staging directory, see `fastwrite recover`");
	sys_restore_signals(signals);
}

static void visit_refuse(struct file *f, void *ctx)
{
	const enum bypass_reason *why = ctx;
	struct file_guard g = file_lock(f);

	if (g.nested)
		stage_interrupt(f);
	if (f->refs != 0 && f->mode != FILE_THROUGH)
		attach_bypass(f, *why, g.nested);
	file_unlock(f, g);
}

void attach_refuse(enum bypass_reason why)
{
	uint32_t none = BYPASS_NONE;

	if (!attach_config)
		return;
	/* first: whoever attaches a file now is seen below, and whoever comes later sees this */
	atomic_compare_exchange_strong(&refusal, &none, why);
	if (fork_guard_elsewhere())
		return;
	family_refuse(family_me, why);
	file_for_each_shared(visit_refuse, &why);
}

bool attach_refused(void) { return atomic_load(&refusal) != BYPASS_NONE; }

void attach_tend(void)
{
	if (atomic_load(&refuse_soon) && atomic_exchange(&refuse_soon, false))
		attach_refuse(BYPASS_IO_URING);
}

static void visit_resume(struct file *f, void *ctx)
{
	enum bypass_reason why = *(enum bypass_reason *)ctx;
	struct file_guard g;

	g = file_lock(f);
	if (f->mode == FILE_THROUGH && f->why == why) {
		f->mode = FILE_PASSIVE;
		f->small_seen = 0;
	}
	if (f->bypass_wanted == why)
		f->bypass_wanted = BYPASS_NONE;
	file_unlock(f, g);
}

void attach_resume_all(enum bypass_reason why)
{
	/* while another thread tries to exec, nothing may become staged */
	if (atomic_fetch_sub(&attach.stopped, 1) == 1)
		file_for_each(visit_resume, &why);
}

static void visit_abandon(struct file *f, void *ctx)
{
	struct file_guard g = file_lock(f);

	(void)ctx;
	/* a write that was interrupted ends where it began */
	if (!g.nested && f->refs && f->mode == FILE_ENGAGED && f->arena && f->error < 0 &&
	    !attach_others_have(f)) {
		sync_note_error(f, f->error);
		attach_abandon(f);
	}
	file_unlock(f, g);
}

void attach_abandon_failed(void) { file_for_each(visit_abandon, NULL); }

void attach_rights_changed(enum bypass_reason why)
{
	sys_sigset signals = sys_block_signals();

	lock_take(&attach.lock, LOCK_ENGAGE);
	for (uint32_t i = 0; i < attach.count; i++)
		attach.arenas[i].refused = NULL;
	lock_drop(&attach.lock, LOCK_ENGAGE);
	sys_restore_signals(signals);
	attach_resume_all(why);
}

struct retire {
	struct arena *arena;
};

static void visit_retire(struct file *f, void *ctx)
{
	struct retire *r = ctx;
	struct file_guard g;

	if (f->mode != FILE_ENGAGED)
		return;
	g = file_lock(f);
	if (!g.nested && f->mode == FILE_ENGAGED && f->arena == r->arena)
		detach_file(f, false);
	file_unlock(f, g);
}

bool attach_retire_dir(const char *dir)
{
	sys_sigset signals = sys_block_signals();
	bool any = false;

	for (uint32_t i = 0; i < attach.count; i++) {
		struct retire r = {.arena = attach.arenas[i].arena};

		if (!r.arena || (dir && strcmp(r.arena->dir, dir) != 0))
			continue;
		file_for_each(visit_retire, &r);
		lock_take(&attach.lock, LOCK_ENGAGE);
		if (attach.arenas[i].arena == r.arena)
			any |= arena_close(i);
		lock_drop(&attach.lock, LOCK_ENGAGE);
	}
	sys_restore_signals(signals);
	return any;
}

static void visit_rest(struct file *f, void *ctx)
{
	uint32_t tid = lock_self();

	(void)ctx;
	if (f->mode != FILE_ENGAGED || !lock_try(&f->lock, tid))
		return;
	if (f->mode == FILE_ENGAGED && f->arena && !f->head && !atomic_load(&f->busy) && !f->damaged)
		prealloc_rest(f);
	lock_drop_fast(&f->lock, tid);
}

void attach_retire_idle(void)
{
	file_for_each(visit_rest, NULL);
	/* (whoever has it may wait for this thread to end) */
	if (!lock_try(&attach.lock, lock_self()))
		return;
	for (uint32_t i = 0; i < attach.count; i++)
		if (attach.arenas[i].arena && attach.arenas[i].arena->slots_used == 0)
			arena_close(i);
	lock_drop_fast(&attach.lock, lock_self());
}

bool attach_move_fd(int fd)
{
	sys_sigset signals = sys_block_signals();
	bool moved = false;

	lock_take(&attach.lock, LOCK_ENGAGE);
	for (uint32_t i = 0; i < attach.count && !moved; i++) {
		if (attach.arenas[i].arena && attach.arenas[i].fd == fd) {
			int other = takeover_move_fd(internal_fd_move, fd);

			if (other >= 0)
				attach.arenas[i].fd = other;
			moved = other >= 0;
		}
	}
	lock_drop(&attach.lock, LOCK_ENGAGE);
	sys_restore_signals(signals);
	return moved;
}

/* A file that is inherited before it is attached needs an arena that both sides have. */
static void visit_arena(struct file *f, void *ctx)
{
	BUFFER(char, path);
	const struct rule *rule = NULL;
	bool refused = false;
	struct file_guard g;
	uint64_t dev = 0;

	(void)ctx;
	if (f->mode != FILE_PASSIVE)
		return;
	/* other threads open and close meanwhile */
	g = file_lock(f);
	for (const struct ofd *o = f->ofds; o && !rule && f->mode == FILE_PASSIVE; o = o->next)
		if (o->writable && ofd_fd(o) >= 0 && attach_path_of(ofd_fd(o), path) == 0) {
			rule = f->rule;
			dev = f->dev;
		}
	file_unlock(f, g);
	if (rule && !arena_find(rule, dev, &refused) && !refused)
		arena_open(rule, path, dev);
}

void attach_pause(void)
{
	lock_take(&attach.lock, LOCK_ENGAGE);
	if (!attach_stopped())
		file_for_each(visit_arena, NULL);
}

void attach_unpause(void) { lock_drop(&attach.lock, LOCK_ENGAGE); }

void attach_share(uint32_t member)
{
	enum bypass_reason why = atomic_load(&refusal);

	if (why != BYPASS_NONE) {
		family_refuse(family_me, why);
		family_refuse(member, why);
	}
	for (uint32_t i = 0; i < attach.count; i++)
		if (attach.arenas[i].arena)
			family_set_add(&attach.arenas[i].arena->members, member);
}

void attach_fork_child(void)
{
	attach.lock.word = 0;
	attach.stopped = false;
	for (uint32_t i = 0; i < ARENAS_MAX; i++)
		attach.arenas[i].claimed = 0;
}

void attach_forget(bool keep_mapped)
{
	for (uint32_t i = 0; i < attach.count; i++)
		if (attach.arenas[i].arena)
			arena_forget(attach.arenas[i].arena, keep_mapped ? attach.arenas[i].fd : -1);
	journal_forget();
	memset(&attach, 0, sizeof attach);
}

void attach_still_stopped(void) { atomic_store(&attach.stopped, 1); }
