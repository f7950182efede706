// SPDX-License-Identifier: Apache-2.0
/*
 * engage: from "managed" to "staged" and back.
 *
 * A file is engaged by its second small write: it gets an arena (made with the first file of a rule and file
 * system), a slot in it, and a running engine.  Anything about the file or the process that the library cannot
 * model makes it written through instead, with the reason counted.
 */
#ifndef FASTWRITE_ENGAGE_H
#define FASTWRITE_ENGAGE_H

#include "file.h"

/* The configuration in force; set once by init before any file is managed. */
extern const struct config *engage_config;

/* File lock held, f passive, `o` one of its writable descriptions.  True when f is engaged now; false when it
 * stays passive (try again later) or became written through. */
bool engage_file(struct file *f, struct ofd *o);

/* File lock held: settles, hands offsets over, trims, gives the slot back; f is passive again and may be
 * engaged anew.  0 or the -errno of the settle, in which case f keeps its staged bytes and stays engaged. */
int engage_release(struct file *f, bool nested);

/* engage_release for good: f is written through from now on. */
int engage_through(struct file *f, enum through_reason why, bool nested);

/* The last description goes and the staged bytes cannot be written (the disk is full, say): they stay in the
 * arena, which then outlives the process, for `fastwrite recover` or the next open. */
void engage_abandon(struct file *f);

/* The disk is full: gives back the space that idle files have reserved.  True when there was some.  Other
 * files' locks are only tried. */
bool engage_release_reserved(void);

/* Sizes as the kernel sees them now; nothing is staged. */
void engage_refresh(struct file *f, int fd);

/* Every engaged file written through, every arena destroyed that holds nothing; no file lock held. */
void engage_stop_all(enum through_reason why);
/* The files that engage_stop_all(why) stopped may be engaged again (an exec failed). */
void engage_resume_all(enum through_reason why);

/* Removes idle arenas in directory `dir` (a staging directory), NULL: everywhere; for rmdir, and when the
 * program needs our descriptors.  True when one was removed. */
bool engage_retire_dir(const char *dir);

/* The program wants this number: the arena that has it takes another.  False when there is none. */
bool engage_move_fd(int fd);

/* Serializes with fork: nothing becomes engaged in between.  Signals blocked by the caller. */
void engage_pause(void);
void engage_unpause(void);
/* In the child of a fork: no arena, nothing engaged. */
void engage_after_fork(void);

/* The program mapped this file, or locked it through a descriptor that is not managed: never stage it. */
bool engage_is_never(uint64_t dev, uint64_t ino);
void engage_never(uint64_t dev, uint64_t ino);

/* Canonical path of an open descriptor, in out[PATH_MAX]; 0 or -errno (-ENOENT: unlinked). */
int engage_path_of(int fd, char *out);

/* Staging directory for a file of this rule at this path, in out[PATH_MAX]; 0 or -errno. */
int engage_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out);

#endif
