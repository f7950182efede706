// SPDX-License-Identifier: Apache-2.0
/*
 * stat: the stat family, with the entry points of glibc before 2.33.  Run the call.
 * If the file has staged bytes, drain them and run it again; if it is paged, put in what the program has
 * written.
 */
#include "hooks/hook.h"

#include "base/sys.h"

#include <fcntl.h>
#include <sys/stat.h>

static bool looks_again(struct hook_look *look, bool found, int dirfd, const char *path, uint64_t dev,
                        uint64_t ino)
{
	if (look->state == LOOK_LAST)
		return false;
	if (look->state == LOOK_FIRST) {
		look->state = LOOK_DRAINED;
		if (found && by_name_outdated(look->releases) &&
		    by_name_drain_identity(dev, ino, look->releases))
			return true;
	}
	look->state = LOOK_LAST;
	return found && path && left_bytes_recover_named(dirfd, path);
}

/* The call found a paged file.  (A write that is staged may take set-id bits from its mode: it is drained.)
 */
static bool is_shown(struct hook_look *look, uint64_t dev, uint64_t ino, unsigned mode,
                     struct by_name_shown *shown)
{
	if (look->state != LOOK_FIRST || (mode & (S_ISUID | S_ISGID)) || !by_name_outdated(look->releases) ||
	    !by_name_paged(dev, ino, shown))
		return false;
	look->state = LOOK_LAST;
	return true;
}

static bool is_later(const struct timespec *a, int64_t sec, uint32_t nsec)
{
	return a->tv_sec > sec || (a->tv_sec == sec && (uint32_t)a->tv_nsec > nsec);
}

/* Blocks of 512 bytes of a file with contents that the kernel has no blocks for: with a size and no blocks it
 * would be taken for a hole. */
static uint64_t blocks_shown(uint64_t blocks, const struct by_name_shown *shown)
{
	return blocks == 0 && shown->pages ? (shown->size + 511) / 512 : blocks;
}

bool hook_looks_again(struct hook_look *look, long r, int dirfd, const char *path, struct stat *out)
{
	/* after a failure *out may be unreadable */
	uint64_t dev = r == 0 ? sys_dev_of_stat(out) : 0;
	struct by_name_shown shown;

	if (r == 0 && is_shown(look, dev, out->st_ino, out->st_mode, &shown)) {
		out->st_size = (off_t)shown.size;
		out->st_mtim = shown.mtime;
		out->st_blocks = (blkcnt_t)blocks_shown((uint64_t)out->st_blocks, &shown);
		if (is_later(&shown.mtime, out->st_ctim.tv_sec, (uint32_t)out->st_ctim.tv_nsec))
			out->st_ctim = shown.mtime;
		return false;
	}
	return looks_again(look, r == 0, dirfd, path, dev, r == 0 ? out->st_ino : 0);
}

bool hook_looks_again_x(struct hook_look *look, long r, int dirfd, const char *path, struct statx *out)
{
	struct by_name_shown shown;

	if (r == 0 && is_shown(look, sys_dev_of(out), out->stx_ino, out->stx_mode, &shown)) {
		const struct statx_timestamp mtime = {.tv_sec = shown.mtime.tv_sec,
		                                      .tv_nsec = (uint32_t)shown.mtime.tv_nsec};

		out->stx_size = shown.size;
		out->stx_mtime = mtime;
		out->stx_blocks = blocks_shown(out->stx_blocks, &shown);
		if (is_later(&shown.mtime, out->stx_ctime.tv_sec, out->stx_ctime.tv_nsec))
			out->stx_ctime = mtime;
		return false;
	}
	return looks_again(look, r == 0, dirfd, path, r == 0 ? sys_dev_of(out) : 0,
	                   r == 0 ? out->stx_ino : 0);
}

EXPORT int __xstat(int version, const char *path, struct stat *out);
EXPORT int __lxstat(int version, const char *path, struct stat *out);
EXPORT int __fxstat(int version, int fd, struct stat *out);
EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *out, int flags);

