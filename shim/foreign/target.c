// SPDX-License-Identifier: Apache-2.0
/* target: see foreign/target.h. */
#include "foreign/target.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/identity.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>

struct wanted {
	const struct arena_entry *entry;
	const struct recover_place *place;
	struct identity id;
};

/* Is it the wanted file?  0; -ENOENT: another file, or none; other -errno: unknown.  `name` "": the file
 * behind fd. */
static int is_target(int fd, const char *name, const struct wanted *w, bool *proved)
{
	bool own_volume = w->entry->dev == w->place->dev_then;
	struct identity id;
	struct statx st;
	int r = sys.statx(fd, name, name[0] ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH,
	                  STATX_BASIC_STATS | STATX_BTIME, &st);

	if (r < 0)
		return r == -ENOTDIR || r == -ENAMETOOLONG ? -ENOENT : r;
	if ((st.stx_mode & S_IFMT) != S_IFREG)
		return -ENOENT;
	if (name[0])
		identity_by_stat(&st, &id);
	else
		identity_of(fd, &st, &id);
	*proved = identity_proved(&w->id, &id);
	if (!identity_same(&w->id, &id))
		return -ENOENT;
	if (sys_dev_of(&st) == (own_volume ? w->place->dev_now : w->entry->dev))
		return 0;
	/* (a volume other than the arena's gets a new number with every mount) */
	return own_volume || (!*proved && !name[0]) ? -ENOENT : 0;
}

bool recover_target_is(const struct statx *st, const struct arena_entry *entry,
                       const struct recover_place *place)
{
	bool own_volume = entry->dev == place->dev_then;
	struct identity id, wanted;

	identity_by_stat(st, &id);
	identity_of_entry(entry, &wanted);
	if (own_volume || sys_dev_of(st) == place->dev_now)
		return own_volume && sys_dev_of(st) == place->dev_now && identity_same(&wanted, &id);
	/* (a volume other than the arena's gets a new number with every mount) */
	return sys_dev_of(st) == entry->dev ? identity_same(&wanted, &id) : identity_proved(&wanted, &id);
}

static __thread int patience_ms = LEASE_PATIENCE_MS;

void recover_target_patience(int ms) { patience_ms = ms; }

/* Without blocking, because the name may be a FIFO's.  -EAGAIN: a process holds a lease, was told, and has
 * not dropped it. */
static int open_patiently(int dirfd, const char *name, int flags)
{
	enum { LEAST_MS = 20 }; /* who answers does so at once */
	int fd, waited = 0;

	while ((fd = sys.openat(dirfd, name, flags, 0)) == -EAGAIN &&
	       (waited++ < LEAST_MS || patience_ms > 0)) {
		patience_ms--;
		sys_nap(1000000);
	}
	return fd;
}

static int open_candidate(int dirfd, const char *name, const struct wanted *w, bool *proved)
{
	int flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
	int fd, r;

	if (!name[0])
		return -ENOENT;
	/* before the open, which alone may have effects: it breaks leases, and on a device it may do anything
	 */
	r = is_target(dirfd, name, w, proved);
	if (r < 0)
		return r;
	fd = open_patiently(dirfd, name, O_RDWR | flags);
	if (fd == -EPERM) { /* an append-only file */
		flags |= O_APPEND;
		fd = open_patiently(dirfd, name, O_RDWR | flags);
	}
	if (fd == -EACCES)
		fd = open_patiently(dirfd, name, O_WRONLY | flags);
	/* again, because the name may be another file's by now */
	r = fd < 0 ? 0 : is_target(fd, "", w, proved);
	if (r < 0) {
		sys.close(fd);
		return r;
	}
	return fd == -ELOOP || fd == -ENXIO || fd == -EISDIR ? -ENOENT : fd;
}

