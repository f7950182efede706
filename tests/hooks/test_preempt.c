// SPDX-License-Identifier: Apache-2.0
/*
 * One thread stopped at any system call of what it does, while another one does all that it has to do.
 * Between two system calls of a hook the world may change: what was looked up is old then.  A tracer stops
 * one of two threads, or of two processes, at its first system call, in the next round at its second, and so
 * on, and lets the other one run meanwhile.  What the calls returned and what the files hold must be what
 * some order of the same calls gives on a file that nobody stages, an order in which a call that had returned
 * comes before one that began later.  A read counts as two: ext4 looks how large the file is, and then
 * copies; what another one wrote in between is seen as far as the file went before.  sendfile copies what
 * there is, and looks again.
 */
#include "hook_test.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>

enum { PIECE = 10, STEPS_MAX = 12, TEXT = 600, STOPS_MOST = 2000, NO_TRACER = 77, LARGE = 70000, FDS = 4 };

/* What a thread that is stopped may hold back, the other one waits for; in vain. */
enum { BLOCKED_US = 4000, HANGS_US = 120000000 };

/* A directory, and the descriptors on what is in it: those that the library stages for, or those that it does
 * not. */
struct world {
	const char *dir;
	int more; /* flags of the open */
	int fd[FDS];
	FILE *stream;
};

typedef long step(struct world *w, int arg, char *out);

struct does {
	step *step;
	int arg;
};

static char *path_of(const struct world *w, char name, char *path)
{
	sprintf(path, "%s/%c", w->dir, name);
	return path;
}

static char *path_outside(const struct world *w, char *path)
{
	sprintf(path, "outside/of-%s", w->dir);
	return path;
}

static void piece_fill(char *piece, int number) { snprintf(piece, PIECE + 1, "<%08d>", number); }

/* Bytes as text: a row of equal ones as their number. */
static void squeeze(const char *bytes, size_t size, char *out)
{
	char *end = out + TEXT - 40;

	for (size_t at = 0, n; at < size && out < end; at += n) {
		for (n = 1; at + n < size && bytes[at + n] == bytes[at]; n++)
			;
		if (n > 10)
			out += sprintf(out, "{%zu*%02x}", n, (unsigned char)bytes[at]);
		else
			for (size_t i = 0; i < n; i++)
				*out++ = bytes[at] ? bytes[at] : '.';
	}
	*out = '\0';
}

static void read_whole(int fd, char *out, size_t most)
{
	static char bytes[4 * LARGE]; /* (one thread at a time looks) */
	size_t size = 0;
	ssize_t n;

	while (size < sizeof bytes && (n = read(fd, bytes + size, sizeof bytes - size)) > 0)
		size += (size_t)n;
	squeeze(bytes, size < most ? size : most, out);
}

/* Where others write between the halves of a read: how large the file was in the first (or what it had
 * copied), or -1. */
static long seen = -1;

/* As much of `size` bytes as there was then; an offset of -1 is the position. */
static size_t as_seen(size_t size, int fd, off_t offset)
{
	if (seen < 0)
		return size;
	if (offset < 0)
		offset = lseek(fd, 0, SEEK_CUR);
	if (seen <= offset)
		return 0;
	return (size_t)(seen - offset) < size ? (size_t)(seen - offset) : size;
}

/* ---- the steps; arg is the number of a piece, the index of a descriptor, or a size ---- */

static long put(int fd, int number)
{
	char piece[PIECE + 1];

	piece_fill(piece, number);
	return write(fd, piece, PIECE);
}

static long does_write(struct world *w, int arg, char *out)
{
	(void)out;
	return put(w->fd[arg / 100], arg);
}

/* By a stream without a buffer, which is left behind in the end. */
static long does_put(struct world *w, int arg, char *out)
{
	char piece[PIECE + 1];

	(void)out;
	if (!w->stream) {
		w->stream = fdopen(w->fd[0], w->more & O_APPEND ? "a" : "w");
		if (!w->stream)
			return -1; /* the number is another file's by now */
		setvbuf(w->stream, NULL, _IONBF, 0);
	}
	piece_fill(piece, arg);
	return fputs(piece, w->stream) < 0 ? -1 : 0;
}

static long does_pwrite(struct world *w, int arg, char *out)
{
	char piece[PIECE + 1];

	(void)out;
	piece_fill(piece, arg);
	return pwrite(w->fd[arg / 100], piece, PIECE, 15);
}

static long does_write_large(struct world *w, int arg, char *out)
{
	static char large[LARGE];

	(void)out;
	memset(large, 'L', LARGE);
	return write(w->fd[arg], large, LARGE);
}

static long does_write_syscall(struct world *w, int arg, char *out)
{
	char piece[PIECE + 1];

	(void)out;
	piece_fill(piece, arg);
	return syscall(SYS_write, w->fd[arg / 100], piece, (size_t)PIECE);
}

/* Into the second descriptor of the world. */
static long opened(struct world *w, int fd)
{
	w->fd[1] = fd;
	return fd < 0 ? -1 : 0;
}

static long does_open(struct world *w, int arg, char *out)
{
	char path[64];

	(void)out;
	return opened(w, open(path_of(w, 'a', path), arg | O_CLOEXEC, 0644));
}

