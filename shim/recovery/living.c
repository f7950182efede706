// SPDX-License-Identifier: Apache-2.0
/* living: see recovery/living.h. */
#include "recovery/living.h"

#include "base/buffer.h"
#include "base/kill.h"
#include "base/log.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "format/takeover_format.h"
#include "recovery/entry.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>

/* ---- the take-over ---- */

struct takeover {
	int fd;                       /* of the arena */
	bool dead[ARENA_KEEPERS_MAX]; /* keepers whose lock we hold now */
	bool left;                    /* something that they staged stays in the arena */
	uint8_t *gated;               /* for each of `entries` file entries: we hold its gate */
	uint32_t entries;
	int error; /* -errno: the blocks could not be sealed */
};

enum { MEMBARRIER_GLOBAL = 1 };

/* The lock belongs to our open file description: no close of another descriptor drops it. */
static bool take(int fd, off_t at) { return takeover_lock_byte(fd, F_OFD_SETLK, F_WRLCK, at) == 0; }

/* The pid of the lock's owner; 0: it is in another pid namespace; -1: a recoverer; -ESRCH: there is none. */
static int owner_of(int fd, off_t at)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	if (sys.fcntl(fd, F_OFD_GETLK, (long)&lock) < 0)
		return 0;
	return lock.l_type == F_UNLCK ? -ESRCH : lock.l_pid;
}

static off_t keeper_at(uint32_t process)
{
	return (off_t)(offsetof(struct arena_header, live.keepers) + process);
}

static bool has_kept(int fd, uint32_t process)
{
	uint8_t is;

	return sys_read_all(fd, &is, sizeof is, (uint64_t)keeper_at(process)) == 0 && is;
}

/* The process has kept something and is dead; we hold its lock now.  Waits while another recoverer holds it.
 */
static bool is_dead(int fd, uint32_t process, uint64_t until)
{
	off_t at = TAKEOVER_KEEPERS_AT + (off_t)process;

	while (has_kept(fd, process)) {
		int owner;

		if (take(fd, at))
			return true;
		owner = owner_of(fd, at);
		if ((owner != -1 && owner != -ESRCH) || sys_now_ns() >= until)
			return false;
		sys_nap(1000000);
	}
	return false;
}

bool living_keep_all(int fd)
{
	uint8_t keepers[ARENA_KEEPERS_MAX];

	if (foreign_is_newer(fd))
		return true; /* (nobody here could help it) */
	if (sys_read_all(fd, keepers, sizeof keepers, (uint64_t)keeper_at(0)) < 0)
		return false;
	for (uint32_t i = 0; i < ARENA_KEEPERS_MAX; i++) {
		int owner = keepers[i] ? owner_of(fd, TAKEOVER_KEEPERS_AT + (off_t)i) : 0;

		/* dead, or a recoverer has the lock of a dead one */
		if (owner < 0)
			return false;
	}
	return true;
}

/* fd: an arena whose family lives, open for reading and writing.  True when one of its keepers has died.
 * Waits for other recoverers.  takeover_end must follow; it gives back every lock. */
static bool takeover_begin(struct takeover *t, int fd)
{
	/* (what is no arena is not worth a wait) */
	uint64_t until = foreign_is_arena(fd) ? claim_until(CLAIM_PATIENCE_NS) : 0;
	uint8_t keepers[ARENA_KEEPERS_MAX];
	bool any = false;

	memset(t, 0, sizeof *t);
	t->fd = fd;
	if (sys_read_all(fd, keepers, sizeof keepers, (uint64_t)keeper_at(0)) < 0)
		return false;
	for (uint32_t i = 0; i < ARENA_KEEPERS_MAX; i++) {
		t->dead[i] = keepers[i] && is_dead(fd, i, until);
		any |= t->dead[i];
	}
	return any;
}

/* The keeper of the file entry is dead, and blocks of the entry are damaged or not yet in the file. */
static bool takeover_concerns(const struct takeover *t, struct foreign_arena *a, uint32_t entry)
{
	const struct arena_entry *s = foreign_entry(a, entry);
	uint32_t keeper = s->keeper;

	return s->used && keeper != 0 && keeper <= ARENA_KEEPERS_MAX && t->dead[keeper - 1] &&
	       foreign_blocks(a, entry) != 0;
}

