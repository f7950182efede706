// SPDX-License-Identifier: Apache-2.0
/*
 * rights: recovery acts with the rights of the arena's owner.
 *
 * Root takes the owner's user and groups for file access and gives up all capabilities.  (The group of a file
 * proves nothing: a directory may hand its group on.)  Only the command looks up groups; in the library, and
 * for a user who is not known, the owner has none.
 */
#ifndef FASTWRITE_FOREIGN_RIGHTS_H
#define FASTWRITE_FOREIGN_RIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RECOVER_GROUPS_MAX = 256 };
struct recover_rights {
	bool changed;
	int group_count; /* before: */
	uint32_t groups[RECOVER_GROUPS_MAX];
	/* the kernel resets these at every change of rights */
	int dumpable, death_signal;
	uint32_t capabilities[2][3]; /* effective, permitted, inheritable; low and high words */
};

/* For this thread only.  0, or -errno and nothing has changed. */
int recover_rights_take(struct recover_rights *r, uint32_t uid);
void recover_rights_drop(struct recover_rights *r);

/* Looks up the groups of a user, the primary one first; how many, 0 when the user is not known.  NULL in the
 * library. */
extern int (*recover_rights_groups)(uint32_t uid, uint32_t groups[RECOVER_GROUPS_MAX]);

#endif
