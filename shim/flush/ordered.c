// SPDX-License-Identifier: Apache-2.0
/* ordered: see flush/ordered.h. */
#include "flush/ordered.h"

#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/workers.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "flush/order_directory.h"
#include "flush/pages_flush.h"
#include "flush/transient.h"
#include "foreign/claim.h"
#include "staging/log_file.h"
#include "staging/order.h"
#include "staging/stage.h"
#include "wal/spare.h"
#include "wal/wal.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

/* Space for all pages in the log's file (wal/spare.h). */
enum spare_state {
	SPARE_NONE,
	SPARE_HELD,
	SPARE_DUE, /* no page may rely on it any more; it is given back at the end of the epoch */
};

/* The log of one arena, in this process. */
struct log {
	struct lock lock;            /* LOCK_ORDER: its holder is the leader */
	struct arena *_Atomic arena; /* NULL: there is none */
	int refused;                 /* -errno: it could not be made */
	struct wal *wal;
	uint64_t dev;
	_Atomic uint32_t spare;  /* enum spare_state */
	_Atomic uint64_t looked; /* when it was last asked whether the disk is nearly full */
	/* The epoch that is being made durable. */
	uint64_t epoch;
	bool pending;         /* it has begun, and is not in the files */
	bool logged;          /* the log has it */
	struct file *gone;    /* a file that is removed with this epoch */
	_Atomic int broken;   /* -errno: a file could not be synced, and needs the log after a power loss */
	_Atomic bool settled; /* no epoch is under way */
	_Atomic bool quiet;   /* on the device no epoch counts, and none is under way */
	struct file **cut;    /* the files that it consists of; room for all entries of the arena */
	uint32_t count;
	struct transient names;
	struct order_directory directory;
	bool voids; /* the leader is about to void the log */
	/* when an epoch must have told of names that came, sys_now_ns(), even if no file is written; 0: none
	 */
	_Atomic uint64_t due;
};
static struct log logs[FILE_ARENAS];

/* By rule: the kernel has changes that may not be durable and are in no log, on the file system with this
 * device number; 0: none. */
#define ANYWHERE UINT64_MAX
static _Atomic uint64_t loose[CONFIG_RULES_MAX];
/* By rule: such changes may come at any time. */
static _Atomic bool always_loose[CONFIG_RULES_MAX];
static _Atomic bool ended;
/* Logs that exist: without one no barrier has work. */
static _Atomic uint32_t log_count;

static struct log *log_of(const struct arena *a) { return &logs[file_arena_index(a)]; }
static _Atomic uint64_t *loose_of(const struct rule *rule) { return &loose[rule - live_config->rules]; }

/* ---- the log's file ---- */

/* Each frame once, the records of all files, and each batch rounded up. */
static uint64_t log_bytes(const struct arena *a)
{
	uint64_t records = (uint64_t)a->entry_count * (ARENA_PATH_MAX + 256) + a->pages.frame_count * 16ull;
	uint64_t batches = a->pages.frame_count / WAL_IMAGES_MAX + a->entry_count / 4 +
	                   records / (WAL_HEAD_MAX - 2 * ARENA_PATH_MAX) + 2;
	uint64_t bytes =
		WAL_BATCHES_AT + WAL_PAGE_BYTES * (uint64_t)a->pages.frame_count + batches * WAL_HEAD_MAX;

	return bytes < WAL_BYTES_MIN ? WAL_BYTES_MIN : bytes;
}

/* The pages, and what the file system needs to find them. */
static uint64_t spare_bytes(const struct arena *a)
{
	return pages_round_up(WAL_PAGE_BYTES * (uint64_t)a->pages.frame_count * 65 / 64 + (64 << 10));
}

static size_t memory_bytes(const struct arena *a)
{
	return pages_round_up(sizeof(struct wal)) +
	       pages_round_up(a->entry_count * sizeof *((struct log *)NULL)->cut);
}

