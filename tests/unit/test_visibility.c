// SPDX-License-Identifier: Apache-2.0
/* strict: who opens the file finds everything; while somebody has it open nothing is staged. */
#include "attach/watcher.h"
#include "files/fdtable.h"
#include "rig.h"

#include "base/lease.h"
#include "base/thread.h"
#include "files/family.h"
#include "flush/visibility.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>

static bool leases_here(void)
{
	int fd = open(rig_path("probe"), O_WRONLY | O_CREAT, 0600);
	bool works = fcntl(fd, F_SETLEASE, F_WRLCK) == 0;

	close(fd);
	unlink(rig_path("probe"));
	return works;
}

static int set_up(void **state)
{
	(void)state;
	rig_start("FASTWRITE_VISIBILITY=strict", NULL);
	return 0;
}

/* Bytes of the pattern from 0 to n, the last ones staged under a lease. */
static int staged_file(int flags, uint64_t n)
{
	int fd = rig_open("out", O_WRONLY | flags);

	if (!leases_here()) {
		print_message("SKIP reason: no leases on this file system\n");
		skip();
	}
	rig_put(fd, 0, 100);
	rig_put(fd, 100, n - 100);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_ptr_equal(rig_file(fd)->lease.on, fdtable_get(fd));
	assert_int_equal(sys_kernel.fcntl(fd, F_GETLEASE, 0), F_WRLCK);
	assert_int_equal(rig_entry(fd)->flags & (ENTRY_STRICT | ENTRY_LEASED | ENTRY_LEASE_BUSY),
	                 ENTRY_STRICT | ENTRY_LEASED);
	rig_faults_clear();
	return fd;
}

/* The opener goes on while the watcher still has the lock. */
static bool is_staged(int fd)
{
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);
	bool staged = f->head != NULL;

	file_unlock(f, g);
	return staged;
}

static struct file *file_when_quiet(int fd)
{
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	file_unlock(f, g);
	return f;
}

/* Another process that opens the file by itself, and has it open until told. */
struct opener {
	pid_t pid;
	int go_on;
	long size; /* that it saw, or -errno of its open */
};

static struct opener opener_start(int flags)
{
	int to[2], from[2];
	struct opener o;

	assert_int_equal(pipe(to), 0);
	assert_int_equal(pipe(from), 0);
	o.pid = fork();
	if (o.pid == 0) {
		long fd = syscall(SYS_openat, AT_FDCWD, rig_path("out"), flags, 0);
		long size = fd < 0 ? -errno : syscall(SYS_lseek, fd, 0, SEEK_END);
		char c;

		syscall(SYS_close, to[1]);
		if (syscall(SYS_write, from[1], &size, sizeof size) == sizeof size)
			syscall(SYS_read, to[0], &c, 1);
		syscall(SYS_exit_group, 0);
	}
	close(to[0]);
	close(from[1]);
	o.go_on = to[1];
	assert_int_equal(read(from[0], &o.size, sizeof o.size), sizeof o.size);
	close(from[0]);
	return o;
}

static void opener_end(struct opener *o)
{
	close(o->go_on);
	assert_int_equal(waitpid(o->pid, NULL, 0), o->pid);
}

/* Writes pattern bytes until they are staged again; how many. */
static uint64_t put_until_staged(int fd, uint64_t from)
{
	uint64_t n = 0;

	for (int i = 0; i < 10000 && !is_staged(fd); i++, n += 10) {
		struct timespec t = {.tv_nsec = 100000};

		rig_put(fd, from + n, 10);
		nanosleep(&t, NULL);
	}
	assert_true(is_staged(fd));
	assert_non_null(rig_file(fd)->lease.on);
	return n;
}

static void opener_sees_all(int how, int flags)
{
	int fd = staged_file(how, 5000);
	struct opener o = opener_start(flags);

	assert_int_equal(o.size, 5000);
	assert_null(file_when_quiet(fd)->lease.on);
	assert_true(rig_entry(fd)->flags & ENTRY_LEASE_BUSY);
	/* it is still open: every write at once */
	for (uint64_t at = 5000; at < 6000; at += 100) {
		rig_put(fd, at, 100);
		assert_int_equal(rig_kernel_size("out"), at + 100);
		assert_null(rig_file(fd)->head);
	}
	opener_end(&o);
	rig_close(fd);
	rig_expect("out", 6000);
}

