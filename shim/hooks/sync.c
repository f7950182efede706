// SPDX-License-Identifier: Apache-2.0
/* sync: durability calls. */
#include "hooks/hook.h"

#include "files/fdtable.h"
#include "hooks/cancel.h"
#include "sync/sync.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

EXPORT int fsync(int fd)
{
	struct ofd *o = unresolved_synced(fd, true);

	if (!o && !directory_is_unsynced(fd))
		return real.fsync(fd);
	cancel_point();
	if (!o)
		return 0;
	return (int)hook_result(io_sync(fd, o, true));
}

EXPORT int fdatasync(int fd)
{
	struct ofd *o = unresolved_synced(fd, false);

	if (!o && !directory_is_unsynced(fd))
		return real.fdatasync(fd);
	cancel_point();
	if (!o)
		return 0;
	return (int)hook_result(io_sync(fd, o, false));
}

EXPORT void sync(void)
{
	by_name_drain_for_sync();
	real.sync();
}

EXPORT int syncfs(int fd)
{
	int failed = by_name_drain_for_syncfs(fd);
	int r = real.syncfs(fd);

	return r == 0 && failed < 0 ? (int)hook_result(failed) : r;
}

EXPORT int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags)
{
	long r = fd_drain(fd);

	return r < 0 ? (int)hook_result(r) : real.sync_file_range(fd, offset, length, flags);
}

EXPORT int msync(void *addr, size_t length, int flags)
{
	/* a mapped file is never staged (hooks/move.c), so only its own pages need a sync */
	return real.msync(addr, length, flags);
}
