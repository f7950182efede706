// SPDX-License-Identifier: Apache-2.0
/* namespaces: namespaces, capabilities, mounts: calls that mind the library's threads or its open files. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "process/credentials.h"
#include "process/namespaces.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/swap.h>

EXPORT int unshare(int flags)
{
	bool begun = credentials_begin(namespaces_change(flags));
	struct namespaces_state state = namespaces_begin(flags & CLONE_FILES);
	int r = real.unshare(flags);

	namespaces_end(state);
	credentials_end(begun);
	return r;
}

EXPORT int setns(int fd, int type)
{
	bool begun = credentials_begin(namespaces_change(type ? type : CLONE_NEWPID | CLONE_NEWUSER));
	struct namespaces_state state = namespaces_begin(false);
	int r = real.setns(fd, type);

	namespaces_end(state);
	credentials_end(begun);
	return r;
}

/* It changes the calling thread only, and one with the old capabilities must not stay behind. */
EXPORT int capset(cap_user_header_t header, const cap_user_data_t data);
EXPORT int capset(cap_user_header_t header, const cap_user_data_t data)
{
	bool begun = credentials_begin(credentials_of_capabilities(header, data));
	struct namespaces_state state = namespaces_begin(false);
	int r = real.capset(header, data);

	namespaces_end(state);
	credentials_end(begun);
	return r;
}

/* Descriptors and arenas of ours must not keep a file system busy that the program has left. */
static bool busy_no_more(int r, int before)
{
	if (r >= 0 || errno != EBUSY || !fd_spare_internal())
		return false;
	errno = before;
	return true;
}

/* The result of the call. */
#define UNLESS_BUSY(call) \
	({ \
		int r_, before_ = errno; \
		do \
			r_ = (call); \
		while (busy_no_more(r_, before_)); \
		r_; \
	})

EXPORT int umount(const char *target) { return UNLESS_BUSY(real.umount(target)); }

EXPORT int umount2(const char *target, int flags)
{
	if (flags & MNT_DETACH)
		hook_before_detach();
	return UNLESS_BUSY(real.umount2(target, flags));
}

/* (remounted read-only) */
EXPORT int mount(const char *source, const char *target, const char *type, unsigned long flags,
                 const void *data)
{
	return UNLESS_BUSY(real.mount(source, target, type, flags, data));
}

static int next_mount_setattr(int dirfd, const char *path, unsigned flags, void *attributes, size_t size)
{
	if (real.mount_setattr)
		return real.mount_setattr(dirfd, path, flags, attributes, size);
	return (int)hook_result(
		sys_raw(SYS_mount_setattr, dirfd, (long)path, flags, (long)attributes, (long)size, 0));
}

EXPORT int mount_setattr(int dirfd, const char *path, unsigned flags, struct mount_attr *attributes,
                         size_t size)
{
	return UNLESS_BUSY(next_mount_setattr(dirfd, path, flags, attributes, size));
}

/* What is staged for files there would have no path to be recovered by. */
void hook_before_detach(void)
{
	while (fd_spare_internal())
		;
}

/* The kernel refuses writes to a swap file from then on. */
EXPORT int swapon(const char *path, int flags)
{
	int released = by_name_detach_path(path);

	return released < 0 ? (int)hook_result(released) : real.swapon(path, flags);
}
