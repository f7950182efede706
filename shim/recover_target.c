// SPDX-License-Identifier: Apache-2.0
/* recover_target: see recover_target.h. */
#include "recover_target.h"

#include "buffer.h"
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

	for (int i = 0; (fd = sys.openat(dirfd, name, flags, 0)) == -EAGAIN && i < TRIES; i++) {
		struct timespec pause = {.tv_nsec = 1000000};

		sys_raw(SYS_nanosleep, (long)&pause, 0, 0, 0, 0, 0);
	}
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
	ssize_t n;

	while ((n = sys.getdents(dirfd, buf, BUFFER_BYTES)) > 0) {
		for (ssize_t at = 0; at < n;) {
			struct sys_dirent *d = (struct sys_dirent *)(void *)(buf + at);
			int fd;

			at += d->reclen;
			if (d->ino != slot->ino)
				continue;
			fd = open_candidate(dirfd, d->name, slot);
			if (fd != -ENOENT)
				return fd;
		}
	}
	return n < 0 ? (int)n : -ENOENT; /* after an error nobody knows whether the file is there */
}

static int make_orphan(struct recover_target *t, const struct arena_slot *slot, int staging_fd)
{
	const char *base = strrchr(slot->path, '/') + 1;
	int dir, r;

	r = sys.mkdirat(staging_fd, "orphans", 0700);
	if (r < 0 && r != -EEXIST)
		return r;
	dir = sys.openat(staging_fd, "orphans", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (dir < 0)
		return dir;
	log_format(t->path, sizeof t->path, "%llu-%s", (unsigned long long)slot->ino,
	           base[0] ? base : "unnamed");
	t->fd = sys.openat(dir, t->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	sys.close(dir);
	if (t->fd < 0)
		return t->fd;
	t->orphan = true;
	return 0;
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

/* All of this thread only: the system calls, not the C library's functions, which change every thread. */
int recover_rights_take(struct recover_rights *r, uint32_t uid, uint32_t gid)
{
	long n;

	r->changed = false;
	if (sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0) != 0 || uid == 0)
		return 0;
	/* root's further groups may open what the owner cannot */
	n = sys_raw(SYS_getgroups, RECOVER_GROUPS_MAX, (long)r->groups, 0, 0, 0, 0);
	if (n < 0)
		return (int)n;
	r->group_count = (int)n;
	if (n > 0) {
		n = sys_raw(SYS_setgroups, 0, 0, 0, 0, 0, 0);
		if (n < 0)
			return (int)n;
	}
	/* also drops CAP_DAC_OVERRIDE and its kin from the effective set */
	sys_raw(SYS_setfsgid, gid, 0, 0, 0, 0, 0);
	sys_raw(SYS_setfsuid, uid, 0, 0, 0, 0, 0);
	r->changed = true;
	if ((uint32_t)sys_raw(SYS_setfsuid, (long)uid, 0, 0, 0, 0, 0) != uid) {
		recover_rights_drop(r);
		return -EPERM;
	}
	return 0;
}

void recover_rights_drop(struct recover_rights *r)
{
	if (!r->changed)
		return;
	sys_raw(SYS_setfsuid, 0, 0, 0, 0, 0, 0);
	sys_raw(SYS_setfsgid, sys_raw(SYS_getegid, 0, 0, 0, 0, 0, 0), 0, 0, 0, 0, 0);
	if (r->group_count > 0)
		sys_raw(SYS_setgroups, r->group_count, (long)r->groups, 0, 0, 0, 0);
	r->changed = false;
}
