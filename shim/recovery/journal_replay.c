// SPDX-License-Identifier: Apache-2.0
/* journal_replay: see recovery/journal_replay.h. */
#include "recovery/journal_replay.h"

#include "base/buffer.h"
#include "base/bytes.h"
#include "base/kill.h"
#include "base/sys.h"
#include "format/identity.h"
#include "recovery/journal_scan.h"
#include "recovery/judge.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

/* Of n bytes for an append-only file: how many are there; -EPERM: others stand in their place. */
static int64_t appended(int fd, const uint8_t *p, uint64_t n, uint64_t offset)
{
	uint8_t have[512];
	struct statx st;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_SIZE, &st);

	if (r < 0)
		return r;
	if (offset > st.stx_size)
		return -EPERM;
	if (n > st.stx_size - offset)
		n = st.stx_size - offset;
	for (uint64_t done = 0, part; done < n; done += part) {
		part = n - done < sizeof have ? n - done : sizeof have;
		r = sys_read_all(fd, have, part, offset + done);
		if (r < 0)
			return r;
		if (memcmp(have, p + done, part) != 0)
			return -EPERM;
	}
	return (int64_t)n;
}

static void put_note(const struct journal_scan *s)
{
	uint64_t written;

	bytes_write(s->fd, (const uint8_t *)&s->replayed, sizeof s->replayed, JOURNAL_REPLAY_AT, false,
	            &written);
}

int journal_replay_load(struct journal_scan *s)
{
	struct journal_replay *p = &s->replayed;
	int r = sys_read_all(s->fd, p, sizeof *p, JOURNAL_REPLAY_AT);
	int64_t apart = (int64_t)((uint64_t)p->boot_ns - (uint64_t)s->boot_ns);

	if (r < 0)
		return r;
	if (p->boot_ns && (apart < -ORIGIN_SLACK_NS || apart > ORIGIN_SLACK_NS)) {
		memmove(&p->before[1], &p->before[0], sizeof p->before - sizeof p->before[0]);
		p->before[0].begun_ns = p->begun_ns;
		p->before[0].again_ns = p->again_ns;
		p->boot_ns = p->begun_ns = p->again_ns = 0;
	}
	return 0;
}

/*
 * Was power lost, in the same boot as well?  The arena says which batch is the next one before each is
 * written.  An arena that lags behind the journal has lost what was in its pages only.  An unmount in good
 * order, or a kill of the program, leaves no such arena.  The arena may be gone at the next look: the journal
 * keeps the answer.
 */
static void find_loss(struct journal_scan *s)
{
	uint64_t next = s->held ? s->held->header.live.journal_next : 0;

	if (s->where != ORIGIN_MOUNT || s->replayed.lost || !s->held || s->written_seq == 0)
		return;
	/* (without a header it was never written to the disk) */
	if (s->held->header.magic != 0 && (next == 0 || next > s->written_seq))
		return;
	s->replayed.lost = 1;
	if (!s->opt->dry_run)
		put_note(s);
}

/* The recovery after a power loss takes no change of this one for that of another program.  On a slow device
 * the note comes to it when what is written then is already too late for it: so it says a later time. */
static void sync_note(struct journal_scan *s)
{
	enum { TRIES = 8 };
	int64_t ahead = 0, took;

	for (int tries = 0; tries < TRIES; tries++) {
		s->noted_ns = sys_wall_ns();
		s->replayed.again_ns = s->noted_ns + ahead;
		put_note(s);
		(void)sys.fdatasync(s->fd);
		took = sys_wall_ns() - s->noted_ns;
		if (took <= ahead + JOURNAL_REPLAY_SLACK_NS / 2)
			break;
		ahead = 2 * took;
	}
}

/* We are about to change a file: notes the time, so that the next recovery knows our changes. */
static void note_replay(struct journal_scan *s)
{
	enum { STEP_NS = 100000000, TICK_NS = 20000000 /* of the coarse clock, at least */ };
	struct journal_replay *p = &s->replayed;
	int64_t now = sys_wall_ns();

	if (now >= s->noted_ns && now - s->noted_ns < STEP_NS)
		return;
	if (!p->boot_ns) {
		p->begun_ns = now;
		/* so that what others wrote up to now has an older time than what we write */
		sys_nap(TICK_NS);
	}
	p->boot_ns = s->boot_ns;
	s->changes = true;
	sync_note(s);
	kill_step();
}

