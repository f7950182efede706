// SPDX-License-Identifier: Apache-2.0
/* wal_replay: after a power loss all files of a log stand as its last whole epoch has them, or none is
 * touched; killed anywhere and run again. */
#include "base/crc32c.h"
#include "base/kill.h"
#include "base/sys.h"
#include "foreign/claim.h"
#include "format/identity.h"
#include "format/wal_scan.h"
#include "recovery/recover.h"
#include "wal/wal.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAGE = WAL_PAGE_BYTES, FILES = 2, BEFORE = 2 * PAGE + 700, LOG_BYTES = 128 * PAGE };
static const char *names[FILES] = {"a", "b"};
static const uint8_t id[16] = "replayed by test";

static char dir[200], log_path[300];
static struct wal *wal;
static uint8_t *pages; /* what the epochs consist of */
static struct {
	uint8_t before[BEFORE];
	uint8_t after[8 * PAGE];
	uint64_t after_size;
} files[FILES];

static const char *path_of(const char *name)
{
	static char path[400];

	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

static void fill(uint8_t *p, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(seed * 37 + i % 241);
}

/* Sets the file's time to so many seconds before now. */
static void age(const char *name, int seconds)
{
	struct timespec times[2];

	clock_gettime(CLOCK_REALTIME, &times[0]);
	times[0].tv_sec -= seconds;
	times[1] = times[0];
	assert_int_equal(utimensat(AT_FDCWD, path_of(name), times, 0), 0);
}

static uint64_t log_bytes = LOG_BYTES;

/* mount_ago: the file system was mounted again in this boot, after a forced shutdown. */
static void make_log_of(const char *path, int64_t boot_ago_ns, bool mount_ago)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	struct origin origin;

	assert_true(fd >= 0);
	assert_int_equal(origin_here(fd, &origin), 0);
	origin.boot_ns -= boot_ago_ns;
	if (boot_ago_ns)
		memset(origin.boot_id, 7, sizeof origin.boot_id);
	origin.mount_id += mount_ago;
	origin.super_id += origin.super_id < ORIGIN_KIND(0) && mount_ago;
	assert_int_equal(wal_make(wal, fd, log_bytes, id, &origin), 0);
}

static void make_log(const char *path, int64_t boot_ago_ns) { make_log_of(path, boot_ago_ns, false); }

static int set_up(void **state)
{
	char staging[250];

	(void)state;
	snprintf(dir, sizeof dir, "%s/fastwrite-wal-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	snprintf(staging, sizeof staging, "%s/.fastwrite", dir);
	assert_int_equal(mkdir(staging, 0700), 0);
	snprintf(log_path, sizeof log_path, "%s/8388608-unit-1.journal", staging);
	wal = aligned_alloc(PAGE, (sizeof *wal + PAGE - 1) / PAGE * PAGE);
	pages = aligned_alloc(PAGE, 64 * PAGE);
	for (unsigned i = 0; i < FILES; i++) {
		int fd = open(path_of(names[i]), O_RDWR | O_CREAT, 0600);

		fill(files[i].before, BEFORE, i);
		memset(files[i].after, 0, sizeof files[i].after);
		memcpy(files[i].after, files[i].before, BEFORE);
		files[i].after_size = BEFORE;
		assert_int_equal(write(fd, files[i].before, BEFORE), BEFORE);
		close(fd);
		age(names[i], 1000000); /* before this boot, perhaps */
	}
	return 0;
}

static int tear_down(void **state)
{
	char command[300];

	(void)state;
	close(wal->fd);
	free(wal);
	free(pages);
	snprintf(command, sizeof command, "rm -r '%s'", dir);
	assert_int_equal(system(command), 0);
	return 0;
}

static bool other_volume; /* the files were on one that is not mounted */

static void put_name_of(uint32_t number, const char *name)
{
	int fd = open(path_of(name), O_RDONLY);
	struct arena_entry e = {.below = (uint16_t)(strlen(dir) + 1), .up = 1};
	struct identity identity;
	struct statx st;

	assert_int_equal(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &st), 0);
	identity_of(fd, &st, &identity);
	e.dev = sys_dev_of(&st);
	if (other_volume) {
		e.dev++;
		e.below = e.up = 0;
	}
	e.ino = identity.ino;
	e.btime_sec = identity.btime_sec;
	e.btime_nsec = identity.btime_nsec;
	e.generation = identity.generation;
	e.handle_hash = identity.handle_hash;
	snprintf(e.path, sizeof e.path, "%s", path_of(name));
	assert_int_equal(wal_put_name(wal, number, &e, 0), 0);
	close(fd);
}

static void put_name(unsigned file) { put_name_of(10 + file, names[file]); }

/* Of the cut of file 1. */
static uint32_t cut_flags;

