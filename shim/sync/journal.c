// SPDX-License-Identifier: Apache-2.0
/* journal: see sync/journal.h. */
#include "sync/journal.h"

#include "base/internal_fd.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "base/thread.h"
#include "files/family.h"
#include "files/file.h"
#include "files/workers.h"
#include "foreign/claim.h"
#include "staging/arena.h"
#include "staging/log_file.h"
#include "sync/journal_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>

enum {
	HEADER = sizeof(struct journal_batch),
	ASKED_MIN = 8,        /* syncs before a journal is made */
	ROOM_KEPT = 64 << 10, /* of each half, for entries that free the other one; and a unit per file */
	ZEROS_BYTES = JOURNAL_BATCH_MAX,
	PROBES = 7,
};

/* This process's descriptor + 1 of each arena's journal, 0 = none. */
static _Atomic int fds[FILE_ARENAS];
/* Threads of this process between journal_hold and journal_unhold. */
static PROCESS_DATA _Atomic uint32_t holds[FILE_ARENAS];

static PROCESS_DATA struct {
	struct thread_one thread;
	_Atomic bool wanted, stop;
} worker;

static void nudge(void);

static struct journal_cursor *cursor(struct journal *j)
{
	return &j->cursors[atomic_load_explicit(&j->which, memory_order_acquire) & 1];
}

/* With the lock.  Atomic, even if this process is killed. */
static void cursor_set(struct journal *j, const struct journal_cursor *next)
{
	uint32_t which = atomic_load_explicit(&j->which, memory_order_relaxed);

	j->cursors[(which + 1) & 1] = *next;
	atomic_store_explicit(&j->which, which + 1, memory_order_release);
	kill_step();
}

static int local_fd(const struct arena *a) { return atomic_load(&fds[file_arena_index(a)]) - 1; }

static uint8_t *batch_buffer(const struct arena *a, uint64_t seq)
{
	return file_journal_buffers(a) + (seq & 1) * JOURNAL_BATCH_MAX;
}

/* ---- creation ---- */

static void refuse(struct arena *a, int error, const char *why)
{
	atomic_store(&a->journal.state, JOURNAL_OFF);
	log_warn("rule %s: no journal in %s: %s (error %d); sync = fdatasync instead", a->rule->name, a->dir,
	         why, -error);
}

/* In a thread of the program, because the descriptor has a low number for a moment. */
static void open_new(struct arena *a)
{
	struct journal *j = &a->journal;
	uint32_t none = JOURNAL_NONE;
	struct statx st;
	int fd, r;

	if (!atomic_compare_exchange_strong(&j->state, &none, JOURNAL_PREPARING))
		return;
	fd = log_file_open(a, O_CREAT | O_EXCL);
	if (fd == -EMFILE || fd == -ENFILE) {
		atomic_store(&j->state, JOURNAL_NONE);
		return;
	}
	if (fd < 0) {
		refuse(a, fd, fd == -EINVAL ? "no O_DIRECT there" : "cannot be made");
		return;
	}
	kill_step();
	r = claim_hold(fd);
	if (r == 0)
		r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r == 0 && !log_file_has_disk(fd))
		r = -EOPNOTSUPP;
	if (r == 0 && !sys_still_linked(fd))
		r = -ESTALE; /* a recovery has removed the empty file as a dead process's */
	if (r < 0) {
		internal_fd_close(fd);
		if (r == -ESTALE || r == -EWOULDBLOCK) {
			atomic_store(&j->state, JOURNAL_NONE);
			return;
		}
		log_file_remove(a);
		refuse(a, r, r == -EOPNOTSUPP ? "the file system has no disk of its own" : "cannot be used");
		return;
	}
	j->dev = sys_dev_of(&st);
	j->ino = st.stx_ino;
	/* (a device may write 4 KiB for 512 bytes of it: power lost then takes the batch before, too) */
	j->unit = JOURNAL_UNIT_MAX;
	atomic_store(&fds[file_arena_index(a)], fd + 1);
	atomic_store(&j->state, JOURNAL_OPENED);
	nudge();
}