/* A file that was renamed, as logrotate does: the same inode under another name in the same directory. */
static int open_renamed(int pathfd, const struct wanted *w, bool *proved)
{
	BUFFER(char, buf);
	int dirfd = sys.openat(pathfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;
	int fd = -ENOENT;

	if (dirfd < 0)
		return dirfd;
	while (fd == -ENOENT && (d = sys_dir_next(&entries)) != NULL)
		fd = d->ino == w->entry->ino ? open_candidate(dirfd, d->name, w, proved) : -ENOENT;
	/* (after an error it is unknown whether the file is there) */
	if (fd == -ENOENT && entries.filled < 0)
		fd = (int)entries.filled;
	sys.close(dirfd);
	return fd;
}

int recover_keeping_dir(int staging_fd, const char *name)
{
	struct statx st;
	uint32_t owner;
	int made, dir, r;

	kill_step();
	made = sys.mkdirat(staging_fd, name, 0700);
	kill_step();
	if (made < 0 && made != -EEXIST)
		return made;
	dir = sys.openat(staging_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (dir < 0)
		return dir;
	r = sys.statx(staging_fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	owner = st.stx_uid;
	if (r == 0)
		r = sys.statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);
	if (r == 0 && (st.stx_uid != owner || (st.stx_mode & 022)))
		r = -EPERM;
	if (r == 0)
		return dir;
	sys.close(dir);
	/* (root made what the owner could not: it would keep the owner from every later recovery) */
	if (made == 0)
		sys.unlinkat(staging_fd, name, AT_REMOVEDIR);
	return r;
}

/*
 * One file gets the same name at every recovery, also after an interrupted one; every other file gets another
 * name.  The inode number alone does not do: it is used again, and one staging directory may serve several
 * file systems.
 */
static void name_orphan(char *out, const struct arena_entry *entry)
{
	enum { BASE_MAX = 200 }; /* with the numbers before it, no longer than a name may be */
	const char *base = strrchr(entry->path, '/') + 1;
	uint64_t which = entry->dev * 0x9e3779b97f4a7c15ull + (uint64_t)entry->btime_sec;

	which = which * 0x9e3779b97f4a7c15ull + entry->btime_nsec;
	out += log_format(out, 64, "%llu-%llx-", (unsigned long long)entry->ino, (unsigned long long)which);
	log_format(out, BASE_MAX + 1, "%s", base[0] ? base : "unnamed");
}

static int make_orphan(struct recover_target *t, const struct arena_entry *entry, int staging_fd)
{
	struct statx st;
	int dir, r;

	t->orphan = true;
	dir = recover_keeping_dir(staging_fd, "orphans");
	if (dir < 0)
		return dir;
	name_orphan(t->path, entry);
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

/* Opens the directory `path`, beneath `from` unless that is AT_FDCWD.  Follows no magic link of /proc: those
 * lead to whatever a process has open. */
static int open_directory(int from, const char *path)
{
	/* (O_PATH: a directory that we may not list is good enough for a file at its path) */
	struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
	                       .resolve = RESOLVE_NO_MAGICLINKS | (from == AT_FDCWD ? 0 : RESOLVE_BENEATH)};
	int fd = (int)sys_raw(SYS_openat2, from, (long)path, (long)&how, sizeof how, 0, 0);

	/* (older kernels and filters do not know the call) */
	if (fd != -ENOSYS && fd != -EPERM)
		return fd;
	if (strncmp(path, "/proc/", 6) == 0)
		return -ELOOP;
	return sys.openat(from, path, (int)how.flags, 0);
}

/* The directory `up` levels above the staging directory, on the same volume.  fd; -ENOENT: the volume is
 * mounted differently now; other -errno. */
static int open_above(const struct recover_place *place, uint32_t up)
{
	static const char ups[] = "../../../../../../../../../../../../../../../..";
	char path[sizeof ups];
	struct statx st;
	int fd, r;

	if (up == 0 || up > sizeof ups / 3)
		return -ENOENT;
	memcpy(path, ups, 3 * (size_t)up - 1);
	path[3 * up - 1] = '\0';
	fd = sys.openat(place->staging_fd, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
	if (fd < 0)
		return fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r == 0 && sys_dev_of(&st) == place->dev_now)
		return fd;
	sys.close(fd);
	return r < 0 ? r : -ENOENT;
}

/*
 * The directory that the entry's path names, and *name in it; `below` as in arena_entry.  fd; -ENOENT: it is
 * gone; RECOVER_ELSEWHERE; other -errno.
 */
static int open_parent(const struct arena_entry *named, const struct recover_place *place, uint32_t below,
                       char *path, const char **name)
{
	int from = AT_FDCWD, fd;
	char *slash;

	memcpy(path, named->path, ARENA_PATH_MAX);
	path[ARENA_PATH_MAX - 1] = '\0';
	slash = strrchr(path, '/');
	if (!slash || below >= strlen(path) || (below > 0 && path[below - 1] != '/'))
		return -EBADMSG;
	*name = slash + 1;
	*slash = '\0';
	if (below == 0) {
		fd = open_directory(AT_FDCWD, path[0] ? path : "/");
		return fd == -ENOENT || fd == -ENOTDIR ? RECOVER_ELSEWHERE : fd;
	}
	from = open_above(place, named->up);
	if (from < 0)
		return from;
	fd = open_directory(from, slash < path + below ? "." : path + below);
	sys.close(from);
	return fd == -ENOTDIR || fd == -ELOOP || fd == -EXDEV ? -ENOENT : fd;
}

int recover_parent_open(const struct arena_entry *named, const struct recover_place *place, char *path,
                        const char **name)
{
	int fd = open_parent(named, place, named->below, path, name);

	/* (the staging directory was moved) */
	return fd == -ENOENT && named->below > 0 ? open_parent(named, place, 0, path, name) : fd;
}

/* The file is not in its directory: has it been removed?  Not from a volume that is not mounted. */
static int why_gone(const struct wanted *w, int dirfd)
{
	struct statx st;
	int r;

	/* (what the program was removing goes nowhere anyway) */
	if (w->entry->dev == w->place->dev_then || w->place->given_up || (w->entry->flags & ENTRY_REMOVED))
		return -ENOENT;
	r = sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r < 0)
		return r;
	return sys_dev_of(&st) == w->entry->dev ? -ENOENT : RECOVER_UNMOUNTED;
}

/* The file at its path, or renamed within the directory. */
static int open_at_path(const struct wanted *w, uint32_t below, bool *proved)
{
	BUFFER(char, path);
	const char *name;
	int dirfd = open_parent(w->entry, w->place, below, path, &name);
	int fd;

	if (dirfd < 0)
		return dirfd;
	fd = open_candidate(dirfd, name, w, proved);
	if (fd == -ENOENT)
		fd = open_renamed(dirfd, w, proved);
	if (fd == -ENOENT)
		fd = why_gone(w, dirfd);
	sys.close(dirfd);
	return fd;
}

int recover_target_open(struct recover_target *t, const struct arena_entry *entry,
                        const struct recover_place *place, bool keep)
{
	struct wanted w = {.entry = entry, .place = place};
	int fd;

	t->fd = -1;
	t->orphan = t->proved = false;
	t->path[0] = '\0';
	identity_of_entry(entry, &w.id);
	fd = open_at_path(&w, entry->below, &t->proved);
	if (fd == -ENOENT && entry->below > 0) {
		/* the staging directory was moved (a copy of the volume has another device number) */
		fd = open_at_path(&w, 0, &t->proved);
		if (fd == RECOVER_ELSEWHERE)
			fd = -ENOENT;
	}
	if (fd >= 0) {
		t->fd = fd;
		return 0;
	}
	if (fd != -ENOENT || !keep)
		return fd;
	return make_orphan(t, entry, place->staging_fd);
}

void recover_target_close(struct recover_target *t)
{
	if (t->fd >= 0)
		sys.close(t->fd);
	t->fd = -1;
}