/*
 * Sets COMMIT_SEALED in a word of the mapped arena, atomically with what the family does to it.  The kernel
 * does it, because to the kernel a file that shrinks is an error and no SIGBUS: the arena may belong to
 * another user.
 */
static int seal(uint64_t *commit)
{
	const uint32_t op = (uint32_t)(FUTEX_OP_OR | FUTEX_OP_OPARG_SHIFT) << 28 | 31u << 12;
	uint32_t nobody = 0;
	long r = sys_raw(SYS_futex, (long)&nobody, FUTEX_WAKE_OP, 0, 0, (long)((uint32_t *)commit + 1), op);

	return r < 0 ? (int)r : 0;
}
_Static_assert(COMMIT_SEALED == 1ull << 63, "seal() sets the uppermost bit");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "seal() finds it in the second half");

/* Seals the blocks of one file entry.  How many were not sealed yet, or -errno. */
static int seal_entry(const struct foreign_arena *a, uint32_t entry, uint8_t *map)
{
	int sealed = 0;

	for (uint32_t at = a->first[entry]; at != 0; at = a->next[at - 1]) {
		uint64_t where = a->header.blocks_at + (uint64_t)(at - 1) * ARENA_BLOCK_ENTRY_BYTES;
		int r;

		if (a->blocks[at - 1].commit & COMMIT_SEALED)
			continue;
		r = seal((uint64_t *)(void *)(map + where + offsetof(struct arena_block, commit)));
		if (r < 0)
			return r;
		sealed++;
	}
	return sealed;
}

static int load_again(const struct takeover *t, struct foreign_arena *a)
{
	foreign_unload(a);
	return foreign_load(a, t->fd);
}

/* First announces the take-over to the family (`takeovers`), then seals the blocks.  How many it sealed, or
 * -errno. */
static int seal_gated(const struct takeover *t, struct foreign_arena *a, uint8_t *map, bool announce)
{
	int sealed = 0;

	for (uint32_t i = 0; i < t->entries; i++) {
		struct arena_entry *s = foreign_entry(a, i);
		int r = 0;

		if (!t->gated[i] || !takeover_concerns(t, a, i))
			continue;
		if (announce) {
			s->takeovers++;
			r = foreign_store(a, (void *)&s->takeovers, sizeof s->takeovers);
		}
		if (r == 0)
			r = seal_entry(a, i, map);
		if (r < 0)
			return r;
		sealed += r;
	}
	return sealed;
}

/* Repeats until a second look finds every block sealed.  0, or -errno; *loaded: `a` is loaded. */
static int seal_all(const struct takeover *t, struct foreign_arena *a, bool *loaded)
{
	enum { TRIES = 20 };
	const uint64_t tables = a->header.data_at;
	uint8_t *map = sys.mmap(NULL, tables, PROT_READ | PROT_WRITE, MAP_SHARED, t->fd, 0);
	int r = sys_is_error(map) ? (int)(intptr_t)map : -EAGAIN;

	for (int i = 0; r == -EAGAIN && i < TRIES; i++) {
		int left = seal_gated(t, a, map, i == 0);

		kill_step();
		if (left < 0 || (left == 0 && i > 0)) {
			r = left;
			break;
		}
		left = (int)sys_raw(SYS_membarrier, MEMBARRIER_GLOBAL, 0, 0, 0, 0, 0);
		if (left < 0)
			r = left;
		left = load_again(t, a);
		*loaded = left == 0;
		if (left < 0)
			r = left;
	}
	if (!sys_is_error(map))
		sys.munmap(map, tables);
	return r;
}

/* True when we hold at least one. */
static bool take_gates(struct takeover *t, struct foreign_arena *a)
{
	const uint64_t until = claim_until(1000000000u);
	bool any = false;

	for (uint32_t i = 0; i < t->entries; i++) {
		if (!takeover_concerns(t, a, i))
			continue;
		while (!(t->gated[i] = take(t->fd, TAKEOVER_GATES_AT + (off_t)i)) && sys_now_ns() < until)
			sys_nap(1000000);
		any |= t->gated[i];
	}
	return any;
}

