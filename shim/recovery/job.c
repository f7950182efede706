// SPDX-License-Identifier: Apache-2.0
/* job: see recovery/job.h. */
#include "recovery/job.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/sys.h"
#include "recovery/aside.h"

#include <fcntl.h>
#include <string.h>

void job_tell(const struct recover_job *j, const char *target, const char *action, uint64_t bytes, int error,
              const char *detail)
{
	struct recover_event e = {.arena = j->arena,
	                          .target = target,
	                          .action = action,
	                          .bytes = bytes,
	                          .error = error,
	                          .detail = detail};

	if (j->opt->event)
		j->opt->event(j->opt->ctx, &e);
}

void job_failed(const struct recover_job *j, const char *target, uint64_t bytes, int error,
                const char *detail)
{
	j->report->failed++;
	job_tell(j, target, "failed", bytes, error, detail);
}

int job_keep(struct recover_job *j, const struct arena_entry *e, uint64_t bytes, const char *why)
{
	const char *name = strrchr(j->arena, '/') + 1;
	BUFFER(char, path);
	BUFFER(char, word);
	BUFFER(char, detail);

	if (j->family_lives) {
		/* (the arena is in use: it cannot be moved) */
		job_tell(j, e->path, "failed", bytes, -EBUSY, why);
		return -EBUSY;
	}
	log_format(path, (size_t)(name - j->arena) + 1, "%s", j->arena); /* (the directory) */
	log_format(path + (name - j->arena), (size_t)(BUFFER_BYTES - (name - j->arena)), "%s%s",
	           j->in_aside ? "" : RECOVER_ASIDE "/", name);
	log_format(detail, BUFFER_BYTES, "%s; `fastwrite recover --force %s` writes them", why,
	           quote_word(word, BUFFER_BYTES, path));
	job_tell(j, e->path, "aside", bytes, 0, detail);
	j->report->aside++;
	j->report->unsynced += j->where == ORIGIN_OTHER;
	j->keeps = true;
	return 0;
}

int job_find_place(struct recover_job *j, int arena_fd)
{
	struct statx st;
	int r = sys.statx(arena_fd, "", AT_EMPTY_PATH, STATX_INO, &st);

	j->place = (struct recover_place){.staging_fd = j->dirfd,
	                                  .dev_then = j->a.header.origin.dev,
	                                  .dev_now = sys_dev_of(&st),
	                                  .given_up = j->opt->force && j->opt->named};
	if (r == 0 && j->in_aside)
		j->place.staging_fd = sys.openat(j->dirfd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	return j->place.staging_fd < 0 ? j->place.staging_fd : r;
}

void job_leave_place(const struct recover_job *j)
{
	if (j->in_aside && j->place.staging_fd >= 0)
		sys.close(j->place.staging_fd);
}

int job_take_rights(const struct recover_job *j, struct recover_rights *rights)
{
	struct statx st;
	int r = sys.statx(j->a.fd, "", AT_EMPTY_PATH, STATX_UID, &st);

	return r < 0 ? r : recover_rights_take(rights, st.stx_uid);
}
