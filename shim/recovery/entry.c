// SPDX-License-Identifier: Apache-2.0
/* entry: see recovery/entry.h. */
#include "recovery/entry.h"

#include "base/buffer.h"
#include "base/sys.h"
#include "recovery/appended.h"
#include "recovery/judge.h"
#include "recovery/page_replay.h"
#include "recovery/replay.h"

#include <fcntl.h>
#include <string.h>

/* What is staged for a file entry, and is not in its file yet. */
struct staged {
	int n; /* blocks, in j->a.order */
	uint64_t bytes;
	bool paged; /* the overlay has it; then n is 0 */
	struct page_scan_file pages;
	const char *damage; /* why it is put aside; NULL: it makes sense */
};

static bool is_anything(const struct staged *s) { return s->bytes > 0 || s->paged; }

/* A process that was killed while it changed the path had nothing staged. */
static bool has_path(const struct arena_entry *e) { return e->path[0] == '/'; }

static int entry_done(struct recover_job *j, struct arena_entry *e)
{
	if (j->family_lives)
		return 0; /* the entry remains the family's */
	e->used = 0;
	return foreign_store(&j->a, (void *)&e->used, sizeof e->used);
}

/* The first `found` of the n blocks are in the file.  How many are left, in j->a.order. */
static int drop_found(struct recover_job *j, struct arena_entry *e, int n, int found)
{
	if (found > 0) {
		e->done = DONE_MAKE(j->a.blocks[j->a.order[found - 1]].seq, 0);
		memmove(j->a.order, j->a.order + found, (size_t)(n - found) * sizeof *j->a.order);
	}
	return n - found;
}

static int load_pages(struct recover_job *j, uint32_t entry, struct staged *s)
{
	int r = foreign_pages(&j->a, entry, &s->pages);

	if (r <= 0)
		return r;
	s->paged = true;
	s->bytes += page_scan_total(&j->a.pages, &s->pages);
	return s->n > 0 ? -EBADMSG : 0;
}

/* 0; -errno: what is staged makes no sense, or cannot be read. */
static int load_staged(struct recover_job *j, uint32_t entry, struct staged *s)
{
	int r;

	*s = (struct staged){.n = foreign_blocks(&j->a, entry)};
	r = s->n < 0 ? s->n : foreign_count_bytes(&j->a, s->n, &s->bytes);
	if (r == -EILSEQ && !j->by_family) {
		j->a.unchecked = true;
		r = foreign_count_bytes(&j->a, s->n, &s->bytes);
		j->a.unchecked = j->opt->force;
		if (r == 0 && !j->opt->force) {
			s->damage = "damaged: the checksum does not fit";
			return 0;
		}
	}
	if (r == 0)
		r = load_pages(j, entry, s);
	if (r == 0 && (s->n > 0 || s->paged) && !has_path(foreign_entry(&j->a, entry)))
		r = -EBADMSG;
	/* (after another boot or mount the arena's pages may be of different moments) */
	if (r == -EBADMSG && j->where != ORIGIN_SAME && !j->by_family && !j->family_lives && !j->opt->force)
		s->damage = "damaged: it did not reach the disk as a whole";
	return r;
}

/* All n blocks, in j->a.order, are in the file. */
static int count_done(struct recover_job *j, uint32_t entry, int n)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);

	e->done = DONE_MAKE(j->a.blocks[j->a.order[n - 1]].seq, 0);
	return foreign_store(&j->a, (void *)&e->done, sizeof e->done);
}

/* The replay is over: the file gets its end and is synced. */
static int finish(struct recover_job *j, uint32_t entry, const struct recover_target *t,
                  const struct staged *s)
{
	int r = j->family_lives && s->n > 0 ? count_done(j, entry, s->n) : 0;
	bool promised;

	if (r == 0 && !t->orphan)
		r = replay_finish(j, entry, t->fd);
	/* (of a promised sync a living member takes care) */
	promised = !j->family_lives && (foreign_entry(&j->a, entry)->flags & ENTRY_RELAXED);
	return r == 0 && (is_anything(s) || promised) ? sys.fdatasync(t->fd) : r;
}

static const char *failure(const struct recover_target *t, int error)
{
	if (t->orphan)
		return "it is gone, and its bytes cannot be put aside; left in the arena";
	if (error == RECOVER_ELSEWHERE)
		return "its directory is not there: mounted elsewhere, or in a container?  left in the arena";
	if (error == RECOVER_UNMOUNTED)
		return "it was on another volume than its directory is: not mounted?  left in the arena; if it is "
		       "gone, `fastwrite recover --force` with the arena's name makes an orphan";
	if (error == -EAGAIN)
		return "another process keeps a lease of it; left in the arena";
	return "left in the arena";
}

/* As recover_to would; `opened`: as there. */
static int recover_dry(const struct recover_job *j, const struct arena_entry *e, const struct staged *s,
                       const struct recover_target *t, int opened)
{
	bool orphan = opened == -ENOENT;

	if (opened < 0 && !orphan) {
		job_tell(j, e->path, "failed", s->bytes, opened, failure(t, opened));
		return opened;
	}
	job_tell(j, e->path, orphan ? "orphaned" : is_anything(s) ? "recovered" : "nothing", s->bytes, 0, "");
	j->report->orphans += orphan;
	j->report->recovered += !orphan && is_anything(s);
	j->report->bytes += s->bytes;
	return 0;
}

