// SPDX-License-Identifier: Apache-2.0
/* attach: which files are staged, from when on, and what must be written through. */
#include "attach/attach.h"
#include "attach/stop.h"
#include "base/fork_guard.h"
#include "files/family.h"
#include "files/never_staged.h"
#include "rig.h"
#include "staging/arena.h"
#include "staging/arenas.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void through(int fd, enum bypass_reason why)
{
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	rig_put(fd, 200, 100);
	assert_int_equal(rig_file(fd)->mode, FILE_BYPASSED);
	assert_int_equal(rig_file(fd)->why, why);
	assert_true(file_attached() == 0);
}

static void test_the_second_write_engages(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	assert_int_equal(rig_file(fd)->mode, FILE_PASSIVE);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), -1);
	rig_put(fd, 0, 100);
	assert_int_equal(rig_file(fd)->mode, FILE_PASSIVE);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), -1);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(rig_entry(fd)->used, 1);
	assert_string_equal(rig_entry(fd)->path, rig_path("out"));
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
}

static void test_large_writes_never_do(void **state)
{
	static uint8_t large[100000];
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	for (int i = 0; i < 5; i++)
		assert_int_equal(rig_write(fd, large, sizeof large), sizeof large);
	assert_int_equal(rig_file(fd)->mode, FILE_PASSIVE);
}

static void test_released_and_engaged_again(void **state)
{
	int fd = rig_open("out", O_WRONLY);
	struct file *f = rig_file(fd);
	struct file_guard g;

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	g = file_lock(f);
	assert_int_equal(detach_file(f), 0);
	file_unlock(f, g);
	assert_int_equal(f->mode, FILE_PASSIVE);
	rig_expect("out", 200);
	rig_put(fd, 200, 100);
	rig_put(fd, 300, 100);
	assert_int_equal(f->mode, FILE_ATTACHED);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 400);
}

static void test_release_that_fails_keeps_it_attached(void **state)
{
	int fd = rig_open("out", O_WRONLY);
	struct file *f = rig_file(fd);
	struct file_guard g;

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	faults.pwritev = (struct fault){.at = 1, .error = EIO};
	faults.pwritev.calls = 0;
	g = file_lock(f);
	assert_int_equal(attach_bypass(f, BYPASS_EXEC), -EIO);
	file_unlock(f, g);
	assert_int_equal(f->mode, FILE_ATTACHED);
	assert_non_null(f->head);
	rig_faults_clear();
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
}

/* A file that its second small write has attached; 200 bytes of it are written. */
static int open_attached(void)
{
	int fd = rig_open("out", O_WRONLY);

	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	return fd;
}

static void test_a_stronger_wish_replaces_a_weaker_one(void **state)
{
	int fd = open_attached();
	struct file *f = rig_file(fd);
	struct file_guard g;

	(void)state;
	g = file_lock(f);
	file_want(f, WANT_DETACH, BYPASS_NONE);
	file_want(f, WANT_BYPASS, BYPASS_MMAP);
	file_want(f, WANT_DETACH, BYPASS_NONE);
	assert_int_equal(f->wanted, WANT_BYPASS);
	assert_int_equal(f->wanted_why, BYPASS_MMAP);
	file_want(f, WANT_BYPASS, BYPASS_STDIO);
	assert_int_equal(f->wanted_why, BYPASS_STDIO);
	file_want_less(f, WANT_DETACH);
	assert_int_equal(f->wanted, WANT_BYPASS);
	file_want_less(f, WANT_BYPASS);
	assert_int_equal(f->wanted, WANT_DETACH);
	assert_int_equal(attach_as_wanted(f), 0);
	assert_int_equal(f->wanted, WANT_NOTHING);
	assert_int_equal(f->mode, FILE_PASSIVE);
	file_unlock(f, g);
	rig_expect("out", 200);
	assert_int_equal(rig_close(fd), 0);
}

