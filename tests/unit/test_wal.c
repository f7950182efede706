// SPDX-License-Identifier: Apache-2.0
/* wal, wal_scan: what was committed is there after a power loss, epoch by epoch; what was not is not there at
 * all. */
#include "base/crc32c.h"
#include "base/sys.h"
#include "format/wal_scan.h"
#include "wal/wal.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

enum {
	PAGE = WAL_PAGE_BYTES,
	LOG_BYTES = 1024 * PAGE,
	SECTOR = 512,
	EPOCHS_MOST = 64,
	SECONDS = 1000, /* base of the times that SIZE records carry */
};

/* What an epoch consists of: one file with a name, some pages and a size. */
struct made {
	uint64_t number;
	uint32_t pages;
	uint32_t last_bytes; /* of the last page */
};

static struct wal *wal;
static struct made made[EPOCHS_MOST];
static int made_count;
static int log_fd;
static uint8_t *batch, *frames;
static const uint8_t id[16] = "a log for a test";

static uint8_t byte_of(uint64_t epoch, uint64_t page, size_t at)
{
	return (uint8_t)(epoch * 31 + page * 7 + at % 251);
}

static int set_up(void **state)
{
	const struct origin origin = {.boot_ns = 5};

	(void)state;
	log_fd = memfd_create("log", MFD_CLOEXEC);
	assert_true(log_fd >= 0);
	wal = aligned_alloc(PAGE, (sizeof *wal + PAGE - 1) / PAGE * PAGE);
	batch = aligned_alloc(PAGE, WAL_BATCH_MOST);
	frames = aligned_alloc(PAGE, (size_t)LOG_BYTES * 2);
	made_count = 0;
	assert_int_equal(wal_make(wal, log_fd, LOG_BYTES, id, &origin), 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	close(log_fd);
	free(wal);
	free(batch);
	free(frames);
	return 0;
}

static uint64_t size_of(const struct made *m) { return (m->pages - 1ull) * PAGE + m->last_bytes; }

/* An epoch of `pages` pages, of the last of which `last_bytes` bytes count.  What wal_commit returned. */
static int commit(uint32_t pages, uint32_t last_bytes)
{
	const struct arena_entry entry = {.dev = 12,
	                                  .ino = 7,
	                                  .btime_sec = 8,
	                                  .btime_nsec = 9,
	                                  .generation = 10,
	                                  .handle_hash = 11,
	                                  .below = 5,
	                                  .up = 1,
	                                  .path = "/some/where/a file"};
	struct made m = {.pages = pages, .last_bytes = last_bytes};
	struct wal_size size = {.mtime_sec = SECONDS, .mtime_nsec = 5};
	int r;

	wal_begin(wal);
	m.number = wal->epoch;
	wal_put_name(wal, 3, &entry, 0);
	for (uint32_t i = 0; i < pages; i++) {
		uint8_t *frame = frames + (size_t)i * PAGE;

		for (size_t at = 0; at < PAGE; at++)
			frame[at] = byte_of(m.number, i, at);
		wal_put_page(wal, 3, i, frame, i + 1 < pages ? PAGE : last_bytes);
	}
	size.size = size_of(&m);
	size.lowest = size.size / 2;
	wal_put_size(wal, 3, &size);
	r = wal_commit(wal);
	if (r == 0)
		made[made_count++] = m;
	return r;
}

/* The visitor's place in what must come. */
struct reader {
	int epoch;     /* index in made */
	uint32_t page; /* the next one */
	bool named;
};

static int compare(void *ctx, const struct wal_item *item)
{
	struct reader *at = ctx;
	const struct made *m = &made[at->epoch];

	assert_int_equal(item->epoch, m->number);
	assert_int_equal(item->file, 3);
	switch (item->type) {
	case WAL_NAME:
		assert_false(at->named);
		assert_string_equal(item->path, "/some/where/a file");
		assert_int_equal(item->name->ino, 7);
		assert_int_equal(item->name->handle_hash, 11);
		assert_int_equal(item->name->below, 5);
		at->named = true;
		break;
	case WAL_PAGE:
		assert_true(at->named);
		assert_int_equal(item->page, at->page);
		for (size_t i = 0; i < PAGE; i++)
			assert_int_equal(item->image[i], at->page + 1 < m->pages || i < m->last_bytes
			                                         ? byte_of(m->number, at->page, i)
			                                         : 0);
		at->page++;
		break;
	case WAL_SIZE:
		assert_int_equal(at->page, m->pages);
		assert_int_equal(item->size->size, size_of(m));
		assert_int_equal(item->size->lowest, size_of(m) / 2);
		assert_int_equal(item->size->mtime_sec, SECONDS);
		*at = (struct reader){.epoch = at->epoch + 1};
		break;
	}
	return 0;
}

/* How many of the epochs from `first` on the log of fd has; they are as they were made. */
static int count_whole(int fd, int first)
{
	struct reader at = {.epoch = first};
	struct wal_scan s;

	assert_int_equal(wal_scan_begin(&s, fd, batch), 0);
	assert_int_equal(wal_scan_each(&s, compare, &at), 0);
	assert_int_equal(s.epochs, (uint64_t)(at.epoch - first));
	if (s.epochs > 0)
		assert_int_equal(s.last, made[at.epoch - 1].number);
	return at.epoch - first;
}

static void test_one_after_the_other(void **state)
{
	(void)state;
	assert_int_equal(count_whole(log_fd, 0), 0);
	for (uint32_t i = 1; i <= 20; i++) {
		assert_int_equal(commit(i, 1 + i * 100), 0);
		assert_int_equal(count_whole(log_fd, 0), i);
	}
	assert_int_equal(commit(1, PAGE), 0);
	assert_int_equal(count_whole(log_fd, 0), 21);
	assert_int_equal(lseek(log_fd, 0, SEEK_END), LOG_BYTES);
}

static void test_many_batches(void **state)
{
	(void)state;
	assert_int_equal(commit(3 * WAL_IMAGES_MAX + 5, 77), 0);
	assert_int_equal(commit(2, 4000), 0);
	assert_int_equal(count_whole(log_fd, 0), 2);
}

static void test_what_does_not_fit(void **state)
{
	(void)state;
	assert_int_equal(commit(500, PAGE), 0);
	/* the first batches of it are written */
	assert_int_equal(commit(700, PAGE), -ENOSPC);
	assert_int_equal(count_whole(log_fd, 0), 1);
	assert_int_equal(commit(30, 9), 0);
	assert_int_equal(count_whole(log_fd, 0), 2);
	assert_int_equal(commit(1000, 9), -ENOSPC);
	assert_int_equal(count_whole(log_fd, 0), 2);
}

static void test_emptied(void **state)
{
	(void)state;
	for (int i = 0; i < 10; i++)
		assert_int_equal(commit(20, 10), 0);
	assert_true(wal->end > WAL_BATCHES_AT);
	assert_int_equal(wal_empty(wal, false), 0);
	assert_int_equal(wal->end, WAL_BATCHES_AT);
	assert_false(wal->voided);
	assert_int_equal(count_whole(log_fd, 10), 0);
	/* what stands behind it is whole, too, but older */
	assert_int_equal(commit(20, 10), 0);
	assert_int_equal(count_whole(log_fd, 10), 1);
	assert_int_equal(commit(600, 10), 0);
	assert_int_equal(count_whole(log_fd, 10), 2);
}

static uint8_t *image_of(int fd)
{
	uint8_t *image = malloc(LOG_BYTES);

	assert_int_equal(pread(fd, image, LOG_BYTES, 0), LOG_BYTES);
	return image;
}

/* A log whose sectors are as of `before`, but for some that are as of `after`. */
static int torn(const uint8_t *before, const uint8_t *after, unsigned of_ten)
{
	int fd = memfd_create("torn", MFD_CLOEXEC);

	assert_int_equal(pwrite(fd, before, LOG_BYTES, 0), LOG_BYTES);
	for (size_t at = 0; at < LOG_BYTES; at += SECTOR)
		if ((unsigned)rand() % 10 < of_ten && memcmp(before + at, after + at, SECTOR) != 0)
			assert_int_equal(pwrite(fd, after + at, SECTOR, (off_t)at), SECTOR);
	return fd;
}

/* The power fails during a commit: any of its sectors may be there. */
static void test_power_loss(void **state)
{
	(void)state;
	for (int turn = 0; turn < 40; turn++) {
		uint8_t *before = image_of(log_fd), *after;
		int whole = count_whole(log_fd, 0);
		uint32_t pages = 1 + (uint32_t)rand() % 12;

		if (turn == 20)
			assert_int_equal(commit(1100, 3), -ENOSPC); /* leaves parts behind */
		assert_int_equal(commit(pages, 1 + (uint32_t)rand() % PAGE), 0);
		after = image_of(log_fd);
		for (unsigned of_ten = 0; of_ten <= 10; of_ten++) {
			int fd = torn(before, after, of_ten), found = count_whole(fd, 0);

			assert_true(found == whole || found == whole + 1);
			if (of_ten == 0 || of_ten == 10)
				assert_int_equal(found, whole + (of_ten == 10));
			close(fd);
		}
		free(before);
		free(after);
	}
}

/* The same while it is emptied, and while it is filled again. */
static void test_power_loss_when_emptied(void **state)
{
	uint8_t *before, *after;

	(void)state;
	for (int i = 0; i < 12; i++)
		assert_int_equal(commit(6, 500), 0);
	assert_int_equal(wal_empty(wal, false), 0);
	before = image_of(log_fd);
	assert_int_equal(commit(13, 500), 0);
	after = image_of(log_fd);
	for (int i = 0; i < 100; i++) {
		int fd = torn(before, after, (unsigned)rand() % 11), found = count_whole(fd, 12);

		assert_in_range(found, 0, 1);
		close(fd);
	}
	free(before);
	free(after);
}

/* The same when the emptying itself may not have reached the device: then the old epoch stands there, or the
 * new one, or none. */
static void test_power_loss_when_emptied_only_here(void **state)
{
	uint8_t *before, *after;

	(void)state;
	assert_int_equal(commit(6, 500), 0);
	before = image_of(log_fd);
	assert_int_equal(wal_empty(wal, false), 0);
	assert_int_equal(commit(13, 500), 0);
	after = image_of(log_fd);
	for (int i = 0; i < 200; i++) {
		int fd = torn(before, after, (unsigned)rand() % 11);
		struct wal_scan s;

		assert_int_equal(wal_scan_begin(&s, fd, batch), 0);
		assert_int_equal(count_whole(fd, s.last == made[1].number), s.epochs);
		assert_in_range(s.epochs, 0, 1);
		close(fd);
	}
	free(before);
	free(after);
}

static ssize_t no_pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
	(void)fd;
	(void)iov;
	(void)count;
	(void)offset;
	return -EIO;
}

