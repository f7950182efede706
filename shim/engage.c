// SPDX-License-Identifier: Apache-2.0
/* engage: see engage.h. */
#include "engage.h"

#include "engine.h"
#include "fdtable.h"
#include "flush.h"
#include "kill.h"
#include "lazy.h"
#include "log.h"
#include "prealloc.h"
#include "stage.h"
#include "stats.h"
#include "sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { ARENAS_MAX = 32, MAPPED_MAX = 4096 };

const struct config *engage_config;

static struct {
	struct lock lock; /* LOCK_ENGAGE */
	struct arena arenas[ARENAS_MAX];
	bool used[ARENAS_MAX];
	bool refused[ARENAS_MAX]; /* creation failed: written through, said once */
	uint32_t count;
	_Atomic bool stopped;
} engage;

static struct {
	_Atomic uint64_t hash[MAPPED_MAX]; /* open addressing, 0 = empty */
	_Atomic uint32_t count;
} mapped;

static uint64_t mapped_key(uint64_t dev, uint64_t ino)
{
	uint64_t h = (ino ^ (dev << 40) ^ (dev >> 24)) * 0x9e3779b97f4a7c15ull;

	return h ? h : 1;
}

void engage_never(uint64_t dev, uint64_t ino)
{
	uint64_t key = mapped_key(dev, ino);

	for (uint32_t i = 0; i < MAPPED_MAX; i++) {
		_Atomic uint64_t *place = &mapped.hash[(key + i) % MAPPED_MAX];
		uint64_t expected = 0;

		if (atomic_load(place) == key || atomic_compare_exchange_strong(place, &expected, key) ||
		    expected == key) {
			atomic_fetch_add(&mapped.count, 1);
			return;
		}
	}
	/* full: engage_file takes every file for mapped */
}

bool engage_is_never(uint64_t dev, uint64_t ino)
{
	uint64_t key = mapped_key(dev, ino);

	if (atomic_load(&mapped.count) == 0)
		return false;
	for (uint32_t i = 0; i < MAPPED_MAX; i++) {
		uint64_t seen = atomic_load(&mapped.hash[(key + i) % MAPPED_MAX]);

		if (seen == key)
			return true;
		if (seen == 0)
			return false;
	}
	return true;
}

int engage_path_of(int fd, char *out)
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

int engage_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out)
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

static struct arena *arena_find(const struct rule *rule, uint64_t dev, bool *refused)
{
	for (uint32_t i = 0; i < engage.count; i++) {
		struct arena *a = &engage.arenas[i];

		/* a staging directory of the user's own may lie on another file system */
		if (a->rule == rule && (a->dev == dev || rule->set.staging[0])) {
			if (engage.used[i])
				return a;
			if (engage.refused[i]) {
				*refused = true;
				return NULL;
			}
		}
	}
	return NULL;
}

static struct arena *arena_open(const struct rule *rule, const char *path, uint64_t dev)
{
	char dir[PATH_MAX];
	struct arena *a;
	uint32_t i;
	int r;

	for (i = 0; i < engage.count; i++)
		if (!engage.used[i] && !engage.refused[i])
			break;
	if (i == ARENAS_MAX)
		return NULL;
	a = &engage.arenas[i];
	r = engage_staging_dir(rule, path, dev, dir);
	if (r == 0)
		r = arena_create(a, dir, rule);
	if (i == engage.count)
		engage.count++;
	if (r == -EMFILE || r == -ENFILE)
		return NULL; /* the program's own doing; another file may have more luck */
	if (r < 0) {
		a->rule = rule;
		a->dev = dev;
		engage.refused[i] = true;
		log_warn("rule %s: no staging in %s: %s (error %d); its files are written through",
		         rule->name, dir,
		         r == -EPERM    ? "the directory belongs to somebody else, or others may write to it"
		         : r == -EACCES ? "not writable"
		         : r == -ENOSPC ? "no space"
		         : r == -EROFS  ? "read-only file system"
		         : r == -EOPNOTSUPP ? "fallocate is not supported there"
		                            : "cannot be used",
		         -r);
		return NULL;
	}
	engage.used[i] = true;
	return a;
}

static struct arena *arena_for(struct file *f, const char *path)
{
	bool refused = false;
	struct arena *a = arena_find(f->rule, f->dev, &refused);

	return a || refused ? a : arena_open(f->rule, path, f->dev);
}

static bool fd_is_file(int fd, uint64_t dev, uint64_t ino)
{
	struct statx st;

	return sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_TYPE, &st) == 0 && st.stx_ino == ino &&
	       sys_dev_of(&st) == dev;
}