static void test_a_wish_is_carried_out_by_the_next_write(void **state)
{
	int fd = open_attached();
	struct file *f = rig_file(fd);
	struct file_guard g;

	(void)state;
	g = file_lock(f);
	file_want(f, WANT_BYPASS, BYPASS_MMAP);
	stage_seal(f);
	file_unlock(f, g);
	rig_put(fd, 200, 100);
	assert_int_equal(f->mode, FILE_BYPASSED);
	assert_int_equal(f->why, BYPASS_MMAP);
	rig_expect("out", 300);
	assert_int_equal(rig_close(fd), 0);
}

static void test_unlinked(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	unlink(rig_path("out"));
	through(fd, BYPASS_UNLINKED);
}

/* While it is open; asked again less and less often. */
static void test_unknown_descriptor(void **state)
{
	int other = open(rig_path("out"), O_RDWR | O_CREAT, 0644);
	int fd = rig_open("out", O_WRONLY);
	struct file *f = rig_file(fd);
	uint64_t at = 0;

	(void)state;
	for (; at < 4000; at += 100) {
		rig_put(fd, at, 100);
		assert_int_equal(f->mode, FILE_PASSIVE);
		assert_true(file_attached() == 0);
	}
	assert_int_equal(f->why, BYPASS_UNKNOWN_FD);
	assert_in_range(1 << f->balance.doublings, 32, 64);
	close(other);
	for (; at < 12000; at += 100)
		rig_put(fd, at, 100);
	assert_int_equal(f->mode, FILE_ATTACHED);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 12000);
}

static void test_mapped(void **state)
{
	int fd = rig_open("out", O_RDWR);

	(void)state;
	never_staged_never(rig_file(fd)->dev, rig_file(fd)->ino, BYPASS_MMAP);
	through(fd, BYPASS_MMAP);
}

/* The program has closed its descriptor unseen, and the number is that of something else. */
static void test_a_refresh_by_another_file(void **state)
{
	int fd = rig_open("a", O_RDWR), other[2];

	(void)state;
	rig_put(fd, 0, 500);
	rig_put(fd, 500, 500);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	assert_int_equal(rig_drain(fd), 0);
	assert_int_equal(pipe(other), 0);
	attach_refresh(rig_file(fd), other[0]);
	assert_int_equal(rig_file(fd)->lsize, 1000);
	assert_int_equal(truncate(rig_path("a"), 300), 0);
	attach_refresh(rig_file(fd), fd);
	assert_int_equal(rig_file(fd)->lsize, 300);
	close(other[0]);
	close(other[1]);
}

static void test_no_reservation(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	/* the arena's own is the first */
	faults.fallocate = (struct fault){.at = 2, .count = 100, .error = EOPNOTSUPP};
	through(fd, BYPASS_NO_PREALLOC);
	rig_expect("out", 300);
}

/* What becomes of a file whose descriptor is copied to `number`. */
static enum file_mode with_standard(int number, enum bypass_reason *why)
{
	int saved = dup(number);
	int fd = rig_open("out", O_WRONLY);
	struct fd_copy c;

	fflush(stdout);
	fd_dup_begin(&c, fd);
	assert_int_equal(dup2(fd, number), number);
	fd_dup_done(&c, number);
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	enum file_mode mode = (enum file_mode)rig_file(fd)->mode;
	*why = rig_file(fd)->why;
	fd_close_prepare(number);
	dup2(saved, number);
	close(saved);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 200);
	unlink(rig_path("out"));
	return mode;
}

static void test_standard_descriptor(void **state)
{
	enum bypass_reason why;

	(void)state;
	for (int number = 0; number <= 2; number++) {
		assert_int_equal(with_standard(number, &why), FILE_BYPASSED);
		assert_int_equal(why, BYPASS_STANDARD_FD);
	}
}

