// SPDX-License-Identifier: Apache-2.0
/* family: see files/family.h. */
#include "files/family.h"

#include "base/fork_guard.h"
#include "base/internal_fd.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "files/file.h"

#include <fcntl.h>
#include <linux/memfd.h>

static PROCESS_DATA int member_fd = -1; /* its description has the lock of this process */
static PROCESS_DATA int child_fd = -1;  /* during a fork: the child's */
static PROCESS_DATA uint32_t child_number;
static bool ended;

static long set_lock(int fd, uint32_t member)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1};

	return sys.fcntl(fd, F_OFD_SETLK, (long)&lock);
}

/* True if no process has the lock of that index.  If the kernel gives no answer, the process may live. */
PROCESS_CODE bool family_member_died(uint32_t member)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member, .l_len = 1};

	return member != family_me && member_fd >= 0 && sys.fcntl(member_fd, F_OFD_GETLK, (long)&lock) == 0 &&
	       lock.l_type == F_UNLCK;
}

bool family_is_alone(void)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = FAMILY_MAX};

	return member_fd >= 0 && sys.fcntl(member_fd, F_OFD_GETLK, (long)&lock) == 0 &&
	       lock.l_type == F_UNLCK;
}

bool family_is_left(void)
{
	const struct family *m = file_family();
	bool ending = false;

	for (uint32_t i = 0; m && i < FAMILY_MAX; i++) {
		uint32_t state = i == family_me ? MEMBER_FREE : atomic_load(&m->state[i]);

		if (state == MEMBER_FREE || family_member_died(i))
			continue;
		if (state == MEMBER_LIVE)
			return false;
		ending = true;
	}
	return ending;
}

PROCESS_CODE bool family_is_shared(void)
{
	struct family *m = file_family();

	return m && atomic_load_explicit(&m->highest, memory_order_relaxed) > 0;
}

PROCESS_CODE bool family_set_others(const struct family_set *s)
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
			if (!family_member_died(member))
				return true;
		}
	}
	return false;
}

PROCESS_CODE bool family_set_within(const struct family_set *a, const struct family_set *b)
{
	for (uint32_t word = 0; word < FAMILY_WORDS; word++) {
		for (uint64_t bits = atomic_load(&a->words[word]) & ~atomic_load(&b->words[word]); bits;
		     bits &= bits - 1)
			if (!family_member_died(word * 64 + (uint32_t)__builtin_ctzll(bits)))
				return false;
	}
	return true;
}

PROCESS_CODE uint32_t family_set_count(const struct family_set *s)
{
	uint32_t n = 0;

	for (uint32_t word = 0; word < FAMILY_WORDS; word++)
		for (uint64_t bits = atomic_load(&s->words[word]); bits; bits &= bits - 1)
			n++;
	return n;
}

static int raise_owned(long fd) { return fd < 0 ? (int)fd : internal_fd_raise((int)fd); }

int family_found(void)
{
	struct family *m;

	if (ended || (!file_family() && file_pools_init() < 0))
		return -1;
	m = file_family();
	if (member_fd >= 0)
		return 0;
	member_fd = raise_owned(sys_raw(SYS_memfd_create, (long)"fastwrite-family", MFD_CLOEXEC, 0, 0, 0, 0));
	if (member_fd < 0)
		return -1;
	if (set_lock(member_fd, family_me) < 0) {
		internal_fd_close(member_fd);
		member_fd = -1;
		return -1;
	}
	atomic_store(&m->state[family_me], MEMBER_LIVE);
	return 1;
}

/* A description of the memory file that only the child will have. */
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

bool family_has_room(void) { return free_number(file_family()) < FAMILY_MAX; }

uint32_t family_child_begin(void)
{
	struct family *m = file_family();
	uint32_t higher;

	child_number = free_number(m);
	if (child_number == FAMILY_MAX)
		return FAMILY_MAX;
	lock_take(&m->lock, LOCK_FAMILY);
	/* another process may have taken the index since */
	child_fd = atomic_load(&m->state[child_number]) == MEMBER_FREE ? open_for_child(child_number) : -1;
	if (child_fd >= 0) {
		atomic_store(&m->state[child_number], MEMBER_LIVE);
		/* (a forked process that was the only one left may give the first index to a child) */
		higher = child_number > family_me ? child_number : family_me;
		if (atomic_load(&m->highest) < higher)
			atomic_store(&m->highest, higher);
	}
	lock_drop(&m->lock, LOCK_FAMILY);
	return child_fd < 0 ? FAMILY_MAX : child_number;
}

void family_fork_parent(void)
{
	internal_fd_close(child_fd);
	child_fd = -1;
}

PROCESS_CODE void family_fork_child(void)
{
	internal_fd_close(member_fd);
	member_fd = child_fd;
	child_fd = -1;
	family_me = child_number;
}

void family_leave(void)
{
	struct flock lock = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = family_me, .l_len = 1};

	/* (closing it is not enough if a child that no hook saw has a copy of the descriptor) */
	sys.fcntl(member_fd, F_OFD_SETLK, (long)&lock);
}

void family_forget(void)
{
	member_fd = child_fd = -1; /* closed with all the others */
	ended = false;
}

bool family_move_fd(int fd)
{
	struct family *m = file_family();
	sys_sigset signals;
	int other = -1;

	if (fd != member_fd || fd < 0 || fork_guard_elsewhere())
		return false;
	/* (a worker may be closing it) */
	signals = signals_block();
	if (lock_take(&m->lock, LOCK_FAMILY) != LOCK_NESTED) {
		/* the lock belongs to the description, not to the descriptor */
		if (fd == member_fd)
			other = internal_fd_move(fd);
		if (other >= 0)
			member_fd = other;
		lock_drop(&m->lock, LOCK_FAMILY);
	}
	sys_restore_signals(signals);
	return other >= 0;
}

bool family_close_alone(void)
{
	struct family *m = file_family();
	bool alone = true;

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

bool family_can_close(void) { return file_family() && member_fd >= 0 && child_fd < 0; }

void family_refuse(uint32_t member, uint32_t why)
{
	struct family *m = file_family();

	if (!m)
		return; /* no file was managed, no process forked */
	atomic_store(&m->refusal, why);
	family_set_add(&m->refusing, member);
}

uint32_t family_refused(void)
{
	struct family *m = file_family();

	return m && family_set_others(&m->refusing) ? atomic_load(&m->refusal) : BYPASS_NONE;
}

void family_note_stranger(void)
{
	struct family *m = file_family();

	if (m)
		atomic_store(&m->strangers, true);
}

bool family_has_strangers(void)
{
	const struct family *m = file_family();

	return m && atomic_load_explicit(&m->strangers, memory_order_relaxed);
}

PROCESS_CODE void family_exiting(bool exits)
{
	struct family *m = file_family();

	if (family_is_shared())
		atomic_store(&m->state[family_me], exits ? MEMBER_EXITING : MEMBER_LIVE);
}

void family_end(void) { ended = true; }
