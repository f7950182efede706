// SPDX-License-Identifier: Apache-2.0
/* visibility: see flush/visibility.h. */
#include "flush/visibility.h"

#include "base/lease.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/never_staged.h"
#include "flush/fds.h"
#include "flush/flush.h"
#include "format/guard_format.h"
#include "staging/stage.h"

#include <fcntl.h>

PROCESS_DATA _Atomic uint32_t visibility_leases;

/* A descriptor of the description with the lease, -1: this process has none. */
static int lease_fd(const struct file *f)
{
	const struct ofd *o = atomic_load(&f->lease.on);

	if (!o)
		return -1;
	return o == f->left ? flush_kept_fd(f) : ofd_fd(o);
}

/* While a process waits for the file, F_GETLEASE returns the type that the lease will become. */
bool visibility_lease_intact(const struct file *f)
{
	int fd = lease_fd(f);

	return fd >= 0 && lease_holds(fd);
}

bool visibility_lease_seen(struct file *f)
{
	if (!visibility_lease_intact(f))
		return false;
	f->lease.seen_ns = sys_now_ns();
	return true;
}

/* Half of the time after which the kernel takes a lease; 0: it is not known. */
static uint64_t sure_ns(void)
{
	static _Atomic uint64_t known = UINT64_MAX;
	uint64_t seconds = 0;
	char text[16];
	ssize_t n;
	int fd;

	if (atomic_load(&known) != UINT64_MAX)
		return atomic_load(&known);
	fd = sys.openat(AT_FDCWD, "/proc/sys/fs/lease-break-time", O_RDONLY | O_CLOEXEC, 0);
	n = fd < 0 ? 0 : sys.read(fd, text, sizeof text);
	if (fd >= 0)
		sys.close(fd);
	for (ssize_t i = 0; i < n && text[i] >= '0' && text[i] <= '9'; i++)
		seconds = seconds * 10 + (uint64_t)(text[i] - '0');
	atomic_store(&known, seconds * 500000000);
	return atomic_load(&known);
}

/* Through a descriptor of f; by its path if the program has closed it unseen. */
static bool look_at(const struct file *f, struct statx *st)
{
	enum { MASK = STATX_INO | STATX_SIZE | STATX_MTIME };
	int fd = flush_any_fd(f);

	if (fd >= 0 && sys.statx(fd, "", AT_EMPTY_PATH, MASK, st) == 0 && st->stx_ino == f->ino &&
	    sys_dev_of(st) == f->dev)
		return true;
	return sys.statx(AT_FDCWD, visibility_entry(f)->path, AT_SYMLINK_NOFOLLOW, MASK, st) == 0 &&
	       st->stx_ino == f->ino && sys_dev_of(st) == f->dev;
}

static bool is_as_left(const struct file *f)
{
	struct statx st;

	return look_at(f, &st) && guard_is(&visibility_entry(f)->guard, &st);
}

/* It was held a moment ago, so the kernel has not taken it. */
static bool is_sure(const struct file *f) { return sys_now_ns() - f->lease.seen_ns < sure_ns(); }

bool visibility_is_breaking(const struct file *f) { return sys_now_ns() - f->lease.seen_ns < 2 * sure_ns(); }

bool visibility_keeps(struct file *f)
{
	if (!file_needs_lease(f) || visibility_lease_seen(f))
		return true;
	/* (a waiting process may have changed the times, which needs no open: touch does) */
	return (visibility_lease_is_ours(f) && is_sure(f)) || is_as_left(f);
}

void visibility_doubt(struct file *f)
{
	if (f->lease.on && file_needs_lease(f) && !file_is_staged(f) && !is_sure(f) &&
	    !visibility_lease_seen(f))
		visibility_drop(f);
}

/* (Its description may have been closed unseen.) */
bool visibility_lease_is_ours(const struct file *f)
{
	return f->lease.on && (!f->shared || lease_fd(f) >= 0);
}

static bool visibility_by_itself(const struct file *f)
{
	return f->rule->set.visibility == VISIBILITY_STRICT || file_needs_lease(f) || f->cooperates ||
	       never_staged_memory_is_shared(f->rule);
}

bool visibility_for_journal(const struct file *f)
{
	return journal_file_leases(f) && !visibility_by_itself(f);
}

void visibility_not_for_journal(struct file *f)
{
	f->journal.refused = true;
	/* a file that the program locks is strict anyway, and has no_internal_fd for its own reasons */
	if (!f->lease.on)
		f->no_internal_fd = false;
}

bool visibility_is(const struct file *f) { return visibility_by_itself(f) || journal_file_leases(f); }

bool visibility_waits(const struct file *f)
{
	bool promised = file_is_ordered(f) && !file_needs_lease(f);

	return visibility_is(f) && !f->lease.on && !(promised && file_is_open_twice(f));
}

struct arena_entry *visibility_entry(const struct file *f)
{
	return f->arena && f->entry >= 0 ? arena_entry_at(f->arena, (uint32_t)f->entry) : NULL;
}

void visibility_show(const struct file *f, uint32_t state)
{
	struct arena_entry *entry = visibility_entry(f);

	if (!entry)
		return;
	atomic_fetch_or_explicit(&entry->flags, ENTRY_STRICT | state, memory_order_relaxed);
	atomic_fetch_and_explicit(&entry->flags, ~((ENTRY_LEASED | ENTRY_LEASE_BUSY) & ~state),
	                          memory_order_relaxed);
}

void visibility_pass(struct file *f)
{
	/* another process of the family may still have to restore a position */
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (o->pos_mode != POS_KERNEL)
			return;
	/* with a journal each write must be counted, see file->journal.changed */
	if (f->mode == FILE_ATTACHED && !file_is_staged(f) && f->lease.wait_us && !journal_file_is(f))
		atomic_store(&f->lease.pass, true);
}

bool visibility_passes(struct file *f)
{
	if (!atomic_load_explicit(&f->lease.pass, memory_order_relaxed))
		return false;
	stage_pass_begin(f);
	if (atomic_load(&f->lease.pass) && sys_now_ns() < atomic_load(&f->lease.retry_ns))
		return true;
	stage_pass_end(f);
	return false;
}

bool visibility_stop_passing(struct file *f)
{
	atomic_store(&f->lease.pass, false);
	return atomic_load(&f->inflight) == 0;
}

void visibility_drop_slow(struct file *f)
{
	if (!visibility_lease_is_ours(f))
		return;
	if (lease_fd(f) >= 0)
		lease_drop(lease_fd(f));
	visibility_forget(f);
}

void visibility_forget(struct file *f)
{
	if (!visibility_lease_is_ours(f))
		return;
	atomic_store_explicit(&f->lease.on, NULL, memory_order_relaxed);
	visibility_show(f, 0);
	atomic_fetch_sub(&visibility_leases, 1);
}

bool visibility_proves(const struct file *f) { return visibility_lease_intact(f); }

bool journal_file_alone(const struct file *f)
{
	return f->rule->set.writers == WRITERS_EXCLUSIVE || (journal_file_leases(f) && visibility_proves(f));
}
