// SPDX-License-Identifier: Apache-2.0
/* child: see process/child.h. */
#include "process/child.h"

#include "attach/attach.h"
#include "attach/stop.h"
#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "descriptors/fd.h"
#include "descriptors/unresolved.h"
#include "files/fdtable.h"
#include "files/gate.h"
#include "flush/flush.h"
#include "flush/ordered.h"
#include "flush/prealloc.h"
#include "process/inherit.h"
#include "staging/arena.h"
#include "staging/tail.h"
#include "sync/journal_file.h"

#include <fcntl.h>

/* The child of this thread's vfork ended by a hooked exec or exit.  (Both use the storage of one thread.) */
static __thread bool known;

static void inherit_all(void) { file_give_up_all(BYPASS_INHERITED); }

/* ---- before, in and after a child of vfork ---- */

static void visit_hold(struct file *f, void *ctx)
{
	struct file_guard g;

	(void)ctx;
	file_restore(f);
	if (f->mode == FILE_BYPASSED)
		return;
	/* Take the lock even if nothing is staged: a thread that has not seen the hold may be attaching the
	 * file. */
	g = file_lock(f);
	/* other processes of the family are not held while the new program begins */
	if (file_others_have(f) && attach_stays_open(f))
		attach_bypass(f, BYPASS_INHERITED);
	else if (f->mode == FILE_ATTACHED && f->arena && attach_let_go(f) == 0)
		prealloc_before_vfork(f);
	file_unlock(f, g);
}

void child_vfork_prepare(struct child_vfork *v)
{
	*v = (struct child_vfork){.signals = signals_block(), .tid = lock_tid, .outer = fork_guard_vforked};
	known = false;
	if (fork_guard_elsewhere())
		return;
	young_other();
	/* a descriptor that is only noted could not be bypassed afterwards */
	unresolved_resolve_all();
	gate_hold();
	gate_child_begin();
	file_for_each(visit_hold, NULL);
	(void)ordered_barrier(NULL); /* (what could not be written stays staged) */
	attach_drain_elsewhere();
}

void child_vfork_child(const struct child_vfork *v)
{
	lock_tid = 0;
	fork_guard_vforked = true;
	/* until exec closes them, internal descriptors are in the way of the child's own descriptors and
	 * locks */
	if (!v->outer)
		internal_fd_close_copies();
	sys_restore_signals(v->signals);
}

/* The child had the same descriptions, and may have changed their flags. */
static bool flags_changed(const struct file *f)
{
	enum { STATUS = O_APPEND | O_DIRECT | O_SYNC | O_DSYNC };

	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (ofd_fd(o) >= 0 && ((sys.fcntl(ofd_fd(o), F_GETFL, 0) ^ o->flags) & STATUS))
			return true;
	return false;
}

static void refresh(struct file *f)
{
	int fd = flush_program_fd(f);

	tail_forget(f);
	journal_file_changed(f);
	if (flush_left(f) || fd < 0)
		return;
	attach_refresh(f, fd);
	/* holes where space was reserved: the reservation may have been cut off */
	if (f->sparse)
		prealloc_trim(f, fd);
}

static void visit_unhold(struct file *f, void *ctx)
{
	enum bypass_reason why;
	struct file_guard g;

	(void)ctx;
	if (f->refs == 0)
		return;
	g = file_lock(f);
	why = atomic_exchange(&f->give_up, BYPASS_NONE);
	if (f->refs != 0 && f->mode != FILE_BYPASSED) {
		if (why == BYPASS_NONE && flags_changed(f))
			why = BYPASS_INHERITED;
		if (why != BYPASS_NONE)
			attach_bypass(f, why);
		else if (f->mode == FILE_ATTACHED && f->arena)
			refresh(f);
	}
	file_unlock(f, g);
}

void child_vfork_parent(const struct child_vfork *v, bool made)
{
	lock_tid = v->tid;
	fork_guard_vforked = v->outer;
	if (made && !known)
		inherit_all(); /* killed, or a system call that no hook saw: any file may be inherited */
	known = false;
	inherit_release(); /* memory that the child took before its exec */
	if (!fork_guard_elsewhere()) {
		/* descriptors that other threads opened meanwhile: the new program may have them */
		for (int fd = unresolved_next(0); fd >= 0 && made; fd = unresolved_next(fd + 1))
			fd_use_unmodelled(fd, BYPASS_INHERITED);
		file_for_each(visit_unhold, NULL);
		gate_child_end();
		gate_unhold();
	}
	sys_restore_signals(v->signals);
}