static int fill(struct log *l, struct wal *w, struct arena *a, int fd)
{
	struct sys_quiet quiet; /* RLIMIT_FSIZE of the program does not apply to the log */
	struct origin origin;
	uint8_t id[16];
	int r = (int)sys_raw(SYS_getrandom, (long)id, sizeof id, 0, 0, 0, 0) == (int)sizeof id ? 0 : -EIO;

	if (r == 0)
		r = claim_hold(fd);
	if (r == 0)
		r = origin_here(fd, &origin);
	if (r == 0 && !log_file_has_disk(fd))
		r = -EOPNOTSUPP;
	if (r == 0 && !sys_still_linked(fd))
		r = -ESTALE; /* a recovery has removed the empty file as a dead process's */
	if (r < 0)
		return r;
	sys_quiet_begin(&quiet);
	r = wal_make(w, fd, log_bytes(a), id, &origin);
	l->dev = origin.dev;
	atomic_store(&l->spare, r == 0 && spare_take(fd, spare_bytes(a)) == 0 ? SPARE_HELD : SPARE_NONE);
	sys_quiet_end(&quiet);
	if (r == 0)
		r = log_file_sync_names(a);
	return r;
}

static const char *refusal(int error)
{
	switch (error) {
	case -EOPNOTSUPP: return "the file system has no disk of its own";
	case -EINVAL: return "no O_DIRECT there";
	case -ENOSPC: return "no space";
	default: return "it cannot be made";
	}
}

