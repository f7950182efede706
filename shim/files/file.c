// SPDX-License-Identifier: Apache-2.0
/* file: see files/file.h. */
#include "files/file.h"

#include "base/fork_guard.h"
#include "base/lease.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/gate.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

enum { HASH_SIZE = 1 << 14 };

/* Shared anonymous memory, so that the processes of a family can use one copy of it.  Untouched pages cost
 * nothing. */
struct pools {
	struct family family;
	struct lock lock;
	struct file *free_files;
	struct ofd *free_ofds;
	_Atomic uint32_t files_used, ofds_used; /* high-water marks */
	struct lock hash_lock;
	_Atomic uint32_t attached, releases;
	_Atomic uint64_t epoch;
	_Atomic uint64_t attributes;
	_Atomic uint32_t arena_taken[FILE_ARENAS]; /* by process index + 1; 0 = free */
	struct arena arenas[FILE_ARENAS];
	/* (large: a fork looks only at what comes before) */
	struct file *hash[HASH_SIZE]; /* by identity */
	struct file files[FILE_POOL];
	struct ofd ofds[OFD_POOL];
	uint8_t journal_buffers[FILE_ARENAS][2 * JOURNAL_BATCH_MAX] __attribute__((aligned(ARENA_PAGE)));
};

static struct pools *_Atomic pools;
static _Atomic uint64_t attributes_here; /* changes made by this process; `pools` begins with this count */
PROCESS_DATA uint32_t family_me;
struct file_local file_locals[FILE_POOL];
struct ofd_local ofd_locals[OFD_POOL];
const struct file_care *file_care;
PROCESS_DATA struct gate gate;

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
	if (atomic_compare_exchange_strong(&pools, &expected, p))
		atomic_fetch_add(&p->attributes, atomic_load(&attributes_here));
	else
		sys.munmap(p, sizeof *p);
	return 0;
}

/*
 * A call that a signal handler interrupted goes on in the child with pointers that it has read before.  They
 * must stay valid there, and must not lead to memory that the parent goes on with.  So a copy in which no
 * file is managed takes the place of the pools.
 */
static void leave_copy(const struct pools *p)
{
	struct pools *copy = sys.mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE,
	                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (sys_is_error(copy)) {
		sys_raw(SYS_mprotect, (long)p, sizeof *p, PROT_READ, 0, 0, 0);
		return;
	}
	for (uint32_t i = 0; i < p->files_used; i++) {
		copy->files[i].mode = FILE_BYPASSED;
		copy->files[i].why = BYPASS_FORK;
		copy->files[i].rule = p->files[i].rule;
	}
	memcpy(copy->ofds, p->ofds, p->ofds_used * sizeof *p->ofds);
	sys_raw(SYS_mremap, (long)copy, sizeof *p, sizeof *p, MREMAP_MAYMOVE | MREMAP_FIXED, (long)p, 0);
}

void file_pools_reset(void)
{
	struct pools *p = atomic_exchange(&pools, NULL);

	family_me = 0;
	gate_fork_child();
	if (!p)
		return;
	for (uint32_t i = 0; i < p->files_used; i++)
		file_locals[i] = (struct file_local){0};
	for (uint32_t i = 0; i < p->ofds_used; i++)
		ofd_locals[i] = (struct ofd_local){0};
	leave_copy(p);
}

PROCESS_CODE void file_fork_child(void (*given)(struct ofd *o))
{
	struct pools *p = atomic_load(&pools);

	gate_fork_child();
	/* other threads of the parent may have been opening or closing descriptors */
	for (uint32_t i = 0; i < p->files_used; i++)
		file_locals[i] = (struct file_local){0};
	for (uint32_t i = 0; i < p->ofds_used; i++)
		ofd_locals[i].refs = 0;
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		struct ofd *o = fdtable_get(fd);

		if (ofd_local(o)->refs++ == 0) {
			ofd_local(o)->fd = fd;
			file_local(atomic_load(&o->file))->refs++;
		}
	}
	for (uint32_t i = 0; i < p->ofds_used; i++)
		if (ofd_locals[i].refs == 0 && family_set_has(&p->ofds[i].holders, family_me))
			given(&p->ofds[i]);
}

PROCESS_CODE struct family *file_family(void)
{
	struct pools *p = atomic_load(&pools);

	return p ? &p->family : NULL;
}

PROCESS_CODE bool file_any(void)
{
	struct pools *p = atomic_load(&pools);

	return p && p->files_used > 0;
}

