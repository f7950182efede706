// SPDX-License-Identifier: Apache-2.0
/*
 * writer KIND DIRECTORY ACKS SEED SYNCS PACE_US LINGER: writes records whose place and bytes follow
 * from the seed (content.py knows them, too), syncs now and then, and says in ACKS which syncs have returned.
 *
 * LINGER = 1: it is going to be killed.  It goes on syncing and acknowledging when it is done, and after an
 * error, so that a sync that succeeds after power is gone is found out.
 */
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	TABLE = 1 << 18,
	RECORD_MAX = 90000,
	HEADER = 24,
	REGION = 1 << 20,
	THREADS = 3,
	NAMES = 4,
	PARTS = 5,     /* records of one version of a replaced file */
	NEW_PARTS = 3, /* and of a created one */
	LATE = 8,      /* records that go to a log after it was renamed */
};
enum salt { SALT_LENGTH, SALT_BYTES, SALT_OFFSET, SALT_SYNC, SALT_SYNC_KIND, SALT_SINGLE, SALT_ROTATE };

/* What stands in ACKS.  BEGIN: records up to `seq` may be written from now on; TRY: a sync is about to be
 * called; SYNCED: it has returned, records before `seq` are safe; SINGLE: the one `seq` is. */
enum { ACK_BEGIN = 'B', ACK_TRY = 'T', ACK_SYNCED = 'S', ACK_SINGLE = 'W' };

struct ack {
	uint32_t kind;
	uint32_t file;
	uint64_t seq;
	uint64_t ns;
};

struct stream {
	uint32_t id;
	int fd;
	const char *name; /* set: it is synced in many ways */
	int reader;       /* a descriptor for reading, -1 until there is one */
	FILE *stdio;
	bool positioned;
	bool singles;     /* some writes are RWF_DSYNC */
	bool every_write; /* opened so that each is synced */
	off_t base;       /* of its region */
	uint64_t seq;     /* of the next record */
};

static const char *directory;
static int ack_fd;
static uint64_t seed, variant;
static unsigned long syncs, pace_us;
static bool linger, leaves;
static uint8_t table[TABLE];

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint64_t chance(uint32_t file, uint64_t seq, enum salt salt)
{
	return mix(seed * 0x9e3779b97f4a7c15u + file * 0xd1342543de82ef95u + seq * 0x2545f4914f6cdd1du +
	           ((uint64_t)salt + 1) * 0xda942042e4dd58b5u);
}

static void fill_table(void)
{
	for (uint64_t i = 0; i < TABLE / 8; i++) {
		uint64_t word = mix((seed ^ 0x5bd1e995u) + (i + 1) * 0x9e3779b97f4a7c15u);

		memcpy(table + i * 8, &word, 8);
	}
}

static uint32_t length_of(uint32_t file, uint64_t seq)
{
	uint64_t h = chance(file, seq, SALT_LENGTH);
	uint32_t most = (h & 0xff) < 200 ? 400 : (h & 0xff) < 252 ? 6000 : RECORD_MAX - HEADER;

	return HEADER + (uint32_t)((h >> 8) % most);
}

static uint32_t make_record(uint8_t *out, uint32_t file, uint64_t seq)
{
	uint32_t length = length_of(file, seq);
	uint32_t words[6] = {0x52505746u, file, (uint32_t)seq, (uint32_t)(seq >> 32), length, ~length};

	memcpy(out, words, HEADER);
	memcpy(out + HEADER, table + chance(file, seq, SALT_BYTES) % (TABLE - RECORD_MAX), length - HEADER);
	return length;
}

static off_t offset_of(uint32_t file, uint64_t seq)
{
	uint64_t h = chance(file, seq, SALT_OFFSET);
	uint64_t at = (h >> 1) % REGION;

	return (off_t)(h & 1 ? at / 512 * 512 : at);
}

/* What is synced after every few records is left to the kernel under fdatasync and fsync (habit.h): of two
 * files one. */
static bool sync_after(uint32_t file, uint64_t seq)
{
	return chance(file, seq, SALT_SYNC) % ((file + variant) % 2 ? 8 : 40) == 0;
}

static void say(uint32_t kind, uint32_t file, uint64_t seq)
{
	struct timespec now;
	struct ack a = {.kind = kind, .file = file, .seq = seq};

	clock_gettime(CLOCK_MONOTONIC, &now);
	a.ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	if (write(ack_fd, &a, sizeof a) != sizeof a) {
		perror("writer: acknowledgement");
		_exit(3);
	}
}

static void pace(void)
{
	if (pace_us)
		usleep((useconds_t)pace_us);
}

