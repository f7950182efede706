// SPDX-License-Identifier: Apache-2.0
/*
 * ordered: sync = ordered.  After a power loss the files of a rule stand as they all were at one moment.
 *
 * What the program writes goes to the overlay of pages, and a sync returns at once.  Every `ordered_ms` a
 * thread ends an epoch (staging/order.h).  It takes the cut of each file, puts all of them into the log
 * (wal/wal.h) as one epoch, and waits until that is durable.  Only then does it write the cuts to the files.
 * So the kernel never has anything that the log does not have, and whatever the kernel has written when the
 * power goes, the log completes it (recovery/wal_replay.h).  A checkpoint syncs the files, and empties the
 * log (flush/epoch.h).
 *
 * Whatever else changes files of the rule is a *barrier*.  Before it (ordered_barrier) everything staged
 * becomes durable in the files, and the log is void: the kernel may write such a change before the next
 * epoch, and no replay may undo it.  After it (ordered_passed) the file system is synced before the next
 * epoch becomes durable.
 *
 * Nobody else changes the files meanwhile: the rule says so, or a lease on each of them shows it.  The lease
 * stays until the log is void (ordered_holds).
 *
 * One process.  Before a fork everything is written to the files, and the log goes.  While a forked process
 * lives the kernel has all that is written, with syncs of its own.  When only one process is left, whichever,
 * its files are staged again (attach/attach.c).
 */
#ifndef FASTWRITE_FLUSH_ORDERED_H
#define FASTWRITE_FLUSH_ORDERED_H

#include "files/file.h"
#include "wal/transient.h"

/* LOCK_ATTACH held: makes the log of the arena if it is missing.  Only in a thread of the program.  0 or
 * -errno: its files cannot be ordered, which has been logged. */
int ordered_ready(struct arena *a);

/* File lock held: pages of f up to the offset `end` need no space of their own.  `fd`: of f. */
bool ordered_has_spare(const struct file *f, int fd, uint64_t end);

/* File lock held, f is paged, not nested: everything that the program has written to the files of this log
 * becomes durable in them.  Drops and retakes the lock.  0: f is not paged any more.  -errno: f stays paged.
 */
int ordered_drain(struct file *f);

/* File lock held, f is paged: the same for what was written up to now; afterwards f may be paged again. Drops
 * and retakes the lock. */
int ordered_flush(struct file *f);

/* -errno: an epoch of the rule could not be made durable, so no later one is; 0: none. */
int ordered_error(const struct rule *rule);
/* True if the names that came or went up to now are durable, or become so with an epoch that is due, in
 * order. */
bool ordered_names_follow(const struct rule *rule);
/* The program syncs a directory below an ordered rule, with this identity.  True: the next epoch is due, and
 * its names become durable before that.  False: it needs a sync of its own.  `path`: that of the directory,
 * if no other rule has files in it, else NULL.  `links`: as order_directory_note. */
bool ordered_directory_follows(const struct rule *rule, uint64_t dev, uint64_t ino, const char *path,
                               uint32_t links);
/* The same for a directory whose path was given before.  False also if it was not, or if it has other links.
 */
bool ordered_directory_is_known(uint64_t dev, uint64_t ino, uint32_t links);
/* The first n bytes of `path` are the path of such a directory, absolute and free of links, and lead to it.
 * *dev: its file system. */
bool ordered_directory_is_at(const char *path, size_t n, uint64_t *dev);

/*
 * No file lock held: the program is about to make a file of this path, absolute and free of links.  If the
 * name is transient (wal/transient.h) nothing waits for the device: make it now, and call ordered_named.
 * Else NULL, after a barrier that leaves the log its epoch: no file of the log has the name.
 */
struct transient_name *ordered_create(const struct rule *rule, const char *path, uint64_t dev);
/*
 * No file lock held: the program is about to remove the only name of this file, of which no descriptor of the
 * program is left.  The name is transient then.  If no epoch has the file, its bytes need go nowhere.  Else
 * everything up to now becomes durable in the log, and is not yet written back.  Remove the name now, and
 * call ordered_removed and ordered_named; or NULL: needs a barrier.  *logged: the file is in the log; when it
 * is gone, call ordered_gone first.  `path` names the file.
 */
