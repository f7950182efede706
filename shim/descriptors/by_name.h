// SPDX-License-Identifier: Apache-2.0
/*
 * by_name: calls that see or change a file other than through its descriptors: by name, by size, or all files
 * at once.  While no file is attached each of them is one load and a branch.
 */
#ifndef FASTWRITE_DESCRIPTORS_BY_NAME_H
#define FASTWRITE_DESCRIPTORS_BY_NAME_H

#include "base/fork_guard.h"
#include "files/file.h"
#include "files/young.h"

#include <stdbool.h>
#include <sys/stat.h>

static inline bool by_name_idle(void) { return file_attached() == 0 || fork_guard_elsewhere(); }

/*
 * Only the answer of a stat call tells which file it is about.  Bytes staged at the time of the call may
 * reach the file a moment later, flushed by the timer or another thread.  So a call is repeated if its answer
 * is about an attached file, or if a file was detached meanwhile.
 */
static inline uint32_t by_name_detaches(void) { return file_detaches(); }
static inline bool by_name_outdated(uint32_t releases)
{
	return !by_name_idle() || by_name_detaches() != releases;
}

/* Drains the file with this identity.  True if an earlier answer may be wrong; `releases` is from before that
 * answer. */
bool by_name_drain_identity(uint64_t dev, uint64_t ino, uint32_t releases);
/* If the file is paged: its size and time as the program sees them. */
struct by_name_shown {
	uint64_t size;
	struct timespec mtime;
	bool pages; /* it has contents that the kernel does not have */
};
bool by_name_paged(uint64_t dev, uint64_t ino, struct by_name_shown *out);
/* The C library made the stat call itself.  If *st is about an attached file, drains it and updates size,
 * blocks and times. */
void by_name_refresh_stat(struct stat *st);
/* Drains the file that (dirfd, path) names; `follow` the last symlink.  0 or -errno. */
int by_name_drain_path(int dirfd, const char *path, bool follow);

/* Before ftruncate, fallocate, ioctl, times and the like through a descriptor, which may be O_PATH.  Drains
 * and detaches its file until small writes come again.  0 or -errno. */
int by_name_detach_fd(int fd);
/* The same for a path (truncate, chmod, utimes).  Follows symlinks; "" names dirfd itself. */
int by_name_detach_at(int dirfd, const char *path);
static inline int by_name_detach_path(const char *path)
{
	return by_name_detach_at(-100 /* AT_FDCWD */, path);
}

/* FIEMAP of fd has succeeded.  Removes from the answer the space behind the end of the file that the library
 * reserved and could not give back. */
struct fiemap;
void by_name_extents_asked(int fd, struct fiemap *map);

/*
 * The same for a call that changes size, contents or position.  No file is attached until by_name_change_end,
 * because an attach would read values that are about to change.  The thread's signals are blocked meanwhile,
 * so that no handler leaves the call with longjmp.
 */
struct by_name_change {
	uint64_t signals;
	bool begun;
	const struct rule *ordered; /* as by_name_order; or NULL */
	uint64_t dev;
	int fd; /* of its file; -1: unknown */
};
int by_name_change_fd(struct by_name_change *c, int fd);
int by_name_change_at(struct by_name_change *c, int dirfd, const char *path);
void by_name_change_end(struct by_name_change *c);
/* A file may be in an overlay: without one, no look at a file has to ask. */
bool by_name_overlays(void);
/* True if the file of fd is in an overlay (or may be) and its owner and group are these already: databases
 * call fchown for each journal.  Then nothing need be drained. */
bool by_name_keeps_owner(int fd, uid_t uid, gid_t gid);

/* link.  Before: drains the file, and makes durable what `relaxed` has promised. */
struct by_name_link {
	const struct rule *ordered; /* of the new name, as by_name_order; or NULL */
	uint64_t dev;
};
void by_name_link_prepare(struct by_name_link *l, int dirfd, const char *path, bool follow, int tofd,
                          const char *to);
