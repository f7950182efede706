// SPDX-License-Identifier: Apache-2.0
/*
 * interpreter: executes a list of file operations and prints what each returned.
 *
 *     interpreter OPERATIONS DIRECTORY
 *
 * OPERATIONS has one operation per line.  `begin` starts a sequence: a directory of its own (DIRECTORY/s0,
 * s1, ...), with files f0 to f3 and descriptor slots 0 to 7, all closed.  What is printed has no times, no
 * inode numbers and no addresses in it, so that two runs of one list must print the same.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 8, FILES = 4, BUFFER = 1 << 20, ARGS = 8, ERRNO_BEFORE = 4242 };

static int slot[SLOTS];
static unsigned char buffer[BUFFER] __attribute__((aligned(4096)));
static char directory[PATH_MAX];
static unsigned sequence, number;

static const char *name_of(long file)
{
	static char names[2][PATH_MAX + 32];
	static int turn;
	char *name = names[turn++ % 2];

	snprintf(name, sizeof names[0], "%s/s%u/f%ld", directory, sequence, file);
	return name;
}

static void fill(unsigned char *to, size_t n, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;

	for (size_t i = 0; i < n; i++) {
		if (i % 8 == 0) {
			x ^= x << 13;
			x ^= x >> 7;
			x ^= x << 17;
		}
		to[i] = (unsigned char)(x >> (i % 8 * 8));
	}
}

static uint64_t hash(const unsigned char *from, size_t n)
{
	uint64_t h = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < n; i++)
		h = (h ^ from[i]) * 0x100000001b3ull;
	return h;
}

static void say(const char *what, long result, int error)
{
	printf("%u.%u %s %ld %d", sequence, number, what, result, error);
}

static void say_line(const char *what, long result, int error)
{
	say(what, result, error);
	putchar('\n');
}

/* The kernel promises no particular descriptor numbers beyond "the lowest", which both runs must agree on. */
static void set_slot(long which, long fd)
{
	if (fd >= 0)
		slot[which] = (int)fd;
}

static void close_slot(long which)
{
	if (slot[which] >= 0) {
		int r = close(slot[which]);

		if (r != 0)
			say_line("close-implied", r, errno);
		slot[which] = -1;
	}
}

static int split(struct iovec *iov, size_t n, long parts)
{
	size_t each = n / (size_t)parts;

	for (long i = 0; i < parts; i++) {
		iov[i].iov_base = buffer + (size_t)i * each;
		iov[i].iov_len = i + 1 < parts ? each : n - (size_t)i * each;
	}
	return (int)parts;
}

static void show_whole(const char *what, int fd)
{
	struct stat st;
	uint64_t h = 0xcbf29ce484222325ull;
	off_t at = 0;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0) {
		say_line(what, -1, errno);
		return;
	}
	while ((n = pread(fd, buffer, BUFFER, at)) > 0) {
		h = h * 31 + hash(buffer, (size_t)n);
		at += n;
	}
	say(what, (long)st.st_size, (int)n);
	printf(" %ld %016" PRIx64 "\n", (long)at, h);
}

static void in_child(long d, size_t n, uint64_t seed, long count)
{
	pid_t pid;
	int status = -1;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		for (long i = 0; i < count; i++) {
			fill(buffer, n, seed + (uint64_t)i);
			if (write(slot[d], buffer, n) != (ssize_t)n)
				_exit(3);
		}
		_exit(lseek(slot[d], 0, SEEK_CUR) < 0 ? 4 : 0);
	}
	if (pid > 0)
		waitpid(pid, &status, 0);
	say("child", pid > 0, status);
	printf(" at %ld\n", (long)lseek(slot[d], 0, SEEK_CUR));
}

static void by_stream(long file, size_t n, uint64_t seed, const char *mode)
{
	FILE *stream = fopen(name_of(file), mode);
	size_t done = 0;
	int closed = -1;

	if (stream) {
		fill(buffer, n, seed);
		done = fwrite(buffer, 1, n, stream);
		closed = fclose(stream);
	}
	say_line("stream", stream ? (long)done : -1, closed);
}

static void by_another_program(long file)
{
	char command[PATH_MAX + 64], line[256] = "";
	FILE *pipe;

	snprintf(command, sizeof command, "{ cksum < '%s'; } 2>/dev/null", name_of(file));
	fflush(stdout);
	pipe = popen(command, "r");
	if (pipe) {
		if (!fgets(line, sizeof line, pipe))
			snprintf(line, sizeof line, "nothing\n");
		pclose(pipe);
	}
	say("program", pipe != NULL, 0);
	printf(" %s", line);
}

