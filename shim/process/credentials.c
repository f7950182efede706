// SPDX-License-Identifier: Apache-2.0
/* credentials: see process/credentials.h. */
#include "process/credentials.h"

#include "attach/attach.h"
#include "attach/repair.h"
#include "attach/stop.h"
#include "attach/watcher.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "descriptors/fd.h"
#include "descriptors/left_bytes.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/never_staged.h"
#include "files/workers.h"
#include "flush/ordered.h"
#include "flush/visibility.h"
#include "process/namespaces.h"
#include "staging/stage.h"
#include "sync/journal.h"

#include <linux/capability.h>

/* A program that changes its ids for each request would make an arena each time: it stages no more. */
enum { CHANGES_MAX = 16 };

/* No file was managed and no child forked; or this process manages nothing. */
static bool nothing_to_do(void) { return !file_family() || !live_config || fd_foreign_process(); }

static enum credentials_change of_ids(long number, const uint32_t wanted[3])
{
	uint32_t now[3];

	if (nothing_to_do())
		return CREDENTIALS_STAY;
	if (sys_raw(number, (long)&now[0], (long)&now[1], (long)&now[2], 0, 0, 0) < 0)
		return CREDENTIALS_CHANGE;
	for (int i = 0; i < 3; i++)
		if (wanted[i] != UINT32_MAX && wanted[i] != now[i])
			return CREDENTIALS_CHANGE;
	return CREDENTIALS_STAY;
}

enum credentials_change credentials_of_users(uint32_t real, uint32_t effective, uint32_t saved)
{
	return of_ids(SYS_getresuid, (uint32_t[3]){real, effective, saved});
}

enum credentials_change credentials_of_groups(uint32_t real, uint32_t effective, uint32_t saved)
{
	return of_ids(SYS_getresgid, (uint32_t[3]){real, effective, saved});
}

/* Copies the program's argument; false if it cannot be read. */
static bool read_program(void *out, const void *from, size_t size)
{
	struct iovec here = {out, size}, there = {(void *)(uintptr_t)from, size};

	return sys_raw(SYS_process_vm_readv, sys_getpid(), (long)&here, 1, (long)&there, 1, 0) == (long)size;
}

/* Effective capabilities can change at any time within the permitted ones.  So only a change of the permitted
 * ones counts. */
enum credentials_change credentials_of_capabilities(const void *header, const void *data)
{
	struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct wanted[2], now[2];

	if (nothing_to_do())
		return CREDENTIALS_STAY;
	if (!read_program(&h, header, sizeof h) || h.version != _LINUX_CAPABILITY_VERSION_3 ||
	    !read_program(wanted, data, sizeof wanted))
		return CREDENTIALS_CHANGE;
	h.pid = 0;
	if (sys_raw(SYS_capget, (long)&h, (long)now, 0, 0, 0, 0) < 0)
		return CREDENTIALS_CHANGE;
	return wanted[0].permitted == now[0].permitted && wanted[1].permitted == now[1].permitted
	               ? CREDENTIALS_STAY
	               : CREDENTIALS_CHANGE;
}

static void visit_through(struct file *f, void *ctx)
{
	struct file_guard g = file_lock(f);

	(void)ctx;
	if (f->refs && f->mode != FILE_BYPASSED)
		attach_bypass(f, BYPASS_RIGHTS);
	file_unlock(f, g);
}

/* Leaves a family with other living processes.  To them it looks killed, with everything flushed. */
static void leave_family(void)
{
	sys_sigset signals;

	file_for_each(visit_through, NULL);
	watcher_stop();
	journal_stop();
	workers_stop();
	signals = signals_block();
	/* Another thread, or a thread interrupted by a signal handler, may hold a lock in the shared memory.
	 * The other processes would wait for it until that thread ends.  A thread of the library that is late
	 * (it was not scheduled) still uses that memory. */
	if (thread_count() > 0 || !namespaces_one_thread() || stage_forks()) {
		sys_restore_signals(signals);
		workers_resume();
		attach_refuse(BYPASS_RIGHTS);
		log_warn(
			"ids change while other threads run: memory is still shared with processes of other rights");
		return;
	}
	unresolved_clear_all();
	family_leave();
	watcher_after_fork();
	journal_after_fork();
	workers_after_fork();
	attach_forget(false);
	attach_still_stopped();
	family_forget();
	never_staged_unshare();
	internal_fd_close_all();
	fdtable_reset();
	unresolved_fork_child(true);
	file_pools_reset();
	sys_restore_signals(signals);
}

/* True if no other process of the family lives. */
static bool end_family(void)
{
	enum { TRIES = 100 };

	/* (the parent of a daemon may be about to end) */
	for (int tries = 0; tries < TRIES && ordered_any() && family_is_left(); tries++)
		sys_nap(1000000);
	return attach_end_family(true);
}

bool credentials_begin(enum credentials_change change)
{
	static _Atomic uint32_t changes;

	/* a child outside of the family shares nothing else with its parent */
	if (!file_family() && !fork_guard_vforked)
		never_staged_unshare();
	if (change == CREDENTIALS_STAY || nothing_to_do() || (attach_refused() && !family_is_shared()))
		return false;
	if (file_attached() > 0 && atomic_fetch_add(&changes, 1) == CHANGES_MAX)
		attach_refuse(BYPASS_RIGHTS);
	attach_stop_all(BYPASS_RIGHTS);
	if (!family_is_shared() || end_family())
		attach_abandon_failed();
	else if (change == CREDENTIALS_CHANGE)
		leave_family();
	return true;
}

void credentials_end(bool begun)
{
	if (begun)
		attach_rights_changed(BYPASS_RIGHTS);
	left_bytes_set_process();
}

void credentials_of_thread(void)
{
	if (live_config && !fork_guard_elsewhere())
		attach_refuse(BYPASS_RIGHTS);
}
