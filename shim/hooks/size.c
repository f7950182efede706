// SPDX-License-Identifier: Apache-2.0
/* size: file size, space, and the limits on them. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "hooks/cancel.h"
#include "sync/journal_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* Called after a change of a detached file: the file may be attached again from now on. */
static int changed(struct by_name_change *change, int r)
{
	journal_touched();
	by_name_change_end(change);
	return r;
}

EXPORT int ftruncate(int fd, off_t length)
{
	struct by_name_change change;
	long r = live_config ? io_ftruncate(fd, length) : IO_PASS;
	bool ready;

	if (r != IO_PASS)
		return (int)hook_result(r);
	ready = hook_ready(by_name_change_fd(&change, fd));
	return changed(&change, ready ? real.ftruncate(fd, length) : -1);
}

EXPORT int truncate(const char *path, off_t length)
{
	struct by_name_change change;
	bool ready = hook_ready(by_name_change_at(&change, AT_FDCWD, path));

	return changed(&change, ready ? real.truncate(path, length) : -1);
}

/* The C library's function may be cancelled inside, and the change would never end. */
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
	struct by_name_change change;
	long r;

	cancel_point();
	r = by_name_change_fd(&change, fd);
	if (r == 0)
		r = sys_raw(SYS_fallocate, fd, mode, offset, length, 0, 0);
	return changed(&change, (int)hook_result(r));
}

/* posix_fallocate returns its error instead of setting errno. */
EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
	struct by_name_change change;
	int r = by_name_change_fd(&change, fd);

	if (r == 0)
		r = (int)sys_raw(SYS_fallocate, fd, 0, offset, length, 0, 0);
	r = changed(&change, r);
	if (r != -EOPNOTSUPP)
		return -r;
	/* The C library then writes to the file, which takes long.  Nothing is staged for this file. */
	r = real.posix_fallocate(fd, offset, length);
	journal_touched();
	return r;
}

EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	struct by_name_change change;
	int r;

	if (resource != RLIMIT_FSIZE || !limit)
		return real.setrlimit((int)resource, limit);
	by_name_limit_begin(&change);
	r = real.setrlimit((int)resource, limit);
	by_name_limit_end(&change);
	return r;
}

EXPORT int prlimit(pid_t pid, enum __rlimit_resource resource, const struct rlimit *limit, struct rlimit *old)
{
	struct by_name_change change;
	int r;

	if (resource != RLIMIT_FSIZE || !limit)
		return real.prlimit(pid, (int)resource, limit, old);
	by_name_limit_begin(&change);
	r = real.prlimit(pid, (int)resource, limit, old);
	by_name_limit_end(&change);
	return r;
}

TWIN(ftruncate64, ftruncate);
TWIN(truncate64, truncate);
TWIN(fallocate64, fallocate);
TWIN(posix_fallocate64, posix_fallocate);
TWIN(setrlimit64, setrlimit);
TWIN(prlimit64, prlimit);
