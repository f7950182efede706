// SPDX-License-Identifier: Apache-2.0
/* family: see process/family.h. */
#include "process/family.h"

#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "descriptors/fdtable.h"
#include "flush/engine.h"
#include "flush/flush.h"
#include "recovery/recover.h"
#include "staging/attach.h"
#include "staging/stage.h"
#include "staging/takeover.h"
#include "sync/journal_file.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>

static int member_fd = -1; /* names this process as a member */
static int child_fd = -1;  /* during a fork: the child's */
static uint32_t child_number;
static bool ended;

static long set_lock(int fd, uint32_t member)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1};

	return sys.fcntl(fd, F_OFD_SETLK, (long)&lock);
}

/* Nobody has the lock of that number.  When the kernel does not answer, somebody might. */
static bool is_dead(uint32_t member)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1};

	return member != family_me && member_fd >= 0 && sys.fcntl(member_fd, F_OFD_GETLK, (long)&lock) == 0 &&
	       lock.l_type == F_UNLCK;
}

bool family_is_shared(void)
{
	struct family *m = file_family();

	return m && atomic_load_explicit(&m->highest, memory_order_relaxed) > 0;
}

bool family_set_others(const struct family_set *s)
{
	struct family *m = file_family();
	bool leaving;

	if (!family_is_shared())
		return false;
	leaving = atomic_load(&m->state[family_me]) == MEMBER_EXITING;
	for (uint32_t word = 0; word < FAMILY_WORDS; word++) {
		for (uint64_t bits = atomic_load(&s->words[word]); bits; bits &= bits - 1) {
			uint32_t member = word * 64 + (uint32_t)__builtin_ctzll(bits);

			if (member == family_me ||
			    (leaving && atomic_load(&m->state[member]) == MEMBER_EXITING))
				continue;
			if (!is_dead(member))
				return true;
		}
	}
	return false;
}

bool family_set_within(const struct family_set *a, const struct family_set *b)
{
	for (uint32_t word = 0; word < FAMILY_WORDS; word++) {
		for (uint64_t bits = atomic_load(&a->words[word]) & ~atomic_load(&b->words[word]); bits;
		     bits &= bits - 1)
			if (!is_dead(word * 64 + (uint32_t)__builtin_ctzll(bits)))
				return false;
	}
	return true;
}

uint32_t family_set_count(const struct family_set *s)
{
	int n = 0;

	for (uint32_t word = 0; word < FAMILY_WORDS; word++)
		n += __builtin_popcountll(atomic_load(&s->words[word]));
	return (uint32_t)n;
}

static int raise_owned(long fd) { return fd < 0 ? (int)fd : internal_fd_raise((int)fd); }

