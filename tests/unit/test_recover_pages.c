// SPDX-License-Identifier: Apache-2.0
/* page_replay: recovery brings what the overlay of pages holds into the file, killed anywhere and run again;
 * and only where nobody else has changed the file. */
#include "dead_arena.h"

#include "base/kill.h"
#include "format/wal_scan.h"
#include "pages/overlay.h"
#include "staging/guard.h"
#include "wal/wal.h"

#include <signal.h>
#include <sys/wait.h>

enum { MOST = 20 * PAGES_BYTES, BEGIN_BYTES = 3 * PAGES_BYTES + 700 };

static struct overlay overlay;
static uint8_t model[MOST]; /* the file as the program sees it; zeros behind its end */
static uint64_t model_size;
static const struct timespec now = {.tv_sec = 1234567890};
static int out;

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	rig_config.rules[0].set.writers = WRITERS_EXCLUSIVE;
	rig_config.rules[0].set.sync = SYNC_ORDERED;
	rig_config.rules[0].set.ordered_ms = 60000; /* no epoch by itself, however slow the machine is */
	return 0;
}

static int read_file(void *ctx, void *to, size_t n, uint64_t offset)
{
	(void)ctx;
	assert_int_equal(pread(out, to, n, (off_t)offset), (ssize_t)n);
	return 0;
}

static void take_guard(void)
{
	struct file *f = rig_file(out);
	struct file_guard g = file_lock(f);

	guard_take(f, out);
	file_unlock(f, g);
}

/* A file of some bytes, all in the kernel, with its overlay. */
static void begin(void)
{
	struct file *f;

	out = rig_open("out", O_RDWR);
	rig_put(out, 0, BEGIN_BYTES);
	rig_put(out, BEGIN_BYTES, 1);
	assert_int_equal(rig_drain(out), 0);
	memset(model, 0, sizeof model);
	model_size = BEGIN_BYTES + 1;
	rig_fill(model, model_size, 0);
	f = rig_file(out);
	assert_true(f->arena->pages.frame_count >= 32);
	assert_int_equal(overlay_attach(&overlay, &f->arena->pages, (uint32_t)f->entry, model_size, &now,
	                                read_file, NULL),
	                 0);
	take_guard();
}

static void put(uint64_t offset, size_t n, uint64_t seed)
{
	static uint8_t bytes[MOST];
	struct iovec iov = {.iov_base = bytes, .iov_len = n};

	rig_fill(bytes, n, seed);
	assert_int_equal(overlay_write(&overlay, &iov, 1, n, offset, &now, false), 0);
	memcpy(model + offset, bytes, n);
	if (offset + n > model_size)
		model_size = offset + n;
}

static void cut_off(uint64_t size)
{
	assert_int_equal(overlay_truncate(&overlay, size, &now, false), 0);
	if (size < model_size)
		memset(model + size, 0, model_size - size);
	model_size = size;
}

/* Overwrites, an append, a hole, a truncation and what came behind it. */
static void change_much(void)
{
	put(100, 50, 11);
	put(PAGES_BYTES - 10, 2 * PAGES_BYTES, 12);
	put(model_size, 5000, 13);
	cut_off(2 * PAGES_BYTES + 9);
	put(model_size + 2 * PAGES_BYTES, 300, 14);
	put(9 * PAGES_BYTES, PAGES_BYTES, 15);
	cut_off(9 * PAGES_BYTES + 77);
}

static void expect_model(const char *name)
{
	static uint8_t bytes[MOST + 1];
	int fd = open(rig_path(name), O_RDONLY);

	assert_int_equal(read(fd, bytes, sizeof bytes), (ssize_t)model_size);
	assert_memory_equal(bytes, model, model_size);
	close(fd);
}

/* The cut as far as `most` of its pieces is in the file. */
static void write_back(unsigned most)
{
	struct overlay_piece piece;
	uint32_t cursor = 0;

	if (overlay_cut(&overlay, false) == 0)
		return; /* nothing has changed */
	guard_change(rig_file(out));
	assert_int_equal(ftruncate(out, (off_t)overlay.cut.lowest), 0);
	while (most-- > 0 && overlay_cut_piece(&overlay, &cursor, &piece))
		assert_int_equal(pwrite(out, piece.data, piece.bytes, (off_t)piece.offset),
		                 (ssize_t)piece.bytes);
}

static void test_all_pages_come_back(void **state)
{
	struct recover_report report;

	(void)state;
	begin();
	change_much();
	die_now(out);
	report = recover_now();
	assert_int_equal(report.recovered, 1);
	assert_true(report.bytes > 0);
	expect_model("out");
}

