// SPDX-License-Identifier: Apache-2.0
/* epoch: see flush/epoch.h. */
#include "flush/epoch.h"

#include "base/kill.h"
#include "base/log.h"
#include "base/probe.h"
#include "base/signals.h"
#include "base/sys.h"
#include "flush/fds.h"
#include "flush/order_loose.h"
#include "flush/pages_write.h"
#include "flush/removal.h"
#include "flush/token.h"
#include "flush/visibility.h"
#include "staging/order.h"
#include "staging/stage.h"
#include "wal/spare.h"

#include <errno.h>

struct visit {
	struct order_log *log;
	int r;
};

/* Epochs are in the log. */
static bool log_counts(const struct order_log *l) { return l->wal->end > WAL_BATCHES_AT; }

/* The files have times so much later than the epoch that recovery might take them for changed by others. */
static bool is_late(const struct order_log *l) { return sys_now_ns() - l->logged_ns > WAL_LATE_NS / 2; }

bool epoch_checkpoint_is_due(const struct order_log *l)
{
	return l->wal->end > l->most || l->wal->end > l->wal->header.bytes / 2;
}

/* After a sync: the kernel may have dropped what it could not write, and another sync would say nothing of
 * it. */
static int note_sync(struct order_log *l, int r)
{
	if (r < 0)
		atomic_store(&l->broken, r);
	return r;
}

/* The kernel may have bytes of f from before the attach. */
static int sync_fresh(struct file *f)
{
	int fd = flush_writable_fd(f), r;

	if (!f->order.fresh)
		return 0;
	if (fd < 0 || flush_is_the_file(f, fd) != 1)
		return -EBADF;
	r = f->sync.full ? sys.fsync(fd) : sys.fdatasync(fd);
	if (r == 0)
		f->order.fresh = f->sync.full = false;
	return note_sync(order_log_of(f->arena), r);
}

/* File lock held: true if f, which is to go right after the epoch, still may. */
static bool still_goes(struct order_log *l, const struct file *f)
{
	if (!(f->ino == l->going_ino && removal_is_possible(l, f)))
		l->going = NULL;
	return l->going;
}

/* File lock held: another program may have changed f, which only a lease kept from it.  What is staged of f
 * must not go there, and nothing that came after it may go anywhere: that would be no prefix. */
static int taken_away(struct order_log *l, struct file *f)
{
	if (atomic_load(&l->broken) == 0)
		log_error(
			"%s was opened elsewhere while this process did not run; nothing more of its rule is "
			"written, see `fastwrite recover`",
			order_entry_of(f)->path);
	atomic_store(&l->broken, -EIO);
	return -EIO;
}