static int no_fdatasync(int fd)
{
	(void)fd;
	return -EIO;
}

static void test_errors_of_the_device(void **state)
{
	(void)state;
	assert_int_equal(commit(5, 5), 0);
	sys.pwritev = no_pwritev;
	assert_int_equal(commit(5, 5), -EIO);
	assert_int_equal(commit(600, 5), -EIO);
	assert_int_equal(wal_empty(wal, false), -EIO);
	sys = sys_kernel;
	assert_int_equal(count_whole(log_fd, 0), 1);
	sys.fdatasync = no_fdatasync;
	assert_int_equal(commit(6, 5), -EIO);
	sys = sys_kernel;
	assert_int_equal(commit(7, 7), 0);
	assert_int_equal(count_whole(log_fd, 0), 2);
	sys.fdatasync = no_fdatasync;
	assert_int_equal(wal_void(wal), -EIO);
	assert_false(wal->voided);
	sys = sys_kernel;
	assert_int_equal(wal_void(wal), 0);
	assert_true(wal->voided);
	assert_int_equal(count_whole(log_fd, 2), 0);
}

static int accept(void *ctx, const struct wal_item *item)
{
	(void)ctx;
	(void)item;
	return 0;
}

/* Whatever stands there, a scan ends, and what it shows was committed. */
static void test_damage(void **state)
{
	uint8_t *sound;

	(void)state;
	for (uint32_t i = 1; i <= 8; i++)
		assert_int_equal(commit(i, 9), 0);
	sound = image_of(log_fd);
	for (int turn = 0; turn < 3000; turn++) {
		uint64_t at = (uint64_t)rand() % (turn % 2 ? wal->end : WAL_BATCHES_AT + 2 * SECTOR);
		uint8_t changed = (uint8_t)(sound[at] ^ (1 << rand() % 8));
		struct wal_scan s;
		int r;

		assert_int_equal(pwrite(log_fd, &changed, 1, (off_t)at), 1);
		r = wal_scan_begin(&s, log_fd, batch);
		assert_true(r == 0 || r == -EBADMSG || r == -ENODATA || r == FORMAT_NEWER);
		if (r == 0)
			assert_in_range(count_whole(log_fd, 0), 0, 8);
		assert_int_equal(pwrite(log_fd, sound + at, 1, (off_t)at), 1);
	}
	assert_int_equal(count_whole(log_fd, 0), 8);
	free(sound);
}

