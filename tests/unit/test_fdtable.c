// SPDX-License-Identifier: Apache-2.0
/* fdtable: small and large numbers, the end of the table, searching. */
#include "files/fdtable.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct ofd one, two;

static void test_numbers(void **state)
{
	const int numbers[] = {
		0, 3, FDTABLE_CHUNK - 1, FDTABLE_CHUNK, 70000, FDTABLE_CHUNK * FDTABLE_CHUNKS - 1};

	(void)state;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		assert_null(fdtable_get(numbers[i]));
		assert_int_equal(fdtable_set(numbers[i], &one), 0);
		assert_ptr_equal(fdtable_get(numbers[i]), &one);
		fdtable_clear(numbers[i]);
		assert_null(fdtable_get(numbers[i]));
	}
}

static void test_beyond_the_end(void **state)
{
	(void)state;
	assert_int_equal(fdtable_set(FDTABLE_CHUNK * FDTABLE_CHUNKS, &one), -EMFILE);
	assert_int_equal(fdtable_set(-1, &one), -EMFILE);
	assert_null(fdtable_get(-1));
	assert_null(fdtable_get(FDTABLE_CHUNK * FDTABLE_CHUNKS));
	fdtable_clear(-1);
}

static void test_search(void **state)
{
	(void)state;
	fdtable_set(5, &one);
	fdtable_set(9, &two);
	fdtable_set(5000, &one);
	assert_int_equal(fdtable_next(0, ~0u), 5);
	assert_int_equal(fdtable_next(6, ~0u), 9);
	assert_int_equal(fdtable_next(10, ~0u), 5000);
	assert_int_equal(fdtable_next(10, 4999), -1);
	assert_int_equal(fdtable_next(5001, ~0u), -1);
	assert_int_equal(fdtable_find(&one, 5), 5000);
	assert_int_equal(fdtable_find(&one, -1), 5);
	assert_int_equal(fdtable_find(&two, 9), -1);
	fdtable_reset();
	assert_int_equal(fdtable_next(0, ~0u), -1);
	assert_null(fdtable_get(5000));
}

/* What other threads change while a fork is under way is forgotten, also when it looks the same again. */
static void test_fork(void **state)
{
	(void)state;
	for (int round = 0; round < 3; round++) {
		fdtable_set(5, &one);
		fdtable_set(6, &one);
		fdtable_set(5000, &two);
		fdtable_set(5001, &two);
		fdtable_fork_prepare();
		fdtable_clear(5);
		fdtable_set(5, &one);
		fdtable_set(7, &two);
		fdtable_set(5001, &one);
		fdtable_set(5002, &one);
		fdtable_fork_child();
		assert_null(fdtable_get(5));
		assert_ptr_equal(fdtable_get(6), &one);
		assert_null(fdtable_get(7));
		assert_ptr_equal(fdtable_get(5000), &two);
		assert_null(fdtable_get(5001));
		assert_null(fdtable_get(5002));
		fdtable_reset();
	}
}

/* State and description are one word, but each changes without the other. */
static void test_states(void **state)
{
	(void)state;
	assert_false(fdtable_knows(8));
	assert_int_equal(fdtable_begin_resolve(8), UNRESOLVED_NONE);
	fdtable_reach(8);
	fdtable_set_state(8, UNRESOLVED_NOTED);
	assert_true(fdtable_knows(8));
	assert_true(unresolved_is(8));
	assert_null(fdtable_get(8));
	assert_int_equal(fdtable_next(0, ~0u), -1);
	assert_true(fdtable_highest() >= 8);

	assert_int_equal(fdtable_begin_resolve(8), UNRESOLVED_NOTED);
	assert_int_equal(fdtable_begin_resolve(8), UNRESOLVED_NONE);
	assert_false(fdtable_change_state(8, UNRESOLVED_NOTED, UNRESOLVED_NONE));
	assert_int_equal(fdtable_set(8, &one), 0);
	assert_ptr_equal(fdtable_get(8), &one);
	assert_int_equal(fdtable_state(8), UNRESOLVED_RESOLVING);
	assert_true(fdtable_change_state(8, UNRESOLVED_RESOLVING, UNRESOLVED_NONE));
	assert_int_equal(fdtable_word(8), (uintptr_t)&one);

	/* closed, while other threads wait */
	fdtable_set_state(8, UNRESOLVED_RESOLVING);
	fdtable_clear(8);
	assert_null(fdtable_get(8));
	assert_true(fdtable_knows(8));
	assert_int_equal(fdtable_state(8), UNRESOLVED_RESOLVING);
	fdtable_set_state(8, UNRESOLVED_NONE);
	assert_false(fdtable_knows(8));

	fdtable_set(5000, &one);
	assert_int_equal(fdtable_state(5000), UNRESOLVED_NONE);
	assert_true(fdtable_knows(5000));
	assert_false(fdtable_knows(-1));
	assert_int_equal(fdtable_state(-1), UNRESOLVED_NONE);
	fdtable_reset();
}

static void note(int fd)
{
	fdtable_set(fd, &one);
	fdtable_set_state(fd, UNRESOLVED_NOTED);
	unresolved_fds[fd].flags = fd + 1;
	atomic_store(&unresolved_fds[fd].inflight, 7);
}

/* Another thread has used them, and the child's number of the highest one is older. */
static void test_above_the_highest(void **state)
{
	const int numbers[] = {300, 301, 511, 512, 600, FDTABLE_CHUNK - 1}, top = 300;

	(void)state;
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		note(numbers[i]);
	fdtable_set(FDTABLE_CHUNK, &two);
	fdtable_zero_above(top);
	for (int fd = top + 1; fd < FDTABLE_CHUNK; fd++) {
		assert_int_equal(fdtable_word(fd), 0);
		assert_int_equal(unresolved_fds[fd].flags, 0);
		assert_int_equal(atomic_load(&unresolved_fds[fd].inflight), 0);
	}
	assert_ptr_equal(fdtable_get(top), &one);
	assert_int_equal(fdtable_state(top), UNRESOLVED_NOTED);
	assert_int_equal(unresolved_fds[top].flags, top + 1);
	assert_ptr_equal(fdtable_get(FDTABLE_CHUNK), &two);
	fdtable_zero_above(FDTABLE_CHUNK);
	assert_ptr_equal(fdtable_get(FDTABLE_CHUNK), &two);
	fdtable_zero_above(-1);
	assert_int_equal(fdtable_word(top), 0);
	assert_ptr_equal(fdtable_get(FDTABLE_CHUNK), &two);
	fdtable_reset();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers), cmocka_unit_test(test_beyond_the_end),
		cmocka_unit_test(test_search),  cmocka_unit_test(test_fork),
		cmocka_unit_test(test_states),  cmocka_unit_test(test_above_the_highest),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
