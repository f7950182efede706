// SPDX-License-Identifier: Apache-2.0
/* pool: see pool.h.  The files that are ready, and the thread that makes them. */
#include "pool.h"

#include "buffer.h"
#include "kill.h"
#include "log.h"
#include "prealloc.h"
#include "sys.h"
#include "thread.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

enum {
	POOLS_MAX = 8,
	POOL_FILES_MAX = 64,
	POOL_BYTES = 1 << 20,
	PATIENCE_NS = 50000,
	SPOILT_MAX = 8, /* in a row */
	/* what a directory has of its own, or says of its contents' layout */
	FLAGS_OF_LAYOUT = 0x1000 | 0x20000 | 0x40000 | 0x80000 | 0x200000 | 0x10000000,
	XFLAG_PREALLOC = 0x2,
	EXT4_MAGIC = 0xef53,
	XFS_MAGIC = 0x58465342,
};

#define XFLAG_HASATTR 0x80000000u

enum pool_state { POOL_FREE, POOL_LIVE, POOL_CLOSING };
enum file_state { FILE_MISSING, FILE_MADE_NOW, FILE_READY, FILE_TAKEN };

struct ready {
	_Atomic uint32_t state;
	uint32_t number;
	uint64_t ino;
	uint64_t flags;
	uint32_t project;
};

struct pool {
	_Atomic uint32_t state;
	_Atomic uint32_t users; /* who look at the rest */
	_Atomic bool refused;   /* no more files */
	_Atomic uint32_t spoilt;
	_Atomic uint32_t next_number;
	const struct arena *arena;
	const struct rule *rule;
	uint64_t dev, dir_ino, bytes;
	uint32_t count;
	char dir[PATH_MAX];
	char stem[ARENA_FILE_NAME_MAX];
	struct ready files[POOL_FILES_MAX];
};

_Atomic bool pool_active;
static struct pool pools[POOLS_MAX];

static struct {
	_Atomic bool runs, wanted;
	_Atomic bool refused; /* the kernel is too old, or it is forbidden */
} worker;

/* False: it is being closed. */
static bool enter(struct pool *p)
{
	atomic_fetch_add(&p->users, 1);
	if (atomic_load(&p->state) == POOL_LIVE)
		return true;
	atomic_fetch_sub(&p->users, 1);
	return false;
}

static void leave(struct pool *p) { atomic_fetch_sub(&p->users, 1); }

static void name_of(const struct pool *p, uint32_t number, char *out, size_t size)
{
	log_format(out, size, "%s.%x" POOL_SUFFIX, p->stem, number);
}

static void remove_file(const struct pool *p, uint32_t number)
{
	char name[ARENA_FILE_NAME_MAX + 24];
	BUFFER(char, path);

	name_of(p, number, name, sizeof name);
	log_format(path, PATH_MAX, "%s/%s", p->dir, name);
	sys.unlinkat(AT_FDCWD, path, 0);
}

int pool_attributes(int fd, uint64_t *flags, uint32_t *project)
{
	/* struct fsxattr and its call, as linux/fs.h has them */
	struct {
		uint32_t xflags, extsize, nextents, projid, cowextsize;
		uint8_t pad[8];
	} x = {0};
	int plain = 0;
	int r = (int)sys_raw(SYS_ioctl, fd, (long)_IOR('X', 31, x), (long)&x, 0, 0, 0);

	if (r == 0)
		r = (int)sys_raw(SYS_ioctl, fd, (long)_IOR('f', 1, long), (long)&plain, 0, 0, 0);
	/* hints for extents are xfs's; a file with one has it from its directory */
	if (r == 0 && (x.extsize || x.cowextsize))
		r = -EOPNOTSUPP;
	*flags = ((uint32_t)plain & ~(uint32_t)FLAGS_OF_LAYOUT) |
	         (uint64_t)(x.xflags & ~(uint32_t)(XFLAG_PREALLOC | XFLAG_HASATTR)) << 32;
	*project = x.projid;
	return r;
}

/* ---- the thread ---- */

