// SPDX-License-Identifier: Apache-2.0
/* pool_open: see pool.h.  An open that creates a file is answered with one that is ready, when nobody can tell. */
#include "pool.h"

#include "alive.h"
#include "buffer.h"
#include "engage.h"
#include "handler.h"
#include "kill.h"
#include "lazy.h"
#include "log.h"
#include "rule.h"
#include "strict.h"
#include "sys.h"
#include "thread.h"

#include <fcntl.h>
#include <string.h>

enum {
	/* what changes nothing but the flags of the description */
	FLAGS_KNOWN = O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW |
	              O_NONBLOCK,
	NAME_BYTES_MAX = 255,
	NO_REPLACE = 1, /* RENAME_NOREPLACE */
#ifndef O_LARGEFILE
	O_LARGEFILE = 0,
#endif
};

/* Where the file is to be. */
struct target {
	char path[PATH_MAX]; /* canonical */
	const char *name;
	const struct rule *rule;
	int dir;
	uint64_t dev;
	uint32_t gid;
};

static uint32_t fs_uid(void) { return (uint32_t)sys_raw(SYS_setfsuid, -1, 0, 0, 0, 0, 0); }
static uint32_t fs_gid(void) { return (uint32_t)sys_raw(SYS_setfsgid, -1, 0, 0, 0, 0, 0); }

/* This thread's; -1 when it cannot be learnt. */
static int umask_now(void)
{
	static const char key[] = "\nUmask:\t";
	char text[256];
	const char *p;
	int mask = 0;

	if (sys_read_file("/proc/thread-self/status", text, sizeof text) <= 0)
		return -1;
	p = strstr(text, key);
	if (!p)
		return -1;
	for (p += sizeof key - 1; *p >= '0' && *p <= '7'; p++)
		mask = mask * 8 + (*p - '0');
	return *p == '\n' ? mask : -1;
}

/* Default access lists give other rights than umask. */
static bool has_default_acl(int dir)
{
	char link[64];
	long r;

	log_format(link, sizeof link, "/proc/self/fd/%d", dir);
	r = sys_raw(SYS_getxattr, (long)link, (long)"system.posix_acl_default", 0, 0, 0, 0);
	return r != -ENODATA && r != -EOPNOTSUPP;
}

