// SPDX-License-Identifier: Apache-2.0
/*
 * arenas: which arena a file is staged in.  One is made with the first file of a rule and file system;
 * members of a family share those that they can reach.
 */
#ifndef FASTWRITE_STAGING_ARENAS_H
#define FASTWRITE_STAGING_ARENAS_H

#include "files/file.h"

struct statx;

/* Staging directory for a file of this rule at this path, in out[PATH_MAX]; 0 or -errno. */
int arenas_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out);

/* LOCK_ATTACH: whoever has it decides alone what becomes attached. */
void arenas_lock(void);
void arenas_unlock(void);
bool arenas_try(void);
void arenas_unlock_tried(void);

/* All below: with that lock, unless said otherwise. */

/* The arena for f, found, joined or made.  NULL: none, or *busy: another member of the family is about to
 * change that. */
struct arena *arenas_for(struct file *f, const char *path, bool *busy);
/* The same before there is a file to stage: makes one if there is none. */
void arenas_prepare(const struct rule *rule, const char *path, uint64_t dev);
/* All who have a description of f have mapped it. */
bool arenas_mapped_by_all(const struct file *f, const struct arena *a);
/* What is staged for a file that its file system encrypts must be encrypted by the same key: in a staging
 * directory that was made inside the encrypted one it is. */
bool arenas_may_hold(const struct arena *a, const struct file *f, int fd, const struct statx *st);

/* File lock held: maps the arena that another member of the family staged f in.  0 or -errno. */
int arenas_join(const struct file *f);
/* No lock held.  This process's descriptor of an arena, -1 when it has not got it. */
int arenas_fd(const struct arena *a);
/* No lock held.  The program wants this number: the arena that has it takes another.  False when there is
 * none. */
bool arenas_move_fd(int fd);

/* The table; entries may be NULL. */
uint32_t arenas_count(void);
struct arena *arenas_at(uint32_t i);

/* Takes arena i out of the table if it holds nothing and nobody else has it; then it is returned, with the
 * family's lock, and arenas_close_end removes it. */
struct arena *arenas_close_begin(uint32_t i);
void arenas_close_end(struct arena *a);

/* What could not be made is tried anew.  No lock held. */
void arenas_forget_refused(void);

/* Address space for the arenas to come, which other members can join then; without it each member makes its
 * own. */
void arenas_reserve_places(void);
/* Every arena is the new member's, too. */
void arenas_share(uint32_t member);
/* In the child of a fork: as a member of the family, */
void arenas_fork_child(void);
/* or not.  The memory of an arena goes, or becomes a private copy (an interrupted write goes on with it). */
void arenas_forget(bool keep_mapped);

#endif