/* Opens a journal that another process made.  0; -EWOULDBLOCK: a recovery looks whether its maker lives,
 * which takes a moment; other -errno. */
static int open_known(const struct arena *a)
{
	struct statx st;
	int fd = workers_is_self() ? -EBADF : log_file_open(a, 0), r;

	if (fd < 0)
		return fd;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r == 0 && (st.stx_ino != a->journal.ino || sys_dev_of(&st) != a->journal.dev))
		r = -ESTALE;
	if (r == 0)
		r = claim_hold(fd);
	if (r < 0) {
		internal_fd_close(fd);
		return r;
	}
	atomic_store(&fds[file_arena_index(a)], fd + 1);
	return 0;
}

bool journal_ready(struct arena *a)
{
	uint32_t state = atomic_load_explicit(&a->journal.state, memory_order_acquire);

	if (state == JOURNAL_READY)
		return local_fd(a) >= 0 || open_known(a) == 0;
	if (state == JOURNAL_NONE && !workers_is_self() &&
	    atomic_fetch_add(&a->journal.asked, 1) >= ASKED_MIN)
		open_new(a);
	else if (state == JOURNAL_OPENED && local_fd(a) >= 0)
		nudge();
	return false;
}

/* Writes all `bytes`; they are durable when it returns 0.  `buffer` is aligned. */
static int write_durably(int fd, const void *buffer, uint64_t bytes, uint64_t at, bool by_fdatasync)
{
	const uint8_t *p = buffer;

	while (bytes > 0) {
		struct iovec iov = {.iov_base = (void *)(uintptr_t)p, .iov_len = bytes};
		/* RLIMIT_FSIZE of the program does not apply to the journal */
		ssize_t r = by_fdatasync ? sys_pwritev_accepted(fd, &iov, 1, (off_t)at)
		                         : sys_pwritev2_accepted(fd, &iov, 1, (off_t)at, RWF_DSYNC);

		if (r == -EINTR || r == -EAGAIN)
			continue;
		if (r < 0)
			return (int)r;
		if (r == 0)
			return -EIO;
		p += r;
		at += (uint64_t)r;
		bytes -= (uint64_t)r;
		kill_step();
	}
	return by_fdatasync ? sys.fdatasync(fd) : 0;
}

static uint64_t median_cost(int fd, const void *zeros, bool by_fdatasync)
{
	uint64_t cost[PROBES];

	for (int i = 0; i < PROBES; i++) {
		uint64_t begin = sys_now_ns();
		int at = i;

		if (write_durably(fd, zeros, JOURNAL_UNIT_MAX,
		                  JOURNAL_HEADER_BYTES + (uint64_t)i * JOURNAL_UNIT_MAX, by_fdatasync) < 0)
			return UINT64_MAX;
		cost[i] = sys_now_ns() - begin;
		for (; at > 0 && cost[at - 1] > cost[at]; at--) {
			uint64_t swap = cost[at];

			cost[at] = cost[at - 1];
			cost[at - 1] = swap;
		}
	}
	return cost[PROBES / 2];
}

static int fill_header(struct arena *a, int fd, struct journal_header *h)
{
	struct journal *j = &a->journal;
	uint64_t half = (a->rule->set.journal_bytes - JOURNAL_HEADER_BYTES) / 2;
	long n = sys_raw(SYS_getrandom, (long)h->id, sizeof h->id, 0, 0, 0, 0);
	struct statx st;
	int r;

	if (n != (long)sizeof h->id)
		return -EIO;
	r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_INO, &st);
	if (r < 0)
		return r;
	h->ino = st.stx_ino;
	h->magic = JOURNAL_MAGIC;
	h->version = JOURNAL_VERSION;
	h->half_bytes = half / JOURNAL_UNIT_MAX * JOURNAL_UNIT_MAX;
	h->total_bytes = JOURNAL_HEADER_BYTES + 2 * h->half_bytes;
	h->unit = j->unit;
	h->pid = a->header->pid;
	h->pid_start = a->header->pid_start;
	h->origin = a->header->origin;
	h->uid = a->header->uid;
	h->gid = a->header->gid;
	memcpy(h->rule, a->header->rule, sizeof h->rule);
	memcpy(h->program, a->header->program, sizeof a->header->program);
	h->checksum = journal_header_checksum(h);
	memcpy(j->id, h->id, sizeof j->id);
	j->half_bytes = h->half_bytes;
	return 0;
}