/* File lock held: f's part of the epoch. */
static int take_cut(struct order_log *l, struct file *f)
{
	int r = 0;

	/* it may never come to the removal, and no log has the bytes then */
	if (l->voids && f->order.removal == REMOVAL_UNLOGGED)
		removal_keep(f);
	if (f == l->gone && removal_is_unlogged(l, f))
		removal_begin(f, REMOVAL_UNLOGGED);
	else if (f == l->gone)
		l->gone = NULL;
	if (f == l->going)
		(void)still_goes(l, f);
	if (f->mode != FILE_ATTACHED || f->arena != l->arena || !file_is_paged(f) ||
	    f->order.removal == REMOVAL_UNLOGGED)
		return 0;
	stage_count(f, f->bytes);
	f->bytes = 0;
	/* (a file that was changed in a later epoch has its cut) */
	if (f->order.epoch <= l->epoch && !overlay_is_cut(&f->overlay))
		r = overlay_cut(&f->overlay, false);
	if (r < 0)
		return r;
	if (!overlay_is_cut(&f->overlay))
		return 0;
	if (!visibility_keeps(f))
		return taken_away(l, f);
	f->order.logged = l->voided;
	l->cut[l->count++] = f;
	return 0;
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

static bool is_in_file(const struct overlay *o) { return o->cut.in_file != UINT64_MAX; }

/* The write-back is to make it shorter. */
static bool is_cut_shorter(const struct file *f) { return f->overlay.cut.lowest < f->ksize; }

static uint32_t size_flags(const struct file *f)
{
	return (is_in_file(&f->overlay) ? WAL_IN_FILE : 0) | (is_cut_shorter(f) ? WAL_CUTS : 0);
}

static int put_size(struct wal *w, uint32_t number, const struct overlay *o, uint64_t size, uint64_t lowest,
                    uint32_t flags)
{
	return wal_put_size(w, number,
	                    &(struct wal_size){.size = size,
	                                       .lowest = lowest,
	                                       .mtime_sec = o->cut.mtime.tv_sec,
	                                       .mtime_nsec = (uint32_t)o->cut.mtime.tv_nsec,
	                                       .flags = flags});
}

static int put_file(struct wal *w, uint32_t number, const struct file *f, unsigned flags)
{
	const struct overlay *o = &f->overlay;
	struct overlay_piece piece;
	uint32_t cursor = 0;
	int r = wal_put_name(w, number, order_entry_of(f), flags);

	if (r == 0)
		r = put_size(w, number, o, o->cut.size, o->cut.lowest, size_flags(f));
	while (r == 0 && overlay_cut_piece(o, &cursor, &piece))
		r = wal_put_page(w, number, piece.offset / PAGES_BYTES, piece.data, (uint32_t)piece.bytes);
	return r;
}

/* An earlier epoch in the log may have the file that goes, although this one has nothing of it. */
static int put_going(struct order_log *l)
{
	struct file *f = l->going;
	bool is_put = !f || !log_counts(l);
	int r = 0;

	for (uint32_t i = 0; i < l->count; i++)
		is_put |= l->cut[i] == f;
	if (is_put)
		return 0;
	file_lock_again(f);
	/* (the timer detaches a file of which nothing is staged) */
	if (f->ino == l->going_ino && removal_is_possible(l, f))
		r = wal_put_name(l->wal, l->count, order_entry_of(f), WAL_GOES);
	else
		l->going = NULL;
	file_drop(f);
	return r;
}

/* For `fastwrite status`. */
static void note_size(const struct order_log *l, uint64_t bytes)
{
	struct arena *a = atomic_load(&l->arena);

	if (bytes > atomic_load(&a->header->live.order.largest))
		atomic_store(&a->header->live.order.largest, bytes);
}

static uint64_t bit_of(const struct file *f) { return 1ull << (f->ino * 0x9e3779b97f4a7c15ull >> 58); }

/* The log is to have the cut of f. */
static void note_shorter(struct order_log *l, const struct file *f)
{
	if (l->shortened_in != l->wal->header.first)
		l->shortened = 0;
	l->shortened_in = l->wal->header.first;
	if (is_cut_shorter(f))
		l->shortened |= bit_of(f);
}

/* No file lock is needed: nobody but the leader ends a cut. */
static int put_all(struct order_log *l)
{
	uint64_t from = l->wal->end;
	int r = 0;

	wal_begin(l->wal);
	for (uint32_t i = 0; i < l->count && r == 0; i++) {
		note_shorter(l, l->cut[i]);
		r = put_file(l->wal, i, l->cut[i], l->cut[i] == l->going ? WAL_GOES : 0);
	}
	if (r == 0)
		r = put_going(l);
	if (r < 0)
		return r;
	transient_put(&l->names, l->wal);
	r = wal_commit(l->wal);
	if (r < 0)
		l->names.stated = false;
	else
		note_size(l, l->wal->end - from);
	return r;
}

int epoch_sync_loose(struct order_log *l, uint64_t *whole)
{
	const struct arena *a = atomic_load(&l->arena);
	uint64_t dev = order_loose_take(a->rule);
	int r = 0;

	*whole = 0;

	if (dev == 0) {
		r = order_directory_sync(&l->directory);
		if (r != -ESTALE)
			return r; /* (names are not dropped) */
		dev = a->dev;
		r = 0;
	}
	order_directory_forget(&l->directory);
	if (dev == a->dev)
		r = (int)sys_raw(SYS_syncfs, l->wal->fd, 0, 0, 0, 0, 0);
	else
		sys_raw(SYS_sync, 0, 0, 0, 0, 0, 0);
	if (r < 0)
		order_loose_note(a->rule, ORDER_ANYWHERE);
	else
		*whole = dev;
	return note_sync(l, r);
}

void epoch_names_pass(struct order_log *l, bool all)
{
	const struct arena *a = atomic_load(&l->arena);

	for (uint32_t i = 0; i < l->names.count; i++) {
		const struct transient_name *n = &l->names.names[i];

		/* (a removal that is under way may be seen before it is noted) */
		bool passes = all || (n->there ? n->unsynced : atomic_load(&n->goes) > 0);

		if (!passes || order_directory_note_name(&l->directory, n->path))
			continue;
		order_loose_note(a->rule, a->dev);
		return;
	}
}

/* File lock held.  `whole`: of this file system everything has been synced since the cut (ORDER_ANYWHERE: of
 * all).  That is enough for a file of which the kernel has no bytes.  (Not all kernels report there what
 * could not be written.) */
static int sync_old(struct file *f, uint64_t whole)
{
	if (f->ksize != 0 || (whole != ORDER_ANYWHERE && whole != f->dev))
		return sync_fresh(f);
	f->order.fresh = f->sync.full = false;
	return 0;
}

static int sync_files(struct order_log *l, uint64_t whole)
{
	struct file *f;
	int r = 0;

	for (uint32_t i = 0; i < l->count && r == 0; i++) {
		f = l->cut[i];
		file_lock_again(f);
		r = sync_old(f, whole);
		file_drop(f);
	}
	f = l->going;
	if (r < 0 || !f)
		return r;
	file_lock_again(f);
	r = still_goes(l, f) ? sync_old(f, whole) : 0;
	file_drop(f);
	return r;
}

/* What is not in the log: names, and what the kernel had of the files.  `states`: the epoch is to say which
 * transient names no file has. */
static int sync_others(struct order_log *l, bool states)
{
	uint64_t whole;
	int r;

	transient_look(&l->names);
	epoch_names_pass(l, false);
	r = epoch_sync_loose(l, &whole);
	if (r == 0)
		r = sync_files(l, whole);
	if (r == 0)
		transient_synced(&l->names);
	return r == 0 && states ? transient_list(&l->names, l->wal) : r;
}

/* True if there was one. */
static bool give_spare(struct order_log *l)
{
	bool gives = atomic_exchange(&l->spare, SPARE_NONE) != SPARE_NONE && spare_give(l->wal->fd) == 0;

	kill_step();
	return gives;
}

/* The flush token is held, and its holder has only the file lock left to take. */
static void io_is_done(struct file *f)
{
	f->flush.result = (struct flush_result){.r = 0};
	atomic_store(&f->flush.io_done, 1);
}

/* File lock held.  Drops and retakes it: the program goes on, the frames of a cut stay as they are. */
static int try_cut(struct file *f)
{
	struct pages_write w;
	int r = visibility_keeps(f) ? pages_write_begin(f, &w) : taken_away(order_log_of(f->arena), f);

	if (r < 0)
		return r;
	flush_token_take(f);
	file_drop(f);
	pages_write_pieces(f, &w);
	io_is_done(f);
	file_lock_again(f);
	r = pages_write_end(f, &w);
	flush_token_give(f);
	return r;
}

/* The same. */
static int flush_cut(struct file *f)
{
	struct order_log *l = order_log_of(f->arena);
	int r = overlay_is_cut(&f->overlay) ? try_cut(f) : 0;

	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	return give_spare(l) ? try_cut(f) : r;
}

/* Writes to f fail from now on. */
static void note_error(struct file *f, int r)
{
	bool staged = file_is_paged(f);

	if (f->flush.error == 0 && staged)
		log_warn("flush failed: error %d; the bytes stay staged", -r);
	else if (f->flush.error == 0)
		log_warn("sync failed: error %d; the log stays", -r);
	f->flush.error = r;
	if (staged)
		f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
}

/* File lock held: the epoch is over for f, which has everything of it, or whose name is gone. */
static void leave(struct order_log *l, struct file *f)
{
	bool goes = f->order.removal == REMOVAL_DONE;

	f->order.behind = !goes;
	if (goes) {
		atomic_store(&l->dropped, true);
		f->order.removal = REMOVAL_NONE;
		pages_all_written(f);
		f->due[DUE_CLOSED] = sys_now_ns();
		return;
	}
	f->flush.error = 0;
	if (overlay_is_changed(&f->overlay))
		f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	else
		pages_all_written(f);
}

/* The cut of f goes to it, without its lock; with r < 0 the epoch has failed. */
static int write_back(struct order_log *l, struct file *f, int r)
{
	file_lock_again(f);
	if (r == 0)
		f->order.sized = l->wal->header.first;
	if (r == 0 && f->order.removal != REMOVAL_DONE)
		r = flush_cut(f);
	if (r == 0)
		leave(l, f);
	else
		note_error(f, r);
	file_drop(f);
	return r;
}

/* The program may have closed its descriptor unseen since the write-back. */
static int sync_file_of(struct order_log *l, const struct file *f, int fd)
{
	if (fd >= 0 && flush_is_the_file(f, fd) == 1)
		return sys.fdatasync(fd);
	if (f->dev == l->dev)
		return (int)sys_raw(SYS_syncfs, l->wal->fd, 0, 0, 0, 0, 0);
	sys_raw(SYS_sync, 0, 0, 0, 0, 0, 0);
	return 0;
}

int epoch_sync(struct order_log *l, struct file *f, int fd)
{
	int r;

	kill_step();
	r = sync_file_of(l, f, fd);
	kill_step();
	return note_sync(l, r);
}

/* File lock held.  Drops and retakes it. */
static int sync_behind(struct order_log *l, struct file *f)
{
	int fd = flush_writable_fd(f), r;

	flush_token_take(f);
	f->flush.program_fd = true; /* a close of it waits */
	file_drop(f);
	r = epoch_sync(l, f, fd);
	io_is_done(f);
	file_lock_again(f);
	flush_token_give(f);
	if (r == 0)
		f->order.behind = false;
	else
		note_error(f, r);
	return r;
}

/*
 * ---- large appends ----
 *
 * They go to the file before the log has the epoch, and not to the log: it would be written twice.  If power
 * is lost before the epoch counts, recovery cuts the file to the size that the last epoch says.
 */

static uint64_t bytes_from(const struct overlay *o, uint64_t from)
{
	struct overlay_piece piece;
	uint32_t cursor = 0;
	uint64_t bytes = 0;

	while (overlay_cut_piece(o, &cursor, &piece))
		bytes += piece.offset >= from ? piece.bytes : 0;
	return bytes;
}

/* File lock held: how many bytes of the cut of f, behind the pages of the file in the kernel, may go to it
 * now. */
static uint64_t large_append(const struct order_log *l, const struct file *f)
{
	enum { MUCH = 2 << 20 }; /* a device writes about that much while it syncs the file */
	const struct overlay *o = &f->overlay;
	bool shortened = l->shortened_in == l->wal->header.first && (l->shortened & bit_of(f));
	uint64_t from = pages_round_up(f->ksize),
		 quarter = f->arena->pages.frame_count / 4 * (uint64_t)PAGES_BYTES;
	uint64_t least = quarter < MUCH ? quarter : MUCH, bytes;

	/* (of a transient name the log may say that no file has it, also by an older list: recovery must not
	 * touch that file) */
	if (o->cut.size < from + least || is_cut_shorter(f) || is_in_file(o) || shortened ||
	    f->order.removal != REMOVAL_NONE || f == l->going ||
	    transient_find(&l->names, order_entry_of(f)->path) >= 0 ||
	    (l->wal->header.absent.list && !atomic_load(&l->names.stated)))
		return 0;
	bytes = bytes_from(o, from);
	return bytes < least ? 0 : bytes;
}

/* The same; drops and retakes the lock.  0: the file has it, durably; or the log is to have it. */
static int write_append(struct order_log *l, struct file *f)
{
	uint64_t from = pages_round_up(f->ksize);
	int fd = flush_writable_fd(f), r;
	struct pages_write w;

	/* (without a descriptor, or the lease, the write-back will say so) */
	if (fd < 0 || !visibility_keeps(f) || pages_write_begin(f, &w) < 0)
		return 0;
	w.from = from;
	w.until_ns = l->logged_ns + WAL_LATE_NS / 4 * 3;
	flush_token_take(f);
	file_drop(f);
	pages_write_pieces(f, &w);
	r = w.r == 0 ? epoch_sync(l, f, fd) : 0;
	io_is_done(f);
	file_lock_again(f);
	if (pages_write_end_append(f, &w) == 0 && r == 0) {
		f->overlay.cut.in_file = from;
		f->overlay.cut.lowest = f->overlay.cut.size;
		f->order.behind = false;
	}
	flush_token_give(f);
	return r;
}

/* file.order.sized: an epoch has the size that may not be durable yet. */
static const uint64_t SIZE_IS_PUT = UINT64_MAX;

/* The epoch fits into the log, which is not emptied before it counts. */
static bool has_room(const struct order_log *l) { return l->wal->end <= l->wal->header.bytes / 2; }

/* File lock held: the log does not say the size to which recovery is to cut f, or perhaps not on the device;
 * or it said so long ago, and recovery would take f for changed by others. */
static bool needs_size(const struct order_log *l, const struct file *f)
{
	return f->order.sized != l->wal->header.first || l->wal->unsure || is_late(l);
}

static int put_size_now(struct order_log *l, uint32_t i)
{
	struct file *f = l->cut[i];
	int r = wal_put_name(l->wal, i, order_entry_of(f), 0);

	return r == 0 ? put_size(l->wal, i, &f->overlay, f->ksize, f->ksize, 0) : r;
}

/* An epoch in which nothing has changed, for the sizes. */
static int put_sizes(struct order_log *l)
{
	uint64_t began_ns;
	bool any = false;
	int r = 0;

	for (uint32_t i = 0; i < l->count && r == 0; i++) {
		struct file *f = l->cut[i];

		file_lock_again(f);
		if (large_append(l, f) > 0 && needs_size(l, f)) {
			if (!any)
				wal_begin_again(l->wal);
			any = true;
			r = put_size_now(l, i);
			f->order.sized = SIZE_IS_PUT;
		}
		file_drop(f);
	}
	if (!any)
		return r;
	began_ns = sys_now_ns();
	if (r == 0)
		r = wal_commit(l->wal);
	if (r == 0)
		l->logged_ns = began_ns;
	for (uint32_t i = 0; i < l->count; i++) {
		file_lock_again(l->cut[i]);
		if (l->cut[i]->order.sized == SIZE_IS_PUT)
			l->cut[i]->order.sized = r == 0 ? l->wal->header.first : 0;
		file_drop(l->cut[i]);
	}
	return r;
}

/* The epoch has failed after that: the log must keep the size from before. */
static bool has_appended(const struct order_log *l)
{
	for (uint32_t i = 0; i < l->count; i++)
		if (is_in_file(&l->cut[i]->overlay))
			return true;
	return false;
}

static int write_appends(struct order_log *l)
{
	uint64_t room = 64 << 20;
	int r;

	if (has_appended(l) || !has_room(l))
		return 0;
	r = put_sizes(l);
	for (uint32_t i = 0; i < l->count && r == 0 && has_room(l); i++) {
		struct file *f = l->cut[i];
		uint64_t bytes;

		file_lock_again(f);
		bytes = large_append(l, f);
		if (bytes > 0 && bytes <= room && !needs_size(l, f)) {
			room -= bytes;
			r = write_append(l, f);
		}
		file_drop(f);
		kill_step();
	}
	return r;
}

/* ---- checkpoints ---- */

static void visit_behind(struct file *f, void *ctx)
{
	struct visit *v = ctx;

	if (v->r < 0)
		return;
	file_lock_again(f);
	if (f->mode == FILE_ATTACHED && f->arena == atomic_load(&v->log->arena) && f->order.behind)
		v->r = sync_behind(v->log, f);
	file_drop(f);
}

/* Each file of the epoch: with r < 0 it failed as a whole, else the log has it.  Meanwhile names come and go
 * by what the log says. */
static int finish_all(struct order_log *l, int r)
{
	int all = r;

	lock_drop(&l->lock, LOCK_ORDER);
	for (uint32_t i = 0; i < l->count; i++) {
		int one = write_back(l, l->cut[i], r);

		if (one < 0 && all == 0)
			all = one;
	}
	lock_take(&l->lock, LOCK_ORDER);
	return all;
}

static void visit_broken(struct file *f, void *ctx)
{
	struct order_log *l = ctx;

	file_lock_again(f);
	if (f->mode == FILE_ATTACHED && f->arena == atomic_load(&l->arena) && file_is_paged(f)) {
		f->flush.error = atomic_load(&l->broken);
		f->due[DUE_FLUSH] = sys_now_ns() + file_lag_ns(f);
	}
	file_drop(f);
}

/* Nothing goes to the files any more. */
static int fail_staged(struct order_log *l)
{
	file_for_each(visit_broken, l);
	return atomic_load(&l->broken);
}

int epoch_void(struct order_log *l)
{
	int r = wal_void(l->wal);

	if (r == 0)
		l->voided++;
	return r;
}

/* All epochs are in the files, durably. */
static int empty_log(struct order_log *l)
{
	bool idle = !atomic_load(&order_of(atomic_load(&l->arena))->changed), named = l->names.count > 0;
	/* (when idle, nothing may come that tells the device) */
	int r = idle && !named ? epoch_void(l) : wal_empty(l->wal, idle);

	atomic_store(&l->quiet, r == 0 && idle && !named);
	return r;
}

/* The log has the epoch, of which the first bytes went there at `began_ns`; 0: it needs nothing.  (The number
 * is for `fastwrite status`.) */
static void note_durable(struct order_log *l, uint64_t began_ns)
{
	struct arena *a = atomic_load(&l->arena);

	l->logged = true;
	if (began_ns)
		l->logged_ns = began_ns;
	order_durable(a);
	atomic_store(&a->header->live.order.epochs, l->epoch);
}

/* The log may be full of epochs that are in the files: a checkpoint has failed. */
static int put_with_room(struct order_log *l)
{
	int r = put_all(l);

	if (r != -ENOSPC || !log_counts(l) || has_appended(l))
		return r;
	r = epoch_checkpoint(l);
	atomic_store(&l->quiet, false);
	for (uint32_t i = 0; i < l->count; i++) {
		file_lock_again(l->cut[i]);
		l->cut[i]->order.logged = l->voided;
		file_drop(l->cut[i]);
	}
	return r < 0 ? r : put_all(l);
}

int epoch_commit(struct order_log *l, bool states)
{
	struct order *o = order_of(atomic_load(&l->arena));
	struct visit v = {.log = l};
	uint64_t began_ns = 0;
	int r;

	signals_harden();
	if (atomic_load(&l->broken) < 0)
		return fail_staged(l);
	atomic_store(&l->quiet, false);
	atomic_store(&l->settled, false);
	if (!l->pending) {
		atomic_store(&l->due, 0);
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
		r = sync_others(l, states);
	if (r == 0 && !l->logged)
		r = write_appends(l);
	if (r == 0 && !l->logged && (l->count > 0 || (states && transient_is_due(&l->names)))) {
		began_ns = sys_now_ns();
		r = put_with_room(l);
	}
	if (r == 0 && !l->logged)
		note_durable(l, began_ns);
	return atomic_load(&l->broken) < 0 ? fail_staged(l) : r;
}

int epoch_finish(struct order_log *l, int r)
{
	uint64_t now;

	if (atomic_load(&l->broken) < 0)
		return r; /* (nothing was begun) */
	atomic_store(&l->owed, false);
	r = finish_all(l, r);
	atomic_store(&l->error, r);
	if (r < 0)
		return r;
	l->pending = false;
	atomic_store(&l->settled, true);
	now = sys_now_ns();
	atomic_store(&l->ended_ns, now);
	/* (an epoch of no files came to no log) */
	PROBE(epoch, l->epoch, l->wal->end, l->count > 0 ? now - l->logged_ns : 0);
	if (atomic_load(&l->spare) == SPARE_DUE)
		give_spare(l);
	return !log_counts(l) || is_late(l) ? epoch_checkpoint(l) : 0;
}

/* A checkpoint of so many bytes began then.  No epoch ends meanwhile: on a slow device the next one comes
 * sooner. */
static void keep_short(struct order_log *l, uint64_t bytes, uint64_t since_ns)
{
	uint64_t most_ns = atomic_load(&l->arena)->rule->set.ordered_ms * 1000000ull;

	if (sys_now_ns() - since_ns > most_ns)
		l->most = bytes / 2;
	else if (bytes > l->most / 2 && l->most < ORDER_LONG)
		l->most *= 2;
}

int epoch_checkpoint(struct order_log *l)
{
	struct visit v = {.log = l, .r = atomic_load(&l->broken)};
	uint64_t since_ns = sys_now_ns(), bytes = l->wal->end;
	int r;

	lock_drop(&l->lock, LOCK_ORDER);
	file_for_each(visit_behind, &v);
	lock_take(&l->lock, LOCK_ORDER);
	r = v.r;
	/* (the log has bytes that the file may not have: the name must not come back) */
	if (r == 0 && atomic_exchange(&l->dropped, false)) {
		uint64_t whole;

		epoch_names_pass(l, false);
		r = epoch_sync_loose(l, &whole);
		if (r < 0)
			atomic_store(&l->dropped, true);
	}
	if (r == 0)
		r = empty_log(l);
	if (r == 0)
		atomic_store(&l->ended_ns, 0);
	if (r == 0 && bytes > WAL_BATCHES_AT)
		keep_short(l, bytes, since_ns);
	return r;
}

int epoch_end(struct order_log *l, bool states) { return epoch_finish(l, epoch_commit(l, states)); }

static int end_all(struct order_log *l, bool checkpoint)
{
	bool again, changed;
	int r = 0;

	order_lead_begin(l);
	again = l->pending;
	if (atomic_load(&l->arena)) {
		/* (a barrier may wait for its call, which brings names) */
		changed = atomic_load(&order_of(atomic_load(&l->arena))->changed);
		r = epoch_end(l, changed);
		if (r == 0 && again)
			r = epoch_end(l, changed);
		if (r == 0 && checkpoint && atomic_load(&l->ended_ns) != 0)
			r = epoch_checkpoint(l);
	}
	order_lead_end(l);
	return r;
}

int epoch_end_all(struct order_log *l) { return end_all(l, false); }
int epoch_checkpoint_all(struct order_log *l) { return end_all(l, true); }