static int make(struct log *l, struct arena *a)
{
	uint8_t *memory;
	int fd = log_file_open(a, O_CREAT | O_EXCL), r;

	if (fd < 0)
		return fd;
	memory = sys.mmap(NULL, memory_bytes(a), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r = sys_is_error(memory) ? -ENOMEM : fill(l, (struct wal *)(void *)memory, a, fd);
	if (r < 0) {
		log_file_remove(a);
		internal_fd_close(fd);
		if (!sys_is_error(memory))
			sys.munmap(memory, memory_bytes(a));
		return r;
	}
	l->wal = (struct wal *)(void *)memory;
	l->cut = (struct file **)(void *)(memory + pages_round_up(sizeof(struct wal)));
	l->count = 0;
	l->epoch = 0;
	l->pending = l->logged = false;
	atomic_store(&l->quiet, true);
	atomic_store(&l->settled, true);
	atomic_store(&l->broken, 0);
	l->gone = NULL;
	transient_reset(&l->names);
	order_directory_reset(&l->directory);
	atomic_store(&order_of(a)->epoch, 1);
	order_begin(a);
	atomic_store(&a->header->live.order.log_bytes, log_bytes(a));
	atomic_store(&l->arena, a);
	/* what this process, or a program before it, has left to the kernel */
	ordered_passed(a->rule, a->rule->set.staging[0] ? 0 : a->dev);
	atomic_fetch_add(&log_count, 1);
	return 0;
}

int ordered_ready(struct arena *a)
{
	struct log *l = log_of(a);
	int r;

	if (atomic_load(&ended))
		return -ECHILD;
	if (atomic_load(&l->arena) == a)
		return 0;
	if (l->refused)
		return l->refused;
	r = make(l, a);
	if (r == -EMFILE || r == -ENFILE || r == -ESTALE || r == -EWOULDBLOCK)
		return -EMFILE; /* a later file may succeed */
	l->refused = r;
	if (r < 0)
		log_warn("rule %s: no log in %s: %s (error %d); its files are bypassed, and synced by "
		         "themselves",
		         a->rule->name, a->dir, refusal(r), -r);
	return r;
}

bool ordered_has_spare(const struct file *f, int fd, uint64_t end)
{
	enum { LOOK_NS = 20000000 };
	struct log *l = log_of(f->arena);
	uint32_t state = SPARE_HELD;
	uint64_t now;

	if (!file_is_ordered(f) || !f->space.plain || f->rule->set.prealloc_mode != PREALLOC_KEEP ||
	    f->dev != l->dev || end > SPARE_OFFSET_MOST || atomic_load(&l->arena) != f->arena ||
	    atomic_load(&l->spare) != SPARE_HELD)
		return false;
	now = sys_now_coarse_ns();
	if (now - atomic_load(&l->looked) < LOOK_NS)
		return true;
	atomic_store(&l->looked, now);
	if (!spare_is_due(fd, spare_bytes(f->arena)))
		return true;
	atomic_compare_exchange_strong(&l->spare, &state, SPARE_DUE);
	return false;
}

/* ---- an epoch ---- */

struct visit {
	struct log *log;
	int r;
};

/* The kernel may have bytes of f from before the attach. */
static int sync_fresh(struct file *f)
{
	int fd = flush_writable_fd(f), r;

	if (!f->order.fresh)
		return 0;
	if (fd < 0)
		return -EBADF;
	r = f->sync.full ? sys.fsync(fd) : sys.fdatasync(fd);
	if (r == 0)
		f->order.fresh = f->sync.full = false;
	return r;
}

/* The program has no descriptor of f, not even one that reads. */
static bool is_closed(const struct file *f)
{
	return flush_is_kept(f) && file_local(f)->refs == 1 && f->refs == 1;
}

/* Nobody but the program's removal knows f: no epoch, no descriptor, and the kernel has nothing of it. */
static bool is_removable(const struct log *l, const struct file *f)
{
	return f->refs != 0 && f->mode == FILE_ATTACHED && f->arena == atomic_load(&l->arena) &&
	       file_is_paged(f) && f->order.fresh && f->ksize == 0 && is_closed(f) && !f->shared &&
	       !overlay_is_cut(&f->overlay) && !f->needs_repair && !f->flush.error;
}

/* File lock held: f's part of the epoch. */
static int take_cut(struct log *l, struct file *f)
{
	int r = 0;

	/* it may never come to the removal, and no log has the bytes then */
	if (l->voids)
		f->order.removed = false;
	if (f == l->gone) {
		f->order.removed = is_removable(l, f);
		if (!f->order.removed)
			l->gone = NULL;
	}
	if (f->mode != FILE_ATTACHED || f->arena != l->arena || !file_is_paged(f) || f->order.removed)
		return 0;
	stage_count(f, f->bytes);
	f->bytes = 0;
	/* (a file that was changed in a later epoch has its cut) */
	if (f->order.epoch <= l->epoch && !overlay_is_cut(&f->overlay) && !f->order.behind)
		r = overlay_cut(&f->overlay, false);
	if (r < 0 || (!overlay_is_cut(&f->overlay) && !f->order.behind))
		return r;
	l->cut[l->count++] = f;
	return sync_fresh(f);
}

static void visit_cut(struct file *f, void *ctx)
{
	struct visit *v = ctx;

	if (v->r < 0 || f->rule != atomic_load(&v->log->arena)->rule)
		return;
	file_lock_again(f);
	v->r = take_cut(v->log, f);
	file_drop(f);
	kill_step();
}

static const struct arena_entry *entry_of(const struct file *f)
{
	return arena_entry_at(f->arena, (uint32_t)f->entry);
}

static int put_file(struct wal *w, uint32_t number, const struct file *f)
{
	const struct overlay *o = &f->overlay;
	struct overlay_piece piece;
	uint32_t cursor = 0;
	int r = wal_put_name(w, number, entry_of(f));

	if (r == 0)
		r = wal_put_size(w, number,
		                 &(struct wal_size){.size = o->cut.size,
		                                    .lowest = o->cut.lowest,
		                                    .mtime_sec = o->cut.mtime.tv_sec,
		                                    .mtime_nsec = (uint32_t)o->cut.mtime.tv_nsec});
	while (r == 0 && overlay_cut_piece(o, &cursor, &piece))
		r = wal_put_page(w, number, piece.offset / PAGES_BYTES, piece.data, (uint32_t)piece.bytes);
	return r;
}

/* No file lock is needed: nobody but the leader ends a cut. */
static int put_all(struct log *l)
{
	int r = 0;

	wal_begin(l->wal);
	for (uint32_t i = 0; i < l->count && r == 0; i++)
		r = put_file(l->wal, i, l->cut[i]);
	if (r < 0)
		return r;
	transient_put(&l->names, l->wal);
	r = wal_commit(l->wal);
	if (r < 0)
		l->names.stated = false;
	return r;
}

/* What is not in a log, and came before this epoch, is durable before it. */
static int sync_loose(struct log *l)
{
	const struct arena *a = atomic_load(&l->arena);
	uint64_t dev = atomic_exchange(loose_of(a->rule), 0);
	int r = 0;

	if (atomic_load(&always_loose[a->rule - live_config->rules]))
		dev = ANYWHERE;
	if (dev == 0) {
		r = order_directory_sync(&l->directory);
		if (r != -ESTALE)
			return r;
		dev = a->dev;
		r = 0;
	}
	order_directory_forget(&l->directory);
	if (dev == a->dev)
		r = (int)sys_raw(SYS_syncfs, l->wal->fd, 0, 0, 0, 0, 0);
	else
		sys_raw(SYS_sync, 0, 0, 0, 0, 0, 0);
	if (r < 0)
		atomic_store(loose_of(a->rule), ANYWHERE);
	return r;
}

/* The device may not know of names that all lie in the directory that the epoch syncs. */
static bool is_in_directory(struct log *l)
{
	for (uint32_t i = 0; i < l->names.count; i++) {
		const struct transient_name *n = &l->names.names[i];

		if (n->there && n->unsynced && !order_directory_note_name(&l->directory, n->path))
			return false;
	}
	return true;
}

/* Names, too.  `states`: the epoch is to say which transient names no file has. */
static int sync_names(struct log *l, bool states)
{
	const struct arena *a = atomic_load(&l->arena);
	int r;

	transient_look(&l->names);
	if (!is_in_directory(l))
		ordered_passed(a->rule, a->dev);
	r = sync_loose(l);
	if (r == 0)
		transient_synced(&l->names);
	return r == 0 && states ? transient_list(&l->names, l->wal) : r;
}

/* True if there was one. */
static bool give_spare(struct log *l)
{
	bool gives = atomic_exchange(&l->spare, SPARE_NONE) != SPARE_NONE && spare_give(l->wal->fd) == 0;

	kill_step();
	return gives;
}

/* File lock held. */
static int flush_cut(struct file *f)
{
	struct log *l = log_of(f->arena);
	int r = overlay_is_cut(&f->overlay) ? pages_flush_cut(f) : 0;

	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	return give_spare(l) ? pages_flush_cut(f) : r;
}

/* The cut goes to the file.  Then the file is synced, without its lock. */
static int write_back(struct file *f)
{
	int fd, r;

	file_lock_again(f);
	r = flush_cut(f);
	f->order.behind = r == 0;
	fd = flush_writable_fd(f);
	if (r == 0 && fd < 0)
		r = -EBADF;
	if (r < 0) {
		file_drop(f);
		return r;
	}
	flush_token_take(f);
	f->flush.program_fd = true; /* a close of it waits */
	file_drop(f);
	kill_step();
	r = sys.fdatasync(fd);
	kill_step();
	/* the kernel may have dropped what it could not write, and another sync would say nothing of it */
	if (r < 0)
		atomic_store(&log_of(f->arena)->broken, r);
	atomic_store(&f->flush.io_done, 1);
	file_lock_again(f);
	flush_token_give(f);
	file_drop(f);
	return r;
}

/* The epoch is over for f, with this result. */
static void leave(struct file *f, int r)
{
	file_lock_again(f);
	if (r < 0) {
		if (f->flush.error == 0)
			log_warn("flush failed: error %d; the bytes stay staged", -r);
		f->flush.error = r;
		f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	} else {
		f->flush.error = 0;
		f->order.behind = false;
		if (overlay_is_changed(&f->overlay))
			f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
		else
			pages_flush_end(f);
	}
	file_drop(f);
}

/* Each file of the epoch: with r < 0 it failed as a whole, else the log has it. */
static int finish_all(struct log *l, int r)
{
	int all = r;

	for (uint32_t i = 0; i < l->count; i++) {
		int one = r < 0 ? r : write_back(l->cut[i]);

		if (one < 0 && all == 0)
			all = one;
		leave(l->cut[i], one);
	}
	return all;
}

static void visit_broken(struct file *f, void *ctx)
{
	struct log *l = ctx;

	file_lock_again(f);
	if (f->mode == FILE_ATTACHED && f->arena == atomic_load(&l->arena) && file_is_paged(f)) {
		f->flush.error = atomic_load(&l->broken);
		f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	}
	file_drop(f);
}

/* Nothing goes to the files any more. */
static int fail_staged(struct log *l)
{
	file_for_each(visit_broken, l);
	return atomic_load(&l->broken);
}

/* All epochs are in the files, durably. */
static int empty_log(struct log *l)
{
	bool idle = !atomic_load(&order_of(atomic_load(&l->arena))->changed), named = l->names.count > 0;
	/* (when idle, nothing may come that tells the device) */
	int r = idle && !named ? wal_void(l->wal) : wal_empty(l->wal, idle);

	atomic_store(&l->quiet, r == 0 && idle && !named);
	return r;
}

/* The log has the epoch.  (The figures are for `fastwrite status`.) */
static void note_durable(struct log *l)
{
	struct arena *a = atomic_load(&l->arena);
	uint64_t bytes = l->wal->end - WAL_BATCHES_AT;

	l->logged = true;
	order_durable(a);
	atomic_store(&a->header->live.order.epochs, l->epoch);
	if (bytes > atomic_load(&a->header->live.order.largest))
		atomic_store(&a->header->live.order.largest, bytes);
}

/*
 * The log's lock held, no file lock: everything staged up to now becomes durable in the files.  An epoch that
 * failed is tried again first, as it was.  `states`: the log says of transient names afterwards what is so.
 */
static int end_epoch(struct log *l, bool states)
{
	struct order *o = order_of(atomic_load(&l->arena));
	struct visit v = {.log = l};
	int r;

	if (atomic_load(&l->broken) < 0)
		return fail_staged(l);
	atomic_store(&l->quiet, false);
	atomic_store(&l->settled, false);
	atomic_store(&l->due, 0);
	if (!l->pending) {
		order_begin(atomic_load(&l->arena));
		l->epoch = atomic_fetch_add(&o->epoch, 1);
		l->logged = false;
		l->pending = true;
	}
	kill_step();
	/* (see order_change) */
	atomic_thread_fence(memory_order_seq_cst);
	l->count = 0;
	file_for_each(visit_cut, &v);
	r = v.r;
	if (r == 0 && !l->logged)
		r = sync_names(l, states);
	if (r == 0 && !l->logged && (l->count > 0 || (states && transient_is_due(&l->names))))
		r = put_all(l);
	if (r == 0 && !l->logged)
		note_durable(l);
	r = finish_all(l, r);
	if (r < 0)
		return r;
	l->pending = false;
	atomic_store(&l->settled, true);
	if (atomic_load(&l->spare) == SPARE_DUE)
		give_spare(l);
	return empty_log(l);
}

/* Everything staged before this call. */
static int end_epochs(struct log *l)
{
	bool again, changed;
	int r = 0;

	lock_take(&l->lock, LOCK_ORDER);
	again = l->pending;
	if (atomic_load(&l->arena)) {
		/* (a barrier may wait for its call, which brings names) */
		changed = atomic_load(&order_of(atomic_load(&l->arena))->changed);
		r = end_epoch(l, changed);
		if (r == 0 && again)
			r = end_epoch(l, changed);
	}
	lock_drop(&l->lock, LOCK_ORDER);
	return r;
}

/* ---- drains and barriers ---- */

int ordered_flush(struct file *f)
{
	struct log *l = log_of(f->arena);
	int r;

	signals_harden();
	lock_drop(&f->lock, LOCK_FILE);
	r = end_epochs(l);
	file_lock_again(f);
	return r;
}

int ordered_drain(struct file *f)
{
	const struct arena *a = f->arena;
	int r = 0;

	/* (a handler never interrupts the owner of this lock: see stage_fast) */
	if (f->nested)
		return -EDEADLK;
	signals_harden();
	f->order.removed = false;
	f->order.draining++;
	while (r == 0 && f->mode == FILE_ATTACHED && f->arena == a && file_is_paged(f)) {
		r = ordered_flush(f);
		/* (another file's error) */
		if (r < 0 && !file_is_paged(f))
			r = 0;
	}
	f->order.draining--;
	return r;
}

static int make_quiet(struct log *l)
{
	int r = 0;

	lock_take(&l->lock, LOCK_ORDER);
	/* a power loss takes what the log says no more: what came and went is on the device before that */
	if (atomic_load(&l->arena) && l->names.count > 0)
		ordered_passed(atomic_load(&l->arena)->rule, atomic_load(&l->arena)->dev);
	l->voids = true;
	for (int tries = 0; r == 0 && atomic_load(&l->arena) && tries < 2; tries++) {
		bool again = l->pending;

		if (tries == 0 || again || atomic_load(&order_of(atomic_load(&l->arena))->changed))
			r = end_epoch(l, false);
	}
	/* (what other threads stage meanwhile comes at the same time as the change) */
	if (r == 0 && atomic_load(&l->arena) && !atomic_load(&l->quiet)) {
		r = wal_void(l->wal);
		l->names.stated = false;
		atomic_store(&l->quiet, r == 0);
	}
	l->voids = false;
	lock_drop(&l->lock, LOCK_ORDER);
	return r;
}

bool ordered_any(void)
{
	for (uint32_t i = 0; live_config && i < live_config->rule_count; i++)
		if (config_orders(&live_config->rules[i].set))
			return !fork_guard_elsewhere();
	return false;
}

/* `done`: offset of what says of a log that it needs nothing, unless something has changed since. */
static int barrier(const struct rule *rule, size_t done, int (*act)(struct log *l))
{
	sys_sigset signals;
	int all = 0;

	if (atomic_load(&log_count) == 0 || fork_guard_elsewhere())
		return 0;
	signals = signals_hold();
	for (int i = 0; i < FILE_ARENAS; i++) {
		struct log *l = &logs[i];
		const struct arena *a = atomic_load(&l->arena);
		const _Atomic bool *is_done = (const _Atomic bool *)(const void *)((const char *)l + done);
		int r;

		if (!a || (rule && a->rule != rule) ||
		    (atomic_load(is_done) && !atomic_load(&order_of(a)->changed)))
			continue;
		r = act(l);
		if (r < 0)
			all = r;
	}
	signals_release(signals);
	return all;
}

int ordered_barrier(const struct rule *rule)
{
	return barrier(rule, offsetof(struct log, quiet), make_quiet);
}

void ordered_passed(const struct rule *rule, uint64_t dev)
{
	uint64_t before = 0;

	if (rule && !atomic_compare_exchange_strong(loose_of(rule), &before, dev ? dev : ANYWHERE) &&
	    before != dev)
		atomic_store(loose_of(rule), ANYWHERE);
}

void ordered_outside(struct file *f)
{
	if (!file_is_ordered(f))
		return;
	(void)ordered_barrier(f->rule); /* (what could not be written stays staged) */
	atomic_store(&f->order.passed, true);
	atomic_store(&always_loose[f->rule - live_config->rules], true);
}

/* ---- names that come and go ---- */

/* The log's lock held: the name, about to be made, or NULL: it is not transient, or the log cannot say so. */
static struct transient_name *create(struct log *l, const char *path)
{
	const struct arena *a = atomic_load(&l->arena);
	int i = a ? transient_find(&l->names, path) : -1;

	if (i < 0)
		return NULL;
	/* (after a barrier, or when its last file went with one) */
	if ((l->pending || !transient_is_stated(&l->names, i)) &&
	    (end_epoch(l, true) < 0 || !transient_is_stated(&l->names, i)))
		return NULL;
	l->names.names[i].there = l->names.names[i].unsynced = true;
	atomic_fetch_add(&l->names.names[i].busy, 1);
	order_changed(a);
	return &l->names.names[i];
}

/* How many logs have files of the rule on this file system; *l: one of them. */
static int logs_of(const struct rule *rule, uint64_t dev, struct log **l)
{
	int count = 0;

	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&logs[i].arena);

		if (!a || a->rule != rule || a->dev != dev)
			continue;
		*l = &logs[i];
		count++;
	}
	return count;
}

