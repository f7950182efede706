// SPDX-License-Identifier: Apache-2.0
/* file: see file.h. */
#include "file.h"

#include "alive.h"
#include "sys.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum {
	POOL_FILES = 1 << 14,
	POOL_OFDS = 1 << 16,
	HASH_SIZE = 1 << 14,
};

/* Shared anonymous memory, so that the members of a family can use one copy of it; untouched pages cost
 * nothing. */
struct pools {
	struct lock lock;
	struct file *free_files;
	struct ofd *free_ofds;
	uint32_t files_used, ofds_used; /* high-water marks */
	struct file *hash[HASH_SIZE];
	struct file files[POOL_FILES];
	struct ofd ofds[POOL_OFDS];
};

static struct pools *_Atomic pools;
_Atomic uint32_t file_engaged_count;

static const char *const reason_names[THROUGH_COUNT] = {
	[THROUGH_NONE] = "none",
	[THROUGH_FORK] = "fork",
	[THROUGH_EXEC] = "exec",
	[THROUGH_MMAP] = "mmap",
	[THROUGH_STDIO] = "stdio",
	[THROUGH_STANDARD_FD] = "standard descriptor",
	[THROUGH_UNKNOWN_FD] = "unknown descriptor",
	[THROUGH_SPLICE] = "splice or sendfile",
	[THROUGH_UNLINKED] = "unlinked",
	[THROUGH_NO_ARENA] = "no arena",
	[THROUGH_NO_THREAD] = "no thread",
	[THROUGH_NO_PREALLOC] = "no fallocate",
	[THROUGH_PATH] = "path",
	[THROUGH_AIO] = "asynchronous I/O",
	[THROUGH_IOCTL] = "ioctl",
	[THROUGH_SYNC_OPEN] = "O_SYNC",
	[THROUGH_EXIT] = "exit",
};

const char *through_reason_name(enum through_reason reason)
{
	return (unsigned)reason < THROUGH_COUNT ? reason_names[reason] : "?";
}

int file_pools_init(void)
{
	struct pools *expected = NULL;
	struct pools *p;

	if (atomic_load(&pools))
		return 0;
	p = sys.mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1,
	             0);
	if (sys_is_error(p))
		return (int)(intptr_t)p;
	if (!atomic_compare_exchange_strong(&pools, &expected, p))
		sys.munmap(p, sizeof *p);
	return 0;
}

void file_pools_reset(void)
{
	struct pools *p = atomic_exchange(&pools, NULL);

	if (p)
		sys.munmap(p, sizeof *p);
	file_engaged_count = 0;
}

static struct file **hash_bucket(struct pools *p, uint64_t dev, uint64_t ino)
{
	uint64_t h = (ino ^ (dev << 32) ^ dev) * 0x9e3779b97f4a7c15ull;

	return &p->hash[h >> 50];
}
_Static_assert(HASH_SIZE == 1 << 14, "hash_bucket takes the 14 upper bits");

static struct file *hash_lookup(struct pools *p, uint64_t dev, uint64_t ino)
{
	struct file *f = *hash_bucket(p, dev, ino);

	while (f && (f->dev != dev || f->ino != ino))
		f = f->hash_next;
	return f;
}

static struct file *file_make(struct pools *p, uint64_t dev, uint64_t ino, const struct rule *rule)
{
	struct file *f = p->free_files;
	struct file **bucket = hash_bucket(p, dev, ino);

	if (f)
		p->free_files = f->hash_next;
	else if (p->files_used < POOL_FILES)
		f = &p->files[p->files_used++];
	else
		return NULL;
	/* the lock word and the event counter stay: others may still look at them through a stale pointer */
	f->dev = dev;
	f->ino = ino;
	f->rule = rule;
	f->why = THROUGH_NONE;
	f->ofds = NULL;
	f->refs = 0;
	f->mode = FILE_PASSIVE;
	f->inflight = 0;
	f->small_seen = 0;
	f->engage_after = FILE_ENGAGE_AFTER;
	f->shown_early = 0;
	f->current = NULL;
	f->arena = NULL;
	f->slot = -1;
	f->head = f->tail = NULL;
	f->blocks = 0;
	f->staged_lo = f->staged_hi = 0;
	f->ksize = f->lsize = 0;
	f->sparse = f->no_own_fd = f->direct_ok = false;
	f->own_fd = -1;
	f->prealloc_start = f->prealloc_end = f->prealloc_step = 0;
	f->full_sync = false;
	f->relaxed_due_ns = 0;
	f->error = 0;
	f->sync_error = 0;
	f->append_skip = 0;
	f->idle_waiters = 0;
	f->work = NULL;
	f->lag_due = false;
	f->lag_seq = 0;
	f->writes = f->bytes = 0;
	f->pinned = NULL;
	f->hash_next = *bucket;
	*bucket = f;
	return f;
}