/* Address space for the arenas to come; without it each member makes its own. */
static void reserve_places(struct family *m)
{
	struct arena_header geometry;
	uint64_t most = 0, blocks = 0;
	void *places, *runs;

	for (uint32_t i = 0; i < attach_config->rule_count; i++) {
		const struct rule *rule = &attach_config->rules[i];

		if (!arena_geometry(rule->set.mem_bytes, rule->set.block_bytes, &geometry))
			continue;
		if (geometry.total_bytes > most)
			most = geometry.total_bytes;
		if (geometry.block_count > blocks)
			blocks = geometry.block_count;
	}
	most = (most + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
	m->runs_bytes = (blocks * sizeof(struct block_run) + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
	m->place_bytes = most;
	places = sys.mmap(NULL, most * FAMILY_PLACES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	                  -1, 0);
	if (sys_is_error(places))
		return;
	runs = sys.mmap(NULL, m->runs_bytes * FAMILY_PLACES, PROT_READ | PROT_WRITE,
	                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sys_is_error(runs)) {
		sys.munmap(places, most * FAMILY_PLACES);
		return;
	}
	m->runs = runs;
	m->places = places;
}

void family_place(const struct arena *a, void **map, void **runs)
{
	struct family *m = file_family();
	uint32_t i = file_arena_index(a);

	*map = *runs = NULL;
	if (!m->places || i >= FAMILY_PLACES)
		return;
	*map = m->places + i * m->place_bytes;
	*runs = m->runs + i * m->runs_bytes;
}

/* The first fork: a memory file, and our own number's lock. */
static bool found(void)
{
	struct family *m = file_family();

	if (member_fd >= 0)
		return true;
	member_fd = raise_owned(sys_raw(SYS_memfd_create, (long)"fastwrite-family", MFD_CLOEXEC, 0, 0, 0, 0));
	if (member_fd < 0)
		return false;
	if (set_lock(member_fd, family_me) < 0) {
		internal_fd_close(member_fd);
		member_fd = -1;
		return false;
	}
	atomic_store(&m->state[family_me], MEMBER_LIVE);
	reserve_places(m);
	return true;
}

/* A description of the memory file that the child alone will have. */
static int open_for_child(uint32_t number)
{
	char path[64];
	int fd;

	log_format(path, sizeof path, "/proc/self/fd/%d", member_fd);
	fd = raise_owned(sys.openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0));
	if (fd >= 0 && set_lock(fd, number) < 0) {
		internal_fd_close(fd);
		fd = -1;
	}
	return fd;
}

static uint32_t free_number(struct family *m)
{
	for (uint32_t i = 0; i < FAMILY_MAX; i++)
		if (i != family_me && atomic_load(&m->state[i]) == MEMBER_FREE)
			return i;
	return FAMILY_MAX;
}

static void visit_claim(struct file *f, void *ctx)
{
	/* other threads open and close meanwhile */
	struct file_guard g = file_lock(f);

	(void)ctx;
	/* a flush that began without its gate, see staging/takeover.h */
	if (!f->shared && !g.nested)
		flush_wait_idle(f);
	f->shared = true;
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (ofd_local(o)->refs)
			family_set_add(&o->holders, child_number);
	file_unlock(f, g);
}

bool family_fork_prepare(void)
{
	struct family *m = file_family();

	if (ended || (!m && file_pools_init() < 0))
		return false;
	m = file_family();
	if (!found())
		return false;
	child_number = free_number(m);
	if (child_number == FAMILY_MAX) {
		family_sweep();
		child_number = free_number(m);
	}
	if (child_number == FAMILY_MAX)
		return false;
	lock_take(&m->lock, LOCK_FAMILY);
	/* another member may have taken it since */
	child_fd = atomic_load(&m->state[child_number]) == MEMBER_FREE ? open_for_child(child_number) : -1;
	if (child_fd >= 0) {
		atomic_store(&m->state[child_number], MEMBER_LIVE);
		if (atomic_load(&m->highest) < child_number)
			atomic_store(&m->highest, child_number);
	}
	lock_drop(&m->lock, LOCK_FAMILY);
	if (child_fd < 0)
		return false;
	attach_share(child_number);
	file_for_each(visit_claim, NULL);
	return true;
}

void family_fork_parent(void)
{
	internal_fd_close(child_fd);
	child_fd = -1;
	kill_arm_children(0);
}

static void visit_own(struct file *f, void *ctx)
{
	(void)ctx;
	internal_fd_close(file_own_fd(f));
	file_set_own_fd(f, -1);
}

void family_fork_child(void)
{
	internal_fd_close(member_fd);
	member_fd = child_fd;
	child_fd = -1;
	family_me = child_number;
	takeover_forked();
	kill_forked();
	file_for_each(visit_own, NULL);
}

void family_leave(void)
{
	struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = family_me, .l_len = 1};

	/* (closing it is not enough where a child that no hook saw has a copy of the descriptor) */
	sys.fcntl(member_fd, F_OFD_SETLK, (long)&lock);
}

/* The room for arenas to come, see reserve_places. */
static void forget_places(bool keep)
{
	const struct family *m = file_family();

	if (!m || !m->places)
		return;
	if (keep) {
		sys_make_private(m->runs, m->runs_bytes * FAMILY_PLACES);
		return;
	}
	sys.munmap(m->places, m->place_bytes * FAMILY_PLACES);
	sys.munmap(m->runs, m->runs_bytes * FAMILY_PLACES);
}