struct arena *file_arena_take(void)
{
	struct pools *p = atomic_load(&pools);

	for (uint32_t i = 0; i < FILE_ARENAS; i++) {
		uint32_t expected = 0;

		if (atomic_compare_exchange_strong(&p->arena_taken[i], &expected, family_me + 1))
			return &p->arenas[i];
	}
	return NULL;
}

uint32_t file_arena_taker(const struct arena *a)
{
	struct pools *p = atomic_load(&pools);

	return atomic_load(&p->arena_taken[a - p->arenas]) - 1;
}

void file_arena_give(const struct arena *a)
{
	struct pools *p = atomic_load(&pools);

	atomic_store(&p->arena_taken[a - p->arenas], 0);
}

uint64_t file_epoch(void) { return atomic_load(&atomic_load(&pools)->epoch); }

void file_epoch_raise(void)
{
	struct pools *p = atomic_load(&pools);

	if (p)
		atomic_fetch_add(&p->epoch, 1);
}

uint64_t file_attributes(void) { return atomic_load(&atomic_load(&pools)->attributes); }

void file_attributes_changed(void)
{
	struct pools *p;

	/* in this order: pools made in between begin with this change */
	atomic_fetch_add(&attributes_here, 1);
	p = atomic_load(&pools);
	if (p)
		atomic_fetch_add(&p->attributes, 1);
}

uint8_t *file_journal_buffers(const struct arena *a)
{
	return atomic_load(&pools)->journal_buffers[file_arena_index(a)];
}

uint32_t file_arena_index(const struct arena *a) { return (uint32_t)(a - atomic_load(&pools)->arenas); }

PROCESS_CODE void file_arena_for_each(void (*visit)(struct arena *a, void *ctx), void *ctx)
{
	struct pools *p = atomic_load(&pools);

	for (uint32_t i = 0; p && i < FILE_ARENAS; i++)
		if (atomic_load(&p->arena_taken[i]))
			visit(&p->arenas[i], ctx);
}

PROCESS_CODE uint32_t file_attached(void)
{
	struct pools *p = atomic_load_explicit(&pools, memory_order_relaxed);

	/* acquire: who finds 0 also finds that file_detaches() has grown (by_name_outdated) */
	return p ? atomic_load_explicit(&p->attached, memory_order_acquire) : 0;
}

static void change_mode(struct file *f, enum file_mode to, enum bypass_reason why)
{
#ifdef FASTWRITE_DEBUG
	static const bool drawn[][FILE_BYPASSED + 1] = {
		[FILE_PASSIVE] = {[FILE_ATTACHED] = true, [FILE_BYPASSED] = true},
		[FILE_ATTACHED] = {[FILE_PASSIVE] = true, [FILE_BYPASSED] = true},
		[FILE_BYPASSED] = {[FILE_PASSIVE] = true, [FILE_BYPASSED] = true},
	};

	assert(drawn[f->mode][to]);
	assert(lock_owner(&f->lock) == lock_self());
	assert(to == FILE_ATTACHED || f->head == NULL);
#endif
	atomic_store(&f->mode, to);
	f->why = why;
}

void file_become(struct file *f, enum file_mode to, enum bypass_reason why)
{
	struct pools *p = atomic_load(&pools);
	bool was_attached = f->mode == FILE_ATTACHED;

	/* counted first: a thread that opens the file from now on calls fd_opened (fd_open_concerns) */
	if (to == FILE_ATTACHED)
		atomic_fetch_add(&p->attached, 1);
	change_mode(f, to, why);
	if (was_attached) {
		atomic_fetch_add(&p->releases, 1);
		atomic_fetch_sub(&p->attached, 1);
	}
}

void file_attach_undo(struct file *f, enum file_mode to, enum bypass_reason why)
{
	change_mode(f, to, why);
	atomic_fetch_sub(&atomic_load(&pools)->attached, 1);
}

void file_want(struct file *f, enum file_wanted wanted, enum bypass_reason why)
{
	assert(lock_owner(&f->lock) == lock_self());
	assert((wanted == WANT_BYPASS) == (why != BYPASS_NONE));
	if (wanted < f->wanted)
		return;
	f->wanted_why = why;
	f->wanted = wanted;
}

void file_want_less(struct file *f, enum file_wanted wanted)
{
	assert(lock_owner(&f->lock) == lock_self());
	assert(wanted != WANT_NOTHING);
	if (f->wanted == wanted)
		f->wanted = wanted - 1;
}