static int parse_fd(const char *name)
{
	int value = 0;

	for (; *name >= '0' && *name <= '9'; name++)
		value = value * 10 + (*name - '0');
	return *name ? -1 : value;
}

/* A descriptor that this process opened and has not been asked about yet: a second description of the file. */
static bool adopt_noted(struct file *f, int fd, int flags)
{
	struct lazy *l = &lazy_fds[fd];
	uint32_t expected = LAZY_NOTED;
	bool adopted = false;

	if (!atomic_compare_exchange_strong(&l->state, &expected, LAZY_RESOLVING))
		return false;
	if (atomic_load(&l->inflight) == 0) {
		struct ofd *o = ofd_new(f, fd, flags);

		adopted = o && fdtable_set(fd, o) == 0;
		if (adopted)
			file_ref(f);
	}
	atomic_store(&l->state, adopted ? LAZY_NONE : LAZY_NOTED);
	return adopted;
}

/* A descriptor that the library did not see opened: who uses it, and how, is unknown.  (A stdio stream that
 * reads the file would not see what is staged.)  O_PATH ones can neither read nor write. */
static bool harmless_fd(struct file *f, int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);

	if (flags < 0 || (flags & O_PATH))
		return true;
	if (!lazy_is(fd) || fd <= 2 || (flags & (O_DIRECT | O_SYNC | O_DSYNC)))
		return false;
	return adopt_noted(f, fd, (int)flags);
}

/*
 * Looks for descriptors on the file that came by ways the library does not see: inherited, received over a
 * socket, made by fopen or a raw system call.  False when there is one.
 */
static bool scan_descriptors(struct file *f)
{
	char buf[2048] __attribute__((aligned(8)));
	int dir = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	bool ok = dir >= 0;
	ssize_t n;

	while (ok && (n = sys.getdents(dir, buf, sizeof buf)) > 0) {
		for (ssize_t at = 0; ok && at < n;) {
			struct sys_dirent *d = (struct sys_dirent *)(void *)(buf + at);
			int fd = parse_fd(d->name);

			at += d->reclen;
			if (fd < 0 || fd == dir || own_fd_is(fd) || fdtable_get(fd))
				continue;
			if (fd_is_file(fd, f->dev, f->ino))
				ok = harmless_fd(f, fd);
		}
	}
	if (dir >= 0)
		sys.close(dir);
	return ok;
}

static bool has_standard_fd(const struct file *f)
{
	for (int fd = 0; fd <= 2; fd++) {
		struct ofd *o = fdtable_get(fd);

		if (o && atomic_load(&o->file) == f && o->writable)
			return true;
	}
	return false;
}

static void fill_slot(struct file *f, const char *path, const struct statx *st)
{
	struct arena_slot *slot = arena_slot_at(f->arena, (uint32_t)f->slot);
	/* the blocks of the slot's last owner are done with; those to come have larger numbers */
	uint64_t done = DONE_MAKE(atomic_load(&f->arena->header->live.next_seq), 0);

	slot->dev = f->dev;
	slot->ino = f->ino;
	slot->btime_sec = (st->stx_mask & STATX_BTIME) ? st->stx_btime.tv_sec : 0;
	slot->btime_nsec = (st->stx_mask & STATX_BTIME) ? st->stx_btime.tv_nsec : 0;
	slot->flush_active = APPEND_NONE;
	slot->flush_base = 0;
	slot->prealloc_end = 0;
	slot->flags = f->rule->set.writers == WRITERS_EXCLUSIVE ? SLOT_EXCLUSIVE : 0;
	memset(slot->path, 0, sizeof slot->path);
	memcpy(slot->path, path, strlen(path));
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
#endif
}