/* The recovery is over, and the journal stays: what is written from now on is not ours. */
static void note_end(struct journal_scan *s)
{
	if (!s->changes)
		return;
	s->replayed.again_ns = sys_wall_ns() - JOURNAL_REPLAY_SLACK_NS;
	put_note(s);
	(void)sys.fdatasync(s->fd);
}

static bool was_aside(const struct journal_replay *p, const struct entry_file *file)
{
	for (uint64_t i = 0; i < p->aside_count && i < JOURNAL_ASIDE_MOST; i++)
		if (p->aside[i] == file->number)
			return true;
	return false;
}

/* The journal stays while other files fail.  By the next time the file's own time may look like one that a
 * recovery has made. */
static void note_aside(struct journal_scan *s)
{
	struct journal_replay *p = &s->replayed;
	uint64_t before = p->aside_count;

	if (s->opt->dry_run || s->in_aside)
		return;
	for (uint64_t i = 0; i < s->file_places; i++) {
		const struct entry_file *file = &s->files[i];

		if (!file->number || !file->aside || was_aside(p, file) ||
		    p->aside_count > JOURNAL_ASIDE_MOST)
			continue;
		if (p->aside_count < JOURNAL_ASIDE_MOST)
			p->aside[p->aside_count] = file->number;
		p->aside_count++;
	}
	if (p->aside_count == before)
		return;
	put_note(s);
	(void)sys.fdatasync(s->fd);
	kill_step();
}

/* The kernel's clock for the times of files ticks. */
enum { LATE_NS = 2000000 };

/* A recovery that was killed, or failed for other files, has changed it. */
static bool is_of_recovery(int64_t changed, int64_t begun_ns, int64_t again_ns)
{
	return begun_ns && changed > begun_ns && changed <= again_ns + JOURNAL_REPLAY_SLACK_NS;
}

static bool is_of_recovery_before(const struct journal_scan *s, int64_t changed)
{
	for (int i = 0; i < JOURNAL_BOOTS_MOST; i++)
		if (is_of_recovery(changed, s->replayed.before[i].begun_ns, s->replayed.before[i].again_ns))
			return true;
	return false;
}

/* (Without a battery a clock may begin before the time of the power loss: then a time to come is from before,
 * and the time of the last batch is one, too.) */
static bool is_of_this_boot(const struct journal_scan *s, int64_t changed)
{
	return changed >= s->boot_ns && (changed <= sys_wall_fine_ns() || !s->written_ns);
}

/* The program may have made this change, `late_ns` after it had last written to the journal. */
static bool is_of_program(const struct journal_scan *s, const struct entry_file *file, int64_t changed,
                          int64_t late_ns)
{
	return changed <= s->written_ns + late_ns || changed <= file->late_ns;
}

/*
 * A second after its last sync the file itself is synced (flush/journaled.h), and its entries are void,
 * unless the device is very slow.  (A boot between takes longer.)
 */
static int64_t idle_ns(const struct journal_scan *s)
{
	return s->header.version < JOURNAL_VERSION ? 60000000000 : JOURNAL_LATE_NS;
}

static void identity_of_name(const struct entry_file *file, struct identity *out)
{
	*out = (struct identity){
		.ino = file->ino, .btime_sec = file->btime_sec, .btime_nsec = file->btime_nsec};
}

/*
 * May the entries be older than the file?  After another boot: yes if the file was changed in this boot, by a
 * program that did not wait for recovery, or long after the journal was last written, in a boot between.
 * After another mount in the same boot: if power was lost, yes if
 * the file was changed since the journal was last written, which may have been after the mount.  Otherwise
 * the file may have newer bytes that were not synced.  Then only a file that nobody has written since its
 * first entry is sure to lack them all.
 */
static bool may_be_older(const struct journal_scan *s, const struct entry_file *file, const struct statx *st)
{
	struct identity id;
	int64_t changed;

	if (s->opt->force)
		return false;
	if (s->in_aside)
		return true; /* judged once; the file's time may show no more why it was put aside */
	if (was_aside(&s->replayed, file))
		return true;
	identity_of_name(file, &id);
	changed = judge_changed_ns(s->held, s->place.dev_then, &id, st);
	if (s->replayed.aside_count <= JOURNAL_ASIDE_MOST &&
	    is_of_recovery(changed, s->replayed.begun_ns, s->replayed.again_ns))
		return false;
	if (s->where == ORIGIN_OTHER)
		return is_of_this_boot(s, changed) ||
		       (s->written_ns && !is_of_program(s, file, changed, idle_ns(s)) &&
		        !is_of_recovery_before(s, changed));
	return s->replayed.lost ? !is_of_program(s, file, changed, LATE_NS) : changed >= file->first_ns;
}

