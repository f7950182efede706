// SPDX-License-Identifier: Apache-2.0
/* recover: recovery finds an append that was under way in the file: whole, in part or not at all, and never
 * in bytes that others wrote. */
#include "dead_arena.h"
#include "foreign/target.h"
#include "staging/guard.h"

enum { DONE_BYTES = 100 }; /* the first write bypasses staging */

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	return 0;
}

/* The bytes that are staged here go nowhere: this process is the dead one. */
static void lose_staged(int fd)
{
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	stage_seal(f);
	for (struct block_run *run = f->head; run; run = run->next)
		run->flushed = true;
	flush_free_done(f);
	file_unlock(f, g);
}

/* A fresh directory, for the next turn of a loop. */
static void start_again(void **state)
{
	rig_stop();
	set_up(state);
}

/* n staged bytes behind the first 100, and an append of all of them noted as begun at `base`. */
static int append_begun(size_t n, uint32_t how, uint64_t base)
{
	int fd = rig_open("out", O_RDWR | O_APPEND);
	struct arena_entry *entry;

	rig_put(fd, 0, DONE_BYTES);
	rig_put(fd, DONE_BYTES, n);
	entry = rig_entry(fd);
	entry->flush_base = base;
	entry->flush_bytes = n;
	entry->flush_from = entry->done;
	entry->flush_active = how;
	die_now(fd);
	entry->flush_active = APPEND_NONE;
	lose_staged(fd);
	return fd;
}

static void raw_append(const void *bytes, size_t n)
{
	int fd = open(rig_path("out"), O_WRONLY | O_APPEND);

	assert_int_equal(write(fd, bytes, n), (ssize_t)n);
	close(fd);
}

static void raw_pattern(uint64_t from, size_t n)
{
	uint8_t *buf = malloc(n);

	rig_fill(buf, n, from);
	raw_append(buf, n);
	free(buf);
}

/* The file has `total` bytes, and from `at` on the staged ones. */
static void expect_staged_at(size_t at, ssize_t total)
{
	uint8_t have[21000];
	int fd = open(rig_path("out"), O_RDONLY);

	assert_int_equal(read(fd, have, sizeof have), total);
	close(fd);
	for (size_t i = 0; i < 20000; i++)
		assert_int_equal(have[at + i], rig_byte(DONE_BYTES + i));
}

static void test_not_begun(void **state)
{
	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	assert_int_equal(recover_now().bytes, 20000);
	rig_expect("out", 20100);
}

static void test_all_there(void **state)
{
	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	raw_pattern(DONE_BYTES, 20000);
	recover_now();
	rig_expect("out", 20100);
}

static void test_up_to_a_page(void **state)
{
	(void)state;
	append_begun(20000, APPEND_AT_BASE, DONE_BYTES);
	raw_pattern(DONE_BYTES, 8192 - DONE_BYTES);
	recover_now();
	rig_expect("out", 20100);
}

/* Another program's line begins like ours.  Our append was not begun: nothing counts as written. */
static void test_foreign_line_with_our_beginning(void **state)
{
	uint8_t line[60];

	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	rig_fill(line, 30, DONE_BYTES);
	memset(line + 30, '!', 30);
	raw_append(line, sizeof line);
	recover_now();
	expect_staged_at(160, 20160);
}

/* The bytes of another program end with our first byte. */
static void test_foreign_end_is_our_beginning(void **state)
{
	uint8_t tail[2] = {'!', rig_byte(DONE_BYTES)};

	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	raw_append(tail, 2);
	recover_now();
	expect_staged_at(102, 20102);
}

static void test_ours_between_foreign_ones(void **state)
{
	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	raw_append("before", 6);
	raw_pattern(DONE_BYTES, 20000);
	raw_append("behind", 6);
	recover_now();
	assert_int_equal(rig_kernel_size("out"), 20112);
}