static void become_through(struct file *f, enum through_reason why)
{
	if (f->mode != FILE_THROUGH && f->arena)
		atomic_fetch_add(&f->arena->header->live.through[why], 1);
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

/* LOCK_ENGAGE held.  Returns why not, or THROUGH_NONE. */
static enum through_reason try_engage(struct file *f, struct ofd *o)
{
	char path[PATH_MAX];
	struct statx st;
	struct arena *a;
	int slot;

	if (sys.statx(o->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME | 0x2000u /* DIOALIGN */,
	              &st) < 0)
		return THROUGH_PATH;
	if (st.stx_nlink == 0)
		return THROUGH_UNLINKED;
	if (engage_path_of(o->fd, path) < 0 || strlen(path) >= ARENA_PATH_MAX)
		return THROUGH_PATH;
	if (has_standard_fd(f))
		return THROUGH_STANDARD_FD;
	if (engage_is_never(f->dev, f->ino))
		return THROUGH_MMAP;
	if (!scan_descriptors(f))
		return THROUGH_UNKNOWN_FD;
	if (engine_start() < 0)
		return THROUGH_NO_THREAD;
	a = arena_for(f, path);
	if (!a)
		return THROUGH_NO_ARENA;
	slot = arena_slot_take(a);
	if (slot < 0 && slot_reclaim(a))
		slot = arena_slot_take(a);
	if (slot < 0)
		return THROUGH_COUNT; /* all in use by busy files: stay passive, try again with a later write */
	f->arena = a;
	f->slot = slot;
	f->ksize = f->lsize = st.stx_size;
	f->prealloc_end = 0;
	f->sparse = has_holes(f, &st);
	f->staged_lo = f->staged_hi = 0;
	f->error = 0;
	f->append_skip = 0;
	f->prealloc_step = 0;
	probe_direct(f, &st);
	fill_slot(f, path, &st);
	return THROUGH_NONE;
}

bool engage_file(struct file *f, struct ofd *o)
{
	enum through_reason why;

	if (atomic_load(&engage.stopped) || !o->writable)
		return false;
	atomic_store(&f->mode, FILE_ENGAGED);
	if (atomic_load(&f->inflight) != 0) {
		/* another thread is inside the kernel with this file: the next write tries again */
		atomic_store(&f->mode, FILE_PASSIVE);
		return false;
	}
	/* Only tried: whoever holds it may wait for this file's lock, or this may be a signal handler that
	 * interrupted somebody whom the holder waits for. */
	if (!lock_try(&engage.lock, lock_self())) {
		atomic_store(&f->mode, FILE_PASSIVE);
		return false;
	}
	why = try_engage(f, o);
	lock_drop_fast(&engage.lock, lock_self());
	if (why == THROUGH_NONE) {
		atomic_fetch_add(&file_engaged_count, 1);
		return true;
	}
	f->arena = NULL;
	f->slot = -1;
	f->small_seen = 0;
	if (why == THROUGH_COUNT)
		f->mode = FILE_PASSIVE;
	else
		become_through(f, why);
	return false;
}

void engage_refresh(struct file *f, int fd)
{
	struct statx st;

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE | STATX_BLOCKS, &st) < 0)
		return;
	f->ksize = f->lsize = st.stx_size;
	f->sparse = has_holes(f, &st);
}

int engage_release(struct file *f, bool nested)
{
	int r, fd;

	if (f->mode != FILE_ENGAGED || !f->arena)
		return 0;
	r = flush_hand_over(f, nested);
	if (r < 0)
		return r;
	if (f->mode != FILE_ENGAGED || !f->arena || f->head)
		return 0; /* somebody else was quicker, or a signal handler left a block behind */
	flush_close_own(f);
	fd = flush_program_fd(f);
	if (fd >= 0)
		prealloc_trim(f, fd);
	arena_slot_free(f->arena, (uint32_t)f->slot);
	f->arena = NULL;
	f->slot = -1;
	f->small_seen = 0;
	f->mode = FILE_PASSIVE;
	atomic_fetch_sub(&file_engaged_count, 1);
	return 0;
}

int engage_through(struct file *f, enum through_reason why, bool nested)
{
	struct arena *a = f->arena;
	int r = engage_release(f, nested);

	if (r == 0 && f->mode == FILE_PASSIVE) {
		f->mode = FILE_THROUGH;
		f->why = why;
		if (a)
			atomic_fetch_add(&a->header->live.through[why], 1);
	}
	return r;
}

void engage_abandon(struct file *f)
{
	log_error(
		"closing %s with bytes that cannot be written (error %d): they stay in %s, see `fastwrite recover`",
		arena_slot_at(f->arena, (uint32_t)f->slot)->path, -f->error, f->arena->dir);
	flush_close_own(f);
	f->head = f->tail = NULL;
	f->arena = NULL;
	f->slot = -1;
	f->mode = FILE_THROUGH;
	atomic_fetch_sub(&file_engaged_count, 1);
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

	if ((i->done && !i->all) || f->mode != FILE_ENGAGED || !f->arena || f->head ||
	    (i->arena && f->arena != i->arena) || (i->reserved && f->prealloc_end == 0))
		return;
	if (!lock_try(&f->lock, tid))
		return;
	if (f->mode == FILE_ENGAGED && f->arena && !f->head && !atomic_load(&f->busy))
		i->done |= engage_release(f, true) == 0;
	lock_drop_fast(&f->lock, tid);
}

