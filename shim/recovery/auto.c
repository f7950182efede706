// SPDX-License-Identifier: Apache-2.0
/*
 * auto: recovery when a program opens a file.  A directory that was examined and has not changed since needs
 * no second look, unless an arena in it belonged to a living process then.
 */
#include "recovery/recover.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/sys.h"
#include "format/arena_format.h"
#include "recovery/names.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { KNOWN_MAX = 16 };

static _Atomic uint64_t known[KNOWN_MAX]; /* directories to skip: hash of device, inode and time; 0 = free */
static _Atomic uint32_t next_place;
static _Atomic uint32_t running;

static uint64_t key_of(const struct statx *st)
{
	uint64_t h = st->stx_ino ^ ((uint64_t)st->stx_dev_major << 52) ^ ((uint64_t)st->stx_dev_minor << 40);

	h = h * 0x9e3779b97f4a7c15ull + (uint64_t)st->stx_mtime.tv_sec;
	h = h * 0x9e3779b97f4a7c15ull + st->stx_mtime.tv_nsec;
	return h ? h : 1;
}

static bool is_known(uint64_t key)
{
	for (int i = 0; i < KNOWN_MAX; i++)
		if (atomic_load(&known[i]) == key)
			return true;
	return false;
}

uint64_t recover_needed(int dirfd, const char *dir)
{
	struct statx st;
	uint64_t key;

	if (sys.statx(dirfd, dir, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) < 0)
		return 0;
	key = key_of(&st);
	return is_known(key) ? 0 : key;
}

/* ---- arenas of another user ---- */

/* The most that an open by root does for another user. */
enum { BUDGET_ARENAS = 64, BUDGET_TIMES_MEM = 4, BUDGET_SAID = 8 };
static const uint64_t budget_least_bytes = 64 << 20;
static const uint64_t budget_ns = 2000000000;

struct run {
	const char *dir;
	struct recover_report report;
	bool budget;
	bool over;
	uint64_t bytes; /* the most to be read */
	uint32_t said;  /* messages so far */
};

static void note_event(void *ctx, const struct recover_event *e)
{
	struct run *w = ctx;

	/* (messages of one second are limited; keep some for what stays) */
	if (w->budget && ++w->said > BUDGET_SAID)
		return;
	/* the program has no descriptor left: nothing is wrong with the arena, a later open tries again */
	if (e->error == -EMFILE || e->error == -ENFILE)
		log_info("recovery: %s: no descriptor left to read it", e->arena);
	else if (e->error)
		log_warn("recovery: %s %s: %s (error %d) %s", e->arena, e->target, e->action, -e->error,
		         e->detail);
	else if (strcmp(e->action, "aside") == 0)
		log_warn("recovery: %s: %llu bytes of a process that died are put aside: %s", e->target,
		         (unsigned long long)e->bytes, e->detail);
	else if (strcmp(e->action, "live") != 0 && e->bytes > 0)
		log_warn("recovery: %s: %s, %llu bytes of a process that died %s", e->target, e->action,
		         (unsigned long long)e->bytes, e->detail);
}

static _Atomic uint64_t told[KNOWN_MAX]; /* directories, see is_told */
static _Atomic uint32_t told_next;

static uint64_t place_of(const struct statx *st)
{
	return (st->stx_ino ^ ((uint64_t)st->stx_dev_major << 52) ^ ((uint64_t)st->stx_dev_minor << 40)) + 1;
}

/* This process has logged that something in the directory is left to the command. */
static bool is_told(const struct statx *st)
{
	for (int i = 0; i < KNOWN_MAX; i++)
		if (atomic_load(&told[i]) == place_of(st))
			return true;
	return false;
}

static void tell(const char *dir, const struct statx *st, const char *why)
{
	if (is_told(st))
		return;
	atomic_store(&told[atomic_fetch_add(&told_next, 1) % KNOWN_MAX], place_of(st));
	log_warn("bytes of user %u %s %s: let that user or root run `fastwrite recover %s`", st->stx_uid, why,
	         dir, dir);
}

static bool owns(uint32_t uid, int dirfd, const char *path)
{
	struct statx st;

	return sys.statx(dirfd, path, AT_EMPTY_PATH, STATX_UID, &st) == 0 && st.stx_uid == uid;
}