/* `done` has changed since the append began: it is over.  Equal bytes that are staged now are new ones. */
static void test_append_that_was_over(void **state)
{
	static uint8_t same[20000];
	struct arena_entry *entry;
	int fd = rig_open("out", O_RDWR | O_APPEND);

	(void)state;
	memset(same, 'a', sizeof same);
	assert_int_equal(rig_write(fd, same, 100), 100);
	assert_int_equal(rig_write(fd, same, 20000), 20000);
	assert_int_equal(rig_drain(fd), 0);
	entry = rig_entry(fd);
	entry->flush_active = APPEND_SOMEWHERE; /* died between the store to `done` and append_end */
	assert_int_equal(rig_write(fd, same, 20000), 20000);
	die_now(fd);
	entry->flush_active = APPEND_NONE;
	assert_int_equal(recover_now().bytes, 20000);
	assert_int_equal(rig_kernel_size("out"), 40100);
}

/* ---- faults ---- */

static struct {
	int error, at;   /* the at-th call from now fails */
	size_t most;     /* and the call before it is short */
	const char *end; /* openat and statx fail for paths that end so */
	int calls;
} fail;

static bool fail_now(void) { return fail.at > 0 && --fail.at == 0; }

static size_t fail_cut(size_t n) { return fail.at == 2 && fail.most && fail.most < n ? fail.most : n; }

/* Recovery writes to files by vectors of one entry. */
static ssize_t fail_writev(int fd, const struct iovec *iov, int count)
{
	struct iovec part = {.iov_base = iov->iov_base, .iov_len = fail_cut(iov->iov_len)};

	assert_int_equal(count, 1);
	return fail_now() ? -fail.error : sys_kernel.writev(fd, &part, 1);
}

static ssize_t fail_pwritev(int fd, const struct iovec *iov, int count, off_t at)
{
	struct iovec part = {.iov_base = iov->iov_base, .iov_len = fail_cut(iov->iov_len)};

	assert_int_equal(count, 1);
	return fail_now() ? -fail.error : sys_kernel.pwritev(fd, &part, 1, at);
}

static ssize_t fail_pread(int fd, void *buf, size_t n, off_t at)
{
	fail.calls += n == 64 * 1024;
	return fail_now() ? -fail.error : sys_kernel.pread(fd, buf, n, at);
}

static int fail_fdatasync(int fd) { return fail_now() ? -fail.error : sys_kernel.fdatasync(fd); }

static bool ends_as_wanted(const char *path)
{
	size_t n = strlen(path), m = strlen(fail.end);

	return n >= m && strcmp(path + n - m, fail.end) == 0;
}

static int fail_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	if (!ends_as_wanted(path))
		return sys_kernel.openat(dirfd, path, flags, mode);
	fail.calls++;
	return -fail.error;
}

static int fail_statx(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	return ends_as_wanted(path) ? -fail.error : sys_kernel.statx(dirfd, path, flags, mask, out);
}

