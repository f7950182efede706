// SPDX-License-Identifier: Apache-2.0
/* ordered_names: names that come and go in order, and the directory that epochs sync; see flush/ordered.h. */
#include "base/fork_guard.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/workers.h"
#include "flush/epoch.h"
#include "flush/fds.h"
#include "flush/order_loose.h"
#include "flush/ordered.h"
#include "flush/removal.h"
#include "staging/order.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/vfs.h>

/* How many logs have files of the rule on this file system; *l: one of them. */
static int logs_of(const struct rule *rule, uint64_t dev, struct order_log **l)
{
	int count = 0;

	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&order_logs[i].arena);

		if (!a || a->rule != rule || a->dev != dev)
			continue;
		*l = &order_logs[i];
		count++;
	}
	return count;
}

bool ordered_directory_has(const struct rule *rule, uint64_t dev, const char *path)
{
	struct order_log *l;

	return logs_of(rule, dev, &l) == 1 && order_directory_has_name(&l->directory, path);
}

void ordered_name_passed(const struct rule *rule, uint64_t dev)
{
	struct order_log *l;

	if (logs_of(rule, dev, &l) != 1 || !order_directory_note_known(&l->directory))
		ordered_passed(rule, dev);
}

static void note_call(const struct rule *rule, uint64_t dev, bool in_directory)
{
	if (in_directory)
		ordered_name_passed(rule, dev);
	else
		ordered_passed(rule, dev);
}

void ordered_call_begin(const struct rule *rule, uint64_t dev, bool in_directory)
{
	if (!rule)
		return;
	order_loose_begin();
	note_call(rule, dev, in_directory);
}

void ordered_call_end(const struct rule *rule, uint64_t dev, bool in_directory)
{
	if (!rule)
		return;
	note_call(rule, dev, in_directory);
	order_loose_end();
	ordered_due(rule);
}

static void for_each_rule(void (*act)(const struct rule *, uint64_t, bool))
{
	for (uint32_t i = 0; i < live_config->rule_count; i++)
		if (config_orders(&live_config->rules[i].set))
			act(&live_config->rules[i], 0, false);
}

void ordered_calls_begin(void) { for_each_rule(ordered_call_begin); }

void ordered_calls_end(void) { for_each_rule(ordered_call_end); }

/* LOCK_ORDER held: names may come and go by what the log says, also while the epoch is written back. */
static bool log_says(const struct order_log *l)
{
	return atomic_load(&l->arena) && (!l->pending || l->logged) && !l->voids &&
	       atomic_load(&l->broken) == 0;
}

/* LOCK_ORDER held: the name, if the log says that no file has it; or NULL. */
static struct transient_name *find_stated(struct order_log *l, const char *path)
{
	int i = log_says(l) ? transient_find(&l->names, path) : -1;

	return i >= 0 && transient_is_stated(&l->names, i) ? &l->names.names[i] : NULL;
}

/* LOCK_ORDER held: a call that makes or removes the name has begun.  It ends with ordered_named. */
static struct transient_name *begin_call(struct transient_name *name, bool there)
{
	name->there = there;
	atomic_fetch_add(&name->busy, 1);
	return name;
}

/* LOCK_ORDER held: the name, about to be made, or NULL: the log does not say that no file has it. */
static struct transient_name *create(struct order_log *l, const char *path)
{
	struct transient_name *name = find_stated(l, path);

	if (!name)
		return NULL;
	name->unsynced = true;
	order_changed(atomic_load(&l->arena));
	return begin_call(name, true);
}

/* The same after a barrier, or when its last file went with one. */
static struct transient_name *create_stated(struct order_log *l, const char *path)
{
	struct transient_name *name = NULL;

	order_lead_begin(l);
	if (atomic_load(&l->arena) && epoch_end(l, true) == 0)
		name = create(l, path);
	order_lead_end(l);
	return name;
}

struct transient_name *ordered_create(const struct rule *rule, const char *path, uint64_t dev)
{
	struct transient_name *name = NULL;
	bool is_listed = false;
	sys_sigset signals;
	struct order_log *l;
	int count;