static void tell_done(const struct recover_job *j, const struct arena_entry *e,
                      const struct recover_target *t, uint64_t bytes)
{
	job_tell(j, e->path, t->orphan ? "orphaned" : "recovered", bytes, 0, t->orphan ? t->path : "");
	j->report->orphans += t->orphan;
	j->report->recovered += !t->orphan;
	j->report->bytes += bytes;
}

static struct judgement judge_staged(struct recover_job *j, uint32_t entry, const struct recover_target *t,
                                     const struct staged *s)
{
	if (s->paged)
		return (struct judgement){.aside = judge_pages(j, entry, t)};
	return judge(j, entry, t, s->n);
}

static int replay(struct recover_job *j, uint32_t entry, int fd, const struct staged *s, bool by_offset)
{
	if (s->paged)
		return page_replay(j, entry, fd, &s->pages);
	return replay_blocks(j, entry, fd, s->n, s->bytes,
	                     by_offset || (s->n > 0 && foreign_is_positional(&j->a, entry)));
}

/* Into the target, which recover_target_open has opened, or failed to (`opened`). */
static int recover_to(struct recover_job *j, uint32_t entry, struct recover_target *t, int opened,
                      struct staged *s)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);
	struct judgement judged = {0};
	int r = opened;

	if (r == 0)
		judged = judge_staged(j, entry, t, s);
	if (judged.aside)
		return job_keep(j, e, s->bytes, judged.aside);
	s->n = drop_found(j, e, s->n, judged.found);
	if (r == -ENOENT && (s->bytes == 0 || j->family_lives || (e->flags & ENTRY_REMOVED)))
		return j->opt->dry_run ? 0 : entry_done(j, e);
	if (j->opt->dry_run)
		return recover_dry(j, e, s, t, r);
	if (r == 0)
		r = replay(j, entry, t->fd, s, judged.by_offset);
	if (r == APPENDED_DOUBT && !j->by_family)
		return job_keep(j, e, s->bytes,
		                "others have appended much; the staged bytes may be in the file already");
	if (r == 0)
		r = finish(j, entry, t, s);
	if (r < 0 && t->fd >= 0 && !t->orphan)
		replay_stopped(j, entry, t->fd);
	if (r < 0) {
		job_tell(j, e->path, "failed", s->bytes, r, failure(t, r));
		return r;
	}
	if (is_anything(s))
		tell_done(j, e, t, s->bytes);
	return entry_done(j, e);
}

int entry_recover(struct recover_job *j, uint32_t entry)
{
	struct arena_entry *e = foreign_entry(&j->a, entry);
	BUFFER(struct recover_target, t);
	struct staged s;
	bool keep;
	int r;

	e->path[ARENA_PATH_MAX - 1] = '\0';
	r = load_staged(j, entry, &s);
	if (s.damage)
		return job_keep(j, e, s.bytes, s.damage);
	if (r < 0) {
		job_tell(j, e->path, "failed", 0, r, "damaged");
		return r;
	}
	if (!has_path(e))
		return j->opt->dry_run ? 0 : entry_done(j, e);
	/* (when the file is gone, a living family decides what becomes of its bytes) */
	keep = s.bytes > 0 && !j->opt->dry_run && !j->family_lives && !(e->flags & ENTRY_REMOVED);
	r = recover_target_open(t, e, &j->place, keep);
	r = recover_to(j, entry, t, r, &s);
	recover_target_close(t);
	return r;
}

int entry_recover_into(struct recover_job *j, uint32_t entry, int fd)
{
	long flags = sys.fcntl(fd, F_GETFL, 0);
	off_t offset = sys.lseek(fd, 0, SEEK_CUR);
	int n = foreign_blocks(&j->a, entry);
	struct page_scan_file pages;
	int paged = foreign_pages(&j->a, entry, &pages);
	bool at_offsets = paged > 0 || (n > 0 && foreign_is_positional(&j->a, entry));
	uint64_t bytes = 0;
	int r = n < 0 ? n : foreign_count_bytes(&j->a, n, &bytes);

	if (r == 0 && flags < 0)
		r = (int)flags;
	if (r == 0)
		r = paged < 0 ? paged : paged > 0 && n > 0 ? -EBADMSG : 0;
	if (r == 0 && (n > 0 || paged > 0))
		r = (int)sys.fcntl(fd, F_SETFL, flags & ~(at_offsets ? O_APPEND | O_DIRECT : O_DIRECT));
	if (r == 0)
		r = paged > 0 ? page_replay(j, entry, fd, &pages)
		              : replay_blocks(j, entry, fd, n, bytes, at_offsets);
	if (r < 0)
		replay_stopped(j, entry, fd);
	sys.fcntl(fd, F_SETFL, flags);
	sys.lseek(fd, offset, SEEK_SET);
	return r;
}
