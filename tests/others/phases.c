// SPDX-License-Identifier: Apache-2.0
/*
 * One file in each state that staging has for it: reads commands, answers each with one line.
 *
 *   phases PATH native|staged append|stream|pwrite [STRIDE]
 *
 * "reach STATE" brings the file there by small writes and looks; natively it makes a few writes.  States:
 * fresh, unresolved, passive, attached, detached, anew, each from the one before it.  The answers to all
 * other commands must be the same natively and under the library.  Each byte of the file is a function of its
 * offset, unless "at" writes another one.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { RECORD = 100, MOST = 1 << 16, TRIES = 100000 };

static const char *path;
static bool native, append, positional;
static int fd = -1;
static volatile sig_atomic_t signals;
static char said[8192];

static void on_signal(int number)
{
	(void)number;
	signals = signals + 1;
}

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	size_t n = strlen(said);
	va_list list;

	va_start(list, format);
	vsnprintf(said + n, sizeof said - n, format, list);
	va_end(list);
}

/* A result, and the error if it is one. */
static void result(const char *what, long r)
{
	int error = errno;

	if (r < 0)
		say("%s %s; ", what, strerrorname_np(error));
	else
		say("%s %ld; ", what, r);
}

static void stop(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void fill(char *p, size_t n, off_t at)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (char)(((unsigned long)at + i) * 2654435761u >> 13);
}

/* A system call of our own, past any hook: what the kernel knows. */
static long raw_call(long number, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	long r;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall"
	                 : "=a"(r)
	                 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
	                 : "rcx", "r11", "memory");
	return r;
#else
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory", "cc");
	return x0;
#endif
}

static off_t kernel_size(void)
{
	struct stat st;

	if (raw_call(SYS_fstat, fd, (long)&st, 0, 0) != 0)
		stop("fstat by instruction");
	return st.st_size;
}

static bool kernel_has(const char *text, off_t at)
{
	char found[RECORD];

	return raw_call(SYS_pread64, fd, (long)found, RECORD, at) == RECORD &&
	       memcmp(found, text, RECORD) == 0;
}

/* Where the next write goes, or how much was appended. */
static off_t end;
static off_t stride; /* between two writes at positions */

static ssize_t put(size_t n)
{
	static char text[MOST];
	ssize_t r;

	fill(text, n, end);
	r = positional ? pwrite(fd, text, n, end) : write(fd, text, n);
	if (r > 0)
		end += r + (r == (ssize_t)n ? stride : 0);
	return r;
}

/* A small write: is it staged? */
static bool put_staged(void)
{
	char text[RECORD];
	off_t at = end, size = kernel_size();

	fill(text, RECORD, at);
	if (put(RECORD) != RECORD)
		stop("write");
	return append ? kernel_size() == size : !kernel_has(text, at);
}

static void look(void)
{
	struct stat st;

	if (fstat(fd, &st) || st.st_size < end - stride)
		stop("fstat");
}

static void reach(const char *state)
{
	bool staged = strcmp(state, "attached") == 0 || strcmp(state, "anew") == 0;
	int few = strcmp(state, "fresh") == 0        ? 0
	          : strcmp(state, "unresolved") == 0 ? 3
	          : strcmp(state, "passive") == 0    ? 20
	                                             : 1;

	if (native || few != 1) {
		while (few--)
			if (put_staged())
				look();
		return;
	}
	for (int i = 0, in_a_row = 0; in_a_row < 3; i++) {
		in_a_row = put_staged() == staged ? in_a_row + 1 : 0;
		if (!staged)
			look();
		if (i == TRIES)
			stop(state);
	}
}

