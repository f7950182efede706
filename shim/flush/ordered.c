// SPDX-License-Identifier: Apache-2.0
/* ordered: see flush/ordered.h. */
#include "flush/ordered.h"

#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/family.h"
#include "files/workers.h"
#include "flush/epoch.h"
#include "flush/fds.h"
#include "flush/order_loose.h"
#include "flush/removal.h"
#include "flush/token.h"
#include "foreign/claim.h"
#include "staging/arenas.h"
#include "staging/log_file.h"
#include "staging/order.h"
#include "wal/spare.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

struct order_log order_logs[FILE_ARENAS];
_Atomic uint32_t order_log_count;
static _Atomic bool ended;
/* What the newest log took to make; after a fork: when the next one may be made, 0 = at once. */
static _Atomic uint64_t made_ns, next_ns;
/* When files of the rule may be staged again; 0 = at once. */
static _Atomic uint64_t shared_ns[CONFIG_RULES_MAX];
enum { PAUSE = 10 }; /* times what a log takes to make and to remove */

/* ---- the log's file ---- */

/* Each frame once, the records of all files, and each batch rounded up; twice: one half is for epochs that
 * wait for a checkpoint. */
static uint64_t log_bytes(const struct arena *a)
{
	enum { EPOCHS = 2 };
	uint64_t records = (uint64_t)a->entry_count * (ARENA_PATH_MAX + 256) + a->pages.frame_count * 16ull;
	uint64_t batches = a->pages.frame_count / WAL_IMAGES_MAX + a->entry_count / 4 +
	                   records / (WAL_HEAD_MAX - 2 * ARENA_PATH_MAX) + 2;
	uint64_t bytes =
		WAL_BATCHES_AT + WAL_PAGE_BYTES * (uint64_t)a->pages.frame_count + batches * WAL_HEAD_MAX;

	return EPOCHS * (bytes < WAL_BYTES_MIN ? WAL_BYTES_MIN : bytes);
}

/* The pages, and what the file system needs to find them. */
static uint64_t spare_bytes(const struct arena *a)
{
	return pages_round_up(WAL_PAGE_BYTES * (uint64_t)a->pages.frame_count * 65 / 64 + (64 << 10));
}

static size_t memory_bytes(const struct arena *a)
{
	return pages_round_up(sizeof(struct wal)) +
	       pages_round_up(a->entry_count * sizeof *((struct order_log *)NULL)->cut);
}

static int fill(struct order_log *l, struct wal *w, struct arena *a, int fd)
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

static int make(struct order_log *l, struct arena *a)
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
	l->voided = 1;
	l->pending = l->logged = false;
	atomic_store(&l->ended_ns, 0);
	l->most = ORDER_LONG;
	atomic_store(&l->quiet, true);
	atomic_store(&l->settled, true);
	atomic_store(&l->broken, 0);
	atomic_store(&l->error, 0);
	l->gone = l->going = NULL;
	l->shortened = 0;
	atomic_store(&l->dropped, false);
	atomic_store(&l->owed, false);
	transient_reset(&l->names);
	order_directory_reset(&l->directory);
	atomic_store(&order_of(a)->epoch, 1);
	order_begin(a);
	atomic_store(&a->header->live.order.log_bytes, log_bytes(a));
	atomic_store(&l->arena, a);
	/* what this process, or a program before it, has left to the kernel */
	ordered_passed(a->rule, a->rule->set.staging[0] ? 0 : a->dev);
	atomic_fetch_add(&order_log_count, 1);
	return 0;
}

