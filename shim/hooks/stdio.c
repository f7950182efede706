// SPDX-License-Identifier: Apache-2.0
/*
 * stdio: streams are made and closed, and dprintf.  hooks/stream_table.c sees what a stream does to its
 * descriptor.  Here the descriptor becomes known, as in an open.  If the library does not see streams
 * (fd_streams_seen), a file with a stream is drained and bypassed.
 */
#include "hooks/hook.h"

#include "base/internal_fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "files/fdtable.h"
#include "hooks/cancel.h"
#include "hooks/stream_table.h"

#include <fcntl.h>
#include <mntent.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ---- streams that the library does not see ---- */

static FILE *unseen_made(FILE *stream)
{
	int before = errno;

	if (stream) {
		int fd = fileno(stream);

		if (fd >= 0)
			fd_use_stdio(fd);
		errno = before;
	}
	return stream;
}

/* ---- a stream is made ---- */

struct mode {
	int flags;   /* flags of open; -1: invalid mode */
	bool mapped; /* 'm': may read through a mapping, which the library does not see */
};

/* An invalid mode, with which freopen closes the stream and fails. */
static const char CLOSES_ONLY[] = "";

/* How many characters of a mode fopen and fdopen read. */
enum { FOPEN_LOOKS_AT = 7, FDOPEN_LOOKS_AT = 5 };

static struct mode mode_of(const char *text, int length)
{
	struct mode m = {0};

	switch (text[0]) {
	case 'r': m.flags = O_RDONLY; break;
	case 'w': m.flags = O_WRONLY | O_CREAT | O_TRUNC; break;
	case 'a': m.flags = O_WRONLY | O_CREAT | O_APPEND; break;
	default: m.flags = -1; return m;
	}
	for (int i = 1; i < length && text[i]; i++) {
		switch (text[i]) {
		case '+': m.flags = (m.flags & ~O_ACCMODE) | O_RDWR; break;
		case 'x': m.flags |= O_EXCL; break;
		case 'e': m.flags |= O_CLOEXEC; break;
		case 'm': m.mapped = true; break;
		}
	}
	return m;
}

static void before_open(struct fd_open *op, const struct mode *m, const char *path)
{
	if (m->flags & (O_TRUNC | O_CREAT))
		cancel_point(); /* there is none between here and fd_open_end */
	fd_open_prepare(op, AT_FDCWD, path, m->flags);
	/* the C library sets the stream's position to the end that the kernel knows */
	if (path && (m->flags & O_APPEND))
		by_name_drain_path(AT_FDCWD, path, true);
}

static FILE *after_open(struct fd_open *op, const struct mode *m, FILE *stream)
{
	if (stream)
		marked_fds_forget(stream->_fileno);
	if (stream && m->mapped)
		fd_use_stdio(stream->_fileno);
	else if (stream && fd_open_concerns(op))
		fd_opened(op, stream->_fileno);
	fd_open_end(op);
	return stream;
}

static FILE *open_stream(FILE *(*next)(const char *, const char *), const char *path, const char *mode)
{
	struct mode m = mode_of(mode, FOPEN_LOOKS_AT);
	struct fd_open op;
	FILE *stream;
	int before;

	if (m.flags < 0)
		return next(path, mode);
	if (!fd_streams_seen) {
		/* a mode that truncates must not cut off bytes before they are in the file */
		long r = path ? by_name_drain_path(AT_FDCWD, path, true) : 0;

		if (r < 0 && (m.flags & O_TRUNC)) {
			hook_result(r);
			return NULL;
		}
		return unseen_made(next(path, mode));
	}
	before = errno;
	before_open(&op, &m, path);
	if (op.error) {
		hook_result(op.error);
		return after_open(&op, &m, NULL);
	}
	do
		stream = next(path, mode);
	while (!stream && hook_again(before));
	return after_open(&op, &m, stream);
}

EXPORT FILE *fopen(const char *path, const char *mode) { return open_stream(real.fopen, path, mode); }
EXPORT FILE *setmntent(const char *path, const char *mode) { return open_stream(real.setmntent, path, mode); }