static void read_mapped(int fd, size_t n)
{
	struct stat st;
	void *map;

	if (fstat(fd, &st) < 0 || st.st_size == 0) {
		say_line("map", -1, errno);
		return;
	}
	if (n > (size_t)st.st_size)
		n = (size_t)st.st_size;
	map = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		say_line("map", -1, errno);
		return;
	}
	say("map", (long)n, 0);
	printf(" %016" PRIx64 "\n", hash(map, n));
	munmap(map, n);
}

static void begin(void)
{
	static unsigned begun;
	char path[PATH_MAX + 32];

	for (int i = 0; i < SLOTS; i++)
		close_slot(i);
	sequence = begun++;
	number = 0;
	snprintf(path, sizeof path, "%s/s%u", directory, sequence);
	if (mkdir(path, 0700) < 0) {
		perror(path);
		exit(2);
	}
}

/* Repeats one write: what a logger does. */
static void burst(int fd, size_t n, long count, uint64_t seed)
{
	long r = 0, total = 0;

	for (long i = 0; i < count; i++) {
		fill(buffer, n, seed + (uint64_t)i);
		r = write(fd, buffer, n);
		if (r < 0)
			break;
		total += r;
	}
	say_line("burst", r < 0 ? r : total, errno);
}

static void scatter(int fd, size_t n, long count, long stride, uint64_t seed)
{
	long r = 0, total = 0;

	for (long i = 0; i < count; i++) {
		fill(buffer, n, seed + (uint64_t)i);
		/* forth and back, so that pieces meet and overlap */
		r = pwrite(fd, buffer, n, (off_t)(i * 7 % count) * stride);
		if (r < 0)
			break;
		total += r;
	}
	say_line("scatter", r < 0 ? r : total, errno);
}

static int is(const char *what, const char *op) { return strcmp(what, op) == 0; }

