// SPDX-License-Identifier: Apache-2.0
/*
 * stop: what concerns every file at once: the process forks, execs, ends, or does something that nothing can
 * be staged beside. See files/gate.h.
 */
#ifndef FASTWRITE_ATTACH_STOP_H
#define FASTWRITE_ATTACH_STOP_H

#include "files/file.h"

/* Every attached file written through, every arena destroyed that holds nothing; no file lock held. */
void attach_stop_all(enum bypass_reason why);
/* The files that attach_stop_all(why) stopped may be attached again (an exec failed). */
void attach_resume_all(enum bypass_reason why);

/* After attach_stop_all, before the process acts with other rights: what could not be flushed stays in its
 * arena for recovery with the old ones. */
void attach_abandon_failed(void);
/* After attach_stop_all(why) and such a change: attach_resume_all, and what was refused with the old rights
 * is tried anew. */
void attach_rights_changed(enum bypass_reason why);

/* The process does something that no file can be staged beside: all of the family are written through, those
 * that are opened later too, as long as it or a child that it forks from now on lives. */
void attach_refuse(enum bypass_reason why);
/* That has been, in this process. */
bool attach_refused(void);
/* By a worker: does that for gate.soon. */
void attach_tend(void);

/* Removes idle arenas in directory `dir` (a staging directory), NULL: everywhere; for rmdir, and when the
 * program needs our descriptors.  True when one was removed. */
bool attach_retire_dir(const char *dir);
/* In a worker, with nothing to do: gives back what is reserved for files that nobody writes, and removes
 * arenas that hold nothing.  They would keep their file system busy. */
void attach_retire_idle(void);

/* Around fork; signals blocked by the caller.  Nothing becomes attached in between, and every inherited file
 * has an arena that it can be staged in later. */
void attach_pause(void);
void attach_unpause(void);
/* Every arena is the new member's, too, and so is what has been refused. */
void attach_share(uint32_t member);
/* In the child: as a member of the family, */
void attach_fork_child(void);
/* or not: no arena, nothing attached.  The memory of an arena goes, or becomes a private copy (an interrupted
 * write goes on with it). */
void attach_forget(bool keep_mapped);
/* attach_stop_all was called before attach_forget, and is not over yet. */
void attach_still_stopped(void);

#endif
