// SPDX-License-Identifier: Apache-2.0
/*
 * recover_rights: who we are while an arena is recovered.
 *
 * Root acts with the rights of the arena's owner and no more: his user and groups on the file system, and no
 * capability.  Which group a file has says nothing about its owner (a directory may hand its group on), so
 * the groups are those that /etc/passwd and /etc/group give him; a user whom these do not know acts without
 * any.
 */
#ifndef FASTWRITE_RECOVER_RIGHTS_H
#define FASTWRITE_RECOVER_RIGHTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RECOVER_GROUPS_MAX = 256 };
struct recover_rights {
	bool changed;
	int group_count; /* what we had: */
	uint32_t groups[RECOVER_GROUPS_MAX];
	/* what the kernel takes away with every change of rights */
	int dumpable, death_signal;
	uint32_t capabilities[2][3]; /* effective, permitted, inheritable; low and high words */
};

/* For this thread.  0, or -errno and nothing is changed. */
int recover_rights_take(struct recover_rights *r, uint32_t uid);
void recover_rights_drop(struct recover_rights *r);

/* The groups of a user, his own first; how many, 0 = not known.  passwd, group: the texts of these files. */
int recover_rights_groups(uint32_t uid, const char *passwd, size_t passwd_size, const char *group,
                          size_t group_size, uint32_t groups[RECOVER_GROUPS_MAX]);

#endif
