// SPDX-License-Identifier: Apache-2.0
/* claim: see foreign/claim.h. */
#include "foreign/claim.h"

#include "base/pid.h"
#include "base/sys.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>

enum { OWN_MAX = 64 };
static const char *_Atomic own[OWN_MAX];
/* The process that a thread looks in; 0: none.  (In the child of a fork the word may name the parent.) */
static _Atomic int looking;

enum { LOOK_NAP_NS = 20000 };

void claim_look_begin(void)
{
	int me = sys_getpid(), before = atomic_load(&looking);

	while (before == me || !atomic_compare_exchange_strong(&looking, &before, me)) {
		sys_nap(LOOK_NAP_NS);
		before = atomic_load(&looking);
	}
}

void claim_look_end(void) { atomic_store(&looking, 0); }

void claim_note_own(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *expected = NULL;

		if (atomic_compare_exchange_strong(&own[i], &expected, name))
			break;
	}
	while (atomic_load(&looking) == sys_getpid())
		sys_nap(LOOK_NAP_NS);
}

void claim_forget_own(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *expected = name;

		atomic_compare_exchange_strong(&own[i], &expected, NULL);
	}
}

bool claim_is_own(const char *name)
{
	for (int i = 0; i < OWN_MAX; i++) {
		const char *mine = atomic_load(&own[i]);

		if (mine && strcmp(mine, name) == 0)
			return true;
	}
	return false;
}

static uint32_t effective_uid(void) { return (uint32_t)sys_raw(SYS_geteuid, 0, 0, 0, 0, 0, 0); }

int claim_dir_allowed(int dirfd)
{
	uint32_t me = effective_uid();
	struct statx st;
	int r = sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r < 0)
		return r;
	return (me == 0 || st.stx_uid == me) && !(st.stx_mode & 022) ? 0 : -EPERM;
}

int claim_file_allowed(int dirfd, int fd)
{
	uint32_t me = effective_uid();
	struct statx st, dir;
	int r = sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &st);

	if (r == 0)
		r = sys.statx(dirfd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &dir);
	if (r < 0)
		return r;
	if ((st.stx_mode & S_IFMT) != S_IFREG || st.stx_nlink > 1)
		return -EBADMSG;
	/* (a file of another user that was moved here is no arena of the directory's owner) */
	if ((st.stx_mode & 022) || (st.stx_uid != dir.stx_uid && dir.stx_uid != 0))
		return -EPERM;
	return me == 0 || me == st.stx_uid ? 0 : -EPERM;
}

int claim_open(int dirfd, const char *name, bool dry_run)
{
	const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int fd = sys.openat(dirfd, name, O_RDWR | flags, 0);

	return fd == -EROFS && dry_run ? sys.openat(dirfd, name, O_RDONLY | flags, 0) : fd;
}

/* A byte of the file that is locked; nothing is stored there.  Beyond those of format/takeover_format.h. */
static const off_t held_at = (off_t)1 << 42;

/* The kernel tells only of this lock, not of a flock, whether another process has it. */
static long held_lock(int fd, int how, struct flock *lock, short type)
{
	*lock = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = held_at, .l_len = 1};
	return sys.fcntl(fd, how, (long)lock);
}

int claim_hold(int fd)
{
	struct flock lock;
	/* Shared: each process of the family that opens the file locks it.  A recoverer needs the lock for
	 * itself alone. */
	int r = sys.flock(fd, LOCK_SH | LOCK_NB);

	if (r == 0)
		held_lock(fd, F_OFD_SETLK, &lock,
		          F_RDLCK); /* (without it others look by a process of their own) */
	return r;
}

bool claim_is_held(int fd)
{
	struct flock lock;

	return held_lock(fd, F_OFD_GETLK, &lock, F_WRLCK) == 0 && lock.l_type != F_UNLCK;
}

static __thread uint64_t give_up = CLAIM_FOREVER;

void claim_give_up(uint64_t at) { give_up = at; }

uint64_t claim_until(uint64_t ns)
{
	uint64_t until = sys_now_ns() + ns;

	return until < give_up ? until : give_up;
}

bool claim_gave_up(void) { return give_up != CLAIM_FOREVER && sys_now_ns() >= give_up; }

int claim_lock(int fd, bool *met)
{
	uint64_t until = claim_until(CLAIM_PATIENCE_NS);
	int r;

	*met = false;
	while ((r = sys.flock(fd, LOCK_EX | LOCK_NB)) == -EWOULDBLOCK) {
		/* No recoverer has it (any more): a family shares it with us, or another recoverer that
		 * waits.  An attempt at the whole lock that fails loses the shared one, too.  If that is then
		 * refused, the other recoverer was quicker. */
		if (sys.flock(fd, LOCK_SH | LOCK_NB) == 0) {
			r = sys.flock(fd, LOCK_EX | LOCK_NB);
			if (r == 0 || sys.flock(fd, LOCK_SH | LOCK_NB) == 0)
				return r;
		} else {
			*met = true;
		}
		if (sys_now_ns() >= until)
			break;
		sys_nap(1000000);
	}
	return r;
}

int claim_maker(int fd, const struct origin *then, int pid, uint64_t pid_start, bool any_kind,
                enum origin_verdict *where)
{
	struct origin now;
	int r = origin_here(fd, &now);

	if (r < 0)
		return r;
	*where = origin_compare(then, &now);
	if (*where != ORIGIN_OTHER && !origin_other_super(then, &now) && pid != sys_getpid() &&
	    pid_start != 0 && pid_start_time(pid) == pid_start)
		return -EWOULDBLOCK;
	return !any_kind && origin_other_kind(then, &now) ? CLAIM_OTHER_KIND : 0;
}

const char *claim_refusal(int error)
{
	switch (error) {
	case -ESTALE: return "a copy: what it holds may be older than the files; left alone";
	case CLAIM_OTHER_KIND:
		return "made on another kind of file system, as through an overlay: its program may live; left "
		       "alone; recover it there, or, if it is dead, by `fastwrite recover --force` with this name";
	case -EPERM: return "not its directory's owner's, or others may write to it; left alone";
	default: return "cannot be read; left alone";
	}
}
