// SPDX-License-Identifier: Apache-2.0
/* hook: shared by the exported symbols.  A hook asks the core, and turns its answer into -1 and errno. */
#ifndef FASTWRITE_HOOKS_HOOK_H
#define FASTWRITE_HOOKS_HOOK_H

#include "descriptors/by_name.h"
#include "descriptors/directory.h"
#include "descriptors/fd.h"
#include "descriptors/io.h"
#include "descriptors/unresolved.h"
#include "files/fdtable.h"
#include "files/marked_fds.h"
#include "hooks/real.h"

#include <errno.h>
#include <sys/socket.h>

/* Declared by glibc from 2.34 on. */
#if !__GLIBC_PREREQ(2, 34)
extern int close_range(unsigned from, unsigned to, int flags);
extern void closefrom(int from);
extern int execveat(int dirfd, const char *path, char *const argv[], char *const env[], int flags);
extern pid_t _Fork(void);
#endif
/* glibc declares it from 2.36 on. */
#if !__GLIBC_PREREQ(2, 36)
struct mount_attr;
extern int mount_setattr(int dirfd, const char *path, unsigned flags, struct mount_attr *attributes,
                         size_t size);
#endif

/* The headers promise that paths are not NULL.  Programs pass NULL all the same, and the kernel returns
 * EFAULT. */
#pragma GCC diagnostic ignored "-Wnonnull-compare"

#define EXPORT __attribute__((visibility("default")))
/* Exports the function under another name, which older headers may declare with other types. */
#define ALIAS_OF(other, name) \
	extern __typeof(name) alias_##other __asm__(#other) EXPORT __attribute__((alias(#name)))
/* The name that ends in 64, as the headers declare it.  All sizes and offsets have 64 bits in both. */
#define TWIN(name64, name) extern __typeof(name64) name64 EXPORT __attribute__((alias(#name)))
#pragma GCC diagnostic ignored "-Wattribute-alias"

/* Shared by a hook and its system call made by number (hooks/syscall.c); -errno for failure. */
long hook_fcntl(long (*next)(int fd, int cmd, long arg), int fd, int cmd, long arg);
void hook_before_owner(int fd);
int hook_before_ioctl(int fd, unsigned long request, const void *arg);
/* True if the ioctl changes contents and size of the file: make it within a by_name_change. */
bool hook_ioctl_clones(unsigned long request);
/* After the ioctl has succeeded. */
void hook_after_ioctl(int fd, unsigned long request, void *arg);
/* 0, or the -errno with which the call fails: what is staged cannot be written.  A later flush would write it
 * over what the call moves, or the call would read what was there before. */
long hook_before_copy(int in, int out);
/* mprotect (number: SYS_mprotect; key: nothing) or pkey_mprotect.  The result, or -errno. */
long hook_protect(long number, void *addr, size_t length, long prot, int key);
long hook_before_aio(int fd); /* the same */
void hook_by_handle_prepare(struct fd_open *op, int mountfd, const struct file_handle *handle, int flags);
void hook_openat2_prepare(struct fd_open *op, int dirfd, const char *path, const void *how, size_t size);
/* Before prctl.  `filter`: its third argument. */
void hook_before_prctl(long option, long mode, long filter);
/* For the constructor: registers the handlers of a fork.  0 or ENOMEM. */
int hook_watch_forks(void);
struct iocb;
/* How many to submit, or the -errno of the first.  (The kernel, too, submits those before one that fails.) */
long hook_before_submit(long count, struct iocb *const *list);
void hook_ring_made(void);
void hook_before_detach(void);

/*
 * Around a call that looks at a file: stat, fstat, statx.  The call is made again
 *   - when the file has staged bytes, or had some a moment ago: they are drained first;
 *   - when a dead process has left bytes for the path (NULL: do not look for any): they are recovered first.
 *
 *	struct hook_look look = hook_look();
 *	do
 *		r = CALL;
 *	while (hook_looks_again(&look, r, DIRFD, PATH, OUT));
 */
struct hook_look {
	uint32_t releases;
	enum { LOOK_FIRST, LOOK_DRAINED, LOOK_LAST } state;
};
static inline struct hook_look hook_look(void)
{
	return (struct hook_look){.releases = by_name_detaches(), .state = LOOK_FIRST};
}
bool hook_looks_again(struct hook_look *look, long r, int dirfd, const char *path, struct stat *out);
bool hook_looks_again_x(struct hook_look *look, long r, int dirfd, const char *path, struct statx *out);

/* The exported write, for hooks that write what they have made.  No other library can interpose this name. */
extern ssize_t hook_write(int fd, const void *buf, size_t size) __attribute__((visibility("hidden")));

/* A call failed for lack of a descriptor.  True: an internal one was closed; repeat the call.  Then errno is
 * as before it. */
static inline bool hook_again(int before)
{
	if (errno != EMFILE || !fd_spare_internal())
		return false;
	errno = before;
	return true;
}

/* The same after a failed open.  An open with O_NONBLOCK may also have met the lease of one of our
 * flushes. */
static inline bool hook_open_again(struct fd_open *op, int before)
{
	if (hook_again(before))
		return true;
	if (errno == EEXIST && op->exclusive)
		op->exclusive = false; /* somebody else was quicker */
	else if (errno != EAGAIN || !fd_lease_over(op))
		return false;
	errno = before;
	return true;
}

/* Ends the open; fd or -1. */
static inline int hook_opened(struct fd_open *op, int fd)
{
	if (fd >= 0) {
		marked_fds_forget(fd); /* an earlier descriptor of this number may have been closed unseen */
		directory_opened(op, fd);
		if (fd_open_concerns(op))
			fd_opened(op, fd);
	}
	fd_open_end(op);
	return fd;
}

/* Turns -errno of the core into the result of a C library function.  Leaves errno alone on success. */
static inline long hook_result(long r)
{
	if (__builtin_expect(r < 0, 0)) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

/* True if the core has prepared the call; otherwise sets errno. */
static inline bool hook_ready(long prepared) { return hook_result(prepared) >= 0; }

#endif