static bool slot_reclaim(struct arena *a)
{
	struct idle i = {.arena = a};

	file_for_each(visit_idle, &i);
	return i.done;
}

bool engage_release_reserved(void)
{
	struct idle i = {.reserved = true, .all = true};

	file_for_each(visit_idle, &i);
	return i.done;
}

struct stop {
	enum through_reason why;
	bool failed;
};

static void visit_stop(struct file *f, void *ctx)
{
	struct stop *s = ctx;
	struct file_guard g;

	if (f->refs == 0)
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (f->refs != 0 && f->mode != FILE_THROUGH && engage_through(f, s->why, g.nested) < 0)
		s->failed = true;
	file_unlock(f, g);
}

void engage_stop_all(enum through_reason why)
{
	struct stop s = {.why = why};
	sys_sigset signals = sys_block_signals();

	atomic_store(&engage.stopped, true);
	file_for_each(visit_stop, &s);
	lock_take(&engage.lock, LOCK_ENGAGE);
	for (uint32_t i = 0; i < engage.count; i++) {
		struct arena *a = &engage.arenas[i];

		if (!engage.used[i] || a->slots_used != 0)
			continue; /* bytes that could not be flushed: they wait there for `fastwrite recover` */
		engage.used[i] = false;
		stats_add(a);
		arena_destroy(a);
	}
	lock_drop(&engage.lock, LOCK_ENGAGE);
	if (s.failed)
		log_warn(
			"some bytes could not be written; they stay in the staging directory, see `fastwrite recover`");
	sys_restore_signals(signals);
}

static void visit_resume(struct file *f, void *ctx)
{
	enum through_reason why = *(enum through_reason *)ctx;
	struct file_guard g;

	if (f->refs == 0)
		return;
	g = file_lock(f);
	if (f->mode == FILE_THROUGH && f->why == why) {
		f->mode = FILE_PASSIVE;
		f->small_seen = 0;
	}
	file_unlock(f, g);
}

void engage_resume_all(enum through_reason why)
{
	file_for_each(visit_resume, &why);
	atomic_store(&engage.stopped, false);
}

struct retire {
	struct arena *arena;
};

static void visit_retire(struct file *f, void *ctx)
{
	struct retire *r = ctx;
	struct file_guard g;

	if (f->arena != r->arena)
		return;
	g = file_lock(f);
	if (!g.nested && f->mode == FILE_ENGAGED && f->arena == r->arena)
		engage_release(f, false);
	file_unlock(f, g);
}

bool engage_retire_dir(const char *dir)
{
	sys_sigset signals = sys_block_signals();
	bool any = false;

	for (uint32_t i = 0; i < engage.count; i++) {
		struct retire r = {.arena = &engage.arenas[i]};

		if (!engage.used[i] || (dir && strcmp(r.arena->dir, dir) != 0))
			continue;
		file_for_each(visit_retire, &r);
		lock_take(&engage.lock, LOCK_ENGAGE);
		if (engage.used[i] && r.arena->slots_used == 0) {
			engage.used[i] = false;
			stats_add(r.arena);
			arena_destroy(r.arena);
			any = true;
		}
		lock_drop(&engage.lock, LOCK_ENGAGE);
	}
	sys_restore_signals(signals);
	return any;
}

bool engage_move_fd(int fd)
{
	sys_sigset signals = sys_block_signals();
	bool moved = false;

	lock_take(&engage.lock, LOCK_ENGAGE);
	for (uint32_t i = 0; i < engage.count && !moved; i++) {
		if (engage.used[i] && engage.arenas[i].fd == fd) {
			int other = own_fd_move(fd);

			if (other >= 0)
				engage.arenas[i].fd = other;
			moved = other >= 0;
		}
	}
	lock_drop(&engage.lock, LOCK_ENGAGE);
	sys_restore_signals(signals);
	return moved;
}

void engage_pause(void)
{
	atomic_store(&engage.stopped, true);
	lock_take(&engage.lock, LOCK_ENGAGE);
}

void engage_unpause(void)
{
	lock_drop(&engage.lock, LOCK_ENGAGE);
	atomic_store(&engage.stopped, false);
}

void engage_after_fork(void)
{
	for (uint32_t i = 0; i < engage.count; i++)
		if (engage.used[i])
			arena_forget(&engage.arenas[i]);
	memset(&engage, 0, sizeof engage);
}
