// SPDX-License-Identifier: Apache-2.0
/*
 * by_name: calls that see or change a file from outside its descriptors: by name, by size, all at once.
 * While no file is attached each of them is one load and a branch.
 */
#ifndef FASTWRITE_META_H
#define FASTWRITE_META_H

#include "base/fork_guard.h"
#include "files/file.h"

#include <stdbool.h>
#include <sys/stat.h>

static inline bool by_name_idle(void) { return file_attached() == 0 || fork_guard_elsewhere(); }

/*
 * A stat call learns only by its answer which file it is about.  Bytes that were staged when it was made may be in
 * the file a moment later (the timer, another thread), and nothing is staged any more when we look: so every answer
 * about a staged file, or that a file was given back behind, is asked for again.
 */
static inline uint32_t by_name_releases(void) { return file_releases(); }
static inline bool by_name_outdated(uint32_t releases)
{
	return !by_name_idle() || by_name_releases() != releases;
}

/* Settles the file with this identity; true when what was asked before (`releases` is from then) may be wrong. */
bool by_name_settle_identity(uint64_t dev, uint64_t ino, uint32_t releases);
/* The same by st_dev as struct stat shows it. */
bool by_name_settle_stat(uint64_t st_dev, uint64_t st_ino, uint32_t releases);
/* What the C library found out by itself: when it is about an attached file, settles that and brings size, blocks
 * and times up to date. */
void by_name_refresh_stat(struct stat *st);
/* Settles the file that (dirfd, path) names now; `follow` the last symlink. */
void by_name_settle_path(int dirfd, const char *path, bool follow);

/* ftruncate, fallocate, ioctl, times, ... by a descriptor, be it O_PATH: its file is settled, and passive until small writes
 * come again.  0 or -errno. */
int by_name_release_fd(int fd);
/* The same for the file named by a path (truncate, chmod, utimes); symlinks are followed, and "" names dirfd itself. */
int by_name_release_at(int dirfd, const char *path);
static inline int by_name_release_path(const char *path)
{
	return by_name_release_at(-100 /* AT_FDCWD */, path);
}

/* FIEMAP of fd has succeeded: the answer without what the library could not give back behind the end of the file. */
struct fiemap;
void by_name_extents_asked(int fd, struct fiemap *map);

/*
 * The same for a call that changes size, contents or position: until its end no file is attached, for what is looked up
 * then would be wrong.  All signals of the thread are blocked meanwhile, so that no handler leaves it for good.
 */
struct by_name_change {
	uint64_t signals;
	bool begun;
};
int by_name_change_fd(struct by_name_change *c, int fd);
int by_name_change_path(struct by_name_change *c, const char *path);
void by_name_change_end(struct by_name_change *c);
/* Before a stat call is made again: true when the file must be settled once more, since zeros could have been written ahead
 * of its end (prealloc_mode = zero), which they are not until by_name_change_end. */
bool by_name_asks_again(struct by_name_change *c);

/* link: before, the file is settled, and durable as far as `relaxed` has promised it; and after success. */
void by_name_link_prepare(int dirfd, const char *path, bool follow);
void by_name_link_done(int tofd, const char *to);

/* rename: before (target about to be replaced, or exchanged) and after (paths changed). */
struct by_name_rename {
	bool watch;
	bool exchange;
	bool holds;                   /* nothing is staged meanwhile */
	struct by_name_change change; /* and nothing is attached */
	uint64_t dev, ino;            /* of what is renamed, 0 = not ours */
	uint64_t old_dev, old_ino;    /* of what is replaced, or gets its name */
	bool tree;                    /* a directory */
	int tofd;
	const char *to;
	char *from; /* where it was; NULL: nothing is staged for it */
};
void by_name_rename_prepare(struct by_name_rename *r, int fromfd, const char *from, int tofd, const char *to,
                            bool exchange);
void by_name_rename_done(struct by_name_rename *r, bool renamed);

/* unlink: before, and after success. */
struct by_name_unlink {
	bool last; /* the only name */
	uint64_t dev, ino;
};
void by_name_unlink_prepare(struct by_name_unlink *u, int dirfd, const char *path);
void by_name_unlink_done(const struct by_name_unlink *u);

/* rmdir failed with ENOTEMPTY: true when that was our staging directory and it is gone now. */
bool by_name_rmdir_again(int dirfd, const char *path);

/* A file mapping of fd is about to be made. */
void by_name_map(int fd, bool shares);
/* The file is mapped, or open where no call is seen: never to be staged again, by nobody of the family (files/never_staged.h). */
void by_name_never(uint64_t dev, uint64_t ino, enum bypass_reason why);
/* There is a descriptor on the file that the library did not see opened: not to be staged while that may be open. */
void by_name_unknown_fd(uint64_t dev, uint64_t ino);

/* Every attached file settled, before what may concern any of them. */
void by_name_settle_all(void);
/* The same for sync, and their entries in the journal are made void: it makes newer bytes durable. */
void by_name_settle_for_sync(void);
/* The same for syncfs(fd), which reports errors: the first -errno of a file on the same file system, or 0. */
int by_name_settle_for_syncfs(int fd);

/* Before RLIMIT_FSIZE changes: a lower one must not hit bytes that were accepted under the higher one. */
void by_name_limit_changes(void);

#endif