/* The arena beside the journal may have files of other file systems, too. */
static bool is_of(const struct journal_scan *s, const struct entry_file *file, const struct arena_entry *e)
{
	struct identity named, id;

	identity_of_name(file, &named);
	identity_of_entry(e, &id);
	return e->used && e->dev == s->place.dev_then && identity_same(&id, &named);
}

/* The file is as the arena left it (judge_note_held). */
static bool is_as_held(const struct journal_scan *s, const struct entry_file *file)
{
	for (uint32_t i = 0; s->held && i < s->held->header.entry_count; i++) {
		const struct arena_entry *e = foreign_entry(s->held, i);

		if (is_of(s, file, e) && e->guard.known == JUDGE_HELD)
			return true;
	}
	return false;
}

/* Before anything is replayed, because that changes the files. */
static void judge_files(struct journal_scan *s)
{
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];
		struct statx st;
		int fd;

		if (!file->number || !file->bytes)
			continue;
		fd = files_open(s, file, false);
		if (fd < 0) { /* (gone, or not judged: then nothing is written to it) */
			if (fd != -ENOENT)
				file->result = fd;
			continue;
		}
		file->aside = sys.statx(fd, "", AT_EMPTY_PATH, STATX_MTIME | STATX_CTIME, &st) < 0 ||
		              may_be_older(s, file, &st);
		/* (an arena that has lost pages may be older than the entries) */
		file->held =
			file->aside && s->where == ORIGIN_MOUNT && !s->replayed.lost && is_as_held(s, file);
	}
	note_aside(s);
}

static int visit_replay(struct journal_scan *s, const struct journal_found *f)
{
	struct entry_file *file = files_of_entry(s, f);
	int64_t there = 0;
	uint64_t written;
	int fd;

	if (!file || file->result < 0 || file->aside)
		return 0;
	fd = files_open(s, file, true);
	/* (without the note the next recovery in this boot puts aside what this one leaves) */
	if (fd >= 0)
		note_replay(s);
	if (fd < 0) {
		file->result = fd;
		return 0;
	}
	if (file->appends)
		there = appended(fd, f->content, f->e.length, f->e.offset);
	file->result = there < 0 ? (int)there
	                         : bytes_write(fd, f->content + there, f->e.length - (uint64_t)there,
	                                       f->e.offset + (uint64_t)there, file->appends, &written);
	return 0;
}

/* Makes the entries of files that are done void: the next run, for the files that failed, must not write
 * these old bytes over newer ones. */
static int void_done(struct journal_scan *s)
{
	struct journal_chain *c = s->chains[1].batches ? &s->chains[1] : &s->chains[0];
	uint64_t behind = s->newest + 1; /* all that was found here */
	uint32_t used = sizeof(struct journal_batch);
	int r = 0;

	memset(s->batch, 0, JOURNAL_BATCH_MAX);
	for (uint64_t i = 0; i < s->file_places && r == 0; i++) {
		const struct entry_file *file = &s->files[i];
		struct journal_entry e = {.type = JOURNAL_VOID, .file = file->number, .offset = behind};

		if (!e.file || !file->bytes || file->result < 0 || file->waits || file->aside)
			continue;
		if (used + sizeof e > JOURNAL_BATCH_MAX) {
			r = scan_put_batch(s, c, used);
			used = sizeof(struct journal_batch);
		}
		memcpy(s->batch + used, &e, sizeof e);
		used += (uint32_t)sizeof e;
	}
	return r < 0 ? r : scan_put_batch(s, c, used);
}

static void report_file(struct journal_scan *s, struct entry_file *file, bool replayed)
{
	BUFFER(struct arena_entry, name);

	if (files_load_name(s, file, name) < 0)
		name->path[0] = '\0';
	if (file->aside) {
		s->report->aside++;
		s->report->unsynced += file->held || s->in_aside; /* (told before) */
		scan_tell(
			s, name->path, "aside", file->bytes, 0,
			"synced by sync = journal before another boot or mount, and the file may have been written since; "
			"`fastwrite recover --force` with the journal's name writes them");
	} else if (file->result < 0) {
		scan_failed(s, name->path, file->bytes, file->result, "left in the journal");
	} else if (replayed) {
		scan_tell(s, name->path, file->orphan ? "orphaned" : "recovered", file->bytes, 0,
		          "synced before the power went");
		s->report->orphans += file->orphan;
		s->report->recovered += !file->orphan;
		s->report->bytes += file->bytes;
	}
}

