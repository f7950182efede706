// SPDX-License-Identifier: Apache-2.0
/*
 * create: makes files in every way, and prints what a program can see of each.  Run natively and with a pool the
 * output is the same; on standard error it says of which opens the file was one of the pool.
 *
 *     create DIR WHAT
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *dir;
static struct timespec opened; /* before the last open */
static int warm_fd;

static void die(const char *what)
{
	perror(what);
	exit(3);
}

static char *in_dir(const char *name)
{
	static char paths[8][4096];
	static int next;
	char *path = paths[next++ % 8];

	snprintf(path, 4096, "%s/%s", dir, name);
	return path;
}

static int look(int ready)
{
	DIR *d = opendir(in_dir(".fastwrite"));
	struct dirent *e;
	int seen = 0;

	while (d && (e = readdir(d))) {
		char path[600];
		struct stat st;

		if (!strstr(e->d_name, ".pool"))
			continue;
		snprintf(path, sizeof path, ".fastwrite/%s", e->d_name);
		if (stat(in_dir(path), &st) == 0 && st.st_size == 1 << 20)
			seen++;
	}
	if (d)
		closedir(d);
	return seen >= ready;
}

/* Until the pool is full; natively there is none. */
static void await(void)
{
	const char *wanted = getenv("POOL");

	for (int i = 0; wanted && i < 2000 && !look(atoi(wanted)); i++)
		usleep(2000);
	usleep(wanted ? 20000 : 0);
	clock_gettime(CLOCK_REALTIME_COARSE, &opened);
}

static void warm(void)
{
	warm_fd = open(in_dir("warm"), O_WRONLY | O_CREAT, 0600);
	for (int i = 0; i < 4; i++)
		if (write(warm_fd, "warm", 4) != 4)
			die("warm");
	await();
}

/* It is older than its creation.  Asked past the library, which would cut off the zeros. */
static int from_pool(int fd)
{
	struct statx st;

	if (fd < 0 || syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0)
		return 0;
	return st.stx_btime.tv_sec < opened.tv_sec ||
	       (st.stx_btime.tv_sec == opened.tv_sec && st.stx_btime.tv_nsec < opened.tv_nsec);
}

static int near_now(time_t t)
{
	time_t now = time(NULL);

	return t >= now - 2 && t <= now + 1;
}

static void tell(const char *what, int fd, int error)
{
	char link[64], path[4096] = "", *deleted;
	struct stat st = {0};
	ssize_t n;

	if (fd < 0) {
		printf("%s: %s\n", what, strerrorname_np(error));
		return;
	}
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof path - 1);
	path[n > 0 ? n : 0] = '\0';
	deleted = strstr(path, " (deleted)"); /* its number differs */
	if (deleted)
		memcpy(path, "/#", 3);
	if (fstat(fd, &st) != 0)
		die("fstat");
	printf("%s: fd %d %s mode %o uid %u gid %u size %ld links %ld flags %o cloexec %d blocks %d at %ld "
	       "times %d%d%d\n",
	       what, fd, strrchr(path, '/') ? strrchr(path, '/') : "?", st.st_mode, st.st_uid, st.st_gid,
	       (long)st.st_size, (long)st.st_nlink, fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), st.st_blocks > 0,
	       (long)lseek(fd, 0, SEEK_CUR), near_now(st.st_atime), near_now(st.st_mtime),
	       near_now(st.st_ctime));
}

static void made(const char *what, int fd)
{
	int error = errno;

	fprintf(stderr, "pooled %s %d\n", what, from_pool(fd));
	tell(what, fd, error);
	if (fd >= 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY) {
		char text[200], back[400];
		ssize_t n;

		memset(text, 'x', sizeof text);
		for (int i = 0; i < 3; i++)
			if (write(fd, text, 50) != 50)
				die("write");
		tell("  written", fd, 0);
		if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR) {
			n = pread(fd, back, sizeof back, 0);
			printf("  read %ld\n", (long)n);
		}
	}
	if (fd >= 0)
		close(fd);
}

/* One open with a full pool. */
#define TRY(what, call) \
	do { \
		await(); \
		errno = 0; \
		made(what, call); \
	} while (0)

