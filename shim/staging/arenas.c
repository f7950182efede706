// SPDX-License-Identifier: Apache-2.0
/* arenas: see staging/arenas.h. */
#include "staging/arenas.h"

#include "base/buffer.h"
#include "base/internal_fd.h"
#include "base/log.h"
#include "base/process_pages.h"
#include "base/signals.h"
#include "base/sys.h"
#include "config/config.h"
#include "files/family.h"
#include "staging/arena.h"
#include "staging/memory_limit.h"
#include "staging/registry.h"
#include "staging/stats.h"
#include "staging/takeover.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/fscrypt.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { ARENAS_MAX = 32 };

static PROCESS_DATA struct {
	struct lock lock; /* LOCK_ATTACH */
	struct {
		struct arena *arena;      /* in shared memory; NULL = free, or refused */
		int fd;                   /* this process's descriptor of it */
		_Atomic uint32_t claimed; /* a thread fills it */
		/* no arena could be made: files are bypassed, which is reported once */
		const struct rule *refused;
		uint64_t refused_dev;
	} entries[ARENAS_MAX];
	_Atomic uint32_t count;
} arenas;

PROCESS_CODE void arenas_lock(void) { lock_take(&arenas.lock, LOCK_ATTACH); }
bool arenas_try(void) { return lock_try(&arenas.lock, lock_self()); }
PROCESS_CODE void arenas_unlock(void) { lock_drop(&arenas.lock, LOCK_ATTACH); }
void arenas_unlock_tried(void) { lock_drop_fast(&arenas.lock, lock_self()); }

PROCESS_CODE uint32_t arenas_count(void) { return arenas.count; }
struct arena *arenas_at(uint32_t i) { return arenas.entries[i].arena; }

int arenas_staging_dir(const struct rule *rule, const char *path, uint64_t dev, char *out)
{
	struct statx st;
	size_t n;

	if (rule->set.staging[0]) {
		log_format(out, PATH_MAX, "%s", rule->set.staging);
		return 0;
	}
	/* the rule's own directory if it can have the staging directory, else the file's */
	if (strcmp(rule->prefix, "/") != 0 && rule->prefix[0] &&
	    sys.statx(AT_FDCWD, rule->prefix, 0, STATX_BASIC_STATS, &st) == 0 && sys_dev_of(&st) == dev &&
	    sys_raw(SYS_faccessat, AT_FDCWD, (long)rule->prefix, 2 /* W_OK */, 0, 0, 0) == 0) {
		n = log_format(out, PATH_MAX, "%s/" ARENA_DIR, rule->prefix);
	} else {
		const char *slash = strrchr(path, '/');

		n = (size_t)(slash - path);
		if (n + sizeof ARENA_DIR + 1 >= PATH_MAX)
			return -ENAMETOOLONG;
		memcpy(out, path, n);
		memcpy(out + n, "/" ARENA_DIR, sizeof ARENA_DIR + 1);
		n = 0;
	}
	return n + 1 >= PATH_MAX ? -ENAMETOOLONG : 0;
}

/* True if this process may stage such a file there.  An arena belongs to its maker: a process with the
 * maker's rights can read and forge it. */
static bool arena_fits(const struct arena *a, const struct rule *rule, uint64_t dev)
{
	/* a staging directory that the user chose may lie on another file system */
	return a->rule == rule && (a->dev == dev || rule->set.staging[0]) && a->uid == sys_geteuid() &&
	       a->gid == sys_getegid();
}

static struct arena *arena_find(const struct rule *rule, uint64_t dev, bool *refused)
{
	for (uint32_t i = 0; i < arenas.count; i++) {
		struct arena *a = arenas.entries[i].arena;

		if (a && arena_fits(a, rule, dev))
			return a;
		if (arenas.entries[i].refused == rule &&
		    (arenas.entries[i].refused_dev == dev || rule->set.staging[0])) {
			*refused = true;
			return NULL;
		}
	}
	return NULL;
}

/* Why nothing can be staged in a directory, and what to do about it. */
static const struct {
	int error;
	const char *text, *cure;
} refusals[] = {
	{EPERM, "the directory belongs to somebody else, or others may write to it",
         "give it to this user, with mode 0700, or "},
	{EACCES, "Permission denied (EACCES)", "let this user write there, or "},
	{ENOENT, "No such file or directory (ENOENT)", "make the directory that it is to be in, or "},
	{ENOTDIR, "Not a directory (ENOTDIR)", "remove what is in its place, or "},
	{ELOOP, "a symbolic link (ELOOP)", "remove what is in its place, or "},
	{ENOSPC, "No space left on device (ENOSPC)", "free some, set a smaller `mem`, or "},
	{EDQUOT, "Disk quota exceeded (EDQUOT)", "free some space, set a smaller `mem`, or "},
	{ENOMEM, "Cannot allocate memory (ENOMEM)", "set a smaller `mem`, or "},
	{EROFS, "Read-only file system (EROFS)", ""},
	{EIO, "Input/output error (EIO)", ""},
	{EOPNOTSUPP, "fallocate is not supported there (EOPNOTSUPP)", ""},
	{-ARENA_COPIES, "a file system that copies on write", ""},
};