void family_forget(bool keep)
{
	forget_places(keep);
	takeover_forked();
	member_fd = child_fd = -1; /* closed with all the others */
	ended = false;
}

bool family_move_fd(int fd)
{
	int other;

	if (fd != member_fd)
		return false;
	other = internal_fd_move(fd); /* the lock belongs to the description, not to the number */
	if (other < 0)
		return false;
	member_fd = other;
	return true;
}

bool family_spare(void)
{
	struct family *m = file_family();
	bool alone = true;

	if (!m || member_fd < 0 || child_fd >= 0)
		return false;
	family_sweep();
	lock_take(&m->lock, LOCK_FAMILY);
	for (uint32_t i = 0; i < FAMILY_MAX; i++)
		alone &= i == family_me || atomic_load(&m->state[i]) == MEMBER_FREE;
	if (alone) {
		atomic_store(&m->highest, 0);
		internal_fd_close(member_fd);
		member_fd = -1;
	}
	lock_drop(&m->lock, LOCK_FAMILY);
	return alone;
}

void family_refuse(uint32_t member, uint32_t why)
{
	struct family *m = file_family();

	if (!m)
		return; /* nobody forked */
	atomic_store(&m->refusal, why);
	family_set_add(&m->refusing, member);
}

uint32_t family_refused(void)
{
	struct family *m = file_family();

	return m && family_set_others(&m->refusing) ? atomic_load(&m->refusal) : BYPASS_NONE;
}

bool family_member_died(uint32_t member) { return is_dead(member); }

void family_exiting(void)
{
	struct family *m = file_family();

	if (family_is_shared())
		atomic_store(&m->state[family_me], MEMBER_EXITING);
}

void family_end(void) { ended = true; }

bool family_flusher_died(const struct file *f)
{
	uint32_t member = atomic_load_explicit(&f->busy_member, memory_order_relaxed);

	return f->shared && atomic_load(&f->busy) && member != family_me && is_dead(member);
}

/* ---- repair ---- */

/* Descriptions may have been left with a flush's flags, or under its lease; not all of them are here. */
static void leave_flags(struct file *f)
{
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (o->lent == OFD_LENT)
			ofd_left(o);
	f->busy_program_fd = false;
	file_restore_locked(f);
}

/* Every block of the slot is in the file. */
static bool nothing_left(const struct file *f)
{
	uint64_t done = DONE_SEQ(atomic_load(&arena_slot_at(f->arena, (uint32_t)f->slot)->done));

	for (uint32_t i = 0; i < f->arena->block_count; i++) {
		const struct arena_block *b = f->arena->runs[i].meta;

		if (b->owner == (uint32_t)f->slot + 1 && b->seq > done)
			return false;
	}
	return true;
}

/* One past the last byte that the newest block of the slot holds; 0 when there is none. */
static uint64_t newest_end(const struct file *f)
{
	const struct block_run *newest = NULL;
	uint64_t commit;

	for (uint32_t i = 0; i < f->arena->block_count; i++) {
		const struct block_run *run = &f->arena->runs[i];

		if (run->meta->owner == (uint32_t)f->slot + 1 && COMMIT_COUNT(run->meta->commit) > 0 &&
		    (!newest || run->meta->seq > newest->meta->seq))
			newest = run;
	}
	if (!newest)
		return 0;
	/* the second half of a write that was never published does not count */
	if (newest->meta->chain_block) {
		const struct arena_block *first = &f->arena->blocks[newest->meta->chain_block - 1];

		if (first->owner == newest->meta->owner && first->seq == newest->meta->chain_seq &&
		    COMMIT_REACH(first->commit) < newest->meta->chain_commit)
			return 0;
	}
	commit = newest->meta->commit;
	return arena_extent_get(newest->meta, arena_block_data(f->arena, newest->index),
	                        f->arena->block_bytes, commit, COMMIT_COUNT(commit) - 1)
	               .offset +
	       COMMIT_LENGTH(commit);
}