	if (atomic_load(&order_log_count) == 0 || fork_guard_elsewhere())
		return NULL;
	signals = signals_hold_short();
	/* (a process that changes its effective user has more: each would have to know) */
	count = logs_of(rule, dev, &l);
	if (count == 1) {
		lock_take(&l->lock, LOCK_ORDER);
		is_listed = transient_find(&l->names, path) >= 0;
		name = create(l, path);
		lock_drop(&l->lock, LOCK_ORDER);
		if (is_listed && !name)
			name = create_stated(l, path);
	}
	signals_release(signals);
	/* what a log says of this name must not stay */
	if (!name && (is_listed || count > 1))
		(void)ordered_barrier(rule);
	else if (!name)
		(void)ordered_settle(rule);
	return name;
}

/* LOCK_ORDER and the lock of f held: f, about to go, or NULL: the log does not say that no file has its name.
 */
static struct transient_name *remove_stated(struct order_log *l, struct file *f)
{
	struct transient_name *name =
		f->dev == atomic_load(&l->arena)->dev ? find_stated(l, order_entry_of(f)->path) : NULL;

	if (!name)
		return NULL;
	removal_begin(f, REMOVAL_UNLOGGED);
	return begin_call(name, false);
}

/* Both locks of the log and the lock of f held: the log has to say that no file has the name of f. */
static struct transient_name *list_name(struct order_log *l, const struct file *f)
{
	const struct arena *a = atomic_load(&l->arena);
	bool replaced;
	int i = f->dev == a->dev ? transient_add(&l->names, order_entry_of(f), &replaced) : -1;

	if (i < 0)
		return NULL;
	if (replaced)
		ordered_passed(a->rule, a->dev);
	return begin_call(&l->names.names[i], false);
}

typedef bool may_go(const struct order_log *l, const struct file *f);

/* File lock held: f is still this file, and may go. */
static bool still_may(const struct order_log *l, const struct file *f, uint64_t dev, uint64_t ino,
                      may_go *may)
{
	return f->dev == dev && f->ino == ino && atomic_load(&l->arena) && may(l, f);
}

/* Both locks of the log held: the same for the next epoch, which is to say that no file has the name of f.
 * NULL: f may not go, or the last epoch does not end. */
static struct transient_name *list_if(struct order_log *l, struct file *f, uint64_t dev, uint64_t ino,
                                      may_go *may)
{
	bool ends = !l->pending || epoch_end(l, true) == 0;
	struct transient_name *name;

	file_lock_again(f);
	name = ends && still_may(l, f, dev, ino, may) ? list_name(l, f) : NULL;
	file_drop(f);
	return name;
}

/* No lock held. */
static struct transient_name *remove_with_epoch(struct order_log *l, struct file *f, uint64_t dev,
                                                uint64_t ino)
{
	struct transient_name *name;
	bool goes;

	order_lead_begin(l);
	name = list_if(l, f, dev, ino, removal_is_unlogged);
	l->gone = name ? f : NULL;
	/* (what cannot be written back yet, of other files, does not keep f: the log says that it is gone) */
	goes = name &&
	       (epoch_end(l, true) == 0 || (l->pending && l->logged && atomic_load(&l->broken) == 0)) &&
	       l->gone;
	if (name && !goes) {
		file_lock_again(f);
		if (atomic_load(&l->broken) == 0 && f->dev == dev && f->ino == ino)
			removal_cancel(f);
		file_drop(f);
		ordered_named(name);
		name = NULL;
	}
	l->gone = NULL;
	order_lead_end(l);
	return name;
}

/* The space of f comes back when the epoch is in the files.  Can the program wait for that? */
static bool is_small(const struct file *f)
{
	enum { SHARE = 4 };
	struct statfs st;

	return sys_raw(SYS_fstatfs, flush_kept_fd(f), (long)&st, 0, 0, 0, 0) == 0 &&
	       f->lsize / SHARE < (uint64_t)st.f_bavail * (uint64_t)st.f_bsize;
}