struct transient_name *ordered_create(const struct rule *rule, const char *path, uint64_t dev)
{
	struct transient_name *name = NULL;
	bool is_listed = false;
	sys_sigset signals;
	struct log *l;
	int count;

	if (atomic_load(&log_count) == 0 || fork_guard_elsewhere())
		return NULL;
	signals = signals_hold();
	/* (a process that changes its effective user has more: each would have to know) */
	count = logs_of(rule, dev, &l);
	if (count == 1) {
		lock_take(&l->lock, LOCK_ORDER);
		is_listed = transient_find(&l->names, path) >= 0;
		name = create(l, path);
		lock_drop(&l->lock, LOCK_ORDER);
	}
	signals_release(signals);
	/* what a log says of this name must not stay */
	if (!name && (is_listed || count > 1))
		(void)ordered_barrier(rule);
	else if (!name)
		(void)barrier(rule, offsetof(struct log, settled), end_epochs);
	return name;
}

/* The log's lock held, f is removable. */
static struct transient_name *remove_young(struct log *l, struct file *f)
{
	const struct arena *a = atomic_load(&l->arena);
	bool replaced;
	int i = f->dev == a->dev ? transient_add(&l->names, entry_of(f), &replaced) : -1;
	struct transient_name *name = i < 0 ? NULL : &l->names.names[i];