EXPORT FILE *tmpfile(void)
{
	static const struct mode m = {.flags = O_RDWR | O_CREAT | O_EXCL};
	struct fd_open op;
	FILE *stream;
	int before;

	if (!fd_streams_seen)
		return unseen_made(real.tmpfile());
	before = errno;
	before_open(&op, &m, NULL);
	do
		stream = real.tmpfile();
	while (!stream && hook_again(before));
	return after_open(&op, &m, stream);
}

/* ---- a stream changes its file ---- */

static FILE *unseen_reopen(const char *path, const char *mode, FILE *stream)
{
	int before = errno;
	int fd = stream ? fileno(stream) : -1;
	long r = path ? by_name_drain_path(AT_FDCWD, path, true) : 0;
	bool refused = r < 0 && (mode_of(mode, FOPEN_LOOKS_AT).flags & O_TRUNC);

	if (fd >= 0 && path)
		fd_close_prepare(fd);
	errno = before;
	stream = real.freopen(path, refused ? CLOSES_ONLY : mode, stream);
	if (refused)
		hook_result(r);
	return unseen_made(stream);
}

/* freopen needs one more descriptor, and closes the stream if there is none.  Closes an internal one if
 * necessary. */
static void make_room(int fd)
{
	long copy = sys.fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy >= 0)
		sys.close((int)copy);
	else if (copy == -EMFILE)
		fd_spare_internal();
}

/* The stream is locked.  Flushes it while its descriptor is still known.  Then treats the descriptor as
 * closed, because the C library replaces and closes it by internal calls. */
static FILE *reopen_locked(const char *path, const char *mode, FILE *stream)
{
	struct mode m = mode_of(mode, FOPEN_LOOKS_AT);
	int before = errno;
	char same[64];
	struct fd_open op = {.error = 0};
	int fd;

	fflush_unlocked(stream);
	fd = fileno_unlocked(stream);
	log_format(same, sizeof same, "/proc/self/fd/%d", fd);
	if (m.flags >= 0)
		before_open(&op, &m, path ? path : same);
	if (fd >= 0) {
		make_room(fd);
		fd_close_prepare(fd);
	}
	errno = before;
	stream = real.freopen(path, op.error ? CLOSES_ONLY : mode, stream);
	if (op.error)
		hook_result(op.error);
	return m.flags >= 0 ? after_open(&op, &m, stream) : stream;
}

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream)
{
	FILE *result;
	int cancels;

	if (!fd_streams_seen)
		return unseen_reopen(path, mode, stream);
	if (stream->_flags & _IO_USER_LOCK)
		return reopen_locked(path, mode, stream);
	/* (a thread that is cancelled there would leave the stream locked) */
	cancel_point();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels);
	flockfile(stream);
	result = reopen_locked(path, mode, stream);
	funlockfile(stream);
	pthread_setcancelstate(cancels, NULL);
	return result;
}

/* ---- a stream on a descriptor ---- */

/* Mode "a" sets O_APPEND by an internal call of the C library.  Sets it here instead, where the library sees
 * it.  True if that was necessary.  Then the C library would have moved to the end, too, unless the stream is
 * also read. */
static bool make_appending(int fd, struct ofd *o, int flags)
{
	/* another program that inherited the description may have changed its flags */
	long now = fd_fcntl(fd, o, F_GETFL, 0);
	int access = (int)now & O_ACCMODE;

	return now >= 0 && !(now & O_APPEND) && (access == O_RDWR || access == (flags & O_ACCMODE)) &&
	       fd_fcntl(fd, o, F_SETFL, now | O_APPEND) == 0 && (flags & O_ACCMODE) == O_WRONLY;
}

EXPORT FILE *fdopen(int fd, const char *mode)
{
	struct mode m = mode_of(mode, FDOPEN_LOOKS_AT);
	struct ofd *o = unresolved_used(fd);
	bool to_end = false;
	FILE *stream;

	if (internal_fd_is(fd) && m.flags >= 0) {
		errno = EBADF;
		return NULL;
	}
	if (fdtable_knows(fd) && m.flags >= 0) {
		if (!fd_streams_seen || m.mapped)
			fd_use_stdio(fd);
		else if (o && (m.flags & O_APPEND))
			to_end = make_appending(fd, o, m.flags);
	}
	stream = real.fdopen(fd, mode);
	if (stream && to_end)
		lseek(fd, 0, SEEK_END);
	return stream;
}