/* Does the arena still hold bytes of the file?  Until they are in the file, its entries must stay. */
static bool waits_for_arena(const struct journal_scan *s, const struct entry_file *file)
{
	for (uint32_t i = 0; s->waiting && i < s->waiting->header.entry_count; i++)
		if (is_of(s, file, foreign_entry(s->waiting, i)))
			return true;
	return false;
}

/* The place of the file, by inode and birth time, in a list of as many places as s->files has. */
static const struct entry_file **failed_at(const struct journal_scan *s, const struct entry_file **list,
                                           const struct entry_file *file)
{
	uint64_t i = files_place(s, file->ino ^ (uint64_t)file->btime_nsec << 32);

	/* (with more of one place, one stands for another: it is left in the journal, too) */
	for (int tries = 1; list[i] && tries < FILES_TRIES_MOST; tries++, i = (i + 1) & (s->file_places - 1))
		if (list[i]->ino == file->ino && list[i]->btime_sec == file->btime_sec &&
		    list[i]->btime_nsec == file->btime_nsec)
			break;
	return &list[i];
}

/*
 * A file that was opened several times has several numbers.  If one of them failed, the others are left in
 * the journal as well.  Otherwise the next try would write the bytes of the failed one over newer bytes.
 */
static void fail_together(struct journal_scan *s)
{
	uint64_t bytes = s->file_places * sizeof(struct entry_file *);
	const struct entry_file **list = NULL;

	for (uint64_t i = 0; i < s->file_places; i++) {
		const struct entry_file *file = &s->files[i];

		if (!files_has_bytes(file) || file->waits || file->result == 0)
			continue;
		if (!list)
			list = sys.mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			                0);
		if (sys_is_error(list))
			break;
		*failed_at(s, list, file) = file;
	}
	if (!list)
		return;
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];
		const struct entry_file *failed;

		if (!files_has_bytes(file) || file->waits || file->result < 0)
			continue;
		failed = sys_is_error(list) ? NULL : *failed_at(s, list, file);
		if (sys_is_error(list) || failed)
			file->result = failed ? failed->result : (int)(intptr_t)list;
	}
	if (!sys_is_error(list))
		sys.munmap(list, bytes);
}

/* 0 when the journal may be removed. */
static int finish_files(struct journal_scan *s, bool replay)
{
	int failed = 0, done = 0;

	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];

		if (!files_has_bytes(file))
			continue;
		file->waits = waits_for_arena(s, file);
		if (!file->waits && !file->aside && file->result == 0) {
			int fd = files_open(s, file, replay);

			file->result = fd == -ENOENT && !replay ? 0 : fd < 0 ? fd : sys.fdatasync(fd);
			kill_step();
		}
		files_close(s, file);
	}
	fail_together(s);
	for (uint64_t i = 0; i < s->file_places; i++) {
		struct entry_file *file = &s->files[i];

		if (!files_has_bytes(file))
			continue;
		if (file->waits) {
			failed = -EBUSY; /* (reported by the recovery of that arena) */
			continue;
		}
		report_file(s, file, replay);
		if (file->aside)
			s->keeps = true;
		else if (file->result < 0)
			failed = file->result;
		else
			done++;
	}
	if ((failed || s->keeps) && done) {
		int r = void_done(s);

		if (r < 0) {
			scan_failed(
				s, "", 0, r,
				"files that are done cannot be marked so: another recovery would write to them again");
		}
	}
	return failed;
}

int journal_replay_all(struct journal_scan *s, bool replay)
{
	int r = scan_find_chains(s);

	if (r < 0)
		return r;
	if (s->chains[0].batches && s->chains[1].batches &&
	    s->chains[0].first_seq + s->chains[0].batches != s->chains[1].first_seq)
		scan_tell(s, "", "damaged", 0, -EBADMSG, "batches are missing; the others are used");
	r = files_collect(s);
	if (r < 0)
		return r;
	if (replay) {
		find_loss(s);
		judge_files(s);
	}
	if (s->opt->dry_run) {
		files_close_all(s);
		for (uint64_t i = 0; i < s->file_places; i++)
			if (s->files[i].bytes)
				report_file(s, &s->files[i], replay);
		return 0;
	}
	if (replay)
		r = scan_walk(s, visit_replay);
	if (r == 0) {
		s->told = true;
		r = finish_files(s, replay);
	}
	if (r < 0 || s->keeps)
		note_end(s);
	files_close_all(s);
	return r;
}
