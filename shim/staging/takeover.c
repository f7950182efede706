// SPDX-License-Identifier: Apache-2.0
/* takeover: see staging/takeover.h. */
#include "staging/takeover.h"

#include "attach/attach.h"
#include "base/kill.h"
#include "base/sys.h"
#include "staging/arenas.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>

enum { MEMBARRIER_GLOBAL = 1 };

/* ---- members ---- */

static _Atomic uint32_t kept;   /* bit: of that arena of the pool this process has its keeper's lock */
static _Atomic uint32_t gates;  /* that this process has, or is about to take */
static _Atomic uint32_t moving; /* threads that wait until there is none */

static long lock_byte(int fd, int how, short type, off_t at)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	return sys.fcntl(fd, how, (long)&lock);
}

bool takeover_possible(int fd)
{
	return lock_byte(fd, F_SETLK, F_WRLCK, TAKEOVER_KEEPERS_AT + (off_t)family_me) == 0;
}

static uint32_t bit_of(const struct arena *a)
{
	uint32_t i = file_arena_index(a);

	return i < FILE_ARENAS ? 1u << i : 0;
}

void takeover_joined(const struct arena *a) { atomic_fetch_and(&kept, ~bit_of(a)); }

void takeover_forked(void) { kept = gates = moving = 0; }

void takeover_keep_slow(struct file *f)
{
	struct arena_slot *slot = arena_slot_at(f->arena, (uint32_t)f->slot);
	uint32_t bit = bit_of(f->arena);

	if (f->arena->gated && !(atomic_load(&kept) & bit)) {
		/* a recoverer may have it, who looks after a dead member that had our number */
		if (lock_byte(arenas_fd(f->arena), F_SETLKW, F_WRLCK,
		              TAKEOVER_KEEPERS_AT + (off_t)family_me) == 0)
			atomic_store(&f->arena->header->live.keepers[family_me], 1);
		atomic_fetch_or(&kept, bit);
	}
	kill_step();
	atomic_store(&slot->keeper, family_me + 1);
}

bool takeover_gate(const struct file *f)
{
	if (!f->shared || !f->arena->gated)
		return false;
	while (atomic_fetch_add(&gates, 1), atomic_load(&moving)) {
		atomic_fetch_sub(&gates, 1);
		sys_nap(50000);
	}
	lock_byte(arenas_fd(f->arena), F_SETLKW, F_WRLCK, TAKEOVER_GATES_AT + f->slot);
	return true;
}

void takeover_ungate(const struct file *f, bool gated)
{
	if (!gated)
		return;
	lock_byte(arenas_fd(f->arena), F_SETLK, F_UNLCK, TAKEOVER_GATES_AT + f->slot);
	atomic_fetch_sub(&gates, 1);
}

int takeover_move_fd(int (*act)(int fd), int fd)
{
	int r;

	atomic_fetch_add(&moving, 1);
	while (atomic_load(&gates))
		sys_nap(50000);
	r = act(fd);
	/* taken again when something is staged */
	atomic_store(&kept, 0);
	atomic_fetch_sub(&moving, 1);
	return r;
}

/* ---- recoverers ---- */

/* By locks of our own description, which no other close drops. */
static bool take(int fd, off_t at) { return lock_byte(fd, F_OFD_SETLK, F_WRLCK, at) == 0; }

/* Its owner: a process, 0 = in another pid namespace; -1: a recoverer; -ESRCH: nobody. */
static int owner_of(int fd, off_t at)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

	if (sys.fcntl(fd, F_OFD_GETLK, (long)&lock) < 0)
		return 0;
	return lock.l_type == F_UNLCK ? -ESRCH : lock.l_pid;
}

static off_t keepers_in_file(uint32_t member)
{
	return (off_t)(offsetof(struct arena_header, live.keepers) + member);
}

static bool has_keeper(int fd, uint32_t member)
{
	uint8_t is;

	return sys_read_all(fd, &is, sizeof is, (uint64_t)keepers_in_file(member)) == 0 && is;
}

/* A member that has kept something and is dead; then its lock is ours.  Another recoverer that has it is waited for. */
static bool is_dead(int fd, uint32_t member)
{
	enum { NAPS_MAX = 10000 };
	off_t at = TAKEOVER_KEEPERS_AT + (off_t)member;

	for (int i = 0; i < NAPS_MAX && has_keeper(fd, member); i++) {
		int owner;

		if (take(fd, at))
			return true;
		owner = owner_of(fd, at);
		if (owner != -1 && owner != -ESRCH)
			return false;
		sys_nap(1000000);
	}
	return false;
}

