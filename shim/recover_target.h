// SPDX-License-Identifier: Apache-2.0
/*
 * recover_target: the file that a slot names: at its path, or renamed within its directory, or put aside.
 */
#ifndef FASTWRITE_RECOVER_TARGET_H
#define FASTWRITE_RECOVER_TARGET_H

#include "arena.h"

struct recover_target {
	int fd;      /* O_RDWR, or O_WRONLY when reading is not allowed; -1 = none */
	bool orphan; /* the file is gone: fd is a new one under orphans/ in the staging directory */
	char path[PATH_MAX];
};

/* 0; -ENOENT: gone, and `keep` was false so that nothing was put aside; other -errno. */
int recover_target_open(struct recover_target *t, const struct arena_slot *slot, int staging_fd, bool keep);
void recover_target_close(struct recover_target *t);

#endif