/* Where everybody stands: what was published has moved its writer's position. */
static void settle_positions(struct file *f)
{
	struct block_run *run = f->current;

	stage_logical_size(f);
	if (run && run->stream) {
		uint64_t commit = run->meta->commit;
		struct arena_extent e =
			arena_extent_get(run->meta, arena_block_data(f->arena, run->index),
		                         f->arena->block_bytes, commit, COMMIT_COUNT(commit) - 1);

		run->stream->pos = (off_t)(e.offset + e.length);
		run->stream->pos_mode = POS_USER;
		run->stream = NULL;
	}
	if (f->moving) {
		uint64_t end = f->moving_from + f->moving_bytes;

		f->moving->pos = (off_t)(newest_end(f) == end ? end : f->moving_from);
		f->moving->pos_mode = POS_USER;
		f->moving = NULL;
	}
	for (struct ofd *o = f->ofds; o; o = o->next)
		if (o->pos_mode == POS_STREAM)
			o->pos_mode = POS_USER;
	/* nobody's fast path may stage behind what we have just looked at */
	if (run)
		atomic_fetch_or(&run->meta->commit, COMMIT_SEALED);
	f->current = NULL;
}

/* A description of the file to put bytes in place with.  *own: it is to be closed. */
static int repair_fd(const struct file *f, bool *own)
{
	char path[64];
	int fd = -1;

	*own = false;
	if (!f->no_own_fd && file_fd(f) >= 0) {
		log_format(path, sizeof path, "/proc/self/fd/%d", file_fd(f));
		fd = sys.openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
		if (fd < 0)
			fd = sys.openat(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
		*own = fd >= 0;
	}
	return fd >= 0 ? fd : flush_program_fd(f);
}

static int replay(struct file *f)
{
	bool own;
	int fd = repair_fd(f, &own);
	int r = recover_live_slot(attach_arena_fd(f->arena), f->arena->dir, (uint32_t)f->slot, fd);

	if (own)
		sys.close(fd);
	return r;
}

static void end_busy(struct file *f)
{
	atomic_store(&f->busy, 0);
	atomic_fetch_add(&f->busy_events, 1);
	sys_futex_wake((uint32_t *)&f->busy_events, 1 << 20);
}

/* Everybody's position is known, and a flusher that lives has come to its end; it leaves the rest to us.  File lock held,
 * dropped and taken again.  False: somebody else has repaired the file meanwhile. */
static bool come_to_rest(struct file *f)
{
	struct timespec tick = {.tv_nsec = 10000000};

	for (;;) {
		uint32_t seen;

		journal_file_changed(f);
		if (f->mode == FILE_ENGAGED && f->arena && f->slot >= 0)
			settle_positions(f);
		if (!atomic_load(&f->busy) || family_flusher_died(f))
			return true;
		seen = atomic_load(&f->busy_events);
		lock_drop(&f->lock, LOCK_FILE);
		sys_futex_wait((uint32_t *)&f->busy_events, seen, &tick);
		file_retake(f);
		if (!f->damaged)
			return false;
		if (f->shared)
			attach_to_arena(f);
	}
}

void family_repair(struct file *f)
{
	struct arena_slot *slot;
	uint64_t end;
	bool gated;
	int fd, r;

	f->damaged = true;
	if (!come_to_rest(f))
		return;
	f->idle_waiters = 0;
	leave_flags(f);
	if (f->mode != FILE_ENGAGED || !f->arena || f->slot < 0) {
		if (f->mode == FILE_ENGAGED) {
			/* he was about to attach it, or had given it back */
			f->arena = NULL;
			f->mode = FILE_PASSIVE;
			file_engaged_add(-1);
		}
		f->busy = 0;
		f->damaged = false;
		return;
	}
	slot = arena_slot_at(f->arena, (uint32_t)f->slot);
	end = newest_end(f);
	gated = takeover_gate(f);
	r = replay(f);
	/* whoever has no right to the file can say as much where there is nothing to bring */
	if (r < 0 && !(nothing_left(f) && !(slot->flags & SLOT_PADDED))) {
		/* nothing is lost: it stays in the arena, and is tried again with the next call */
		if (f->error == 0)
			log_warn("cannot put in place what a killed process of the family wrote (error %d)",
			         -r);
		f->error = r;
		takeover_ungate(f, gated);
		end_busy(f); /* nobody waits for the dead: while it is damaged no other flush begins */
		return;
	}
	/* in this order: who is killed in between has appended nothing that would be appended again */
	atomic_store(&slot->done, DONE_MAKE(atomic_load(&f->arena->header->live.next_seq), 0));
	atomic_store(&slot->flush_active, APPEND_NONE);
	/* (a signal handler that repairs has interrupted somebody who copies into it still) */
	if (f->pinned)
		f->pinned->lost = true;
	arena_free_slot_blocks(f->arena, (uint32_t)f->slot);
	atomic_store(&slot->used, 1); /* a recovery by path has taken it for finished */
	f->takeovers = slot->takeovers;
	takeover_ungate(f, gated);
	attach_nothing_staged(f);
	if (!(slot->flags & SLOT_PADDED))
		f->zero_end = 0; /* a recoverer has cut them off */
	if (r >= 0)
		atomic_store(&slot->prealloc_end, 0);
	if (end > f->lsize)
		f->lsize = end;
	fd = file_fd(f);
	/* (with zeros behind the end the kernel's size is not the file's) */
	if (fd >= 0 && !f->zero_end)
		attach_refresh(f, fd);
	else
		f->ksize = f->lsize;
	end_busy(f);
}

/* ---- sweep ---- */

struct sweep {
	struct family_set dead;
	bool any;
};

/* No process has the file any more; what is staged for it in an arena of ours is put in place by its path. */
static void bury(struct file *f)
{
	struct arena *a = NULL;
	uint32_t slot = 0;

	if (f->mode == FILE_ENGAGED && f->arena && f->slot >= 0) {
		int fd = attach_arena_fd(f->arena);
		bool gated = takeover_gate(f);

		if (fd >= 0 && recover_live_slot(fd, f->arena->dir, (uint32_t)f->slot, -1) == 0) {
			arena_free_slot_blocks(f->arena, (uint32_t)f->slot);
			takeover_ungate(f, gated);
			gated = false;
			attach_nothing_staged(f);
			/* who opens it next knows nothing of them */
			journal_retire(f, false);
			flush_close_own(f);
			a = f->arena;
			slot = (uint32_t)f->slot;
		}
		takeover_ungate(f, gated);
	}
	if (f->mode == FILE_ENGAGED)
		file_engaged_add(-1);
	attach_leave_arena(f);
	/* only now may another file have it */
	if (a)
		arena_slot_free(a, slot);
	f->busy = 0;
	f->mode = FILE_THROUGH;
}

/* File lock held; no process has the description any more. */
static void end_description(struct file *f, struct ofd *o)
{
	if (f->current && f->current->stream == o)
		stage_unstream(f);
	if (f->leased == o)
		f->leased = NULL;
	if (f->left == o)
		f->left = NULL;
	/* (what can still be read is settled by its last reader) */
	if (f->ofds == o && !o->next)
		bury(f);
	ofd_release(o);
	file_put_dead(f);
}

void family_give_up(struct ofd *o)
{
	struct file *f = atomic_load(&o->file);
	struct file_guard g = file_lock(f);
	const struct ofd *known;

	flush_wait_idle(f);
	known = f->ofds;
	/* (one that is free says what it was last) */
	while (known && known != o)
		known = known->next;
	if (known && family_set_has(&o->holders, family_me)) {
		family_set_remove(&o->holders, family_me);
		if (family_set_count(&o->holders) == 0)
			end_description(f, o);
	}
	file_unlock(f, g);
}

/* File lock held: have the dead claims to it? */
static bool is_concerned(const struct file *f, const struct sweep *s)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		for (uint32_t w = 0; w < FAMILY_WORDS; w++)
			if (atomic_load(&o->holders.words[w]) & atomic_load(&s->dead.words[w]))
				return true;
	return false;
}