/* A soft limit of `room` bytes behind the end, then writes up to it and beyond. */
static void probe_size(off_t room)
{
	static char text[4 * RECORD];
	struct rlimit old, limit;
	struct iovec iov[2] = {{text, RECORD}, {text + RECORD, RECORD}};
	off_t before;

	if (getrlimit(RLIMIT_FSIZE, &old))
		stop("getrlimit");
	limit = old;
	limit.rlim_cur = (rlim_t)(end + room);
	signals = 0;
	result("limit", setrlimit(RLIMIT_FSIZE, &limit));
	before = end;
	for (int i = 0; i < 6; i++)
		result("write", put(RECORD));
	say("signals %d; ", (int)signals);
	result("pwrite", pwrite(fd, text, RECORD, end + 1000));
	fill(text, sizeof text, end);
	result("writev", positional ? pwritev(fd, iov, 2, end) : writev(fd, iov, 2));
	result("truncate", ftruncate(fd, end + 1));
	result("allocate", posix_fallocate(fd, end, 1));
	if (!append && before >= RECORD) {
		fill(text, 4 * RECORD, end - RECORD);
		result("across", pwrite(fd, text, 4 * RECORD, end - RECORD));
	}
	result("position", positional ? 0 : lseek(fd, 0, SEEK_CUR) - end);
	say("signals %d; ", (int)signals);
	limit.rlim_cur = (rlim_t)(end - 10);
	result("below", setrlimit(RLIMIT_FSIZE, &limit));
	result("write", put(RECORD));
	result("sync", fdatasync(fd));
	result("back", setrlimit(RLIMIT_FSIZE, &old));
	result("write", put(RECORD));
	say("written %ld; signals %d", (long)(end - before), (int)signals);
}

