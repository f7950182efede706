// SPDX-License-Identifier: Apache-2.0
/* apart: see process/apart.h. */
#include "process/apart.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "attach/watcher.h"
#include "base/internal_fd.h"
#include "base/lock.h"
#include "base/sys.h"
#include "base/thread.h"
#include "descriptors/by_name.h"
#include "descriptors/fd.h"
#include "descriptors/unresolved.h"
#include "files/family.h"
#include "files/fdtable.h"
#include "files/workers.h"
#include "flush/visibility.h"
#include "staging/arena.h"
#include "staging/stage.h"

#include <fcntl.h>
#include <sched.h>

static void visit_fork(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	if (f->mode == FILE_THROUGH)
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (f->refs && f->mode != FILE_THROUGH)
		attach_bypass(f, BYPASS_FORK, g.nested);
	file_unlock(f, g);
}

long apart_fork(long (*make)(const long *arguments), const long *arguments)
{
	sys_sigset signals;
	bool interrupted;
	long r;

	if (!live_config || fd_foreign_process())
		return make(arguments);
	signals = sys_block_signals();
	attach_pause();
	unresolved_clear_all();
	interrupted = stage_forks();
	file_for_each(visit_fork, NULL);
	r = make(arguments);
	if (r != 0) {
		attach_unpause();
	} else {
		/* The kernel wiped the alive page: nothing here is managed any more. */
		lock_after_fork();
		thread_after_fork();
		workers_after_fork();
		watcher_after_fork();
		journal_after_fork();
		attach_forget(interrupted);
		family_forget();
		internal_fd_close_all();
		fdtable_reset();
		unresolved_fork_child();
		file_pools_reset();
	}
	sys_restore_signals(signals);
	return r;
}

void apart_clone(void)
{
	if (!live_config || fd_foreign_process())
		return;
	unresolved_clear_all();
	attach_refuse(BYPASS_FORK);
}

enum credentials_change apart_namespaces(int flags)
{
	if (flags & CLONE_NEWPID)
		family_end();
	return flags & CLONE_NEWUSER ? CREDENTIALS_CHANGE : CREDENTIALS_STAY;
}

bool apart_alone(void)
{
	char buf[1024] __attribute__((aligned(8)));
	int dir = sys.openat(AT_FDCWD, "/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	struct sys_dir entries = {.fd = dir, .buf = buf, .size = sizeof buf};
	const struct sys_dirent *d;
	uint32_t tasks = 0;

	/* without /proc, as after chroot: what the kernel refuses to a process with several threads */
	if (dir < 0)
		return thread_count() == 0 && sys_raw(SYS_unshare, CLONE_THREAD, 0, 0, 0, 0, 0) == 0;
	while ((d = sys_dir_next(&entries)) != NULL)
		tasks += d->name[0] != '.';
	sys.close(dir);
	return entries.filled == 0 && tasks == thread_count() + 1;
}

struct apart apart_begin(bool files)
{
	struct apart a = {.stopped = false};

	if (!live_config || fd_foreign_process())
		return a;
	/* descriptors then mean one thing here and another there */
	if (files && !apart_alone())
		attach_refuse(BYPASS_UNKNOWN_FD);
	if (thread_count() == 0)
		return a;
	by_name_settle_all();
	a.signals = sys_block_signals();
	attach_pause();
	watcher_stop();
	journal_stop();
	workers_stop();
	a.stopped = true;
	return a;
}

void apart_end(struct apart a)
{
	if (!a.stopped)
		return;
	attach_unpause();
	if (workers_resume() < 0)
		attach_refuse(BYPASS_NO_THREAD);
	sys_restore_signals(a.signals);
}

long apart_close_range(unsigned from, unsigned to, int flags,
                       long (*next)(unsigned from, unsigned to, int flags))
{
	const unsigned known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
	struct apart apart = {.stopped = false};
	long r;

	if (from <= to && (flags & CLOSE_RANGE_UNSHARE) && !((unsigned)flags & ~known))
		apart = apart_begin(true);
	r = fd_close_range(from, to, flags, next);
	apart_end(apart);
	return r;
}