static bool failed(const char *what)
{
	if (!linger) {
		perror(what);
		_exit(1);
	}
	return false;
}

static int open_in(const char *name, int flags)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof path, "%s/%s", directory, name);
	fd = open(path, flags | O_CLOEXEC, 0600);
	if (fd < 0)
		failed(name);
	return fd;
}

/* All of it, or false. */
static bool write_record(struct stream *s)
{
	static _Thread_local uint8_t record[RECORD_MAX];
	uint32_t length = make_record(record, s->id, s->seq);
	off_t at = s->base + offset_of(s->id, s->seq);
	ssize_t r;

	if (s->every_write)
		say(ACK_TRY, s->id, s->seq);
	if (s->stdio) {
		r = (ssize_t)fwrite(record, 1, length, s->stdio);
	} else if (s->positioned && s->singles && chance(s->id, s->seq, SALT_SINGLE) % 16 == 0) {
		struct iovec v = {record, length};

		say(ACK_TRY, s->id, s->seq);
		r = pwritev2(s->fd, &v, 1, at, RWF_DSYNC);
		if (r == (ssize_t)length)
			say(ACK_SINGLE, s->id, s->seq);
	} else if (s->positioned) {
		r = pwrite(s->fd, record, length, at);
	} else {
		r = write(s->fd, record, length);
	}
	if (r != (ssize_t)length)
		return failed("write");
	s->seq++;
	if (s->every_write)
		say(ACK_SYNCED, s->id, s->seq);
	return true;
}

/* There syncfs and sync do not flush the device when its log has nothing new to write, with and without the
 * library. */
static bool is_xfs(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) == 0 && st.f_type == XFS_SUPER_MAGIC;
}

/* Other ways to the same: through another descriptor of the file, by another process, later. */
static int sync_by(struct stream *s, uint64_t way)
{
	int fd, r, status;
	pid_t pid;

	/* (one that was there before the first write would have it written through) */
	if (s->reader < 0)
		s->reader = open_in(s->name, O_RDONLY);
	switch (way) {
	case 0: fd = dup(s->fd); break;
	case 1: fd = open_in(s->name, O_RDONLY); break;
	case 2:
		fd = open_in(s->name, O_RDONLY);
		if (close(s->fd) < 0)
			return -1;
		s->fd = open_in(s->name, O_WRONLY | O_APPEND);
		break;
	case 3: {
		/* (staging ends with the first asynchronous call) */
		if (variant % 5)
			return fdatasync(s->fd);
		struct aiocb control = {.aio_fildes = s->fd, .aio_sigevent.sigev_notify = SIGEV_NONE};
		const struct aiocb *list[] = {&control};

		if (aio_fsync(variant % 2 ? O_SYNC : O_DSYNC, &control) < 0)
			return -1;
		while (aio_error(&control) == EINPROGRESS)
			aio_suspend(list, 1, NULL);
		return (int)aio_return(&control);
	}
	case 4:
		if (variant % 4 == 0) {
			sync(); /* does not say whether there was still power */
			return linger || is_xfs(s->fd) ? fdatasync(s->fd) : 0;
		}
		return (int)syscall(variant % 4 == 1 ? SYS_fdatasync : SYS_fsync, s->fd);
	case 5:
		if (variant % 2)
			return fsync(s->reader);
		pid = fork();
		if (pid == 0)
			_exit(fsync(s->fd) == 0 ? 0 : 1);
		return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 ? 0 : -1;
	default: return fsync(s->reader);
	}
	if (fd < 0)
		return -1;
	r = way == 0 ? fdatasync(fd) : fsync(fd);
	close(fd);
	return r;
}

static bool sync_stream(struct stream *s, uint64_t kind)
{
	int r;

	say(ACK_TRY, s->id, s->seq);
	if (s->stdio && fflush(s->stdio) != 0)
		return failed("fflush");
	if (s->name)
		r = sync_by(s, kind % 7);
	else if (kind % 8 == 0)
		r = syncfs(s->fd) < 0 ? -1 : is_xfs(s->fd) ? fdatasync(s->fd) : 0;
	else
		r = kind % 8 < 4 ? fdatasync(s->fd) : fsync(s->fd);
	if (r < 0)
		return failed("sync");
	say(ACK_SYNCED, s->id, s->seq);
	return true;
}

/* Records up to the next sync, and that. */
static bool batch(struct stream *s)
{
	uint64_t end = s->seq;

	pace();
	while (!sync_after(s->id, end))
		end++;
	say(ACK_BEGIN, s->id, end + 1);
	while (s->seq <= end)
		if (!write_record(s))
			return false;
	return s->every_write || sync_stream(s, chance(s->id, end, SALT_SYNC_KIND));
}