	if (!name)
		return NULL;
	if (replaced)
		ordered_passed(a->rule, a->dev);
	name->there = false;
	atomic_fetch_add(&name->busy, 1);
	f->order.removed = transient_is_stated(&l->names, i);
	if (f->order.removed)
		return name;
	/* the log has to say that the file is gone */
	l->gone = f;
	return name;
}

struct transient_name *ordered_remove(uint64_t dev, uint64_t ino)
{
	struct file *f = file_find(dev, ino);
	const struct arena *a = f ? f->arena : NULL;
	struct transient_name *name = NULL;
	sys_sigset signals;
	struct log *l;

	if (!f || !a || !file_is_ordered(f))
		return NULL;
	l = log_of(a);
	signals = signals_hold();
	lock_take(&l->lock, LOCK_ORDER);
	file_lock_again(f);
	if (!l->pending && f->dev == dev && f->ino == ino && atomic_load(&l->arena) && is_removable(l, f))
		name = remove_young(l, f);
	file_drop(f);
	if (l->gone && (end_epoch(l, true) < 0 || !l->gone)) {
		/* the log says that the file is gone, and it stays: now only recovery can tell what is right
		 */
		if (l->pending && l->logged && l->gone)
			atomic_store(&l->broken, -EIO);
		file_lock_again(f);
		f->order.removed = f->order.removed && atomic_load(&l->broken) < 0;
		file_drop(f);
		ordered_named(name);
		name = NULL;
	}
	l->gone = NULL;
	lock_drop(&l->lock, LOCK_ORDER);
	signals_release(signals);
	return name;
}

