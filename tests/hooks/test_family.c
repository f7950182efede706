// SPDX-License-Identifier: Apache-2.0
/* Forked processes on the same files: what one writes the others see at once, in order, and whoever is
 * killed. */
#include "hook_test.h"

#include <linux/fs.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>

/* "#WWWWW NNNNNNNN ....\n": writer and number, so that order and wholeness can be checked; where one begins
 * is plain even behind a part of another. */
static void mark(char *record, unsigned who, unsigned number)
{
	char text[32];

	snprintf(text, sizeof text, "#%05u %08u ", who, number);
	for (int i = 0; i < RECORD - 1; i++)
		record[i] = text[i < 16 ? i : 1 + (i - 1) % 15];
	record[RECORD - 1] = '\n';
}

static int write_marks(int fd, unsigned who, unsigned from, unsigned count)
{
	char record[RECORD];

	for (unsigned i = 0; i < count; i++) {
		mark(record, who, from + i);
		if (write(fd, record, RECORD) != RECORD)
			return 1;
	}
	return 0;
}

/* A writer that was killed may have left a part of a record, as the kernel does between two pages. */
static size_t torn(const char *bytes, size_t left, unsigned writers, const unsigned *counts)
{
	size_t best = 0;

	for (unsigned who = 0; who < writers; who++) {
		char record[RECORD];
		size_t n = 0;

		mark(record, who, counts[who]);
		while (n < left && n < RECORD && bytes[n] == record[n])
			n++;
		if (n > best)
			best = n;
	}
	return best;
}

/* Every record whole, each writer's in order and without a gap from 0 on; counts them.  `parts` may be torn.
 */
static void check_marks(const char *path, unsigned writers, unsigned *counts, unsigned parts)
{
	size_t size;
	char *bytes = file_bytes(path, &size), record[RECORD];

	memset(counts, 0, writers * sizeof *counts);
	for (size_t at = 0; at < size;) {
		size_t left = size - at;
		unsigned who =
			left >= 6 && bytes[at] == '#' ? (unsigned)strtoul(bytes + at + 1, NULL, 10) : writers;

		if (who < writers)
			mark(record, who, counts[who]);
		if (who < writers && left >= RECORD && memcmp(bytes + at, record, RECORD) == 0) {
			counts[who]++;
			at += RECORD;
		} else if (parts > 0 && torn(bytes + at, left, writers, counts) > 0) {
			at += torn(bytes + at, left, writers, counts);
			parts--;
		} else {
			for (unsigned w = 0; w < writers; w++)
				print_error("writer %u: %u\n", w, counts[w]);
			fail_msg("at %zu of %zu, parts left %u: %.40s", at, size, parts, bytes + at);
		}
	}
	free(bytes);
}

static void wait_for(unsigned count)
{
	while (count-- > 0)
		check_exit(-1, 0);
}

static void writers_on_one_description(int more)
{
	enum { WRITERS = 8, EACH = 3000 };
	int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0644));
	unsigned counts[WRITERS + 1];

	assert_int_equal(write_marks(fd, 0, 0, RECORDS), 0);
	fflush(stdout);
	for (unsigned who = 1; who <= WRITERS; who++)
		if (fork() == 0)
			_exit(write_marks(fd, who, 0, EACH));
	assert_int_equal(write_marks(fd, 0, RECORDS, EACH), 0);
	wait_for(WRITERS);
	assert_int_equal(OK(lseek(fd, 0, SEEK_CUR)), (off_t)RECORD * (RECORDS + (WRITERS + 1) * EACH));
	OK(close(fd));
	check_marks("a", WRITERS + 1, counts, 0);
	assert_int_equal(counts[0], RECORDS + EACH);
	for (unsigned who = 1; who <= WRITERS; who++)
		assert_int_equal(counts[who], EACH);
	OK(unlink("a"));
}

static void one_append_description(void **state)
{
	(void)state;
	writers_on_one_description(O_APPEND);
}

static void one_position(void **state)
{
	(void)state;
	writers_on_one_description(0);
}

