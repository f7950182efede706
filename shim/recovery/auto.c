// SPDX-License-Identifier: Apache-2.0
/*
 * auto: recovery when a program opens a file.
 *
 * A directory that was examined and has not changed since needs no second look, unless an arena in it
 * belonged to another living process then.  Such a directory is looked at again when it has changed, and
 * after 50 ms.  A look asks for the locks of the living and takes none, so the program's own process can do
 * it.  Only when it finds more than the living, a process of its own recovers (sys_apart).
 *
 * Threads recover beside each other, as processes do: the locks of the arenas keep them apart, with the same
 * limits to a wait.  Nothing is left to free when a process forks, or a recovery is stopped.
 */
#include "recovery/recover.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/quote.h"
#include "base/signals.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "foreign/names.h"
#include "foreign/target.h"
#include "format/arena_format.h"
#include "format/journal_format.h"
#include "recovery/aside.h"
#include "recovery/living.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

enum { KNOWN_MAX = 16 };

static _Atomic uint64_t known[KNOWN_MAX]; /* directories to skip: hash of device, inode and time; 0 = free */
static _Atomic uint32_t next_place;

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

/* No change can go unseen: the time is not that of just now. */
static bool is_settled(const struct statx *st)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	return st->stx_mtime.tv_sec + 2 < now.tv_sec;
}

static void note_known(uint64_t key)
{
	atomic_store(&known[atomic_fetch_add(&next_place, 1) % KNOWN_MAX], key);
}

/* ---- directories where only the living stage ---- */

enum { AGAIN_NS = 50000000 };

static struct {
	_Atomic uint64_t key; /* as in `known`; 0 = free */
	_Atomic uint64_t at;  /* when it was looked at */
} calm[KNOWN_MAX];
static _Atomic uint32_t next_calm;

/* Nothing was to be recovered there less than 50 ms ago. */
static bool is_calm(uint64_t key)
{
	for (int i = 0; i < KNOWN_MAX; i++)
		if (atomic_load(&calm[i].key) == key) {
			uint64_t at = atomic_load(&calm[i].at);

			return atomic_load(&calm[i].key) == key && sys_now_ns() - at < AGAIN_NS;
		}
	return false;
}

static void note_calm(uint64_t key, uint64_t at)
{
	uint32_t i = 0;

	while (i < KNOWN_MAX && atomic_load(&calm[i].key) != key)
		i++;
	if (i == KNOWN_MAX) {
		i = atomic_fetch_add(&next_calm, 1) % KNOWN_MAX;
		atomic_store(&calm[i].key, 0);
	}
	atomic_store(&calm[i].at, at);
	atomic_store(&calm[i].key, key);
}

/* An arena or a journal of another process: its family lives, and needs no recovery. */
static bool is_living(int dirfd, const char *name)
{
	int fd = sys.openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	bool living;

	if (fd < 0)
		return fd == -ENOENT;
	living = claim_is_held(fd) && (names_is_journal(name) || living_keep_all(fd));
	sys.close(fd);
	return living;
}

static bool is_own_file(const char *name)
{
	BUFFER(char, arena);

	if (names_is_arena(name))
		return claim_is_own(name);
	journal_arena_of(name, arena);
	return claim_is_own(arena);
}

/* *others: arenas and journals of other processes.  True if there are arenas, and all belong to the living.
 */
static bool all_live(int dirfd, uint32_t *others)
{
	BUFFER(char, buf);
	struct sys_dir entries = {.fd = dirfd, .buf = buf, .size = BUFFER_BYTES};
	const struct sys_dirent *d;
	uint32_t own = 0;

	*others = 0;
	while ((d = sys_dir_next(&entries)) != NULL) {
		if (strcmp(d->name, RECOVER_ASIDE) == 0)
			return false; /* (a recovery reports it) */
		if (!names_is_arena(d->name) && !names_is_journal(d->name))
			continue;
		if (is_own_file(d->name)) {
			own++;
			continue;
		}
		if (!is_living(dirfd, d->name))
			return false;
		++*others;
	}
	return entries.filled == 0 && own + *others > 0;
}

/* Looks at the directory *st.  True if nothing there is to be recovered.  In doubt, and in places that other
 * users may write to, false: then a process of its own finds out. */
