// SPDX-License-Identifier: Apache-2.0
#include "format/identity.h"
#include "format/origin.h"
#include "staging/guard.h"

#include "rig.h"

#define SECOND 1000000000ll

static struct statx file(uint64_t size, int64_t sec, uint32_t nsec)
{
	struct statx st = {.stx_size = size};

	st.stx_mtime.tv_sec = sec;
	st.stx_mtime.tv_nsec = nsec;
	return st;
}

static bool holds(struct arena_guard g, struct statx st) { return guard_holds(&g, &st); }

static void test_a_file_as_it_was_left(void **state)
{
	struct arena_guard g = {.size = 100, .mtime_sec = 50, .mtime_nsec = 7, .known = 1};

	(void)state;
	assert_true(holds(g, file(100, 50, 7)));
	assert_false(holds(g, file(101, 50, 7)));
	assert_false(holds(g, file(100, 51, 7)));
	assert_false(holds(g, file(100, 50, 8)));
	g.known = 0;
	assert_false(holds(g, file(100, 50, 7)));
}

/* Killed between the stamp and the new guard: the file has either state, or one of that moment. */
static void test_a_change_of_our_own_under_way(void **state)
{
	struct arena_guard g = {.size = 100, .mtime_sec = 50, .mtime_nsec = 7, .known = 1};

	(void)state;
	g.begun_ns = 60 * SECOND + 5;
	g.again_ns = 61 * SECOND;
	assert_true(holds(g, file(100, 50, 7)));
	assert_true(holds(g, file(200, 60, 5)));
	assert_true(holds(g, file(200, 61, 999)));
	assert_false(holds(g, file(200, 60, 4)));
	assert_false(holds(g, file(200, 62, 1)));
	assert_false(holds(g, file(100, 50, 8)));
	/* whole seconds, as ext4 has them with inodes of 128 bytes */
	assert_true(holds(g, file(200, 60, 0)));
	assert_false(holds(g, file(200, 59, 0)));
}

static void test_the_first_stamp_stays_until_the_guard_is_taken(void **state)
{
	struct arena_guard g = {.known = 1};
	uint64_t first;

	(void)state;
	guard_stamp(&g);
	first = g.begun_ns;
	assert_int_not_equal(first, 0);
	assert_int_equal(g.again_ns, first);
	usleep(30000);
	guard_stamp(&g);
	assert_int_equal(g.begun_ns, first);
	assert_true(g.again_ns > first);
}

/* No file there outlives its kernel or its mount. */
static void test_origins_in_memory(void **state)
{
	enum { TMPFS = 0x01021994 };
	const struct origin a = {.boot_id = {1},
	                         .boot_ns = 100 * SECOND,
	                         .mount_id = 5,
	                         .super_id = ORIGIN_KIND(TMPFS),
	                         .dev = 3};
	struct origin b = a;

	(void)state;
	b.mount_id = 6;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.boot_ns += SECOND;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.dev = 4;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
	b.dev = 3;
	b.boot_id[0] = 2;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
}

/* As of btrfs: the mount is the only witness. */
static void test_origins_of_another_kind(void **state)
{
	const struct origin a = {
		.boot_id = {1}, .boot_ns = 100 * SECOND, .mount_id = 5, .super_id = ORIGIN_KIND(7), .dev = 3};
	struct origin b = a;

	(void)state;
	b.boot_ns += SECOND;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.mount_id = 6;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
}

static void test_origins(void **state)
{
	const struct origin a = {
		.boot_id = {1}, .boot_ns = 100 * SECOND, .mount_id = 5, .super_id = 9, .dev = 3};
	struct origin b = a;

	(void)state;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.boot_ns += SECOND; /* the wall clock was set */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.mount_id = 6; /* and it is seen in another mount namespace */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.mount_id = 0; /* an older kernel does not say */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.super_id = 10; /* a volume of a copy of the virtual machine, which has the id in common */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
	b.super_id = 0; /* nobody says */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
	b = a;
	b.boot_ns = a.boot_ns; /* a machine without a clock */
	b.boot_id[0] = 2;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
	b.boot_id[0] = 0; /* in a container that has an id of its own */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	assert_int_equal(origin_compare(&b, &a), ORIGIN_SAME);
	b.mount_id = 6; /* another mount of the same life of the file system */
	b.dev = 4;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.super_id = 10;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_MOUNT);
	b.super_id = 0; /* nobody says: the mount decides */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_MOUNT);
	b.mount_id = 5;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.mount_id = 0;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_MOUNT);
	b.dev = 3;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	b.super_id = ORIGIN_KIND(1); /* no such number there, and another kind of file system */
	assert_int_equal(origin_compare(&a, &b), ORIGIN_SAME);
	assert_true(origin_other_kind(&a, &b));
	assert_true(origin_other_kind(&b, &a));
	assert_false(origin_other_kind(&b, &b));
	assert_false(origin_other_kind(&a, &a));
	b.super_id = 0; /* nobody says */
	assert_false(origin_other_kind(&a, &b));
	assert_false(origin_other_kind(&b, &a));
	assert_false(origin_other_super(&a, &b));
	b.super_id = 10; /* a copy of the file system */
	assert_false(origin_other_kind(&a, &b));
	assert_true(origin_other_super(&a, &b));
	assert_false(origin_other_super(&a, &a));
	b = a;
	b.boot_id[0] = 0;
	b.boot_ns += SECOND;
	assert_int_equal(origin_compare(&a, &b), ORIGIN_OTHER);
}

static void test_the_boot_has_one_moment(void **state)
{
	struct origin first, again;
	int fd = open(".", O_RDONLY);

	(void)state;
	assert_int_equal(origin_here(fd, &first), 0);
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(origin_here(fd, &again), 0);
		assert_int_equal(origin_compare(&first, &again), ORIGIN_SAME);
	}
	close(fd);
}

static void test_signs_of_identity(void **state)
{
	const struct identity a = {
		.ino = 7, .btime_sec = 1, .btime_nsec = 2, .generation = 3, .handle_hash = 4};
	struct identity b = a;

	(void)state;
	assert_true(identity_same(&a, &b) && identity_proved(&a, &b));
	b.ino = 8;
	assert_false(identity_same(&a, &b));
	b = (struct identity){.ino = 7};
	assert_true(identity_same(&a, &b));
	assert_false(identity_proved(&a, &b));
	b.generation = 3;
	assert_true(identity_proved(&a, &b));
	b.handle_hash = 5;
	assert_false(identity_same(&a, &b) || identity_proved(&a, &b));
	b = a;
	b.btime_nsec = 3;
	assert_false(identity_same(&a, &b));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_file_as_it_was_left),
		cmocka_unit_test(test_a_change_of_our_own_under_way),
		cmocka_unit_test(test_the_first_stamp_stays_until_the_guard_is_taken),
		cmocka_unit_test(test_origins),
		cmocka_unit_test(test_origins_in_memory),
		cmocka_unit_test(test_origins_of_another_kind),
		cmocka_unit_test(test_the_boot_has_one_moment),
		cmocka_unit_test(test_signs_of_identity),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