uint32_t file_detaches(void)
{
	const struct pools *p = atomic_load(&pools);

	return p ? atomic_load(&p->releases) : 0;
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

static void hash_add(struct pools *p, struct file *f)
{
	struct file **bucket = hash_bucket(p, f->dev, f->ino);

	f->hash_next = *bucket;
	__atomic_store_n(bucket, f, __ATOMIC_RELEASE); /* file_find reads without the lock */
}

static void hash_remove(struct pools *p, const struct file *f)
{
	struct file **link = hash_bucket(p, f->dev, f->ino);

	while (*link && *link != f)
		link = &(*link)->hash_next;
	if (*link)
		__atomic_store_n(link, f->hash_next, __ATOMIC_RELEASE);
}

/* A free file, locked.  Skips a file whose lock is held: the holder still looks at the earlier file through a
 * stale pointer.  Waiting for it would break the lock order. */
static struct file *take_free(struct pools *p)
{
	struct file **link = &p->free_files;
	struct file *f = NULL;

	lock_take(&p->lock, LOCK_POOL);
	while (*link && !lock_try(&(*link)->lock, lock_self()))
		link = &(*link)->hash_next;
	if (*link) {
		f = *link;
		*link = f->hash_next;
	} else if (p->files_used < FILE_POOL && lock_try(&p->files[p->files_used].lock, lock_self())) {
		f = &p->files[p->files_used];
		f->index = p->files_used++;
	}
	lock_drop(&p->lock, LOCK_POOL);
	return f;
}

/* Hashes of the identities of files that are not known now and whose next sync must be an fsync. */
enum { UNSYNCED = 4096, UNSYNCED_PROBES = 64 };
static _Atomic uint64_t unsynced[UNSYNCED]; /* 0 = empty */
static _Atomic bool unsynced_full;          /* there was no room: any file may need an fsync */

static uint64_t unsynced_key(uint64_t dev, uint64_t ino)
{
	uint64_t h = (ino ^ (dev << 40) ^ (dev >> 24)) * 0x9e3779b97f4a7c15ull;

	return h ? h : 1;
}

static bool unsynced_exchange(uint64_t key, uint64_t old, uint64_t new)
{
	bool any = false;

	for (uint32_t i = 0; i < UNSYNCED_PROBES && !(any && new); i++) {
		_Atomic uint64_t *place = &unsynced[((key >> 32) + i) % UNSYNCED];
		uint64_t expected = old;

		any |= atomic_load(place) == old && atomic_compare_exchange_strong(place, &expected, new);
	}
	return any;
}

static void unsynced_add(uint64_t dev, uint64_t ino)
{
	uint64_t key = unsynced_key(dev, ino);

	unsynced_exchange(key, key, 0); /* a key stands here once at most */
	if (!unsynced_exchange(key, 0, key))
		atomic_store(&unsynced_full, true);
}

static bool unsynced_take(uint64_t dev, uint64_t ino)
{
	uint64_t key = unsynced_key(dev, ino);

	return unsynced_exchange(key, key, 0) || atomic_load(&unsynced_full);
}

static struct file *file_make(struct pools *p, uint64_t dev, uint64_t ino, const struct rule *rule)
{
	struct file *f = take_free(p);

	if (!f)
		return NULL;
	/* Keep the lock word and the event counter: threads with a stale pointer may still read them. */
	f->dev = dev;
	f->ino = ino;
	f->rule = rule;
	f->nested = false;
	f->wanted = WANT_NOTHING;
	f->left = NULL;
	f->why = BYPASS_NONE;
	f->give_up = BYPASS_NONE;
	f->ofds = NULL;
	f->refs = 0;
	f->shared = atomic_load(&p->family.highest) > 0;
	f->needs_repair = f->flush.flags_left = false;
	f->cooperates = false;
	f->mode = FILE_PASSIVE;
	f->inflight = 0;
	f->balance = (struct balance){0};
	f->current = NULL;
	f->arena = NULL;
	f->entry = -1;
	f->overlay = (struct overlay){0};
	f->time_shown = false;
	f->order.epoch = 0;
	f->order.fresh = f->order.behind = false;
	f->order.removal = REMOVAL_NONE;
	f->order.passed = true; /* unknown */
	f->head = f->tail = NULL;
	f->blocks = 0;
	f->staged_lo = f->staged_hi = 0;
	f->ksize = f->lsize = 0;
	f->sparse = f->flush.direct_ok = false;
	f->no_internal_fd = false;
	f->lease.on = NULL;
	f->lease.wait_us = 0;
	f->lease.retry_ns = 0;
	f->lease.pass = false;
	f->space.start = f->space.end = f->space.step = f->space.gap_end = 0;
	f->space.no_trim = false;
	f->space.kept_end = 0;
	f->sync.full = unsynced_take(dev, ino);
	f->sync.names_given = 0;
	f->sync.attributes = 0;
	f->journal.changed = 1;
	f->journal.durable = f->journal.durable_epoch = 0;
	f->journal.refused = false;
	f->journal.arena = NULL;
	f->journal.nameless = false;
	f->journal.first = f->journal.last = 0;
	f->journal.block_seq = f->journal.block_commit = 0;
	f->journal.puts = f->journal.void_ticket = 0;
	f->journal.asked = 0;
	f->journal.failed = 0;
	f->turn = (struct journal_turn){0};
	for (int i = 0; i < DUE_COUNT; i++)
		f->due[i] = 0;
	f->flush.error = 0;
	f->sync.error = 0;
	f->sync.errors = 0;
	f->sync.told = true;
	f->flush.append_skip = 0;
	f->flush.idle_waiters = 0;
	f->flush.was_read = f->flush.sets_direct = false;
	f->flush.reads = 0;
	f->moving = NULL;
	f->flush.lag_seq = 0;
	f->writes = f->bytes = 0;
	f->pinned = NULL;
	/* `queued` stays: the file may still be in the worker threads' queue */
	file_set_internal_fd(f, -1);
	file_set_reader(f, -1);
	file_local(f)->refs = 0;
	file_local(f)->draining = 0;
	file_local(f)->stopped = false;
	lock_drop_fast(&f->lock, lock_self());
	hash_add(p, f);
	return f;
}

static void add_ref(struct file *f)
{
	atomic_fetch_add(&f->refs, 1);
	file_local(f)->refs++;
}

struct file *file_get(uint64_t dev, uint64_t ino, const struct rule *rule)
{
	struct pools *p = atomic_load(&pools);
	struct file *f;

	lock_take(&p->hash_lock, LOCK_HASH);
	f = hash_lookup(p, dev, ino);
	if (!f)
		f = file_make(p, dev, ino, rule);
	if (f)
		add_ref(f);
	lock_drop(&p->hash_lock, LOCK_HASH);
	return f;
}

void file_ref(struct file *f)
{
	struct pools *p = atomic_load(&pools);

	lock_take(&p->hash_lock, LOCK_HASH);
	add_ref(f);
	lock_drop(&p->hash_lock, LOCK_HASH);
}

struct file *file_find(uint64_t dev, uint64_t ino)
{
	struct pools *p = atomic_load(&pools);
	sys_sigset signals;
	struct file *f;

	/* most files are not managed, and most buckets are empty; where one is not, its first file is the one
	 */
	f = p && fork_guard_here() ? __atomic_load_n(hash_bucket(p, dev, ino), __ATOMIC_ACQUIRE) : NULL;
	if (!f || (f->dev == dev && f->ino == ino))
		return f;
	signals = signals_hold();
	lock_take(&p->hash_lock, LOCK_HASH);
	f = hash_lookup(p, dev, ino);
	lock_drop(&p->hash_lock, LOCK_HASH);
	signals_release(signals);
	return f;
}

/* LOCK_HASH held. */
static bool drop_ref(struct pools *p, struct file *f)
{
	if (atomic_fetch_sub(&f->refs, 1) > 1)
		return false;
	hash_remove(p, f);
	if (f->sync.full)
		unsynced_add(f->dev, f->ino);
	f->mode = FILE_BYPASSED;
	f->dev = f->ino = 0;
	lock_take(&p->lock, LOCK_POOL);
	f->hash_next = p->free_files;
	p->free_files = f;
	lock_drop(&p->lock, LOCK_POOL);
	return true;
}

void file_put(struct file *f)
{
	struct pools *p = atomic_load(&pools);

	lock_take(&p->hash_lock, LOCK_HASH);
	file_local(f)->refs--;
	drop_ref(p, f);
	lock_drop(&p->hash_lock, LOCK_HASH);
}

void file_named(uint64_t dev, uint64_t ino)
{
	struct file *f = file_find(dev, ino);
	struct file_guard g;
	bool known;

	if (!f) {
		unsynced_add(dev, ino);
		return;
	}
	g = file_lock(f);
	known = f->refs && f->dev == dev && f->ino == ino;
	if (known) {
		f->sync.full = true;
		f->sync.names_given++;
	} else {
		unsynced_add(dev, ino);
	}
	file_unlock(f, g);
}

void file_leave(struct file *f) { file_local(f)->refs--; }

bool file_put_dead(struct file *f)
{
	struct pools *p = atomic_load(&pools);
	bool last;

	lock_take(&p->hash_lock, LOCK_HASH);
	last = drop_ref(p, f);
	lock_drop(&p->hash_lock, LOCK_HASH);
	return last;
}

bool file_flusher_died(const struct file *f)
{
	uint32_t member = atomic_load_explicit(&f->flush.process, memory_order_relaxed);

	return f->shared && atomic_load(&f->flush.busy) && member != family_me && family_member_died(member);
}

bool file_others_have(const struct file *f)
{
	for (const struct ofd *o = f->ofds; f->shared && o; o = o->next)
		if (family_set_others(&o->holders))
			return true;
	return false;
}

int file_fd(const struct file *f)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (ofd_fd(o) >= 0)
			return ofd_fd(o);
	return -1;
}

