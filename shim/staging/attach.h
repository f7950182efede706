// SPDX-License-Identifier: Apache-2.0
/*
 * attach: from "managed" to "staged" and back.
 *
 * A file is attached by its second small write: it gets an arena (made with the first file of a rule and file
 * system), a slot in it, and a running engine.  Anything about the file or the process that the library cannot
 * model makes it written through instead, with the reason counted.
 */
#ifndef FASTWRITE_ENGAGE_H
#define FASTWRITE_ENGAGE_H

#include "descriptors/file.h"

/* The configuration in force; set once by init before any file is managed. */
extern const struct config *attach_config;

/* File lock held, f passive, `o` one of its writable descriptions.  True when f is attached now; false when it
 * stays passive (try again later) or became written through. */
bool attach_file(struct file *f, struct ofd *o);

/* File lock held: settles, hands offsets over, trims, gives the slot back; f is passive again and may be attached anew.
 * A signal handler (nested) cannot give back the slot while the write that it interrupted may copy into one of its
 * blocks: then f stays attached, but nothing is staged before that is made up for (release_wanted).  0 or the -errno of
 * the settle, in which case f keeps its staged bytes and stays attached. */
int detach_file(struct file *f, bool nested);

/* detach_file for good: f is written through from now on.  When another member of the family alone can hand a
 * position over, f stays attached, but nothing is staged any more (bypass_wanted). */
int attach_bypass(struct file *f, enum bypass_reason why, bool nested);

/* The last description goes and the staged bytes cannot be written (the disk is full, say): they stay in the
 * arena, which then outlives the process, for `fastwrite recover` or the next open. */
void attach_abandon(struct file *f);

/* Of what was staged for f nothing is any more, or it is not f's business: it was put in place, or waits for recovery. */
void attach_nothing_staged(struct file *f);
/* And f has no arena any more. */
void attach_leave_arena(struct file *f);

/* The disk is full: gives back the space that idle files have reserved.  True when there was some.  Other
 * files' locks are only tried. */
bool detach_reserved(void);

/* Sizes as the kernel sees them now; nothing is staged. */
void attach_refresh(struct file *f, int fd);

/* Every attached file written through, every arena destroyed that holds nothing; no file lock held. */
void attach_stop_all(enum bypass_reason why);
/* The files that attach_stop_all(why) stopped may be attached again (an exec failed). */
void attach_resume_all(enum bypass_reason why);

/* After attach_stop_all, before the process acts with other rights: what could not be flushed stays in its arena for
 * recovery with the old ones. */
void attach_abandon_failed(void);
/* After attach_stop_all(why) and such a change: attach_resume_all, and what was refused with the old rights is tried anew. */
void attach_rights_changed(enum bypass_reason why);

/* The process does something that no file can be staged beside: all of the family are written through, those that are
 * opened later too, as long as it or a child that it forks from now on lives. */
void attach_refuse(enum bypass_reason why);
/* That has been, in this process. */
bool attach_refused(void);
/* By an engine thread: does what attach_file could not do about other files. */
void attach_tend(void);

/* Removes idle arenas in directory `dir` (a staging directory), NULL: everywhere; for rmdir, and when the
 * program needs our descriptors.  True when one was removed. */
bool attach_retire_dir(const char *dir);
/* In the engine, with nothing to do: gives back what is reserved for files that nobody writes, and removes arenas that hold
 * nothing.  They would keep their file system busy. */
void attach_retire_idle(void);

/* The program wants this number: the arena that has it takes another.  False when there is none. */
bool attach_move_fd(int fd);

/* Other members of the family have the file, too. */
bool attach_others_have(const struct file *f);
/* A new program would inherit a description of it that can be written to. */
bool attach_stays_open(const struct file *f);

/* True after attach_stop_all: whatever is written goes to the kernel at once. */
bool attach_stopped(void);

/* File lock held: its arena is mapped here, or can be now, or attach_to_arena need not wait for anybody. */
bool attach_reaches(const struct file *f);

/* Maps the arena that another member of the family staged f in; file lock held, may be dropped and taken again.
 * Installed as file_attach. */
void attach_to_arena(struct file *f);

/* This process's descriptor of an arena, -1 when it has not got it. */
int attach_arena_fd(const struct arena *a);

/* Around fork; signals blocked by the caller.  Nothing becomes attached in between, and every inherited file has an
 * arena that it can be staged in later. */
void attach_pause(void);
void attach_unpause(void);
/* Every arena is the new member's, too, and so is what has been refused. */
void attach_share(uint32_t member);
/* In the child: as a member of the family, */
void attach_fork_child(void);
/* or not: no arena, nothing attached.  The memory of an arena goes, or becomes a private copy (an interrupted write goes
 * on with it). */
void attach_forget(bool keep_mapped);
/* attach_stop_all was called before attach_forget, and is not over yet. */
void attach_still_stopped(void);

/* Canonical path of an open descriptor, in out[PATH_MAX]; 0 or -errno (-ENOENT: unlinked). */
int attach_path_of(int fd, char *out);

/* Staging directory for a file of this rule at this path, in out[PATH_MAX]; 0 or -errno. */
int attach_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out);

#endif
