// SPDX-License-Identifier: Apache-2.0
/* recover_target: see recover_target.h. */
#include "recover_target.h"

#include "buffer.h"
#include "kill.h"
#include "log.h"
#include "sys.h"

#include <fcntl.h>
#include <string.h>

/* 0; -ENOENT: another file, or none; other -errno: that cannot be found out. */
static int is_target(int fd, const char *name, const struct arena_slot *slot)
{
	struct statx st;
	int r = sys.statx(fd, name, name[0] ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH,
	                  STATX_BASIC_STATS | STATX_BTIME, &st);

	if (r < 0)
		return r == -ENOTDIR || r == -ENAMETOOLONG ? -ENOENT : r;
	if ((st.stx_mode & S_IFMT) != S_IFREG || st.stx_ino != slot->ino || sys_dev_of(&st) != slot->dev)
		return -ENOENT;
	/* inode numbers are used again; birth times are not */
	if ((slot->btime_sec || slot->btime_nsec) && (st.stx_mask & STATX_BTIME) &&
	    (st.stx_btime.tv_sec != slot->btime_sec || st.stx_btime.tv_nsec != slot->btime_nsec))
		return -ENOENT;
	return 0;
}

/* Without blocking, since the name may be a FIFO's.  -EAGAIN is somebody's lease, who has been told and lets go
 * soon. */
static int open_patiently(int dirfd, const char *name, int flags)
{
	enum { TRIES = 5000 };
	int fd;

	for (int i = 0; (fd = sys.openat(dirfd, name, flags, 0)) == -EAGAIN && i < TRIES; i++)
		sys_nap(1000000);
	return fd;
}

static int open_candidate(int dirfd, const char *name, const struct arena_slot *slot)
{
	int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	int fd, r;

	if (!name[0])
		return -ENOENT;
	/* first, because an open alone may do something: it breaks leases, and a device's may mean anything */
	r = is_target(dirfd, name, slot);
	if (r < 0)
		return r;
	fd = open_patiently(dirfd, name, O_RDWR | flags);
	if (fd == -EPERM) { /* append-only */
		flags |= O_APPEND;
		fd = open_patiently(dirfd, name, O_RDWR | flags);
	}
	if (fd == -EACCES)
		fd = open_patiently(dirfd, name, O_WRONLY | flags);
	/* again, because another file may have got the name meanwhile */
	r = fd < 0 ? 0 : is_target(fd, "", slot);
	if (r < 0) {
		sys.close(fd);
		return r;
	}
	return fd == -ELOOP || fd == -ENXIO || fd == -EISDIR ? -ENOENT : fd;
}

/* Renamed, by logrotate for example: the same inode under another name in the same directory. */
static int open_renamed(int dirfd, const struct arena_slot *slot)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	while ((d = sys_dir_next(&entries)) != NULL) {
		int fd = d->ino == slot->ino ? open_candidate(dirfd, d->name, slot) : -ENOENT;

		if (fd != -ENOENT)
			return fd;
	}
	return entries.filled < 0 ? (int)entries.filled
	                          : -ENOENT; /* after an error nobody knows whether the file is there */
}

/* What is put aside goes into a directory that only the owner of the staging may have filled. */
static int open_orphans(int staging_fd)
{
	struct statx staging, st;
	int dir, r;

	kill_step();
	r = sys.mkdirat(staging_fd, "orphans", 0700);
	kill_step();
	if (r < 0 && r != -EEXIST)
		return r;
	dir = sys.openat(staging_fd, "orphans", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (dir < 0)
		return dir;
	r = sys.statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0)
		r = sys.statx(staging_fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &staging);
	if (r == 0 && (st.stx_uid != staging.stx_uid || (st.stx_mode & 022)))
		r = -EPERM;
	if (r == 0)
		return dir;
	sys.close(dir);
	return r;
}

/*
 * The same name for the same file whenever it is recovered, also when that was interrupted, and another one for every
 * other file: inode numbers are used again, and one staging directory may serve several file systems.
 */
static void name_orphan(char *out, const struct arena_slot *slot)
{
	enum { BASE_MAX = 200 }; /* with what stands before it no more than a name may have */
	const char *base = strrchr(slot->path, '/') + 1;
	uint64_t which = slot->dev * 0x9e3779b97f4a7c15ull + (uint64_t)slot->btime_sec;

	which = which * 0x9e3779b97f4a7c15ull + slot->btime_nsec;
	out += log_format(out, 64, "%llu-%llx-", (unsigned long long)slot->ino, (unsigned long long)which);
	log_format(out, BASE_MAX + 1, "%s", base[0] ? base : "unnamed");
}

static int make_orphan(struct recover_target *t, const struct arena_slot *slot, int staging_fd)
{
	struct statx st;
	int dir, r;

	t->orphan = true;
	dir = open_orphans(staging_fd);
	if (dir < 0)
		return dir;
	name_orphan(t->path, slot);
	t->fd = sys.openat(dir, t->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	kill_step();
	sys.close(dir);
	if (t->fd < 0)
		return t->fd;
	r = sys.statx(t->fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0 && ((st.stx_mode & S_IFMT) != S_IFREG || st.stx_nlink != 1))
		r = -EEXIST;
	if (r < 0)
		recover_target_close(t);
	return r;
}

int recover_target_open(struct recover_target *t, const struct arena_slot *slot, int staging_fd, bool keep)
{
	BUFFER(char, dir);
	char *slash;
	int dirfd, fd;

	t->fd = -1;
	t->orphan = false;
	t->path[0] = '\0';
	memcpy(dir, slot->path, ARENA_PATH_MAX);
	dir[ARENA_PATH_MAX - 1] = '\0';
	slash = strrchr(dir, '/');
	if (!slash)
		return -EBADMSG;
	*slash = '\0';
	dirfd = sys.openat(AT_FDCWD, dir[0] ? dir : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (dirfd < 0 && dirfd != -ENOENT && dirfd != -ENOTDIR)
		return dirfd;
	fd = -ENOENT;
	if (dirfd >= 0) {
		fd = open_candidate(dirfd, slash + 1, slot);
		if (fd == -ENOENT)
			fd = open_renamed(dirfd, slot);
		sys.close(dirfd);
	}
	if (fd >= 0) {
		t->fd = fd;
		return 0;
	}
	if (fd != -ENOENT || !keep)
		return fd;
	return make_orphan(t, slot, staging_fd);
}

void recover_target_close(struct recover_target *t)
{
	if (t->fd >= 0)
		sys.close(t->fd);
	t->fd = -1;
}