int file_readable_fd(const struct file *f)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (o->readable && ofd_fd(o) >= 0 && !(o->flags & O_DIRECT))
			return ofd_fd(o);
	return file_reader(f);
}

void ofd_set_align(struct ofd *o, uint32_t mask)
{
	o->align_mask = mask;
	o->fast_mask = ofd_syncs(o) ? UINT32_MAX : mask;
}

struct ofd *ofd_new(struct file *f, int fd, int flags)
{
	struct pools *p = atomic_load(&pools);
	struct ofd *o;

	lock_take(&p->lock, LOCK_POOL);
	o = p->free_ofds;
	if (o) {
		p->free_ofds = o->next;
	} else if (p->ofds_used < OFD_POOL) {
		o = &p->ofds[p->ofds_used];
		o->index = p->ofds_used++;
	}
	lock_drop(&p->lock, LOCK_POOL);
	if (!o)
		return NULL;
	o->flags = flags;
	*ofd_local(o) = (struct ofd_local){.fd = fd, .refs = 1};
	o->holders = (struct family_set){0};
	family_set_add(&o->holders, family_me);
	ofd_set_align(o, 0);
	o->pos_mode = POS_KERNEL;
	o->pos = 0;
	o->borrowed = OFD_OWN;
	/* (O_ACCMODE itself allows neither) */
	o->readable = (flags & O_ACCMODE) == O_RDONLY || (flags & O_ACCMODE) == O_RDWR;
	o->writable = (flags & O_ACCMODE) == O_WRONLY || (flags & O_ACCMODE) == O_RDWR;
	o->errors_told = f->sync.told ? f->sync.errors : f->sync.errors - 1;
	o->next = f->ofds;
	atomic_store_explicit(&o->file, f, memory_order_release);
	/* a process may be killed anywhere, and others go on with the list */
	atomic_signal_fence(memory_order_seq_cst);
	f->ofds = o;
	return o;
}