static struct log *log_of_name(const struct transient_name *name)
{
	for (int i = 0; i < FILE_ARENAS; i++)
		if (name >= logs[i].names.names && name < logs[i].names.names + WAL_NAMES_MAX)
			return &logs[i];
	return NULL;
}

void ordered_named(struct transient_name *name)
{
	struct log *l = name ? log_of_name(name) : NULL;
	const struct arena *a = l ? atomic_load(&l->arena) : NULL;

	if (!name)
		return;
	atomic_fetch_sub(&name->busy, 1);
	if (!a)
		return;
	/* a barrier has voided the log meanwhile */
	if (!atomic_load(&l->names.stated))
		ordered_passed(a->rule, a->dev);
	if (!name->there)
		return;
	order_changed(a);
	if (atomic_load(&l->due) == 0)
		atomic_store(&l->due, sys_now_ns() + a->rule->set.ordered_ms * 750000ull);
	workers_arm();
}

uint64_t ordered_tend(uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < FILE_ARENAS; i++) {
		uint64_t due = atomic_load(&logs[i].due);

		if (!atomic_load(&logs[i].arena))
			continue;
		if (due && due <= now)
			(void)end_epochs(&logs[i]); /* (what could not be written stays staged) */
		else if (due && due < next)
			next = due;
	}
	return next;
}

