// SPDX-License-Identifier: Apache-2.0
/* staging_dir: see format/staging_dir.h. */
#include "format/staging_dir.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/arena_format.h"

#include <fcntl.h>
#include <string.h>

#define IGNORE ".gitignore"
static const char ignore_all[] = "*\n";

/* True if the library chose the name of this directory, not the user. */
static bool is_ours(const char *dir)
{
	const char *slash = strrchr(dir, '/');

	return strcmp(slash ? slash + 1 : dir, ARENA_DIR) == 0;
}

/* Is there a .git in a directory above? */
static bool in_work_tree(const char *dir)
{
	static const char git[] = "/.git";
	BUFFER(char, path);
	size_t n = strlen(dir);

	if (n + sizeof git > PATH_MAX)
		return false;
	memcpy(path, dir, n);
	while (n > 0) {
		while (n > 0 && path[n - 1] != '/')
			n--;
		if (n == 0)
			return false; /* relative: not from the live side */
		n--;
		memcpy(path + n, git, sizeof git);
		if (sys_raw(SYS_faccessat, AT_FDCWD, (long)path, 0 /* F_OK */, 0, 0, 0) == 0)
			return true;
	}
	return false;
}

static void make_ignore(int dirfd)
{
	int fd = sys.openat(dirfd, IGNORE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	struct sys_quiet quiet;

	if (fd < 0)
		return; /* another process was first or removed the directory, or there is no space: go
		           without */
	kill_step();
	sys_quiet_begin(&quiet);
	if (sys.write(fd, ignore_all, sizeof ignore_all - 1) < 0)
		sys.unlinkat(dirfd, IGNORE, 0);
	sys_quiet_end(&quiet);
	sys.close(fd);
}

void staging_dir_made(int dirfd, const char *dir)
{
	if (is_ours(dir) && in_work_tree(dir))
		make_ignore(dirfd);
}

/* True if make_ignore wrote it, or was killed between creating and writing it. */
static bool is_our_ignore(int dirfd)
{
	char text[sizeof ignore_all];
	int fd = sys.openat(dirfd, IGNORE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	ssize_t n;

	if (fd < 0)
		return false;
	n = sys.pread(fd, text, sizeof text, 0);
	sys.close(fd);
	return n == 0 || (n == sizeof ignore_all - 1 && memcmp(text, ignore_all, (size_t)n) == 0);
}

static bool has_ignore_only(int dirfd)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	while ((d = sys_dir_next(&entries)) != NULL)
		if (strcmp(d->name, ".") != 0 && strcmp(d->name, "..") != 0 && strcmp(d->name, IGNORE) != 0)
			return false;
	return entries.filled == 0 && is_our_ignore(dirfd);
}

/* A directory chosen by the user may lie where its owner cannot create it again.  Only the owner removes it,
 * not root. */
static bool may_remove(const char *dir)
{
	struct statx st;

	return is_ours(dir) || (sys.statx(AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, STATX_UID, &st) == 0 &&
	                        st.stx_uid == (uint32_t)sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0));
}

void staging_dir_remove(const char *dir)
{
	int dirfd;

	if (!may_remove(dir))
		return;
	/* fails with -ENOTEMPTY while other processes use it */
	if (sys.unlinkat(AT_FDCWD, dir, AT_REMOVEDIR) != -ENOTEMPTY || !is_ours(dir))
		return;
	dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (dirfd < 0)
		return;
	if (has_ignore_only(dirfd)) {
		kill_step();
		sys.unlinkat(dirfd, IGNORE, 0);
		kill_step();
		/* another process began to use the directory: put the file back */
		if (sys.unlinkat(AT_FDCWD, dir, AT_REMOVEDIR) == -ENOTEMPTY)
			make_ignore(dirfd);
	}
	sys.close(dirfd);
}
