// SPDX-License-Identifier: Apache-2.0
/*
 * fuzz_arena: whatever stands in an arena file, recovery ends, writes nothing but staged bytes into nothing but the
 * files that the slots name, and when it failed in the middle, running it again brings what it would have brought.
 */
#include "recipe.h"

#include "recover.h"

enum { LOOK_MAX = 256 << 10, ORPHANS_MAX = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- faults: one call of one kind fails, once ---- */

static struct {
	unsigned kind, at, seen;
	int error;
	size_t most; /* > 0: a short write instead of an error */
} arena_fault;

enum {
	FAULT_PWRITE,
	FAULT_WRITE,
	FAULT_FDATASYNC,
	FAULT_OPENAT,
	FAULT_MKDIRAT,
	FAULT_STATX,
	FAULT_PREAD,
	FAULT_KINDS
};

static bool arena_fault_due(unsigned kind)
{
	return arena_fault.at && arena_fault.kind == kind && ++arena_fault.seen == arena_fault.at;
}

/* Short by so much, and the call behind it fails: a disk that gets full. */
static size_t arena_fault_cut(size_t n)
{
	size_t most = arena_fault.most;

	if (most == 0 || n <= most)
		return 0;
	arena_fault.at++;
	arena_fault.most = 0;
	return most;
}

static ssize_t arena_pwrite(int fd, const void *buf, size_t n, off_t at)
{
	size_t cut;

	if (!arena_fault_due(FAULT_PWRITE))
		return sys_kernel.pwrite(fd, buf, n, at);
	cut = arena_fault_cut(n);
	return cut ? sys_kernel.pwrite(fd, buf, cut, at) : -arena_fault.error;
}

static ssize_t arena_write(int fd, const void *buf, size_t n)
{
	size_t cut;

	if (!arena_fault_due(FAULT_WRITE))
		return sys_kernel.write(fd, buf, n);
	cut = arena_fault_cut(n);
	return cut ? sys_kernel.write(fd, buf, cut) : -arena_fault.error;
}

static int arena_fdatasync(int fd)
{
	return arena_fault_due(FAULT_FDATASYNC) ? -arena_fault.error : sys_kernel.fdatasync(fd);
}

static int arena_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	return arena_fault_due(FAULT_OPENAT) ? -arena_fault.error
	                                     : sys_kernel.openat(dirfd, path, flags, mode);
}

static int arena_mkdirat(int dirfd, const char *path, mode_t mode)
{
	return arena_fault_due(FAULT_MKDIRAT) ? -arena_fault.error : sys_kernel.mkdirat(dirfd, path, mode);
}

static int arena_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	return arena_fault_due(FAULT_STATX) ? -arena_fault.error
	                                    : sys_kernel.statx(dirfd, path, flags, mask, out);
}

static ssize_t arena_pread(int fd, void *buf, size_t n, off_t at)
{
	return arena_fault_due(FAULT_PREAD) ? -arena_fault.error : sys_kernel.pread(fd, buf, n, at);
}

static void arena_fault_set(const struct recipe *r)
{
	static const int errors[] = {ENOSPC, EIO, EDQUOT, EROFS, EACCES, EPERM, EFBIG, ENOMEM};

	sys = sys_kernel;
	arena_fault.at = 0;
	if (!r)
		return;
	arena_fault.kind = r->faults[0] % FAULT_KINDS;
	arena_fault.at = r->faults[1];
	arena_fault.seen = 0;
	arena_fault.error = errors[r->faults[2] % 8];
	arena_fault.most = r->faults[3];
	if (getenv("FASTWRITE_FUZZ_SHOW"))
		fprintf(stderr, "call %u number %u, error %d, short by %zu\n", arena_fault.kind,
		        arena_fault.at, arena_fault.error, arena_fault.most);
	sys.pwrite = arena_pwrite;
	sys.write = arena_write;
	sys.fdatasync = arena_fdatasync;
	sys.openat = arena_openat;
	sys.mkdirat = arena_mkdirat;
	sys.statx = arena_statx;
	sys.pread = arena_pread;
}

/* ---- the world around the arena ---- */

