// SPDX-License-Identifier: Apache-2.0
/* buffer: the child of a fork has every buffer but those of the thread that forked. */
#include "base/buffer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* More than there are. */
enum { MANY = 64, OTHERS = 5 };

struct kind {
	void *(*take)(void);
	void (*give)(void *buffer);
	size_t bytes;
};

static const struct kind kinds[] = {{buffer_take, buffer_give, BUFFER_BYTES},
                                    {buffer_take_large, buffer_give_large, BUFFER_LARGE_BYTES}};

static const struct kind *tried;
static pthread_barrier_t have, may_go;
static void *others[OTHERS];

/* What is taken fits, and is nobody else's. */
static void test_each_is_ones_own(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		unsigned char *all[MANY];

		for (int i = 0; i < MANY; i++) {
			all[i] = kinds[k].take();
			assert_int_equal((uintptr_t)all[i] % 64, 0);
			memset(all[i], i, kinds[k].bytes);
		}
		for (int i = 0; i < MANY; i++) {
			for (size_t at = 0; at < kinds[k].bytes; at++)
				assert_int_equal(all[i][at], i);
			kinds[k].give(all[i]);
		}
	}
}

static void *hold(void *ctx)
{
	(void)ctx;
	for (int i = 0; i < OTHERS; i++)
		others[i] = tried->take();
	pthread_barrier_wait(&have);
	pthread_barrier_wait(&may_go);
	for (int i = 0; i < OTHERS; i++)
		tried->give(others[i]);
	return NULL;
}

/* 0: it gets what the other thread had, and not what its own has. */
static int child(const void *own)
{
	int found = 0;

	buffer_fork_child();
	for (int i = 0; i < MANY; i++) {
		const void *buffer = tried->take();

		if (buffer == own)
			return 100;
		for (int j = 0; j < OTHERS; j++)
			found += buffer == others[j];
	}
	return OTHERS - found;
}

static void test_a_child_has_what_threads_had(void **state)
{
	(void)state;
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		pthread_t thread;
		int status;
		void *own;
		pid_t pid;

		tried = &kinds[k];
		own = tried->take();
		pthread_barrier_init(&have, NULL, 2);
		pthread_barrier_init(&may_go, NULL, 2);
		assert_int_equal(pthread_create(&thread, NULL, hold, NULL), 0);
		pthread_barrier_wait(&have);
		pid = fork();
		if (pid == 0)
			_exit(child(own));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		pthread_barrier_wait(&may_go);
		assert_int_equal(pthread_join(thread, NULL), 0);
		tried->give(own);
		assert_int_equal(status, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_is_ones_own),
		cmocka_unit_test(test_a_child_has_what_threads_had),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
