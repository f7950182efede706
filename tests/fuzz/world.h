// SPDX-License-Identifier: Apache-2.0
/*
 * world: the files that a fuzz target may and may not touch, in a private directory on a memory file system.
 *
 *   ROOT/above                     never touched, like everything in the next three lines
 *   ROOT/outside/victim, .../dir/inside
 *   ROOT/data/beside, link -> ../outside/victim, dirlink -> ../outside
 *   ROOT/data/t0 t1 t2             the targets of staged bytes: made anew for every input
 *   ROOT/data/.fastwrite           staging
 *
 * At first the files hold 7-bit text; bytes that an input stages have the high bit set or are zero.  So a
 * byte from neither is found.  Included once by each fuzz target.
 */
#ifndef FASTWRITE_FUZZ_WORLD_H
#define FASTWRITE_FUZZ_WORLD_H

#include "base/sys.h"
#include "format/arena_format.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define FUZZ_ARENA "8388608-fuzz-1.arena" /* a pid beyond every pid */

enum { WORLD_TARGETS = 3, WORLD_SENTINELS = 7, WORLD_CONTENT_MAX = 64 << 10 };

struct world_id {
	uint64_t dev, ino;
	int64_t btime_sec;
	uint32_t btime_nsec;
};

static char world_root[256];
static char world_staged[64];                                   /* the arena or journal that is recovered */
static uint8_t world_content[WORLD_TARGETS][WORLD_CONTENT_MAX]; /* of the targets, at first */
static struct world_id world_targets[WORLD_TARGETS];
static struct statx world_sentinels[WORLD_SENTINELS];
static const char *const world_sentinel_names[WORLD_SENTINELS] = {
	"above",        "outside/victim", "outside/dir/inside", "data/beside", "data/link",
	"data/dirlink", "outside",
};

#define require(condition, ...) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "violated: %s: ", #condition); \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr); \
			abort(); \
		} \
	} while (0)

/* Absolute path of a file of the world, valid until the fourth call from now. */
static const char *world_path(const char *name)
{
	static char paths[4][1024];
	static int turn;
	char *path = paths[turn++ % 4];

	snprintf(path, sizeof paths[0], "%s/%s", world_root, name);
	return path;
}

static const char *world_target_path(int t)
{
	return world_path((const char *[]){"data/t0", "data/t1", "data/t2"}[t]);
}

static int world_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void world_remove_tree(const char *path) { nftw(path, world_remove_one, 16, FTW_DEPTH | FTW_PHYS); }

static void world_end(void) { world_remove_tree(world_root); }