/* Writes real zeros: a later write into unwritten extents would change metadata. */
static int write_zeros(int fd, void *zeros, uint64_t total)
{
	for (uint64_t at = 0; at < total;) {
		uint64_t n = total - at < ZEROS_BYTES ? total - at : ZEROS_BYTES;
		struct iovec iov = {.iov_base = zeros, .iov_len = n};
		ssize_t r = sys.pwritev(fd, &iov, 1, (off_t)at);

		if (r == -EINTR)
			continue;
		if (r <= 0)
			return r < 0 ? (int)r : -EIO;
		if (atomic_load(&worker.stop))
			return -ECANCELED;
		at += (uint64_t)r;
		if (at < total && at % JOURNAL_UNIT_MAX != 0)
			return -EIO;
	}
	return 0;
}

static int prepare(struct arena *a, int fd)
{
	struct journal *j = &a->journal;
	uint8_t *buffer = file_journal_buffers(a); /* no entry has been put yet */
	struct journal_header *h = (struct journal_header *)(void *)(buffer + JOURNAL_BATCH_MAX);
	struct sys_quiet quiet;
	int r;

	/* (the place may have been another arena's) */
	memset(buffer, 0, 2 * JOURNAL_BATCH_MAX);
	r = fill_header(a, fd, h);
	if (r < 0)
		return r;
	sys_quiet_begin(&quiet);
	r = sys.fallocate(fd, 0, 0, (off_t)h->total_bytes);
	if (r == 0 || r == -EOPNOTSUPP)
		r = write_zeros(fd, buffer, h->total_bytes);
	sys_quiet_end(&quiet);
	if (r == 0)
		r = sys.fsync(fd);
	if (r == 0)
		r = log_file_sync_names(a);
	if (r < 0)
		return r;
	j->by_fdatasync = median_cost(fd, buffer, true) < median_cost(fd, buffer, false) / 10 * 9;
	kill_step();
	/* last: until then the file is not a valid journal */
	r = write_durably(fd, h, JOURNAL_HEADER_BYTES, 0, true);
	memset(h, 0, sizeof *h);
	return r;
}

static void make(struct arena *a)
{
	struct journal *j = &a->journal;
	uint32_t opened = JOURNAL_OPENED;
	int fd = local_fd(a), r;

	if (fd < 0 || !atomic_compare_exchange_strong(&j->state, &opened, JOURNAL_PREPARING))
		return;
	r = prepare(a, fd);
	if (r == -ECANCELED) {
		/* start again when it is needed */
		atomic_store(&j->state, JOURNAL_OPENED);
		return;
	}
	if (r < 0) {
		log_file_remove(a);
		refuse(a, r, r == -ENOSPC ? "no space" : "cannot be written");
		return;
	}
	j->cursors[0] = (struct journal_cursor){.seq = 1, .half_seq = 1};
	j->which = 0;
	j->next_file = 1;
	atomic_store(&j->state, JOURNAL_READY);
}

/* ---- putting ---- */

static void take(struct journal *j) { lock_take(&j->lock, LOCK_JOURNAL); }
static void drop(struct journal *j) { lock_drop(&j->lock, LOCK_JOURNAL); }

static uint32_t padded(const struct journal *j, uint32_t bytes)
{
	return (bytes + j->unit - 1) & ~(j->unit - 1);
}

static bool fits(const struct journal *j, const struct journal_cursor *c, uint32_t bytes, bool bulk)
{
	uint64_t kept = bulk ? ROOM_KEPT + (uint64_t)atomic_load(&j->files) * j->unit : 0;
	uint64_t end = c->head + padded(j, bytes) + kept;

	return bytes <= JOURNAL_BATCH_MAX && end <= j->half_bytes;
}