static void arena_world_change(unsigned what)
{
	char from[512], to[512];
	int t = what / 16 % WORLD_TARGETS;
	struct statx st;

	snprintf(from, sizeof from, "%s", world_target_path(t));
	snprintf(to, sizeof to, "%s", world_path("data/moved"));
	/* a change before this one may have put something else there */
	if (statx(AT_FDCWD, from, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) != 0 || !S_ISREG(st.stx_mode))
		return;
	switch (what % 16) {
	case 0: unlink(from); break;
	case 1: rename(from, to); break;
	case 2:
		rename(from, to);
		symlink("../outside/victim", from);
		break;
	case 3:
		unlink(from);
		mkfifo(from, 0644);
		break;
	case 4:
		unlink(from);
		mkdir(from, 0755);
		break;
	case 5:
		rename(from, to);
		close(open(from, O_WRONLY | O_CREAT | O_EXCL, 0644));
		truncate(from, 7);
		break;
	case 6: symlink("../../outside/dir", world_path("data/.fastwrite/orphans")); break;
	case 7: close(open(world_path("data/.fastwrite/orphans"), O_WRONLY | O_CREAT, 0644)); break;
	case 8: symlink("../../outside/victim", world_path("data/.fastwrite/2-fuzz-1.arena")); break;
	case 9: mkfifo(world_path("data/.fastwrite/3-fuzz-1.arena"), 0600); break;
	case 10: mkdir(world_path("data/.fastwrite/4-fuzz-1.arena"), 0700); break;
	case 11: chown(world_path("data/.fastwrite/" FUZZ_ARENA), 1000, 1000); break;
	case 12: chmod(world_path("data/.fastwrite"), 0777); break;
	case 13: mkdir(world_path("data/.fastwrite/orphans"), 0700); break;
	case 14: truncate(from, 5000000000); break;
	default: chmod(from, 0); break;
	}
}

/* The arena became another user's, who may not write to the targets and put nothing aside. */
static bool arena_other_owner(void)
{
	struct statx st;

	return statx(AT_FDCWD, world_path("data/.fastwrite/" FUZZ_ARENA), 0, STATX_UID, &st) == 0 &&
	       st.stx_uid != geteuid();
}

/* Everything that recovery may have changed. */
struct outcome {
	long length[WORLD_TARGETS];
	uint64_t size[WORLD_TARGETS];
	uint8_t *bytes[WORLD_TARGETS];
	uint64_t orphan_bytes; /* sum over the bytes of all orphans */
};

static const char *arena_where(int t)
{
	static const char *const names[] = {"data/t0", "data/t1", "data/t2", "data/moved"};
	struct statx st;

	for (int i = 0; i < 4; i++) {
		const char *path = world_path(names[i]);

		if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) == 0 &&
		    st.stx_ino == world_targets[t].ino && S_ISREG(st.stx_mode))
			return path;
	}
	return NULL;
}

static bool arena_is_staged(uint8_t byte) { return byte == 0 || (byte & 0x80); }

static uint64_t arena_orphans(const struct recipe *r)
{
	static uint8_t buf[LOOK_MAX];
	DIR *dir = opendir(world_path("data/.fastwrite/orphans"));
	struct dirent *d;
	struct statx st;
	uint64_t sum = 0;

	if (!dir)
		return 0;
	if (statx(AT_FDCWD, world_path("data/.fastwrite/orphans"), AT_SYMLINK_NOFOLLOW, STATX_MODE, &st) !=
	            0 ||
	    !S_ISDIR(st.stx_mode)) {
		closedir(dir);
		return 0;
	}
	while ((d = readdir(dir)) != NULL) {
		char name[512];
		long n;

		if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0)
			continue;
		snprintf(name, sizeof name, "data/.fastwrite/orphans/%s", d->d_name);
		n = world_read(world_path(name), buf, sizeof buf);
		for (long i = 0; i < n; i++) {
			require(r->mixed || arena_is_staged(buf[i]), "byte %ld of %s is %02x", i, d->d_name,
			        buf[i]);
			sum += (uint64_t)(i + 1) * buf[i];
		}
		sum += (uint64_t)n;
		if (getenv("FASTWRITE_FUZZ_SHOW"))
			fprintf(stderr, "orphan %.60s: %ld bytes\n", d->d_name, n);
	}
	closedir(dir);
	return sum;
}

static void arena_look(struct outcome *o, const struct recipe *r)
{
	static uint8_t room[2][WORLD_TARGETS][LOOK_MAX];
	static int turn;

	turn ^= 1;
	for (int t = 0; t < WORLD_TARGETS; t++) {
		const char *path = arena_where(t);
		struct statx st;

		o->bytes[t] = room[turn][t];
		o->length[t] = path ? world_read(path, o->bytes[t], LOOK_MAX) : -1;
		o->size[t] = 0;
		if (!path)
			continue;
		world_stat(path, &st);
		o->size[t] = st.stx_size;
		for (long i = 0; i < o->length[t]; i++) {
			bool same = i < r->content_bytes[t] && o->bytes[t][i] == recipe_content[t][i];

			require(same || (r->named[t] && (r->mixed || arena_is_staged(o->bytes[t][i]))) ||
			                (i >= r->content_bytes[t] && o->bytes[t][i] == 0),
			        "byte %ld of t%d is %02x", i, t, o->bytes[t][i]);
		}
	}
	o->orphan_bytes = arena_orphans(r);
}