EXPORT int stat(const char *path, struct stat *out)
{
	struct hook_look look = hook_look();
	int r;

	do
		r = real.stat(path, out);
	while (hook_looks_again(&look, r, AT_FDCWD, path, out));
	return r;
}

EXPORT int lstat(const char *path, struct stat *out)
{
	struct hook_look look = hook_look();
	int r;

	do
		r = real.lstat(path, out);
	while (hook_looks_again(&look, r, AT_FDCWD, path, out));
	return r;
}

/* fstat found *out, and a file has been attached or detached meanwhile.  Not inlined: without such a file
 * fstat needs no frame for it. */
static __attribute__((noinline)) int fstat_outdated(int fd, struct stat *out, uint32_t releases)
{
	struct hook_look look = {.releases = releases, .state = LOOK_FIRST};
	int r = 0;

	while (hook_looks_again(&look, r, fd, NULL, out))
		r = real.fstat(fd, out);
	return r;
}

EXPORT int fstat(int fd, struct stat *out)
{
	uint32_t releases;
	int r;

	unresolved_use(fd);
	releases = by_name_detaches();
	r = real.fstat(fd, out);
	return r == 0 && by_name_outdated(releases) ? fstat_outdated(fd, out, releases) : r;
}

EXPORT int fstatat(int dirfd, const char *path, struct stat *out, int flags)
{
	struct hook_look look = hook_look();
	int r;

	unresolved_use(dirfd); /* (AT_EMPTY_PATH) */
	do
		r = real.fstatat(dirfd, path, out, flags);
	while (hook_looks_again(&look, r, dirfd, path, out));
	return r;
}

EXPORT int __xstat(int version, const char *path, struct stat *out)
{
	struct hook_look look = hook_look();
	int r;

	do
		r = real.__xstat(version, path, out);
	while (hook_looks_again(&look, r, AT_FDCWD, path, out));
	return r;
}

EXPORT int __lxstat(int version, const char *path, struct stat *out)
{
	struct hook_look look = hook_look();
	int r;

	do
		r = real.__lxstat(version, path, out);
	while (hook_looks_again(&look, r, AT_FDCWD, path, out));
	return r;
}

EXPORT int __fxstat(int version, int fd, struct stat *out)
{
	struct hook_look look = hook_look();
	int r;

	unresolved_use(fd);
	do
		r = real.__fxstat(version, fd, out);
	while (hook_looks_again(&look, r, fd, NULL, out));
	return r;
}

EXPORT int __fxstatat(int version, int dirfd, const char *path, struct stat *out, int flags)
{
	struct hook_look look = hook_look();
	int r;

	unresolved_use(dirfd); /* (AT_EMPTY_PATH) */
	do
		r = real.__fxstatat(version, dirfd, path, out, flags);
	while (hook_looks_again(&look, r, dirfd, path, out));
	return r;
}

EXPORT int statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	struct hook_look look = hook_look();
	int r;

	unresolved_use(dirfd); /* (AT_EMPTY_PATH) */
	do
		r = real.statx(dirfd, path, flags, mask, out);
	while (hook_looks_again_x(&look, r, dirfd, path, out));
	return r;
}

TWIN(stat64, stat);
TWIN(lstat64, lstat);
TWIN(fstat64, fstat);
TWIN(fstatat64, fstatat);
/* Headers from glibc 2.33 on do not declare them. */
int __xstat64(int version, const char *path, struct stat64 *out);
int __lxstat64(int version, const char *path, struct stat64 *out);
int __fxstat64(int version, int fd, struct stat64 *out);
int __fxstatat64(int version, int dirfd, const char *path, struct stat64 *out, int flags);

TWIN(__xstat64, __xstat);
TWIN(__lxstat64, __lxstat);
TWIN(__fxstat64, __fxstat);
TWIN(__fxstatat64, __fxstatat);
