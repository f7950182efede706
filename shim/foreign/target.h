// SPDX-License-Identifier: Apache-2.0
/*
 * target: finds the file that a file entry names: at its path, or renamed within its directory.  For a file
 * that is gone it makes an orphan.
 *
 * A path below the directory of the staging directory counts from there: the volume may be mounted elsewhere
 * now, and a copy of it is a volume of its own.  Device numbers are compared with that of the arena.
 */
#ifndef FASTWRITE_FOREIGN_TARGET_H
#define FASTWRITE_FOREIGN_TARGET_H

#include "format/arena_format.h"

#include <stdbool.h>
#include <sys/stat.h>

/* Where the arena or journal is. */
struct recover_place {
	int staging_fd;
	uint64_t dev_then; /* number of its file system when it was made */
	uint64_t dev_now;  /* number of its file system now */
	bool given_up;     /* the user says that volumes that are not mounted are gone */
};

/*
 * How long this process waits for leases from now on, for all files together: a program is told of the first
 * try to open, and 45 s later the kernel takes the lease of one that does not answer.  Then, each file has 20
 * ms: programs that keep many leases must not hold up a recovery for as many waits, and the next recovery
 * finds these leases gone.
 */
void recover_target_patience(int ms);
enum { LEASE_PATIENCE_MS = 60000 }; /* at first */

/* recover_target_open: the directory of the target does not exist here.  It may exist in another mount
 * namespace, or its volume may not be mounted. */
#define RECOVER_ELSEWHERE (-EXDEV)
/* The directory is there, without the file, and not on the volume that the file was on: that may not be
 * mounted.  Or it has another number since, and the file is gone: nobody can tell. */
#define RECOVER_UNMOUNTED (-ENOMEDIUM)

struct recover_target {
	int fd;      /* O_RDWR, or O_WRONLY when reading is not allowed; -1 = none */
	bool orphan; /* the file is gone: fd is a new file in orphans/ in the staging directory */
	bool proved; /* more than the inode number says that it is the file */
	char path[PATH_MAX];
};

/* 0; -EAGAIN: a process keeps a lease of it; -ENOENT: the file is gone, and without `keep` no orphan was
 * made; RECOVER_ELSEWHERE; RECOVER_UNMOUNTED; other -errno. */
int recover_target_open(struct recover_target *t, const struct arena_entry *entry,
                        const struct recover_place *place, bool keep);
void recover_target_close(struct recover_target *t);

/* *st, with STATX_BTIME, is of the file that the entry names. */
bool recover_target_is(const struct statx *st, const struct arena_entry *entry,
                       const struct recover_place *place);

/* Opens the directory of a name, of which `below`, `up` and `path` are known.  `path` has PATH_MAX bytes, and
 * *name points into it.  fd; -ENOENT: it is gone; RECOVER_ELSEWHERE; other -errno. */
int recover_parent_open(const struct arena_entry *named, const struct recover_place *place, char *path,
                        const char **name);

/* A directory in the staging directory for what recovery keeps.  It is made when missing.  It must belong to
 * the owner of the staging directory, and nobody else may write to it.  fd or -errno. */
int recover_keeping_dir(int staging_fd, const char *name);

#endif