static void arena_same(const struct outcome *a, const struct outcome *b, const char *when)
{
	for (int t = 0; t < WORLD_TARGETS; t++) {
		require(a->length[t] == b->length[t] && a->size[t] == b->size[t],
		        "%s: t%d has %ld (%llu) bytes instead of %ld (%llu)", when, t, b->length[t],
		        (unsigned long long)b->size[t], a->length[t], (unsigned long long)a->size[t]);
		for (long i = 0; i < a->length[t]; i++)
			require(a->bytes[t][i] == b->bytes[t][i], "%s: byte %ld of t%d", when, i, t);
	}
	require(a->orphan_bytes == b->orphan_bytes, "%s: the orphans differ", when);
}

/* ---- a run ---- */

static void arena_event(void *ctx, const struct recover_event *e)
{
	int *events = ctx;

	require(strlen(e->arena) < PATH_MAX && strlen(e->target) < ARENA_PATH_MAX, "not text");
	require(strlen(e->detail) < PATH_MAX && e->error <= 0 && e->error > -4096, "%s %d", e->action,
	        e->error);
	(*events)++;
	if (getenv("FASTWRITE_FUZZ_SHOW")) /* to see what one input does */
		fprintf(stderr, "%s %.60s %llu bytes, error %d %s\n", e->action, e->target,
		        (unsigned long long)e->bytes, -e->error, e->detail);
}

static struct recover_report arena_run(bool dry)
{
	struct recover_report report = {0};
	int events = 0;
	const struct recover_options opt = {.dry_run = dry, .event = arena_event, .ctx = &events};
	int before = world_open_fds(), result;

	if (getenv("FASTWRITE_FUZZ_SHOW"))
		fprintf(stderr, "-- %s\n", dry ? "dry run" : arena_fault.at ? "with a fault" : "run");
	result = recover_path(world_path("data/.fastwrite"), &opt, &report);
	if (getenv("FASTWRITE_FUZZ_SHOW"))
		fprintf(stderr, "%d: %llu arenas, %llu failed\n", result, (unsigned long long)report.arenas,
		        (unsigned long long)report.failed);
	require(world_open_fds() == before, "%d descriptors more", world_open_fds() - before);
	require(events == 0 || report.arenas > 0, "events without an arena");
	world_check_sentinels();
	world_check_names();
	return report;
}

/* Targets, arena and surroundings as the input wants them. */
static bool arena_prepare(struct recipe *r, const uint8_t *data, size_t size)
{
	static const uint8_t *const content[WORLD_TARGETS] = {recipe_content[0], recipe_content[1],
	                                                      recipe_content[2]};
	static const uint32_t none[WORLD_TARGETS];
	bool good;
	int fd;

	world_reset(content, none);
	fd = open(world_path("data/.fastwrite/" FUZZ_ARENA), O_RDWR | O_CREAT, 0600);
	require(fd >= 0, "arena");
	good = recipe_build(r, data, size, fd);
	close(fd);
	if (!good)
		return false;
	for (int t = 0; t < WORLD_TARGETS; t++) {
		fd = open(world_target_path(t), O_WRONLY);
		require(write(fd, content[t], r->content_bytes[t]) == (ssize_t)r->content_bytes[t],
		        "content");
		close(fd);
	}
	for (int i = 0; i < r->world_count && i < (int)sizeof r->worlds; i++)
		arena_world_change(r->worlds[i]);
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct recipe r;
	struct outcome dry, first, second;
	struct recover_report report;
	bool other;

	world_begin();
	if (!arena_prepare(&r, data, size))
		return -1;
	other = arena_other_owner();
	arena_look(&dry, &r);
	arena_run(true);
	arena_look(&first, &r);
	arena_same(&dry, &first, "dry run");
	report = arena_run(false);
	arena_look(&first, &r);
	if (other)
		arena_same(&dry, &first, "with the rights of another user");
	arena_run(false);
	arena_look(&second, &r);
	arena_same(&first, &second, "again");
	if (!r.fault || r.mixed || report.failed)
		return 0;
	/* the same with a fault in the middle, and then without */
	if (!arena_prepare(&r, data, size))
		return -1;
	arena_fault_set(&r);
	arena_run(false);
	arena_fault_set(NULL);
	arena_run(false);
	arena_look(&second, &r);
	arena_same(&first, &second, "after a fault");
	return 0;
}
