// SPDX-License-Identifier: Apache-2.0
/* hook_size: file size, space, and the limits on them. */
#include "hook.h"
#include "journal_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

/* The kernel's call after the file was given back; posix_fallocate returns its error instead of setting errno. */
#define AFTER_RELEASE(released, next) \
	int r = (released); \
	if (r < 0) \
		return (int)hook_result(r); \
	r = (next); \
	journal_touched(); \
	return r

EXPORT int ftruncate(int fd, off_t length) { AFTER_RELEASE(meta_release_fd(fd), real.ftruncate(fd, length)); }
EXPORT int ftruncate64(int fd, off64_t length)
{
	AFTER_RELEASE(meta_release_fd(fd), real.ftruncate64(fd, length));
}
EXPORT int truncate(const char *path, off_t length)
{
	AFTER_RELEASE(meta_release_path(path), real.truncate(path, length));
}
EXPORT int truncate64(const char *path, off64_t length)
{
	AFTER_RELEASE(meta_release_path(path), real.truncate64(path, length));
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t length)
{
	AFTER_RELEASE(meta_release_fd(fd), real.fallocate(fd, mode, offset, length));
}
EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t length)
{
	AFTER_RELEASE(meta_release_fd(fd), real.fallocate64(fd, mode, offset, length));
}
EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
	int r = meta_release_fd(fd);

	if (r < 0)
		return -r;
	r = real.posix_fallocate(fd, offset, length);
	journal_touched();
	return r;
}
EXPORT int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
	int r = meta_release_fd(fd);

	if (r < 0)
		return -r;
	r = real.posix_fallocate64(fd, offset, length);
	journal_touched();
	return r;
}

static void before_limit(int resource, const struct rlimit *limit)
{
	if (resource == RLIMIT_FSIZE && limit)
		meta_limit_changes();
}

EXPORT int setrlimit(__rlimit_resource_t resource, const struct rlimit *limit)
{
	before_limit((int)resource, limit);
	return real.setrlimit((int)resource, limit);
}

EXPORT int setrlimit64(__rlimit_resource_t resource, const struct rlimit64 *limit)
{
	before_limit((int)resource, (const struct rlimit *)limit);
	return real.setrlimit64((int)resource, (const struct rlimit *)limit);
}

EXPORT int prlimit(pid_t pid, enum __rlimit_resource resource, const struct rlimit *limit, struct rlimit *old)
{
	before_limit((int)resource, limit);
	return real.prlimit(pid, (int)resource, limit, old);
}

EXPORT int prlimit64(pid_t pid, enum __rlimit_resource resource, const struct rlimit64 *limit,
                     struct rlimit64 *old)
{
	before_limit((int)resource, (const struct rlimit *)limit);
	return real.prlimit64(pid, (int)resource, (const struct rlimit *)limit, (struct rlimit *)old);
}