/* Writes the batch of the first epoch with `record` in place of its first record; its checksum fits. */
static int scan_with(const void *record, size_t n)
{
	struct wal_batch *b = (struct wal_batch *)(void *)batch;
	struct wal_scan s;
	uint8_t *image = image_of(log_fd);
	int fd = memfd_create("made up", MFD_CLOEXEC), r;

	memcpy(batch, image + WAL_BATCHES_AT, 2 * PAGE);
	memcpy(batch + sizeof *b, record, n);
	b->checksum = crc32c(wal_head_checksum(b, PAGE), batch + PAGE, PAGE);
	memcpy(image + WAL_BATCHES_AT, batch, PAGE);
	assert_int_equal(pwrite(fd, image, LOG_BYTES, 0), LOG_BYTES);
	assert_int_equal(wal_scan_begin(&s, fd, batch), 0);
	assert_int_equal(s.epochs, 1);
	r = wal_scan_each(&s, accept, NULL);
	close(fd);
	free(image);
	return r;
}

static void test_records_that_make_no_sense(void **state)
{
	const struct wal_record records[] = {{.type = 0, .bytes = 8},
	                                     {.type = 9, .bytes = 8},
	                                     {.type = WAL_NAME, .bytes = 0},
	                                     {.type = WAL_NAME, .bytes = 8},
	                                     {.type = WAL_NAME, .bytes = 12},
	                                     {.type = WAL_PAGE, .bytes = 8},
	                                     {.type = WAL_PAGE, .bytes = 24},
	                                     {.type = WAL_SIZE, .bytes = 16},
	                                     {.type = WAL_SIZE, .bytes = 65528},
	                                     {.type = WAL_NAME, .bytes = 4000}};
	struct {
		struct wal_record record;
		struct wal_name name;
		char path[24];
	} named = {{WAL_NAME, sizeof named, 3}, {.path_bytes = 10}, "/a/path/b"};

	(void)state;
	assert_int_equal(commit(1, 9), 0);
	assert_int_equal(scan_with(&named, sizeof named), 0);
	for (size_t i = 0; i < sizeof records / sizeof *records; i++)
		assert_int_equal(scan_with(&records[i], sizeof records[i]), -EBADMSG);
	named.name.path_bytes = 9;
	assert_int_equal(scan_with(&named, sizeof named), -EBADMSG);
	named.name.path_bytes = 5000;
	assert_int_equal(scan_with(&named, sizeof named), -EBADMSG);
	named.name.path_bytes = 10;
	named.path[0] = 'a';
	assert_int_equal(scan_with(&named, sizeof named), -EBADMSG);
}

