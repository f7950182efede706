// SPDX-License-Identifier: Apache-2.0
/* lock: a lock hands a file from one process to another: drain it before, look at it again afterwards. */
#include "base/fork_guard.h"
#include "files/fdtable.h"
#include "hooks/hook.h"

#include <sys/file.h>
#include <unistd.h>

EXPORT int flock(int fd, int operation)
{
	long before = fd_before_lock(fd, operation & LOCK_UN, LOCK_WHOLE);
	int r = before < 0 ? (int)hook_result(before) : real.flock(fd, operation);

	if (r == 0 && fdtable_get(fd))
		fd_locked(fd, operation & LOCK_UN);
	return r;
}

/* lockf is fcntl(F_SETLK) inside the C library: closing a descriptor of ours would drop the lock, too. */
EXPORT int lockf(int fd, int cmd, off_t length)
{
	long before = fd_before_lock(fd, cmd == F_ULOCK, LOCK_FROM_POSITION);
	int r;

	if (before < 0)
		return (int)hook_result(before);
	if (!fdtable_get(fd) && !fork_guard_vforked)
		by_name_map(fd, false);
	r = real.lockf(fd, cmd, length);
	if (r == 0)
		fd_locked(fd, cmd == F_ULOCK);
	return r;
}

TWIN(lockf64, lockf);