static ssize_t fail_getdents(int fd, void *buf, size_t size)
{
	char path[64], where[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	n = readlink(path, where, sizeof where - 1);
	where[n > 0 ? n : 0] = '\0';
	return strcmp(where, rig_dir) == 0 ? -fail.error : sys_kernel.getdents(fd, buf, size);
}

/* Recovers with the fault: that fails with its error and leaves the arena.  Then recovers without. */
static void recover_twice(int error)
{
	struct recover_report report = recover_once();

	assert_int_equal(report.failed, 1);
	assert_int_equal(last_error, -error);
	assert_int_equal(report.orphans, 0);
	assert_int_equal(access(arena_path, F_OK), 0);
	sys = sys_kernel;
	recover_now();
}

/* Staged bytes of a process that died. */
static void leave_staged(bool append, size_t n)
{
	int fd;

	if (append) {
		append_begun(n, APPEND_NONE, 0);
		return;
	}
	fd = rig_open("out", O_RDWR);
	rig_put(fd, 0, DONE_BYTES);
	rig_put(fd, DONE_BYTES, n);
	die_now(fd);
	lose_staged(fd);
}

/* A disk takes a part of an append and is full then: the next recovery appends the rest. */
static void test_disk_full_in_an_append(void **state)
{
	(void)state;
	for (size_t most = 0; most < 5000; most += 1249) {
		leave_staged(true, 20000);
		fail.error = ENOSPC;
		fail.most = most;
		fail.at = most ? 2 : 1;
		sys.writev = fail_writev;
		recover_twice(ENOSPC);
		rig_expect("out", 20100);
		unlink(rig_path("out"));
		start_again(state);
	}
}

/* Recovery's notes of an append are cut short between any two words: each byte is in the file once. */
static void test_note_of_an_append_cut_short(void **state)
{
	unsigned failed = 0;

	for (int at = 1; at <= 7; at++)
		for (size_t most = 0; most <= 72; most += 8) {
			struct recover_report report;

			append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
			raw_pattern(DONE_BYTES, 8192 - DONE_BYTES); /* (so much of it was done) */
			fail.error = EIO;
			fail.most = most;
			fail.at = at + (most > 0);
			sys.pwritev = fail_pwritev;
			report = recover_once();
			failed += (unsigned)report.failed;
			sys = sys_kernel;
			if (report.failed)
				recover_now();
			rig_expect("out", 20100);
			unlink(rig_path("out"));
			start_again(state);
		}
	assert_true(failed > 7);
}

static void test_disk_full_at_positions(void **state)
{
	const int errors[] = {ENOSPC, EDQUOT, EIO, EFBIG};

	(void)state;
	for (int i = 0; i < 4; i++) {
		leave_staged(false, 20000);
		fail.error = errors[i];
		fail.most = 777;
		fail.at = 2;
		sys.pwritev = fail_pwritev;
		recover_twice(errors[i]);
		rig_expect("out", 20100);
		start_again(state);
	}
}

/* n bytes staged behind the end, and a change of the file under way; before them `older` others for the same
 * place, staged before. */
static void change_begun(size_t n, size_t older)
{
	static uint8_t before[65536];
	int fd = rig_open("out", O_RDWR);

	rig_put(fd, 0, DONE_BYTES);
	memset(before, 'b', older);
	if (older > 0)
		assert_int_equal(rig_pwrite(fd, before, older, DONE_BYTES), (long)older);
	rig_put(fd, DONE_BYTES, n);
	guard_change(rig_file(fd));
	die_now(fd);
	lose_staged(fd);
}

/* A short life within the second in which a change of our own may have come; the recovery is in another mount
 * if `mount`. */
static void others_went_on(uint64_t mount)
{
	static const char line[] = "a line of the next program\n";
	struct recover_report report;
	char have[256];
	int fd;

	change_begun(20000, 0);
	move_origin(0, mount);
	raw_append(line, sizeof line);
	/* what goes aside is durable: the journal that has it, too, may go now */
	fail.error = EIO;
	fail.at = 1;
	sys.fdatasync = fail_fdatasync;
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(access(arena_path, F_OK), 0);
	sys = sys_kernel;
	report = recover_once();
	assert_int_equal(report.recovered, 0);
	assert_int_equal(report.aside, 1);
	fd = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(fd, have, sizeof have), DONE_BYTES + sizeof line);
	assert_memory_equal(have + DONE_BYTES, line, sizeof line);
	close(fd);
	/* the user can have them all the same */
	snprintf(arena_path, sizeof arena_path, "%s/.fastwrite/aside/8388608-unit-1.arena", rig_dir);
	assert_int_equal(recover_by(true).recovered, 1);
	rig_expect("out", 20100);
	assert_int_equal(rmdir(rig_path(".fastwrite/aside")), 0);
}

static void test_others_went_on_at_once(void **state)
{
	(void)state;
	others_went_on(0);
}

/* (a container without /sys cannot tell a mount of the same file system from a new one) */
static void test_others_went_on_before_another_mount(void **state)
{
	(void)state;
	others_went_on(1);
}