int ordered_ready(struct arena *a)
{
	struct order_log *l = order_log_of(a);
	uint64_t begin;
	int r;

	if (atomic_load(&ended))
		return -ECHILD;
	if (atomic_load(&l->arena) == a)
		return 0;
	if (l->refused)
		return l->refused;
	signals_harden();
	begin = sys_now_ns();
	r = make(l, a);
	atomic_store(&made_ns, sys_now_ns() - begin);
	if (arenas_try_later(r) || r == -ESTALE)
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
	struct order_log *l = order_log_of(f->arena);
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

/* ---- drains and barriers ---- */

static int end_all(struct file *f, int (*act)(struct order_log *l))
{
	struct order_log *l = order_log_of(f->arena);
	int r;

	signals_harden();
	lock_drop(&f->lock, LOCK_FILE);
	r = act(l);
	file_lock_again(f);
	return r;
}

static int make_quiet(struct order_log *l)
{
	int r = 0;

	order_lead_begin(l);
	/* a power loss takes what the log says no more: what came and went is on the device before that */
	if (atomic_load(&l->arena))
		epoch_names_pass(l, true);
	l->voids = true;
	for (int tries = 0; r == 0 && atomic_load(&l->arena) && tries < 2; tries++) {
		bool again = l->pending;

		if (tries == 0 || again || atomic_load(&order_of(atomic_load(&l->arena))->changed))
			r = epoch_end(l, false);
	}
	if (r == 0 && atomic_load(&l->arena) && !atomic_load(&l->quiet))
		r = epoch_checkpoint(l);
	/* (what other threads stage meanwhile comes at the same time as the change) */
	if (r == 0 && atomic_load(&l->arena) && !atomic_load(&l->quiet)) {
		r = epoch_void(l);
		l->names.stated = false;
		atomic_store(&l->quiet, r == 0);
		/* (those that came or went beside the sync, while the log still said so) */
		epoch_names_pass(l, true);
	}
	l->voids = false;
	order_lead_end(l);
	return r;
}

bool ordered_holds(const struct file *f)
{
	return file_needs_lease(f) && f->arena && f->order.logged == order_log_of(f->arena)->voided &&
	       !flush_is_nameless(f);
}

int ordered_flush(struct file *f) { return end_all(f, epoch_end_all); }

void ordered_leave_led(struct file *f)
{
	struct order_log *l = order_log_of(f->arena);

	if (f->order.behind && epoch_sync(l, f, flush_writable_fd(f)) < 0)
		log_warn("sync failed: error %d; the log stays", -atomic_load(&l->broken));
	f->order.behind = false;
}

/* File lock held: f leaves the arena a, and the device may not have all of it. */
static bool leaves_behind(const struct file *f, const struct arena *a)
{
	return f->mode == FILE_ATTACHED && f->arena == a && f->order.behind;
}

int ordered_leave(struct file *f)
{
	const struct arena *a = f->arena;

	if (!f->order.behind && !ordered_holds(f))
		return 0;
	if (f->nested)
		return -EDEADLK;
	signals_harden();
	flush_wait_idle(f);
	if (f->mode == FILE_ATTACHED && f->arena == a && ordered_holds(f)) {
		int r = end_all(f, make_quiet);

		if (r < 0)
			return r;
	}
	if (leaves_behind(f, a) && flush_is_nameless(f)) {
		atomic_store(&order_log_of(a)->dropped, true);
		f->order.behind = false;
	}
	if (leaves_behind(f, a))
		(void)end_all(f, epoch_checkpoint_all); /* (it reports an error) */
	if (!leaves_behind(f, a))
		return 0;
	ordered_lock(f);
	flush_wait_idle(f);
	if (leaves_behind(f, a))
		ordered_leave_led(f);
	ordered_unlock(a);
	return 0;
}

int ordered_drain(struct file *f)
{
	const struct arena *a = f->arena;
	int r = 0;

	/* (a handler never interrupts the owner of this lock: see stage_fast) */
	if (f->nested)
		return -EDEADLK;
	signals_harden();
	removal_keep(f);
	file_local(f)->draining++;
	while (r == 0 && f->mode == FILE_ATTACHED && f->arena == a && file_is_paged(f)) {
		r = end_all(f, epoch_checkpoint_all);
		/* (another file's error) */
		if (r < 0 && !file_is_paged(f))
			r = 0;
	}
	file_local(f)->draining--;
	/* (the caller may close the descriptor that the leader uses) */
	if (r < 0)
		flush_wait_idle(f);
	return r;
}

static bool any_rule(void)
{
	for (uint32_t i = 0; live_config && i < live_config->rule_count; i++)
		if (config_orders(&live_config->rules[i].set))
			return true;
	return false;
}

bool ordered_any(void) { return any_rule() && !fork_guard_elsewhere(); }

/* `done`: offset of what says of a log that it needs nothing, unless something has changed since. */
static int barrier(const struct rule *rule, size_t done, int (*act)(struct order_log *l))
{
	sys_sigset signals;
	int all = 0;

	if (atomic_load(&order_log_count) == 0 || fork_guard_elsewhere())
		return 0;
	signals = signals_hold();
	for (int i = 0; i < FILE_ARENAS; i++) {
		struct order_log *l = &order_logs[i];
		const struct arena *a = atomic_load(&l->arena);
		const _Atomic bool *is_done = (const _Atomic bool *)(const void *)((const char *)l + done);
		bool changed;
		int r;

		if (!a || (rule && a->rule != rule))
			continue;
		/* first this one: a leader says that the log is not done, and then that nothing has changed
		 */
		changed = atomic_load(&order_of(a)->changed);
		if (!changed && atomic_load(is_done))
			continue;
		r = act(l);
		if (r < 0)
			all = r;
	}
	signals_release(signals);
	return all;
}

int ordered_settle(const struct rule *rule)
{
	return barrier(rule, offsetof(struct order_log, settled), epoch_end_all);
}

int ordered_barrier(const struct rule *rule)
{
	return barrier(rule, offsetof(struct order_log, quiet), make_quiet);
}

void ordered_passed(const struct rule *rule, uint64_t dev)
{
	if (rule)
		order_loose_note(rule, dev);
}

static void make_due(const struct rule *rule, bool changed)
{
	for (int i = 0; atomic_load(&order_log_count) != 0 && i < FILE_ARENAS; i++) {
		struct order_log *l = &order_logs[i];
		const struct arena *a = atomic_load(&l->arena);

		if (!a || a->rule != rule)
			continue;
		if (changed)
			order_changed(a);
		if (atomic_load(&l->due) == 0)
			atomic_store(&l->due, sys_now_ns() + rule->set.ordered_ms * 750000ull);
		workers_arm();
	}
}

void ordered_due(const struct rule *rule) { make_due(rule, false); }
void ordered_wrote_much(const struct rule *rule) { make_due(rule, true); }

void ordered_outside(struct file *f)
{
	if (!file_is_ordered(f))
		return;
	(void)ordered_barrier(f->rule); /* (what could not be written stays staged) */
	atomic_store(&f->order.passed, true);
	order_loose_always(f->rule);
}

int ordered_hold(struct file *f)
{
	int r;

	if (f->nested)
		return -EDEADLK;
	signals_harden();
	removal_keep(f);
	file_local(f)->draining++;
	do {
		lock_drop(&f->lock, LOCK_FILE);
		r = ordered_barrier(f->rule);
		file_lock_again(f);
	} while (r == 0 && file_is_paged(f));
	if (r < 0) {
		file_local(f)->draining--;
		flush_wait_idle(f);
	}
	return r;
}

void ordered_hold_end(struct file *f)
{
	atomic_store(&f->order.passed, true);
	ordered_passed(f->rule, f->dev);
	order_loose_end();
	ordered_due(f->rule);
	ordered_hold_cancel(f);
}

void ordered_hold_cancel(struct file *f) { file_local(f)->draining--; }

void ordered_lock(struct file *f)
{
	struct order_log *l = order_log_of(f->arena);

	signals_harden();
	lock_drop(&f->lock, LOCK_FILE);
	lock_take(&l->lead, LOCK_LEAD);
	file_lock_again(f);
}

void ordered_unlock(const struct arena *a) { lock_drop(&order_log_of(a)->lead, LOCK_LEAD); }

/* ---- the timer ---- */

void ordered_write_owed(void)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		struct order_log *l = &order_logs[i];

		if (!atomic_load(&l->arena) || !atomic_exchange(&l->owed, false))
			continue;
		order_lead_begin(l);
		if (atomic_load(&l->arena) && l->pending && l->logged)
			(void)epoch_end(l, false); /* (it reports an error) */
		order_lead_end(l);
	}
}

