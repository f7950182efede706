// SPDX-License-Identifier: Apache-2.0
/*
 * recover_target: the file that a slot names: at its path, or renamed within its directory, or put aside.
 *
 * A path below the directory that the staging directory is in counts from there: the volume may be mounted
 * elsewhere now, and a copy of it is a volume of its own.  Device numbers count from the one that the arena
 * was made on.
 */
#ifndef FASTWRITE_RECOVER_TARGET_H
#define FASTWRITE_RECOVER_TARGET_H

#include "format/arena_format.h"

/* Where the arena, or the journal, stands. */
struct recover_place {
	int staging_fd;
	uint64_t dev_then; /* of the file system that it was made on, as the kernel of then numbered it */
	uint64_t dev_now;
};

/* recover_target_open: the directory of the target does not exist here.  It may exist in another mount
 * namespace, or its volume may not be mounted. */
#define RECOVER_ELSEWHERE (-EXDEV)

struct recover_target {
	int fd;      /* O_RDWR, or O_WRONLY when reading is not allowed; -1 = none */
	bool orphan; /* the file is gone: fd is a new one under orphans/ in the staging directory */
	bool proved; /* more than the inode number says that it is the file */
	char path[PATH_MAX];
};

/* 0; -ENOENT: gone, and `keep` was false so that nothing was put aside; RECOVER_ELSEWHERE; other -errno. */
int recover_target_open(struct recover_target *t, const struct arena_slot *slot,
                        const struct recover_place *place, bool keep);
void recover_target_close(struct recover_target *t);

/* A directory for what recovery keeps, in the staging directory: made when missing, of the owner of the
 * staging directory, for nobody else to write.  fd or -errno. */
int recover_keeping_dir(int staging_fd, const char *name);

#endif