bool file_is_open_twice(const struct file *f)
{
	unsigned count = 0;

	for (const struct ofd *o = f->ofds; o && count < 2; o = o->next)
		count += o != f->left;
	return count > 1;
}

void ofd_left(struct ofd *o)
{
	atomic_store(&o->borrowed, OFD_LEFT);
	atomic_store(&atomic_load(&o->file)->flush.flags_left, true);
}

void file_restore_locked(struct file *f)
{
	bool left = false;

	for (struct ofd *o = f->ofds; o; o = o->next) {
		if (o->borrowed != OFD_LEFT)
			continue;
		if (ofd_fd(o) < 0 || sys.fcntl(ofd_fd(o), F_SETFL, o->flags) < 0) {
			left = true;
			continue;
		}
		lease_drop(ofd_fd(o));
		o->borrowed = OFD_OWN;
	}
	atomic_store(&f->flush.flags_left, left);
}

void file_restore_slow(struct file *f) { file_unlock(f, file_lock(f)); }

void ofd_release(struct ofd *o)
{
	struct pools *p = atomic_load(&pools);
	struct file *f = atomic_load(&o->file);
	struct ofd **link = &f->ofds;

	while (*link != o)
		link = &(*link)->next;
	*link = o->next;
	ofd_local(o)->refs = 0;
	atomic_signal_fence(memory_order_seq_cst);
	lock_take(&p->lock, LOCK_POOL);
	o->next = p->free_ofds;
	p->free_ofds = o;
	lock_drop(&p->lock, LOCK_POOL);
}