/* The user could make root's program work on files of theirs by other means, too. */
static bool is_in_its_place(const char *dir, uint32_t uid, int target)
{
	BUFFER(char, parent);

	return log_format(parent, PATH_MAX, "%s/..", dir) + 1 < PATH_MAX &&
	       (owns(uid, AT_FDCWD, parent) || (target >= 0 && owns(uid, target, "")));
}

/* The oldest names, in the order of recover_path. */
static void list_fill(struct name_list *l, const char *dir, uint64_t give_up)
{
	BUFFER(char, buf);
	int dirfd = sys.openat(AT_FDCWD, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;

	if (dirfd < 0)
		return;
	while (!(l->over |= sys_now_ns() > give_up) && (d = sys_dir_next(&entries)) != NULL)
		if (names_time(d->name) != 0 && strlen(d->name) < ARENA_FILE_NAME_MAX)
			names_put(l, d->name);
	sys.close(dirfd);
}

/* One after the other, until the budget of an open is spent. */
static void recover_some(struct run *w, const struct recover_options *opt)
{
	uint64_t give_up = sys_now_ns() + budget_ns, bytes = 0;
	struct name_list *l =
		sys.mmap(NULL, sizeof *l, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	BUFFER(char, path);

	if (sys_is_error(l))
		return;
	l->room = BUDGET_ARENAS;
	list_fill(l, w->dir, give_up);
	w->over = l->over;
	for (uint32_t i = 0; i < l->count; i++) {
		uint64_t live = w->report.live;
		struct statx st;

		log_format(path, PATH_MAX, "%s/%s", w->dir, l->entries[i].name);
		if (sys.statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_SIZE, &st) < 0)
			continue; /* (a journal that was removed with its arena) */
		if (bytes + st.stx_size > w->bytes || sys_now_ns() > give_up) {
			w->over = true;
			break;
		}
		recover_path(path, opt, &w->report);
		if (w->report.live == live)
			bytes += st.stx_size;
	}
	sys.munmap(l, sizeof *l);
}

static void recover_apart(void *ctx)
{
	struct run *w = ctx;
	struct recover_options opt = {.event = note_event, .ctx = w};

	if (w->budget)
		recover_some(w, &opt);
	else
		recover_path(w->dir, &opt, &w->report);
}

/* May this process recover there on its own?  Logs when not.  (noinline: keeps the stack of a recovery small)
 */
__attribute__((noinline)) static bool is_allowed(struct run *w, const struct statx *st, int target,
                                                 uint64_t mem_bytes)
{
	uint32_t me = sys_geteuid();

	if (st->stx_uid == me)
		return true;
	/* (the process has one budget, however often it looks) */
	if (is_told(st))
		return false;
	if (me != 0 || !is_in_its_place(w->dir, st->stx_uid, target)) {
		/* (only when the program opens a file there: then the owner of the file is known) */
		if (target >= 0)
			tell(w->dir, st, me ? "may wait in" : "are not recovered at an open, in");
		return false;
	}
	w->budget = true;
	w->bytes = mem_bytes * BUDGET_TIMES_MEM > budget_least_bytes ? mem_bytes * BUDGET_TIMES_MEM
	                                                             : budget_least_bytes;
	return true;
}

unsigned recover_dead(const char *dir, int target, uint64_t mem_bytes)
{
	struct run w = {.dir = dir};
	const struct recover_report *report = &w.report;
	struct statx st;
	struct timespec now;
	sys_sigset signals;
	uint64_t key;

	if (sys.statx(AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) < 0)
		return 0;
	key = key_of(&st);
	if (is_known(key) || !is_allowed(&w, &st, target, mem_bytes))
		return 0;
	signals = sys_block_signals(); /* (a signal handler must not leave a recovery half way) */
	if (atomic_exchange(&running, 1)) {
		sys_restore_signals(signals);
		return 0; /* another thread recovers, or we are inside our own recovery */
	}
	/* in a process of its own: the program may hold POSIX locks on a file that is recovered */
	sys_apart(recover_apart, &w);
	if (w.over)
		tell(dir, &st, "are more than an open recovers, in");
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	/* only when no change can go unseen: no other process lives, and the time is not that of just now */
	if (report->live == report->own && report->failed == 0 && !w.over &&
	    st.stx_mtime.tv_sec + 2 < now.tv_sec)
		atomic_store(&known[atomic_fetch_add(&next_place, 1) % KNOWN_MAX], key);
	atomic_store(&running, 0);
	sys_restore_signals(signals);
	return (unsigned)(report->recovered + report->orphans);
}