/* In the thread: no descriptor but its own is open there, so that nothing may be logged. */
static int make_file(const struct pool *p, struct ready *file, int dir, const char *name)
{
	struct statx st;
	int r, fd;

	fd = sys.openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return fd;
	r = prealloc_pool_write(fd, p->bytes);
	if (r == 0)
		r = pool_attributes(fd, &file->flags, &file->project);
	/* a label, or an access list, that another directory would not have given it */
	if (r == 0 && sys_raw(SYS_flistxattr, fd, 0, 0, 0, 0, 0) != 0)
		r = -EOPNOTSUPP;
	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0 && (st.stx_size != p->bytes || st.stx_blocks * 512ull < p->bytes))
		r = -EOPNOTSUPP;
	file->ino = r == 0 ? st.stx_ino : 0;
	sys.close(fd);
	if (r < 0)
		sys.unlinkat(dir, name, 0);
	return r;
}

static int fill(struct pool *p, struct ready *file)
{
	int dir = sys.openat(AT_FDCWD, p->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	char name[ARENA_FILE_NAME_MAX + 24];
	struct statfs fs;
	struct statx st;
	int r = dir < 0 ? dir : sys.statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	/* (the program may have changed its root directory) */
	if (r == 0 && (st.stx_ino != p->dir_ino || sys_dev_of(&st) != p->dev))
		r = -ESTALE;
	if (r == 0)
		r = (int)sys_raw(SYS_fstatfs, dir, (long)&fs, 0, 0, 0, 0);
	/* only there it is known what a file gets from its directory */
	if (r == 0 && fs.f_type != EXT4_MAGIC && fs.f_type != XFS_MAGIC)
		r = -EOPNOTSUPP;
	if (r == 0) {
		file->number = atomic_fetch_add(&p->next_number, 1);
		name_of(p, file->number, name, sizeof name);
		r = make_file(p, file, dir, name);
	}
	if (dir >= 0)
		sys.close(dir);
	return r;
}

static void fill_all(struct pool *p)
{
	for (uint32_t i = 0; i < p->count && enter(p); i++) {
		uint32_t missing = FILE_MISSING;

		if (!atomic_load(&p->refused) &&
		    atomic_compare_exchange_strong(&p->files[i].state, &missing, FILE_MADE_NOW)) {
			int r = fill(p, &p->files[i]);

			if (r < 0)
				atomic_store(&p->refused, true);
			atomic_store(&p->files[i].state, r < 0 ? FILE_MISSING : FILE_READY);
		}
		leave(p);
	}
}

static void *worker_main(void *arg)
{
	(void)arg;
	thread_begin();
	/* the program's next descriptor must get the lowest number: this thread has a table of its own, empty */
	if (sys_raw(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE, 0, 0, 0) < 0) {
		atomic_store(&worker.refused, true);
		atomic_store(&worker.runs, false);
		return NULL;
	}
	for (;;) {
		bool idle = false;

		atomic_store(&worker.wanted, false);
		for (int i = 0; i < POOLS_MAX; i++)
			if (atomic_load(&pools[i].state) == POOL_LIVE)
				fill_all(&pools[i]);
		if (atomic_load(&worker.wanted))
			continue;
		atomic_store(&worker.runs, false);
		if (!atomic_load(&worker.wanted) ||
		    !atomic_compare_exchange_strong(&worker.runs, &idle, true))
			return NULL;
	}
}

/* Signals blocked. */
static void nudge(void)
{
	atomic_store(&worker.wanted, true);
	if (atomic_load(&worker.refused))
		return;
	if (!atomic_exchange(&worker.runs, true) && thread_make(worker_main) < 0)
		atomic_store(&worker.runs, false); /* with the next one */
}

/* ---- beginning and end ---- */

static bool wants_pool(const struct rule *rule)
{
	const struct settings *set = &rule->set;

	return set->pool > 0 && set->prealloc_mode == PREALLOC_ZERO && set->writers == WRITERS_EXCLUSIVE &&
	       set->visibility == VISIBILITY_LAG &&
	       (set->sync == SYNC_FDATASYNC || set->sync == SYNC_FSYNC) && set->prealloc_bytes >= ARENA_PAGE;
}

static bool set_up(struct pool *p, const struct arena *a)
{
	size_t n = strlen(a->name), s = sizeof ARENA_SUFFIX - 1;
	uint64_t most = a->rule->set.prealloc_bytes / ARENA_PAGE * ARENA_PAGE;
	struct statx st;

	if (n <= s || sys.statx(AT_FDCWD, a->dir, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) < 0)
		return false;
	p->arena = a;
	p->rule = a->rule;
	p->dev = sys_dev_of(&st);
	p->dir_ino = st.stx_ino;
	p->bytes = most < POOL_BYTES ? most : POOL_BYTES;
	p->count = a->rule->set.pool;
	log_format(p->dir, sizeof p->dir, "%s", a->dir);
	memcpy(p->stem, a->name, n - s);
	p->stem[n - s] = '\0';
	for (int i = 0; i < POOL_FILES_MAX; i++)
		atomic_store(&p->files[i].state, FILE_MISSING);
	atomic_store(&p->refused, false);
	atomic_store(&p->spoilt, 0);
	return true;
}

void pool_attach(const struct arena *a)
{
	struct pool *place = NULL;

	if (!wants_pool(a->rule) || family_is_shared())
		return;
	for (int i = 0; i < POOLS_MAX; i++) {
		if (atomic_load(&pools[i].state) == POOL_FREE && atomic_load(&pools[i].users) == 0)
			place = place ? place : &pools[i];
		else if (pools[i].arena == a)
			return;
	}
	if (!place || !set_up(place, a))
		return;
	atomic_store(&place->state, POOL_LIVE);
	atomic_store(&pool_active, true);
	nudge();
}

static bool remove_ready(struct pool *p)
{
	bool any = false;

	for (uint32_t i = 0; i < p->count; i++) {
		uint32_t ready = FILE_READY;

		if (!atomic_compare_exchange_strong(&p->files[i].state, &ready, FILE_TAKEN))
			continue;
		remove_file(p, p->files[i].number);
		atomic_store(&p->files[i].state, FILE_MISSING);
		any = true;
	}
	return any;
}

void pool_close(const struct arena *a)
{
	struct timespec nap = {.tv_nsec = PATIENCE_NS};
	bool any = false;

	for (int i = 0; i < POOLS_MAX; i++) {
		struct pool *p = &pools[i];
		uint32_t live = POOL_LIVE;

		if ((a && p->arena != a) || !atomic_compare_exchange_strong(&p->state, &live, POOL_CLOSING)) {
			any |= atomic_load(&p->state) == POOL_LIVE;
			continue;
		}
		while (atomic_load(&p->users) > 0)
			sys_raw(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
		remove_ready(p);
		p->arena = NULL;
		atomic_store(&p->state, POOL_FREE);
	}
	atomic_store(&pool_active, any);
}

bool pool_give_back(void)
{
	bool any = false;

	for (int i = 0; i < POOLS_MAX && atomic_load(&pool_active); i++) {
		if (!enter(&pools[i]))
			continue;
		atomic_store(&pools[i].refused, true);
		any |= remove_ready(&pools[i]);
		leave(&pools[i]);
	}
	return any;
}

void pool_fork_child(void)
{
	memset(pools, 0, sizeof pools);
	atomic_store(&pool_active, false);
	atomic_store(&worker.runs, false);
	atomic_store(&worker.wanted, false);
}

/* ---- handing over ---- */

bool pool_take(struct pool_file *file, const struct rule *rule, uint64_t dev)
{
	for (uint32_t i = 0; i < POOLS_MAX; i++) {
		struct pool *p = &pools[i];

		if (atomic_load(&p->state) != POOL_LIVE || !enter(p))
			continue;
		for (uint32_t n = 0; n < p->count && p->rule == rule && p->dev == dev; n++) {
			uint32_t ready = FILE_READY;

			if (!atomic_compare_exchange_strong(&p->files[n].state, &ready, FILE_TAKEN))
				continue;
			*file = (struct pool_file){.arena = p->arena,
			                           .staging = p->dir,
			                           .bytes = p->bytes,
			                           .ino = p->files[n].ino,
			                           .flags = p->files[n].flags,
			                           .project = p->files[n].project,
			                           .pool = i,
			                           .entry = n};
			name_of(p, p->files[n].number, file->name, sizeof file->name);
			return true; /* pool_done leaves */
		}
		leave(p);
	}
	return false;
}

void pool_done(const struct pool_file *file, enum pool_end end)
{
	struct pool *p = &pools[file->pool];

	if (end == POOL_SPOILT) {
		remove_file(p, p->files[file->entry].number);
		/* it cannot be done here, for what reason ever */
		if (atomic_fetch_add(&p->spoilt, 1) + 1 >= SPOILT_MAX)
			atomic_store(&p->refused, true);
	} else if (end == POOL_MOVED) {
		atomic_store(&p->spoilt, 0);
	}
	atomic_store(&p->files[file->entry].state, end == POOL_UNTOUCHED ? FILE_READY : FILE_MISSING);
	leave(p);
	if (end != POOL_UNTOUCHED)
		nudge();
}