/* An epoch in which file 0 gets `count` pages from `from` on, and file 1 is cut and gets one page. */
static void epoch(uint64_t from, uint32_t count, unsigned seed)
{
	struct wal_size size = {.mtime_sec = 1000 + seed};

	wal_begin(wal);
	put_name(0);
	size.lowest = files[0].after_size;
	if (files[0].after_size < (from + count) * PAGE - 100)
		files[0].after_size = (from + count) * PAGE - 100;
	size.size = files[0].after_size;
	assert_int_equal(wal_put_size(wal, 10, &size), 0);
	for (uint32_t i = 0; i < count; i++) {
		uint8_t *page = pages + i * PAGE;
		uint64_t at = (from + i) * PAGE;
		uint32_t n = size.size - at < PAGE ? (uint32_t)(size.size - at) : PAGE;

		fill(page, PAGE, seed + i);
		memcpy(files[0].after + at, page, n);
		assert_int_equal(wal_put_page(wal, 10, from + i, page, n), 0);
	}
	put_name(1);
	/* cut to 100 bytes, then written at the second page: zeros between */
	size.lowest = 100;
	size.flags = cut_flags;
	size.size = files[1].after_size = PAGE + 50;
	assert_int_equal(wal_put_size(wal, 11, &size), 0);
	memset(files[1].after + 100, 0, sizeof files[1].after - 100);
	fill(pages + 40 * PAGE, PAGE, seed);
	memcpy(files[1].after + PAGE, pages + 40 * PAGE, 50);
	assert_int_equal(wal_put_page(wal, 11, 1, pages + 40 * PAGE, 50), 0);
	assert_int_equal(wal_commit(wal), 0);
}

static char last_detail[300];
static int last_error;

static void note(void *ctx, const struct recover_event *e)
{
	(void)ctx;
	snprintf(last_detail, sizeof last_detail, "%s", e->detail);
	if (e->error)
		last_error = e->error;
}

static void expect_kind_refused(const char *given)
{
	const struct recover_options opt = {.event = note};
	struct recover_report report = {0};

	assert_int_equal(recover_path(given, &opt, &report), 0);
	assert_int_equal(report.failed, 1);
	assert_int_equal(report.beyond, 1);
	assert_non_null(strstr(last_detail, "another kind of file system"));
	assert_int_equal(access(log_path, F_OK), 0);
}

static struct recover_report recover_by(bool force, bool dry_run)
{
	const struct recover_options opt = {.event = note, .force = force, .dry_run = dry_run};
	struct recover_report report = {0};

	last_error = 0;
	assert_int_equal(recover_path(dir, &opt, &report), 0);
	return report;
}

static void expect(const char *name, const uint8_t *bytes, uint64_t size)
{
	static uint8_t found[8 * PAGE + 1];
	int fd = open(path_of(name), O_RDONLY);

	assert_int_equal(pread(fd, found, sizeof found, 0), (ssize_t)size);
	assert_memory_equal(found, bytes, size);
	close(fd);
}

static void expect_before(void)
{
	for (unsigned i = 0; i < FILES; i++)
		expect(names[i], files[i].before, BEFORE);
}

static void expect_after(void)
{
	for (unsigned i = 0; i < FILES; i++)
		expect(names[i], files[i].after, files[i].after_size);
}

static void expect_time(const char *name, int64_t seconds)
{
	struct stat st;

	assert_int_equal(stat(path_of(name), &st), 0);
	assert_int_equal(st.st_mtime, seconds);
}

enum { BOOT = 1 };
static const int64_t boots[] = {0, 1000000000000};

