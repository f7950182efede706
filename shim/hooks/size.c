// SPDX-License-Identifier: Apache-2.0
/* hook_size: file size, space, and the limits on them. */
#include "hooks/hook.h"

#include "base/sys.h"
#include "hooks/cancel.h"
#include "sync/journal_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* The kernel's call after the file was given back, and before it may be attached again. */
#define CHANGE(prepare, next) \
	struct by_name_change change; \
	int r = prepare; \
	r = r < 0 ? (int)hook_result(r) : (int)(next); \
	journal_touched(); \
	by_name_change_end(&change); \
	return r

EXPORT int ftruncate(int fd, off_t length)
{
	CHANGE(by_name_change_fd(&change, fd), real.ftruncate(fd, length));
}
EXPORT int truncate(const char *path, off_t length)
{
	CHANGE(by_name_change_at(&change, AT_FDCWD, path), real.truncate(path, length));
}

/* The C library's own may be cancelled in the middle, and would leave the change without an end. */
static int allocate(int fd, int mode, off64_t offset, off64_t length)
{
	cancel_point();
	{
		CHANGE(by_name_change_fd(&change, fd),
		       hook_result(sys_raw(SYS_fallocate, fd, mode, offset, length, 0, 0)));
	}
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
	return allocate(fd, mode, offset, length);
}

/* It returns its error instead of setting errno. */
static int allocate_posix(int (*next)(int fd, off64_t offset, off64_t length), int fd, off64_t offset,
                          off64_t length)
{
	struct by_name_change change;
	int r = by_name_change_fd(&change, fd);

	if (r == 0)
		r = (int)sys_raw(SYS_fallocate, fd, 0, offset, length, 0, 0);
	journal_touched();
	by_name_change_end(&change);
	if (r != -EOPNOTSUPP)
		return -r;
	/* then the C library writes, which takes its time, and where nothing is staged either */
	r = next(fd, offset, length);
	journal_touched();
	return r;
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
	return allocate_posix(real.posix_fallocate, fd, offset, length);
}

static void before_limit(int resource, const struct rlimit *limit)
{
	if (resource == RLIMIT_FSIZE && limit)
		by_name_limit_changes();
}

EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	before_limit((int)resource, limit);
	return real.setrlimit((int)resource, limit);
}

EXPORT int prlimit(pid_t pid, enum __rlimit_resource resource, const struct rlimit *limit, struct rlimit *old)
{
	before_limit((int)resource, limit);
	return real.prlimit(pid, (int)resource, limit, old);
}

TWIN(ftruncate64, ftruncate);
TWIN(truncate64, truncate);
TWIN(fallocate64, fallocate);
TWIN(posix_fallocate64, posix_fallocate);
TWIN(setrlimit64, setrlimit);
TWIN(prlimit64, prlimit);