void ordered_removed(struct file *f, bool gone)
{
	if (!f->order.removed)
		return;
	f->order.removed = false;
	if (gone && file_is_paged(f) && is_closed(f))
		overlay_detach(&f->overlay);
}

static bool is_epoch_due(const struct rule *rule)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&logs[i].arena);

		if (a && a->rule == rule)
			return atomic_load(&order_of(a)->changed);
	}
	return false;
}

bool ordered_names_follow(const struct rule *rule)
{
	return !atomic_load(loose_of(rule)) || is_epoch_due(rule);
}

bool ordered_directory_follows(const struct rule *rule, uint64_t dev, uint64_t ino, const char *path)
{
	struct log *l;

	/* (directories and links are made unseen) */
	if (logs_of(rule, dev, &l) != 1 || !order_directory_note(&l->directory, dev, ino, path))
		ordered_passed(rule, dev);
	return is_epoch_due(rule);
}

bool ordered_directory_is_known(uint64_t dev, uint64_t ino)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&logs[i].arena);

		if (a && order_directory_note(&logs[i].directory, dev, ino, NULL))
			return is_epoch_due(a->rule);
	}
	return false;
}

int ordered_hold(struct file *f)
{
	int r;

	if (f->nested)
		return -EDEADLK;
	signals_harden();
	f->order.removed = false;
	f->order.draining++;
	do {
		lock_drop(&f->lock, LOCK_FILE);
		r = ordered_barrier(f->rule);
		file_lock_again(f);
	} while (r == 0 && file_is_paged(f));
	if (r < 0)
		f->order.draining--;
	return r;
}

