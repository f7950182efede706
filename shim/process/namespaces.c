// SPDX-License-Identifier: Apache-2.0
/* namespaces: see process/namespaces.h. */
#include "process/namespaces.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "attach/watcher.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "descriptors/by_name.h"
#include "descriptors/fd.h"
#include "files/family.h"
#include "files/workers.h"
#include "sync/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>

enum credentials_change namespaces_change(int flags)
{
	if (flags & CLONE_NEWPID)
		family_end();
	return flags & CLONE_NEWUSER ? CREDENTIALS_CHANGE : CREDENTIALS_STAY;
}

bool namespaces_one_thread(void)
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

struct namespaces_state namespaces_begin(bool files)
{
	struct namespaces_state state = {.stopped = false};

	if (!live_config || fd_foreign_process())
		return state;
	/* descriptors then mean one thing here and another there */
	if (files && !namespaces_one_thread())
		attach_refuse(BYPASS_UNKNOWN_FD);
	if (thread_count() == 0)
		return state;
	by_name_drain_all();
	state.signals = signals_block();
	attach_pause();
	watcher_stop();
	journal_stop();
	workers_stop();
	state.stopped = true;
	return state;
}

void namespaces_end(struct namespaces_state state)
{
	int error = errno;

	if (!state.stopped)
		return;
	attach_unpause();
	if (workers_resume() < 0)
		attach_refuse(BYPASS_NO_THREAD);
	sys_restore_signals(state.signals);
	errno = error;
}

long namespaces_close_range(unsigned from, unsigned to, int flags,
                            long (*next)(unsigned from, unsigned to, int flags))
{
	const unsigned known = CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE;
	struct namespaces_state state = {.stopped = false};
	long r;

	if (from <= to && (flags & CLOSE_RANGE_UNSHARE) && !((unsigned)flags & ~known))
		state = namespaces_begin(true);
	r = fd_close_range(from, to, flags, next);
	namespaces_end(state);
	return r;
}
