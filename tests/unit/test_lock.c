// SPDX-License-Identifier: Apache-2.0
/* lock: exclusion, nesting in the owner's thread, owners that die. */
#include "lock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

enum { THREADS = 4, TURNS = 20000 };

static struct lock lock;
static long counter;

static void test_take_and_drop(void **state)
{
	(void)state;
	assert_int_equal(lock_take(&lock, LOCK_FILE), LOCK_TAKEN);
	assert_int_equal(atomic_load(&lock.word), lock_self());
	assert_false(lock_try(&lock, lock_self()));
	lock_drop(&lock, LOCK_FILE);
	assert_int_equal(atomic_load(&lock.word), 0);
}

static void test_nested_is_told(void **state)
{
	(void)state;
	assert_int_equal(lock_take(&lock, LOCK_FILE), LOCK_TAKEN);
	assert_int_equal(lock_take(&lock, LOCK_FILE), LOCK_NESTED);
	lock_drop(&lock, LOCK_FILE);
	assert_int_equal(atomic_load(&lock.word), 0);
}

static void *count_up(void *arg)
{
	(void)arg;
	for (int i = 0; i < TURNS; i++) {
		/* both ways of taking and dropping, as the fast and the slow path do */
		if (i % 3 == 0 && lock_try(&lock, lock_self())) {
			counter++;
			lock_drop_fast(&lock, lock_self());
			continue;
		}
		lock_take(&lock, LOCK_FILE);
		counter++;
		lock_drop(&lock, LOCK_FILE);
	}
	return NULL;
}

static void test_exclusion(void **state)
{
	pthread_t threads[THREADS];

	(void)state;
	counter = 0;
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(counter, THREADS * TURNS);
	assert_int_equal(atomic_load(&lock.word), 0);
}

static void *die_with_lock(void *arg)
{
	lock_take(&lock, LOCK_FILE);
	if (arg)
		usleep(50000);
	return NULL;
}

static void test_owner_died_before(void **state)
{
	pthread_t thread;

	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, die_with_lock, NULL), 0);
	pthread_join(thread, NULL);
	assert_int_not_equal(atomic_load(&lock.word), 0);
	assert_int_equal(lock_take(&lock, LOCK_FILE), LOCK_INHERITED);
	lock_drop(&lock, LOCK_FILE);
	assert_true(lock_try(&lock, lock_self()));
	lock_drop_fast(&lock, lock_self());
}

static void *take_once(void *arg)
{
	(void)arg;
	lock_take(&lock, LOCK_FILE);
	counter++;
	lock_drop(&lock, LOCK_FILE);
	return NULL;
}

static void test_owner_dies_while_others_sleep(void **state)
{
	pthread_t owner, sleepers[THREADS];

	(void)state;
	counter = 0;
	assert_int_equal(pthread_create(&owner, NULL, die_with_lock, &lock), 0);
	while (atomic_load(&lock.word) == 0)
		usleep(100);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&sleepers[i], NULL, take_once, NULL), 0);
	pthread_join(owner, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(sleepers[i], NULL);
	assert_int_equal(counter, THREADS);
	take_once(NULL);
	assert_int_equal(counter, THREADS + 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take_and_drop),
		cmocka_unit_test(test_nested_is_told),
		cmocka_unit_test(test_exclusion),
		cmocka_unit_test(test_owner_died_before),
		cmocka_unit_test(test_owner_dies_while_others_sleep),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
