// SPDX-License-Identifier: Apache-2.0
/* living: see recovery/living.h. */
#include "recovery/living.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"
#include "recovery/entry.h"
#include "recovery/takeover.h"

#include <fcntl.h>
#include <sys/file.h>

/* A process of the family keeps us from the entry. */
static void tell_held(struct recover_job *j, uint32_t entry, int error, int pid)
{
	struct arena_header *h = &j->a.header;
	int n = foreign_blocks(&j->a, entry);
	uint64_t bytes = 0;
	BUFFER(char, detail);

	h->program[sizeof h->program - 1] = '\0';
	if (n < 0 || foreign_count_bytes(&j->a, n, &bytes) < 0)
		bytes = 0;
	log_format(detail, BUFFER_BYTES, "%s (pid %d) holds %llu bytes staged for it%s", h->program,
	           pid > 0 ? pid : h->pid, (unsigned long long)bytes,
	           error == -EBUSY ? ", and is at work on it or stopped" : "");
	job_failed(j, foreign_entry(&j->a, entry)->path, bytes, error, detail);
}

/* What a dead process of the family staged for this entry. */
static void recover_taken(struct recover_job *j, struct takeover *t, uint32_t entry)
{
	int pid = 0;
	int r = j->opt->dry_run ? 0 : takeover_allowed(t, entry, &pid);

	foreign_entry(&j->a, entry)->path[ARENA_PATH_MAX - 1] = '\0';
	if (r == 0) {
		r = entry_recover(j, entry);
		j->report->failed += r < 0;
	} else if (r != -EAGAIN) {
		tell_held(j, entry, r, pid);
	}
	if (r < 0)
		takeover_failed(t);
}

/* The arena is loaded. */
static int take_over(struct recover_job *j, struct takeover *t)
{
	BUFFER(struct recover_rights, rights);
	int r = job_take_rights(j, rights);

	if (r < 0)
		return r;
	if (!j->opt->dry_run)
		r = takeover_seal(t, &j->a);
	for (uint32_t i = 0; r == 0 && i < j->a.header.slot_count; i++)
		if (takeover_concerns(t, &j->a, i))
			recover_taken(j, t, i);
	recover_rights_drop(rights);
	return r;
}

void living_recover(struct recover_job *j, int fd)
{
	BUFFER(struct takeover, t);
	int r = 0;

	j->report->live++;
	/* (shared, as the family has it: keeps recoverers of the whole arena away when the last process of it
	 * dies) */
	if (sys.flock(fd, LOCK_SH | LOCK_NB) == 0 && takeover_begin(t, fd)) {
		r = foreign_load(&j->a, fd);
		j->family_lives = true;
		if (r == 0)
			r = job_find_place(j, fd);
		if (r == 0)
			r = take_over(j, t);
		if (r < 0)
			takeover_failed(t);
		takeover_end(t);
		foreign_unload(&j->a);
	}
	if (r < 0)
		job_failed(j, "", 0, r, "what a dead process of a living family staged cannot be read");
	else
		job_tell(j, "", "live", 0, 0, "its process is running");
}

int recover_live_slot(int arena_fd, const char *dir, uint32_t entry, int fd)
{
	struct recover_options opt = {0};
	struct recover_report report = {0};
	BUFFER(struct recover_job, j);
	struct sys_quiet quiet;
	int r;

	*j = (struct recover_job){.opt = &opt,
	                          .report = &report,
	                          .arena = (char *)(uintptr_t)dir,
	                          .dirfd = -1,
	                          .by_family = true};
	r = foreign_load(&j->a, arena_fd);
	if (r < 0)
		return r;
	sys_quiet_begin(&quiet);
	if (entry >= j->a.header.slot_count || !foreign_entry(&j->a, entry)->used) {
		r = 0;
	} else if (fd >= 0) {
		r = entry_recover_into(j, entry, fd);
	} else {
		j->dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
		r = j->dirfd < 0 ? j->dirfd : job_find_place(j, arena_fd);
		if (r == 0)
			r = entry_recover(j, entry);
		if (j->dirfd >= 0)
			sys.close(j->dirfd);
	}
	sys_quiet_end(&quiet);
	foreign_unload(&j->a);
	return r;
}