struct file *file_get(uint64_t dev, uint64_t ino, const struct rule *rule)
{
	struct pools *p = atomic_load(&pools);
	struct file *f;

	lock_take(&p->lock, LOCK_POOL);
	f = hash_lookup(p, dev, ino);
	if (!f)
		f = file_make(p, dev, ino, rule);
	if (f)
		f->refs++;
	lock_drop(&p->lock, LOCK_POOL);
	return f;
}

void file_ref(struct file *f)
{
	struct pools *p = atomic_load(&pools);

	lock_take(&p->lock, LOCK_POOL);
	f->refs++;
	lock_drop(&p->lock, LOCK_POOL);
}

struct file *file_find(uint64_t dev, uint64_t ino)
{
	struct pools *p = atomic_load(&pools);
	sys_sigset signals;
	struct file *f;

	if (!p || !alive_here())
		return NULL;
	signals = sys_block_signals();
	lock_take(&p->lock, LOCK_POOL);
	f = hash_lookup(p, dev, ino);
	lock_drop(&p->lock, LOCK_POOL);
	sys_restore_signals(signals);
	return f;
}

void file_put(struct file *f)
{
	struct pools *p = atomic_load(&pools);

	lock_take(&p->lock, LOCK_POOL);
	if (--f->refs == 0) {
		struct file **link = hash_bucket(p, f->dev, f->ino);

		while (*link != f)
			link = &(*link)->hash_next;
		*link = f->hash_next;
		f->mode = FILE_THROUGH;
		f->dev = f->ino = 0;
		f->hash_next = p->free_files;
		p->free_files = f;
	}
	lock_drop(&p->lock, LOCK_POOL);
}

struct ofd *ofd_new(struct file *f, int fd, int flags)
{
	struct pools *p = atomic_load(&pools);
	struct ofd *o;

	lock_take(&p->lock, LOCK_POOL);
	o = p->free_ofds;
	if (o)
		p->free_ofds = o->next;
	else if (p->ofds_used < POOL_OFDS)
		o = &p->ofds[p->ofds_used++];
	lock_drop(&p->lock, LOCK_POOL);
	if (!o)
		return NULL;
	o->flags = flags;
	o->fd = fd;
	o->refs = 1;
	o->align_mask = 0;
	o->pos_mode = POS_KERNEL;
	o->pos = 0;
	o->readable = (flags & O_ACCMODE) != O_WRONLY;
	o->writable = (flags & O_ACCMODE) != O_RDONLY;
	o->next = f->ofds;
	f->ofds = o;
	atomic_store_explicit(&o->file, f, memory_order_release);
	return o;
}

void ofd_release(struct ofd *o)
{
	struct pools *p = atomic_load(&pools);
	struct file *f = atomic_load(&o->file);
	struct ofd **link = &f->ofds;

	while (*link != o)
		link = &(*link)->next;
	*link = o->next;
	lock_take(&p->lock, LOCK_POOL);
	o->next = p->free_ofds;
	p->free_ofds = o;
	lock_drop(&p->lock, LOCK_POOL);
}

void file_for_each(void (*visit)(struct file *f, void *ctx), void *ctx)
{
	struct pools *p = atomic_load(&pools);

	if (!p || !alive_here())
		return;
	for (uint32_t i = 0; i < p->files_used; i++)
		visit(&p->files[i], ctx);
}

struct file_guard file_lock(struct file *f)
{
	struct file_guard g = {.signals = sys_block_signals()};

	g.nested = lock_take(&f->lock, LOCK_FILE) == LOCK_NESTED;
	/* whoever was interrupted has left the lock since: nobody copies into that block any more */
	if (!g.nested)
		f->pinned = NULL;
	return g;
}

void file_unlock(struct file *f, struct file_guard g)
{
	if (!g.nested)
		lock_drop(&f->lock, LOCK_FILE);
	sys_restore_signals(g.signals);
}
