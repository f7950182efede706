// SPDX-License-Identifier: Apache-2.0
/* job: the recovery of one arena: what is known of it, and what is reported. */
#ifndef FASTWRITE_RECOVERY_JOB_H
#define FASTWRITE_RECOVERY_JOB_H

#include "foreign/parse.h"
#include "foreign/rights.h"
#include "foreign/target.h"
#include "recovery/recover.h"

struct recover_job {
	const struct recover_options *opt;
	struct recover_report *report;
	char *arena;       /* path[PATH_MAX], for events */
	int dirfd;         /* directory of the arena */
	bool in_aside;     /* that is `aside` in the staging directory */
	bool by_family;    /* the family itself asks, and keeps everybody from the file entry */
	bool family_lives; /* we are outside of a family that lives and may have the files open
	                      (recovery/living.h) */
	bool keeps;        /* some entry stays in the arena, to be put aside */
	bool moved;        /* the arena has been put aside */
	bool log_waits;    /* after another boot or mount its journal or log is there still */
	bool synced;       /* before that; or not: */
	int sync_error;
	const struct statx *only; /* NULL, or the one file that is meant, with STATX_BTIME */
	enum origin_verdict where;
	struct recover_place place;
	struct page_log *log; /* it has what goes to the files (recovery/page_log.h); or NULL */
	struct foreign_arena a;
};

/* An event for the caller of recover_path. */
void job_tell(const struct recover_job *j, const char *target, const char *action, uint64_t bytes, int error,
              const char *detail);
/* The same, of something that failed; counts it. */
void job_failed(const struct recover_job *j, const char *target, uint64_t bytes, int error,
                const char *detail);
/* The bytes of an entry stay in the arena, which is put aside when its other entries are done.  0 or -errno.
 */
int job_keep(struct recover_job *j, const struct arena_entry *e, uint64_t bytes, const char *why);

/* Fills in j->place, for an arena that is loaded.  0 or -errno; job_leave_place must follow. */
int job_find_place(struct recover_job *j, int arena_fd);
void job_leave_place(const struct recover_job *j);
/* Acts with the rights of the arena's owner until recover_rights_drop.  0 or -errno. */
int job_take_rights(const struct recover_job *j, struct recover_rights *rights);

#endif