/* Reports it once for all processes of `fastwrite run`, else once for each. */
static void say_refused(const struct rule *rule, const char *dir, int r)
{
	const char *text = "it cannot be used", *cure = "";
	char number[32];

	if (!registry_say_once(rule->name, -r))
		return;
	log_format(number, sizeof number, " (error %d)", -r);
	for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
		if (refusals[i].error != -r)
			continue;
		text = refusals[i].text;
		cure = refusals[i].cure;
		number[0] = '\0';
	}
	log_warn(
		"rule %s: no staging in %s: %s%s; its files are bypassed: %sset `staging` to another directory",
		rule->name, dir, text, number, cure);
}

/* Maps an arena for entry i of the table, which the caller has claimed.  0 or -errno. */
static int join(uint32_t i, struct arena *a)
{
	int fd = arena_join(a);

	if (fd < 0)
		return fd;
	arenas.entries[i].fd = fd;
	takeover_joined(a);
	arenas.entries[i].arena = a;
	family_set_add(&a->members, family_me);
	return 0;
}

/* Claims an entry of the table.  Only for a thread with LOCK_ATTACH, or with the lock of a file whose arena
 * is not mapped. */
static int claim_entry(void)
{
	for (uint32_t i = 0; i < ARENAS_MAX; i++) {
		uint32_t expected = 0;

		if (!arenas.entries[i].arena && !arenas.entries[i].refused &&
		    atomic_compare_exchange_strong(&arenas.entries[i].claimed, &expected, 1)) {
			uint32_t seen = atomic_load(&arenas.count);

			while (seen <= i && !atomic_compare_exchange_weak(&arenas.count, &seen, i + 1))
				;
			return (int)i;
		}
	}
	return -1;
}

struct join {
	const struct rule *rule;
	uint64_t dev;
	struct arena *found;
};

static void visit_join(struct arena *a, void *ctx)
{
	struct join *j = ctx;

	if (!j->found && atomic_load(&a->ready) && a->placed && arena_fits(a, j->rule, j->dev))
		j->found = a;
}

/* Maps the arena that another process has for this rule.  NULL: none, or *busy. */
static struct arena *arena_of_family(const struct rule *rule, uint64_t dev, bool *busy)
{
	struct join j = {.rule = rule, .dev = dev};
	struct family *m = file_family();
	int i;

	if (!family_is_shared())
		return NULL;
	/* the lock's holder may be about to remove an arena; only tried, because a file lock is held here */
	*busy = !lock_try(&m->lock, lock_self());
	if (*busy)
		return NULL;
	file_arena_for_each(visit_join, &j);
	if (j.found) {
		i = claim_entry();
		if (i >= 0 && join((uint32_t)i, j.found) < 0)
			j.found = NULL;
		if (i >= 0)
			atomic_store(&arenas.entries[i].claimed, 0);
		else
			j.found = NULL;
	}
	lock_drop_fast(&m->lock, lock_self());
	return j.found;
}

/* 0, or -errno. */
int arenas_join(const struct file *f)
{
	int i = f->arena->placed ? claim_entry() : -1;
	int r = -EACCES;

	if (i < 0)
		return r;
	r = join((uint32_t)i, f->arena);
	atomic_store(&arenas.entries[i].claimed, 0);
	return r;
}

/* Where a new arena must be mapped so that other processes can map it, too.  NULL if no process has forked,
 * or no place is left. */
static void find_place(const struct arena *a, struct arena_place *place)
{
	const struct family *m = file_family();
	uint32_t i = file_arena_index(a);

	if (!m->places || i >= m->place_count)
		return;
	place->map = m->places + i * m->place_bytes;
	place->runs = m->runs + i * m->runs_bytes;
}

bool arenas_try_later(int error)
{
	return error == -EMFILE || error == -ENFILE || error == -EFBIG || error == -EAGAIN;
}

static struct arena *arena_open(const struct rule *rule, const char *path, uint64_t dev, bool *later)
{
	static _Atomic bool says[CONFIG_RULES_MAX];
	_Atomic bool *said = &says[rule - live_config->rules];
	struct arena_place place = {0};
	BUFFER(char, dir);
	struct arena *a;
	int i = claim_entry();
	int r;