static bool look(int dirfd, const char *dir, const struct statx *st, uint64_t key)
{
	uint64_t begin = sys_now_ns();
	bool settled = is_settled(st);
	sys_sigset signals;
	uint32_t others;
	struct statx now;
	bool live;
	int fd;

	if (st->stx_uid != sys_geteuid() || (st->stx_mode & 022))
		return false;
	signals = signals_block();
	claim_look_begin();
	fd = sys.openat(dirfd, dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	live = fd >= 0 && sys.statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &now) == 0 &&
	       key_of(&now) == key && all_live(fd, &others);
	if (fd >= 0)
		sys.close(fd);
	claim_look_end();
	sys_restore_signals(signals);
	if (live && others == 0 && settled)
		note_known(key);
	else if (live)
		note_calm(key, begin);
	return live;
}

/* As recover_needed; *st: of the directory. */
static uint64_t needed(int dirfd, const char *dir, struct statx *st)
{
	uint64_t key;

	if (sys.statx(dirfd, dir, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, st) < 0)
		return 0;
	key = key_of(st);
	return is_known(key) || is_calm(key) || look(dirfd, dir, st, key) ? 0 : key;
}

uint64_t recover_needed(int dirfd, const char *dir)
{
	struct statx st;

	return needed(dirfd, dir, &st);
}

/* ---- arenas of another user ---- */

/* The most that an open by root does for another user. */
enum { BUDGET_ARENAS = 64, BUDGET_TIMES_MEM = 4, BUDGET_SAID = 8 };
static const uint64_t budget_least_bytes = 64 << 20;
enum { BUDGET_MS = 2000 };

struct run {
	const char *dir;
	struct recover_report report;
	bool budget;
	bool over;
	uint64_t bytes; /* the most to be read */
	uint32_t said;  /* messages so far */
};

/* Arenas and logs that no later try can recover and that this process has named, by the hash of their paths.
 */
static _Atomic uint64_t named[KNOWN_MAX];
static _Atomic uint32_t next_named;

static void tell_once(const struct recover_event *e)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (const char *p = e->arena; *p; p++)
		h = (h ^ (uint8_t)*p) * 0x100000001b3ull;
	for (int i = 0; i < KNOWN_MAX; i++)
		if (atomic_load(&named[i]) == h)
			return;
	atomic_store(&named[atomic_fetch_add(&next_named, 1) % KNOWN_MAX], h);
	log_warn("recovery: %s: %s", e->arena, e->detail);
}

static void note_event(void *ctx, const struct recover_event *e)
{
	struct run *w = ctx;

	if (e->error == FORMAT_NEWER || (e->error == CLAIM_OTHER_KIND && !e->target[0])) {
		tell_once(e);
		return;
	}
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
	BUFFER(char, word);

	if (is_told(st))
		return;
	atomic_store(&told[atomic_fetch_add(&told_next, 1) % KNOWN_MAX], place_of(st));
	log_warn("bytes of user %u %s %s: let that user or root run `fastwrite recover %s`", st->stx_uid, why,
	         dir, quote_word(word, BUFFER_BYTES, dir));
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
	uint64_t give_up = sys_now_ns() + BUDGET_MS * 1000000ull, bytes = 0;
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
	/* (waits for what others hold: the next open would wait again) */
	if (w->report.live + w->report.failed > w->report.own)
		w->over |= sys_now_ns() > give_up;
	sys.munmap(l, sizeof *l);
}

static void recover_apart(void *ctx)
{
	struct run *w = ctx;
	struct recover_options opt = {.event = note_event, .ctx = w};

	recover_target_patience(w->budget ? BUDGET_MS : LEASE_PATIENCE_MS);
	claim_give_up(w->budget ? sys_now_ns() + BUDGET_MS * 1000000ull : CLAIM_FOREVER);
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
	sys_sigset signals;
	uint64_t key = needed(AT_FDCWD, dir, &st), begin;
	bool settled;

	if (!key || !is_allowed(&w, &st, target, mem_bytes))
		return 0;
	signals = signals_block(); /* (a signal handler must not leave a recovery half way) */
	begin = sys_now_ns();
	settled = is_settled(&st);
	/* in a process of its own: the program may hold POSIX locks on a file that is recovered */
	sys_apart(recover_apart, &w);
	if (w.over)
		tell(dir, &st, "are more than an open recovers, in");
	/* (such a one stays so) */
	if (report->failed == report->beyond && !w.over) {
		if (report->live == report->own && settled)
			note_known(key);
		else if (report->live > 0)
			note_calm(key, begin);
	}
	sys_restore_signals(signals);
	return (unsigned)(report->recovered + report->orphans + report->elsewhere);
}
