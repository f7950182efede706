// SPDX-License-Identifier: Apache-2.0
/* lock: exclusion, nesting in the owner's thread, owners that die. */
#include "base/lock.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
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

/* Several find the dead owner at once: one of them inherits, and nobody takes the lock from whoever has it by
 * then. */
enum { DEATHS = 200, AFTER_DEATH = 6 };
static _Atomic int turn, ready, inside, meetings, inherited;

/* Comes where the kernel is left, above all: between what it said and what is made of that. */
static void on_pause(int number)
{
	(void)number;
	usleep(20);
}

static void *come_in_often(void *arg)
{
	(void)arg;
	for (int t = 1; t <= DEATHS; t++) {
		atomic_fetch_add(&ready, 1);
		while (atomic_load(&turn) < t)
			sched_yield();
		for (int i = 0; i < AFTER_DEATH; i++) {
			bool fast = i % 2 && lock_try(&lock, lock_self());

			if (!fast)
				inherited += lock_take(&lock, LOCK_FILE) == LOCK_INHERITED;
			if (atomic_fetch_add(&inside, 1) != 0)
				atomic_fetch_add(&meetings, 1);
			if (i % 5 == 0)
				sched_yield();
			atomic_fetch_sub(&inside, 1);
			if (fast)
				lock_drop_fast(&lock, lock_self());
			else
				lock_drop(&lock, LOCK_FILE);
		}
	}
	return NULL;
}

static void test_several_find_a_dead_owner(void **state)
{
	struct sigaction action = {.sa_handler = on_pause};
	pthread_t threads[THREADS];

	(void)state;
	sigaction(SIGUSR1, &action, NULL);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, come_in_often, NULL), 0);
	for (int t = 1; t <= DEATHS; t++) {
		pthread_t owner;

		while (atomic_load(&ready) < t * THREADS)
			sched_yield();
		assert_int_equal(pthread_create(&owner, NULL, die_with_lock, NULL), 0);
		pthread_join(owner, NULL);
		atomic_store(&turn, t);
		while (atomic_load(&ready) < (t + 1) * THREADS && t < DEATHS) {
			for (int i = 0; i < THREADS; i++)
				pthread_kill(threads[i], SIGUSR1);
			usleep(50);
		}
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(atomic_load(&meetings), 0);
	assert_int_equal(atomic_load(&inherited), DEATHS);
	assert_int_equal(atomic_load(&lock.word), 0);
}

/* Numbers are given anew, to threads of the kernel, too. */
static void test_dead_owners_number_is_the_kernels(void **state)
{
	char comm[32] = "";
	FILE *in = fopen("/proc/2/comm", "r");

	(void)state;
	if (!in || !fgets(comm, sizeof comm, in) || strcmp(comm, "kthreadd\n") != 0) {
		if (in)
			fclose(in);
		print_message("no thread of the kernel is seen here\n");
		skip();
	}
	fclose(in);
	atomic_store(&lock.word, 2);
	assert_int_equal(lock_take(&lock, LOCK_FILE), LOCK_INHERITED);
	lock_drop(&lock, LOCK_FILE);
	assert_int_equal(atomic_load(&lock.word), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_take_and_drop),
		cmocka_unit_test(test_nested_is_told),
		cmocka_unit_test(test_exclusion),
		cmocka_unit_test(test_owner_died_before),
		cmocka_unit_test(test_owner_dies_while_others_sleep),
		cmocka_unit_test(test_several_find_a_dead_owner),
		cmocka_unit_test(test_dead_owners_number_is_the_kernels),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
