// SPDX-License-Identifier: Apache-2.0
/* recover: see recovery/recover.h.  Which arenas and journals, and in which order. */
#include "recovery/recover.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "foreign/names.h"
#include "format/journal_format.h"
#include "format/staging_dir.h"
#include "recovery/arena.h"
#include "recovery/aside.h"
#include "recovery/journal.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* The next names in the directory.  0 or -errno. */
static int list_next(struct name_list *q, int dirfd, bool journals)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	q->count = 0;
	q->room = NAMES_MAX;
	if (sys.lseek(dirfd, 0, SEEK_SET) < 0)
		return -EIO;
	while ((d = sys_dir_next(&entries)) != NULL)
		if (journals ? names_is_journal(d->name) : names_is_arena(d->name))
			names_put(q, d->name);
	return (int)entries.filled;
}

/* What recover_all_in recovers. */
struct sort {
	bool journals; /* else arenas */
	bool in_aside;
	const struct statx *only; /* as in struct recover_job */
};

static int recover_all_in(const char *dir, int dirfd, const struct sort *sort,
                          const struct recover_options *opt, struct recover_report *report)
{
	struct name_list *q =
		sys.mmap(NULL, sizeof *q, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	BUFFER(struct recover_job, j);
	BUFFER(char, arena);
	int r;

	if (sys_is_error(q))
		return (int)(intptr_t)q;
	while ((r = list_next(q, dirfd, sort->journals)) == 0 && q->count > 0) {
		for (uint32_t i = 0; i < q->count; i++) {
			*j = (struct recover_job){.opt = opt,
			                          .report = report,
			                          .arena = arena,
			                          .dirfd = dirfd,
			                          .in_aside = sort->in_aside,
			                          .only = sort->only};
			if (sort->journals) {
				if (!sort->only)
					recover_journal(dir, dirfd, q->entries[i].name, sort->in_aside, NULL,
					                opt, report);
				continue;
			}
			log_format(arena, PATH_MAX, "%s/%s", dir, q->entries[i].name);
			recover_arena(j, q->entries[i].name);
		}
		q->last = q->entries[q->count - 1];
	}
	sys.munmap(q, sizeof *q);
	return r;
}

/* A staging directory that the user chose has any name.  A directory in which nothing is named as ours is
 * none.  1, 0 or -errno. */
static int has_ours(int dirfd)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	while ((d = sys_dir_next(&entries)) != NULL)
		if (names_is_arena(d->name) || names_is_ours(d->name, JOURNAL_SUFFIX))
			return 1;
	return (int)entries.filled;
}

static int recover_both_in(const char *dir, int dirfd, struct sort sort, const struct recover_options *opt,
                           struct recover_report *report)
{
	int r = recover_all_in(dir, dirfd, &sort, opt, report);

	sort.journals = true;
	return r < 0 ? r : recover_all_in(dir, dirfd, &sort, opt, report);
}

/* What was put aside before: it is reported each time, and with opt->force written. */
static int recover_kept(const char *dir, int dirfd, const struct statx *only,
                        const struct recover_options *opt, struct recover_report *report)
{
	BUFFER(char, path);
	int fd = sys.openat(dirfd, RECOVER_ASIDE, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	int r;

	if (fd < 0)
		return fd == -ENOENT ? 0 : fd;
	log_format(path, PATH_MAX, "%s/" RECOVER_ASIDE, dir);
	r = claim_dir_allowed(fd);
	if (r == 0)
		r = recover_both_in(path, fd, (struct sort){.in_aside = true, .only = only}, opt, report);
	sys.close(fd);
	if (r == 0 && !opt->dry_run)
		sys.unlinkat(dirfd, RECOVER_ASIDE, AT_REMOVEDIR);
	return r;
}

/* The directory is `aside` in a staging directory, whatever path leads to it. */
static bool is_aside(int dirfd)
{
	struct statx st, named;

	return sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_INO, &st) == 0 &&
	       sys.statx(dirfd, "../" RECOVER_ASIDE, AT_SYMLINK_NOFOLLOW, STATX_INO, &named) == 0 &&
	       st.stx_ino == named.stx_ino && sys_dev_of(&st) == sys_dev_of(&named);
}

static int recover_directory(const char *dir, const struct statx *only, const struct recover_options *opt,
                             struct recover_report *report)
{
	uint64_t before = report->arenas;
	int dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	sys_sigset signals;
	int r;

