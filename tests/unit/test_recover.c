// SPDX-License-Identifier: Apache-2.0
/* recover: an append that was under way is found in the file whole, in part or not at all, and never in what
 * somebody else wrote. */
#include "rig.h"

#include "recover.h"

enum { DONE_BYTES = 100 }; /* the first write passes through */

static char arena_path[PATH_MAX + 64];

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	rig_config.rules[0].set.writers = WRITERS_SHARED;
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	rig_stop();
	return 0;
}

/*
 * A copy of the arena as it stands is put beside it under another name and as another process's: that is what a
 * death at this moment leaves.  The program's own is then closed without a trace in the file.
 */
static void die_now(int fd)
{
	struct arena *a = rig_file(fd)->arena;
	uint8_t *copy = malloc(a->total_bytes);
	int out;

	memcpy(copy, a->header, a->total_bytes);
	((struct arena_header *)(void *)copy)->pid = 1 << 23; /* beyond every pid */
	((struct arena_header *)(void *)copy)->checksum = arena_header_checksum((void *)copy);
	snprintf(arena_path, sizeof arena_path, "%s/8388608-unit-1.arena", a->dir);
	out = open(arena_path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(out, copy, a->total_bytes), (ssize_t)a->total_bytes);
	close(out);
	free(copy);
}

static struct recover_report recover_now(void)
{
	const struct recover_options opt = {.event = NULL};
	struct recover_report report = {0};

	assert_int_equal(recover_path(arena_path, &opt, &report), 0);
	assert_int_equal(report.failed, 0);
	assert_int_equal(access(arena_path, F_OK), -1);
	return report;
}

/* n staged bytes behind the first 100, and an append of all of them noted as begun at `base`. */
static int append_begun(size_t n, uint32_t how, uint64_t base)
{
	int fd = rig_open("out", O_RDWR | O_APPEND);
	struct arena_slot *slot;

	rig_put(fd, 0, DONE_BYTES);
	rig_put(fd, DONE_BYTES, n);
	slot = rig_slot(fd);
	slot->flush_base = base;
	slot->flush_bytes = n;
	slot->flush_from = slot->done;
	slot->flush_active = how;
	die_now(fd);
	slot->flush_active = APPEND_NONE;
	/* what is staged here goes nowhere: this process is the dead one */
	struct file *f = rig_file(fd);
	struct file_guard g = file_lock(f);

	stage_seal(f);
	for (struct block_run *run = f->head; run; run = run->next)
		run->flushed = true;
	flush_free_done(f);
	file_unlock(f, g);
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

/* Others' line begins like ours: ours was not begun, and nothing of it may be taken for written. */
static void test_foreign_line_with_our_beginning(void **state)
{
	uint8_t line[60];
	uint8_t have[21000];
	int fd;

	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	rig_fill(line, 30, DONE_BYTES);
	memset(line + 30, '!', 30);
	raw_append(line, sizeof line);
	recover_now();
	fd = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(fd, have, sizeof have), 20160);
	close(fd);
	for (uint64_t i = 0; i < 20000; i++)
		assert_int_equal(have[160 + i], rig_byte(DONE_BYTES + i));
}

/* Others' bytes end with our first byte. */
static void test_foreign_end_is_our_beginning(void **state)
{
	uint8_t tail[2] = {'!', rig_byte(DONE_BYTES)};
	uint8_t have[21000];
	int fd;

	(void)state;
	append_begun(20000, APPEND_SOMEWHERE, DONE_BYTES);
	raw_append(tail, 2);
	recover_now();
	fd = open(rig_path("out"), O_RDONLY);
	assert_int_equal(read(fd, have, sizeof have), 20102);
	close(fd);
	for (uint64_t i = 0; i < 20000; i++)
		assert_int_equal(have[102 + i], rig_byte(DONE_BYTES + i));
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

/* `done` has moved on since the append began: it is over, and what is staged now is more of the same bytes. */
static void test_append_that_was_over(void **state)
{
	static uint8_t same[20000];
	struct arena_slot *slot;
	int fd = rig_open("out", O_RDWR | O_APPEND);

	(void)state;
	memset(same, 'a', sizeof same);
	assert_int_equal(rig_write(fd, same, 100), 100);
	assert_int_equal(rig_write(fd, same, 20000), 20000);
	assert_int_equal(rig_settle(fd), 0);
	slot = rig_slot(fd);
	slot->flush_active = APPEND_SOMEWHERE; /* died between the store to `done` and append_end */
	assert_int_equal(rig_write(fd, same, 20000), 20000);
	die_now(fd);
	slot->flush_active = APPEND_NONE;
	assert_int_equal(recover_now().bytes, 20000);
	assert_int_equal(rig_kernel_size("out"), 40100);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_not_begun),
		TEST(test_all_there),
		TEST(test_up_to_a_page),
		TEST(test_foreign_line_with_our_beginning),
		TEST(test_foreign_end_is_our_beginning),
		TEST(test_ours_between_foreign_ones),
		TEST(test_append_that_was_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
