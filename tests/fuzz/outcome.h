// SPDX-License-Identifier: Apache-2.0
/*
 * outcome: what the fuzz targets of recovery share: a call that fails, changes of the world around what is
 * recovered, a run, and what is there afterwards.
 */
#ifndef FASTWRITE_FUZZ_OUTCOME_H
#define FASTWRITE_FUZZ_OUTCOME_H

#include "world.h"

#include "recovery/recover.h"

enum { LOOK_MAX = 256 << 10, ORPHANS_MAX = 64 };

/* ---- faults: one call of one kind fails, once ---- */

static struct {
	unsigned kind, at, seen;
	int error;
	size_t most; /* > 0: a short write instead of an error */
} fuzz_fault;

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

static bool fuzz_fault_due(unsigned kind)
{
	return fuzz_fault.at && fuzz_fault.kind == kind && ++fuzz_fault.seen == fuzz_fault.at;
}

/* Short by so much, and the call behind it fails: a disk that gets full. */
static size_t fuzz_fault_cut(size_t n)
{
	size_t most = fuzz_fault.most;

	if (most == 0 || n <= most)
		return 0;
	fuzz_fault.at++;
	fuzz_fault.most = 0;
	return most;
}

static ssize_t fuzz_write(int fd, const void *buf, size_t n)
{
	size_t cut;

	if (!fuzz_fault_due(FAULT_WRITE))
		return sys_kernel.write(fd, buf, n);
	cut = fuzz_fault_cut(n);
	return cut ? sys_kernel.write(fd, buf, cut) : -fuzz_fault.error;
}

static ssize_t fuzz_pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
	struct iovec part = *iov;

	if (count != 1 || !fuzz_fault_due(FAULT_PWRITE))
		return sys_kernel.pwritev(fd, iov, count, at);
	/* (an aligned word, of which recovery's notes in the arena consist, is written or is not) */
	part.iov_len = iov->iov_len <= sizeof(uint64_t) ? 0 : fuzz_fault_cut(iov->iov_len);
	return part.iov_len ? sys_kernel.pwritev(fd, &part, 1, at) : -fuzz_fault.error;
}

static ssize_t fuzz_writev(int fd, const struct iovec *iov, int count)
{
	size_t cut;

	if (count != 1 || !fuzz_fault_due(FAULT_WRITE))
		return sys_kernel.writev(fd, iov, count);
	cut = fuzz_fault_cut(iov->iov_len);
	return cut ? sys_kernel.write(fd, iov->iov_base, cut) : -fuzz_fault.error;
}

static int fuzz_fdatasync(int fd)
{
	return fuzz_fault_due(FAULT_FDATASYNC) ? -fuzz_fault.error : sys_kernel.fdatasync(fd);
}

static int fuzz_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	return fuzz_fault_due(FAULT_OPENAT) ? -fuzz_fault.error : sys_kernel.openat(dirfd, path, flags, mode);
}

static int fuzz_mkdirat(int dirfd, const char *path, mode_t mode)
{
	return fuzz_fault_due(FAULT_MKDIRAT) ? -fuzz_fault.error : sys_kernel.mkdirat(dirfd, path, mode);
}

static int fuzz_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	return fuzz_fault_due(FAULT_STATX) ? -fuzz_fault.error
	                                   : sys_kernel.statx(dirfd, path, flags, mask, out);
}

static ssize_t fuzz_pread(int fd, void *buf, size_t n, off_t at)
{
	return fuzz_fault_due(FAULT_PREAD) ? -fuzz_fault.error : sys_kernel.pread(fd, buf, n, at);
}