/* Nothing staged yet when the children come: the file is inherited as it is. */
static void inherited_before_the_first_write(void **state)
{
	enum { WRITERS = 4, EACH = 1000 };
	int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
	unsigned counts[WRITERS];

	(void)state;
	fflush(stdout);
	for (unsigned who = 0; who < WRITERS; who++)
		if (fork() == 0)
			_exit(write_marks(fd, who, 0, EACH));
	wait_for(WRITERS);
	OK(close(fd));
	check_marks("a", WRITERS, counts, 0);
	for (unsigned who = 0; who < WRITERS; who++)
		assert_int_equal(counts[who], EACH);
	OK(unlink("a"));
}

static void tell(int fd) { assert_int_equal(write(fd, "x", 1), 1); }
static void hear(int fd)
{
	char c;

	assert_int_equal(read(fd, &c, 1), 1);
}

/* Parent and child open the file on their own, after the fork, and talk through pipes about it. */
static void opened_after_the_fork(void **state)
{
	enum { ROUNDS = 200 };
	int down[2], up[2], fd;
	char record[RECORD], got[RECORD];
	struct stat st;

	(void)state;
	assert_int_equal(pipe(down) | pipe(up), 0);
	fflush(stdout);
	if (fork() == 0) {
		fd = open("b", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
		for (unsigned i = 0; i < ROUNDS; i++) {
			CHILD(write_marks(fd, 1, i * 10, 10) == 0);
			CHILD(write(up[1], "x", 1) == 1);
			CHILD(read(down[0], record, 1) == 1);
			/* the parent has overwritten the last one */
			CHILD(pread(fd, got, RECORD, (off_t)(i * 10 + 9) * RECORD) == RECORD);
			mark(record, 2, i);
			CHILD(memcmp(got, record, RECORD) == 0);
		}
		_exit(0);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		hear(up[0]);
		if (i == 0)
			fd = OK(open("b", O_RDWR | O_CLOEXEC));
		OK(stat("b", &st));
		assert_int_equal(st.st_size, (off_t)(i + 1) * 10 * RECORD);
		assert_int_equal(OK(pread(fd, got, RECORD, (off_t)(i * 10 + 8) * RECORD)), RECORD);
		mark(record, 1, i * 10 + 8);
		assert_memory_equal(got, record, RECORD);
		mark(record, 2, i);
		assert_int_equal(OK(pwrite(fd, record, RECORD, (off_t)(i * 10 + 9) * RECORD)), RECORD);
		tell(down[1]);
	}
	wait_for(1);
	OK(close(fd));
	close(down[0]), close(down[1]), close(up[0]), close(up[1]);
	OK(unlink("b"));
}

/* The child only reads, through descriptors that were opened before the parent staged anything. */
static void readers_from_before(void **state)
{
	enum { ROUNDS = 50 };
	int down[2], up[2], before, fd;

	(void)state;
	close(open_new("b", 0));
	before = OK(open("b", O_RDONLY | O_CLOEXEC));
	assert_int_equal(pipe(down) | pipe(up), 0);
	fflush(stdout);
	if (fork() == 0) {
		int both = open("b", O_RDWR | O_CLOEXEC), after = open("b", O_RDONLY | O_CLOEXEC);
		char record[RECORD], got[RECORD];

		CHILD(write(up[1], "x", 1) == 1);
		for (unsigned i = 0; i < ROUNDS; i++) {
			off_t at = (off_t)i * RECORD;

			CHILD(read(down[0], record, 1) == 1);
			mark(record, 1, i);
			CHILD(lseek(after, 0, SEEK_END) == at + RECORD);
			CHILD(lseek(both, 0, SEEK_END) == at + RECORD);
			CHILD(pread(before, got, RECORD, at) == RECORD && memcmp(got, record, RECORD) == 0);
			CHILD(pread(after, got, RECORD, at) == RECORD && memcmp(got, record, RECORD) == 0);
			CHILD(pread(both, got, RECORD, at) == RECORD && memcmp(got, record, RECORD) == 0);
			CHILD(write(up[1], "x", 1) == 1);
		}
		_exit(0);
	}
	OK(close(before)); /* this one is the child's alone */
	hear(up[0]);
	fd = OK(open("b", O_RDWR | O_CLOEXEC));
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_int_equal(write_marks(fd, 1, i, 1), 0);
		tell(down[1]);
		hear(up[0]);
	}
	wait_for(1);
	OK(close(fd));
	close(down[0]), close(down[1]), close(up[0]), close(up[1]);
	OK(unlink("b"));
}