static void test_another_log(void **state)
{
	const uint8_t other[16] = "another log";
	const struct origin origin = {.boot_ns = 5};
	uint8_t *image;

	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(commit(2, 9), 0);
	image = image_of(log_fd);
	assert_int_equal(wal_make(wal, log_fd, LOG_BYTES, other, &origin), 0);
	assert_int_equal(pwrite(log_fd, image + PAGE, LOG_BYTES - PAGE, PAGE), LOG_BYTES - PAGE);
	assert_int_equal(count_whole(log_fd, 0), 0);
	assert_int_equal(wal_make(wal, log_fd, WAL_BYTES_MIN - PAGE, id, &origin), -EINVAL);
	assert_int_equal(wal_make(wal, log_fd, WAL_BYTES_MIN + 1, id, &origin), -EINVAL);
	free(image);
}

static void list(const char *first, const char *second, const char *third)
{
	const struct wal_path paths[] = {
		{.path = first, .below = 3, .up = 2}, {.path = second}, {.path = third}};

	assert_int_equal(wal_list(wal, paths, 3), 0);
}

static void commit_absent(uint32_t names)
{
	wal_begin(wal);
	wal_put_absent(wal, names);
	assert_int_equal(wal_commit(wal), 0);
}

/* The names that no file has, each with a space behind it, or "damaged". */
static const char *absent(void)
{
	static char found[300];
	const struct wal_listed *name;
	const char *path;
	struct wal_scan s;
	uint32_t i = 0;
	int r;

	found[0] = '\0';
	assert_int_equal(wal_scan_begin(&s, log_fd, batch), 0);
	while ((r = wal_scan_absent(&s, &i, &name, &path)) > 0) {
		strcat(strcat(found, path), " ");
		if (strcmp(path, "/first") == 0)
			assert_true(name->below == 3 && name->up == 2);
	}
	assert_true(r == 0 || r == -EBADMSG);
	return r == 0 ? found : "damaged";
}

