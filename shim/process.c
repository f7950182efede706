// SPDX-License-Identifier: Apache-2.0
/* process: see process.h. */
#include "process.h"

#include "alive.h"
#include "engage.h"
#include "engine.h"
#include "fd.h"
#include "fdtable.h"
#include "flush.h"
#include "lazy.h"
#include "stage.h"
#include "stats.h"
#include "sys.h"

#include <fcntl.h>

static struct process_fork forking;

static void visit_fork(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	if (f->refs == 0 || f->mode == FILE_THROUGH)
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	if (f->refs && f->mode != FILE_THROUGH)
		engage_through(f, THROUGH_FORK, g.nested);
	file_unlock(f, g);
}

void process_fork_prepare(void)
{
	sys_sigset signals;

	if (!engage_config)
		return;
	signals = sys_block_signals();
	engage_pause();
	lazy_clear_all();
	file_for_each(visit_fork, NULL);
	forking.signals = signals;
	forking.watch = 1;
}

void process_fork_parent(void)
{
	if (!forking.watch)
		return;
	forking.watch = 0;
	engage_unpause();
	sys_restore_signals(forking.signals);
}

void process_fork_child(void)
{
	uint64_t signals = forking.signals;

	if (!forking.watch)
		return;
	forking.watch = 0;
	lock_after_fork();
	engine_after_fork();
	engage_after_fork();
	own_fd_close_all();
	fdtable_reset();
	file_pools_reset();
	fd_set_process();
	alive_set();
	sys_restore_signals(signals);
}

void process_exec_prepare(void)
{
	if (engage_config && !fd_foreign_process())
		engage_stop_all(THROUGH_EXEC);
	else if (engage_config && file_engaged_count)
		/* a vfork child: the parent's files are settled, its bookkeeping stays */
		process_spawn_prepare();
}

void process_exec_failed(void)
{
	if (engage_config && !fd_foreign_process())
		engage_resume_all(THROUGH_EXEC);
}

static void visit_spawn(struct file *f, void *ctx)
{
	struct file_guard g;
	bool inherited = false;

	(void)ctx;
	if (f->refs == 0 || f->mode == FILE_THROUGH)
		return;
	g = file_lock(f);
	if (g.nested)
		stage_interrupt(f);
	for (struct ofd *o = f->ofds; o && !inherited; o = o->next) {
		for (int fd = fdtable_next(0, ~0u); fd >= 0 && !inherited;
		     fd = fdtable_next((unsigned)fd + 1, ~0u))
			inherited = fdtable_get(fd) == o && o->writable &&
			            !(sys.fcntl(fd, F_GETFD, 0) & FD_CLOEXEC);
	}
	if (inherited)
		engage_through(f, THROUGH_EXEC, g.nested);
	else if (f->mode == FILE_ENGAGED && f->arena)
		flush_hand_over(f, g.nested);
	file_unlock(f, g);
}

void process_spawn_prepare(void)
{
	if (!engage_config)
		return;
	lazy_clear_all();
	file_for_each(visit_spawn, NULL);
}

void process_exit(void)
{
	if (!engage_config || fd_foreign_process())
		return;
	engage_stop_all(THROUGH_EXIT);
	stats_report();
}