/* The parent of a daemon opens the log, forks and is gone. */
static void daemonised(void **state)
{
	unsigned counts[2];
	int done[2];

	(void)state;
	assert_int_equal(pipe(done), 0);
	fflush(stdout);
	if (fork() == 0) {
		int fd = open("a", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);

		CHILD(write_marks(fd, 0, 0, 100) == 0);
		if (fork() != 0)
			_exit(0);
		setsid();
		if (fork() != 0)
			_exit(0);
		usleep(20000); /* until the others have gone */
		CHILD(write_marks(fd, 1, 0, 5000) == 0);
		CHILD(write(done[1], "x", 1) == 1);
		_exit(0);
	}
	wait_for(1);
	close(done[1]);
	hear(done[0]);
	assert_int_equal(read(done[0], counts, 1), 0); /* it has ended */
	close(done[0]);
	usleep(50000);
	check_marks("a", 2, counts, 0);
	assert_int_equal(counts[0], 100);
	assert_int_equal(counts[1], 5000);
	OK(unlink("a"));
}

static struct {
	_Atomic unsigned acknowledged[16];
} *shared;

static void kill_some(int more, unsigned rounds)
{
	enum { WRITERS = 4 };
	unsigned counts[WRITERS + 1];

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned round = 0; round < rounds; round++) {
		int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0644));
		struct timespec t = {.tv_nsec = (long)(round * 7919 % 4000) * 1000};
		pid_t pids[WRITERS];
		unsigned own = 0;

		memset(shared, 0, sizeof *shared);
		assert_int_equal(write_marks(fd, 0, 0, round % 2 ? RECORDS : 0), 0);
		own = round % 2 ? RECORDS : 0;
		fflush(stdout);
		for (unsigned who = 1; who <= WRITERS; who++) {
			pids[who - 1] = fork();
			for (unsigned i = 0; pids[who - 1] == 0; i++) {
				CHILD(write_marks(fd, who, i, 1) == 0);
				atomic_store(&shared->acknowledged[who], i + 1);
			}
		}
		for (unsigned who = 1; who <= WRITERS; who++) {
			assert_int_equal(write_marks(fd, 0, own, 50), 0);
			own += 50;
			nanosleep(&t, NULL);
			kill(pids[who - 1], SIGKILL);
			if (who % 2)
				assert_int_equal(waitpid(pids[who - 1], NULL, 0), pids[who - 1]);
		}
		for (unsigned who = 2; who <= WRITERS; who += 2)
			assert_int_equal(waitpid(pids[who - 1], NULL, 0), pids[who - 1]);
		assert_int_equal(write_marks(fd, 0, own, 50), 0);
		own += 50;
		OK(close(fd));
		check_marks("a", WRITERS + 1, counts, WRITERS);
		assert_int_equal(counts[0], own);
		for (unsigned who = 1; who <= WRITERS; who++) {
			unsigned sure = atomic_load(&shared->acknowledged[who]);

			if (counts[who] < sure || counts[who] > sure + 1)
				fail_msg("round %u: writer %u: %u of %u acknowledged", round, who,
				         counts[who], sure);
		}
	}
	munmap(shared, 4096);
	OK(unlink("a"));
}

static unsigned rounds(void)
{
	const char *text = getenv("FASTWRITE_TEST_KILLS");

	return text ? (unsigned)atoi(text) : 40;
}

static void killed_on_one_append_description(void **state)
{
	(void)state;
	kill_some(O_APPEND, rounds());
}

static void killed_on_one_position(void **state)
{
	(void)state;
	kill_some(0, rounds());
}

/* The one who has the file is killed; a relative looks at once, without ever having had it. */
static void left_behind_by_a_child(void **state)
{
	unsigned counts[1];

	(void)state;
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (unsigned round = 0; round < rounds(); round++) {
		struct timespec t = {.tv_nsec = (long)(round * 104729 % 3000) * 1000};
		pid_t pid;

		memset(shared, 0, sizeof *shared);
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			int fd = open("c", O_WRONLY | O_CREAT | O_TRUNC, 0644);

			for (unsigned i = 0;; i++) {
				CHILD(write_marks(fd, 0, i, 1) == 0);
				atomic_store(&shared->acknowledged[0], i + 1);
			}
		}
		while (atomic_load(&shared->acknowledged[0]) < 3)
			assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
		nanosleep(&t, NULL);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		check_marks("c", 1, counts, 1);
		if (counts[0] < atomic_load(&shared->acknowledged[0]))
			fail_msg("round %u: %u of %u", round, counts[0],
			         atomic_load(&shared->acknowledged[0]));
		OK(unlink("c"));
	}
	munmap(shared, 4096);
}