struct transient_name *ordered_remove(uint64_t dev, uint64_t ino, const char *path, bool *logged);
/* No lock held: after the removal of a logged file, which the next epoch makes durable. */
void ordered_gone(struct transient_name *name, bool gone);
/* The call is over, whether the name has come or gone, or not.  NULL does nothing. */
void ordered_named(struct transient_name *name);
/* In a thread of ours, no lock held: ends an epoch that is due although no file has been written.  When the
 * next one is due, or UINT64_MAX. */
uint64_t ordered_tend(uint64_t now);
/* The same, no lock held: writes back what ordered_remove left in a log. */
void ordered_write_owed(void);
/* File lock held, f is attached: after a call that was to remove it.  If it has, what is staged is dropped if
 * that is right; else it is staged as before. */
void ordered_removed(struct file *f);
/* The log has bytes of f, whose name is gone: its end comes with the write-back. */
bool ordered_goes(const struct file *f);

/* File lock held: the log has bytes of f that a replay would write, and only a lease keeps others from
 * changing them. */
bool ordered_holds(const struct file *f);
/* File lock held, nothing of f is staged: f is about to be detached, and no checkpoint will find it; or its
 * lease is about to go, and the log must not have it.  Drops and retakes the lock.  0 or -errno. */
int ordered_leave(struct file *f);
/* The same with LOCK_LEAD held, too; keeps both locks. */
void ordered_leave_led(struct file *f);

/* File lock held, signals blocked: ordered_barrier for f, and drains f.  Nothing is staged in it before
 * ordered_hold_end.  Drops and retakes the lock.  0 or -errno. */
int ordered_hold(struct file *f);
/* After ordered_call_begin and a change of f. */
void ordered_hold_end(struct file *f);
/* This process has not changed f. */
void ordered_hold_cancel(struct file *f);

/* Files of any rule are ordered. */
bool ordered_any(void);
/* No file lock held: before a change of a file of the rule, or of any rule if NULL, that does not go through
 * the overlay.  0 or -errno. */
int ordered_barrier(const struct rule *rule);
/* The same without the last step: the log goes on.  0 or -errno. */
int ordered_settle(const struct rule *rule);
/* After a barrier, on the file system with this device number; 0: unknown. */
void ordered_passed(const struct rule *rule, uint64_t dev);
/* The same where only a name has gone of which ordered_directory_has said before that the directory that
 * epochs sync has it.  `path`: absolute and free of links. */
bool ordered_directory_has(const struct rule *rule, uint64_t dev, const char *path);
void ordered_name_passed(const struct rule *rule, uint64_t dev);
/* The same around the call, because other threads may act on what it does before it has returned: each epoch
 * that ends meanwhile syncs the file system, too.  `in_directory`: as ordered_directory_has.  NULL does
 * nothing. */
void ordered_call_begin(const struct rule *rule, uint64_t dev, bool in_directory);
void ordered_call_end(const struct rule *rule, uint64_t dev, bool in_directory);
/* An epoch ends soon, even if no file is written: it syncs what the kernel has. */
void ordered_due(const struct rule *rule);
/* After a large write that the kernel made: the same, and the next change of a file of the rule waits for it.
 */
void ordered_wrote_much(const struct rule *rule);
/* ordered_call_begin and _end for every rule in order, on all file systems. */
void ordered_calls_begin(void);
void ordered_calls_end(void);
/* No file lock held, f is bypassed: before calls that change f and do not say when.  From now on every epoch
 * waits until the file systems are synced. */
void ordered_outside(struct file *f);

/* File lock held, f is attached: keeps the leader away.  Drops and retakes the lock. */
void ordered_lock(struct file *f);
void ordered_unlock(const struct arena *a);

/* From now on no file of this process is attached to a log: it has forked, and cannot know when that process
 * ends. */
void ordered_end(void);
bool ordered_ended(void);
/* Is it time to stage in this rule?  A program that forks often would make a log each time.  One that shares
 * a file with others would wait for a barrier at each write of it. */
bool ordered_pays(const struct rule *rule);
/* It was not: what was done since then would otherwise not have been. */
void ordered_paid(const struct rule *rule, uint64_t since_ns);
/* When no file is attached to one: removes the logs.  False: not all of them; recovery will. */
bool ordered_close_all(void);

/* The arena is about to be removed, and holds nothing.  Removes its log.  False: it stays, for recovery. */
bool ordered_close(struct arena *a);
/* In the child of a fork, or in a process that has left the family: closes nothing, the descriptors are gone.
 */
void ordered_forget(void);
/* The program wants the number of an internal descriptor: moves it.  False: it is not a log's, or cannot be
 * moved. */
bool ordered_move_fd(int fd);

#endif