/* A log that is half full is emptied by a thread of ours, so that no removal has to do it; an idle one, so
 * that a power loss leaves nothing to recover.  When that is due, or UINT64_MAX. */
static uint64_t tend_log(struct order_log *l, uint64_t now)
{
	uint64_t due = UINT64_MAX;
	const struct arena *a;

	if (!atomic_load(&l->arena) || atomic_load(&l->ended_ns) == 0 || atomic_load(&l->broken) < 0)
		return due;
	order_lead_begin(l);
	a = atomic_load(&l->arena); /* (another thread may have closed it, and made one in its place) */
	if (a && atomic_load(&l->ended_ns) != 0) {
		uint64_t pause = a->rule->set.ordered_ms * 1000000ull;
		bool waits;

		due = atomic_load(&l->ended_ns) + pause;
		waits = due > now || atomic_load(&order_of(a)->changed);
		if (!l->pending && (!waits || epoch_checkpoint_is_due(l)))
			(void)epoch_checkpoint(l); /* (else the log stays as it is) */
		if (atomic_load(&l->ended_ns) == 0)
			due = UINT64_MAX;
		else if (due <= now)
			due = now + pause;
	}
	order_lead_end(l);
	return due;
}

uint64_t ordered_tend(uint64_t now)
{
	uint64_t next = UINT64_MAX;

	for (int i = 0; i < FILE_ARENAS; i++) {
		uint64_t due = atomic_load(&order_logs[i].due);

		if (!atomic_load(&order_logs[i].arena))
			continue;
		if (due && due <= now)
			(void)epoch_end_all(&order_logs[i]); /* (what could not be written stays staged) */
		else if (due && due < next)
			next = due;
		due = tend_log(&order_logs[i], now);
		if (due < next)
			next = due;
	}
	return next;
}