static void execute(const char *op, const long *a)
{
	struct iovec iov[16];
	struct stat st;
	long r;

	errno = ERRNO_BEFORE;
	if (is(op, "open")) { /* slot file flags */
		close_slot(a[0]);
		errno = ERRNO_BEFORE;
		r = open(name_of(a[1]), (int)a[2] | O_CLOEXEC, 0644);
		set_slot(a[0], r);
		say_line(op, r, errno);
	} else if (is(op, "write")) { /* slot size seed */
		fill(buffer, (size_t)a[1], (uint64_t)a[2]);
		r = write(slot[a[0]], buffer, (size_t)a[1]);
		say_line(op, r, errno);
	} else if (is(op, "burst")) { /* slot size count seed */
		burst(slot[a[0]], (size_t)a[1], a[2], (uint64_t)a[3]);
	} else if (is(op, "scatter")) { /* slot size count stride seed */
		scatter(slot[a[0]], (size_t)a[1], a[2], a[3], (uint64_t)a[4]);
	} else if (is(op, "pwrite")) { /* slot size offset seed */
		fill(buffer, (size_t)a[1], (uint64_t)a[3]);
		r = pwrite(slot[a[0]], buffer, (size_t)a[1], a[2]);
		say_line(op, r, errno);
	} else if (is(op, "writev")) { /* slot size parts seed */
		fill(buffer, (size_t)a[1], (uint64_t)a[3]);
		r = writev(slot[a[0]], iov, split(iov, (size_t)a[1], a[2]));
		say_line(op, r, errno);
	} else if (is(op, "pwritev")) { /* slot size parts offset seed */
		fill(buffer, (size_t)a[1], (uint64_t)a[4]);
		r = pwritev2(slot[a[0]], iov, split(iov, (size_t)a[1], a[2]), a[3], 0);
		say_line(op, r, errno);
	} else if (is(op, "read") || is(op, "pread") || is(op, "readv")) { /* slot size [offset | parts] */
		memset(buffer, 0, (size_t)a[1]);
		if (is(op, "read"))
			r = read(slot[a[0]], buffer, (size_t)a[1]);
		else if (is(op, "pread"))
			r = pread(slot[a[0]], buffer, (size_t)a[1], a[2]);
		else
			r = readv(slot[a[0]], iov, split(iov, (size_t)a[1], a[2]));
		say(op, r, errno);
		printf(" %016" PRIx64 "\n", hash(buffer, (size_t)a[1]));
	} else if (is(op, "lseek")) { /* slot offset whence */
		r = lseek(slot[a[0]], a[1], (int)a[2]);
		say_line(op, r, errno);
	} else if (is(op, "dup")) { /* slot to */
		close_slot(a[1]);
		errno = ERRNO_BEFORE;
		r = dup(slot[a[0]]);
		set_slot(a[1], r);
		say_line(op, r, errno);
	} else if (is(op, "dup2")) { /* slot to: the descriptor that is there is replaced */
		r = dup2(slot[a[0]], slot[a[1]]);
		say_line(op, r, errno);
	} else if (is(op, "dupfd")) { /* slot to */
		close_slot(a[1]);
		errno = ERRNO_BEFORE;
		r = fcntl(slot[a[0]], F_DUPFD_CLOEXEC, 20);
		set_slot(a[1], r);
		say_line(op, r, errno);
	} else if (is(op, "close")) { /* slot */
		r = close(slot[a[0]]);
		slot[a[0]] = -1;
		say_line(op, r, errno);
	} else if (is(op, "ftruncate")) { /* slot size */
		r = ftruncate(slot[a[0]], a[1]);
		say_line(op, r, errno);
	} else if (is(op, "truncate")) { /* file size */
		r = truncate(name_of(a[0]), a[1]);
		say_line(op, r, errno);
	} else if (is(op, "fsync")) {
		r = fsync(slot[a[0]]);
		say_line(op, r, errno);
	} else if (is(op, "fdatasync")) {
		r = fdatasync(slot[a[0]]);
		say_line(op, r, errno);
	} else if (is(op, "fstat")) {
		r = fstat(slot[a[0]], &st);
		say(op, r, errno);
		printf(" %ld %ld\n", r == 0 ? (long)st.st_size : -1, r == 0 ? (long)st.st_nlink : -1);
	} else if (is(op, "stat")) {
		r = stat(name_of(a[0]), &st);
		say(op, r, errno);
		printf(" %ld %ld\n", r == 0 ? (long)st.st_size : -1, r == 0 ? (long)st.st_nlink : -1);
	} else if (is(op, "rename")) { /* file file */
		r = rename(name_of(a[0]), name_of(a[1]));
		say_line(op, r, errno);
	} else if (is(op, "link")) {
		r = link(name_of(a[0]), name_of(a[1]));
		say_line(op, r, errno);
	} else if (is(op, "unlink")) {
		r = unlink(name_of(a[0]));
		say_line(op, r, errno);
	} else if (is(op, "getfl")) {
		r = fcntl(slot[a[0]], F_GETFL);
		say_line(op, r, errno);
	} else if (is(op, "setfl")) { /* slot flags */
		r = fcntl(slot[a[0]], F_SETFL, (int)a[1]);
		say_line(op, r, errno);
	} else if (is(op, "fallocate")) { /* slot mode offset length */
		r = fallocate(slot[a[0]], (int)a[1], a[2], a[3]);
		say_line(op, r, errno);
	} else if (is(op, "map")) { /* slot size */
		read_mapped(slot[a[0]], (size_t)a[1]);
	} else if (is(op, "child")) { /* slot size seed count */
		in_child(a[0], (size_t)a[1], (uint64_t)a[2], a[3]);
	} else if (is(op, "copy")) { /* from to size: the kernel moves the bytes */
		r = copy_file_range(slot[a[0]], NULL, slot[a[1]], NULL, (size_t)a[2], 0);
		say_line(op, r, errno);
	} else if (is(op, "sendfile")) { /* from to size */
		r = sendfile(slot[a[1]], slot[a[0]], NULL, (size_t)a[2]);
		say_line(op, r, errno);
	} else if (is(op, "lock")) { /* slot */
		struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

		r = fcntl(slot[a[0]], F_SETLK, &whole);
		whole.l_type = F_UNLCK;
		if (r == 0)
			r = fcntl(slot[a[0]], F_SETLK, &whole);
		say_line(op, r, errno);
	} else if (is(op, "stream")) { /* file size seed append */
		by_stream(a[0], (size_t)a[1], (uint64_t)a[2], a[3] ? "a" : "r+");
	} else if (is(op, "program")) { /* file */
		by_another_program(a[0]);
	} else if (is(op, "whole")) { /* slot */
		show_whole(op, slot[a[0]]);
	} else if (is(op, "sleep")) { /* milliseconds */
		nanosleep(&(struct timespec){.tv_sec = a[0] / 1000, .tv_nsec = a[0] % 1000 * 1000000}, NULL);
	} else {
		fprintf(stderr, "interpreter: no operation %s\n", op);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	char line[256], op[32];
	FILE *list = argc == 3 ? fopen(argv[1], "r") : NULL;

	if (!list || !realpath(argv[2], directory)) {
		fprintf(stderr, "usage: interpreter OPERATIONS DIRECTORY\n");
		return 2;
	}
	for (int i = 0; i < SLOTS; i++)
		slot[i] = -1;
	while (fgets(line, sizeof line, list)) {
		long a[ARGS] = {0};

		if (line[0] == '#' || line[0] == '\n')
			continue;
		if (sscanf(line, "%31s %ld %ld %ld %ld %ld %ld", op, &a[0], &a[1], &a[2], &a[3], &a[4],
		           &a[5]) < 1)
			continue;
		if (is(op, "begin")) {
			begin();
			continue;
		}
		execute(op, a);
		number++;
	}
	for (int i = 0; i < SLOTS; i++)
		close_slot(i);
	return 0;
}