/* With streams seen only 2 is left, where the C library's own messages go. */
static void test_standard_descriptor_with_streams(void **state)
{
	enum bypass_reason why;

	(void)state;
	fd_streams_seen = true;
	enum file_mode in = with_standard(0, &why), out = with_standard(1, &why),
		       err = with_standard(2, &why);
	fd_streams_seen = false;
	assert_int_equal(in, FILE_ATTACHED);
	assert_int_equal(out, FILE_ATTACHED);
	assert_int_equal(err, FILE_BYPASSED);
	assert_int_equal(why, BYPASS_STANDARD_FD);
}

static void test_staging_directory(void **state)
{
	static struct rule rule = {.name = "r"};
	char out[PATH_MAX];
	struct statx st;

	(void)state;
	assert_int_equal(sys_kernel.statx(AT_FDCWD, rig_dir, 0, STATX_BASIC_STATS, &st), 0);
	uint64_t dev = ((uint64_t)st.stx_dev_major << 32) | st.stx_dev_minor;
	snprintf(rule.prefix, sizeof rule.prefix, "%s", rig_dir);
	assert_int_equal(arenas_staging_dir(&rule, rig_path("deep/file"), dev, out), 0);
	assert_string_equal(out, rig_path(".fastwrite"));
	assert_int_equal(arenas_staging_dir(&rule, rig_path("deep/file"), dev + 1, out), 0);
	assert_string_equal(out, rig_path("deep/.fastwrite"));
	snprintf(rule.set.staging, sizeof rule.set.staging, "/dev/shm/x");
	assert_int_equal(arenas_staging_dir(&rule, rig_path("deep/file"), dev, out), 0);
	assert_string_equal(out, "/dev/shm/x");
}

/* Creation fails: said once, written through from then on.  Last, for a rule stays refused. */
static void test_no_arena(void **state)
{
	int fd = rig_open("out", O_WRONLY);

	(void)state;
	faults.fallocate = (struct fault){.at = 1, .error = EIO};
	faults.fallocate.calls = 0;
	through(fd, BYPASS_NO_ARENA);
	rig_expect("out", 300);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), -1);
}

/* The last writer's close fails while a reader stays: the bytes stay in the arena, the bookkeeping does not.
 */
static void test_failed_close_with_a_reader_left(void **state)
{
	int fd = rig_open("out", O_WRONLY);
	char command[1200];
	struct arena *a;
	int reader, entry;

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(rig_file(fd)->mode, FILE_ATTACHED);
	a = rig_file(fd)->arena;
	entry = rig_file(fd)->entry;
	reader = rig_open("out", O_RDONLY);
	faults.pwritev = (struct fault){.at = 1, .count = 1 << 20, .error = ENOSPC};
	assert_int_equal(rig_close(fd), -ENOSPC);
	assert_int_equal(file_attached(), 0);
	assert_int_equal(rig_file(reader)->mode, FILE_BYPASSED);
	assert_int_equal(rig_close(reader), 0);
	/* for `fastwrite recover`; here it is in the way of the next test */
	/* (a worker thread may be removing it, too) */
	snprintf(command, sizeof command, "rm -rf '%s'", rig_path(".fastwrite"));
	assert_int_equal(system(command), 0);
	arena_entry_free(a, (uint32_t)entry);
}

enum { ARENA_BYTES = 1 << 20, LOCKABLE = 6 << 20 };

/* The kernel's count of this process's locked memory, in KiB. */
static long locked_kib(void)
{
	char line[200];
	FILE *status = fopen("/proc/self/status", "r");
	long kib = -1;

	while (fgets(line, sizeof line, status))
		if (sscanf(line, "VmLck: %ld", &kib) == 1)
			break;
	fclose(status);
	return kib;
}

