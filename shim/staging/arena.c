// SPDX-License-Identifier: Apache-2.0
/* arena: see staging/arena.h. */
#include "staging/arena.h"

#include "base/buffer.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/pid.h"
#include "base/process_pages.h"
#include "base/sys.h"
#include "files/workers.h"
#include "foreign/claim.h"
#include "format/staging_dir.h"
#include "staging/registry.h"
#include "staging/takeover.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/vfs.h>

/* Opens the staging directory; makes it if it is missing.  Descriptor or -errno. */
static int open_dir(const char *dir)
{
	struct statx st;
	int fd, made, r;

	made = sys.mkdirat(AT_FDCWD, dir, 0700);
	if (made < 0 && made != -EEXIST)
		return made;
	fd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0 && (st.stx_uid != sys_geteuid() || (st.stx_mode & 022)))
		r = -EPERM;
	if (r < 0) {
		sys.close(fd);
		return r;
	}
	if (made == 0)
		staging_dir_made(fd, dir);
	return fd;
}

static void fill_header(struct arena_header *h, const struct rule *rule, const struct origin *origin,
                        uint64_t ino)
{
	h->magic = ARENA_MAGIC;
	h->version = h->pages_bytes ? ARENA_VERSION_PAGES : ARENA_VERSION;
	h->origin = *origin;
	h->uid = sys_geteuid();
	h->gid = sys_getegid();
	h->pid = sys_getpid();
	h->pid_start = pid_start_time(h->pid);
	h->ino_low = (uint32_t)ino;
	h->ino_high = (uint32_t)(ino >> 32);
	h->live.journal_next = 1;
	log_format(h->rule, sizeof h->rule, "%s", rule->name);
	if (sys_read_file("/proc/self/comm", h->program, sizeof h->program) > 0) {
		char *end = strchr(h->program, '\n');

		if (end)
			*end = '\0';
	}
	h->checksum = arena_header_checksum(h);
}

/* Creates "<pid>-<rule>-<time>.arena" in the directory, locked before any process can see it complete.
 * Recovery orders arenas by that time.  It is the wall clock's: other clocks begin anew with each boot. */
