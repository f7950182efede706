// SPDX-License-Identifier: Apache-2.0
/*
 * attach: attaches a managed file, so that its small writes are staged, and detaches it again.
 *
 * A small write attaches the file, once this may pay (staging/staging_policy.h).  The file gets a file entry
 * in an arena, which is made for the first file of a rule and file system.  A worker thread runs from then
 * on.  If the library cannot model something about the file or the process, the file is bypassed instead, and
 * the reason is counted.
 */
#ifndef FASTWRITE_ATTACH_ATTACH_H
#define FASTWRITE_ATTACH_ATTACH_H

#include "files/file.h"

/* File lock held; f is passive, `o` is one of its descriptions.  True: f is attached now.  False: f stays
 * passive (try again later), or is bypassed from now on. */
bool attach_file(struct file *f, struct ofd *o);

/*
 * File lock held.  Drains f, gives its positions back to the kernel, trims reserved space and frees the file
 * entry. f is passive again and may be attached later.  A signal handler (f->nested) cannot free the entry
 * while the interrupted write may copy into one of its blocks.  Then f stays attached, stages nothing, and is
 * detached later (WANT_DETACH).  0, or the -errno of the drain: f keeps its staged bytes and stays
 * attached.
 */
int detach_file(struct file *f);

/* detach_file, then f is bypassed from now on.  If only another process of the family can give a position
 * back to the kernel, f stays attached but stages nothing (WANT_BYPASS). */
int attach_bypass(struct file *f, enum bypass_reason why);

/* File lock held, f attached.  Drains f; if only the library has a descriptor that can write, detaches it,
 * too, so that it has none any more: a program can be started then.  0 or -errno. */
int attach_let_go(struct file *f);

/* File lock held.  The library keeps no descriptor that the program has closed: f is detached, or the program
 * has another one that can write.  0 or -errno. */
int attach_keep_nothing(struct file *f);

/* The same when DUE_CLOSED has come. */
void attach_closed_due(struct file *f);

/* File lock held.  Does what is wanted of f, if possible now.  0 or -errno. */
int attach_as_wanted(struct file *f);

/* The last description is closed, and the staged bytes cannot be written (e.g. the disk is full).  They stay
 * in the arena, which then outlives the process, for `fastwrite recover` or the next open. */
void attach_abandon(struct file *f);

/* Forgets what was staged for f: it is in the file, or is left to recovery. */
void attach_nothing_staged(struct file *f);
/* The same; f has no arena any more. */
void attach_leave_arena(struct file *f);

/* The disk is full: detaches idle files that have reserved space, which frees it.  True if one was detached.
 * Other files' locks are only tried. */
bool detach_reserved(void);

/* Reads the sizes from the kernel.  Nothing may be staged. */
void attach_refresh(struct file *f, int fd);

/* True if a new program would inherit a writable descriptor of f. */
bool attach_stays_open(const struct file *f);

/* File lock held.  True if attach_to_arena need not wait for another process: f's arena is mapped here, or
 * can be mapped now, or no other process has it. */
bool attach_reaches(const struct file *f);

/* File lock held; may be dropped and taken again.  Maps the arena in which another process of the family
 * staged f.  See file_care. */
void attach_to_arena(struct file *f);

#endif