int journal_reserve(struct arena *a, uint32_t bytes, bool bulk, uint8_t **out, uint64_t *ticket)
{
	struct journal *j = &a->journal;
	struct journal_cursor c;
	int r = 0;

	take(j);
	c = *cursor(j);
	if (atomic_load(&j->state) != JOURNAL_READY) {
		r = -EIO;
	} else if (!fits(j, &c, (c.used ? c.used : HEADER) + bytes, bulk)) {
		if (c.used > 0) {
			/* the next batch may have room */
			*ticket = c.seq;
			r = -EAGAIN;
		} else if (c.old_seq == 0 && c.head > 0 && HEADER + bytes <= JOURNAL_BATCH_MAX) {
			c.old_seq = c.half_seq;
			c.half ^= 1;
			c.head = 0;
			c.half_seq = c.seq;
			cursor_set(j, &c);
			journal_free_soon(a);
		} else {
			journal_free_soon(a);
			r = -ENOSPC;
		}
	}
	if (r < 0) {
		drop(j);
		return r;
	}
	*out = batch_buffer(a, c.seq) + (c.used ? c.used : HEADER);
	return 0;
}

uint64_t journal_half_seq(const struct arena *a)
{
	return cursor((struct journal *)(uintptr_t)&a->journal)->half_seq;
}
uint64_t journal_next(const struct arena *a) { return cursor((struct journal *)(uintptr_t)&a->journal)->seq; }
uint64_t journal_new_file(struct arena *a) { return a->journal.next_file++; }

uint64_t journal_commit(struct arena *a, uint32_t bytes)
{
	struct journal *j = &a->journal;
	struct journal_cursor c = *cursor(j);

	c.used = (c.used ? c.used : HEADER) + bytes;
	cursor_set(j, &c);
	drop(j);
	return c.seq;
}

struct journal_place journal_here(struct arena *a)
{
	struct journal *j = &a->journal;
	struct journal_place p;

	take(j);
	p = (struct journal_place){.seq = cursor(j)->seq, .at = cursor(j)->used};
	drop(j);
	return p;
}

/* ---- writing ---- */

/* With the lock: completes the current batch and begins the next. */
static void seal(struct arena *a)
{
	struct journal *j = &a->journal;
	struct journal_cursor c = *cursor(j);
	struct journal_batch *b = (struct journal_batch *)(void *)batch_buffer(a, c.seq);
	uint32_t bytes = padded(j, c.used);

	memset((uint8_t *)b + c.used, 0, bytes - c.used);
	b->magic = JOURNAL_BATCH_MAGIC;
	b->seq = c.seq;
	memcpy(b->id, j->id, sizeof b->id);
	b->bytes = c.used;
	b->written_ns = sys_wall_fine_ns();
	atomic_store_explicit(&a->header->live.journal_next, c.seq + 1, memory_order_release);
	c.writing_seq = c.seq;
	c.writing_at = JOURNAL_HEADER_BYTES + c.half * j->half_bytes + c.head;
	c.writing_bytes = bytes;
	c.head += bytes;
	c.used = 0;
	c.seq++;
	cursor_set(j, &c);
}

static void wake_waiters(struct journal *j, uint64_t done)
{
	atomic_fetch_add(&j->events[done & 1], 1);
	atomic_fetch_add(&j->events[(done + 1) & 1], 1);
	if (atomic_load(&j->waiters) == 0)
		return;
	sys_futex_wake((uint32_t *)&j->events[done & 1], 1 << 20);
	/* one thread that waits for the next batch writes it */
	sys_futex_wake((uint32_t *)&j->events[(done + 1) & 1], 1);
}

/* With the lock, as the leader.  Drops and retakes the lock. */
static void write_batch(struct arena *a)
{
	struct journal *j = &a->journal;
	struct journal_cursor c = *cursor(j);
	struct journal_batch *b;
	uint64_t written;
	int r;

	if (c.writing_bytes == 0) {
		seal(a);
		c = *cursor(j);
	}
	written = c.writing_seq;
	drop(j);
	/* a killed leader may have stored the same checksum already */
	b = (struct journal_batch *)(void *)batch_buffer(a, c.writing_seq);
	b->checksum = journal_batch_checksum(b);
	kill_step();
	r = write_durably(local_fd(a), b, c.writing_bytes, c.writing_at, j->by_fdatasync);
	kill_step();
	take(j);
	c = *cursor(j);
	if (r < 0) {
		if (atomic_exchange(&j->state, JOURNAL_OFF) != JOURNAL_OFF)
			log_error(
				"rule %s: the journal in %s cannot be written (error %d); sync = fdatasync instead",
				a->rule->name, a->dir, -r);
		atomic_store(&j->abandon_due, true);
		nudge();
	} else if (c.writing_seq == written) {
		atomic_store(&j->durable, written);
		c.writing_bytes = 0;
		cursor_set(j, &c);
	}
}