PROCESS_CODE void file_for_each(void (*visit)(struct file *f, void *ctx), void *ctx)
{
	struct pools *p = atomic_load(&pools);

	if (!p || !fork_guard_here())
		return;
	for (uint32_t i = 0; i < p->files_used; i++)
		if (file_locals[i].refs)
			visit(&p->files[i], ctx);
}

PROCESS_CODE void file_for_each_shared(void (*visit)(struct file *f, void *ctx), void *ctx)
{
	struct pools *p = atomic_load(&pools);

	for (uint32_t i = 0; p && i < p->files_used; i++)
		if (p->files[i].refs)
			visit(&p->files[i], ctx);
}

bool file_any_open(void)
{
	const struct pools *p = atomic_load(&pools);
	bool any = false;

	for (uint32_t i = 0; p && i < p->files_used && !any; i++)
		any = file_locals[i].refs > 0;
	return any;
}

bool file_give_up(uint64_t dev, uint64_t ino, enum bypass_reason why)
{
	struct pools *p = atomic_load(&pools);
	bool known = false;

	for (uint32_t i = 0; p && i < p->files_used; i++) {
		struct file *f = &p->files[i];

		if (file_locals[i].refs && f->dev == dev && f->ino == ino) {
			atomic_store(&f->give_up, why);
			known = true;
		}
	}
	return known;
}

void file_give_up_all(enum bypass_reason why)
{
	struct pools *p = atomic_load(&pools);

	for (uint32_t i = 0; p && i < p->files_used; i++)
		if (file_locals[i].refs)
			atomic_store(&p->files[i].give_up, why);
}

PROCESS_CODE struct file_guard file_lock(struct file *f)
{
	struct file_guard g = {.signals = signals_hold()};

	file_lock_again(f);
	return g;
}

/* True if the lock is taken for a look or a write that needs nothing else first. */
static bool take_short(struct file *f)
{
	if (!lock_take_free(&f->lock, LOCK_FILE))
		return false;
	if (f->shared || f->nested || f->needs_repair || f->flush.flags_left) {
		lock_drop(&f->lock, LOCK_FILE);
		return false;
	}
	f->pinned = NULL;
	return true;
}

struct file_guard file_lock_short(struct file *f)
{
	struct file_guard g = {.signals = signals_hold_short()};

	if (!take_short(f))
		file_lock_again(f);
	return g;
}

PROCESS_CODE void file_retake(struct file *f)
{
	enum lock_result r;

	r = lock_take(&f->lock, LOCK_FILE);
	assert(r != LOCK_NESTED || !f->nested);
	/* (a process that died in a handler may have left it set) */
	f->nested = r == LOCK_NESTED;
	/* The interrupted write has dropped the lock since: nothing copies into that block any more. */
	if (!f->nested)
		f->pinned = NULL;
	if (r == LOCK_INHERITED)
		f->needs_repair = true;
}

PROCESS_CODE void file_lock_again(struct file *f)
{
	file_retake(f);
	if (f->nested) {
		if (file_care)
			file_care->interrupt(f);
		return;
	}
	if (f->shared)
		signals_harden();
	if (f->shared && f->arena && file_care && !family_set_has(&f->arena->members, family_me))
		file_care->attach(f);
	if (takeover_happened(f))
		f->needs_repair = true;
	if (f->needs_repair || f->flush.flags_left)
		signals_harden();
	if (f->needs_repair)
		file_repair(f);
	if (f->flush.flags_left)
		file_restore_locked(f);
}

PROCESS_CODE void file_drop(struct file *f)
{
	if (f->nested)
		f->nested = false; /* the interrupted write drops the lock */
	else
		lock_drop(&f->lock, LOCK_FILE);
}

PROCESS_CODE void file_unlock(struct file *f, struct file_guard g)
{
	file_drop(f);
	signals_release(g.signals);
}

/* The kernel's rule for writeback errors: a description reports the error if it existed then, or was opened
 * before the first report. */
void file_note_sync_error(struct file *f, int error)
{
	f->sync.error = error;
	f->sync.errors++;
	f->sync.told = false;
}

int file_take_sync_error(struct file *f, struct ofd *o)
{
	if (o->errors_told == f->sync.errors)
		return 0;
	o->errors_told = f->sync.errors;
	f->sync.told = true;
	return f->sync.error;
}