/* What a killed member appended goes out by a description that appends; what is written at offsets afterwards
 * must not. */
static void offsets_after_the_appends_of_the_dead(void **state)
{
	(void)state;
	for (unsigned round = 0; round < rounds(); round++) {
		enum { NAPS = 60000 };
		struct timespec t = {.tv_nsec = 1000000};
		unsigned counts[1];
		pid_t pid;
		int fd;

		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			fd = open("d", O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0644);
			CHILD(write_marks(fd, 0, 0, 64) == 0);
			raise(SIGKILL);
		}
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		fd = OK(open("d", O_RDWR));
		for (unsigned i = 0; i < 8; i++) {
			char record[RECORD];

			mark(record, 0, i);
			assert_int_equal(pwrite(fd, record, RECORD, (off_t)i * RECORD), RECORD);
		}
		/* without anybody's asking: when the lag is over, or later if the timer gets no processor */
		for (int i = 0; i < NAPS && kernel_size("d") != 64 * RECORD; i++)
			OK(nanosleep(&t, NULL));
		assert_int_equal(kernel_size("d"), 64 * RECORD);
		OK(close(fd));
		check_marks("d", 1, counts, 0);
		assert_int_equal(counts[0], 64);
		OK(unlink("d"));
	}
}

/*
 * What one member wrote at offsets goes out with O_DIRECT; what another then appends goes out by the first
 * one, which looks, and must not be bound by O_DIRECT's rules.
 */
static void appends_of_another_after_aligned_writes(void **state)
{
	enum { PAGES = 1024 };
	int go[2], done[2], fd;
	char *page = calloc(1, 4096), *bytes, record[RECORD];
	struct stat st;
	size_t size;
	pid_t pid;

	(void)state;
	OK(pipe(go));
	OK(pipe(done));
	fd = OK(open("e", O_RDWR | O_CREAT | O_EXCL, 0644));
	for (unsigned i = 0; i < PAGES; i++)
		assert_int_equal(write(fd, page, 4096), 4096);
	OK(fstat(fd, &st));
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int append = open("e", O_WRONLY | O_APPEND);

		hear(go[0]);
		CHILD(write_marks(append, 0, 0, 20) == 0);
		tell(done[1]);
		hear(go[0]);
		CHILD(write_marks(append, 0, 20, 5) == 0);
		CHILD(close(append) == 0);
		leave();
	}
	OK(lseek(fd, 0, SEEK_SET));
	for (unsigned i = 0; i < PAGES; i++)
		assert_int_equal(write(fd, page, 4096), 4096);
	OK(fstat(fd, &st));
	assert_int_equal(st.st_size, PAGES * 4096);
	tell(go[1]);
	hear(done[0]);
	OK(fstat(fd, &st));
	assert_int_equal(st.st_size, PAGES * 4096 + 20 * RECORD);
	assert_int_equal(OK(pread(fd, record, RECORD, PAGES * 4096)), RECORD);
	assert_int_equal(record[0], '#');
	OK(fsync(fd));
	tell(go[1]);
	check_exit(pid, 0);
	OK(close(fd));
	bytes = file_bytes("e", &size);
	assert_int_equal(size, PAGES * 4096 + 25 * RECORD);
	for (unsigned i = 0; i < 25; i++) {
		mark(record, 0, i);
		assert_memory_equal(bytes + PAGES * 4096 + i * RECORD, record, RECORD);
	}
	free(bytes);
	OK(unlink("e"));
	for (int i = 0; i < 2; i++) {
		close(go[i]);
		close(done[i]);
	}
	free(page);
}