/* Not one that this process cannot reach, and others can: they do it, and nobody waits for them here with a lock held that
 * they may need first. */
static bool is_ours_to_sweep(struct file *f, struct sweep *s)
{
	sys_sigset signals = sys_block_signals();
	bool nested = file_retake(f);
	bool ours = nested || !is_concerned(f, s) || attach_reaches(f);

	if (!nested)
		lock_drop(&f->lock, LOCK_FILE);
	sys_restore_signals(signals);
	return ours;
}

/* The timer of the member that looked after what is staged ticks no more, and its number is about to be another one's. */
static void keep_for(struct file *f, const struct sweep *s)
{
	uint32_t keeper;

	if (f->mode != FILE_ENGAGED || !f->arena || f->slot < 0 || !f->head || !file_local(f)->refs ||
	    attach_stopped())
		return;
	keeper = arena_slot_at(f->arena, (uint32_t)f->slot)->keeper;
	if (keeper != 0 && keeper <= FAMILY_MAX && family_set_has(&s->dead, keeper - 1)) {
		takeover_keep(f);
		engine_arm();
	}
}

/* Drops the claims of the dead to one file; descriptions that nobody else has go. */
static void visit_sweep(struct file *f, void *ctx)
{
	struct sweep *s = ctx;
	struct file_guard g;
	struct ofd *next;

	if (!is_ours_to_sweep(f, s)) {
		s->any = false;
		return;
	}
	g = file_lock(f);
	if (!is_concerned(f, s)) {
		file_unlock(f, g);
		return;
	}
	if (g.nested) {
		/* the next sweep */
		s->any = false;
		file_unlock(f, g);
		return;
	}
	if (family_flusher_died(f)) {
		f->damaged = true;
		family_repair(f);
	}
	for (struct ofd *o = f->ofds; o; o = next) {
		next = o->next;
		for (uint32_t w = 0; w < FAMILY_WORDS; w++)
			atomic_fetch_and(&o->holders.words[w], ~atomic_load(&s->dead.words[w]));
		if (family_set_count(&o->holders) == 0)
			end_description(f, o);
	}
	keep_for(f, s);
	file_unlock(f, g);
}