/*
 * `a`: the arena, loaded.  Takes the gates of the entries that takeover_concerns, seals their blocks and
 * loads `a` again. 0, or -errno: then `a` is not loaded any more.
 */
static int takeover_seal(struct takeover *t, struct foreign_arena *a)
{
	uint32_t entries = a->header.entry_count;
	uint8_t *gated = sys.mmap(NULL, entries, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool loaded = true;

	if (sys_is_error(gated)) {
		t->error = (int)(intptr_t)gated;
		return 0;
	}
	t->gated = gated;
	t->entries = entries;
	if (!take_gates(t, a))
		return 0;
	/* (what was loaded before may be out of date) */
	t->error = load_again(t, a);
	loaded = t->error == 0;
	if (loaded)
		t->error = seal_all(t, a, &loaded);
	return loaded ? 0 : t->error;
}

/* After that, for an entry that takeover_concerns.  0: we may flush it.  -EBUSY: process *pid is flushing it
 * (0: not known which).  -EAGAIN: the family is at work on it and needs no help.  Other -errno. */
static int takeover_allowed(const struct takeover *t, uint32_t entry, int *pid)
{
	int owner;

	*pid = 0;
	if (t->error < 0 || t->gated[entry])
		return t->error;
	owner = owner_of(t->fd, TAKEOVER_GATES_AT + (off_t)entry);
	*pid = owner > 0 ? owner : 0;
	return -EBUSY;
}

/* Nothing that they staged is left: the next recoverer need not look again.  A new process with such a number
 * waits for the lock before it stores that it keeps something. */
static void forget_keepers(const struct takeover *t)
{
	uint8_t none = 0;
	struct iovec iov = {.iov_base = &none, .iov_len = sizeof none};

	for (uint32_t i = 0; i < ARENA_KEEPERS_MAX; i++)
		if (t->dead[i])
			sys.pwritev(t->fd, &iov, 1, keeper_at(i));
}

static void takeover_end(struct takeover *t)
{
	struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = TAKEOVER_GATES_AT};

	kill_step();
	if (t->gated && !t->left && t->error == 0)
		forget_keepers(t);
	if (t->gated)
		sys.munmap(t->gated, t->entries);
	t->gated = NULL;
	sys.fcntl(t->fd, F_OFD_SETLK, (long)&all);
}

/* ---- the recovery ---- */

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
		t->left = true;
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
	for (uint32_t i = 0; r == 0 && i < j->a.header.entry_count; i++)
		if (takeover_concerns(t, &j->a, i))
			recover_taken(j, t, i);
	recover_rights_drop(rights);
	return r;
}

void living_recover(struct recover_job *j, int fd)
{
	BUFFER(struct takeover, t);
	/* (shared, as the family has it: keeps recoverers of the whole arena away when the last process of it
	 * dies) */
	int r = sys.flock(fd, LOCK_SH | LOCK_NB);

	if (r == -EWOULDBLOCK) {
		job_failed(j, "", 0, -EBUSY, "another recovery is at work on it, or stopped");
		return;
	}
	j->report->live++;
	if (r == 0 && !foreign_is_newer(fd) && takeover_begin(t, fd)) {
		r = foreign_load(&j->a, fd);
		j->family_lives = true;
		if (r == 0)
			r = job_find_place(j, fd);
		if (r == 0)
			r = take_over(j, t);
		if (r < 0)
			t->left = true;
		takeover_end(t);
		foreign_unload(&j->a);
	}
	if (r < 0)
		job_failed(j, "", 0, r, "what a dead process of a living family staged cannot be read");
	else
		job_tell(j, "", "live", 0, 0, "its process is running");
}

int recover_live_entry(int arena_fd, const char *dir, uint32_t entry, int fd)
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
	if (entry >= j->a.header.entry_count || !foreign_entry(&j->a, entry)->used) {
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