/* Generation after generation, each on what the one before left. */
static void grandchildren(void **state)
{
	enum { DEPTH = 30 };
	int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
	unsigned counts[DEPTH + 1];
	unsigned depth = 0;
	pid_t pid;

	(void)state;
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		for (;;) {
			int status;

			CHILD(write_marks(fd, depth, 0, 20) == 0);
			if (++depth > DEPTH)
				_exit(0);
			pid = fork();
			if (pid == 0)
				continue;
			CHILD(waitpid(pid, &status, 0) == pid && status == 0);
			_exit(0);
		}
	}
	check_exit(pid, 0);
	OK(close(fd));
	check_marks("a", DEPTH + 1, counts, 0);
	for (unsigned i = 0; i <= DEPTH; i++)
		assert_int_equal(counts[i], 20);
	OK(unlink("a"));
}

/* More at once than a family can have. */
static void too_many(void **state)
{
	enum { WRITERS = 300, EACH = 20 };
	int fd = OK(open("a", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
	unsigned *counts = calloc(WRITERS + 1, sizeof *counts);
	int go[2];

	(void)state;
	assert_int_equal(pipe(go), 0);
	assert_int_equal(write_marks(fd, 0, 0, EACH), 0);
	fflush(stdout);
	for (unsigned who = 1; who <= WRITERS; who++) {
		pid_t pid = fork();

		assert_true(pid >= 0);
		if (pid == 0) {
			char c;

			close(go[1]);
			CHILD(read(go[0], &c, 1) == 0);
			_exit(write_marks(fd, who, 0, EACH));
		}
	}
	close(go[0]);
	close(go[1]);
	assert_int_equal(write_marks(fd, 0, EACH, EACH), 0);
	wait_for(WRITERS);
	OK(close(fd));
	check_marks("a", WRITERS + 1, counts, 0);
	assert_int_equal(counts[0], 2 * EACH);
	for (unsigned who = 1; who <= WRITERS; who++)
		assert_int_equal(counts[who], EACH);
	free(counts);
	OK(unlink("a"));
}

/* Members die while others make their arenas: nobody may get one that is being made. */
static void arenas_beside_the_dying(void **state)
{
	enum { MEMBERS = 4, ROUNDS = 60 };

	(void)state;
	fflush(stdout);
	for (unsigned who = 0; who < MEMBERS; who++) {
		if (fork() != 0)
			continue;
		for (unsigned i = 0; i < ROUNDS; i++) {
			char name[16];
			pid_t pid;
			int fd, got;

			snprintf(name, sizeof name, "m%u", who);
			pid = fork();
			if (pid == 0) {
				fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
				CHILD(write_marks(fd, who, 0, 20) == 0);
				if (i % 2)
					raise(SIGKILL);
				CHILD(close(fd) == 0);
				_exit(0);
			}
			CHILD(waitpid(pid, &got, 0) == pid);
			CHILD(i % 2 ? WIFSIGNALED(got) && WTERMSIG(got) == SIGKILL : got == 0);
			fd = open(name, O_RDWR | O_CLOEXEC);
			CHILD(fd >= 0 && lseek(fd, 0, SEEK_END) == 20 * RECORD);
			CHILD(write_marks(fd, who, 20, 3) == 0);
			CHILD(lseek(fd, 0, SEEK_END) == 23 * RECORD && close(fd) == 0);
		}
		_exit(0);
	}
	wait_for(MEMBERS);
	for (unsigned who = 0; who < MEMBERS; who++) {
		char name[16];

		snprintf(name, sizeof name, "m%u", who);
		OK(unlink(name));
	}
}

static volatile sig_atomic_t limit_signals;

static void on_limit(int signal)
{
	(void)signal;
	limit_signals++;
}

static bool set_limit(rlim_t bytes)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_FSIZE, &limit) < 0)
		return false;
	limit.rlim_cur = bytes;
	return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

