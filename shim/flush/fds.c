// SPDX-License-Identifier: Apache-2.0
/* fds: see flush/fds.h. */
#include "flush/fds.h"

#include "base/internal_fd.h"
#include "base/lease.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"

#include <fcntl.h>

int flush_program_fd(const struct file *f)
{
	/* only a description with O_APPEND can flush staged appends */
	bool append = f->head && f->kind == STAGE_APPEND;
	/* O_DSYNC (O_SYNC includes it) would make each flush a sync */
	int unwanted = append ? O_DSYNC : O_DSYNC | O_APPEND;
	int second = -1;

	for (const struct ofd *o = f->ofds; o; o = o->next) {
		if (!o->writable || ofd_fd(o) < 0 || (append && !(o->flags & O_APPEND)))
			continue;
		if (!(o->flags & unwanted))
			return ofd_fd(o);
		if (second < 0)
			second = ofd_fd(o);
	}
	return second;
}

int flush_kept_fd(const struct file *f) { return f->left ? file_internal_fd(f) : -1; }

bool flush_is_kept(const struct file *f) { return f->left && flush_program_fd(f) < 0; }

int flush_writable_fd(const struct file *f)
{
	int fd = flush_program_fd(f);

	return fd >= 0 ? fd : flush_kept_fd(f);
}

int flush_any_fd(const struct file *f)
{
	int fd = file_fd(f);

	return fd >= 0 ? fd : flush_kept_fd(f);
}

bool flush_is_nameless(const struct file *f)
{
	int fd = flush_any_fd(f);
	struct statx st;

	return fd >= 0 && sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_NLINK, &st) == 0 &&
	       st.stx_ino == f->ino && sys_dev_of(&st) == f->dev && st.stx_nlink == 0;
}

PROCESS_CODE void flush_close_internal(struct file *f)
{
	internal_fd_close(file_internal_fd(f));
	file_set_internal_fd(f, -1);
	internal_fd_close(file_reader(f));
	file_set_reader(f, -1);
}

int flush_is_the_file(const struct file *f, int fd)
{
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);

	if (r == -EBADF)
		return 0;
	return r < 0 ? r : st.stx_ino == f->ino && sys_dev_of(&st) == f->dev;
}

/* Opens f through program_fd, or by the path in the file entry if program_fd is -1. */
static int open_again(const struct file *f, int program_fd, int flags)
{
	char path[64];
	int fd;

	if (program_fd >= 0) {
		log_format(path, sizeof path, "/proc/self/fd/%d", program_fd);
		fd = sys.openat(AT_FDCWD, path, flags, 0);
	} else {
		fd = sys.openat(AT_FDCWD, arena_entry_at(f->arena, (uint32_t)f->entry)->path,
		                flags | O_NOFOLLOW | O_NONBLOCK, 0);
	}
	if (fd >= 0)
		fd = internal_fd_raise(fd);
	/* only now: another thread may have put its own descriptor there while it was low */
	if (fd >= 0 && flush_is_the_file(f, fd) != 1) {
		internal_fd_close(fd);
		fd = -ESTALE;
	}
	return fd;
}

/* O_DIRECT never suits an append, whose size is not aligned. */
bool flush_internal_fits(struct file *f)
{
	struct file_local *local = file_local(f);
	int flags = f->kind == STAGE_APPEND ? O_WRONLY | O_APPEND : local->internal_flags & ~O_APPEND;

	if (file_internal_fd(f) < 0)
		return false;
	if (local->internal_flags != flags) {
		if (sys.fcntl(file_internal_fd(f), F_SETFL, flags) < 0)
			return false;
		local->internal_flags = flags;
	}
	return true;
}

void flush_reopen_internal(struct file *f, int program_fd)
{
	int flags = O_WRONLY | (f->kind == STAGE_APPEND ? O_APPEND : 0);
	int fd;

	if (flush_internal_fits(f))
		return;
	if (program_fd >= 0 && f->no_internal_fd)
		return;
	flush_close_internal(f);
	fd = open_again(f, program_fd, flags | O_CLOEXEC);
	if (fd < 0)
		return;
	file_set_internal_fd(f, fd);
	file_local(f)->internal_flags = flags;
}

int flush_make_readable(struct file *f)
{
	enum { FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };
	int through = file_fd(f) >= 0 ? file_fd(f) : flush_kept_fd(f), fd;

	if (file_readable_fd(f) >= 0)
		return 0;
	signals_harden();
	/* the close of any descriptor drops the program's locks, and an open breaks a lease, even our own */
	if (f->no_internal_fd || f->lease.on || through < 0 || flush_is_the_file(f, through) != 1)
		return -EBADF;
	fd = open_again(f, through, FLAGS | O_NOATIME);
	if (fd == -EPERM)
		fd = open_again(f, through, FLAGS);
	if (fd < 0)
		return fd;
	file_set_reader(f, fd);
	return 0;
}

int flush_trusted_fd(struct file *f)
{
	for (;;) {
		int fd = flush_program_fd(f);
		int is = fd < 0 ? -EBADF : flush_is_the_file(f, fd);

		if (is != 0)
			return is < 0 ? is : fd;
		log_info("descriptor %d does not name its file any more", fd);
		for (struct ofd *o = f->ofds; o; o = o->next)
			if (ofd_fd(o) == fd)
				ofd_local(o)->refs = 0;
	}
}

bool flush_possible(struct file *f)
{
	if (flush_program_fd(f) >= 0)
		return true;
	flush_reopen_internal(f, -1);
	/* the file was renamed or unlinked */
	if (file_internal_fd(f) < 0 && file_fd(f) >= 0)
		flush_reopen_internal(f, file_fd(f));
	return file_internal_fd(f) >= 0;
}

void flush_borrow(struct ofd *o) { atomic_store(&o->borrowed, OFD_BORROWED); }

struct ofd *flush_borrow_fd(const struct file *f, int fd)
{
	struct ofd *o = f->ofds;

	while (ofd_fd(o) != fd)
		o = o->next;
	flush_borrow(o);
	return o;
}

void flush_return(struct ofd *o, int flags)
{
	if (flags == o->flags)
		atomic_store(&o->borrowed, OFD_OWN);
	else
		ofd_left(o);
}

bool flush_take_lease(const struct file *f, int fd)
{
	struct ofd *o;

	if (!f->lease.proves || atomic_load(&f->flush.busy))
		return false; /* a running flush may hold this lease already */
	if (fd == flush_kept_fd(f))
		return lease_take_own(fd) == 0; /* no description of the program's */
	o = flush_borrow_fd(f, fd);
	if (lease_take_own(fd) == 0)
		return true;
	flush_return(o, o->flags);
	return false;
}

void flush_drop_lease(const struct file *f, int fd)
{
	struct ofd *o = fd == flush_kept_fd(f) ? NULL : flush_borrow_fd(f, fd);

	lease_drop_own(fd);
	if (o)
		flush_return(o, o->flags);
}