/* The entry's path names f: somebody else may have moved it.  `path` does, or is NULL. */
static bool is_at_its_path(const struct file *f, const char *path)
{
	struct statx st;

	if (path && strcmp(path, order_entry_of(f)->path) == 0)
		return true;
	return sys.statx(AT_FDCWD, order_entry_of(f)->path, AT_SYMLINK_NOFOLLOW, STATX_INO, &st) == 0 &&
	       st.stx_ino == f->ino && sys_dev_of(&st) == f->dev;
}

/* File lock held: an epoch may have f.  Its removal may come to the device with that epoch or later. */
static bool may_go_after(const struct order_log *l, const struct file *f)
{
	return removal_is_possible(l, f) &&
	       order_directory_has_name(&l->directory, order_entry_of(f)->path) &&
	       /* (else recovery cannot tell a file that is gone from one that is elsewhere) */
	       order_entry_of(f)->below > 0 && is_at_its_path(f, NULL) && is_small(f);
}

/* Both locks of the log held: an epoch has f, and f goes right after it.  Its write-back is left to a thread
 * of ours.  False: f does not go, or there is an error, which has been reported. */
static bool commit_going(struct order_log *l, struct file *f, uint64_t ino)
{
	bool goes;
	int r;

	l->going = f;
	l->going_ino = ino;
	r = epoch_commit(l, true);
	file_lock_again(f);
	/* (the timer detaches a file of which nothing is staged) */
	goes = r == 0 && l->going && f->ino == ino && removal_is_possible(l, f);
	if (goes)
		removal_begin(f, REMOVAL_LOGGED);
	file_drop(f);
	l->going = NULL;
	if (goes)
		atomic_store(&l->owed, true);
	else
		(void)epoch_finish(l, r);
	return goes;
}

/*
 * No lock held.  Everything before the removal is in the log then, and f as the program has left it.  If
 * power is lost now, f is there, or has gone: both is right.
 */
static struct transient_name *remove_after_epoch(struct order_log *l, struct file *f, uint64_t dev,
                                                 uint64_t ino)
{
	struct transient_name *name;

	order_lead_begin(l);
	name = list_if(l, f, dev, ino, may_go_after);
	if (name && !commit_going(l, f, ino)) {
		ordered_named(name);
		name = NULL;
	}
	if (name)
		atomic_fetch_add(&name->goes, 1);
	order_lead_end(l);
	if (name)
		workers_nudge();
	return name;
}

struct transient_name *ordered_remove(uint64_t dev, uint64_t ino, const char *path, bool *logged)
{
	struct file *f = file_find(dev, ino);
	const struct arena *a = f ? f->arena : NULL;
	struct transient_name *name = NULL;
	sys_sigset signals;
	bool is_young, goes;
	struct order_log *l;

	*logged = false;
	if (!f || !a || !file_is_ordered(f))
		return NULL;
	l = order_log_of(a);
	signals = signals_hold_short();
	lock_take(&l->lock, LOCK_ORDER);
	file_lock_again(f);
	is_young = still_may(l, f, dev, ino, removal_is_unlogged) && is_at_its_path(f, path);
	goes = !is_young && still_may(l, f, dev, ino, removal_is_possible);
	if (is_young)
		name = remove_stated(l, f);
	file_drop(f);
	lock_drop(&l->lock, LOCK_ORDER);
	if (is_young && !name)
		name = remove_with_epoch(l, f, dev, ino);
	else if (goes)
		name = remove_after_epoch(l, f, dev, ino);
	*logged = name && !is_young;
	signals_release(signals);
	return name;
}

static struct order_log *log_of_name(const struct transient_name *name)
{
	for (int i = 0; i < FILE_ARENAS; i++)
		if (name >= order_logs[i].names.names && name < order_logs[i].names.names + WAL_NAMES_MAX)
			return &order_logs[i];
	return NULL;
}

static void name_is_due(const struct arena *a)
{
	order_changed(a);
	ordered_due(a->rule);
}