	*later = false;
	if (i < 0)
		return NULL;
	a = file_arena_take();
	if (!a) {
		atomic_store(&arenas.entries[i].claimed, 0);
		return NULL;
	}
	find_place(a, &place);
	r = arenas_staging_dir(rule, path, dev, dir);
	if (r == 0)
		r = arena_create_at(a, dir, rule, &place);
	if (r < 0) {
		file_arena_give(a);
		/* (a full disk may have room again) */
		*later = arenas_try_later(r) || r == -ENOSPC || r == -EDQUOT;
		if (!*later) {
			arenas.entries[i].refused = rule;
			arenas.entries[i].refused_dev = dev;
		}
		if (!arenas_try_later(r) && !atomic_exchange(said, true))
			say_refused(rule, dir, r);
		atomic_store(&arenas.entries[i].claimed, 0);
		return NULL;
	}
	atomic_store(said, false);
	family_set_add(&a->members, family_me);
	memory_limit_check(a->fd, a->total_bytes, a->dir);
	arenas.entries[i].fd = a->fd;
	takeover_joined(a);
	arenas.entries[i].arena = a;
	atomic_store(&arenas.entries[i].claimed, 0);
	atomic_store(&a->ready, true);
	return a;
}

PROCESS_CODE int arenas_fd(const struct arena *a)
{
	for (uint32_t i = 0; i < arenas.count; i++)
		if (arenas.entries[i].arena == a)
			return arenas.entries[i].fd;
	return -1;
}

PROCESS_CODE struct arena *arenas_close_begin(uint32_t i)
{
	struct arena *a = arenas.entries[i].arena;
	struct family *m = file_family();

	if (!a)
		return NULL;
	lock_take(&m->lock, LOCK_FAMILY);
	/* Of processes that end at the same time, each takes the others for gone.  One of them has removed
	 * the arena, and the structure may belong to another arena by now. */
	if (!atomic_load(&a->ready) || !family_set_has(&a->members, family_me)) {
		arenas.entries[i].arena = NULL;
		lock_drop(&m->lock, LOCK_FAMILY);
		return NULL;
	}
	/* bytes that could not be flushed wait there for `fastwrite recover` */
	if (a->entries_used > 0 || family_set_others(&a->members)) {
		lock_drop(&m->lock, LOCK_FAMILY);
		return NULL;
	}
	atomic_store(&a->ready, false);
	arenas.entries[i].arena = NULL;
	a->fd = arenas.entries[i].fd;
	stats_add(a);
	return a;
}

void arenas_close_end(struct arena *a)
{
	arena_destroy(a);
	file_arena_give(a);
	lock_drop(&file_family()->lock, LOCK_FAMILY);
}

void arenas_wait_thawed(void)
{
	int fds[ARENAS_MAX];
	uint32_t n = 0;

	if (!arenas_try())
		return;
	for (uint32_t i = 0; i < arenas.count; i++)
		if (arenas.entries[i].arena && arenas.entries[i].arena->entries_used == 0)
			fds[n++] = arenas.entries[i].fd;
	arenas_unlock_tried();
	for (uint32_t i = 0; i < n; i++)
		sys_wait_thawed(fds[i]);
}

struct arena *arenas_for(struct file *f, const char *path, bool *busy, bool *later)
{
	bool refused = false;
	struct arena *a = arena_find(f->rule, f->dev, &refused);

	if (a || refused)
		return a;
	signals_harden();
	a = arena_of_family(f->rule, f->dev, busy);
	return a || *busy ? a : arena_open(f->rule, path, f->dev, later);
}

bool arenas_mapped_by_all(const struct file *f, const struct arena *a)
{
	for (const struct ofd *o = f->ofds; o; o = o->next)
		if (family_set_count(&o->holders) > 1 && !family_set_within(&o->holders, &a->members))
			return false;
	return true;
}

/* The policy by which the file system encrypts the file; its size, or -errno. */
static long encryption_of(int fd, struct fscrypt_get_policy_ex_arg *policy)
{
	long r;

	memset(policy, 0, sizeof *policy);
	policy->policy_size = sizeof policy->policy;
	r = sys_raw(SYS_ioctl, fd, FS_IOC_GET_ENCRYPTION_POLICY_EX, (long)policy, 0, 0, 0);
	return r < 0 ? r : (long)policy->policy_size;
}