/* The killed flush itself: some of the bytes, and zeros where the file was made longer first. */
static void test_killed_within_a_flush_at_positions(void **state)
{
	static const size_t parts[] = {0, 1, 4096, 19999, 20000};
	static const uint8_t zeros[3000];

	for (unsigned zeroed = 0; zeroed < 2; zeroed++)
		for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
			change_begun(20000, 0);
			raw_pattern(DONE_BYTES, parts[i]);
			if (zeroed && parts[i] + sizeof zeros <= 20000)
				raw_append(zeros, sizeof zeros);
			assert_int_equal(recover_now().bytes, 20000);
			rig_expect("out", 20100);
			start_again(state);
		}
}

/* A flush writes block after block: what a later one overwrites is in the file for a while. */
static void test_killed_between_two_blocks(void **state)
{
	static uint8_t before[20000];

	(void)state;
	memset(before, 'b', sizeof before);
	change_begun(20000, 300);
	raw_append(before, 300);
	recover_now();
	rig_expect("out", 20100);
}

static void test_sync_fails(void **state)
{
	(void)state;
	leave_staged(false, 20000);
	fail.error = EIO;
	fail.at = 1;
	sys.fdatasync = fail_fdatasync;
	recover_twice(EIO);
	rig_expect("out", 20100);
}

static void test_arena_cannot_be_read(void **state)
{
	(void)state;
	for (int at = 1; at <= 4; at++) { /* header, blocks, file entries, data */
		leave_staged(at % 2, 20000);
		fail.error = EIO;
		fail.at = at;
		sys.pread = fail_pread;
		recover_twice(EIO);
		rig_expect("out", 20100);
		start_again(state);
	}
}

/* Without /proc, or with no descriptor left, it is unknown whether this is another boot. */
static void test_boot_cannot_be_found_out(void **state)
{
	(void)state;
	leave_staged(false, 20000);
	fail.error = EMFILE;
	fail.end = "/boot_id";
	sys.openat = fail_openat;
	recover_twice(EMFILE);
	rig_expect("out", 20100);
}

/* A lease that is kept holds up a recovery once, not again for each file and each look at it. */
static void test_leases_are_kept(void **state)
{
	(void)state;
	leave_staged(false, 20000);
	fail.error = EAGAIN;
	fail.end = "out";
	fail.calls = 0;
	sys.openat = fail_openat;
	recover_target_patience(100);
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(last_error, -EAGAIN);
	assert_int_equal(fail.calls, 101);
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(fail.calls, 101 + 21);
	sys = sys_kernel;
	assert_int_equal(recover_now().recovered, 1);
	rig_expect("out", 20100);
}

/* A file that cannot be examined is not gone. */
static void test_target_cannot_be_examined(void **state)
{
	(void)state;
	leave_staged(false, 20000);
	fail.error = EIO;
	fail.end = "out";
	sys.statx = fail_statx;
	recover_twice(EIO);
	rig_expect("out", 20100);
}

static void test_directory_cannot_be_searched(void **state)
{
	char other[600];

	(void)state;
	leave_staged(false, 20000);
	snprintf(other, sizeof other, "%s/moved", rig_dir);
	assert_int_equal(rename(rig_path("out"), other), 0);
	fail.error = EIO;
	sys.getdents = fail_getdents;
	recover_twice(EIO);
	rig_expect("moved", 20100);
}

static bool is_out(int fd)
{
	struct stat one, other;

	return fstat(fd, &one) == 0 && stat(rig_path("out"), &other) == 0 && one.st_ino == other.st_ino;
}

static ssize_t fail_pread_of_out(int fd, void *buf, size_t n, off_t at)
{
	return is_out(fd) && fail_now() ? -fail.error : sys_kernel.pread(fd, buf, n, at);
}

static int fail_statx_of_out(int dirfd, const char *path, int flags, unsigned mask, struct statx *out)
{
	return path[0] == '\0' && is_out(dirfd) && fail_now()
	               ? -fail.error
	               : sys_kernel.statx(dirfd, path, flags, mask, out);
}