static void visit_arena(struct arena *a, void *ctx)
{
	struct sweep *s = ctx;
	bool claimed = false;

	if (!atomic_load(&a->ready)) {
		/* it is being made, and has no member yet */
		if (family_set_has(&s->dead, file_arena_taker(a)))
			file_arena_give(a);
		return;
	}
	for (uint32_t w = 0; w < FAMILY_WORDS; w++) {
		atomic_fetch_and(&a->members.words[w], ~atomic_load(&s->dead.words[w]));
		claimed |= atomic_load(&a->members.words[w]) != 0;
	}
	if (!claimed) {
		/* dead as a whole: its file is recovered like any other */
		atomic_store(&a->ready, false);
		file_arena_give(a);
	} else {
		if (attach_arena_fd(a) >= 0)
			arena_reclaim_blocks(a, &s->dead);
		journal_bury(a, &s->dead);
	}
}

void family_sweep(void)
{
	struct family *m = file_family();
	struct sweep s = {.any = false};

	if (!family_is_shared() || lock_take(&m->lock, LOCK_FAMILY) == LOCK_NESTED)
		return;
	for (uint32_t i = 0; i < FAMILY_MAX; i++) {
		if (atomic_load(&m->state[i]) == MEMBER_FREE || !is_dead(i))
			continue;
		family_set_add(&s.dead, i);
		s.any = true;
	}
	if (s.any) {
		file_for_each_shared(visit_sweep, &s);
		file_arena_for_each(visit_arena, &s);
		for (uint32_t i = 0; i < FAMILY_MAX && s.any; i++)
			if (family_set_has(&s.dead, i)) {
				family_set_remove(&m->refusing, i);
				atomic_store(&m->state[i], MEMBER_FREE);
			}
	}
	lock_drop(&m->lock, LOCK_FAMILY);
}
