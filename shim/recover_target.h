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

/* The file system's view of who we are: root acts with the rights of the arena's owner. */
enum { RECOVER_GROUPS_MAX = 256 };
struct recover_rights {
	bool changed;
	int group_count;
	uint32_t groups[RECOVER_GROUPS_MAX];
};
/* 0 or -errno: nothing is changed. */
int recover_rights_take(struct recover_rights *r, uint32_t uid, uint32_t gid);
void recover_rights_drop(struct recover_rights *r);

#endif
