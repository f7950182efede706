// SPDX-License-Identifier: Apache-2.0
/*
 * recover: brings the bytes that a dead process staged into its files.
 *
 * The library (at open), `fastwrite run` and `fastwrite recover` use the same code.  It trusts nothing that
 * it reads from an arena: it checks all sizes, writes only to the files that the entries name, and acts with
 * the rights of the arena's owner.  It can be killed anywhere and run again.
 *
 *   recover, auto      which arenas and journals, in which order
 *   arena, living      one arena, dead or with a living family
 *   entry              one file entry of an arena: its file, judge, replay
 *   judge, appended    may the staged bytes be replayed?  Which appends does the file have already?
 *   replay             the bytes into the file
 *   aside              arenas and journals that wait for a decision
 *   journal*           one journal: reads it, finds its files, replays it
 *   wal_*              one log of sync = ordered: finds its files, replays it
 *   page_log           the arena's pages into that log, before they go to their files
 */
#ifndef FASTWRITE_RECOVERY_RECOVER_H
#define FASTWRITE_RECOVERY_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

struct recover_report {
	uint64_t arenas;    /* arenas and journals that were examined */
	uint64_t live;      /* left alone: their process lives */
	uint64_t own;       /* of these, the calling process's own */
	uint64_t recovered; /* files that got bytes */
	uint64_t unsynced;  /* of `aside`: files whose bytes were not synced, or are kept only for safety */
	uint64_t aside;     /* files whose bytes were put aside, now or before: the user has to decide */
	uint64_t orphans;   /* files that are gone; their bytes went to orphans/ in the staging directory */
	uint64_t failed;    /* files or arenas left as they are: run again */
	uint64_t elsewhere; /* arenas and journals that another recovery finished while we waited for it */
	uint64_t beyond;    /* of `failed`, arenas and logs that no later try can recover here: only a newer
	                       library can read them, or they were made on another kind of file system */
	uint64_t bytes;     /* written, or with dry_run: to be written */
};

struct recover_event {
	const char *arena;
	const char *target; /* "": the arena as a whole */
	const char *action; /* "live", "recovered", "nothing", "orphaned", "aside", "failed" */
	uint64_t bytes;
	int error;          /* -errno, 0 = none; FORMAT_NEWER: `detail` says it */
	const char *detail; /* "" or a few words; the orphan's path for "orphaned" */
};

struct recover_options {
	bool dry_run;
	bool force; /* also replays bytes that were put aside, whatever became of their files since */
	bool named; /* (set by recover_path: the arena or journal itself was given) */
	void (*event)(void *ctx, const struct recover_event *e); /* may be NULL */
	void *ctx;
};

/*
 * Arenas with bytes that may not be replayed without being told to (recovery/judge.h) are put aside: they
 * move to `aside` in the staging directory.  Only this function looks there: it reports them each time, and
 * replays them with `force`.
 *
 * given: the path of an arena file, a staging directory, a directory that contains one, or a managed file.
 * 0 (see report->failed); -ENODATA: there is no staging directory; -errno: the path cannot be examined.
 */
int recover_path(const char *given, const struct recover_options *opt, struct recover_report *report);

/*
 * For a family that lives, one process of which died in the middle of its work: recovers one file entry of
 * the arena.  The caller keeps everybody else from the entry.  fd: a descriptor of its file, open for
 * writing; -1: the file is looked for as in any recovery.  0 or -errno.
 */
int recover_live_entry(int arena_fd, const char *dir, uint32_t entry, int fd);

/* For the library: does a staging directory need recovery?  0: it does not exist, or was examined and has not
 * changed since, or only living processes stage there, as of 50 ms ago at most. Else a number that changes
 * with the directory. */
uint64_t recover_needed(int dirfd, const char *dir);
/*
 * For the library: recovers the dead arenas in staging directory `dir`.  Remembers directories in which
 * nothing is left to recover.  Returns how many files got bytes, and how many arenas another recovery
 * finished meanwhile.
 *
 * Root recovers another user's arenas only if that user owns the parent directory, or the file that is being
 * opened (target; -1: none), and only as much as an open may take.  It leaves the rest to the command, and
 * logs that.  A process of any other user logs that bytes of another user may wait there.  mem_bytes: of the
 * rule.
 */
unsigned recover_dead(const char *dir, int target, uint64_t mem_bytes);

#endif