static void test_reader(void **state)
{
	(void)state;
	opener_sees_all(0, O_RDONLY);
	opener_sees_all(O_APPEND | O_TRUNC, O_RDONLY);
}

static void test_writer(void **state)
{
	(void)state;
	opener_sees_all(0, O_WRONLY);
	opener_sees_all(O_APPEND | O_TRUNC, O_RDWR);
}

/* With O_NONBLOCK the kernel does not wait, and says so once. */
static void test_nonblocking_opener(void **state)
{
	int fd = staged_file(0, 5000);
	long size = -EAGAIN;

	(void)state;
	for (int i = 0; i < 1000 && size == -EAGAIN; i++) {
		struct opener o = opener_start(O_RDONLY | O_NONBLOCK);
		struct timespec t = {.tv_nsec = 1000000};

		size = o.size;
		opener_end(&o);
		nanosleep(&t, NULL);
	}
	assert_int_equal(size, 5000);
	rig_close(fd);
}

static void test_staged_again_when_alone(void **state)
{
	(void)state;
	for (int append = 0; append < 2; append++) {
		int fd = staged_file(O_TRUNC | (append ? O_APPEND : 0), 5000);
		struct opener o = opener_start(O_RDONLY);
		uint64_t n;

		rig_put(fd, 5000, 100);
		assert_null(rig_file(fd)->head);
		opener_end(&o);
		n = 5100 + put_until_staged(fd, 5100);
		o = opener_start(O_RDONLY);
		assert_int_equal(o.size, n);
		opener_end(&o);
		assert_int_equal(rig_close(fd), 0);
		rig_expect("out", n);
	}
}

/* A write of another thread that passed us is in the kernel still: it moves the position and the size. */
static void test_not_while_one_is_in_the_kernel(void **state)
{
	int fd = staged_file(0, 5000);
	struct file *f = rig_file(fd);
	struct opener o = opener_start(O_RDONLY);
	uint64_t at = 5000;

	(void)state;
	rig_put(fd, at, 100);
	at += 100;
	assert_true(f->lease.pass);
	opener_end(&o);
	atomic_store(&f->inflight, 1);
	for (int i = 0; i < 100; i++, at += 10) {
		rig_put(fd, at, 10);
		assert_null(f->head);
		assert_int_equal(rig_kernel_size("out"), at + 10);
		usleep(500);
	}
	atomic_store(&f->inflight, 0);
	at += put_until_staged(fd, at);
	rig_close(fd);
	rig_expect("out", at);
}

/* What others did to the file while we passed everything on. */
static void test_size_is_asked_anew(void **state)
{
	static uint8_t have[20000];
	int fd = staged_file(O_APPEND, 5000);
	struct opener o = opener_start(O_WRONLY);
	int other = open(rig_path("out"), O_WRONLY | O_APPEND);
	uint64_t n;

	(void)state;
	assert_int_equal(write(other, "somebody else\n", 14), 14);
	close(other);
	opener_end(&o);
	n = put_until_staged(fd, 5000);
	assert_int_equal(rig_file(fd)->lsize, 5014 + n);
	rig_faults_clear();
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(faults.writev.calls, 0); /* its place was known */
	assert_int_equal(faults.pwritev.calls, 1);
	other = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(other, have, sizeof have), 5014 + n);
	close(other);
	assert_memory_equal(have + 5000, "somebody else\n", 14);
	for (uint64_t i = 0; i < n; i++)
		assert_int_equal(have[5014 + i], rig_byte(5000 + i));
}

/* The space behind the end went with a truncation; it must be there again before bytes are accepted. */
static void test_space_is_reserved_anew(void **state)
{
	int fd = staged_file(O_APPEND, 20000);
	int other = -1;
	struct statx st;
	struct opener o;

	(void)state;
	assert_true(rig_file(fd)->space.end >= 1 << 20);
	o = opener_start(O_WRONLY);
	other = open(rig_path("out"), O_WRONLY | O_TRUNC);
	assert_true(other >= 0);
	close(other);
	opener_end(&o);
	put_until_staged(fd, 0);
	assert_int_equal(sys_kernel.statx(AT_FDCWD, rig_path("out"), 0, STATX_BLOCKS, &st), 0);
	assert_true(st.stx_blocks * 512 + rig_kernel_size("out") >= rig_file(fd)->space.end);
}

