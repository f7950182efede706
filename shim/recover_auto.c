// SPDX-License-Identifier: Apache-2.0
/*
 * recover_auto: recovery at open.  A directory that was looked at and has not changed since needs no second
 * look, unless an arena in it belonged to a process that still lived then.
 */
#include "recover.h"

#include "log.h"
#include "sys.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>

enum { KNOWN_MAX = 16 };

static _Atomic uint64_t known[KNOWN_MAX]; /* hash of device, inode and modification time; 0 = empty */
static _Atomic uint32_t next_place;
static _Atomic uint32_t running;

static uint64_t key_of(const struct statx *st)
{
	uint64_t h = st->stx_ino ^ ((uint64_t)st->stx_dev_major << 52) ^ ((uint64_t)st->stx_dev_minor << 40);

	h = h * 0x9e3779b97f4a7c15ull + (uint64_t)st->stx_mtime.tv_sec;
	h = h * 0x9e3779b97f4a7c15ull + st->stx_mtime.tv_nsec;
	return h ? h : 1;
}

static void note_event(void *ctx, const struct recover_event *e)
{
	(void)ctx;
	/* the program has no descriptor left: nothing is wrong with the arena, and a later open looks again */
	if (e->error == -EMFILE || e->error == -ENFILE)
		log_info("recovery: %s: no descriptor left to look into it", e->arena);
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

struct errand {
	const char *dir;
	struct recover_report report;
};

static void recover_apart(void *ctx)
{
	struct errand *w = ctx;
	struct recover_options opt = {.event = note_event};

	recover_path(w->dir, &opt, &w->report);
}

unsigned recover_dead(const char *dir)
{
	struct errand w = {.dir = dir};
	const struct recover_report *report = &w.report;
	struct statx st;
	struct timespec now;
	sys_sigset signals;
	uint64_t key;

	if (sys.statx(AT_FDCWD, dir, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) < 0)
		return 0;
	key = key_of(&st);
	if (is_known(key))
		return 0;
	signals = sys_block_signals(); /* a handler must not leave us half way */
	if (atomic_exchange(&running, 1)) {
		sys_restore_signals(signals);
		return 0; /* another thread is at it, or we are inside our own recovery */
	}
	/* the program may have locked a file that is recovered */
	sys_apart(recover_apart, &w);
	clock_gettime(CLOCK_REALTIME_COARSE, &now);
	/* only when nothing can have changed unseen: no living owner but us, and the time stamp is not of just
	 * now */
	if (report->live == report->own && report->failed == 0 && st.stx_mtime.tv_sec + 2 < now.tv_sec)
		atomic_store(&known[atomic_fetch_add(&next_place, 1) % KNOWN_MAX], key);
	atomic_store(&running, 0);
	sys_restore_signals(signals);
	return (unsigned)(report->recovered + report->orphans);
}