/* kind, number, error, most bytes; NULL = none */
static void fuzz_fault_set(const uint8_t *faults)
{
	static const int errors[] = {ENOSPC, EIO, EDQUOT, EROFS, EACCES, EPERM, EFBIG, ENOMEM};

	sys = sys_kernel;
	fuzz_fault.at = 0;
	if (!faults)
		return;
	fuzz_fault.kind = faults[0] % FAULT_KINDS;
	fuzz_fault.at = faults[1];
	fuzz_fault.seen = 0;
	fuzz_fault.error = errors[faults[2] % 8];
	fuzz_fault.most = faults[3];
	if (getenv("FASTWRITE_FUZZ_SHOW"))
		fprintf(stderr, "call %u number %u, error %d, short by %zu\n", fuzz_fault.kind, fuzz_fault.at,
		        fuzz_fault.error, fuzz_fault.most);
	sys.write = fuzz_write;
	sys.pwritev = fuzz_pwritev;
	sys.writev = fuzz_writev;
	sys.fdatasync = fuzz_fdatasync;
	sys.openat = fuzz_openat;
	sys.mkdirat = fuzz_mkdirat;
	sys.statx = fuzz_statx;
	sys.pread = fuzz_pread;
}

/* ---- the world around the arena ---- */

static void fuzz_world_change(unsigned what)
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
	case 11: chown(world_path(world_staged), 1000, 1000); break;
	case 12: chmod(world_path("data/.fastwrite"), 0777); break;
	case 13: mkdir(world_path("data/.fastwrite/orphans"), 0700); break;
	case 14: truncate(from, 5000000000); break;
	default: chmod(from, 0); break;
	}
}

/* The arena became another user's, who may not write to the targets and put nothing aside. */
static bool fuzz_other_owner(void)
{
	struct statx st;

	return statx(AT_FDCWD, world_path(world_staged), 0, STATX_UID, &st) == 0 && st.stx_uid != geteuid();
}

/* What may be found. */
struct expected {
	uint32_t content_bytes[WORLD_TARGETS]; /* of the targets, at first */
	bool named[WORLD_TARGETS];             /* bytes may be for it */
	bool mixed;                            /* they may be any */
};

/* Everything that recovery may have changed. */
struct outcome {
	long length[WORLD_TARGETS];
	uint64_t size[WORLD_TARGETS];
	uint8_t *bytes[WORLD_TARGETS];
	uint64_t orphan_bytes; /* sum over the bytes of all orphans */
};

static const char *fuzz_where(int t)
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

static bool fuzz_is_staged(uint8_t byte) { return byte == 0 || (byte & 0x80); }

static uint64_t fuzz_orphans(const struct expected *r)
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
			require(r->mixed || fuzz_is_staged(buf[i]), "byte %ld of %s is %02x", i, d->d_name,
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

static void fuzz_look(struct outcome *o, const struct expected *r)
{
	static uint8_t room[2][WORLD_TARGETS][LOOK_MAX];
	static int turn;

	turn ^= 1;
	for (int t = 0; t < WORLD_TARGETS; t++) {
		const char *path = fuzz_where(t);
		struct statx st;

		o->bytes[t] = room[turn][t];
		o->length[t] = path ? world_read(path, o->bytes[t], LOOK_MAX) : -1;
		o->size[t] = 0;
		if (!path)
			continue;
		world_stat(path, &st);
		o->size[t] = st.stx_size;
		for (long i = 0; i < o->length[t]; i++) {
			bool same = i < r->content_bytes[t] && o->bytes[t][i] == world_content[t][i];

			require(same || (r->named[t] && (r->mixed || fuzz_is_staged(o->bytes[t][i]))) ||
			                (i >= r->content_bytes[t] && o->bytes[t][i] == 0),
			        "byte %ld of t%d is %02x", i, t, o->bytes[t][i]);
		}
	}
	o->orphan_bytes = fuzz_orphans(r);
}

static void fuzz_same(const struct outcome *a, const struct outcome *b, const char *when)
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

static void fuzz_event(void *ctx, const struct recover_event *e)
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

static struct recover_report fuzz_run(bool dry)
{
	struct recover_report report = {0};
	int events = 0;
	const struct recover_options opt = {.dry_run = dry, .event = fuzz_event, .ctx = &events};
	int before = world_open_fds(), result;

	if (getenv("FASTWRITE_FUZZ_SHOW"))
		fprintf(stderr, "-- %s\n", dry ? "dry run" : fuzz_fault.at ? "with a fault" : "run");
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

#endif