static void test_refused_while_busy(void **state)
{
	int fd = staged_file(0, 5000);

	(void)state;
	assert_int_equal(rig_drain(fd), 0);
	assert_null(rig_file(fd)->lease.on);
	assert_int_equal(sys_kernel.fcntl(fd, F_GETLEASE, 0), F_UNLCK);
	faults.fcntl_lease = (struct fault){.at = 1, .count = 3, .error = EAGAIN};
	rig_put(fd, 5000, 100);
	assert_int_equal(rig_kernel_size("out"), 5100);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(fcntl(fd, F_GETSIG), 0);
	assert_int_equal(fcntl(fd, F_GETOWN), 0);
	put_until_staged(fd, 5100);
	assert_int_equal(faults.fcntl_lease.calls, 4);
	assert_int_equal(rig_file(fd)->arena->header->live.through[BYPASS_LEASE_BUSY], 1);
}

static void test_no_leases_at_all(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	faults.fcntl_lease = (struct fault){.at = 1, .error = EINVAL, .then = EINVAL};
	for (uint64_t at = 0; at < 1000; at += 100) {
		rig_put(fd, at, 100);
		assert_int_equal(rig_kernel_size("out"), at + 100);
	}
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(rig_file(fd)->why, BYPASS_NO_LEASE);
	assert_int_equal(faults.fcntl_lease.calls, 1);
}

/* The disk is full: the opener does not wait for what cannot come, and the bytes are not lost. */
static void test_settle_fails(void **state)
{
	int fd = staged_file(0, 5000);
	struct opener o;

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .error = ENOSPC, .then = ENOSPC};
	o = opener_start(O_RDONLY);
	assert_int_equal(o.size, 100);
	assert_non_null(file_when_quiet(fd)->head);
	assert_null(rig_file(fd)->lease.on);
	assert_int_equal(rig_write(fd, "x", 1), -ENOSPC);
	faults.pwritev = (struct fault){0};
	rig_put(fd, 5000, 100);
	assert_int_equal(rig_kernel_size("out"), 5100);
	opener_end(&o);
	rig_close(fd);
	rig_expect("out", 5100);
}

/* Our own open of the file would wait for our own lease. */
static void test_opened_again_by_itself(void **state)
{
	int fd = staged_file(0, 5000), second;

	(void)state;
	for (int nonblock = 0; nonblock < 2; nonblock++) {
		second = rig_open("out", O_RDWR | (nonblock ? O_NONBLOCK : 0));
		assert_null(rig_file(fd)->lease.on);
		assert_int_equal(lseek(second, 0, SEEK_END), rig_kernel_size("out"));
		rig_put(fd, rig_kernel_size("out"), 100);
		assert_null(rig_file(fd)->lease.on);
		assert_int_equal(rig_close(second), 0);
		put_until_staged(fd, rig_kernel_size("out"));
	}
}

static void test_duplicates_share_the_lease(void **state)
{
	int fd = staged_file(0, 5000), copy;
	struct fd_copy c;
	struct opener o;

	(void)state;
	fd_dup_begin(&c, fd);
	copy = dup(fd);
	fd_dup_done(&c, copy);
	/* the number by which the lease was taken is gone */
	assert_int_equal(rig_close(fd), 0);
	put_until_staged(copy, 5000);
	assert_int_equal(fcntl(copy, F_GETLEASE), F_WRLCK);
	fd = open("/dev/null", O_RDONLY);
	o = opener_start(O_RDONLY);
	assert_int_equal(o.size, file_when_quiet(copy)->ksize);
	assert_int_equal(o.size, rig_kernel_size("out"));
	assert_null(rig_file(copy)->head);
	opener_end(&o);
	close(fd);
}