bool takeover_begin(struct takeover *t, int fd)
{
	uint8_t keepers[FAMILY_MAX];
	bool any = false;

	memset(t, 0, sizeof *t);
	t->fd = fd;
	if (sys_read_all(fd, keepers, sizeof keepers, (uint64_t)keepers_in_file(0)) < 0)
		return false;
	for (uint32_t i = 0; i < FAMILY_MAX; i++) {
		t->dead[i] = keepers[i] && is_dead(fd, i);
		any |= t->dead[i];
	}
	return any;
}

bool takeover_concerns(const struct takeover *t, struct foreign_arena *a, uint32_t slot)
{
	const struct arena_slot *s = foreign_slot(a, slot);
	uint32_t keeper = s->keeper;

	return s->used && keeper != 0 && keeper <= FAMILY_MAX && t->dead[keeper - 1] &&
	       foreign_blocks(a, slot) != 0;
}

/*
 * Sets COMMIT_SEALED in a word of the mapped arena, whatever members do to it meanwhile.  The kernel does it, for which a
 * file that shrinks is an error and no SIGBUS: the arena may be another user's.
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

/* Seals the blocks of one slot; how many were not, or -errno. */
static int seal_slot(const struct foreign_arena *a, uint32_t slot, uint8_t *map)
{
	int sealed = 0;

	for (uint32_t at = a->first[slot]; at != 0; at = a->next[at - 1]) {
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

/* Members that come to the file find that nothing is as they knew it.  Then the blocks are sealed. */
static int seal_gated(const struct takeover *t, struct foreign_arena *a, uint8_t *map, bool announce)
{
	int sealed = 0;

	for (uint32_t i = 0; i < t->slots; i++) {
		struct arena_slot *s = foreign_slot(a, i);
		int r = 0;

		if (!t->gated[i] || !takeover_concerns(t, a, i))
			continue;
		if (announce) {
			s->takeovers++;
			r = foreign_store(a, (void *)&s->takeovers, sizeof s->takeovers);
		}
		if (r == 0)
			r = seal_slot(a, i, map);
		if (r < 0)
			return r;
		sealed += r;
	}
	return sealed;
}

/* Until all are sealed for good.  0, or -errno; *loaded: `a` is. */
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

/* True when it has one. */
static bool take_gates(struct takeover *t, struct foreign_arena *a)
{
	const uint64_t patience = 1000000000u, until = sys_now_ns() + patience;
	bool any = false;

	for (uint32_t i = 0; i < t->slots; i++) {
		if (!takeover_concerns(t, a, i))
			continue;
		while (!(t->gated[i] = take(t->fd, TAKEOVER_GATES_AT + (off_t)i)) && sys_now_ns() < until)
			sys_nap(1000000);
		any |= t->gated[i];
	}
	return any;
}

int takeover_seal(struct takeover *t, struct foreign_arena *a)
{
	uint32_t slots = a->header.slot_count;
	uint8_t *gated = sys.mmap(NULL, slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	bool loaded = true;

	if (sys_is_error(gated)) {
		t->error = (int)(intptr_t)gated;
		return 0;
	}
	t->gated = gated;
	t->slots = slots;
	if (!take_gates(t, a))
		return 0;
	/* what was loaded before is too old */
	t->error = load_again(t, a);
	loaded = t->error == 0;
	if (loaded)
		t->error = seal_all(t, a, &loaded);
	return loaded ? 0 : t->error;
}

int takeover_slot(const struct takeover *t, uint32_t slot, int *pid)
{
	int owner;

	*pid = 0;
	if (t->error < 0 || t->gated[slot])
		return t->error;
	owner = owner_of(t->fd, TAKEOVER_GATES_AT + (off_t)slot);
	*pid = owner > 0 ? owner : 0;
	return -EBUSY;
}

int takeover_done(struct foreign_arena *a, uint32_t slot, int n)
{
	struct arena_slot *s = foreign_slot(a, slot);

	s->done = DONE_MAKE(a->blocks[a->order[n - 1]].seq, 0);
	return foreign_store(a, (void *)&s->done, sizeof s->done);
}

/* Nothing of theirs is left: the next recoverer need not look again.  A new member with such a number waits for the lock
 * before it says that it keeps something. */
static void forget_keepers(const struct takeover *t)
{
	uint8_t none = 0;
	struct iovec iov = {.iov_base = &none, .iov_len = sizeof none};

	for (uint32_t i = 0; i < FAMILY_MAX; i++)
		if (t->dead[i])
			sys.pwritev(t->fd, &iov, 1, keepers_in_file(i));
}

void takeover_end(struct takeover *t)
{
	struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = TAKEOVER_GATES_AT};

	kill_step();
	if (t->gated && !t->left && t->error == 0)
		forget_keepers(t);
	if (t->gated)
		sys.munmap(t->gated, t->slots);
	t->gated = NULL;
	sys.fcntl(t->fd, F_OFD_SETLK, (long)&all);
}