static void test_names_that_come_and_go(void **state)
{
	(void)state;
	assert_string_equal(absent(), "");
	list("/first", "/a second one", "/third");
	assert_string_equal(absent(), "");
	commit_absent(5);
	assert_string_equal(absent(), "/first /third ");
	commit_absent(2);
	assert_string_equal(absent(), "/a second one ");
	commit_absent(0);
	assert_string_equal(absent(), "");
	/* the log is emptied, and says it still */
	commit_absent(7);
	assert_int_equal(wal_empty(wal, false), 0);
	assert_string_equal(absent(), "/first /a second one /third ");
	/* another list counts with the first epoch that refers to it */
	list("/other", "/one", "/two");
	assert_string_equal(absent(), "/first /a second one /third ");
	commit_absent(1);
	assert_string_equal(absent(), "/other ");
	/* an epoch that says nothing of names */
	wal_begin(wal);
	assert_int_equal(wal_commit(wal), 0);
	assert_string_equal(absent(), "");
	commit_absent(4);
	assert_int_equal(wal_void(wal), 0);
	assert_string_equal(absent(), "");
}

static void test_a_damaged_list(void **state)
{
	const size_t bytes = sizeof(struct wal_names) + 3 * (sizeof(struct wal_listed) + 8);
	struct wal_path longest[2] = {0};
	char *path = malloc(10000);
	uint8_t *image;

	(void)state;
	list("/first", "/second", "/third");
	commit_absent(7);
	image = image_of(log_fd);
	for (size_t at = 0; at < bytes; at++) {
		uint8_t byte = image[wal_names_at(1) + at] ^ 0x40;

		assert_int_equal(pwrite(log_fd, &byte, 1, (off_t)(wal_names_at(1) + at)), 1);
		assert_string_equal(absent(), "damaged");
		assert_int_equal(pwrite(log_fd, image, LOG_BYTES, 0), LOG_BYTES);
	}
	assert_string_equal(absent(), "/first /second /third ");
	memset(path, 'x', 10000);
	path[0] = '/';
	path[9999] = '\0';
	longest[0].path = longest[1].path = path;
	assert_int_equal(wal_list(wal, longest, 2), -ENAMETOOLONG);
	assert_string_equal(absent(), "/first /second /third ");
	free(path);
	free(image);
}

static void test_lists_that_make_no_sense(void **state)
{
	struct {
		struct wal_names list;
		struct wal_listed name;
		char path[16];
	} bad, good = {.list = {.magic = WAL_NAMES_MAGIC, .number = 1, .count = 1, .bytes = sizeof good},
	               .name = {.path_bytes = 10},
	               .path = "/a/name/x"};

	(void)state;
	memcpy(good.list.id, id, sizeof id);
	list("/first", "/second", "/third");
	commit_absent(1);
	for (int i = 0; i < 8; i++) {
		bad = good;
		switch (i) {
		case 1: bad.list.count = 2; break;
		case 2: bad.list.count = WAL_NAMES_MAX + 1; break;
		case 3: bad.name.path_bytes = 17; break;
		case 4: bad.name.path_bytes = 1; break;
		case 5: bad.name.path_bytes = 9; break;
		case 6: bad.path[0] = 'x'; break;
		case 7: bad.list.bytes = sizeof bad - 8; break;
		}
		bad.list.checksum = wal_names_checksum(&bad.list);
		assert_int_equal(pwrite(log_fd, &bad, sizeof bad, (off_t)wal_names_at(1)), sizeof bad);
		assert_string_equal(absent(), i == 0 ? "/a/name/x " : "damaged");
	}
}

static void test_no_log(void **state)
{
	struct wal_scan s;

	(void)state;
	assert_int_equal(ftruncate(log_fd, 0), 0);
	assert_int_equal(wal_scan_begin(&s, log_fd, batch), -EBADMSG);
	assert_int_equal(ftruncate(log_fd, LOG_BYTES), 0);
	assert_int_equal(wal_scan_begin(&s, log_fd, batch), -ENODATA);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_one_after_the_other),
		TEST(test_many_batches),
		TEST(test_what_does_not_fit),
		TEST(test_emptied),
		TEST(test_power_loss),
		TEST(test_power_loss_when_emptied),
		TEST(test_power_loss_when_emptied_only_here),
		TEST(test_errors_of_the_device),
		TEST(test_damage),
		TEST(test_records_that_make_no_sense),
		TEST(test_another_log),
		TEST(test_names_that_come_and_go),
		TEST(test_a_damaged_list),
		TEST(test_lists_that_make_no_sense),
		TEST(test_no_log),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
