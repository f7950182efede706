// SPDX-License-Identifier: Apache-2.0
/* stage: what is published, where it lies, and signal handlers that interrupt it. */
#include "rig.h"

#include <signal.h>
#include <sys/time.h>

static int fd;

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	fd = rig_open("out", O_RDWR);
	rig_put(fd, 0, 100); /* passes through */
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	rig_stop();
	return 0;
}

static void test_small_writes_are_staged(void **state)
{
	(void)state;
	rig_put(fd, 100, 50);
	assert_int_equal(rig_file(fd)->mode, FILE_ENGAGED);
	for (uint64_t at = 150; at < 5000; at += 50)
		rig_put(fd, at, 50);
	assert_int_equal(rig_kernel_size("out"), 100);
	assert_int_equal(stage_logical_size(rig_file(fd)), 5000);
	assert_int_equal(rig_file(fd)->blocks, 1);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", 5000);
}

/* Every byte of the head block's only extent lies at its offset modulo a page. */
static void test_congruent_with_the_file(void **state)
{
	struct block_run *run;

	(void)state;
	rig_put(fd, 100, 3000);
	run = rig_file(fd)->head;
	assert_int_equal(run->meta->first.offset, 100);
	assert_int_equal(run->meta->first.pos, 100);
	assert_int_equal((uintptr_t)run->base % ARENA_PAGE, 100);
}

static void test_a_write_is_split_over_blocks(void **state)
{
	struct block_run *first, *second;
	uint64_t at = 100;

	(void)state;
	for (; at + 30000 <= 65536 + 100; at += 30000)
		rig_put(fd, at, 30000);
	assert_int_equal(rig_file(fd)->blocks, 1);
	rig_put(fd, at, 30000);
	assert_int_equal(rig_file(fd)->blocks, 2);
	first = rig_file(fd)->head;
	second = first->next;
	assert_ptr_equal(second, rig_file(fd)->current);
	assert_true(first->meta->commit & COMMIT_SEALED);
	assert_int_equal(COMMIT_LENGTH(first->meta->commit), 65536 - 100); /* no byte of it wasted */
	assert_int_equal(second->meta->first.offset, 65536);
	assert_int_equal(second->meta->chain_block, 0);
	assert_int_equal(second->split_bytes, 65536 - at);
	assert_true(second->meta->seq > first->meta->seq);
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", at + 30000);
}

static void test_positional_extents(void **state)
{
	uint8_t buf[200], back[200];
	uint8_t *model = calloc(1, 70000);

	(void)state;
	rig_fill(model, 100, 0);
	srand(11);
	for (int i = 0; i < 1500; i++) {
		uint64_t at = (uint64_t)(rand() % 60000);
		size_t n = 1 + (size_t)rand() % sizeof buf;

		memset(buf, rand() % 256, n);
		memcpy(model + at, buf, n);
		assert_int_equal(rig_pwrite(fd, buf, n, (off_t)at), (long)n);
		if (i % 100 == 99) {
			struct iovec iov = {back, sizeof back};

			/* a read that overlaps sees what was staged */
			if (io_readv(fd, fdtable_get(fd), &iov, 1, (off_t)at) == IO_PASS)
				assert_true(pread(fd, back, n, (off_t)at) == (ssize_t)n);
			assert_memory_equal(back, model + at, n);
		}
	}
	assert_int_equal(rig_close(fd), 0);
	fd = open(rig_path("out"), O_RDONLY);
	uint8_t *file = malloc(70000);
	ssize_t size = read(fd, file, 70000);
	close(fd);
	assert_true(size > 50000);
	assert_memory_equal(file, model, (size_t)size);
	free(file);
	free(model);
}

static void test_extents_of_a_block_are_bounded(void **state)
{
	(void)state;
	/* holes that are filled by so few writes would not be staged */
	rig_put(fd, 100, 1000 + 2 * ARENA_EXTENTS_MAX);
	assert_int_equal(rig_settle(fd), 0);
	for (int i = 0; i < ARENA_EXTENTS_MAX; i++)
		assert_int_equal(rig_pwrite(fd, "x", 1, 1000 + 2 * i), 1);
	assert_int_equal(COMMIT_COUNT(rig_file(fd)->head->meta->commit), ARENA_EXTENTS_MAX);
	assert_int_equal(rig_file(fd)->blocks, 1);
	assert_int_equal(rig_pwrite(fd, "x", 1, 5), 1);
	assert_int_equal(rig_file(fd)->blocks, 2);
}

/* As a process outside of the family does it (takeover.h), at a moment of its own choice. */
static void seal_from_outside(struct arena_block *b) { atomic_fetch_or(&b->commit, COMMIT_SEALED); }