void ordered_hold_end(struct file *f)
{
	atomic_store(&f->order.passed, true);
	ordered_passed(f->rule, f->dev);
	f->order.draining--;
}

void ordered_lock(struct file *f)
{
	struct log *l = log_of(f->arena);

	signals_harden();
	lock_drop(&f->lock, LOCK_FILE);
	lock_take(&l->lock, LOCK_ORDER);
	file_lock_again(f);
}

void ordered_unlock(const struct arena *a) { lock_drop(&log_of(a)->lock, LOCK_ORDER); }

/* ---- the end ---- */

void ordered_close(struct arena *a)
{
	struct log *l = log_of(a);
	struct wal *w;
	bool unsynced;

	l->refused = 0;
	if (atomic_load(&l->arena) != a)
		return;
	lock_take(&l->lock, LOCK_ORDER);
	w = l->wal;
	/* (if this fails the log stays, for recovery) */
	kill_step();
	unsynced = l->names.count > 0 || order_directory_is_unsynced(&l->directory);
	if (unsynced)
		ordered_passed(a->rule, a->dev);
	if (!l->pending && (!unsynced || sync_loose(l) == 0) && wal_void(w) == 0)
		log_file_remove(a);
	transient_reset(&l->names);
	atomic_store(&l->due, 0);
	kill_step();
	internal_fd_close(w->fd);
	sys.munmap(w, memory_bytes(a));
	l->wal = NULL;
	atomic_store(&l->arena, NULL);
	atomic_fetch_sub(&log_count, 1);
	lock_drop(&l->lock, LOCK_ORDER);
}

void ordered_close_all(void)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		struct arena *a = atomic_load(&logs[i].arena);

		/* (what could not be written stays staged, and in the log) */
		if (a && end_epochs(&logs[i]) == 0)
			ordered_close(a);
	}
}

void ordered_end(void) { atomic_store(&ended, true); }
bool ordered_ended(void) { return atomic_load(&ended); }

void ordered_forget(void)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		atomic_store(&logs[i].arena, NULL);
		logs[i].lock.word = 0;
	}
	atomic_store(&log_count, 0);
	atomic_store(&ended, true);
}

bool ordered_move_fd(int fd)
{
	sys_sigset signals = signals_hold();
	bool moved = false;

	for (int i = 0; i < FILE_ARENAS && !moved; i++) {
		struct log *l = &logs[i];

		if (!atomic_load(&l->arena))
			continue;
		lock_take(&l->lock, LOCK_ORDER);
		if (atomic_load(&l->arena) && l->wal->fd == fd) {
			int other = internal_fd_move(fd);

			if (other >= 0)
				l->wal->fd = other;
			moved = other >= 0;
		}
		lock_drop(&l->lock, LOCK_ORDER);
	}
	signals_release(signals);
	return moved;
}