static void test_the_last_epoch_comes_back(void **state)
{
	struct recover_report report;

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	epoch(3, 4, 2);
	report = recover_by(false, true);
	assert_int_equal(report.recovered, FILES);
	expect_before();
	report = recover_by(false, false);
	assert_int_equal(report.recovered, FILES);
	assert_int_equal(report.failed + report.aside + report.orphans, 0);
	expect_after();
	expect_time("a", 1002);
	expect_time("b", 1002);
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_what_was_not_committed_does_not_count(void **state)
{
	static uint8_t image[LOG_BYTES];

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	assert_int_equal(wal_void(wal), 0);
	assert_int_equal(pread(wal->fd, image, LOG_BYTES, 0), LOG_BYTES);
	epoch(2, 5, 4);
	/* all but one sector of it */
	assert_int_equal(pwrite(wal->fd, image + wal->at - PAGE, 512, (off_t)wal->at - PAGE), 512);
	assert_int_equal(recover_by(false, false).recovered, 0);
	expect_before();
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_file_that_others_changed_keeps_the_whole_log_aside(void **state)
{
	struct recover_report report;

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	age("b", 0);
	for (int turn = 0; turn < 2; turn++) {
		report = recover_by(false, false);
		assert_int_equal(report.aside, FILES);
		assert_int_equal(report.recovered + report.failed, 0);
		assert_non_null(strstr(last_detail, "--force"));
		expect_before();
	}
	assert_int_equal(recover_by(true, false).recovered, FILES);
	expect_after();
	assert_int_equal(access(path_of(".fastwrite"), F_OK), -1);
}

/* In this boot "b" has become so long, and nobody waited for recovery. */
static struct recover_report recover_cut(uint32_t flags, off_t size, int seconds)
{
	struct recover_report report;

	make_log(log_path, boots[BOOT]);
	cut_flags = flags;
	epoch(1, 3, 1);
	cut_flags = 0;
	assert_int_equal(truncate(path_of("b"), size), 0);
	if (seconds)
		age("b", seconds);
	report = recover_by(false, false);
	assert_int_equal(report.failed, 0);
	return report;
}

/* The mount ends what the power loss interrupted, and gives the file its own time. */
static void test_a_cut_that_the_mount_has_made(void **state)
{
	(void)state;
	assert_int_equal(recover_cut(WAL_CUTS, 100, 0).recovered, FILES);
	expect_after();
}

static void test_a_cut_that_the_log_does_not_have(void **state)
{
	(void)state;
	assert_int_equal(recover_cut(WAL_CUTS, 101, 0).aside, FILES);
}

static void test_a_file_of_that_size_that_was_not_cut(void **state)
{
	(void)state;
	assert_int_equal(recover_cut(0, 100, 0).aside, FILES);
}

/* Somebody has written it, and set its time. */
static void test_a_cut_file_with_a_time_of_its_own(void **state)
{
	(void)state;
	assert_int_equal(recover_cut(WAL_CUTS, 100, -10).aside, FILES);
}

/* A kill: what the log has is in the arena or in the files. */
static void test_in_the_same_boot_it_goes(void **state)
{
	(void)state;
	make_log(log_path, 0);
	epoch(1, 3, 1);
	assert_int_equal(recover_by(false, false).recovered, 0);
	expect_before();
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_log_that_was_emptied(void **state)
{
	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	assert_int_equal(wal_empty(wal, false), 0);
	assert_int_equal(recover_by(false, false).recovered, 0);
	expect_before();
}

static void make(const char *name, const char *content)
{
	int fd = open(path_of(name), O_WRONLY | O_CREAT | O_EXCL, 0600);

	assert_int_equal(write(fd, content, strlen(content)), (ssize_t)strlen(content));
	close(fd);
}

static bool is_there(const char *name)
{
	struct stat st;

	return lstat(path_of(name), &st) == 0;
}

enum { LISTED = 6 };

/* Lists names, of which no file has the first five at the end of epoch_of_names. */
static void list_absent(void)
{
	static const char *const listed[LISTED] = {"empty", "filled", "link", "linked", "gone", "present"};
	static char paths[LISTED][400];
	struct wal_path list[LISTED];
	char other[400];

	for (int i = 0; i < LISTED; i++) {
		snprintf(paths[i], sizeof paths[i], "%s", path_of(listed[i]));
		list[i] = (struct wal_path){
			.path = paths[i], .below = (uint16_t)(i % 2 ? strlen(dir) + 1 : 0), .up = 1};
	}
	make("empty", "");
	make("filled", "x");
	make("linked", "");
	make("present", "");
	assert_int_equal(symlink("present", path_of("link")), 0);
	snprintf(other, sizeof other, "%s", path_of("other name"));
	assert_int_equal(link(path_of("linked"), other), 0);
	assert_int_equal(wal_list(wal, list, LISTED), 0);
}

static void epoch_of_names(void)
{
	wal_begin(wal);
	wal_put_absent(wal, 31);
	assert_int_equal(wal_commit(wal), 0);
}

/* Of the names of the list only an empty file goes that has no other name. */
static void expect_left(bool empty)
{
	assert_int_equal(is_there("empty"), empty);
	assert_true(is_there("filled") && is_there("link") && is_there("linked") && is_there("present"));
}

static void test_a_name_that_no_file_had(void **state)
{
	(void)state;
	make_log_of(log_path, 0, true);
	list_absent();
	epoch_of_names();
	assert_int_equal(recover_by(false, true).failed, 0);
	expect_left(true);
	assert_int_equal(recover_by(false, false).failed, 0);
	expect_left(false);
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_name_of_an_epoch_that_was_emptied(void **state)
{
	(void)state;
	make_log_of(log_path, 0, true);
	list_absent();
	epoch_of_names();
	assert_int_equal(wal_empty(wal, false), 0);
	assert_int_equal(recover_by(false, false).failed, 0);
	expect_left(false);
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_name_that_was_made_later(void **state)
{
	struct wal_header h;

	(void)state;
	make_log_of(log_path, 0, true);
	list_absent();
	epoch_of_names();
	assert_int_equal(wal_empty(wal, false), 0);
	h = wal->header;
	h.written_ns -= 10000000000;
	h.checksum = wal_header_checksum(&h);
	assert_int_equal(pwrite(wal->fd, &h, sizeof h, 0), sizeof h);
	assert_int_equal(recover_by(false, false).failed, 0);
	expect_left(true);
	assert_int_equal(access(log_path, F_OK), -1);
}

/* Somebody has made it in this boot. */
static void test_a_name_that_was_made_after_the_power_loss(void **state)
{
	(void)state;
	make_log(log_path, boots[BOOT]);
	list_absent();
	epoch(1, 3, 1);
	epoch_of_names();
	assert_int_equal(recover_by(false, false).recovered, FILES);
	expect_after();
	expect_left(true);
}

static void test_a_copy_is_left(void **state)
{
	char command[1200];

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	snprintf(command, sizeof command, "cp '%s' '%s/8388608-unit-2.journal' && rm '%s'", log_path,
	         path_of(".fastwrite"), log_path);
	assert_int_equal(system(command), 0);
	assert_int_equal(recover_by(false, false).failed, 1);
	assert_int_equal(last_error, -ESTALE);
	expect_before();
}

/* In the same boot a log would be removed, in another one replayed. */
static void test_made_on_another_kind_of_file_system(void **state)
{
	const struct recover_options force = {.force = true};
	struct recover_report report = {0};
	struct wal_header h;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		make_log(log_path, boots[i]);
		epoch(1, 3, 1);
		assert_int_equal(pread(wal->fd, &h, sizeof h, 0), (ssize_t)sizeof h);
		h.origin.super_id = ORIGIN_KIND(1);
		h.checksum = wal_header_checksum(&h);
		assert_int_equal(pwrite(wal->fd, &h, sizeof h, 0), (ssize_t)sizeof h);
		expect_kind_refused(dir);
		expect_kind_refused(log_path);
		expect_before();
		if (i == BOOT)
			break;
		close(wal->fd);
		assert_int_equal(unlink(log_path), 0);
	}
	assert_int_equal(recover_path(log_path, &force, &report), 0);
	assert_int_equal(report.recovered, FILES);
	expect_after();
}

static void test_a_file_that_is_gone(void **state)
{
	struct recover_report report;

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(0, 3, 1);
	assert_int_equal(unlink(path_of("a")), 0);
	report = recover_by(false, false);
	assert_int_equal(report.orphans, 1);
	assert_int_equal(report.recovered, 1);
	expect("b", files[1].after, files[1].after_size);
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_file_of_a_volume_that_is_not_mounted(void **state)
{
	const struct recover_options force = {.force = true};
	struct recover_report report;

	(void)state;
	make_log(log_path, boots[BOOT]);
	other_volume = true;
	epoch(0, 3, 1);
	other_volume = false;
	assert_int_equal(unlink(path_of("a")), 0);
	for (int turn = 0; turn < 2; turn++) {
		report = recover_by(turn == 1, false);
		assert_int_equal(report.failed, 1);
		assert_int_equal(report.orphans + report.recovered, 0);
		assert_non_null(strstr(last_detail, "not mounted"));
		expect("b", files[1].before, BEFORE);
		assert_int_equal(access(log_path, F_OK), 0);
		assert_int_equal(access(path_of(".fastwrite/orphans"), F_OK), -1);
	}
	report = (struct recover_report){0};
	assert_int_equal(recover_path(log_path, &force, &report), 0);
	assert_int_equal(report.orphans, 1);
	assert_int_equal(report.recovered, 1);
}

/* The program was removing it, so that it is gone says nothing of the volume. */
static void test_a_file_that_goes_on_another_volume(void **state)
{
	struct arena_entry e = {.dev = 1, .ino = 1, .btime_sec = 1};

	(void)state;
	make_log(log_path, boots[BOOT]);
	snprintf(e.path, sizeof e.path, "%s", path_of("gone"));
	wal_begin(wal);
	assert_int_equal(wal_put_name(wal, 20, &e, WAL_GOES), 0);
	assert_int_equal(wal_put_size(wal, 20, &(struct wal_size){.size = 1}), 0);
	assert_int_equal(wal_commit(wal), 0);
	assert_int_equal(recover_by(false, false).failed, 0);
	assert_int_equal(access(log_path, F_OK), -1);
}

/* A log that goes aside, since "b" was changed; "a" is gone. */
static void make_log_of_gone(void)
{
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	assert_int_equal(unlink(path_of("a")), 0);
	age("b", 0);
}

/* Nothing goes to the files then, so nothing of one that is gone is kept. */
static void test_a_file_that_is_gone_of_a_log_that_goes_aside(void **state)
{
	(void)state;
	make_log_of_gone();
	for (int turn = 0; turn < 2; turn++) {
		assert_int_equal(recover_by(false, false).aside, FILES);
		assert_int_equal(access(path_of(".fastwrite/orphans"), F_OK), -1);
	}
	assert_int_equal(recover_by(true, false).orphans, 1);
}

/* Not even where nothing can be kept. */
static void test_a_log_that_goes_aside_without_orphans(void **state)
{
	(void)state;
	make_log_of_gone();
	make(".fastwrite/orphans", "");
	assert_int_equal(recover_by(false, false).aside, FILES);
	assert_int_equal(access(log_path, F_OK), -1);
}

static int no_ftruncate(int fd, off_t size)
{
	(void)fd;
	(void)size;
	return -EIO;
}

static void test_an_error_and_another_try(void **state)
{
	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	sys.ftruncate = no_ftruncate;
	assert_int_equal(recover_by(false, false).failed, 1);
	sys = sys_kernel;
	assert_int_equal(last_error, -EIO);
	assert_int_equal(recover_by(false, false).recovered, FILES);
	expect_after();
}

static int no_ftruncate_of_b(int fd, off_t size)
{
	struct stat b, st;

	if (stat(path_of("b"), &b) == 0 && fstat(fd, &st) == 0 && st.st_ino == b.st_ino)
		return -EIO;
	return sys_kernel.ftruncate(fd, size);
}

/* What another program writes between two tries is not the recovery's. */
static void test_an_error_and_a_change_before_another_try(void **state)
{
	struct stat st;

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	sys.ftruncate = no_ftruncate_of_b;
	assert_int_equal(recover_by(false, false).failed, 1);
	sys = sys_kernel;
	expect("b", files[1].before, BEFORE);
	sys_nap(3 * WAL_TICK_NS);
	assert_int_equal(truncate(path_of("a"), 7), 0);
	assert_int_equal(recover_by(false, false).aside, FILES);
	assert_int_equal(stat(path_of("a"), &st), 0);
	assert_int_equal(st.st_size, 7);
	expect("b", files[1].before, BEFORE);
}

static void test_killed_at_every_step(void **state)
{
	unsigned long killed = 0;

	for (unsigned long step = 1;; step++) {
		int status;
		pid_t pid;

		make_log(log_path, boots[BOOT]);
		epoch(1, 3, 1);
		epoch(2, 3, 5);
		pid = fork();
		if (pid == 0) {
			kill_arm(step);
			recover_by(false, false);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status))
			break;
		assert_int_equal(WTERMSIG(status), SIGKILL);
		killed++;
		if (access(log_path, F_OK) == 0)
			assert_int_equal(recover_by(false, false).failed, 0);
		expect_after();
		tear_down(state);
		set_up(state);
	}
	expect_after();
#ifdef FASTWRITE_DEBUG
	assert_true(killed > 20);
#endif
}

/* Then only a note explains the time of a file. */
enum { LONG_AGO = 10000000 };

/* As if the log had been written so long before. */
static void age_log(int64_t seconds)
{
	static uint8_t whole[WAL_BATCH_MOST] __attribute__((aligned(WAL_PAGE_BYTES)));
	struct wal_batch *b = (struct wal_batch *)(void *)whole;
	uint64_t bytes;

	for (uint64_t at = WAL_BATCHES_AT; at < wal->end; at += bytes) {
		uint32_t head;

		assert_true(pread(wal->fd, whole, sizeof whole, (off_t)at) >= PAGE);
		head = wal_head_bytes(b);
		bytes = head + (uint64_t)b->images * PAGE;
		b->written_ns -= seconds * 1000000000ll;
		b->checksum = crc32c(wal_head_checksum(b, head), whole + head, b->images * (size_t)PAGE);
		assert_int_equal(pwrite(wal->fd, whole, bytes, (off_t)at), (ssize_t)bytes);
	}
}

/* The clock lost an hour with the power: the files have times that are yet to come. */
static void test_the_clock_is_behind(void **state)
{
	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	age_log(-3600);
	age("b", -3600);
	assert_int_equal(recover_by(false, false).recovered, FILES);
	expect_after();
	assert_int_equal(access(log_path, F_OK), -1);
}

/* As if the recovery that was interrupted had run in an earlier boot: its note, and what it has changed. */
static void age_recovery(void)
{
	enum { AGO = 5000000 };
	struct wal_replay note;
	int fd = open(log_path, O_RDWR);

	if (fd < 0)
		return;
	assert_int_equal(pread(fd, &note, sizeof note, WAL_REPLAY_AT), sizeof note);
	for (unsigned i = 0; i < FILES && note.boot_ns; i++) {
		struct stat st;

		assert_int_equal(stat(path_of(names[i]), &st), 0);
		if (st.st_mtim.tv_sec >= note.begun_ns / 1000000000) {
			struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, st.st_mtim};

			times[1].tv_sec -= AGO;
			assert_int_equal(utimensat(AT_FDCWD, path_of(names[i]), times, 0), 0);
		}
	}
	if (note.boot_ns) {
		note.boot_ns -= AGO * 1000000000ll;
		note.begun_ns -= AGO * 1000000000ll;
		note.until_ns -= AGO * 1000000000ll;
	}
	assert_int_equal(pwrite(fd, &note, sizeof note, WAL_REPLAY_AT), sizeof note);
	close(fd);
}

static void test_power_is_lost_at_every_step(void **state)
{
	unsigned long killed = 0;

	for (unsigned long step = 1;; step++) {
		struct recover_report report;
		int status;
		pid_t pid;

		make_log(log_path, boots[BOOT]);
		for (unsigned i = 0; i < FILES; i++)
			age(names[i], 20000000);
		epoch(1, 3, 1);
		epoch(2, 3, 5);
		age_log(LONG_AGO);
		for (int again = 0; again < 2; again++) {
			pid = fork();
			if (pid == 0) {
				kill_arm(step + (unsigned long)again);
				recover_by(false, false);
				_exit(0);
			}
			assert_int_equal(waitpid(pid, &status, 0), pid);
			age_recovery();
		}
		if (WIFEXITED(status))
			break;
		killed++;
		report = recover_by(false, false);
		assert_int_equal(report.failed + report.aside, 0);
		expect_after();
		tear_down(state);
		set_up(state);
	}
	expect_after();
#ifdef FASTWRITE_DEBUG
	assert_true(killed > 20);
#endif
}

/* The second recovery has only begun: what the first one has changed is still known. */
static void test_power_is_lost_twice(void **state)
{
	for (unsigned long step = 1; step < 6; step++) {
		int64_t then = sys_wall_ns() - 5000000000000000;
		struct wal_replay note = {
			.boot_ns = 1, .begun_ns = then - 2000000000, .until_ns = then + 2000000000};
		int status;
		pid_t pid;

		make_log(log_path, boots[BOOT]);
		epoch(1, 3, 1);
		age_log(LONG_AGO);
		assert_int_equal(pwrite(wal->fd, &note, sizeof note, WAL_REPLAY_AT), sizeof note);
		for (unsigned i = 0; i < FILES; i++)
			age(names[i], 5000000);
		pid = fork();
		if (pid == 0) {
			kill_arm(step);
			recover_by(false, false);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (access(log_path, F_OK) == 0) {
			age_recovery();
			assert_int_equal(recover_by(false, false).aside, 0);
		}
		expect_after();
		tear_down(state);
		set_up(state);
	}
	make_log(log_path, 0);
}

/* A recovery has begun, and another program has written "b" since, which no epoch makes longer or shorter. */
static void test_a_change_behind_a_recovery(void **state)
{
	struct wal_replay note = {.boot_ns = 1, .begun_ns = 1, .until_ns = 1};

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	assert_int_equal(pwrite(wal->fd, &note, sizeof note, WAL_REPLAY_AT), sizeof note);
	assert_int_equal(truncate(path_of("b"), 100), 0);
	assert_int_equal(recover_by(false, false).aside, FILES);
}

/* An epoch of a file that was changed since, and a recovery's note. */
static void make_noted_log(const struct wal_replay *note)
{
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	assert_int_equal(pwrite(wal->fd, note, sizeof *note, WAL_REPLAY_AT), sizeof *note);
	age("b", 0);
}

/* In this boot, at a time that the note of an earlier one has: a clock that begins anew. */
static void test_a_change_at_the_time_of_a_recovery(void **state)
{
	struct wal_replay note = {.boot_ns = 1, .begun_ns = 1, .until_ns = INT64_MAX};

	(void)state;
	make_noted_log(&note);
	assert_int_equal(recover_by(false, false).aside, FILES);
}

/* The clock has been set since: the boot seems to have been at another time. */
static void test_a_recovery_before_the_clock_was_set(void **state)
{
	int64_t now = sys_wall_ns();
	struct wal_replay note = {
		.boot_ns = now - 1000000000, .begun_ns = now - 500000000, .until_ns = now + 60000000000};

	(void)state;
	make_noted_log(&note);
	assert_int_equal(recover_by(false, false).recovered, FILES);
	expect_after();
}

static int slow_fdatasync(int fd)
{
	sys_nap(WAL_REPLAY_AHEAD_NS / 2);
	return sys_kernel.fdatasync(fd);
}

static int ends_at_a_file(int fd, off_t size)
{
	struct stat log, st;

	if (stat(log_path, &log) == 0 && fstat(fd, &st) == 0 && st.st_ino != log.st_ino)
		_exit(0);
	return sys_kernel.ftruncate(fd, size);
}

/* The note takes longer than it was to hold. */
static void test_a_note_on_a_slow_device(void **state)
{
	struct wal_replay note;
	int status;
	pid_t pid;

	(void)state;
	make_log(log_path, boots[BOOT]);
	epoch(1, 3, 1);
	pid = fork();
	if (pid == 0) {
		sys.fdatasync = slow_fdatasync;
		sys.ftruncate = ends_at_a_file;
		recover_by(false, false);
		_exit(1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(pread(wal->fd, &note, sizeof note, WAL_REPLAY_AT), sizeof note);
	assert_true(note.until_ns > note.begun_ns + 2 * WAL_REPLAY_AHEAD_NS);
}

/* One byte of the log is another one: the files stay, or all get the last epoch, or the one before it. */
static void test_damage(void **state)
{
	for (int turn = 0; turn < 60; turn++) {
		uint8_t byte;
		off_t at;

		make_log(log_path, boots[BOOT]);
		epoch(1, 3, 1);
		at = turn < 20 ? rand() % 128 : rand() % (off_t)wal->end;
		assert_int_equal(pread(wal->fd, &byte, 1, at), 1);
		byte ^= (uint8_t)(1 << rand() % 8);
		assert_int_equal(pwrite(wal->fd, &byte, 1, at), 1);
		if (recover_by(false, false).recovered == 0)
			expect_before();
		else
			expect_after();
		tear_down(state);
		set_up(state);
	}
	make_log(log_path, 0);
}

/* ---- large appends ---- */

enum { FROM = 3 * PAGE, TO = 7 * PAGE + 300 };

/* One file alone: its size, and the page with its old end, or none. */
static void size_epoch(uint64_t size, uint64_t lowest, uint32_t flags, bool page)
{
	wal_begin(wal);
	put_name(0);
	assert_int_equal(
		wal_put_size(wal, 10, &(struct wal_size){.size = size, .lowest = lowest, .flags = flags}), 0);
	if (page) {
		fill(pages, PAGE, 9);
		assert_int_equal(wal_put_page(wal, 10, FROM / PAGE - 1, pages, PAGE), 0);
		memcpy(files[0].after + FROM - PAGE, pages, PAGE);
	}
	assert_int_equal(wal_commit(wal), 0);
	files[0].after_size = size;
}

/* The bytes from FROM on are in the file, and not in the log. */
static void append_to_file(void)
{
	int fd = open(path_of(names[0]), O_WRONLY);

	fill(files[0].after + FROM, TO - FROM, 21);
	assert_int_equal(pwrite(fd, files[0].after + FROM, TO - FROM, FROM), TO - FROM);
	close(fd);
	age(names[0], 900000);
}

/* A log that has the size of "a", which has an append since. */
static void log_with_append(void)
{
	make_log(log_path, boots[BOOT]);
	size_epoch(BEFORE, BEFORE, 0, false);
	append_to_file();
}

static void recover_a_alone(void)
{
	assert_int_equal(recover_by(false, false).recovered, 1);
	expect("a", files[0].after, files[0].after_size);
	assert_int_equal(access(log_path, F_OK), -1);
}

static void test_a_large_append_counts_with_its_epoch(void **state)
{
	(void)state;
	log_with_append();
	size_epoch(TO, TO, WAL_IN_FILE, true);
	recover_a_alone();
}

static void test_a_large_append_without_its_epoch(void **state)
{
	(void)state;
	log_with_append();
	recover_a_alone();
}

static void test_two_large_appends_and_a_page(void **state)
{
	(void)state;
	log_with_append();
	size_epoch(FROM + PAGE, FROM + PAGE, WAL_IN_FILE, true);
	size_epoch(TO, TO, WAL_IN_FILE, false);
	/* the next one does not count */
	assert_int_equal(truncate(path_of("a"), 20 * PAGE), 0);
	age("a", 900000);
	recover_a_alone();
}

/* What was cut off after that is zeros, not what the append had there. */
static void test_a_large_append_is_cut_later(void **state)
{
	enum { LOWEST = FROM + PAGE + 10 };

	(void)state;
	log_with_append();
	size_epoch(TO, TO, WAL_IN_FILE, true);
	size_epoch(TO + 50, LOWEST, 0, false);
	memset(files[0].after + LOWEST, 0, sizeof files[0].after - LOWEST);
	recover_a_alone();
}

/* The same file under another name: it was renamed between the epochs. */
static void test_a_large_append_under_another_name(void **state)
{
	char before[400];

	(void)state;
	make_log(log_path, boots[BOOT]);
	size_epoch(BEFORE, BEFORE, 0, false);
	snprintf(before, sizeof before, "%s", path_of("a"));
	assert_int_equal(rename(before, path_of("c")), 0);
	names[0] = "c";
	append_to_file();
	size_epoch(TO, TO, WAL_IN_FILE, true);
	assert_int_equal(recover_by(false, false).failed, 0);
	expect("c", files[0].after, files[0].after_size);
	names[0] = "a";
}

/* A recovery that was killed has put all pages into the log. */
static void test_a_large_append_that_comes_again(void **state)
{
	(void)state;
	log_with_append();
	size_epoch(TO, TO, WAL_IN_FILE, true);
	wal_begin(wal);
	put_name(0);
	assert_int_equal(wal_put_size(wal, 10, &(struct wal_size){.size = TO, .lowest = BEFORE}), 0);
	for (uint64_t page = BEFORE / PAGE; page * PAGE < TO; page++) {
		uint64_t at = page * PAGE;

		memcpy(pages + at, files[0].after + at, PAGE);
		assert_int_equal(
			wal_put_page(wal, 10, page, pages + at, TO - at < PAGE ? (uint32_t)(TO - at) : PAGE),
			0);
	}
	assert_int_equal(wal_commit(wal), 0);
	recover_a_alone();
}

/* More files than the process may have open. */
static void test_many_files(void **state)
{
	enum { MANY = 60, LIMIT = 50 };
	struct rlimit limit, few;
	struct recover_report report;
	char name[20];

	(void)state;
	log_bytes = 4 * LOG_BYTES;
	make_log(log_path, boots[BOOT]);
	log_bytes = LOG_BYTES;
	for (unsigned round = 0; round < 2; round++) {
		struct wal_size size = {.size = PAGE, .mtime_sec = 1000};

		wal_begin(wal);
		fill(pages, PAGE, round);
		for (unsigned i = 0; i < MANY; i++) {
			snprintf(name, sizeof name, "many%u", i);
			if (round == 0)
				close(open(path_of(name), O_RDWR | O_CREAT, 0600));
			age(name, 1000000);
			put_name_of(100 + i, name);
			assert_int_equal(wal_put_size(wal, 100 + i, &size), 0);
			assert_int_equal(wal_put_page(wal, 100 + i, 0, pages, PAGE), 0);
		}
		assert_int_equal(wal_commit(wal), 0);
	}
	unlink(path_of("many7")); /* (its orphan is opened again and again, too) */
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	few = (struct rlimit){.rlim_cur = LIMIT, .rlim_max = limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	report = recover_by(false, false);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(last_error, 0);
	assert_int_equal(report.recovered, MANY - 1);
	assert_int_equal(report.orphans, 1);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "many%u", i);
		if (i != 7) {
			expect(name, pages, PAGE);
			expect_time(name, 1000);
		}
	}
}

/* All of them elsewhere. */
static void name_files(uint32_t count)
{
	struct wal_size size = {.size = PAGE};
	struct arena_entry e = {.dev = 1, .path = "/no/where"};

	log_bytes = 4096 * PAGE;
	make_log(log_path, boots[BOOT]);
	log_bytes = LOG_BYTES;
	wal_begin(wal);
	for (uint32_t i = 0; i < count; i++) {
		e.ino = 1000 + i;
		assert_int_equal(wal_put_name(wal, 1 + i, &e, 0), 0);
		assert_int_equal(wal_put_size(wal, 1 + i, &size), 0);
	}
	assert_int_equal(wal_commit(wal), 0);
}

/* Whoever makes a log must not make recovery search for minutes.  (In processor time, which other programs do
 * not lengthen.) */
static void test_very_many_names(void **state)
{
	const struct itimerval limit = {.it_value.tv_sec = 20}, none = {0};
	struct recover_report report;

	(void)state;
	name_files(100000);
	assert_int_equal(setitimer(ITIMER_PROF, &limit, NULL), 0);
	report = recover_by(false, false);
	assert_int_equal(setitimer(ITIMER_PROF, &none, NULL), 0);
	assert_int_equal(report.failed, 1);
	assert_int_equal(last_error, -EXDEV);
}

/* A start of root's program gives up. */
static void test_names_when_the_time_is_over(void **state)
{
	(void)state;
	name_files(10);
	claim_give_up(1);
	assert_int_equal(recover_by(false, false).failed, 1);
	assert_int_equal(last_error, -ETIMEDOUT);
	claim_give_up(CLAIM_FOREVER);
	assert_int_equal(recover_by(false, false).failed, 1);
	assert_int_equal(last_error, -EXDEV);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_the_last_epoch_comes_back),
		TEST(test_what_was_not_committed_does_not_count),
		TEST(test_a_file_that_others_changed_keeps_the_whole_log_aside),
		TEST(test_a_cut_that_the_mount_has_made),
		TEST(test_a_cut_that_the_log_does_not_have),
		TEST(test_a_file_of_that_size_that_was_not_cut),
		TEST(test_a_cut_file_with_a_time_of_its_own),
		TEST(test_in_the_same_boot_it_goes),
		TEST(test_the_clock_is_behind),
		TEST(test_a_log_that_was_emptied),
		TEST(test_a_name_that_no_file_had),
		TEST(test_a_name_of_an_epoch_that_was_emptied),
		TEST(test_a_name_that_was_made_later),
		TEST(test_a_name_that_was_made_after_the_power_loss),
		TEST(test_a_copy_is_left),
		TEST(test_made_on_another_kind_of_file_system),
		TEST(test_a_file_that_is_gone),
		TEST(test_a_file_of_a_volume_that_is_not_mounted),
		TEST(test_a_file_that_goes_on_another_volume),
		TEST(test_a_file_that_is_gone_of_a_log_that_goes_aside),
		TEST(test_a_log_that_goes_aside_without_orphans),
		TEST(test_an_error_and_a_change_before_another_try),
		TEST(test_an_error_and_another_try),
		TEST(test_killed_at_every_step),
		TEST(test_power_is_lost_at_every_step),
		TEST(test_power_is_lost_twice),
		TEST(test_a_change_behind_a_recovery),
		TEST(test_a_change_at_the_time_of_a_recovery),
		TEST(test_a_recovery_before_the_clock_was_set),
		TEST(test_a_note_on_a_slow_device),
		TEST(test_damage),
		TEST(test_a_large_append_counts_with_its_epoch),
		TEST(test_a_large_append_without_its_epoch),
		TEST(test_two_large_appends_and_a_page),
		TEST(test_a_large_append_is_cut_later),
		TEST(test_a_large_append_that_comes_again),
		TEST(test_a_large_append_under_another_name),
		TEST(test_many_files),
		TEST(test_very_many_names),
		TEST(test_names_when_the_time_is_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