void journal_hold(const struct arena *a) { atomic_fetch_add(&holds[file_arena_index(a)], 1); }
void journal_unhold(const struct arena *a) { atomic_fetch_sub(&holds[file_arena_index(a)], 1); }

PROCESS_CODE void journal_bury(struct arena *a, const struct family_set *dead)
{
	struct journal *j = &a->journal;

	take(j);
	if (atomic_load(&j->leader) && family_set_has(dead, j->leader_member))
		atomic_store(&j->leader, 0);
	drop(j);
}

static int wait_until(struct arena *a, uint64_t ticket, uint64_t until_ns)
{
	enum { NAPS_MAX = 10000 }; /* as a recovery waits for another one */
	struct journal *j = &a->journal;
	struct timespec tick = {.tv_nsec = 100000000};
	int naps = 0;

	while (atomic_load(&j->durable) < ticket) {
		uint32_t seen, leader;

		take(j);
		leader = atomic_load(&j->leader);
		if (atomic_load(&j->durable) >= ticket || atomic_load(&j->state) == JOURNAL_OFF) {
			drop(j);
			break;
		}
		if (leader && !family_member_died(j->leader_member)) {
			if (sys_now_ns() >= until_ns) {
				drop(j);
				return -EIO;
			}
			seen = atomic_load(&j->events[ticket & 1]);
			atomic_fetch_add(&j->waiters, 1);
			drop(j);
			sys_futex_wait((uint32_t *)&j->events[ticket & 1], seen, &tick);
			atomic_fetch_sub(&j->waiters, 1);
			continue;
		}
		if (local_fd(a) < 0) {
			int r;

			/* another process put the entries, or the descriptor was closed since */
			drop(j);
			r = open_known(a);
			if (r < 0 && (r != -EWOULDBLOCK || naps++ == NAPS_MAX))
				return -EIO;
			if (r < 0)
				sys_nap(1000000);
			continue;
		}
		j->leader_member = family_me;
		atomic_store(&j->leader, lock_self());
		write_batch(a);
		atomic_store(&j->leader, 0);
		drop(j);
		wake_waiters(j, atomic_load(&j->durable));
	}
	return atomic_load(&j->durable) >= ticket ? 0 : -EIO;
}

int journal_wait(struct arena *a, uint64_t ticket) { return wait_until(a, ticket, UINT64_MAX); }

int journal_wait_shortly(struct arena *a, uint64_t ticket)
{
	enum { SHORTLY_NS = 200000000 };

	return wait_until(a, ticket, sys_now_ns() + SHORTLY_NS);
}

/* ---- halves ---- */

void journal_free_before(struct arena *a, uint64_t seq)
{
	struct journal *j = &a->journal;
	struct journal_cursor c;

	take(j);
	c = *cursor(j);
	if (c.old_seq != 0 && seq >= c.half_seq && !atomic_load(&j->keep)) {
		c.old_seq = 0;
		cursor_set(j, &c);
	}
	drop(j);
}

uint64_t journal_kept_from(struct arena *a)
{
	uint64_t seq;

	take(&a->journal);
	seq = cursor(&a->journal)->half_seq;
	drop(&a->journal);
	return seq;
}

void journal_free_soon(struct arena *a)
{
	enum { AGAIN_NS = 100000000 };
	uint64_t now = sys_now_ns();

	/* after a failure, not every sync asks again */
	if (now - atomic_load(&a->journal.checkpoint_ns) < AGAIN_NS)
		return;
	atomic_store(&a->journal.checkpoint_ns, now);
	atomic_store(&a->journal.checkpoint_due, true);
	nudge();
}