static void world_write(const char *name, const char *text)
{
	int fd = open(world_path(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);

	require(fd >= 0, "%s", world_path(name));
	require(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", name);
	close(fd);
}

static void world_stat(const char *path, struct statx *st)
{
	require(statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, st) == 0, "%s",
	        path);
}

static void world_begin(void)
{
	if (world_root[0])
		return;
	snprintf(world_root, sizeof world_root, "%s/fastwrite-fuzz-XXXXXX",
	         getenv("FASTWRITE_FUZZ_DIR") ? getenv("FASTWRITE_FUZZ_DIR") : "/dev/shm");
	require(mkdtemp(world_root) != NULL, "%s", world_root);
	atexit(world_end);
	require(chmod(world_root, 0755) == 0, "%s", world_root);
	mkdir(world_path("outside"), 0755);
	mkdir(world_path("outside/dir"), 0755);
	mkdir(world_path("data"), 0755);
	world_write("above", "above");
	world_write("outside/victim", "victim");
	world_write("outside/dir/inside", "inside");
	world_write("data/beside", "beside");
	require(symlink("../outside/victim", world_path("data/link")) == 0, "link");
	require(symlink("../outside", world_path("data/dirlink")) == 0, "dirlink");
	for (int i = 0; i < WORLD_SENTINELS; i++)
		world_stat(world_path(world_sentinel_names[i]), &world_sentinels[i]);
}

/* What an arena or a journal made here and now says of it. */
static struct origin world_origin(void)
{
	int fd = open(world_path("data"), O_RDONLY | O_DIRECTORY);
	struct origin o;

	require(fd >= 0 && origin_here(fd, &o) == 0, "origin");
	close(fd);
	return o;
}

/* The target with its content, older than any boot. */
enum { WORLD_MTIME = 1000000000 };
static void world_fill(int t, const uint8_t *content, size_t length)
{
	const struct timespec times[2] = {{.tv_sec = WORLD_MTIME}, {.tv_sec = WORLD_MTIME}};
	int fd = open(world_target_path(t), O_WRONLY);

	require(fd >= 0 && write(fd, content, length) == (ssize_t)length, "content");
	require(futimens(fd, times) == 0, "time");
	close(fd);
}

/* Targets with `content`, an empty staging directory. */
static void world_reset(const uint8_t *const content[WORLD_TARGETS], const uint32_t length[WORLD_TARGETS])
{
	world_remove_tree(world_path("data/moved"));
	world_remove_tree(world_path("data/.fastwrite"));
	for (int t = 0; t < WORLD_TARGETS; t++) {
		struct world_id *id = &world_targets[t];
		struct statx st;
		int fd;

		/* (a new inode only if the file was removed) */
		if (statx(AT_FDCWD, world_target_path(t), AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &st) != 0 ||
		    st.stx_ino != id->ino)
			world_remove_tree(world_target_path(t));
		else
			require(chmod(world_target_path(t), 0644) == 0, "%s", world_target_path(t));
		fd = open(world_target_path(t), O_WRONLY | O_CREAT | O_TRUNC, 0644);
		require(fd >= 0, "%s", world_target_path(t));
		require(write(fd, content[t], length[t]) == (ssize_t)length[t], "%s", world_target_path(t));
		require(fchmod(fd, 0644) == 0 && fchown(fd, 0, 0) <= 0, "%s", world_target_path(t));
		close(fd);
		world_stat(world_target_path(t), &st);
		*id = (struct world_id){sys_dev_of(&st), st.stx_ino, st.stx_btime.tv_sec,
		                        st.stx_btime.tv_nsec};
	}
	require(mkdir(world_path("data/.fastwrite"), 0700) == 0, "staging");
}

/* True when the inode is that of a file that must not be touched. */
static bool world_is_sentinel(uint64_t ino)
{
	for (int i = 0; i < WORLD_SENTINELS; i++)
		if (world_sentinels[i].stx_ino == ino)
			return true;
	return false;
}

static void world_check_sentinels(void)
{
	struct statx now;

	for (int i = 0; i < WORLD_SENTINELS; i++) {
		const struct statx *was = &world_sentinels[i];

		world_stat(world_path(world_sentinel_names[i]), &now);
		require(now.stx_ino == was->stx_ino && now.stx_size == was->stx_size &&
		                now.stx_mode == was->stx_mode && now.stx_nlink == was->stx_nlink &&
		                now.stx_uid == was->stx_uid &&
		                memcmp(&now.stx_mtime, &was->stx_mtime, sizeof now.stx_mtime) == 0 &&
		                memcmp(&now.stx_ctime, &was->stx_ctime, sizeof now.stx_ctime) == 0,
		        "%s was touched", world_sentinel_names[i]);
	}
}

/* data/ holds only what belongs there. */
static void world_check_names(void)
{
	static const char *const known[] = {".",  "..", "beside", "link",       "dirlink",
	                                    "t0", "t1", "t2",     ".fastwrite", "moved"};
	DIR *dir = opendir(world_path("data"));
	struct dirent *d;

	require(dir != NULL, "data");
	while ((d = readdir(dir)) != NULL) {
		bool found = false;

		for (size_t i = 0; i < sizeof known / sizeof *known; i++)
			found |= strcmp(d->d_name, known[i]) == 0;
		require(found, "new file data/%s", d->d_name);
	}
	closedir(dir);
}

/* Reads at most max bytes of a file into buf.  How many, -1 = no such file.  Skips holes of huge files. */
static long world_read(const char *path, uint8_t *buf, size_t max)
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
	size_t used = 0;
	ssize_t n;

	if (fd < 0)
		return -1;
	while (used < max && (n = read(fd, buf + used, max - used)) > 0)
		used += (size_t)n;
	close(fd);
	return (long)used;
}

static int world_open_fds(void)
{
	int count = 0;

	for (int fd = 3; fd < 64; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

#endif