/* ---- in the child ---- */

/* Notes the file of a descriptor that the new program inherits and can write to. */
static void note_inherited(int fd)
{
	long flags = sys.fcntl(fd, F_GETFD, 0);
	struct statx st;

	if (flags < 0 || (flags & FD_CLOEXEC))
		return;
	flags = sys.fcntl(fd, F_GETFL, 0);
	if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_RDONLY)
		return;
	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO, &st) < 0)
		inherit_all();
	else if ((st.stx_mode & S_IFMT) == S_IFREG)
		file_give_up(sys_dev_of(&st), st.stx_ino, BYPASS_INHERITED);
}

void child_exec_prepare(void)
{
	char buf[1024] __attribute__((aligned(8)));
	struct sys_dir entries = {.buf = buf, .size = sizeof buf};
	const struct sys_dirent *d;

	known = true;
	if (!file_any_open())
		return;
	entries.fd = sys.openat(AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (entries.fd < 0) {
		inherit_all();
		return;
	}
	while ((d = sys_dir_next(&entries)) != NULL)
		if (sys_dirent_fd(d) >= 0)
			note_inherited(sys_dirent_fd(d));
	if (entries.filled < 0)
		inherit_all();
	sys.close(entries.fd);
}

void child_exec_failed(void) { known = false; }
void child_forks(void) { inherit_all(); }
void child_ends(void) { known = true; }

/* ---- programs that the C library starts ---- */

/* Descriptors that file actions duplicate, by number, because only the C library knows when it looks them up.
 * They are never forgotten: a file that gets such a descriptor later is bypassed at the next spawn with
 * actions. */
static struct {
	_Atomic bool high; /* a descriptor from FDTABLE_CHUNK on */
	_Atomic uint64_t low[FDTABLE_CHUNK / 64];
} named;

void child_actions_dup(int fd)
{
	if (fd >= FDTABLE_CHUNK)
		atomic_store(&named.high, true);
	else if (fd >= 0)
		atomic_fetch_or(&named.low[fd / 64], 1ull << (fd % 64));
}

static bool is_named(int fd)
{
	return fd >= FDTABLE_CHUNK ? atomic_load(&named.high)
	                           : atomic_load(&named.low[fd / 64]) >> (fd % 64) & 1;
}

static bool inherits(int fd, bool by_actions)
{
	return !(sys.fcntl(fd, F_GETFD, 0) & FD_CLOEXEC) || (by_actions && is_named(fd));
}

static void visit_spawn(struct file *f, void *ctx)
{
	enum bypass_reason why;
	struct file_guard g;

	(void)ctx;
	file_restore(f);
	if (f->refs == 0 || f->mode == FILE_BYPASSED)
		return;
	g = file_lock(f);
	why = atomic_exchange(&f->give_up, BYPASS_NONE);
	if (f->refs != 0 && why != BYPASS_NONE)
		attach_bypass(f, why);
	else if (f->mode == FILE_ATTACHED && f->arena)
		attach_let_go(f);
	file_unlock(f, g);
}

void child_spawn_prepare(bool by_actions)
{
	if (fork_guard_vforked) {
		child_exec_prepare();
		child_exec_failed(); /* the child itself has still to exec or end */
		if (by_actions)
			inherit_all();
		return;
	}
	young_other();
	for (int fd = unresolved_next(0); fd >= 0; fd = unresolved_next(fd + 1))
		if (inherits(fd, by_actions))
			fd_forget_unresolved(fd);
	for (int fd = fdtable_next(0, ~0u); fd >= 0; fd = fdtable_next((unsigned)fd + 1, ~0u)) {
		struct ofd *o = fdtable_get(fd);

		if (o && o->writable && inherits(fd, by_actions))
			atomic_store(&atomic_load(&o->file)->give_up, BYPASS_INHERITED);
	}
	file_for_each(visit_spawn, NULL);
	(void)ordered_barrier(NULL); /* (what could not be written stays staged) */
	attach_drain_elsewhere();
}

void child_give_up(void)
{
	log_info("memory or descriptors are about to be shared by clone: nothing is staged any more");
	attach_stop_all(BYPASS_CLONE);
	unresolved_clear_all();
	fork_guard_stop();
}