	if (dirfd < 0)
		return dirfd;
	r = names_is_staging_dir(dir) ? 1 : has_ours(dirfd);
	if (r <= 0) {
		sys.close(dirfd);
		return r;
	}
	r = claim_dir_allowed(dirfd);
	/* for lease_take_own, and so that a signal handler does not see half of a recovery */
	signals = signals_block();
	if (r == 0)
		r = recover_kept(dir, dirfd, only, opt, report);
	if (r == 0)
		r = recover_both_in(dir, dirfd, (struct sort){.in_aside = is_aside(dirfd), .only = only}, opt,
		                    report);
	sys.close(dirfd);
	/* (when it is empty; but a directory that was never ours stays) */
	if (r == 0 && !opt->dry_run && (names_is_staging_dir(dir) || report->arenas > before))
		staging_dir_remove(dir);
	sys_restore_signals(signals);
	return r;
}

/* An arena and the journal beside it; or a journal alone. */
static void recover_one(struct recover_job *j, const char *dir, const char *name)
{
	BUFFER(char, journal);

	if (names_is_journal(name)) {
		recover_journal(dir, j->dirfd, name, j->in_aside, NULL, j->opt, j->report);
		return;
	}
	recover_arena(j, name);
	journal_name_of(name, journal);
	if (sys_raw(SYS_faccessat, j->dirfd, (long)journal, 0, 0, 0, 0) == 0)
		recover_journal(dir, j->dirfd, journal, j->in_aside, NULL, j->opt, j->report);
}

static int recover_one_file(const char *path, const struct recover_options *opt,
                            struct recover_report *report)
{
	struct recover_options named = *opt;
	const char *slash = strrchr(path, '/');
	BUFFER(char, dir);
	BUFFER(char, arena);
	BUFFER(struct recover_job, j);
	sys_sigset signals;
	int r;

	named.named = true;
	*j = (struct recover_job){.opt = &named, .report = report, .arena = arena};
	if (!slash)
		log_format(dir, PATH_MAX, ".");
	else
		log_format(dir, PATH_MAX, "%s", path);
	if (slash)
		dir[slash == path ? 1 : slash - path] = '\0';
	j->dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	if (j->dirfd < 0)
		return j->dirfd;
	j->in_aside = is_aside(j->dirfd);
	r = claim_dir_allowed(j->dirfd);
	if (r == 0) {
		log_format(arena, PATH_MAX, "%s/%s", dir, slash ? slash + 1 : path);
		signals = signals_block();
		recover_one(j, dir, slash ? slash + 1 : path);
		sys_restore_signals(signals);
	}
	sys.close(j->dirfd);
	if (r == 0 && !opt->dry_run && names_is_staging_dir(dir))
		staging_dir_remove(dir);
	return r;
}

/* (other programs have journals, too) */
static bool is_journal_in_staging(const char *path)
{
	const char *slash = strrchr(path, '/');

	return names_is_journal(path) &&
	       (names_is_ours(slash ? slash + 1 : path, JOURNAL_SUFFIX) || strstr(path, ARENA_DIR "/"));
}

int recover_path(const char *given, const struct recover_options *opt, struct recover_report *report)
{
	BUFFER(char, path);
	BUFFER(char, dir);
	struct statx st;
	size_t n = log_format(path, PATH_MAX - sizeof "/" ARENA_DIR, "%s", given);

	if (given[n] != '\0')
		return -ENAMETOOLONG;
	/* (with a slash behind it a link would be followed) */
	while (n > 1 && path[n - 1] == '/')
		path[--n] = '\0';
	int r = sys.statx(AT_FDCWD, path, 0, STATX_BASIC_STATS | STATX_BTIME, &st), beside;

	if (r == 0 && (st.stx_mode & S_IFMT) == S_IFDIR) {
		if (names_is_staging_dir(path))
			return recover_directory(path, NULL, opt, report);
		log_format(dir, PATH_MAX, "%s/" ARENA_DIR, path);
		r = recover_directory(dir, NULL, opt, report);
		if (r != -ENOENT)
			return r;
		return recover_directory(path, NULL, opt, report);
	}
	if (names_is_arena(path) || is_journal_in_staging(path))
		return r < 0 ? r : recover_one_file(path, opt, report);
	/* (what is forced is forced for this file alone) */
	if (r < 0 && (r != -ENOENT || opt->force))
		return r;
	/* a managed file, or one that was renamed: its staging directory is beside it */
	log_format(dir, PATH_MAX, "%s", path);
	if (strrchr(dir, '/'))
		log_format(strrchr(dir, '/'), 16, "/" ARENA_DIR);
	else
		log_format(dir, PATH_MAX, ARENA_DIR);
	beside = recover_directory(dir, opt->force ? &st : NULL, opt, report);
	if (beside == -ENOENT)
		return r < 0 ? r : -ENODATA;
	return beside;
}