static void test_a_cut_that_was_under_way(void **state)
{
	(void)state;
	begin();
	change_much();
	write_back(2);
	put(0, 9, 31);
	put(model_size, 2000, 32);
	die_now(out);
	recover_now();
	expect_model("out");
}

static void test_what_was_written_back_is_not_written_again(void **state)
{
	struct recover_report report;

	(void)state;
	begin();
	change_much();
	write_back(UINT32_MAX);
	assert_int_equal(ftruncate(out, (off_t)overlay.cut.size), 0);
	assert_int_equal(overlay_done(&overlay, false), 0);
	take_guard();
	die_now(out);
	report = recover_now();
	assert_int_equal(report.recovered, 0);
	expect_model("out");
}

static void test_a_size_alone_comes_back(void **state)
{
	(void)state;
	begin();
	cut_off(0);
	die_now(out);
	assert_int_equal(recover_now().recovered, 1);
	expect_model("out");
}

/* The file is as it was before; the user can have the pages written. */
static void expect_aside(void)
{
	rig_expect("out", BEGIN_BYTES + 1);
	snprintf(arena_path, sizeof arena_path, "%s/.fastwrite/aside/8388608-unit-1.arena", rig_dir);
	assert_int_equal(recover_by(true).recovered, 1);
	expect_model("out");
	assert_int_equal(rmdir(rig_path(".fastwrite/aside")), 0);
}

static void test_a_file_that_others_changed_is_left(void **state)
{
	struct recover_report report;
	struct timespec old[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};

	(void)state;
	begin();
	change_much();
	die_now(out);
	assert_int_equal(futimens(out, old), 0);
	report = recover_now();
	assert_int_equal(report.aside, 1);
	assert_int_equal(report.recovered, 0);
	expect_aside();
}

static void after_another_origin(int64_t boot, uint64_t mount)
{
	begin();
	change_much();
	die_now(out);
	move_origin(boot, mount);
	assert_int_equal(recover_now().aside, 1);
	expect_aside();
}

static void test_after_another_boot_pages_are_put_aside(void **state)
{
	(void)state;
	after_another_origin(1000000000000, 0);
}

static void test_after_another_mount_pages_are_put_aside(void **state)
{
	(void)state;
	after_another_origin(0, 1);
}

enum { ANOTHER_BOOT = 1000 }; /* s before this one */

/* The log of the dead process, made so many seconds of boot time ago, of which each epoch cuts the file to
 * `size`; its path. */