static void listing(void)
{
	struct dirent **list;
	int n = scandir(dir, &list, NULL, alphasort);

	for (int i = 0; i < n; i++)
		if (list[i]->d_name[0] != '.')
			printf("entry %s\n", list[i]->d_name);
}

static void simple(void)
{
	int d = open(dir, O_RDONLY | O_DIRECTORY);
	static const mode_t masks[] = {0, 022, 027, 077, 0222, 0777};
	char name[64];

	TRY("wronly", open(in_dir("a"), O_WRONLY | O_CREAT, 0666));
	TRY("exists", open(in_dir("a"), O_WRONLY | O_CREAT, 0666));
	TRY("exists excl", open(in_dir("a"), O_WRONLY | O_CREAT | O_EXCL, 0666));
	TRY("rdwr", open(in_dir("b"), O_RDWR | O_CREAT, 0640));
	TRY("excl", open(in_dir("c"), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
	TRY("trunc", open(in_dir("d"), O_RDWR | O_CREAT | O_TRUNC, 0666));
	TRY("append", open(in_dir("e"), O_RDWR | O_CREAT | O_APPEND, 0666));
	TRY("creat", creat(in_dir("f"), 0644));
	TRY("openat", openat(d, "g", O_RDWR | O_CREAT, 0644));
	TRY("nofollow", open(in_dir("h"), O_RDWR | O_CREAT | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK, 0644));
	TRY("rdonly", open(in_dir("i"), O_RDONLY | O_CREAT, 0644));
	TRY("sync", open(in_dir("j"), O_WRONLY | O_CREAT | O_SYNC, 0644));
	TRY("readonly mode", open(in_dir("k"), O_WRONLY | O_CREAT, 0444));
	TRY("no mode", open(in_dir("l"), O_RDWR | O_CREAT, 0));
	TRY("setuid mode", open(in_dir("m"), O_RDWR | O_CREAT, 06755));
	TRY("excl gone", open(in_dir("n"), O_WRONLY | O_CREAT | O_EXCL, 0777));
	TRY("syscall", (int)syscall(SYS_openat, d, "o", O_RDWR | O_CREAT, 0644));
	for (unsigned i = 0; i < sizeof masks / sizeof *masks; i++) {
		umask(masks[i]);
		snprintf(name, sizeof name, "mask%u", i);
		TRY("umask", open(in_dir(name), O_RDWR | O_CREAT, 0666));
	}
	umask(022);
	if (chdir(dir) != 0)
		die("chdir");
	TRY("relative", open("p", O_RDWR | O_CREAT, 0666));
	TRY("dotted", open("./q", O_RDWR | O_CREAT, 0666));
	close(d);
}

static void places(void)
{
	char name[300];

	mkdir(in_dir("sub"), 0777);
	mkdir(in_dir("sgid"), 0777);
	mkdir(in_dir("locked"), 0777);
	mkdir(in_dir("gone"), 0777);
	if (getuid() == 0 && chown(in_dir("sgid"), 0, 12) != 0)
		die("chown");
	chmod(in_dir("sgid"), 02777);
	symlink("sub", in_dir("to_sub"));
	symlink("nowhere", in_dir("dangling"));
	symlink("sub/made", in_dir("made_by_link"));
	symlink("loop", in_dir("loop"));
	TRY("sub", open(in_dir("sub/a"), O_RDWR | O_CREAT, 0666));
	TRY("by link", open(in_dir("to_sub/b"), O_RDWR | O_CREAT, 0666));
	TRY("setgid", open(in_dir("sgid/a"), O_RDWR | O_CREAT, 0666));
	TRY("dangling excl", open(in_dir("dangling"), O_RDWR | O_CREAT | O_EXCL, 0666));
	TRY("dangling nofollow", open(in_dir("dangling"), O_RDWR | O_CREAT | O_NOFOLLOW, 0666));
	TRY("dangling", open(in_dir("dangling"), O_RDWR | O_CREAT, 0666));
	TRY("made by link", open(in_dir("made_by_link"), O_RDWR | O_CREAT, 0666));
	TRY("loop", open(in_dir("loop"), O_RDWR | O_CREAT, 0666));
	TRY("no directory", open(in_dir("missing/a"), O_RDWR | O_CREAT, 0666));
	TRY("not a directory", open(in_dir("warm/a"), O_RDWR | O_CREAT, 0666));
	TRY("slash", open(in_dir("new/"), O_RDWR | O_CREAT, 0666));
	TRY("dot", open(in_dir("."), O_RDWR | O_CREAT, 0666));
	TRY("directory", open(in_dir("sub"), O_RDWR | O_CREAT, 0666));
	TRY("as directory", open(in_dir("r"), O_RDONLY | O_CREAT | O_DIRECTORY, 0666));
	TRY("tmpfile", open(dir, O_RDWR | O_TMPFILE, 0666));
	TRY("empty", open("", O_RDWR | O_CREAT, 0666));
	memset(name, 'n', 255);
	name[255] = '\0';
	TRY("longest", open(in_dir(name), O_RDWR | O_CREAT, 0666));
	memset(name, 'm', 256);
	name[256] = '\0';
	TRY("too long", open(in_dir(name), O_RDWR | O_CREAT, 0666));
	TRY("read-only", open("/proc/self/fastwrite-none", O_RDWR | O_CREAT, 0666));
	TRY("elsewhere", open("/dev/shm/fastwrite-pool-test", O_RDWR | O_CREAT, 0666));
	unlink("/dev/shm/fastwrite-pool-test");
	if (chdir(in_dir("gone")) != 0 || rmdir(in_dir("gone")) != 0)
		die("gone");
	TRY("in a directory that is gone", open("a", O_RDWR | O_CREAT, 0666));
	if (chdir(dir) != 0)
		die("chdir");
	if (getuid() == 0) {
		chmod(in_dir("locked"), 0755);
		if (setegid(12) != 0 || seteuid(12) != 0)
			die("seteuid");
		TRY("other user", open(in_dir("sub/c"), O_RDWR | O_CREAT, 0666));
		chmod(in_dir("sub"), 0777);
		TRY("not allowed", open(in_dir("locked/a"), O_RDWR | O_CREAT, 0666));
		if (seteuid(0) != 0)
			die("seteuid");
		TRY("other group", open(in_dir("sub/d"), O_RDWR | O_CREAT, 0666));
		if (setegid(0) != 0)
			die("setegid");
		TRY("again", open(in_dir("sub/e"), O_RDWR | O_CREAT, 0666));
	}
}

/* A fresh file of the pool, which nothing has looked at yet. */
static int fresh(const char *name, int flags)
{
	int fd;

	await();
	fd = open(in_dir(name), flags | O_CREAT, 0644);
	if (fd < 0)
		die(name);
	return fd;
}

static void say(const char *what, long a, long b)
{
	printf("%s: %ld %ld errno %s\n", what, a, b, errno ? strerrorname_np(errno) : "0");
	errno = 0;
}

static void end(const char *what, int fd)
{
	struct stat st;
	char back[8] = "";
	long got;

	fprintf(stderr, "pooled %s %d\n", what, from_pool(fd));
	close(fd);
	if (stat(in_dir(what), &st) != 0) {
		printf("%s gone\n", what);
		return;
	}
	fd = open(in_dir(what), O_RDONLY);
	got = read(fd, back, sizeof back);
	printf("%s ends with %ld bytes, read %ld, first %d, blocks %ld\n", what, (long)st.st_size, got,
	       got > 0 ? back[0] : -1, (long)st.st_blocks);
	close(fd);
}

/* What is asked first of a file that is padded. */
static void first(void)
{
	static char big[200000];
	struct stat st;
	char byte = 7;
	char *map;
	FILE *stream;
	off_t at;
	int fd, other, p[2];

	errno = 0;
	fd = fresh("read", O_RDWR);
	say("read", read(fd, &byte, 1), byte);
	end("read", fd);
	fd = fresh("pread", O_RDWR);
	say("pread", pread(fd, &byte, 1, 5000), byte);
	end("pread", fd);
	fd = fresh("end", O_RDWR);
	say("end", lseek(fd, 0, SEEK_END), 0);
	end("end", fd);
	fd = fresh("data", O_RDWR);
	say("data", lseek(fd, 0, SEEK_DATA), lseek(fd, 0, SEEK_HOLE));
	end("data", fd);
	fd = fresh("stat", O_RDWR);
	say("stat", stat(in_dir("stat"), &st), (long)st.st_size);
	end("stat", fd);
	fd = fresh("write", O_RDWR);
	say("write", write(fd, big, 10), read(fd, &byte, 1));
	end("write", fd);
	fd = fresh("large", O_RDWR | O_APPEND);
	memset(big, 'b', sizeof big);
	say("large", write(fd, big, sizeof big), lseek(fd, 0, SEEK_CUR));
	end("large", fd);
	fd = fresh("large_at", O_RDWR);
	say("large_at", pwrite(fd, big, sizeof big, 300000), pread(fd, &byte, 1, 100000));
	end("large_at", fd);
	fd = fresh("hole", O_RDWR);
	say("hole", pwrite(fd, "x", 1, 2 << 20), pread(fd, &byte, 1, (2 << 20) - 1));
	end("hole", fd);
	fd = fresh("small_hole", O_RDWR);
	say("small_hole", pwrite(fd, "x", 1, 70000), 0);
	say("small_hole", pwrite(fd, "y", 1, 200000), 0);
	end("small_hole", fd);
	fd = fresh("truncate", O_RDWR);
	say("truncate", ftruncate(fd, 100), fstat(fd, &st));
	say("truncate", st.st_size, pread(fd, &byte, 1, 99));
	end("truncate", fd);
	fd = fresh("allocate", O_RDWR);
	say("allocate", posix_fallocate(fd, 0, 5000), 0);
	end("allocate", fd);
	fd = fresh("map", O_RDWR);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	say("map", map != MAP_FAILED, fstat(fd, &st));
	end("map", fd);
	fd = fresh("rename", O_RDWR);
	say("rename", rename(in_dir("rename"), in_dir("renamed")), stat(in_dir("renamed"), &st));
	say("rename", st.st_size, write(fd, "abc", 3));
	end("rename", fd);
	end("renamed", open(in_dir("renamed"), O_RDONLY));
	fd = fresh("unlink", O_RDWR);
	say("unlink", unlink(in_dir("unlink")), fstat(fd, &st));
	say("unlink", st.st_size, write(fd, "abc", 3));
	end("unlink", fd);
	fd = fresh("link", O_RDWR);
	say("link", link(in_dir("link"), in_dir("linked")), stat(in_dir("linked"), &st));
	say("link", st.st_size, write(fd, "abc", 3));
	end("link", fd);
	fd = fresh("twice", O_WRONLY);
	other = open(in_dir("twice"), O_RDONLY);
	say("twice", read(other, &byte, 1), write(fd, "abc", 3));
	say("twice", read(other, &byte, 1), byte);
	close(other);
	end("twice", fd);
	fd = fresh("append_twice", O_WRONLY);
	other = open(in_dir("append_twice"), O_WRONLY | O_APPEND);
	say("append_twice", write(other, big, sizeof big), write(fd, "abc", 3));
	close(other);
	end("append_twice", fd);
	fd = fresh("trunc_twice", O_WRONLY);
	other = open(in_dir("trunc_twice"), O_WRONLY | O_TRUNC);
	say("trunc_twice", write(fd, "abc", 3), fstat(other, &st));
	say("trunc_twice", (long)st.st_size, 0);
	close(other);
	end("trunc_twice", fd);
	fd = fresh("stream", O_RDWR);
	stream = fopen(in_dir("stream"), "a");
	fprintf(stream, "line\n");
	fclose(stream);
	end("stream", fd);
	fd = fresh("fdopen", O_RDWR);
	stream = fdopen(dup(fd), "r+");
	say("fdopen", fgetc(stream), fputs("text", stream));
	fclose(stream);
	end("fdopen", fd);
	fd = fresh("copy", O_RDWR);
	at = 0;
	other = open("/tmp", O_RDWR | O_TMPFILE, 0600);
	say("copy", copy_file_range(fd, &at, other, NULL, 4096, 0), sendfile(other, fd, NULL, 4096));
	close(other);
	end("copy", fd);
	fd = fresh("splice", O_RDWR);
	if (pipe2(p, O_NONBLOCK) != 0)
		die("pipe");
	say("splice", splice(fd, NULL, p[1], NULL, 4096, 0), splice(fd, NULL, p[1], NULL, 4096, 0));
	end("splice", fd);
	fd = fresh("dup", O_RDWR);
	other = dup(fd);
	close(fd);
	say("dup", write(other, "abc", 3), lseek(other, 0, SEEK_END));
	end("dup", other);
	fd = fresh("sync", O_RDWR);
	say("sync", write(fd, "abc", 3), fsync(fd));
	say("sync", write(fd, "abc", 3), fdatasync(fd));
	end("sync", fd);
	fd = fresh("chmod", O_RDWR);
	say("chmod", fchmod(fd, 0400), write(fd, "abc", 3));
	end("chmod", fd);
	fd = fresh("times", O_RDWR);
	say("times", futimens(fd, (struct timespec[]){{1, 1}, {2, 2}}), 0);
	say("times", fstat(fd, &st), 0);
	say("times", st.st_mtime, st.st_size);
	end("times", fd);
}

static void by_attributes(void)
{
	/* given by the test: a default access list, flags */
	TRY("acl", open(in_dir("acl/a"), O_RDWR | O_CREAT, 0666));
	TRY("sync flag", open(in_dir("flags/a"), O_RDWR | O_CREAT, 0666));
	TRY("plain", open(in_dir("plain/a"), O_RDWR | O_CREAT, 0666));
}

static void *looker(void *arg)
{
	int fd, *bad = arg;

	for (;;) {
		struct stat st;

		if (stat(in_dir("seen"), &st) == 0 && st.st_size != 0)
			*bad = 1;
		fd = open(in_dir("seen"), O_RDONLY);
		if (fd >= 0) {
			char byte;

			if (fstat(fd, &st) != 0 || st.st_size != 0 || read(fd, &byte, 1) != 0)
				*bad = 2;
			close(fd);
			if (access(in_dir("stop"), F_OK) == 0)
				return NULL;
		}
	}
}

/* Another thread looks for the file all the time. */
static void watched(void)
{
	pthread_t thread;
	int bad = 0, pooled = 0;

	made("alone", open(in_dir("alone"), O_RDWR | O_CREAT, 0644));
	pthread_create(&thread, NULL, looker, &bad);
	for (int i = 0; i < 20; i++) {
		int fd;

		await();
		fd = open(in_dir("seen"), O_WRONLY | O_CREAT | O_EXCL, 0644);
		usleep(500);
		pooled += from_pool(fd);
		close(fd);
		if (i < 19)
			unlink(in_dir("seen"));
	}
	close(open(in_dir("stop"), O_WRONLY | O_CREAT, 0600));
	pthread_join(thread, NULL);
	printf("bad %d\n", bad);
	fprintf(stderr, "pooled watched %d\n", pooled > 0);
}

static void on_alarm(int number)
{
	(void)number;
	await();
	made("handler", open(in_dir("handler"), O_RDWR | O_CREAT, 0644));
}

/* A handler may have interrupted a call that looks at the file. */
static void handler(void)
{
	TRY("no handler", open(in_dir("a"), O_RDWR | O_CREAT, 0644));
	signal(SIGALRM, on_alarm);
	raise(SIGALRM);
}

/* Processes that do not know each other. */
static void race(void)
{
	int go = open(in_dir("warm"), O_RDONLY), status, wins = 0;
	pid_t pids[8];
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	self[n] = '\0';
	for (int i = 0; i < 8; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			char name[32];

			snprintf(name, sizeof name, "warm%d", i);
			execl(self, self, dir, "racer", name, (char *)NULL);
			_exit(9);
		}
	}
	for (int i = 0; i < 8; i++) {
		if (waitpid(pids[i], &status, 0) < 0 || !WIFEXITED(status))
			die("waitpid");
		wins += WEXITSTATUS(status);
	}
	printf("wins %d\n", wins);
	close(go);
}

static int racer(const char *name)
{
	int wins = 0, pooled = 0;
	int own = open(in_dir(name), O_WRONLY | O_CREAT, 0600);

	for (int i = 0; i < 4; i++)
		if (write(own, "warm", 4) != 4)
			die("warm");
	for (int i = 0; i < 500; i++) {
		struct stat st;

		if (stat(in_dir(".fastwrite"), &st) == 0)
			look(1);
		usleep(1000);
		if (i % 25 == 24) {
			char target[32];
			int fd;

			snprintf(target, sizeof target, "race%d", i);
			clock_gettime(CLOCK_REALTIME_COARSE, &opened);
			fd = open(in_dir(target), O_WRONLY | O_CREAT | O_EXCL, 0644);
			if (fd < 0 && errno != EEXIST)
				die("race");
			if (fd >= 0) {
				wins++;
				pooled += from_pool(fd);
				if (write(fd, "won\n", 4) != 4)
					die("write");
				close(fd);
			}
		}
	}
	fprintf(stderr, "pooled race %d\n", pooled > 0);
	return wins;
}

/* A log that is made, and synced with each record. */
static void synced(int count, const char *what)
{
	char record[4096];
	int fd;

	await();
	fd = open(in_dir("log"), O_WRONLY | O_CREAT | O_APPEND, 0644);
	memset(record, 'r', sizeof record);
	for (int i = 0; i < count; i++)
		if (write(fd, record, sizeof record) != sizeof record || fdatasync(fd) != 0)
			die("record");
	if (strcmp(what, "close") == 0)
		fprintf(stderr, "pooled synced %d\n", from_pool(fd));
	if (strcmp(what, "kill") == 0)
		raise(SIGKILL);
	if (strcmp(what, "exit") == 0)
		exit(0);
	close(fd);
}

/* Killed at any step: each name that is said to be made is there, and nothing but it. */
static void stepped(void)
{
	for (int i = 0; i < 4; i++) {
		char name[32];
		int fd;

		await();
		snprintf(name, sizeof name, "step%d", i);
		fd = open(in_dir(name), O_WRONLY | O_CREAT | O_EXCL, 0640);
		if (fd < 0)
			die("step");
		if (i % 2 && write(fd, "stepped\n", 8) != 8)
			die("write");
		close(fd);
	}
}

static void forked(void)
{
	int fd, status;

	await();
	fd = open(in_dir("before"), O_RDWR | O_CREAT, 0644);
	if (fork() == 0) {
		made("child", open(in_dir("child"), O_RDWR | O_CREAT, 0644));
		tell("before", fd, 0);
		fflush(stdout);
		_exit(write(fd, "child", 5) != 5);
	}
	fflush(stdout);
	if (wait(&status) < 0 || status != 0)
		die("child");
	tell("before", fd, 0);
	fprintf(stderr, "pooled forked %d\n", from_pool(fd));
	made("parent", open(in_dir("parent"), O_RDWR | O_CREAT, 0644));
	close(fd);
}

static void shell(void)
{
	char command[8192];
	int fd;

	await();
	fd = open(in_dir("shown"), O_RDWR | O_CREAT, 0644);
	snprintf(command, sizeof command, "stat -c '%%s %%A' %s", in_dir("shown"));
	fflush(stdout);
	if (system(command) != 0)
		die("system");
	fprintf(stderr, "pooled shell %d\n", from_pool(fd));
	close(fd);
}

int main(int argc, char **argv)
{
	const char *what = argv[2];

	dir = argv[1];
	umask(022);
	setvbuf(stdout, NULL, _IOFBF, 1 << 16);
	if (argc > 3 && strcmp(what, "racer") == 0)
		return racer(argv[3]);
	if (strcmp(what, "race") == 0) {
		race();
		listing();
		return 0;
	}
	warm();
	if (strcmp(what, "simple") == 0)
		simple();
	else if (strcmp(what, "places") == 0)
		places();
	else if (strcmp(what, "first") == 0)
		first();
	else if (strcmp(what, "attributes") == 0)
		by_attributes();
	else if (strcmp(what, "watched") == 0)
		watched();
	else if (strcmp(what, "handler") == 0)
		handler();
	else if (strcmp(what, "stepped") == 0)
		stepped();
	else if (strcmp(what, "forked") == 0)
		forked();
	else if (strcmp(what, "shell") == 0)
		shell();
	else if (strcmp(what, "synced") == 0)
		synced(argc > 3 ? atoi(argv[3]) : 100, argc > 4 ? argv[4] : "close");
	listing();
	close(warm_fd);
	return 0;
}