void by_name_link_done(const struct by_name_link *l, int tofd, const char *to, bool linked);

/* rename.  Before: the target may be replaced or exchanged.  After: paths have changed. */
struct by_name_rename {
	bool watch;
	bool exchange;
	bool holds;                   /* nothing is staged until done */
	struct by_name_change change; /* and nothing is attached; its rule is that of the old name */
	const struct rule *ordered;   /* of the new name, as by_name_order; or NULL */
	uint64_t ordered_dev;
	uint64_t dev, ino;         /* identity of the renamed file, 0: no such file */
	uint64_t old_dev, old_ino; /* identity of the replaced or exchanged file */
	bool tree;                 /* a directory is moved */
	int tofd;
	const char *to;
	char *from; /* path before; NULL: no attached file is concerned */
};
void by_name_rename_prepare(struct by_name_rename *r, int fromfd, const char *from, int tofd, const char *to,
                            bool exchange);
void by_name_rename_done(struct by_name_rename *r, bool renamed);

/* unlink: before and after. */
struct by_name_unlink {
	bool last; /* the file has no other name */
	uint64_t dev, ino;
	struct transient_name *name; /* as ordered_remove; or NULL */
	uint64_t signals;            /* with a name: no handler leaves the call with longjmp */
	bool logged;                 /* as ordered_remove */
	const struct rule *ordered;  /* as by_name_order; or NULL */
	uint64_t ordered_dev;
	bool in_directory; /* as ordered_directory_has */
};
void by_name_unlink_prepare(struct by_name_unlink *u, int dirfd, const char *path);
void by_name_unlink_done(const struct by_name_unlink *u, bool done);

/* Before a file is cut or changed, or a name comes or goes, which the kernel may make durable at once: the
 * path names the file, or is a link to it.  Returns the rule that it belongs to, if its files are ordered,
 * and its file system, for ordered_call_end, which must follow; or NULL. */
const struct rule *by_name_order(int dirfd, const char *path, uint64_t *dev);
/* The same before a new file is made.  *name: as ordered_create; if it is not NULL there was no barrier.
 * *sure: `path` is the path, absolute and free of links, and young_found has it. */
const struct rule *by_name_order_new(int dirfd, const char *path, uint64_t *dev, struct transient_name **name,
                                     bool *sure);

/* rmdir, or a rename onto `path`, failed with ENOTEMPTY.  True if only our staging directory was in the way,
 * and it has been removed. */
bool by_name_rmdir_again(int dirfd, const char *path);

/* Before fd is mapped; `shares`: with MAP_SHARED.  0, or the -errno of the drain: bytes stay staged. */
int by_name_map(int fd, bool shares);
/* The file is mapped, or is open where the library sees no call.  No process of the family ever stages it
 * (files/never_staged.h).  0, or the -errno of the drain. */
int by_name_never(uint64_t dev, uint64_t ino, enum bypass_reason why);
/* A descriptor on the file exists that the library did not see opened.  Bypasses the file. */
void by_name_unknown_fd(uint64_t dev, uint64_t ino);

/* Drains all attached files of this process and of the other members of its family, before a call that may
 * concern any of them. */
void by_name_drain_all(void);
/* The same before a lock is released: all but paged files, at which nobody outside of the family looks. */
void by_name_drain_for_lock(void);
/* The same before sync, for the whole family.  Voids their entries in the journal, because a replay would
 * bring back bytes older than the synced ones. */
void by_name_drain_for_sync(void);
/* The same for syncfs(fd), which reports errors.  The first -errno of a file on that file system, or 0. */
int by_name_drain_for_syncfs(int fd);

/* RLIMIT_FSIZE changes.  A lower limit must not hit bytes that were accepted under the higher one, so nothing
 * is staged until by_name_limit_end. */
void by_name_limit_begin(struct by_name_change *c);
void by_name_limit_end(struct by_name_change *c);

#endif