static const char *put_log(int64_t boot, uint64_t size, uint32_t epochs)
{
	static const uint8_t id[16] = "of a dead one";
	static char path[PATH_MAX + 64];
	static struct wal wal;
	struct file *f = rig_file(out);
	struct origin origin;
	int fd;

	snprintf(path, sizeof path, "%s/8388608-unit-1.journal", f->arena->dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(origin_here(fd, &origin), 0);
	origin.boot_ns -= boot * 1000000000ll;
	if (boot)
		memset(origin.boot_id, 7, sizeof origin.boot_id);
	assert_int_equal(wal_make(&wal, fd, WAL_BYTES_MIN, id, &origin), 0);
	while (epochs-- > 0) {
		const struct wal_size cut = {.size = size, .lowest = size, .flags = WAL_CUTS};

		wal_begin(&wal);
		assert_int_equal(wal_put_name(&wal, 1, arena_entry_at(f->arena, (uint32_t)f->entry), 0), 0);
		assert_int_equal(wal_put_size(&wal, 1, &cut), 0);
		assert_int_equal(wal_commit(&wal), 0);
	}
	close(fd);
	return path;
}

/* The log that cannot be replayed yet knows the file by its times. */
static void test_a_log_that_waits_keeps_the_times(void **state)
{
	enum { CUT = PAGES_BYTES };
	struct recover_report report = {0};
	struct stat before, after;
	const char *log;

	(void)state;
	begin();
	atomic_fetch_or(&arena_entry_at(rig_file(out)->arena, (uint32_t)rig_file(out)->entry)->flags,
	                ENTRY_PREALLOCATED);
	die_now(out);
	move_origin(ANOTHER_BOOT * 1000000000ll, 0);
	log = put_log(ANOTHER_BOOT, CUT, 1);
	rig_close(out);
	/* the mount has ended the cut */
	assert_int_equal(truncate(rig_path("out"), CUT), 0);
	assert_int_equal(stat(rig_path("out"), &before), 0);
	faults.ftruncate = (struct fault){.at = 1, .count = 100, .error = EIO};
	assert_true(recover_once().failed > 0);
	rig_faults_clear();
	assert_int_equal(access(log, F_OK), 0);
	assert_int_equal(stat(rig_path("out"), &after), 0);
	assert_memory_equal(&after.st_ctim, &before.st_ctim, sizeof after.st_ctim);
	assert_int_equal(recover_path(rig_dir, &(struct recover_options){0}, &report), 0);
	assert_int_equal(report.recovered, 1);
	assert_int_equal(report.aside, 0);
	assert_int_equal(access(log, F_OK), -1);
}

static void test_a_file_that_is_gone(void **state)
{
	char command[1024];

	(void)state;
	begin();
	cut_off(0);
	put(100, 5000, 3);
	die_now(out);
	assert_int_equal(unlink(rig_path("out")), 0);
	assert_int_equal(recover_now().orphans, 1);
	snprintf(command, sizeof command, "mv '%s'/.fastwrite/orphans/* '%s'", rig_dir, rig_path("found"));
	assert_int_equal(system(command), 0);
	expect_model("found");
	assert_int_equal(rmdir(rig_path(".fastwrite/orphans")), 0);
}

static void test_a_full_disk_and_another_try(void **state)
{
	(void)state;
	begin();
	change_much();
	die_now(out);
	faults.pwritev = (struct fault){.at = 6, .count = 1, .error = ENOSPC};
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(last_error, -ENOSPC);
	faults.pwritev.at = 0;
	faults.ftruncate = (struct fault){.at = 1, .count = 1, .error = EIO};
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(last_error, -EIO);
	rig_faults_clear();
	assert_int_equal(recover_now().recovered, 1);
	expect_model("out");
}

static void scan_log(const char *log, struct wal_scan *scan, struct wal_replay *note)
{
	static _Alignas(WAL_PAGE_BYTES) uint8_t batch[WAL_BATCH_MOST];
	int fd = open(log, O_RDONLY);

	assert_int_equal(wal_scan_begin(scan, fd, batch), 0);
	assert_int_equal(pread(fd, note, sizeof *note, WAL_REPLAY_AT), sizeof *note);
	close(fd);
}

/* The first try has put all of it into the log, and the others write in order, too. */
static void test_many_tries_do_not_fill_the_log(void **state)
{
	struct wal_replay note;
	struct wal_scan scan;
	const char *log;

	(void)state;
	begin();
	change_much();
	die_now(out);
	log = put_log(0, BEGIN_BYTES, 1);
	faults.ftruncate = (struct fault){.at = 1, .count = 1000, .error = EIO};
	for (int turn = 0; turn < 8; turn++)
		assert_int_equal(recover_once().failed, 1);
	rig_faults_clear();
	scan_log(log, &scan, &note);
	assert_int_equal(scan.epochs, 2);
	assert_true(note.until_ns > sys_wall_ns());
	assert_int_equal(recover_now().recovered, 1);
	expect_model("out");
}

static int no_ftruncate_of_out(int fd, off_t size)
{
	struct stat target, st;

	if (stat(rig_path("out"), &target) == 0 && fstat(fd, &st) == 0 && st.st_ino == target.st_ino)
		return -EIO;
	return sys_kernel.ftruncate(fd, size);
}

/* The process was killed before it could empty its log. */
static void test_a_log_without_room(void **state)
{
	struct wal_replay note;
	struct wal_scan scan;
	const char *log;

	(void)state;
	begin();
	change_much();
	die_now(out);
	log = put_log(0, BEGIN_BYTES, WAL_BYTES_MIN / WAL_PAGE_BYTES - 12);
	sys.ftruncate = no_ftruncate_of_out;
	assert_int_equal(recover_once().failed, 1);
	sys.ftruncate = sys_kernel.ftruncate;
	scan_log(log, &scan, &note);
	assert_true(scan.recovery);
	assert_int_equal(recover_now().recovered, 1);
	expect_model("out");
}

static void test_killed_at_every_step(void **state)
{
	unsigned long killed = 0;

	(void)state;
	for (unsigned long step = 1;; step++) {
		int status;
		pid_t pid;

		begin();
		change_much();
		write_back(1);
		put(model_size, 100, 8);
		die_now(out);
		pid = fork();
		if (pid == 0) {
			kill_arm(step);
			recover_by(false);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status))
			break;
		assert_int_equal(WTERMSIG(status), SIGKILL);
		killed++;
		if (access(arena_path, F_OK) == 0)
			recover_now();
		expect_model("out");
		rig_stop();
		set_up(state);
	}
	expect_model("out");
#ifdef FASTWRITE_DEBUG
	assert_true(killed > 20);
#endif
}