/* ---- the thread ---- */

/* Void entries cannot be written any more, so the file is removed with all its entries. */
static void abandon(struct arena *a)
{
	if (atomic_load(&a->journal.keep))
		return;
	log_file_remove(a);
	if (log_file_sync_names(a) == 0)
		atomic_store(&a->journal.abandon_due, false);
}

static void visit_work(struct arena *a, void *ctx)
{
	uint32_t state = atomic_load_explicit(&a->journal.state, memory_order_relaxed);

	(void)ctx;
	if (!atomic_load(&a->ready) || local_fd(a) < 0 || atomic_load(&worker.stop))
		return;
	if (state == JOURNAL_OPENED)
		make(a);
	else if (state == JOURNAL_READY && atomic_exchange(&a->journal.checkpoint_due, false))
		journal_file_checkpoint(a);
	else if (state == JOURNAL_OFF && atomic_load(&a->journal.abandon_due) && journal_file_abandon(a))
		abandon(a);
}

static bool has_work(void) { return atomic_load(&worker.wanted) && !atomic_load(&worker.stop); }

static void *work(void *arg)
{
	(void)arg;
	thread_one_begin(&worker.thread);
	do {
		while (has_work()) {
			atomic_store(&worker.wanted, false);
			file_arena_for_each(visit_work, NULL);
		}
	} while (!thread_one_leave(&worker.thread, has_work));
	return NULL;
}

/* Signals blocked. */
static void nudge(void)
{
	atomic_store(&worker.wanted, true);
	if (!atomic_load(&worker.stop))
		thread_one_need(&worker.thread, work);
}

void journal_stop(void)
{
	atomic_store(&worker.stop, true);
	while (!thread_one_gone(&worker.thread))
		sys_nap(100000);
	atomic_store(&worker.stop, false);
}

PROCESS_CODE void journal_after_fork(void)
{
	thread_one_after_fork(&worker.thread);
	worker.wanted = worker.stop = false;
	for (int i = 0; i < FILE_ARENAS; i++)
		holds[i] = 0;
}

/* ---- removal ---- */

void journal_destroy(struct arena *a)
{
	struct journal *j = &a->journal;
	uint32_t state = atomic_load(&j->state);
	int fd = local_fd(a);

	if (state == JOURNAL_NONE)
		return;
	/* the thread may be filling it with zeros */
	if (state == JOURNAL_PREPARING)
		journal_stop();
	while (atomic_load(&holds[file_arena_index(a)]) > 0)
		sys_nap(100000);
	kill_step();
	if (!atomic_load(&j->keep))
		log_file_remove(a);
	kill_step();
	/* This process may have lost the right to remove the file.  No entry is needed: truncate it, and a
	 * later recovery removes it. */
	if (fd >= 0 && !atomic_load(&j->keep))
		sys.ftruncate(fd, 0);
	if (fd >= 0)
		internal_fd_close(fd);
	atomic_store(&fds[file_arena_index(a)], 0);
	atomic_store(&j->state, JOURNAL_NONE);
}

void journal_forget(void)
{
	for (int i = 0; i < FILE_ARENAS; i++)
		atomic_store(&fds[i], 0);
}

struct move {
	int fd;
	bool done;
};

/* No thread writes through the descriptor while it gets another number. */
static void visit_move(struct arena *a, void *ctx)
{
	struct journal *j = &a->journal;
	struct move *m = ctx;
	int other;

	if (local_fd(a) != m->fd)
		return;
	if (atomic_load(&j->state) == JOURNAL_PREPARING)
		journal_stop();
	take(j);
	while (atomic_load(&j->leader) && j->leader_member == family_me) {
		drop(j);
		sys_nap(100000);
		take(j);
	}
	other = internal_fd_move(m->fd);
	if (other >= 0)
		atomic_store(&fds[file_arena_index(a)], other + 1);
	m->done = other >= 0;
	drop(j);
}

bool journal_move_fd(int fd)
{
	struct move m = {.fd = fd};
	sys_sigset signals = signals_block();

	file_arena_for_each(visit_move, &m);
	sys_restore_signals(signals);
	return m.done;
}