/* What path it is, only the kernel knows. */
static long does_open_beneath(struct world *w, int arg, char *out)
{
	struct open_how how = {.flags = (unsigned)arg | O_CLOEXEC, .resolve = RESOLVE_BENEATH};
	int dir = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	long fd = syscall(SYS_openat2, dir, "a", &how, sizeof how);

	(void)out;
	close(dir);
	return opened(w, (int)fd);
}

/* Without one: needs root. */
static long does_open_by_handle(struct world *w, int arg, char *out)
{
	struct {
		struct file_handle handle;
		char room[MAX_HANDLE_SZ];
	} of = {.handle.handle_bytes = MAX_HANDLE_SZ};
	int dir = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), id, fd = -1;

	(void)out;
	if (name_to_handle_at(dir, "a", &of.handle, &id, 0) == 0)
		fd = open_by_handle_at(dir, &of.handle, arg | O_CLOEXEC);
	close(dir);
	return opened(w, fd);
}

static long does_open_new_name(struct world *w, int arg, char *out)
{
	char path[64];

	(void)out;
	return opened(w, open(path_of(w, 'b', path), arg | O_CLOEXEC, 0644));
}

static long does_close(struct world *w, int arg, char *out)
{
	(void)out;
	return close(w->fd[arg]); /* the number stays: whoever writes to it finds out what it is by then */
}

static long does_read(struct world *w, int arg, char *out)
{
	char bytes[1000];
	ssize_t n = read(w->fd[arg], bytes, as_seen(sizeof bytes, w->fd[arg], -1));

	squeeze(bytes, n > 0 ? (size_t)n : 0, out);
	return n;
}

static long does_pread(struct world *w, int arg, char *out)
{
	char bytes[1000];
	ssize_t n = pread(w->fd[arg], bytes, as_seen(sizeof bytes, w->fd[arg], 5), 5);

	squeeze(bytes, n > 0 ? (size_t)n : 0, out);
	return n;
}

static long does_lseek(struct world *w, int arg, char *out)
{
	(void)out;
	return lseek(w->fd[0], arg < 0 ? 0 : arg, arg == -1 ? SEEK_CUR : arg == -2 ? SEEK_END : SEEK_SET);
}

static long does_fstat(struct world *w, int arg, char *out)
{
	struct stat st;

	(void)out;
	return fstat(w->fd[arg], &st) == 0 ? st.st_size : -1;
}

static long does_stat(struct world *w, int arg, char *out)
{
	char path[64];
	struct stat st;

	(void)arg;
	(void)out;
	return stat(path_of(w, 'a', path), &st) == 0 ? st.st_size * 10 + (long)st.st_nlink : -1;
}

static long does_ftruncate(struct world *w, int arg, char *out)
{
	(void)out;
	return ftruncate(w->fd[0], arg);
}

static long does_truncate(struct world *w, int arg, char *out)
{
	char path[64];

	(void)out;
	return truncate(path_of(w, 'a', path), arg);
}

static long does_fallocate(struct world *w, int arg, char *out)
{
	(void)out;
	return fallocate(w->fd[0], 0, 0, arg);
}

