// SPDX-License-Identifier: Apache-2.0
/*
 * stop: acts on all files at once.  The process forks, execs or ends, or does something that forbids staging.
 * See files/gate.h.
 */
#ifndef FASTWRITE_ATTACH_STOP_H
#define FASTWRITE_ATTACH_STOP_H

#include "files/file.h"

/* Bypasses every file and removes every arena that holds nothing.  A file that other processes of the family
 * have, too, is only drained, except if a new program inherits it.  False: some bytes could not be written;
 * the log says so.  No file lock held. */
bool attach_stop_all(enum bypass_reason why);
/* Before this process hands anything to a process outside of the family: a program that it starts, its end, a
 * lock that it gives back.  Drains the files that only other members have open.  (For a file that both have,
 * the caller takes the lock.)  Does not wait for a stopped member that is at work on a file: names its
 * thread.  No file lock held. */
void attach_drain_elsewhere(void);
/* Lets files that attach_stop_all(why) bypassed be attached again (e.g. an exec failed). */
void attach_resume_all(enum bypass_reason why);

/* After attach_stop_all, before the process acts with other rights.  Bytes that could not be flushed stay in
 * their arena, for recovery with the old rights. */
void attach_abandon_failed(void);
/* After attach_stop_all(why) and a change of rights: attach_resume_all, and arenas refused with the old
 * rights are tried again. */
void attach_rights_changed(enum bypass_reason why);

/* The process does something that forbids staging.  Bypasses all files of the family, also those opened
 * later.  This lasts as long as this process, or a child that it forks from now on, lives. */
void attach_refuse(enum bypass_reason why);
/* True after attach_refuse, here or in the parent before the fork. */
bool attach_refused(void);
/* If no other process of the family lives, the family ends: withdraws the claims of the dead, and closes the
 * family's descriptor.  True if so.  Takes LOCK_ATTACH, so that nobody forks meanwhile: `waits` for it, or
 * does nothing where it is not free.  No file lock held. */
bool attach_end_family(bool waits);
/* Called by a worker thread: carries out gate.soon and gate.alone. */
void attach_tend(void);

/* Removes idle arenas in the staging directory `dir`, or everywhere if it is NULL.  For rmdir, and if the
 * program needs the library's descriptors.  True if an arena was removed. */
bool attach_retire_dir(const char *dir);
/* In an idle worker thread: gives back space reserved for idle files and removes arenas that hold nothing.
 * They would keep their file system busy. */
void attach_retire_idle(void);

/* Around a fork; the caller blocks signals.  Nothing is attached in between.  Every inherited file has an
 * arena in which both processes can stage it later. */
void attach_pause(void);
void attach_unpause(void);
/* Shares every arena with the new process of the family, and what has been refused, too. */
void attach_share(uint32_t member);
/* In a child that belongs to the family. */
void attach_fork_child(void);
/* In a child that does not: it has no arena and no attached file.  An arena's memory is unmapped.  With
 * keep_mapped it becomes a private copy, because an interrupted write goes on with it. */
void attach_forget(bool keep_mapped);
/* attach_stop_all was called before attach_forget and is still in force. */
void attach_still_stopped(void);

#endif