/* Until the kill. */
static void linger_on(struct stream *s, unsigned count)
{
	while (linger) {
		for (unsigned i = 0; i < count; i++)
			sync_stream(&s[i], 4);
		usleep(200);
	}
}

/* Without a close: that syncs were promised must not be forgotten with the process. */
static _Noreturn void leave(void)
{
	if (variant % 3 == 0)
		_exit(0);
	if (variant % 3 == 1)
		execl("/bin/true", "true", (char *)NULL);
	exit(0);
}

static void run(struct stream *s, unsigned count)
{
	for (unsigned long n = 0; n < syncs; n++)
		if (!batch(&s[n % count]))
			break;
	linger_on(s, count);
	if (leaves)
		leave();
	for (unsigned i = 0; i < count; i++)
		if (s[i].stdio ? fclose(s[i].stdio) != 0 : close(s[i].fd) != 0)
			failed("close");
}

static void append(int flags)
{
	struct stream s[2] = {{.id = 0}, {.id = 1}};

	s[0].fd = open_in("file-0", O_WRONLY | O_CREAT | O_APPEND | flags);
	s[1].fd = open_in("file-1", O_RDWR | O_CREAT | (flags ? O_SYNC : 0));
	s[0].every_write = s[1].every_write = flags != 0;
	run(s, 2);
}

static void ways(void)
{
	struct stream s[2] = {{.id = 0, .name = "file-0"}, {.id = 1, .name = "file-1"}};

	for (int i = 0; i < 2; i++) {
		s[i].fd = open_in(s[i].name, O_WRONLY | O_CREAT | O_APPEND);
		s[i].reader = -1;
	}
	run(s, 2);
}

static void position(void)
{
	struct stream s[2] = {{.id = 0, .positioned = true, .singles = true}, {.id = 1, .positioned = true}};

	s[0].fd = open_in("file-0", O_RDWR | O_CREAT);
	s[1].fd = open_in("file-1", O_WRONLY | O_CREAT);
	run(s, 2);
}

static void streams(void)
{
	struct stream s[2] = {{.id = 0}, {.id = 1}};

	s[0].fd = open_in("file-0", O_WRONLY | O_CREAT | O_APPEND);
	s[1].fd = open_in("file-1", O_WRONLY | O_CREAT);
	for (int i = 0; i < 2; i++) {
		s[i].stdio = fdopen(s[i].fd, i ? "w" : "a");
		if (!s[i].stdio)
			failed("fdopen");
	}
	run(s, 2);
}

static void *thread_main(void *argument)
{
	run(argument, 1);
	return NULL;
}

/* Each has a log of its own, and others a region each of one file. */
static void threads(void)
{
	static struct stream s[2 * THREADS];
	pthread_t thread[2 * THREADS];
	char name[16];

	for (unsigned i = 0; i < 2 * THREADS; i++) {
		s[i].id = i;
		s[i].positioned = i >= THREADS;
		s[i].base = s[i].positioned ? (off_t)(i - THREADS) * 2 * REGION : 0;
		snprintf(name, sizeof name, "file-%u", i < THREADS ? i : THREADS);
		s[i].fd = open_in(name, O_WRONLY | O_CREAT | (s[i].positioned ? 0 : O_APPEND));
		if (pthread_create(&thread[i], NULL, thread_main, &s[i]) != 0)
			failed("pthread_create");
	}
	for (unsigned i = 0; i < 2 * THREADS; i++)
		pthread_join(thread[i], NULL);
}

/* A file per version, `parts` records each; its descriptor, or -1. */
static int write_whole(const char *name, uint64_t version, unsigned parts)
{
	int fd = open_in(name, O_WRONLY | O_CREAT | O_TRUNC);
	struct stream s = {.fd = fd, .seq = version * parts};

	while (fd >= 0 && s.seq < (version + 1) * parts)
		if (!write_record(&s))
			return -1;
	if (fd >= 0 && (chance(0, version, SALT_SYNC_KIND) % 2 ? fsync(fd) : fdatasync(fd)) < 0) {
		failed("fsync");
		return -1;
	}
	return fd;
}

static bool close_whole(int fd) { return close(fd) == 0 ? true : failed("close"); }