EXPORT int fclose(FILE *stream)
{
	int before = errno;
	int fd = stream && !stream_table_sees(stream) ? fileno(stream) : -1;

	marked_fds_forget(fd);
	/* fclose closes the descriptor by an internal call */
	if (fd >= 0 && fdtable_knows(fd))
		fd_close_prepare(fd);
	errno = before;
	return real.fclose(stream);
}

/* ---- dprintf ---- */

/*
 * Some versions of the C library print into a stream of their own.  Others write pieces by internal calls.
 * Here the bytes are made in memory and go out in one write; the file gets the same bytes.  Output that does
 * not fit in a small buffer gets a mapping: like the C library's own dprintf, this must not call malloc.
 */
struct print {
	int fd;
	int flag; /* of the fortified form; -1: the plain form */
	const char *format;
};

extern int __vsnprintf_chk(char *buf, size_t size, int flag, size_t room, const char *format, va_list args);

static int print_format(const struct print *p, char *buf, size_t size, va_list args)
{
	va_list copy;
	int n;

	va_copy(copy, args);
	n = p->flag < 0 ? vsnprintf(buf, size, p->format, copy)
	                : __vsnprintf_chk(buf, size, p->flag, size, p->format, copy);
	va_end(copy);
	return n;
}

/* 0 or -1 and errno. */
static int print_put(int fd, const char *text, size_t size)
{
	while (size > 0) {
		ssize_t n = hook_write(fd, text, size);

		if (n < 0)
			return -1;
		text += n;
		size -= (size_t)n;
	}
	return 0;
}

static int print_large(const struct print *p, int n, va_list args, bool *printed)
{
	size_t size = (size_t)n + 1;
	char *buf = sys.mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int before = errno;
	int r = -1;

	*printed = false;
	if (sys_is_error(buf))
		return -1;
	/* another thread may have changed the arguments */
	if (print_format(p, buf, size, args) == n) {
		errno = before;
		*printed = true;
		r = print_put(p->fd, buf, (size_t)n) < 0 ? -1 : n;
	}
	sys.munmap(buf, size);
	return r;
}

/* Returns the result of dprintf.  *printed false: nothing was done, and the C library must do it. */
static int print(const struct print *p, va_list args, bool *printed)
{
	int before = errno;
	char buf[1024];
	int n, r;

	*printed = false;
	if (!fdtable_knows(p->fd))
		return -1;
	if (!fd_streams_seen || p->fd == 2) {
		fd_use_stdio(p->fd);
		return -1;
	}
	n = print_format(p, buf, sizeof buf, args);
	errno = before;
	if (n >= 0 && (size_t)n < sizeof buf) {
		*printed = true;
		r = print_put(p->fd, buf, (size_t)n) < 0 ? -1 : n;
	} else {
		r = n < 0 ? -1 : print_large(p, n, args, printed);
	}
	if (!*printed) {
		/* the C library decides what is printed before the failure */
		fd_use_stdio(p->fd);
		errno = before;
	} else if (r >= 0) {
		errno = before;
	}
	return r;
}

static int print_plain(int fd, const char *format, va_list args)
{
	struct print p = {.fd = fd, .flag = -1, .format = format};
	bool printed;
	int r = print(&p, args, &printed);

	return printed ? r : real.vdprintf(fd, format, args);
}

static int print_fortified(int fd, int flag, const char *format, va_list args)
{
	struct print p = {.fd = fd, .flag = flag > 0 ? flag : 0, .format = format};
	bool printed;
	int r = print(&p, args, &printed);

	return printed ? r : real.__vdprintf_chk(fd, flag, format, args);
}

EXPORT int vdprintf(int fd, const char *format, va_list args) { return print_plain(fd, format, args); }

EXPORT int dprintf(int fd, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = print_plain(fd, format, args);
	va_end(args);
	return r;
}

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args);
EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...);

EXPORT int __vdprintf_chk(int fd, int flag, const char *format, va_list args)
{
	return print_fortified(fd, flag, format, args);
}

EXPORT int __dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list args;
	int r;

	va_start(args, format);
	r = print_fortified(fd, flag, format, args);
	va_end(args);
	return r;
}

ALIAS_OF(__setmntent, setmntent);
TWIN(fopen64, fopen);
TWIN(freopen64, freopen);
TWIN(tmpfile64, tmpfile);