/* The limit on the size of files holds for the process that writes, not for the bytes of the others. */
static void limit_of_one(int more)
{
	enum { LIMIT = 4096, EACH = 500 };
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | more, 0644));
	char record[RECORD] = "", back[RECORD];
	int to[2], from[2];
	pid_t pid;

	OK(pipe(to));
	OK(pipe(from));
	signal(SIGXFSZ, on_limit);
	write_records(fd, 0, RECORDS);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		CHILD(set_limit(LIMIT));
		CHILD(write(to[1], "", 1) == 1 && read(from[0], back, 1) == 1);
		/* the same description, in the block that the other one opened */
		CHILD(write(fd, record, RECORD) == -1 && errno == EFBIG && limit_signals == 1);
		CHILD(pread(fd, back, RECORD, (off_t)RECORD * (RECORDS + EACH - 1)) == RECORD);
		CHILD(fsync(fd) == 0);
		CHILD(limit_signals == 1);
		CHILD(write(to[1], "", 1) == 1 && read(from[0], back, 1) == 1);
		CHILD(write(fd, record, RECORD) == -1 && errno == EFBIG && limit_signals == 2);
		CHILD(close(fd) == 0 && limit_signals == 2);
		CHILD(set_limit(RLIM_INFINITY)); /* for what the library says at the end */
		_exit(0);
	}
	for (unsigned round = 0; round < 2; round++) {
		assert_int_equal(read(to[0], back, 1), 1);
		write_records(fd, RECORDS + round * EACH, EACH);
		assert_int_equal(write(from[1], "", 1), 1);
	}
	wait_for(1);
	assert_int_equal(limit_signals, 0);
	check_file("a", 0, RECORDS + 2 * EACH);
	OK(close(fd));
	OK(unlink("a"));
	for (int i = 0; i < 2; i++) {
		OK(close(to[i]));
		OK(close(from[i]));
	}
}

static void limit_of_one_append(void **state)
{
	(void)state;
	NOT_WITH_TSAN(TSAN_HOLDS_BACK);
	limit_of_one(O_APPEND);
}

static void limit_of_one_position(void **state)
{
	(void)state;
	NOT_WITH_TSAN(TSAN_HOLDS_BACK);
	limit_of_one(0);
}

/* And what somebody was killed with is put in place by whoever is left. */
static void limit_of_the_survivor(void **state)
{
	enum { LIMIT = 4096, EACH = 500 };
	int fd = OK(open("a", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
	int got;

	(void)state;
	signal(SIGXFSZ, on_limit);
	write_records(fd, 0, RECORDS);
	fflush(stdout);
	if (fork() == 0) {
		write_records(fd, RECORDS, EACH);
		raise(SIGKILL);
	}
	assert_true(set_limit(LIMIT));
	assert_true(wait(&got) > 0 && WIFSIGNALED(got));
	assert_int_equal(OK(lseek(fd, 0, SEEK_END)), (off_t)RECORD * (RECORDS + EACH));
	OK(close(fd));
	assert_int_equal(limit_signals, 0);
	check_file("a", 0, RECORDS + EACH);
	assert_true(set_limit(RLIM_INFINITY));
	OK(unlink("a"));
}

/* ---- the first use of a descriptor that was opened before another member staged something ---- */

static long by_sendfile(int fd)
{
	return sendfile(open("c", O_RDWR | O_CREAT | O_TRUNC, 0644), fd, NULL, 2 * STAGED);
}
static long by_copy(int fd)
{
	return copy_file_range(fd, NULL, open("c", O_RDWR | O_CREAT | O_TRUNC, 0644), NULL, 2 * STAGED, 0);
}
static long by_splice(int fd)
{
	int ends[2];

	return pipe(ends) < 0 ? -1 : splice(fd, NULL, ends[1], NULL, 2 * STAGED, 0);
}
static long by_clone(int fd)
{
	int copy = open("c", O_RDWR | O_CREAT | O_TRUNC, 0644);

	return ioctl(copy, FICLONE, fd) < 0 && (errno == EOPNOTSUPP || errno == EXDEV) ? STAGED
	                                                                               : kernel_size("c");
}

static char buffer[2 * STAGED];
static long by_number(int fd) { return syscall(SYS_read, fd, buffer, sizeof buffer); }
static long by_number_at(int fd) { return syscall(SYS_pread64, fd, buffer, sizeof buffer, 0L); }
static long by_number_end(int fd) { return syscall(SYS_lseek, fd, 0L, SEEK_END); }
static long by_number_flags(int fd)
{
	struct iovec v = {.iov_base = buffer, .iov_len = sizeof buffer};

	return syscall(SYS_preadv2, fd, &v, 1L, 0L, 0L, (long)RWF_HIPRI);
}
static long by_range_sync(int fd)
{
	if (sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE) < 0)
		return -1;
	return kernel_size("b");
}
static long by_stream(int fd)
{
	FILE *stream = fdopen(fd, "r");

	setvbuf(stream, NULL, _IOFBF, sizeof buffer);
	return (long)fread(buffer, 1, sizeof buffer, stream);
}
static long by_unbuffered_stream(int fd)
{
	FILE *stream = fdopen(fd, "r");

	setvbuf(stream, NULL, _IONBF, 0);
	return (long)fread(buffer, 1, sizeof buffer, stream);
}
static long by_stream_end(int fd)
{
	FILE *stream = fdopen(fd, "r");

	return fseek(stream, 0, SEEK_END) < 0 ? -1 : ftell(stream);
}
static long after_passing_it(int fd)
{
	char control[CMSG_SPACE(sizeof fd)] = "", byte = 0;
	struct iovec v = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {
		.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);
	int ends[2];

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0 || sendmsg(ends[0], &message, 0) != 1)
		return -1;
	return pread(fd, buffer, sizeof buffer, 0);
}
/* The program gets it; it is still ours. */
static long after_a_program(int fd)
{
	extern char **environ;
	char *const arguments[] = {"true", NULL};
	pid_t pid;

	if (fcntl(fd, F_SETFD, 0) < 0 || posix_spawnp(&pid, "true", NULL, NULL, arguments, environ) != 0 ||
	    waitpid(pid, NULL, 0) != pid)
		return -1;
	return pread(fd, buffer, sizeof buffer, 0);
}
/* Nothing of what is written this way is overwritten by what was staged before. */
static long by_writing(int fd)
{
	int from = open("c", O_RDWR | O_CREAT | O_TRUNC, 0644);
	off_t at = 0;

	memset(buffer, 'c', STAGED);
	if (write(from, buffer, STAGED) != STAGED ||
	    copy_file_range(from, &at, fd, NULL, STAGED, 0) != STAGED || fdatasync(fd) < 0 ||
	    pread(fd, buffer, sizeof buffer, 0) != STAGED)
		return -1;
	for (int i = 0; i < STAGED; i++)
		if (buffer[i] != 'c')
			return i;
	return STAGED;
}