/* No room in the signal queue: the kernel sends something that nobody waits for. */
static void test_signal_queue_full(void **state)
{
	struct rlimit before, none = {0, 0};
	uint64_t from;
	struct opener o;

	(void)state;
	staged_file(0, 5000);
	assert_int_equal(getrlimit(RLIMIT_SIGPENDING, &before), 0);
	none.rlim_max = before.rlim_max;
	assert_int_equal(setrlimit(RLIMIT_SIGPENDING, &none), 0);
	from = sys_now_ns();
	o = opener_start(O_RDONLY);
	/* found by looking, long before the kernel gives up (45 s) */
	assert_true(sys_now_ns() - from < 20000000000u);
	assert_int_equal(setrlimit(RLIMIT_SIGPENDING, &before), 0);
	assert_int_equal(o.size, 5000);
	opener_end(&o);
}

static unsigned threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static void test_stop(void **state)
{
	int fd = staged_file(0, 5000);
	unsigned before = threads();

	(void)state;
	watcher_stop();
	assert_int_equal(threads(), before - 1);
	assert_null(rig_file(fd)->head);
	assert_int_equal(rig_kernel_size("out"), 5000);
	put_until_staged(fd, 5000);
	assert_int_equal(threads(), before);
}

/* With nothing staged the watcher ends by itself, and comes back. */
static void test_watcher_ends(void **state)
{
	int fd = staged_file(0, 5000);
	unsigned before = threads();
	struct opener o;

	(void)state;
	assert_int_equal(rig_drain(fd), 0);
	for (int i = 0; i < 6000 && threads() >= before; i++)
		usleep(10000);
	assert_true(threads() < before);
	put_until_staged(fd, 5000);
	o = opener_start(O_RDONLY);
	assert_int_equal(o.size, file_when_quiet(fd)->ksize);
	assert_true(o.size > 5000);
	opener_end(&o);
}

static void test_fork_writes_through(void **state)
{
	int fd = staged_file(0, 5000);
	struct file_guard g = file_lock(rig_file(fd));

	(void)state;
	watcher_fork(rig_file(fd));
	file_unlock(rig_file(fd), g);
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(rig_file(fd)->why, BYPASS_FORK);
	assert_int_equal(fcntl(fd, F_GETLEASE), F_UNLCK);
	rig_put(fd, 5000, 100);
	assert_int_equal(rig_kernel_size("out"), 5100);
}

/* Opened by one thread while another forked: the child has the description, too. */
static void test_shared_description(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	family_set_add(&fdtable_get(fd)->holders, 7);
	for (uint64_t at = 0; at < 1000; at += 100) {
		rig_put(fd, at, 100);
		assert_int_equal(rig_kernel_size("out"), at + 100);
	}
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(rig_file(fd)->why, BYPASS_FORK);
	family_set_remove(&fdtable_get(fd)->holders, 7);
}

static void test_flags_and_owner_are_the_programs(void **state)
{
	int fd = staged_file(O_APPEND, 5000);
	struct ofd *o = fdtable_get(fd);
	struct f_owner_ex owner = {.pid = -1};

	(void)state;
	assert_int_equal(fd_fcntl(fd, o, F_GETFL, 0), o->flags);
	assert_non_null(rig_file(fd)->lease.on);
	assert_int_equal(fd_fcntl(fd, o, F_GETLEASE, 0), F_UNLCK);
	assert_null(rig_file(fd)->lease.on);
	put_until_staged(fd, 5000);
	assert_int_equal(fd_fcntl(fd, o, F_GETSIG, 0), 0);
	put_until_staged(fd, rig_kernel_size("out"));
	assert_int_equal(fd_fcntl(fd, o, F_GETOWN_EX, (long)&owner), 0);
	assert_int_equal(owner.pid, 0);
	put_until_staged(fd, rig_kernel_size("out"));
	assert_int_equal(fd_fcntl(fd, o, F_GETOWN, 0), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_reader),
		TEST(test_writer),
		TEST(test_nonblocking_opener),
		TEST(test_staged_again_when_alone),
		TEST(test_not_while_one_is_in_the_kernel),
		TEST(test_size_is_asked_anew),
		TEST(test_space_is_reserved_anew),
		TEST(test_refused_while_busy),
		TEST(test_no_leases_at_all),
		TEST(test_settle_fails),
		TEST(test_opened_again_by_itself),
		TEST(test_duplicates_share_the_lease),
		TEST(test_signal_queue_full),
		TEST(test_stop),
		TEST(test_watcher_ends),
		TEST(test_fork_writes_through),
		TEST(test_shared_description),
		TEST(test_flags_and_owner_are_the_programs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
