// SPDX-License-Identifier: Apache-2.0
/*
 * recover: bytes that a dead process had staged -> its files.
 *
 * One piece of code for the library (at open), `fastwrite run` and `fastwrite recover`.  Everything read from
 * an arena is untrusted: sizes are checked, nothing is followed outside the file that the slot names, and the
 * file system is asked with the rights of the arena's owner.  It can be killed anywhere and run again.
 */
#ifndef FASTWRITE_RECOVER_H
#define FASTWRITE_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

struct recover_report {
	uint64_t arenas;    /* looked at */
	uint64_t live;      /* left alone: their process lives */
	uint64_t own;       /* of these, the calling process's own */
	uint64_t recovered; /* files that got bytes */
	uint64_t unsynced;  /* of `aside`: nothing was promised of them, or they are kept for safety's sake
	                       alone */
	uint64_t aside;     /* files whose bytes were put aside, or wait there: somebody has to decide */
	uint64_t orphans;   /* files that are gone; their bytes were put aside */
	uint64_t failed;    /* files or arenas left as they are, run again */
	uint64_t bytes;     /* written, or with dry_run: to be written */
};

struct recover_event {
	const char *arena;
	const char *target; /* "" when it concerns the arena as a whole */
	const char *action; /* "live", "recovered", "nothing", "orphaned", "aside", "failed" */
	uint64_t bytes;
	int error;          /* -errno, 0 = none */
	const char *detail; /* "" or a few words; the orphan's path for "orphaned" */
};

struct recover_options {
	bool dry_run;
	bool force; /* bytes that were put aside as well, whatever became of their files since */
	void (*event)(void *ctx, const struct recover_event *e); /* may be NULL */
	void *ctx;
};

/*
 * What may not be replayed by itself (recover_judge.h) is put aside: its arena moves to `aside` in the
 * staging directory, where only this function finds it, says so each time, and with `force` applies it.
 *
 * given: the path of an arena file, a staging directory, a directory that contains one, or a managed file.
 * 0 (look at report->failed), or -errno when the path cannot be looked at; -ENODATA when there is no staging.
 */
int recover_path(const char *given, const struct recover_options *opt, struct recover_report *report);

/*
 * One slot of an arena that lives: a member of the family died in the middle of its work.  The caller keeps
 * everybody else from the slot.  fd: a description of the file for it, writable, or -1: the file is looked
 * for as in any recovery.  0 or -errno.
 */
int recover_live_slot(int arena_fd, const char *dir, uint32_t slot, int fd);

/* The library's own use: 0 when nothing is there, or it was looked at and has not changed since; else a
 * number that is another one when the directory has changed. */
uint64_t recover_needed(int dirfd, const char *dir);
/*
 * And: recovers what is dead in staging directory `dir`, remembers directories that hold nothing dead.
 * Returns the number of files that got bytes.
 *
 * Root does so for another user only if the parent directory is his, or the file that is just opened (target,
 * -1: none is), and no more than a start may take; the rest is left to the command, and said.  Anybody else
 * is told that bytes of another user may wait there.  mem_bytes: of the rule.
 */
unsigned recover_dead(const char *dir, int target, uint64_t mem_bytes);

#endif
