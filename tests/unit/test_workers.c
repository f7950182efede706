// SPDX-License-Identifier: Apache-2.0
/* workers: whoever needs its thread just when it ends gets another one. */
#include "attach/timer.h"
#include "files/workers.h"
#include "rig.h"

#include <pthread.h>

enum { ENDS = 6, PATIENCE_S = 10 };

static _Atomic uint64_t calls;
static _Atomic bool over;

static void *call(void *arg)
{
	(void)arg;
	while (!atomic_load(&over)) {
		if (workers_start() < 0)
			break;
		atomic_fetch_add(&calls, 1);
	}
	return NULL;
}

/* The thread ends after a second without work, and is asked for all the time: each of its ends comes when
 * somebody has just seen it run.  Who then waits for the id of a thread that nobody starts never comes back.
 */
static void test_start_at_its_end(void **state)
{
	uint64_t seen = 0, moved = sys_now_ns();
	pthread_t caller;
	pid_t tid = 0;
	int ends = -1;

	(void)state;
	timer_set();
	assert_int_equal(pthread_create(&caller, NULL, call, NULL), 0);
	while (ends < ENDS) {
		pid_t now = workers_tid();

		if (now && now != tid) {
			tid = now;
			ends++;
		}
		if (atomic_load(&calls) != seen)
			moved = sys_now_ns();
		seen = atomic_load(&calls);
		if (sys_now_ns() - moved > PATIENCE_S * 1000000000ull)
			fail_msg("workers_start has not returned for %d s, after end %d of the thread",
			         PATIENCE_S, ends + 1);
		sys_nap(1000000);
	}
	atomic_store(&over, true);
	pthread_join(caller, NULL);
}

static bool arena_goes(void)
{
	for (int i = 0; i < 500; i++) {
		if (access(rig_path(".fastwrite"), F_OK) < 0)
			return true;
		sys_nap(10000000);
	}
	return false;
}

/* Writes until a write is staged.  The thread that removed the arena may still hold the lock of all arenas,
 * and then a write goes to the file.  Returns the bytes written. */
static uint64_t stage_anew(int fd)
{
	uint64_t written = 0;

	for (int i = 0; i < 500 && access(rig_path(".fastwrite"), F_OK) < 0; i++) {
		if (i > 1)
			sys_nap(10000000);
		rig_put(fd, written, 100);
		written += 100;
	}
	return written;
}

/* A program that goes on without files there must not keep the file system busy. */
static void test_arena_of_no_file_goes(void **state)
{
	int fd = rig_open("out", O_WRONLY), other;
	uint64_t written;

	(void)state;
	rig_put(fd, 0, 100);
	rig_put(fd, 100, 100);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), 0);
	assert_int_equal(rig_close(fd), 0);
	assert_true(arena_goes());
	/* and comes back, also when the threads have ended before the close */
	other = rig_open("other", O_WRONLY);
	written = stage_anew(other);
	assert_int_equal(rig_drain(other), 0);
	for (int i = 0; i < 500 && workers_tid() != 0; i++)
		sys_nap(10000000);
	assert_int_equal(workers_tid(), 0);
	assert_int_equal(access(rig_path(".fastwrite"), F_OK), 0);
	assert_int_equal(rig_close(other), 0);
	assert_true(arena_goes());
	rig_expect("out", 200);
	rig_expect("other", written);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_start_at_its_end),
		cmocka_unit_test_setup_teardown(test_arena_of_no_file_goes, rig_set_up, rig_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