/* In a child that has no privilege: root may lock as much as it likes. */
static int lock_memory(uint64_t limit)
{
	struct rlimit most = {.rlim_cur = limit, .rlim_max = limit};
	int fd, status;

	fork_guard_set();
	fd_set_process();
	fd = rig_open("out", O_WRONLY);
	/* (what that user may not write to is not staged) */
	if (setrlimit(RLIMIT_MEMLOCK, &most) < 0 || (getuid() == 0 && fchown(fd, 65534, 65534) < 0) ||
	    (getuid() == 0 && setresuid(65534, 65534, 65534) < 0) || mlockall(MCL_FUTURE) < 0)
		return 10;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	rig_put(fd, 200, 100);
	status = rig_file(fd)->mode == FILE_ATTACHED ? 1 : rig_file(fd)->why == BYPASS_NO_ARENA ? 2 : 3;
	/* what this program maps is its own business; ours would be seen */
	if (status == 1 && locked_kib() * 1024 >= ARENA_BYTES / 2)
		status = 4;
	rig_close(fd);
	attach_stop_all(BYPASS_EXIT);
	return status;
}

static int in_child(uint64_t limit, char *said, size_t size)
{
	int ends[2], status;
	ssize_t n, at = 0;
	pid_t pid;

	assert_int_equal(chmod(rig_dir, 0777), 0);
	assert_int_equal(pipe(ends), 0);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], 2);
		_exit(lock_memory(limit));
	}
	close(ends[1]);
	while ((n = read(ends[0], said + at, size - 1 - (size_t)at)) > 0)
		at += n;
	said[at] = '\0';
	close(ends[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) > 4)
		print_message("%s\n", said);
	unlink(rig_path("out"));
	return WEXITSTATUS(status);
}

/* mlockall(MCL_FUTURE): what the library maps must not use up what the program may lock; where nothing can be
 * mapped the file is the kernel's, and nobody need hear of it. */