static void test_sealed_from_outside(void **state)
{
	enum { EACH = 300, TURNS = 60 };
	uint8_t again[EACH];
	uint64_t at = 100;

	(void)state;
	rig_fill(again, EACH, at);
	rig_put(fd, at, EACH);
	at += EACH;
	for (int i = 0; i < TURNS; i++) {
		struct arena_block *b = rig_file(fd)->current->meta;
		uint64_t sealed;

		seal_from_outside(b);
		sealed = b->commit;
		if (i % 3 == 0) {
			assert_int_equal(rig_pwrite(fd, again, EACH, 100), EACH);
		} else {
			rig_put(fd, at, EACH);
			at += EACH;
		}
		assert_ptr_not_equal(rig_file(fd)->current->meta, b);
		assert_true(b->owner == 0 || b->commit == sealed);
	}
	assert_int_equal(rig_close(fd), 0);
	rig_expect("out", at);
}

static void test_overlaps(void **state)
{
	struct file *f = rig_file(fd);

	(void)state;
	rig_pwrite(fd, "0123456789", 10, 50);
	rig_pwrite(fd, "0123456789", 10, 80);
	assert_true(stage_overlaps(f, 59, 1));
	assert_true(stage_overlaps(f, 0, 51));
	assert_false(stage_overlaps(f, 60, 20));
	assert_false(stage_overlaps(f, 0, 50));
	assert_false(stage_overlaps(f, 90, 10));
	rig_pwrite(fd, "0123456789", 10, 300);
	assert_true(stage_overlaps(f, 95, 10)); /* the kernel would see the end of the file there */
}

static void test_no_block_left_waits_for_nothing(void **state)
{
	/* one thread, many files: each takes a block from another when there is none */
	int many[40];

	(void)state;
	for (int i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof name, "m%d", i);
		many[i] = rig_open(name, O_WRONLY);
	}
	for (uint64_t at = 0; at < 1000; at += 100)
		for (int i = 0; i < 40; i++)
			rig_put(many[i], at, 100);
	for (int i = 0; i < 40; i++) {
		char name[16];

		snprintf(name, sizeof name, "m%d", i);
		assert_int_equal(rig_close(many[i]), 0);
		rig_expect(name, 1000);
	}
}

/* ---- signal handlers ---- */

static volatile int handler_fd;
static volatile uint32_t handled;
static bool handler_syncs;

struct note {
	uint32_t who, number;
};

static void on_alarm(int number)
{
	struct note note = {2, handled};

	(void)number;
	if (rig_write(handler_fd, &note, sizeof note) == sizeof note)
		handled++;
	if (handler_syncs && handled % 7 == 0)
		rig_settle(handler_fd);
}

/* Main and handler write notes to one description; every note must be there once, each one's in order. */
static void interrupted(int flags)
{
	struct itimerval fast = {{0, 60}, {0, 60}}, off = {0};
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	uint32_t written = 0, seen[3] = {0};
	struct note note = {1, 0};

	rig_close(fd);
	fd = rig_open("notes", O_RDWR | flags);
	handler_fd = fd;
	handled = 0;
	assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
	for (written = 1; written < 10; written++) {
		note.number = written;
		assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
	}
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &fast, NULL);
	for (; handled < 1500; written++) {
		note.number = written;
		assert_int_equal(rig_write(fd, &note, sizeof note), sizeof note);
	}
	setitimer(ITIMER_REAL, &off, NULL);
	assert_int_equal(rig_close(fd), 0);
	fd = open(rig_path("notes"), O_RDONLY);
	while (read(fd, &note, sizeof note) == sizeof note) {
		assert_in_range(note.who, 1, 2);
		assert_int_equal(note.number, seen[note.who]);
		seen[note.who]++;
	}
	close(fd);
	assert_int_equal(seen[1], written);
	assert_int_equal(seen[2], handled);
}

static void test_handler_writes_too(void **state)
{
	(void)state;
	handler_syncs = false;
	interrupted(0);
}

static void test_handler_appends_too(void **state)
{
	(void)state;
	handler_syncs = false;
	interrupted(O_APPEND);
}

static void test_handler_settles(void **state)
{
	(void)state;
	handler_syncs = true;
	interrupted(0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_small_writes_are_staged),
		TEST(test_congruent_with_the_file),
		TEST(test_a_write_is_split_over_blocks),
		TEST(test_positional_extents),
		TEST(test_extents_of_a_block_are_bounded),
		TEST(test_overlaps),
		TEST(test_sealed_from_outside),
		TEST(test_no_block_left_waits_for_nothing),
		TEST(test_handler_writes_too),
		TEST(test_handler_appends_too),
		TEST(test_handler_settles),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