/* The directory is opened, and its path that of the rule. */
static bool find_dir(struct target *t, int dirfd, const char *path)
{
	const char *slash = strrchr(path, '/');
	BUFFER(char, dir);
	struct statx st;
	size_t n;

	t->name = slash ? slash + 1 : path;
	n = strlen(t->name);
	if (n == 0 || n > NAME_BYTES_MAX || strcmp(t->name, ".") == 0 || strcmp(t->name, "..") == 0 ||
	    strcmp(t->name, ARENA_DIR) == 0)
		return false;
	n = slash ? (size_t)(slash - path) : 1;
	if (n >= PATH_MAX)
		return false;
	memcpy(dir, slash ? path : ".", n);
	dir[n] = '\0';
	if (n == 0)
		memcpy(dir, "/", 2);
	t->dir = sys.openat(dirfd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (t->dir >= 0)
		t->dir = own_fd_raise(t->dir);
	if (t->dir < 0 || engage_path_of(t->dir, t->path) < 0)
		return false;
	n = strlen(t->path);
	if (n + 1 + strlen(t->name) >= ARENA_PATH_MAX)
		return false;
	log_format(t->path + n, PATH_MAX - n, "%s%s", n > 1 ? "/" : "", t->name);
	t->rule = rule_match(engage_config, t->path);
	if (!t->rule || t->rule->set.pool == 0 ||
	    sys.statx(t->dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0 || (st.stx_mode & S_ISGID))
		return false;
	t->dev = sys_dev_of(&st);
	t->gid = st.stx_gid;
	return true;
}

/* The file is as one that the kernel makes there would be, but for its contents and its mode. */
static bool is_alike(const struct target *t, const struct pool_file *file, int staging, int fd)
{
	uint64_t here, there, own;
	uint32_t project_here, project_there, project;
	struct statx st, dir;
	uint32_t gid = fs_gid();

	if (sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st) < 0 || st.stx_ino != file->ino ||
	    sys_dev_of(&st) != t->dev || (st.stx_mode & S_IFMT) != S_IFREG || st.stx_nlink != 1 ||
	    st.stx_size != file->bytes || sys_file_limit() < file->bytes || st.stx_uid != fs_uid() ||
	    st.stx_gid != gid)
		return false;
	if (sys.statx(staging, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &dir) < 0)
		return false;
	/* some mounts let every directory give its group: here it did not, or it makes no difference */
	if (dir.stx_gid == gid && t->gid != gid)
		return false;
	if (sys_raw(SYS_flistxattr, fd, 0, 0, 0, 0, 0) != 0 || has_default_acl(t->dir))
		return false;
	return pool_attributes(staging, &here, &project_here) == 0 &&
	       pool_attributes(t->dir, &there, &project_there) == 0 &&
	       pool_attributes(fd, &own, &project) == 0 && here == there && project_here == project_there &&
	       own == file->flags && project == file->project;
}

/* With the file's lock, so that who comes upon it before it is complete waits.  True: it has its name. */
static bool move(struct file *f, int fd, int staging, const struct target *t, const struct pool_file *file,
                 mode_t mode)
{
	struct engage_given given = {.path = t->path, .arena = file->arena, .bytes = file->bytes};
	struct file_guard g = file_lock(f);
	long flags = sys.fcntl(fd, F_GETFL, 0);
	struct ofd *o = flags < 0 ? NULL : ofd_new(f, fd, (int)flags);
	bool moved = false;

	if (!o) {
		file_put(f);
	} else if (fdtable_set(fd, o) < 0) {
		ofd_release(o);
		file_put(f);
	} else if (!g.nested && !strict_is(f) && f->mode == FILE_PASSIVE && engage_new_file(f, o, &given)) {
		f->full_sync = true;
		kill_step();
		/* times as of now */
		moved = sys_raw(SYS_fchmod, fd, (long)mode, 0, 0, 0, 0) == 0 &&
		        sys_raw(SYS_utimensat, fd, 0, 0, 0, 0, 0) == 0 &&
		        sys_raw(SYS_renameat2, staging, (long)file->name, t->dir, (long)t->name, NO_REPLACE,
		                0) == 0;
		kill_step();
	}
	file_unlock(f, g);
	return moved;
}

static enum pool_end hand_over(const struct target *t, const struct pool_file *file, int staging, int fd,
                               mode_t mode)
{
	struct file *f;
	bool moved;

	if (fd < 0 || fd_is_standard(fd) || !is_alike(t, file, staging, fd) || alive_set() < 0)
		return POOL_UNTOUCHED;
	f = file_get(t->dev, file->ino, t->rule);
	if (!f)
		return POOL_UNTOUCHED;
	lazy_clear(fd);
	moved = move(f, fd, staging, t, file, mode);
	if (!moved)
		fd_close_prepare(fd);
	return moved ? POOL_MOVED : POOL_SPOILT;
}

int pool_open(int dirfd, const char *path, int flags, mode_t mode)
{
	BUFFER(struct target, t);
	struct pool_file file;
	sys_sigset signals;
	enum pool_end end;
	struct statx st;
	int fd = -1, mask, staging;

	if ((flags & ~(FLAGS_KNOWN | O_LARGEFILE)) || (mode & ~(mode_t)0777) || fd_foreign_process() ||
	    engage_stopped() || file_held())
		return -1;
	/* everything but "there is none" the kernel says best itself */
	if (sys.statx(dirfd, path, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) != -ENOENT)
		return -1;
	/* Another thread, or what a handler has interrupted, may be between its look for the file and its call about
	 * it: it would find zeros. */
	if (!thread_alone() || handler_runs())
		return -1;
	signals = sys_block_signals();
	t->dir = -1;
	if (find_dir(t, dirfd, path) && (mask = umask_now()) >= 0 && pool_take(&file, t->rule, t->dev)) {
		staging = sys.openat(AT_FDCWD, file.staging, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
		                     0);
		if (staging >= 0)
			staging = own_fd_raise(staging);
		/* by name, so that the description is as the program asked for; and while the file's mode allows it */
		if (staging >= 0)
			fd = sys.openat(staging, file.name, flags & ~(O_CREAT | O_EXCL | O_TRUNC), 0);
		end = hand_over(t, &file, staging, fd, mode & ~(mode_t)mask);
		if (fd >= 0 && end != POOL_MOVED) {
			sys.close(fd);
			fd = -1;
		}
		pool_done(&file, end);
		if (staging >= 0)
			own_fd_close(staging);
	}
	if (t->dir >= 0)
		own_fd_close(t->dir);
	sys_restore_signals(signals);
	return fd;
}
