// SPDX-License-Identifier: Apache-2.0
/*
 * attach: from "managed" to "staged" and back.
 *
 * A file is attached by its second small write: it gets an arena (made with the first file of a rule and file
 * system), a slot in it, and a running worker.  Anything about the file or the process that the library
 * cannot model makes it written through instead, with the reason counted.
 */
#ifndef FASTWRITE_ATTACH_ATTACH_H
#define FASTWRITE_ATTACH_ATTACH_H

#include "files/file.h"

/* File lock held, f passive, `o` one of its writable descriptions.  True when f is attached now; false when
 * it stays passive (try again later) or became written through. */
bool attach_file(struct file *f, struct ofd *o);

/* File lock held: settles, hands offsets over, trims, gives the slot back; f is passive again and may be
 * attached anew. A signal handler (nested) cannot give back the slot while the write that it interrupted may
 * copy into one of its blocks: then f stays attached, but nothing is staged before that is made up for
 * (detach_wanted).  0 or the -errno of the settle, in which case f keeps its staged bytes and stays attached.
 */
int detach_file(struct file *f, bool nested);

/* detach_file for good: f is written through from now on.  When another member of the family alone can hand a
 * position over, f stays attached, but nothing is staged any more (bypass_wanted). */
int attach_bypass(struct file *f, enum bypass_reason why, bool nested);

/* Does what bypass_wanted or detach_wanted ask for, if they do.  0 or -errno. */
int attach_as_wanted(struct file *f, bool nested);

/* The last description goes and the staged bytes cannot be written (the disk is full, say): they stay in the
 * arena, which then outlives the process, for `fastwrite recover` or the next open. */
void attach_abandon(struct file *f);

/* Of what was staged for f nothing is any more, or it is not f's business: it was put in place, or waits for
 * recovery. */
void attach_nothing_staged(struct file *f);
/* And f has no arena any more. */
void attach_leave_arena(struct file *f);

/* The disk is full: gives back the space that idle files have reserved.  True when there was some.  Other
 * files' locks are only tried. */
bool detach_reserved(void);

/* Sizes as the kernel sees them now; nothing is staged. */
void attach_refresh(struct file *f, int fd);

/* A new program would inherit a description of it that can be written to. */
bool attach_stays_open(const struct file *f);

/* File lock held: its arena is mapped here, or can be now, or attach_to_arena need not wait for anybody. */
bool attach_reaches(const struct file *f);

/* Maps the arena that another member of the family staged f in; file lock held, may be dropped and taken
 * again. See file_care. */
void attach_to_arena(struct file *f);

#endif