void ordered_gone(struct transient_name *name, bool gone)
{
	struct order_log *l = log_of_name(name);
	const struct arena *a = l ? atomic_load(&l->arena) : NULL;

	if (a && gone) {
		if (!order_directory_note_name(&l->directory, name->path))
			ordered_passed(a->rule, a->dev);
		name_is_due(a);
	}
	atomic_fetch_sub(&name->goes, 1);
}

void ordered_named(struct transient_name *name)
{
	struct order_log *l = name ? log_of_name(name) : NULL;
	const struct arena *a = l ? atomic_load(&l->arena) : NULL;
	bool came;

	if (!name)
		return;
	/* a barrier has voided the log meanwhile */
	if (a && !atomic_load(&l->names.stated) && !order_directory_note_name(&l->directory, name->path))
		ordered_passed(a->rule, a->dev);
	came = name->there;
	atomic_fetch_sub(&name->busy, 1);
	if (a && came)
		name_is_due(a);
}

void ordered_removed(struct file *f)
{
	enum order_removal how = (enum order_removal)f->order.removal;

	if (!(atomic_load(&order_entry_of(f)->flags) & ENTRY_REMOVED) || how == REMOVAL_DONE ||
	    !removal_is_done(f))
		return;
	removal_keep(f);
	/* (another thread may have opened it) */
	if (how == REMOVAL_NONE || !file_is_paged(f) || !removal_is_unopened(f))
		return;
	/* (the leader may be writing it back) */
	if (overlay_is_cut(&f->overlay))
		f->order.removal = REMOVAL_DONE;
	else
		overlay_detach(&f->overlay);
}

bool ordered_goes(const struct file *f) { return f->order.removal == REMOVAL_DONE; }

static bool is_epoch_due(const struct rule *rule)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&order_logs[i].arena);

		if (a && a->rule == rule)
			return atomic_load(&order_of(a)->changed);
	}
	return false;
}

int ordered_error(const struct rule *rule)
{
	uint32_t left = atomic_load(&order_log_count); /* (each sync asks: mostly there is one) */
	int error = 0;

	for (int i = 0; i < FILE_ARENAS && left > 0 && error == 0; i++) {
		const struct arena *a = atomic_load(&order_logs[i].arena);

		left -= a != NULL;
		if (!a || a->rule != rule)
			continue;
		error = atomic_load(&order_logs[i].broken);
		if (error == 0)
			error = atomic_load(&order_logs[i].error);
	}
	return error;
}

static bool has_unsynced_names(const struct rule *rule)
{
	bool any = order_loose_any(rule);

	for (int i = 0; i < FILE_ARENAS && !any; i++) {
		const struct arena *a = atomic_load(&order_logs[i].arena);

		any = a && a->rule == rule && order_directory_is_unsynced(&order_logs[i].directory);
	}
	return any;
}

bool ordered_names_follow(const struct rule *rule)
{
	return is_epoch_due(rule) || (atomic_load(&order_log_count) > 0 && !has_unsynced_names(rule));
}

bool ordered_directory_follows(const struct rule *rule, uint64_t dev, uint64_t ino, const char *path,
                               uint32_t links)
{
	struct order_log *l;

	/* (directories and links are made unseen) */
	if (logs_of(rule, dev, &l) != 1 || !order_directory_note(&l->directory, dev, ino, path, links))
		ordered_passed(rule, dev);
	return is_epoch_due(rule);
}

bool ordered_directory_is_known(uint64_t dev, uint64_t ino, uint32_t links)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		const struct arena *a = atomic_load(&order_logs[i].arena);

		if (a && order_directory_note(&order_logs[i].directory, dev, ino, NULL, links))
			return is_epoch_due(a->rule);
	}
	return false;
}

bool ordered_directory_is_at(const char *path, size_t n, uint64_t *dev)
{
	for (int i = 0; i < FILE_ARENAS; i++) {
		if (!atomic_load(&order_logs[i].arena) ||
		    !order_directory_is_at(&order_logs[i].directory, path, n))
			continue;
		*dev = order_logs[i].directory.dev;
		return true;
	}
	return false;
}
