// SPDX-License-Identifier: Apache-2.0
/* engine: whoever needs its thread just when it ends gets another one. */
#include "rig.h"

#include <pthread.h>

enum { ENDS = 6, PATIENCE_S = 10 };

static _Atomic uint64_t calls;
static _Atomic bool over;

static void *call(void *arg)
{
	(void)arg;
	while (!atomic_load(&over)) {
		if (engine_start() < 0)
			break;
		atomic_fetch_add(&calls, 1);
	}
	return NULL;
}

/* The thread ends after a second without work, and is asked for all the time: each of its ends comes when somebody has
 * just seen it run.  Who then waits for the id of a thread that nobody starts never comes back. */
static void test_start_at_its_end(void **state)
{
	uint64_t seen = 0, moved = sys_now_ns();
	pthread_t caller;
	pid_t tid = 0;
	int ends = -1;

	(void)state;
	assert_int_equal(pthread_create(&caller, NULL, call, NULL), 0);
	while (ends < ENDS) {
		pid_t now = engine_tid();

		if (now && now != tid) {
			tid = now;
			ends++;
		}
		if (atomic_load(&calls) != seen)
			moved = sys_now_ns();
		seen = atomic_load(&calls);
		if (sys_now_ns() - moved > PATIENCE_S * 1000000000ull)
			fail_msg("engine_start has not returned for %d s, after end %d of the thread",
			         PATIENCE_S, ends + 1);
		sys_nap(1000000);
	}
	atomic_store(&over, true);
	pthread_join(caller, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_start_at_its_end)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