static void first_uses(void **state)
{
	static long (*const uses[])(int fd) = {
		by_sendfile,   by_copy,       by_splice,        by_clone,        by_number,
		by_number_at,  by_number_end, by_number_flags,  by_range_sync,   by_stream,
		by_stream_end, by_writing,    after_passing_it, after_a_program, by_unbuffered_stream,
	};

	(void)state;
	for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
		int down[2], up[2], fd;

		assert_int_equal(pipe(down) | pipe(up), 0);
		OK(close(open_new("b", 0)));
		fflush(stdout);
		if (fork() == 0) {
			long seen;
			char byte;

			fd = open("b", (uses[i] == by_writing ? O_RDWR : O_RDONLY) | O_CLOEXEC);
			CHILD(write(up[1], "x", 1) == 1 && read(down[0], &byte, 1) == 1);
			seen = uses[i](fd);
			if (seen != STAGED)
				dprintf(2, "use %zu: %ld\n", i, seen);
			_exit(seen != STAGED);
		}
		hear(up[0]);
		fd = OK(open("b", O_RDWR | O_CLOEXEC));
		write_records(fd, 0, RECORDS);
		tell(down[1]);
		wait_for(1);
		OK(close(fd));
		close(down[0]), close(down[1]), close(up[0]), close(up[1]);
		OK(unlink("b"));
	}
	unlink("c");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_from_before), /* first: nothing is staged yet, nobody has forked */
		cmocka_unit_test(one_append_description),
		cmocka_unit_test(one_position),
		cmocka_unit_test(inherited_before_the_first_write),
		cmocka_unit_test(opened_after_the_fork),
		cmocka_unit_test(first_uses),
		cmocka_unit_test(daemonised),
		cmocka_unit_test(grandchildren),
		cmocka_unit_test(too_many),
		cmocka_unit_test(arenas_beside_the_dying),
		cmocka_unit_test(left_behind_by_a_child),
		cmocka_unit_test(offsets_after_the_appends_of_the_dead),
		cmocka_unit_test(appends_of_another_after_aligned_writes),
		cmocka_unit_test(killed_on_one_append_description),
		cmocka_unit_test(killed_on_one_position),
		cmocka_unit_test(limit_of_one_append),
		cmocka_unit_test(limit_of_one_position),
		cmocka_unit_test(limit_of_the_survivor),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