/* ---- the end ---- */

bool ordered_close(struct arena *a)
{
	struct order_log *l = order_log_of(a);
	uint64_t whole;
	struct wal *w;
	bool unsynced, closed;

	l->refused = 0;
	if (atomic_load(&l->arena) != a)
		return true;
	order_lead_begin(l);
	w = l->wal;
	/* (if this fails the log stays, for recovery) */
	kill_step();
	unsynced = l->names.count > 0 || order_directory_is_unsynced(&l->directory);
	epoch_names_pass(l, true);
	if (l->pending)
		(void)epoch_end(l, false); /* (it reports an error) */
	closed = !l->pending && epoch_checkpoint(l) == 0 && (!unsynced || epoch_sync_loose(l, &whole) == 0) &&
	         wal_void(w) == 0;
	if (closed)
		log_file_remove(a);
	transient_reset(&l->names);
	atomic_store(&l->due, 0);
	kill_step();
	internal_fd_close(w->fd);
	sys.munmap(w, memory_bytes(a));
	l->wal = NULL;
	atomic_store(&l->arena, NULL);
	atomic_fetch_sub(&order_log_count, 1);
	order_lead_end(l);
	return closed;
}

static bool is_over(_Atomic uint64_t *pause)
{
	uint64_t next = atomic_load_explicit(pause, memory_order_relaxed);

	if (next != 0 && sys_now_coarse_ns() < next)
		return false;
	if (next != 0)
		atomic_store(pause, 0);
	return true;
}

static _Atomic uint64_t *pause_of(const struct rule *rule) { return &shared_ns[rule - live_config->rules]; }

bool ordered_pays(const struct rule *rule) { return is_over(&next_ns) && is_over(pause_of(rule)); }

void ordered_paid(const struct rule *rule, uint64_t since_ns)
{
	uint64_t now = sys_now_ns();

	atomic_store(pause_of(rule), now + PAUSE * (now - since_ns));
}

bool ordered_close_all(void)
{
	uint64_t begin;
	bool all = true;

	if (atomic_load(&order_log_count) == 0)
		return true;
	begin = sys_now_ns();
	for (int i = 0; i < FILE_ARENAS; i++) {
		struct arena *a = atomic_load(&order_logs[i].arena);

		/* (what could not be written stays staged, and in the log) */
		if (a)
			all &= epoch_end_all(&order_logs[i]) == 0 && ordered_close(a);
	}
	atomic_store(&next_ns, begin + PAUSE * (atomic_load(&made_ns) + sys_now_ns() - begin));
	return all;
}

void ordered_end(void)
{
	atomic_store(&ended, true);
	family_note_stranger();
}

bool ordered_ended(void) { return atomic_load(&ended) || family_has_strangers(); }

PROCESS_CODE void ordered_forget(void)
{
	/* (memory that was never used is not touched: each fork would pay for its pages) */
	for (int i = 0; i < FILE_ARENAS && any_rule(); i++) {
		atomic_store(&order_logs[i].arena, NULL);
		order_logs[i].lead.word = order_logs[i].lock.word = 0;
		if (!order_logs[i].dev)
			continue;
		order_logs[i].voids = false;
		transient_forget(&order_logs[i].names);
	}
	if (atomic_load(&order_log_count) != 0)
		atomic_store(&order_log_count, 0);
	removal_link_forget();
	order_loose_forget();
}

bool ordered_move_fd(int fd)
{
	sys_sigset signals = signals_hold();
	bool moved = false;

	for (int i = 0; i < FILE_ARENAS && !moved; i++) {
		struct order_log *l = &order_logs[i];

		if (!atomic_load(&l->arena))
			continue;
		order_lead_begin(l);
		if (atomic_load(&l->arena) && l->wal->fd == fd) {
			int other = internal_fd_move(fd);

			if (other >= 0)
				l->wal->fd = other;
			moved = other >= 0;
		}
		order_lead_end(l);
	}
	signals_release(signals);
	return moved;
}