/* A part of an append may be in the file, but the file cannot be read: nothing is appended. */
static void test_append_cannot_be_searched(void **state)
{
	(void)state;
	for (int at = 1; at <= 4; at++) {
		append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
		raw_append("foreign", at % 2 ? 7 : 0);
		if (at % 2 == 0)
			raw_pattern(DONE_BYTES, 8192 - DONE_BYTES);
		fail.error = EIO;
		fail.at = at > 2 ? at - 1 : at;
		if (at > 2)
			sys.statx = fail_statx_of_out;
		else
			sys.pread = fail_pread_of_out;
		recover_twice(EIO);
		assert_int_equal(rig_kernel_size("out"), at % 2 ? 20107 : 20100);
		start_again(state);
	}
}

/* Between the check and the open the target's name becomes another file's, or a link to one. */
static const char *swap_for;

static int swap_openat(int dirfd, const char *path, int flags, mode_t mode)
{
	char moved[600], other[600];

	if (swap_for && strcmp(path, "out") == 0) {
		snprintf(moved, sizeof moved, "%s/moved", rig_dir);
		snprintf(other, sizeof other, "%s/other", rig_dir);
		assert_int_equal(rename(rig_path("out"), moved), 0);
		if (strcmp(swap_for, "link") == 0)
			assert_int_equal(symlink(other, rig_path("out")), 0);
		else
			assert_int_equal(rename(other, rig_path("out")), 0);
		swap_for = NULL;
	}
	return sys_kernel.openat(dirfd, path, flags, mode);
}

static void test_swapped_between_check_and_open(void **state)
{
	const char *const kinds[] = {"link", "file"};

	(void)state;
	for (int i = 0; i < 2; i++) {
		int fd;

		leave_staged(false, 20000);
		fd = open(rig_path("other"), O_WRONLY | O_CREAT, 0644);
		assert_int_equal(write(fd, "precious", 8), 8);
		close(fd);
		swap_for = kinds[i];
		sys.openat = swap_openat;
		assert_int_equal(recover_now().recovered, 1);
		assert_null(swap_for);
		sys = sys_kernel;
		rig_expect("moved", 20100);
		assert_int_equal(rig_kernel_size(i ? "out" : "other"), 8);
		start_again(state);
	}
}

/* The bytes of others match the beginning of ours at very many places: the search must not read the arena for
 * each. */
static void test_search_reads_a_block_once(void **state)
{
	static uint8_t alike[20000];

	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	for (size_t i = 0; i < sizeof alike; i += 16)
		rig_fill(alike + i, 16, DONE_BYTES);
	raw_append(alike, sizeof alike);
	fail.at = 0;
	fail.calls = 0;
	sys.pread = fail_pread;
	assert_int_equal(recover_now().bytes, 20000);
	sys = sys_kernel;
	assert_true(fail.calls < 10);
	assert_int_equal(rig_kernel_size("out"), 40100);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_not_begun),
		TEST(test_all_there),
		TEST(test_up_to_a_page),
		TEST(test_foreign_line_with_our_beginning),
		TEST(test_foreign_end_is_our_beginning),
		TEST(test_ours_between_foreign_ones),
		TEST(test_append_that_was_over),
		TEST(test_disk_full_in_an_append),
		TEST(test_note_of_an_append_cut_short),
		TEST(test_disk_full_at_positions),
		TEST(test_others_went_on_at_once),
		TEST(test_others_went_on_before_another_mount),
		TEST(test_killed_within_a_flush_at_positions),
		TEST(test_killed_between_two_blocks),
		TEST(test_sync_fails),
		TEST(test_arena_cannot_be_read),
		TEST(test_boot_cannot_be_found_out),
		TEST(test_leases_are_kept),
		TEST(test_target_cannot_be_examined),
		TEST(test_directory_cannot_be_searched),
		TEST(test_append_cannot_be_searched),
		TEST(test_swapped_between_check_and_open),
		TEST(test_search_reads_a_block_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