static int create_file(struct arena *a, int dirfd, const struct rule *rule)
{
	for (unsigned attempt = 0; attempt < 100; attempt++) {
		int fd, r;

		log_format(a->name, sizeof a->name, "%d-%s-%llx" ARENA_SUFFIX, (int)sys_getpid(), rule->name,
		           (unsigned long long)((uint64_t)sys_wall_ns() + attempt));
		/* First, so that a kill in between leaves no arena that the registry does not know. */
		registry_note(a);
		fd = sys.openat(dirfd, a->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		if (fd == -EEXIST)
			continue;
		if (fd < 0)
			return fd;
		fd = internal_fd_raise(fd);
		if (fd < 0)
			return fd;
		r = claim_hold(fd);
		if (r == 0 && sys_still_linked(fd))
			return fd;
		/* Before it was locked, a recoverer took the still empty file for a dead arena and removed
		 * it.  Bytes staged in it would die with this process. */
		internal_fd_close(fd);
	}
	return -EEXIST;
}

/*
 * A file system that never writes in place needs new space whenever a mapped page is written again.  On a
 * full disk that is SIGBUS, whatever was allocated.  An overlay does not tell what is below it.  But it
 * passes on the request not to copy, which only such file systems know.
 */
static bool copies_on_write(int fd)
{
	enum { NOCOW = 0x00800000, SET_FLAGS = 0x40086602, OVERLAY = 0x794c7630 };
	int flags = NOCOW;
	struct statfs st;

	if (sys_raw(SYS_fstatfs, fd, (long)&st, 0, 0, 0, 0) < 0)
		return false;
	return sys_copies_on_write((unsigned)st.f_type) ||
	       (st.f_type == OVERLAY && sys_raw(SYS_ioctl, fd, SET_FLAGS, (long)&flags, 0, 0, 0) == 0);
}

static void link_free_blocks(struct arena *a)
{
	a->free_blocks = NULL;
	for (uint32_t i = a->block_count; i-- > 0;) {
		struct block_run *run = &a->runs[i];

		run->meta = &a->blocks[i];
		run->index = i;
		run->next = a->free_blocks;
		a->free_blocks = run;
	}
	a->free_count = a->block_count;
}

static void unmap(const struct arena *a)
{
	/* the place stays reserved */
	if (a->placed)
		sys.mmap(a->header, a->total_bytes, PROT_NONE,
		         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	else
		sys.munmap(a->header, a->total_bytes);
}

/* Without the memory of the overlay. */
static size_t block_runs_bytes(const struct arena_header *geometry)
{
	return pages_round_up(sizeof(struct block_run) * geometry->block_count);
}

size_t arena_runs_bytes(const struct arena_header *geometry)
{
	struct pages_layout l;
	uint64_t at;

	return block_runs_bytes(geometry) + (arena_pages(geometry, &l, &at) ? pages_memory(&l) : 0);
}

enum { ORDERED_PAGES_MOST = 64 << 20 };

bool arena_rule_geometry(const struct rule *rule, struct arena_header *out)
{
	const struct settings *set = &rule->set;
	/* an ordered file has no blocks */
	uint64_t pages = config_orders(set) ? set->mem_bytes - set->mem_bytes / 8 : 0;

	/* the log has room for all of them, and is written as a whole when it is made */
	if (pages > ORDERED_PAGES_MOST)
		pages = ORDERED_PAGES_MOST;

	/* so much of it, or less where eight blocks need more than the rest */
	while (!arena_geometry(set->mem_bytes, set->block_bytes, pages, out))
		if ((pages /= 2) == 0)
			return false;
	return true;
}

static void init_pages(struct arena *a, const struct arena_header *geometry)
{
	struct pages_layout l;
	uint64_t at;

	if (arena_pages(geometry, &l, &at))
		pages_init(&a->pages, &l, (uint8_t *)a->header + at,
		           (uint8_t *)a->runs + block_runs_bytes(geometry));
}

/* The arena's file, or -errno.  Nothing is read ahead: what has not been used is holes, and a device that
 * reads megabytes ahead would have the kernel clear as much memory for the first byte. */
static void *map_shared(void *at, uint64_t bytes, int fd)
{
	void *map = sys.mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd, 0);

	if (!sys_is_error(map))
		sys_raw(SYS_madvise, (long)map, (long)bytes, MADV_RANDOM, 0, 0, 0);
	return map;
}

static int map_file(struct arena *a, const struct arena_header *geometry, const struct arena_place *place)
{
	void *map = map_shared(place->map, geometry->total_bytes, a->fd);
	size_t runs_bytes = arena_runs_bytes(geometry);
	void *runs = place->runs;

	if (sys_is_error(map))
		return (int)(intptr_t)map;
	a->placed = place->map != NULL;
	a->header = map;
	a->total_bytes = geometry->total_bytes;
	if (!runs)
		runs = sys.mmap(NULL, runs_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (sys_is_error(runs)) {
		unmap(a);
		return (int)(intptr_t)runs;
	}
	/* (the overlay clears its memory as it takes it) */
	memset(runs, 0, block_runs_bytes(geometry));
	a->runs = runs;
	a->runs_bytes = runs_bytes;
	a->block_bytes = geometry->block_bytes;
	a->block_count = geometry->block_count;
	a->entry_count = geometry->entry_count;
	a->blocks = (struct arena_block *)(void *)((uint8_t *)map + geometry->blocks_at);
	a->entries = (uint8_t *)map + geometry->entries_at;
	a->data = (uint8_t *)map + geometry->data_at;
	link_free_blocks(a);
	init_pages(a, geometry);
	return 0;
}

int arena_create(struct arena *a, const char *dir, const struct rule *rule)
{
	return arena_create_at(a, dir, rule, &(struct arena_place){0});
}

int arena_join(const struct arena *a)
{
	BUFFER(char, path);
	struct statx st;
	void *map;
	int fd, r;

	log_format(path, BUFFER_BYTES, "%s/%s", a->dir, a->name);
	fd = sys.openat(AT_FDCWD, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	fd = internal_fd_raise(fd);
	if (fd < 0)
		return fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r == 0 && (st.stx_ino != a->ino || sys_dev_of(&st) != a->dev))
		r = -ESTALE;
	if (r == 0)
		r = claim_hold(fd);
	if (r == 0 && !sys_still_linked(fd))
		r = -ESTALE; /* recovered in between */
	if (r == 0) {
		map = map_shared(a->header, a->total_bytes, fd);
		r = sys_is_error(map) ? (int)(intptr_t)map : 0;
	}
	if (r == 0) {
		claim_note_own(a->name);
		return fd;
	}
	internal_fd_close(fd);
	return r;
}

int arena_create_at(struct arena *a, const char *dir, const struct rule *rule,
                    const struct arena_place *place)
{
	enum { REMOVED_MAX = 100 };
	struct arena_header geometry = {0};
	struct sys_quiet quiet;
	struct origin origin;
	struct statx st;
	int dirfd, r;

	if (!arena_rule_geometry(rule, &geometry))
		return -EINVAL;
	memset(a, 0, sizeof *a);
	a->fd = -1;
	a->rule = rule;
	log_format(a->dir, sizeof a->dir, "%s", dir);
	for (int attempt = 0;; attempt++) {
		dirfd = open_dir(dir);
		a->fd = dirfd < 0 ? dirfd : create_file(a, dirfd, rule);
		/* another process that ended may have removed the directory, which was still empty */
		if (a->fd != -ENOENT || attempt == REMOVED_MAX)
			break;
		if (dirfd >= 0)
			sys.close(dirfd);
	}
	if (a->fd < 0) {
		if (dirfd >= 0)
			sys.close(dirfd);
		return a->fd;
	}
	kill_step();
	/* allocated now, so that a full disk cannot become SIGBUS later */
	r = copies_on_write(a->fd) ? ARENA_COPIES : origin_here(a->fd, &origin);
	sys_quiet_begin(&quiet);
	if (r == 0)
		r = sys.fallocate(a->fd, 0, 0, (off_t)geometry.total_bytes);
	sys_quiet_end(&quiet);
	if (r == 0)
		r = sys.statx(a->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0)
		r = map_file(a, &geometry, place);
	if (r < 0) {
		sys.unlinkat(dirfd, a->name, 0);
		internal_fd_close(a->fd);
		sys.close(dirfd);
		staging_dir_remove(dir);
		return r;
	}
	a->dev = sys_dev_of(&st);
	a->ino = st.stx_ino;
	a->uid = sys_geteuid();
	a->gid = sys_getegid();
	claim_note_own(a->name);
	a->gated = takeover_possible(a->fd);
	kill_step();
	geometry.magic = 0;
	memcpy(a->header, &geometry, sizeof geometry);
	fill_header(a->header, rule, &origin, a->ino);
	kill_step();
	sys.close(dirfd);
	return 0;
}

void arena_forget(struct arena *a, int fd)
{
	claim_forget_own(a->name);
	if (fd < 0) {
		sys.munmap(a->header, a->total_bytes);
		sys.munmap(a->runs, a->runs_bytes);
		return;
	}
	sys.mmap(a->header, a->total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
	sys_make_private(a->runs, a->runs_bytes);
}

static void close_all(struct arena *a)
{
	claim_forget_own(a->name);
	unmap(a);
	if (!a->placed)
		sys.munmap(a->runs, a->runs_bytes);
	internal_fd_close(a->fd);
	a->header = NULL;
	a->fd = -1;
}

struct removal {
	const struct arena *a;
	int r;
};

static void remove_name(void *ctx)
{
	struct removal *removal = ctx;
	int dirfd = sys.openat(AT_FDCWD, removal->a->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);

	kill_step();
	removal->r = dirfd;
	if (dirfd >= 0) {
		removal->r = sys.unlinkat(dirfd, removal->a->name, 0);
		sys.close(dirfd);
	} else if (dirfd == -EMFILE || dirfd == -ENFILE) {
		/* (closing the arena's descriptor may not help: it may lie beyond the limit) */
		BUFFER(char, path);

		if (log_format(path, BUFFER_BYTES, "%s/%s", removal->a->dir, removal->a->name) + 1 <
		    BUFFER_BYTES)
			removal->r = sys.unlinkat(AT_FDCWD, path, 0);
	}
}

static void remove_dir(void *dir) { staging_dir_remove(dir); }

void arena_destroy(struct arena *a)
{
	struct removal removal = {.a = a};
	int removed;

	workers_apart(remove_name, &removal);
	removed = removal.r;
	/* The process has given up the rights with which the arena was made.  The next process that has them
	 * removes the empty file. */
	if (removed < 0 && a->fd >= 0)
		sys.ftruncate(a->fd, 0);
	kill_step();
	close_all(a);
	workers_apart(remove_dir, a->dir);
}

struct block_run *arena_block_take(struct arena *a)
{
	struct block_run *run;

	lock_take(&a->lock, LOCK_ARENA);
	run = a->free_blocks;
	if (run) {
		/* first, so that the block can be found if this process dies here */
		run->taker = family_me + 1;
		atomic_signal_fence(memory_order_seq_cst);
		a->free_blocks = run->next;
		run->next = NULL;
		atomic_fetch_sub_explicit(&a->free_count, 1, memory_order_relaxed);
	}
	lock_drop(&a->lock, LOCK_ARENA);
	return run;
}

/* LOCK_ARENA held. */
static void put_free(struct arena *a, struct block_run *run)
{
	run->next = a->free_blocks;
	atomic_signal_fence(memory_order_seq_cst);
	a->free_blocks = run;
	atomic_signal_fence(memory_order_seq_cst);
	run->taker = 0;
	atomic_fetch_add_explicit(&a->free_count, 1, memory_order_relaxed);
}

void arena_block_free(struct arena *a, struct block_run *run)
{
	/* (a block that is in no list has a taker, see arena_reclaim_blocks) */
	run->taker = family_me + 1;
	/* owner first: from now on recovery does not look at the rest of the block */
	atomic_store_explicit(&run->meta->owner, 0, memory_order_release);
	kill_step();
	run->stream = NULL;
	/* It stays sealed: a write that was interrupted before it read the commit word finds that it may not
	 * publish. */
	if (run->lost) {
		atomic_fetch_add(&a->lost, 1);
		return;
	}
	atomic_store_explicit(&run->meta->commit, 0, memory_order_release);
	lock_take(&a->lock, LOCK_ARENA);
	put_free(a, run);
	lock_drop(&a->lock, LOCK_ARENA);
}

static bool is_free(const struct arena *a, const struct block_run *run)
{
	for (const struct block_run *r = a->free_blocks; r; r = r->next)
		if (r == run)
			return true;
	return false;
}

PROCESS_CODE void arena_reclaim_blocks(struct arena *a, const struct family_set *dead)
{
	uint32_t count = 0;

	lock_take(&a->lock, LOCK_ARENA);
	for (uint32_t i = 0; i < a->block_count; i++) {
		struct block_run *run = &a->runs[i];

		if (run->taker && family_set_has(dead, run->taker - 1) && run->meta->owner == 0 &&
		    !run->lost && !is_free(a, run))
			put_free(a, run);
	}
	/* a process may have died between the list and its count */
	for (const struct block_run *r = a->free_blocks; r; r = r->next)
		count++;
	atomic_store(&a->free_count, count);
	lock_drop(&a->lock, LOCK_ARENA);
	arena_blocks_freed(a, count);
}

void arena_free_entry_blocks(struct arena *a, uint32_t entry)
{
	uint32_t freed = 0;

	for (uint32_t i = 0; i < a->block_count; i++) {
		if (a->runs[i].meta->owner != entry + 1)
			continue;
		a->runs[i].flushed = true;
		arena_block_free(a, &a->runs[i]);
		freed++;
	}
	arena_blocks_freed(a, freed);
}

void arena_blocks_freed(struct arena *a, uint32_t count)
{
	atomic_fetch_add(&a->freed_events, 1);
	if (atomic_load(&a->waiters))
		sys_futex_wake((uint32_t *)&a->freed_events, (int)count);
}

/*
 * The way from the staging directory up to the directory that it and the path have in common, and from there
 * down.  A volume that has both may be mounted elsewhere later.
 */
static void name_from_staging(const struct arena *a, struct arena_entry *s)
{
	size_t common = 0, i = 0;

	for (; a->dir[i] && a->dir[i] == s->path[i]; i++)
		if (a->dir[i] == '/')
			common = i;
	s->below = (uint16_t)(common + 1);
	s->up = 0;
	for (i = common; a->dir[i]; i++)
		if (a->dir[i] == '/' && a->dir[i + 1] && a->dir[i + 1] != '/')
			s->up++;
}

void arena_entry_name(const struct arena *a, uint32_t index, const char *path)
{
	struct arena_entry *s = arena_entry_at(a, index);
	uint32_t used = atomic_exchange(&s->used, 0);

	kill_step();
	memset(s->path, 0, sizeof s->path);
	memcpy(s->path, path, strlen(path));
	s->below = s->up = 0;
	/* (a file on another file system is on another volume, which may be mounted elsewhere by itself) */
	if (s->dev == a->dev)
		name_from_staging(a, s);
	kill_step();
	atomic_store_explicit(&s->used, used, memory_order_release);
}

int arena_entry_take(struct arena *a)
{
	int found = -ENOSPC;

	lock_take(&a->lock, LOCK_ARENA);
	for (uint32_t i = 0; a->entries_used < a->entry_count && i < a->entry_count; i++) {
		struct arena_entry *s = arena_entry_at(a, i);

		/* `taken` reserves the entry; the caller sets `used` when the entry is filled */
		if (s->taken == 0) {
			s->taken = 1;
			a->entries_used++;
			found = (int)i;
			break;
		}
	}
	lock_drop(&a->lock, LOCK_ARENA);
	return found;
}

void arena_entry_free(struct arena *a, uint32_t index)
{
	struct arena_entry *s = arena_entry_at(a, index);

	for (int i = 0; i < COUNT_MAX; i++) {
		atomic_fetch_add_explicit(&a->header->live.counters[i], s->counters[i], memory_order_relaxed);
		s->counters[i] = 0;
	}
	atomic_fetch_add_explicit(&a->header->live.journaled, s->journaled, memory_order_relaxed);
	s->journaled = 0;
	atomic_store_explicit(&s->used, 0, memory_order_release);
	kill_step();
	lock_take(&a->lock, LOCK_ARENA);
	s->taken = 0;
	a->entries_used--;
	lock_drop(&a->lock, LOCK_ARENA);
}