static void test_locked_memory(void **state)
{
	char said[1000];

	(void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	/* what the sanitizer maps for itself would have to be locked, too */
	print_message("skipped: memory cannot be locked under this sanitizer\n");
	skip();
#endif
	assert_int_equal(in_child(LOCKABLE, said, sizeof said), 1);
	assert_string_equal(said, "");
	assert_int_equal(in_child(ARENA_BYTES / 2, said, sizeof said), 2);
	assert_string_equal(said, "");
}

static _Atomic bool written;

static void *write_some(void *name)
{
	int fd = rig_open(name, O_WRONLY);

	for (int i = 0; i < 20; i++)
		rig_put(fd, (uint64_t)i * 100, 100);
	assert_int_equal(rig_close(fd), 0);
	atomic_store(&written, true);
	return NULL;
}

static void in_time(pthread_t thread)
{
	for (int i = 0; i < 1000 && !atomic_load(&written); i++)
		sys_nap(10000000);
	if (!atomic_load(&written))
		fail_msg("a write waits for blocks that nobody flushes");
	assert_int_equal(pthread_join(thread, NULL), 0);
	atomic_store(&written, false);
}

/* Each of many files has a block of its own, as many as there are but the one for signal handlers. */
static int stage_in_all_blocks(int *fds, int most, struct arena **a)
{
	int n = 0;

	do {
		char name[16];

		assert_true(n < most);
		snprintf(name, sizeof name, "full%d", n);
		fds[n] = rig_open(name, O_WRONLY);
		rig_put(fds[n], 0, 100);
		rig_put(fds[n], 100, 100);
		*a = rig_file(fds[n])->arena;
	} while ((*a)->free_count > 1 && ++n);
	return n + 1;
}

/* Their flushes fail, and then the program closes them: the blocks stay theirs. */
static void test_all_blocks_abandoned(void **state)
{
	int fds[64], entries[64], n;
	struct arena *a;
	pthread_t thread;
	char command[1200];

	(void)state;
	n = stage_in_all_blocks(fds, 64, &a);
	faults.pwritev = (struct fault){.at = 1, .count = 1 << 20, .error = ENOSPC};
	for (int i = 0; i < n; i++) {
		entries[i] = rig_file(fds[i])->entry;
		assert_int_equal(rig_close(fds[i]), -ENOSPC);
	}
	/* while the disk is full, and when it has room again */
	assert_int_equal(pthread_create(&thread, NULL, write_some, "other"), 0);
	in_time(thread);
	rig_expect("other", 2000);
	rig_faults_clear();
	assert_int_equal(pthread_create(&thread, NULL, write_some, "another"), 0);
	in_time(thread);
	rig_expect("another", 2000);
	for (int i = 0; i < n; i++) {
		arena_free_entry_blocks(a, (uint32_t)entries[i]);
		arena_entry_free(a, (uint32_t)entries[i]);
	}
	/* (a worker thread may be removing it, too) */
	snprintf(command, sizeof command, "rm -rf '%s'", rig_path(".fastwrite"));
	assert_int_equal(system(command), 0);
}

/* The same while they are open still. */
static void test_all_blocks_fail(void **state)
{
	struct arena *a;
	pthread_t thread;
	int fds[64], n;

	(void)state;
	n = stage_in_all_blocks(fds, 64, &a);
	faults.pwritev = (struct fault){.at = 1, .count = 1 << 20, .error = ENOSPC};
	assert_int_equal(pthread_create(&thread, NULL, write_some, "other"), 0);
	in_time(thread);
	rig_expect("other", 2000);
	rig_faults_clear();
	for (int i = 0; i < n; i++) {
		char name[16];

		assert_int_equal(rig_close(fds[i]), 0);
		snprintf(name, sizeof name, "full%d", i);
		rig_expect(name, 200);
	}
}

/* As in a process that does not have the file: another member of the family has staged its bytes. */
static void test_a_stopped_member_is_not_waited_for(void **state)
{
	int fd = open_attached();
	struct file *f = rig_file(fd);
	uint32_t refs = file_local(f)->refs;
	pid_t member;
	int status;

	(void)state;
	f->shared = true;
	atomic_store(&file_family()->highest, 1);
	file_local(f)->refs = 0;
	member = fork();
	if (member == 0) {
		lock_after_fork();
		lock_take(&f->lock, LOCK_FILE);
		raise(SIGSTOP);
		lock_drop(&f->lock, LOCK_FILE);
		_exit(0);
	}
	assert_int_equal(waitpid(member, &status, WUNTRACED), member);
	assert_true(WIFSTOPPED(status));
	attach_drain_elsewhere();
	assert_non_null(f->head);
	kill(member, SIGCONT);
	assert_int_equal(waitpid(member, &status, 0), member);
	assert_int_equal(status, 0);
	attach_drain_elsewhere();
	assert_null(f->head);
	rig_expect("out", 200);
	atomic_store(&file_family()->highest, 0);
	file_local(f)->refs = refs;
	assert_int_equal(rig_close(fd), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_the_second_write_engages),
		TEST(test_large_writes_never_do),
		TEST(test_released_and_engaged_again),
		TEST(test_release_that_fails_keeps_it_attached),
		TEST(test_a_stronger_wish_replaces_a_weaker_one),
		TEST(test_a_stopped_member_is_not_waited_for),
		TEST(test_a_wish_is_carried_out_by_the_next_write),
		TEST(test_unlinked),
		TEST(test_unknown_descriptor),
		TEST(test_a_refresh_by_another_file),
		TEST(test_no_reservation),
		TEST(test_failed_close_with_a_reader_left),
		TEST(test_locked_memory),
		TEST(test_all_blocks_fail),
		TEST(test_all_blocks_abandoned),
		TEST(test_standard_descriptor),
		TEST(test_standard_descriptor_with_streams),
		TEST(test_staging_directory),
		TEST(test_no_arena),
		/* behind all others: the inode is remembered, and the file system uses it again */
		TEST(test_mapped),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