static void test_damage(void **state)
{
	static const struct {
		size_t at;
		uint64_t value;
	} damages[] = {
		{offsetof(struct arena_header, pages_bytes), 0},
		{offsetof(struct arena_header, pages_bytes), UINT64_MAX},
		{offsetof(struct arena_header, pages_bytes), PAGES_BYTES},
	};

	(void)state;
	begin();
	change_much();
	die_now(out);
	for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
		struct arena_header whole = header_read(), h = whole;

		memcpy((uint8_t *)&h + damages[i].at, &damages[i].value, sizeof damages[i].value);
		header_write(&h);
		assert_int_equal(recover_once().failed, 1);
		assert_int_equal(last_error, -EBADMSG);
		h = whole;
		h.version = ARENA_VERSION;
		header_write(&h);
		assert_int_equal(recover_once().failed, 1);
		assert_int_equal(last_error, -EBADMSG);
		header_write(&whole);
	}
	rig_expect("out", BEGIN_BYTES + 1);
	recover_now();
	expect_model("out");
}

static void store(uint64_t at, const void *bytes, size_t n)
{
	int fd = open(arena_path, O_WRONLY);

	assert_int_equal(pwrite(fd, bytes, n, (off_t)at), (ssize_t)n);
	close(fd);
}

/* The metadata makes no sense, or the entry has blocks, too: it stays in the arena. */
static void test_damaged_tables(void **state)
{
	const uint64_t too_long = UINT64_MAX;
	struct arena_block block = {0};
	struct pages_layout l;
	struct arena_header h;
	uint32_t entry;
	uint64_t at;

	(void)state;
	begin();
	change_much();
	entry = (uint32_t)rig_file(out)->entry;
	die_now(out);
	h = header_read();
	assert_true(arena_pages(&h, &l, &at));
	at += (uint64_t)entry * PAGES_FILE_BYTES;
	for (unsigned slot = 0; slot < PAGES_META_SLOTS; slot++)
		store(at + offsetof(struct page_file, meta) + slot * sizeof(struct page_meta) +
		              offsetof(struct page_meta, size),
		      &too_long, sizeof too_long);
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(last_error, -EBADMSG);

	die_now(out);
	block = (struct arena_block){.owner = entry + 1, .kind = STAGE_POSITIONAL, .seq = 1ull << 40};
	block.commit = COMMIT_MAKE(1, 1, 0);
	block.commit = COMMIT_MAKE(
		1, 1, arena_sum_block(rig_entry(out), &block, (uint8_t[65536]){0}, 65536, block.commit));
	store(h.blocks_at, &block, sizeof block);
	store(h.data_at, (uint8_t[]){0}, 1);
	assert_int_equal(recover_once().failed, 1);
	assert_int_equal(last_error, -EBADMSG);
	rig_expect("out", BEGIN_BYTES + 1);
	assert_int_equal(unlink(arena_path), 0);
}

/* Many changes at random; the file after recovery is as the program saw it. */
static void test_random_changes(void **state)
{
	(void)state;
	srand(4711);
	for (int round = 0; round < 40; round++) {
		begin();
		for (int i = rand() % 30; i >= 0; i--) {
			uint64_t offset = (uint64_t)rand() % (MOST / 2);

			if (rand() % 5 == 0)
				cut_off(offset);
			else if (rand() % 6 == 0 && i > 0 && !overlay_is_cut(&overlay))
				write_back((unsigned)rand() % 4);
			else
				put(offset, 1 + (size_t)rand() % (2 * PAGES_BYTES), (uint64_t)rand());
		}
		die_now(out);
		recover_now();
		expect_model("out");
		rig_stop();
		set_up(state);
	}
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, rig_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_all_pages_come_back),
		TEST(test_a_cut_that_was_under_way),
		TEST(test_what_was_written_back_is_not_written_again),
		TEST(test_a_size_alone_comes_back),
		TEST(test_a_file_that_others_changed_is_left),
		TEST(test_after_another_boot_pages_are_put_aside),
		TEST(test_after_another_mount_pages_are_put_aside),
		TEST(test_a_log_that_waits_keeps_the_times),
		TEST(test_a_file_that_is_gone),
		TEST(test_a_full_disk_and_another_try),
		TEST(test_many_tries_do_not_fill_the_log),
		TEST(test_a_log_without_room),
		TEST(test_killed_at_every_step),
		TEST(test_damage),
		TEST(test_damaged_tables),
		TEST(test_random_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
