// SPDX-License-Identifier: Apache-2.0
/*
 * arenas: which arena a file is staged in.  The first file of a rule and file system makes an arena.  The
 * processes of a family share the arenas that they can map.
 */
#ifndef FASTWRITE_STAGING_ARENAS_H
#define FASTWRITE_STAGING_ARENAS_H

#include "files/file.h"

struct statx;

/* Writes the staging directory for a file of this rule at this path to out[PATH_MAX].  0 or -errno. */
int arenas_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out);

/* LOCK_ATTACH: its holder alone decides which files are attached. */
void arenas_lock(void);
void arenas_unlock(void);
bool arenas_try(void);
void arenas_unlock_tried(void);

/* All functions below: with that lock, unless said otherwise. */

/* True for the errors that a program causes itself, by a limit of its own or by mlockall. */
bool arenas_try_later(int error);
/* Finds, maps or makes the arena for f.  NULL: none.  *busy: another process of the family may be changing
 * that.  *later: none can be made now. */
struct arena *arenas_for(struct file *f, const char *path, bool *busy, bool *later);
/* The same before there is a file to stage: makes an arena if there is none. */
void arenas_prepare(const struct rule *rule, const char *path, uint64_t dev);
/* True if all processes with a description of f have mapped `a`. */
bool arenas_mapped_by_all(const struct file *f, const struct arena *a);
/* True if the arena may hold bytes of f.  If the file system encrypts f, it must encrypt the arena by the
 * same key.  It does in a staging directory that was made inside the encrypted directory. */
bool arenas_may_hold(const struct arena *a, const struct file *f, int fd, const struct statx *st);

/* File lock held: maps the arena in which another process of the family staged f.  0 or -errno. */
int arenas_join(const struct file *f);
/* No lock held.  This process's descriptor of an arena, or -1. */
int arenas_fd(const struct arena *a);
/* No lock held.  The program wants this descriptor: an arena that has it gets another.  False: none has it,
 * or no other is free. */
bool arenas_move_fd(int fd);

/* The table of arenas; entries may be NULL. */
uint32_t arenas_count(void);
struct arena *arenas_at(uint32_t i);

/* Takes arena i out of the table if it holds nothing and no other process has it.  Returns it with the
 * family's lock held, for arenas_close_end, which removes it.  Otherwise NULL. */
struct arena *arenas_close_begin(uint32_t i);
void arenas_close_end(struct arena *a);

/* No lock held.  Waits while the file system of an arena that could be removed is frozen. */
void arenas_wait_thawed(void);

/* No lock held.  Arenas that could not be made are tried again. */
void arenas_forget_refused(void);

/* Reserves address space for later arenas, so that all processes of the family can map them there.  Without
 * it each process makes its own. */
void arenas_reserve_places(void);
/* Shares every arena with the new process of the family. */
void arenas_share(uint32_t member);
/* In a child that belongs to the family. */
void arenas_fork_child(void);
/* In a child that does not.  An arena's memory is unmapped.  With keep_mapped it becomes a private copy,
 * because an interrupted write goes on with it. */
void arenas_forget(bool keep_mapped);

#endif