/* Opens until no number is left, by several calls. */
static void probe_numbers(void)
{
	enum { LIMIT = 40 };
	int opened[LIMIT], count = 0, pair[2], other;
	struct rlimit old, limit;

	if (getrlimit(RLIMIT_NOFILE, &old))
		stop("getrlimit");
	limit = old;
	limit.rlim_cur = LIMIT;
	result("limit", setrlimit(RLIMIT_NOFILE, &limit));
	while (count < LIMIT && (opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
		say("%d ", opened[count++]);
	result("open", -1);
	result("dup", dup(fd));
	result("dupfd", fcntl(fd, F_DUPFD_CLOEXEC, 5));
	result("again", open(path, O_RDONLY));
	result("socket", socket(AF_UNIX, SOCK_STREAM, 0));
	result("dup2", dup2(fd, LIMIT));
	for (int i = 0; i < 200; i++)
		if (put(RECORD) != RECORD)
			result("write", -1);
	result("sync", fdatasync(fd));
	result("close", close(opened[count - 1]));
	result("pipe", pipe(pair));
	result("open", other = open(path, O_WRONLY | O_APPEND));
	result("close", close(other));
	result("dup", other = dup(fd));
	result("close", close(other));
	result("close", close(opened[2]));
	result("close", close(opened[1]));
	result("pipe", pipe(pair));
	say("%d %d; ", pair[0], pair[1]);
	result("close", close(pair[0]));
	result("close", close(pair[1]));
	for (int i = 0; i < count - 1; i++)
		if (i != 1 && i != 2 && close(opened[i]))
			stop("close");
	result("open", other = open("/dev/null", O_RDONLY));
	result("close", close(other));
	result("back", setrlimit(RLIMIT_NOFILE, &old));
	result("write", put(RECORD));
}

/* Writes of `size` bytes until the first error, then `more`, which fail as well. */
static void probe_errors(size_t size, int most, int more)
{
	int i = 0, error = 0, others = 0;
	ssize_t r = 0;

	for (; i < most && (r = put(size)) >= 0; i++)
		;
	error = errno;
	say("first %s; ", r < 0 ? strerrorname_np(error) : "none");
	for (i = 0; i < more; i++)
		if ((r = put(size)) >= 0 || errno != error)
			others++;
	say("others %d; ", others);
	look();
	result("position", positional ? 0 : lseek(fd, 0, SEEK_CUR) - end);
}

static void verify(void)
{
	static char text[MOST], expected[MOST];
	int again = open(path, O_RDONLY);
	off_t at = 0;
	ssize_t n;

	while ((n = read(again, text, sizeof text)) > 0) {
		fill(expected, (size_t)n, at);
		if (memcmp(text, expected, (size_t)n) != 0) {
			for (ssize_t i = 0; i < n; i++)
				if (text[i] != expected[i]) {
					say("wrong at %ld of %ld; ", (long)at + (long)i, (long)end);
					break;
				}
			break;
		}
		at += n;
	}
	close(again);
	say("size %+ld", (long)(at - end));
}

static void pass_it(const char *name)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	char control[CMSG_SPACE(sizeof fd)] = {0};
	struct iovec iov = {"x", 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	snprintf(to.sun_path, sizeof to.sun_path, "%s", name);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (s < 0 || connect(s, (struct sockaddr *)&to, sizeof to))
		stop(name);
	result("pass", sendmsg(s, &m, 0));
	close(s);
}

/* The descriptor that came is used as one's own. */
static void take_it(const char *name)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	char control[CMSG_SPACE(sizeof fd)], text[1];
	struct iovec iov = {text, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int s = socket(AF_UNIX, SOCK_STREAM, 0), t;

	snprintf(at.sun_path, sizeof at.sun_path, "%s", name);
	if (s < 0 || bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1))
		stop(name);
	printf("listens\n");
	fflush(stdout);
	if ((t = accept(s, NULL, NULL)) < 0 || recvmsg(t, &m, 0) != 1)
		stop(name);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	close(t);
	close(s);
	say("taken");
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal};
	char line[256], name[200] = "";
	long a, b, c;

	if (argc < 4)
		return 2;
	path = argv[1];
	native = strcmp(argv[2], "native") == 0;
	append = strcmp(argv[3], "append") == 0;
	positional = strcmp(argv[3], "pwrite") == 0;
	stride = argc > 4 ? atol(argv[4]) : 0;
	sigaction(SIGXFSZ, &action, NULL);
	while (fgets(line, sizeof line, stdin)) {
		said[0] = '\0';
		a = b = c = 0;
		if (strcmp(line, "open\n") == 0) {
			result("open", fd = open(path, O_RDWR | O_CREAT | (append ? O_APPEND : 0), 0644));
		} else if (sscanf(line, "reach %199s", name) == 1) {
			reach(name);
			say("%s", name);
		} else if (sscanf(line, "put %ld %ld", &a, &b) == 2) { /* COUNT SIZE */
			for (long r = b; a-- > 0 && r == b;)
				if ((r = put((size_t)b)) != b)
					result("write", r);
			say("put");
		} else if (sscanf(line, "at %ld %ld %ld", &a, &b, &c) == 3) { /* OFFSET SIZE BYTE */
			char *text = malloc((size_t)b);

			memset(text, (int)c, (size_t)b);
			result("at", pwrite(fd, text, (size_t)b, a));
			free(text);
		} else if (sscanf(line, "end %ld", &end) == 1) {
			result("seek", lseek(fd, end, SEEK_SET));
		} else if (sscanf(line, "now %ld", &end) == 1) { /* somebody else has written up to there */
			say("now");
		} else if (sscanf(line, "size %ld", &a) == 1) {
			probe_size(a);
		} else if (strcmp(line, "numbers\n") == 0) {
			probe_numbers();
		} else if (sscanf(line, "errors %ld %ld %ld", &a, &b, &c) == 3) {
			probe_errors((size_t)a, (int)b, (int)c);
		} else if (sscanf(line, "failing %ld %ld", &a, &b) == 2) { /* SIZE COUNT */
			int failed = 0, error = 0;

			for (long i = 0; i < b; i++)
				if (put((size_t)a) < 0 && (error == 0 || errno == error)) {
					error = errno;
					failed++;
				}
			say("%s %d", error ? strerrorname_np(error) : "none", failed);
		} else if (sscanf(line, "pass %199s", name) == 1) {
			pass_it(name);
		} else if (sscanf(line, "take %199s", name) == 1) {
			take_it(name);
		} else if (strcmp(line, "staged\n") == 0) {
			say("%d", put_staged());
		} else if (strcmp(line, "where\n") == 0) {
			say("%ld", (long)end);
		} else if (strcmp(line, "sync\n") == 0) {
			result("sync", fdatasync(fd));
		} else if (sscanf(line, "rename %199s", name) == 1) {
			result("rename", rename(path, name));
		} else if (strcmp(line, "verify\n") == 0) {
			verify();
		} else if (strcmp(line, "close\n") == 0) {
			result("close", close(fd));
		} else {
			return 3;
		}
		printf("%s\n", said);
		fflush(stdout);
	}
	return 0;
}