bool arenas_may_hold(const struct arena *a, const struct file *f, int fd, const struct statx *st)
{
	static _Atomic bool told;
	struct fscrypt_get_policy_ex_arg here, there;
	long size;

	if (!(st->stx_attributes & STATX_ATTR_ENCRYPTED))
		return true;
	size = encryption_of(fd, &there);
	if (size > 0 && encryption_of(arenas_fd(a), &here) == size &&
	    memcmp(&here.policy, &there.policy, (size_t)size) == 0)
		return true;
	if (!atomic_exchange(&told, true))
		log_warn(
			"rule %s: encrypted files are not staged in %s, which is not encrypted, or by another key; they are bypassed",
			f->rule->name, a->dir);
	return false;
}

bool arenas_move_fd(int fd)
{
	sys_sigset signals = signals_block();
	bool moved = false;

	arenas_lock();
	for (uint32_t i = 0; i < arenas.count && !moved; i++) {
		if (arenas.entries[i].arena && arenas.entries[i].fd == fd) {
			int other = takeover_move_fd(internal_fd_move, fd);

			if (other >= 0)
				arenas.entries[i].fd = other;
			moved = other >= 0;
		}
	}
	arenas_unlock();
	sys_restore_signals(signals);
	return moved;
}

void arenas_prepare(const struct rule *rule, const char *path, uint64_t dev)
{
	bool refused = false, later;

	if (!arena_find(rule, dev, &refused) && !refused)
		arena_open(rule, path, dev, &later);
}

void arenas_share(uint32_t member)
{
	for (uint32_t i = 0; i < arenas.count; i++)
		if (arenas.entries[i].arena)
			family_set_add(&arenas.entries[i].arena->members, member);
}

PROCESS_CODE void arenas_fork_child(void)
{
	arenas.lock.word = 0;
	for (uint32_t i = 0; i < ARENAS_MAX; i++)
		arenas.entries[i].claimed = 0;
	takeover_forked();
}

/* Address space counts against the limit although nothing is in it.  (Without places processes of the family
 * cannot map an arena that another one makes later, and files in it are written through.) */
static bool has_address_space(uint64_t bytes)
{
	enum { SHARE = 8 };
	struct rlimit limit;

	return sys_raw(SYS_prlimit64, 0, RLIMIT_AS, 0, (long)&limit, 0, 0) == 0 &&
	       (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur / SHARE);
}

void arenas_reserve_places(void)
{
	struct family *m = file_family();
	struct arena_header geometry;
	uint64_t most = 0, runs_bytes = 0;
	void *places, *runs;

	if (m->places)
		return; /* of a family that ended when one process was left */
	for (uint32_t i = 0; i < live_config->rule_count; i++) {
		const struct rule *rule = &live_config->rules[i];

		if (!arena_rule_geometry(rule, &geometry))
			continue;
		if (geometry.total_bytes > most)
			most = geometry.total_bytes;
		if (arena_runs_bytes(&geometry) > runs_bytes)
			runs_bytes = arena_runs_bytes(&geometry);
	}
	most = (most + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
	m->runs_bytes = (runs_bytes + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE;
	m->place_bytes = most;
	m->place_count = live_config->rule_count < FAMILY_PLACES / FAMILY_PLACES_OF_RULE
	                         ? live_config->rule_count * FAMILY_PLACES_OF_RULE
	                         : FAMILY_PLACES;
	if (!has_address_space(most * m->place_count))
		return;
	places = sys.mmap(NULL, most * m->place_count, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
	                  -1, 0);
	if (sys_is_error(places))
		return;
	runs = sys.mmap(NULL, m->runs_bytes * m->place_count, PROT_READ | PROT_WRITE,
	                MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (sys_is_error(runs)) {
		sys.munmap(places, most * m->place_count);
		return;
	}
	m->runs = runs;
	m->places = places;
}

/* Gives up the places that arenas_reserve_places made. */
static void forget_places(bool keep)
{
	const struct family *m = file_family();

	if (!m || !m->places)
		return;
	if (keep) {
		sys_make_private(m->runs, m->runs_bytes * m->place_count);
		return;
	}
	sys.munmap(m->places, m->place_bytes * m->place_count);
	sys.munmap(m->runs, m->runs_bytes * m->place_count);
}

void arenas_forget(bool keep_mapped)
{
	for (uint32_t i = 0; i < arenas.count; i++)
		if (arenas.entries[i].arena)
			arena_forget(arenas.entries[i].arena, keep_mapped ? arenas.entries[i].fd : -1);
	memset(&arenas, 0, sizeof arenas);
	forget_places(keep_mapped);
	takeover_forked();
}

void arenas_forget_refused(void)
{
	arenas_lock();
	for (uint32_t i = 0; i < arenas.count; i++)
		arenas.entries[i].refused = NULL;
	arenas_unlock();
}