static long does_punch(struct world *w, int arg, char *out)
{
	(void)out;
	return fallocate(w->fd[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, arg);
}

static long does_rename(struct world *w, int arg, char *out)
{
	char from[64], to[64];

	(void)arg;
	(void)out;
	return rename(path_of(w, 'a', from), path_of(w, 'b', to));
}

static long does_rename_over(struct world *w, int arg, char *out)
{
	char from[64], to[64];

	(void)arg;
	(void)out;
	return rename(path_of(w, 'c', from), path_of(w, 'a', to));
}

static long does_link(struct world *w, int arg, char *out)
{
	char from[64], to[64];

	(void)arg;
	(void)out;
	return link(path_of(w, 'a', from), path_of(w, 'b', to));
}

static long does_unlink(struct world *w, int arg, char *out)
{
	char path[64];

	(void)arg;
	(void)out;
	return unlink(path_of(w, 'a', path));
}

static long does_dup(struct world *w, int arg, char *out)
{
	(void)arg;
	(void)out;
	return opened(w, dup(w->fd[0]));
}

/* Another file takes its number. */
static long does_dup2(struct world *w, int arg, char *out)
{
	(void)arg;
	(void)out;
	return dup2(w->fd[2], w->fd[0]) < 0 ? -1 : 0;
}

/* A file that no rule has: `outside` is excluded. */
static long does_open_outside(struct world *w, int arg, char *out)
{
	char path[64];

	(void)arg;
	(void)out;
	w->fd[3] = open(path_outside(w, path), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	return w->fd[3] < 0 ? -1 : 0;
}

/* Another file takes the number of that one. */
static long does_dup2_third(struct world *w, int arg, char *out)
{
	(void)arg;
	(void)out;
	return dup2(w->fd[2], w->fd[3]) < 0 ? -1 : 0;
}

/* A copy of one's own, by dup or fcntl. */
static long does_copy(struct world *w, int arg, char *out)
{
	(void)out;
	w->fd[3] = arg ? fcntl(w->fd[0], F_DUPFD_CLOEXEC, 0) : dup(w->fd[0]);
	return w->fd[3] < 0 ? -1 : 0;
}

/* It takes the other file's number. */
static long does_dup2_back(struct world *w, int arg, char *out)
{
	(void)arg;
	(void)out;
	return dup2(w->fd[0], w->fd[2]) < 0 ? -1 : 0;
}

static long does_sync(struct world *w, int arg, char *out)
{
	(void)out;
	return fdatasync(w->fd[arg]);
}

static long does_map(struct world *w, int arg, char *out)
{
	char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w->fd[0], 0);

	(void)arg;
	(void)out;
	if (at == MAP_FAILED)
		return -1;
	at[2] = 'M'; /* within what is there in any case */
	return munmap(at, 4096);
}

static long does_setfl(struct world *w, int arg, char *out)
{
	(void)out;
	return fcntl(w->fd[0], F_SETFL, arg);
}

static long does_getfl(struct world *w, int arg, char *out)
{
	(void)out;
	return fcntl(w->fd[arg], F_GETFL);
}

/* From the file of the first descriptor to that of the third; or on from where the first half of it came to.
 */
static long does_sendfile(struct world *w, int arg, char *out)
{
	off_t done = seen > 0 ? seen : 0, from = done;
	ssize_t n = sendfile(w->fd[2], w->fd[0], &from, (size_t)(arg - done));

	(void)out;
	return n < 0 ? n : done + n;
}

/* (Without a position: it would be the kernel's at the beginning and is set at the end, whoever writes
 * meanwhile.) */
static long does_copy_into(struct world *w, int arg, char *out)
{
	off64_t from = 0, to = 15;

	(void)out;
	return copy_file_range(w->fd[2], &from, w->fd[0], &to, (size_t)arg, 0);
}

static long does_fork(struct world *w, int arg, char *out)
{
	int status;
	pid_t pid = fork();

	(void)out;
	if (pid == 0)
		_exit(put(w->fd[0], arg) == PIECE ? 0 : 1);
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

/* Another program looks. */
static long does_spawn(struct world *w, int arg, char *out)
{
	char command[100];
	FILE *file;

	(void)arg;
	sprintf(command, "dd if=%s/a bs=64K count=1 status=none", w->dir); /* one read */
	file = popen(command, "r");
	if (!file)
		return -1;
	read_whole(fileno(file), out, as_seen(SIZE_MAX, -1, 0));
	return pclose(file);
}

static long does_append_stream(struct world *w, int arg, char *out)
{
	char path[64];
	FILE *file = fopen(path_of(w, 'a', path), "a");

	(void)out;
	if (!file)
		return -1;
	fprintf(file, "<%08d>", arg);
	return fclose(file);
}

static long does_read_stream(struct world *w, int arg, char *out)
{
	char path[64], bytes[5]; /* which are there, so that one read is enough */
	FILE *file = fopen(path_of(w, 'a', path), "r");
	size_t n;

	(void)arg;
	if (!file)
		return -1;
	n = fread(bytes, 1, sizeof bytes, file);
	squeeze(bytes, n, out);
	return fclose(file);
}

static long does_lock(struct world *w, int arg, char *out)
{
	struct flock lock = {.l_type = (short)arg, .l_whence = SEEK_SET};

	(void)out;
	return fcntl(w->fd[0], F_SETLK, &lock);
}

/* Sent to oneself: a descriptor that comes from nowhere. */
static long does_pass(struct world *w, int arg, char *out)
{
	char byte = 'x', room[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct iovec iov = {&byte, 1};
	struct msghdr m = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int pair[2], fd = -1;

	(void)arg;
	(void)out;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &w->fd[0], sizeof(int));
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 || sendmsg(pair[0], &m, 0) != 1)
		return -1;
	m.msg_controllen = sizeof room;
	if (recvmsg(pair[1], &m, MSG_CMSG_CLOEXEC) == 1)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	close(pair[0]);
	close(pair[1]);
	return opened(w, fd);
}

static long does_chmod(struct world *w, int arg, char *out)
{
	struct stat st;

	(void)out;
	return fchmod(w->fd[0], (mode_t)arg) == 0 && fstat(w->fd[0], &st) == 0 ? (long)st.st_mode : -1;
}

/* The first half of a step that reads: what is `seen` in the second one. */
static long first_half(struct world *w, const struct does *d)
{
	char path[64], out[TEXT];
	struct stat st;

	if (d->step == does_sendfile)
		return does_sendfile(w, d->arg, out);
	if (d->step == does_spawn ? stat(path_of(w, 'a', path), &st) != 0 : fstat(w->fd[d->arg], &st) != 0)
		return -1;
	return st.st_size;
}

static bool has_halves(step *s)
{
	return s == does_read || s == does_pread || s == does_sendfile || s == does_spawn;
}

/* All that there is in the end. */
static long does_look(struct world *w, int arg, char *out)
{
	(void)arg;
	for (char name = 'a'; name <= 'd'; name++) {
		char path[64], bytes[TEXT];
		int fd = open(name == 'd' ? path_outside(w, path) : path_of(w, name, path),
		              O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		read_whole(fd, bytes, SIZE_MAX);
		close(fd);
		out += snprintf(out, TEXT, "%c:%.160s ", name, bytes);
	}
	for (int i = 0; i < 2; i++)
		out += sprintf(out, "%d ", (int)lseek(w->fd[i], 0, SEEK_CUR));
	return 0;
}

/* ---- what two threads do ---- */

#define APPENDS (O_WRONLY | O_APPEND)
#define END {NULL, 0}
enum { WRITER_CLOSES = 1, WRITER_COPIES = 3, WRITER_TAKES_BACK = 4, WRITER_BYPASSED = 5, WRITER_NO_RULE = 6 };

static const struct does writers[][STEPS_MAX] = {
	{{does_write, 1}, {does_write, 2}, {does_write, 3}, END},
	{{does_write, 1}, {does_write, 2}, {does_sync, 0}, {does_write, 3}, {does_close, 0}, END},
	{{does_put, 1}, {does_write_syscall, 2}, {does_put, 3}, END},
	{{does_copy, 0}, {does_write, 301}, {does_copy, 1}, {does_write, 302}, {does_write, 303}, END},
	{{does_dup2_back, 0}, {does_write, 201}, {does_write, 202}, {does_write, 3}, END},
	{{does_map, 0}, {does_write, 1}, {does_write, 2}, {does_write, 3}, END},
	{{does_open_outside, 0}, {does_write, 301}, {does_write, 302}, {does_write, 303}, END},
};

static const struct {
	const char *name;
	struct does does[STEPS_MAX];
	bool not_beside_close; /* which would be of what has got the number meanwhile */
} others[] = {
	{"appends",
         {{does_open, APPENDS}, {does_write, 101}, {does_write, 102}, {does_close, 1}, END},
         false},
	{"writes",
         {{does_open, O_RDWR}, {does_write, 101}, {does_write, 102}, {does_read, 1}, {does_close, 1}, END},
         false},
	{"reads", {{does_open, O_RDONLY}, {does_read, 1}, {does_read, 1}, {does_close, 1}, END}, false},
	{"reads twice", {{does_open, O_RDONLY}, {does_read, 1}, {does_stat, 0}, {does_pread, 1}, END}, false},
	{"opens anew",
         {{does_open, O_WRONLY | O_TRUNC}, {does_write, 101}, {does_write, 102}, {does_close, 1}, END},
         false},
	{"opens anew beneath",
         {{does_open_beneath, O_WRONLY | O_TRUNC},
          {does_write, 101},
          {does_write, 102},
          {does_close, 1},
          END},
         false},
	{"opens anew by handle",
         {{does_open_by_handle, O_WRONLY | O_TRUNC},
          {does_write, 101},
          {does_write, 102},
          {does_close, 1},
          END},
         false},
	{"cuts", {{does_ftruncate, 0}, {does_fstat, 0}, END}, false},
	{"cuts in the middle", {{does_ftruncate, 15}, {does_fstat, 0}, END}, false},
	{"cuts by name", {{does_truncate, 5}, {does_stat, 0}, END}, false},
	{"cuts and writes", {{does_ftruncate, 0}, {does_write, 51}, {does_fstat, 0}, END}, false},
	{"makes it larger", {{does_ftruncate, 55}, {does_fstat, 0}, END}, false},
	{"allocates", {{does_fallocate, 100}, {does_fstat, 0}, END}, false},
	{"punches", {{does_punch, 4096}, {does_pread, 0}, END}, false},
	{"renames",
         {{does_rename, 0},
          {does_open_new_name, O_RDONLY},
          {does_read, 1},
          {does_open, APPENDS | O_CREAT},
          {does_write, 101},
          END},
         false},
	{"renames over it",
         {{does_rename_over, 0}, {does_open, APPENDS}, {does_write, 101}, {does_write, 102}, END},
         false},
	{"links",
         {{does_link, 0},
          {does_open_new_name, APPENDS},
          {does_write, 101},
          {does_unlink, 0},
          {does_write, 102},
          END},
         false},
	{"unlinks",
         {{does_unlink, 0}, {does_open, APPENDS | O_CREAT}, {does_write, 101}, {does_write, 102}, END},
         false},
	{"copies the descriptor",
         {{does_dup, 0}, {does_write, 101}, {does_write, 102}, {does_close, 1}, END},
         false},
	{"takes the number", {{does_dup2, 0}, {does_write, 51}, {does_write, 52}, END}, false},
	{"takes the third number", {{does_dup2_third, 0}, {does_write, 351}, {does_write, 352}, END}, false},
	{"closes", {{does_close, 0}, {does_open, APPENDS}, {does_write, 101}, END}, false},
	{"writes with it", {{does_write, 51}, {does_write, 52}, END}, false},
	{"writes in the middle", {{does_pwrite, 51}, {does_pread, 0}, END}, false},
	{"writes much", {{does_write_large, 0}, {does_fstat, 0}, END}, false},
	{"writes by system call",
         {{does_write_syscall, 51}, {does_write_syscall, 52}, {does_fstat, 0}, END},
         false},
	{"reads with it", {{does_read, 0}, {does_write, 51}, END}, false},
	{"looks", {{does_fstat, 0}, {does_pread, 0}, {does_stat, 0}, END}, false},
	{"seeks", {{does_lseek, -1}, {does_lseek, -2}, {does_write, 51}, {does_lseek, 7}, END}, false},
	{"syncs", {{does_sync, 0}, {does_write, 51}, {does_sync, 0}, END}, false},
	{"maps", {{does_map, 0}, {does_pread, 0}, END}, false},
	{"changes the flags",
         {{does_setfl, O_APPEND}, {does_write, 51}, {does_setfl, 0}, {does_getfl, 0}, END},
         false},
	{"copies it out", {{does_sendfile, 50}, {does_fstat, 2}, END}, false},
	{"copies into it", {{does_copy_into, 5}, {does_write, 51}, END}, false},
	{"forks", {{does_fork, 51}, {does_write, 52}, END}, false},
	{"starts a program", {{does_spawn, 0}, {does_write, 51}, END}, false},
	{"appends to a stream",
         {{does_append_stream, 101}, {does_append_stream, 102}, {does_stat, 0}, END},
         false},
	{"reads a stream", {{does_read_stream, 0}, {does_read_stream, 0}, END}, false},
	{"locks", {{does_lock, F_WRLCK}, {does_write, 51}, {does_lock, F_UNLCK}, END}, false},
	{"passes it on", {{does_pass, 0}, {does_write, 101}, {does_write, 102}, {does_close, 1}, END}, true},
	{"appends durably",
         {{does_open, APPENDS | O_DSYNC}, {does_write, 101}, {does_write, 102}, {does_close, 1}, END},
         false},
	{"changes its mode", {{does_chmod, 0600}, {does_write, 51}, END}, false},
};

enum { WRITERS = sizeof writers / sizeof writers[0], OTHERS = sizeof others / sizeof others[0] };

/* Before both: a file with a little in it, staged or not, and another one. */
static void set_up(struct world *w, const char *dir, bool appends, bool staged)
{
	char path[64];

	*w = (struct world){.dir = dir, .more = appends ? O_APPEND : 0, .fd = {-1, -1, -1, -1}};
	w->fd[2] = open(path_of(w, 'c', path), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	CHILD(w->fd[2] >= 0 && put(w->fd[2], 90) == PIECE);
	w->fd[0] = open(path_of(w, 'a', path), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | w->more, 0644);
	CHILD(w->fd[0] >= 0);
	for (int i = 0; staged && i < 4; i++)
		CHILD(put(w->fd[0], 10 + i) == PIECE);
	if (!staged)
		CHILD(pwrite(w->fd[0], "<old>", 5, 0) == 5);
}

static void tear_down(struct world *w)
{
	for (int i = 0; i < FDS; i++)
		if (w->fd[i] >= 0)
			close(w->fd[i]);
	for (char name = 'a'; name <= 'c'; name++) {
		char path[64];

		unlink(path_of(w, name, path));
		unlink(path_outside(w, path));
	}
}

/* ---- the program that is gone through ---- */

struct run {
	const struct does *does;
	int count;
	struct done {
		long r;
		int error;
		unsigned began, ended;
		char text[TEXT];
	} done[STEPS_MAX];
};

/* Added to whose turn it is in an order, or to a command: only the first half of a step. */
enum { HALF = 100 };

struct shared {
	_Atomic int tid, counts, go_on, other_may, other_done;
	_Atomic bool wrong;
	char message[8000];
	struct run run[2];
	_Atomic unsigned clock;
	/* what the second process is to do in an order: 1 + the step, or that and HALF for its first half; -1
	 * to end */
	_Atomic int command;
	struct done done;
};

static struct shared *shared;
static struct world real_world;
static bool processes; /* two of them, instead of two threads */
#define runs (shared->run)
#define stamp (shared->clock)

/* Between processes, and without a spin: both processors are wanted elsewhere. */
static void set_and_wake(_Atomic int *word, int value)
{
	atomic_store(word, value);
	raw_call(SYS_futex, (long)word, FUTEX_WAKE, INT_MAX, 0);
}

static void wait_while(_Atomic int *word, int value)
{
	while (atomic_load(word) == value)
		raw_call(SYS_futex, (long)word, FUTEX_WAIT, value, 0);
}

static void do_step(struct world *w, const struct does *d, struct done *done)
{
	memset(done->text, 0, sizeof done->text);
	errno = 0;
	done->began = atomic_fetch_add(&stamp, 1);
	done->r = d->step(w, d->arg, done->text);
	done->ended = atomic_fetch_add(&stamp, 1);
	done->error = done->r < 0 ? errno : 0;
}

static void do_run(struct run *r)
{
	for (int i = 0; i < r->count; i++)
		do_step(&real_world, &r->does[i], &r->done[i]);
}

static void *stopped_main(void *arg)
{
	atomic_store(&shared->tid, (int)raw_call(SYS_gettid, 0, 0, 0, 0));
	wait_while(&shared->go_on, 0);
	atomic_store(&shared->counts, 1);
	do_run(arg);
	atomic_store(&shared->counts, 2);
	raw_call(SYS_sched_yield, 0, 0, 0, 0);
	return NULL;
}

static void *other_main(void *arg)
{
	wait_while(&shared->other_may, 0);
	do_run(arg);
	atomic_store(&shared->other_done, 1);
	return NULL;
}

static void describe(const struct run *r, const char *who)
{
	char *at = shared->message + strlen(shared->message);
	char *end = shared->message + sizeof shared->message;

	for (int i = 0; i < r->count && at < end - 900; i++)
		at += snprintf(at, (size_t)(end - at), "  %s %d [%u, %u]: %ld (errno %d) %.250s\n", who, i,
		               r->done[i].began, r->done[i].ended, r->done[i].r, r->done[i].error,
		               r->done[i].text);
}

static pid_t second_process(struct world *w)
{
	pid_t pid = fork();
	int command;

	CHILD(pid >= 0);
	if (pid > 0)
		return pid;
	for (;;) {
		wait_while(&shared->command, 0);
		command = atomic_load(&shared->command);
		if (command < 0)
			_exit(0);
		if (command > HALF) {
			seen = first_half(w, &runs[1].does[command - HALF - 1]);
		} else {
			do_step(w, &runs[1].does[command - 1], &shared->done);
			seen = -1;
		}
		set_and_wake(&shared->command, 0);
	}
}

static void tell_second_process(int command)
{
	set_and_wake(&shared->command, command);
	if (command > 0)
		wait_while(&shared->command, command);
}

/* One order, on files that nobody stages: the number of steps that gave the same. */
static int same_in_order(const char *order, int total, bool appends, bool staged, const struct done *last)
{
	int next[2] = {0, 0}, same = 0;
	long sizes[2] = {-1, -1};
	struct world w;
	pid_t pid = 0;

	set_up(&w, "outside", appends, staged);
	atomic_store(&shared->command, 0);
	if (processes)
		pid = second_process(&w);
	while (same <= total) {
		int turn = same < total ? *order++ : 0, who = turn % HALF;
		const struct does look = {does_look, 0};
		const struct does *d = same < total ? &runs[who].does[next[who]] : &look;
		const struct done *is = same < total ? &runs[who].done[next[who]] : last;
		struct done got;

		if (turn != who) {
			if (pid > 0 && who == 1)
				tell_second_process(HALF + 1 + next[1]);
			else
				sizes[who] = first_half(&w, d);
			continue;
		}
		if (pid > 0 && same == total) {
			tell_second_process(-1);
			CHILD(waitpid(pid, NULL, 0) == pid);
			pid = 0;
		}
		if (pid > 0 && who == 1) {
			tell_second_process(1 + next[1]);
			got = shared->done;
		} else {
			seen = sizes[who];
			do_step(&w, d, &got);
			seen = sizes[who] = -1;
		}
		if (got.r != is->r || got.error != is->error || strcmp(got.text, is->text) != 0)
			break;
		next[who]++;
		same++;
	}
	if (pid > 0) {
		tell_second_process(-1);
		CHILD(waitpid(pid, NULL, 0) == pid);
	}
	tear_down(&w);
	return same;
}

/* Is there an order that explains it?  `next` are the steps that come next, `half` whose next one is half
 * done. */
static bool explained(char *order, int at, int total, const int *next, const bool *half, bool appends,
                      bool staged, const struct done *last, int *best)
{
	int same;

	if (next[0] + next[1] == total) {
		same = same_in_order(order, total, appends, staged, last);
		if (same > *best)
			*best = same;
		return same > total;
	}
	for (int who = 0; who < 2; who++) {
		bool others_left = next[!who] < runs[!who].count;
		const struct done *its = &runs[who].done[next[who]],
				  *others_next = &runs[!who].done[next[!who]];
		int then[2] = {next[0], next[1]};
		bool halves[2] = {half[0], half[1]};

		if (next[who] == runs[who].count)
			continue;
		/* the other's next one had returned before this one began */
		if (others_left && others_next->ended < its->began)
			continue;
		order[at] = (char)who;
		then[who]++;
		halves[who] = false;
		if (explained(order, at + 1, total, then, halves, appends, staged, last, best))
			return true;
		if (half[who] || !has_halves(runs[who].does[next[who]].step) || !others_left ||
		    others_next->began > its->ended)
			continue;
		order[at] = (char)(HALF + who);
		halves[who] = true;
		if (explained(order, at + 1, total, next, halves, appends, staged, last, best))
			return true;
	}
	return false;
}

static int count_of(const struct does *d)
{
	int n = 0;

	while (d[n].step)
		n++;
	return n;
}

static void race_in_threads(int stops_other)
{
	pthread_t threads[2];

	CHILD(pthread_create(&threads[0], NULL, stopped_main, &runs[stops_other]) == 0);
	CHILD(pthread_create(&threads[1], NULL, other_main, &runs[!stops_other]) == 0);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
}

/* The other one in a child. */
static void race_in_processes(int stops_other)
{
	pid_t pid = fork();
	int status;

	CHILD(pid >= 0);
	if ((pid == 0) == stops_other)
		stopped_main(&runs[stops_other]);
	else
		other_main(&runs[!stops_other]);
	if (pid == 0)
		_exit(0);
	CHILD(waitpid(pid, &status, 0) == pid && status == 0);
}

/* The arguments: which of both is stopped; the writer; the other; whether it appends; whether it is staged
 * before; whether they are processes. */
static int be_stopped(char **argv)
{
	int stops_other = atoi(argv[0]), writer = atoi(argv[1]), other = atoi(argv[2]);
	bool appends = atoi(argv[3]), staged = atoi(argv[4]);
	const struct does look = {does_look, 0};
	char order[2 * 2 * STEPS_MAX]; /* each step in two halves */
	const int first[2] = {0, 0};
	const bool none[2] = {false, false};
	struct done last;
	int best = -1;

	signal(SIGPIPE, SIG_IGN); /* a socket may get the number of a file that was closed */
	processes = atoi(argv[5]);
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[6]), 0);
	CHILD(shared != MAP_FAILED && close(atoi(argv[6])) == 0);
	runs[0] = (struct run){.does = writers[writer], .count = count_of(writers[writer])};
	runs[1] = (struct run){.does = others[other].does, .count = count_of(others[other].does)};
	set_up(&real_world, "in", appends, staged);
	if (processes)
		race_in_processes(stops_other);
	else
		race_in_threads(stops_other);
	do_step(&real_world, &look, &last);
	tear_down(&real_world);
	if (!explained(order, 0, runs[0].count + runs[1].count, first, none, appends, staged, &last, &best)) {
		describe(&runs[0], "writer");
		describe(&runs[1], "other");
		sprintf(shared->message + strlen(shared->message), "  in the end: %.400s\n  best order: %d\n",
		        last.text, best);
		atomic_store(&shared->wrong, true);
	}
	return 0;
}

/* ---- the tracer ---- */

static void snooze(void)
{
	const struct timespec t = {.tv_nsec = 50000};

	raw_call(SYS_nanosleep, (long)&t, 0, 0, 0);
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static bool comes(_Atomic int *flag, double us)
{
	double end = now_us() + us;

	while (!atomic_load(flag)) {
		if (now_us() > end)
			return false;
		snooze();
	}
	return true;
}

static const char *program;
static unsigned cases, wrong;

/* Nothing of what others do differs before and after these. */
static bool is_neutral(int tid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0)
		return false;
	if (info.op == PTRACE_SYSCALL_INFO_EXIT)
		return true;
	if (info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return false;
	switch (info.entry.nr) {
	case SYS_getpid:
	case SYS_gettid:
	case SYS_geteuid:
	case SYS_getegid:
	case SYS_process_vm_readv:
	case SYS_rt_sigprocmask:
	case SYS_rt_sigpending:
	case SYS_sigaltstack:
	case SYS_sched_yield:
	case SYS_mincore:
	case SYS_prlimit64: return true;
	default: return false;
	}
}

/* Stops the thread at its `stop`th system call.  False: it has not so many. */
static bool preempt(const char *const *args, int memory, int stop)
{
	char number[16];
	const char *argv[] = {program, "--stopped", args[0], args[1], args[2],
	                      args[3], args[4],     args[5], number,  NULL};
	bool over = false;
	int status, seen = 0;
	double end;
	pid_t pid;

	memset(shared, 0, sizeof *shared);
	sprintf(number, "%d", memory);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		execv(program, (char *const *)argv);
		_exit(98);
	}
	assert_true(pid > 0);
	if (!comes(&shared->tid, HANGS_US))
		fail_msg("it does not begin");
	if (ptrace(PTRACE_SEIZE, shared->tid, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACESYSGOOD) != 0) {
		kill(pid, SIGKILL);
		print_message("nothing may be traced here\n");
		skip();
	}
	OK(ptrace(PTRACE_INTERRUPT, shared->tid, 0, 0));
	assert_int_equal(waitpid(shared->tid, &status, __WALL), shared->tid);
	set_and_wake(&shared->go_on, 1);
	while (seen < stop && !over) {
		OK(ptrace(PTRACE_SYSCALL, shared->tid, 0, 0));
		assert_int_equal(waitpid(shared->tid, &status, __WALL), shared->tid);
		if (!WIFSTOPPED(status))
			fail_msg("it ends with %#x", (unsigned)status);
		over = atomic_load(&shared->counts) == 2;
		seen += atomic_load(&shared->counts) == 1 && !is_neutral(shared->tid);
	}
	set_and_wake(&shared->other_may, 1);
	if (!over)
		comes(&shared->other_done, BLOCKED_US);
	OK(ptrace(PTRACE_DETACH, shared->tid, 0, 0));
	for (end = now_us() + HANGS_US; waitpid(pid, &status, WNOHANG) == 0; snooze())
		if (now_us() > end) {
			kill(pid, SIGKILL);
			fail_msg("%s hangs, stopped at %d", others[atoi(args[2])].name, stop);
		}
	cases++;
	if (status != 0)
		fail_msg("it ends with %#x, stopped at %d", (unsigned)status, stop);
	if (shared->wrong) {
		wrong++;
		print_message("no order explains it: the other%s %s; %s stopped at %d, writer %s, %s, %s\n%s",
		              atoi(args[5]) ? " process" : "", others[atoi(args[2])].name,
		              atoi(args[0]) ? "the other" : "the writer", stop, args[1],
		              atoi(args[3]) ? "appending" : "at its position",
		              atoi(args[4]) ? "staged before" : "not staged before", shared->message);
	}
	return !over;
}

static bool has_step(const struct does *does, step *step)
{
	while (does->step && does->step != step)
		does++;
	return does->step == step;
}

/* A write that the library passes to the kernel without a note, while its descriptor gets another file. */
static bool is_replaced_unseen(int writer, int other)
{
	return (writer == WRITER_BYPASSED && has_step(others[other].does, does_dup2)) ||
	       (writer == WRITER_NO_RULE && has_step(others[other].does, does_dup2_third));
}

/* FASTWRITE_TEST_LONG=1: at each of its system calls; else at some, others in each of these tests, and in
 * each run. */
static int stride(int writer, int other)
{
	enum { STRIDE = 240 };

	return is_long() || is_replaced_unseen(writer, other) ? 1 : STRIDE;
}

/* Not each pair in each of these tests. */
static bool is_left_out(int writer, int other, int tests)
{
	return !is_long() && !is_replaced_unseen(writer, other) &&
	       (writer + other + tests + (int)begin_of_run()) % 2 != 0;
}

/* Where what is right cannot be told; or what would only repeat other pairs. */
static bool is_vague(int writer, int other)
{
	const struct does *does = others[other].does;

	return (writer >= WRITER_BYPASSED && !is_replaced_unseen(writer, other)) ||
	       (writer == WRITER_CLOSES && others[other].not_beside_close) ||
	       /* which number a copy gets, the one just closed or one above, when the library has a file open
	          for a moment */
	       (writer == WRITER_COPIES && has_step(does, does_close)) ||
	       /* the kernel does not copy a file into itself at one go; and who goes on with a number that
	        * was closed, and that an open is just getting, writes beside what is staged
	        * (docs/guarantees.md) */
	       (writer == WRITER_TAKES_BACK &&
	        (has_step(does, does_sendfile) || has_step(does, does_copy_into) ||
	         strcmp(others[other].name, "closes") == 0));
}

static void go_through(int stops_other, int appends, int staged, int two)
{
	const char *only = getenv("PREEMPT_ONLY"); /* the name of one of the others */
	const char *by = getenv("PREEMPT_WRITER"); /* the number of a writer */
	int memory = memfd_create("shared", 0);
	static int tests;
	char text[6][16];

	cases = wrong = 0;
	tests++;
	OK(mkdir("in", 0755));
	OK(mkdir("outside", 0755));
	OK(ftruncate(memory, sizeof *shared));
	shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	for (int writer = 0; writer < WRITERS; writer++)
		for (int other = 0; other < OTHERS; other++) {
			const char *const args[] = {text[0], text[1], text[2], text[3], text[4], text[5]};

			if ((only && strcmp(only, others[other].name) != 0) || (by && atoi(by) != writer) ||
			    is_vague(writer, other) || (!only && is_left_out(writer, other, tests)))
				continue;
			sprintf(text[0], "%d", stops_other);
			sprintf(text[1], "%d", writer);
			sprintf(text[2], "%d", other);
			sprintf(text[3], "%d", appends);
			sprintf(text[4], "%d", staged);
			sprintf(text[5], "%d", two);
			for (int step = stride(writer, other),
			         stop = 1 +
			                (writer * OTHERS + other + 49 * tests + (int)begin_of_run()) % step;
			     stop < STOPS_MOST && preempt(args, memory, stop); stop += step)
				;
		}
	munmap(shared, sizeof *shared);
	close(memory);
	OK(rmdir("in"));
	OK(rmdir("outside"));
	print_message("%u cases\n", cases);
	assert_int_equal(wrong, 0);
}

#define PREEMPT_TEST(name, stops_other, appends, staged, processes) \
	static void name(void **state) \
	{ \
		(void)state; \
		go_through(stops_other, appends, staged, processes); \
	}

PREEMPT_TEST(writer_stopped, 0, 0, 0, 0)
PREEMPT_TEST(process_writer_stopped, 0, 0, 0, 1)
PREEMPT_TEST(writer_stopped_appending, 0, 1, 0, 0)
PREEMPT_TEST(process_writer_stopped_appending, 0, 1, 0, 1)
PREEMPT_TEST(writer_stopped_when_staged, 0, 0, 1, 0)
PREEMPT_TEST(process_writer_stopped_when_staged, 0, 0, 1, 1)
PREEMPT_TEST(writer_stopped_appending_when_staged, 0, 1, 1, 0)
PREEMPT_TEST(process_writer_stopped_appending_when_staged, 0, 1, 1, 1)
PREEMPT_TEST(other_stopped, 1, 0, 0, 0)
PREEMPT_TEST(process_other_stopped, 1, 0, 0, 1)
PREEMPT_TEST(other_stopped_appending, 1, 1, 0, 0)
PREEMPT_TEST(process_other_stopped_appending, 1, 1, 0, 1)
PREEMPT_TEST(other_stopped_when_staged, 1, 0, 1, 0)
PREEMPT_TEST(process_other_stopped_when_staged, 1, 0, 1, 1)
PREEMPT_TEST(other_stopped_appending_when_staged, 1, 1, 1, 0)
PREEMPT_TEST(process_other_stopped_appending_when_staged, 1, 1, 1, 1)

static bool is_set(const char *name, const char *value)
{
	const char *is = getenv(name);

	return is && strcmp(is, value) == 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(writer_stopped),
		cmocka_unit_test(process_writer_stopped),
		cmocka_unit_test(writer_stopped_appending),
		cmocka_unit_test(process_writer_stopped_appending),
		cmocka_unit_test(writer_stopped_when_staged),
		cmocka_unit_test(process_writer_stopped_when_staged),
		cmocka_unit_test(writer_stopped_appending_when_staged),
		cmocka_unit_test(process_writer_stopped_appending_when_staged),
		cmocka_unit_test(other_stopped),
		cmocka_unit_test(process_other_stopped),
		cmocka_unit_test(other_stopped_appending),
		cmocka_unit_test(process_other_stopped_appending),
		cmocka_unit_test(other_stopped_when_staged),
		cmocka_unit_test(process_other_stopped_when_staged),
		cmocka_unit_test(other_stopped_appending_when_staged),
		cmocka_unit_test(process_other_stopped_appending_when_staged),
	};

	if (argc == 9 && strcmp(argv[1], "--stopped") == 0)
		return be_stopped(argv + 2);
	close_inherited();
	program = argv[0];
	/* two processes append: not what writers = exclusive is for, unless the library sees to it */
	if (is_set("FASTWRITE_WRITERS", "exclusive") && !is_set("FASTWRITE_VISIBILITY", "strict"))
		cmocka_set_skip_filter("process_*");
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
