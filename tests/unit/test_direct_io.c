// SPDX-License-Identifier: Apache-2.0
/* flush_io: every byte gets there through short writes, interruptions and a refused O_DIRECT. */
#include "flush/direct_io.h"
#include "rig.h"

enum { SIZE = 300000 };

static uint8_t *memory; /* page-aligned, pattern byte i at memory[i] */
static int fd;

static int set_up(void **state)
{
	(void)state;
	rig_start(NULL);
	memory = aligned_alloc(ARENA_PAGE, (SIZE / ARENA_PAGE + 2) * ARENA_PAGE);
	rig_fill(memory, SIZE + ARENA_PAGE, 0);
	fd = open(rig_path("out"), O_RDWR | O_CREAT, 0644);
	assert_true(fd >= 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	close(fd);
	free(memory);
	rig_stop();
	return 0;
}

/* Pattern bytes [from, from + n) to the same place of the file. */
static int write_range(struct flush_target *t, uint64_t from, uint64_t n, uint64_t *done)
{
	/* cut at a page boundary, as blocks are */
	uint64_t cut = ((from + n / 2) / ARENA_PAGE) * ARENA_PAGE - from;
	struct iovec iov[2] = {{memory + from, cut}, {memory + from + cut, n - cut}};

	return direct_io_write(t, iov, 2, from, done);
}

static struct flush_target target(bool direct)
{
	return (struct flush_target){.fd = fd,
	                             .flags = O_RDWR,
	                             .direct_ok = direct,
	                             .direct_min = ARENA_PAGE,
	                             .direct_end = UINT64_MAX};
}

static void test_plain(void **state)
{
	struct flush_target t = target(false);
	uint64_t done = 0;

	(void)state;
	assert_int_equal(write_range(&t, 0, SIZE, &done), 0);
	assert_int_equal(done, SIZE);
	assert_int_equal(t.direct_bytes, 0);
	rig_expect("out", SIZE);
}

static void test_short_writes_and_interruptions(void **state)
{
	struct flush_target t = target(false);
	uint64_t done = 0;

	(void)state;
	faults.pwritev = (struct fault){.at = 1, .count = 40, .most = 777};
	assert_int_equal(write_range(&t, 0, SIZE, &done), 0);
	assert_int_equal(done, SIZE);
	assert_int_equal(faults.pwritev.calls, 41);
	rig_expect("out", SIZE);
	faults.pwritev = (struct fault){.at = 1, .count = 5, .error = EINTR};
	done = 0;
	assert_int_equal(write_range(&t, 0, SIZE, &done), 0);
	assert_int_equal(done, SIZE);
	rig_expect("out", SIZE);
}

static void test_direct_middle(void **state)
{
	struct flush_target t = target(true);
	uint64_t done = 0;

	(void)state;
	if (rig_on_tmpfs()) {
		print_message("SKIP reason: O_DIRECT on tmpfs does not tell\n");
		skip();
	}
	assert_int_equal(write_range(&t, 0, 100, &done), 0);
	assert_int_equal(write_range(&t, 100, SIZE - 100, &done), 0);
	assert_int_equal(done, SIZE);
	if (t.direct_ok)
		assert_int_equal(t.direct_bytes, (SIZE - ARENA_PAGE) / ARENA_PAGE * ARENA_PAGE);
	rig_expect("out", SIZE);
}

static void test_nothing_direct_beyond_the_end(void **state)
{
	struct flush_target t = target(true);
	uint64_t done = 0;

	(void)state;
	t.direct_end = 3 * ARENA_PAGE;
	assert_int_equal(write_range(&t, 0, 4 * ARENA_PAGE, &done), 0);
	assert_true(t.direct_ok);
	assert_int_equal(t.direct_bytes, 0);
	assert_int_equal(write_range(&t, 4 * ARENA_PAGE, SIZE - 4 * ARENA_PAGE, &done), 0);
	assert_int_equal(t.direct_bytes, 0);
	assert_int_equal(done, SIZE);
	rig_expect("out", SIZE);
}

static void test_direct_refused(void **state)
{
	struct flush_target t = target(true);
	uint64_t done = 0;

	(void)state;
	/* the head goes out, the middle is refused, all of it follows by the page cache */
	faults.pwritev = (struct fault){.at = 2, .error = EINVAL};
	assert_int_equal(write_range(&t, 100, SIZE - 100, &done), 0);
	assert_false(t.direct_ok);
	assert_int_equal(t.direct_bytes, 0);
	assert_int_equal(done, SIZE - 100);
	assert_false(fcntl(fd, F_GETFL) & O_DIRECT);
	assert_int_equal(pwrite(fd, memory, 100, 0), 100);
	rig_expect("out", SIZE);
}

static void test_memory_that_is_not_congruent(void **state)
{
	struct flush_target t = target(true);
	struct iovec iov = {memory + 1, SIZE - 1};
	uint64_t done = 0;

	(void)state;
	assert_int_equal(direct_io_write(&t, &iov, 1, 0, &done), 0);
	assert_int_equal(t.direct_bytes, 0);
	assert_int_equal(done, SIZE - 1);
}

static void test_error_says_how_far(void **state)
{
	const int errors[] = {ENOSPC, EIO, EDQUOT, EFBIG};

	(void)state;
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
		struct flush_target t = target(false);
		uint64_t done = 0;

		assert_int_equal(ftruncate(fd, 0), 0);
		rig_faults_clear();
		assert_int_equal(write_range(&t, 0, 4000, &done), 0);
		faults.pwritev = (struct fault){.at = 1, .error = errors[i]};
		assert_int_equal(write_range(&t, 4000, SIZE - 4000, &done), -errors[i]);
		assert_int_equal(done, 4000);
		rig_expect("out", 4000);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_plain),
		TEST(test_short_writes_and_interruptions),
		TEST(test_direct_middle),
		TEST(test_nothing_direct_beyond_the_end),
		TEST(test_direct_refused),
		TEST(test_memory_that_is_not_congruent),
		TEST(test_error_says_how_far),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