static void create(void)
{
	char name[32];
	int fd;

	for (uint64_t n = 0; n < syncs; n++) {
		snprintf(name, sizeof name, "new-%llu", (unsigned long long)n);
		say(ACK_BEGIN, 0, n + 1);
		fd = write_whole(name, n, NEW_PARTS);
		if (fd < 0 || !close_whole(fd))
			break;
		say(ACK_SYNCED, 0, n + 1);
		pace();
	}
}

static bool sync_directory(void)
{
	int fd = open_in(".", O_RDONLY | O_DIRECTORY);
	bool good = fd >= 0 && fsync(fd) == 0;

	if (fd >= 0)
		close(fd);
	return good ? true : failed("fsync of the directory");
}

static bool rename_in(const char *from, const char *to)
{
	char a[4096], b[4096];

	snprintf(a, sizeof a, "%s/%s", directory, from);
	snprintf(b, sizeof b, "%s/%s", directory, to);
	return rename(a, b) == 0 ? true : failed("rename");
}

static void replace(void)
{
	char name[32], fresh[40];
	int fd;

	for (uint64_t n = 0; n < syncs; n++) {
		snprintf(name, sizeof name, "name-%llu", (unsigned long long)(n % NAMES));
		snprintf(fresh, sizeof fresh, "%s.new", name);
		say(ACK_BEGIN, 0, n + 1);
		fd = write_whole(fresh, n, PARTS);
		if (fd < 0)
			break;
		/* some close it first, some last */
		if (chance(0, n, SALT_SINGLE) % 2) {
			if (!close_whole(fd) || !rename_in(fresh, name) || !sync_directory())
				break;
		} else if (!rename_in(fresh, name) || !sync_directory() || !close_whole(fd)) {
			break;
		}
		say(ACK_SYNCED, 0, n + 1);
		pace();
	}
}

/* A log that is renamed away while it is open, and goes on for a while under its new name. */
static void rotate(void)
{
	struct stream s = {.id = 0};
	uint64_t late = 0;
	unsigned generation = 0;
	char old[32];

	s.fd = open_in("log", O_WRONLY | O_CREAT | O_APPEND);
	for (unsigned long n = 0; n < syncs;) {
		say(ACK_BEGIN, 0, s.seq + 1);
		if (!write_record(&s))
			break;
		if (!late && chance(0, s.seq - 1, SALT_ROTATE) % 32 == 0) {
			snprintf(old, sizeof old, "log.%u", generation++);
			if (!rename_in("log", old))
				break;
			late = s.seq + LATE;
		}
		if (sync_after(0, s.seq - 1)) {
			n++;
			if (!sync_stream(&s, chance(0, s.seq - 1, SALT_SYNC_KIND)))
				break;
			pace();
		}
		if (s.seq == late) {
			/* nobody promises what was not synced before the descriptor goes */
			if (!sync_stream(&s, 4))
				break;
			late = 0;
			close(s.fd);
			s.fd = open_in("log", O_WRONLY | O_CREAT | O_APPEND);
			if (s.fd < 0)
				break;
		}
	}
	linger_on(&s, 1);
	close(s.fd);
}

int main(int argc, char **argv)
{
	const char *kind;

	if (argc != 8) {
		fprintf(stderr, "usage: writer KIND DIRECTORY ACKS SEED SYNCS PACE_US LINGER\n");
		return 2;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kind = argv[1];
	directory = argv[2];
	ack_fd = open(argv[3], O_WRONLY | O_APPEND | O_CLOEXEC);
	if (ack_fd < 0) {
		perror(argv[3]);
		return 2;
	}
	seed = strtoull(argv[4], NULL, 10);
	syncs = strtoul(argv[5], NULL, 10);
	pace_us = strtoul(argv[6], NULL, 10);
	linger = argv[7][0] == '1';
	variant = mix(seed); /* seeds of one kind may have a factor in common */
	fill_table();
	if (strcmp(kind, "append") == 0)
		append(0);
	else if (strcmp(kind, "leave") == 0) {
		leaves = true;
		append(0);
	} else if (strcmp(kind, "dsync") == 0)
		append(O_DSYNC);
	else if (strcmp(kind, "ways") == 0)
		ways();
	else if (strcmp(kind, "position") == 0)
		position();
	else if (strcmp(kind, "stdio") == 0)
		streams();
	else if (strcmp(kind, "threads") == 0)
		threads();
	else if (strcmp(kind, "create") == 0)
		create();
	else if (strcmp(kind, "replace") == 0)
		replace();
	else if (strcmp(kind, "rotate") == 0)
		rotate();
	else {
		fprintf(stderr, "writer: unknown kind %s\n", kind);
		return 2;
	}
	while (linger)
		pause();
	return 0;
}
