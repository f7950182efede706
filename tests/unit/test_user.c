// SPDX-License-Identifier: Apache-2.0
/* user: what can be read is told from what cannot, to the byte. */
#include "base/user.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { PAGE = 65536 }; /* of any machine */

/* The second of three pages cannot be read. */
static char *pages;

static int make_pages(void **state)
{
	(void)state;
	pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return -1;
	memset(pages, 'a', 3 * PAGE);
	return mprotect(pages + PAGE, PAGE, PROT_NONE);
}

static int give_pages(void **state)
{
	(void)state;
	return munmap(pages, 3 * PAGE);
}

static void bytes(void **state)
{
	const char local[] = "here";

	(void)state;
	assert_true(user_readable(local, sizeof local));
	assert_true(user_readable(pages, PAGE));
	assert_true(user_readable(pages + 1, PAGE - 1));
	assert_true(user_readable(pages + PAGE - 1, 1));
	assert_false(user_readable(pages + PAGE - 1, 2));
	assert_false(user_readable(pages, 3 * PAGE));
	assert_false(user_readable(pages + 2 * PAGE - 1, 2));
	assert_true(user_readable(pages + 2 * PAGE, 8));
	/* nothing can be read anywhere */
	assert_true(user_readable(NULL, 0));
	assert_true(user_readable(pages + PAGE, 0));
}

static void nowhere(void **state)
{
	(void)state;
	assert_false(user_readable(NULL, 1));
	assert_false(user_readable((void *)1, 8));
	assert_false(user_readable((void *)4095, 1));
	assert_false(user_readable((void *)0xffff800000000000, 8));
	assert_false(user_readable((void *)-8l, 8));
	assert_false(user_readable((void *)-8l, 16));
	assert_false(user_readable(pages, SIZE_MAX));
}

static void strings(void **state)
{
	struct user_pages known = USER_PAGES_INIT;

	(void)state;
	assert_true(user_string_readable(""));
	assert_false(user_string_readable(NULL));
	assert_false(user_string_readable(pages));
	assert_false(user_string_readable(pages + PAGE - 1));
	assert_false(user_string_readable(pages + PAGE));
	pages[PAGE - 1] = '\0';
	assert_true(user_string_readable(pages));
	assert_true(user_reads_string(&known, pages + PAGE - 1));
	assert_true(user_reads_string(&known, pages + PAGE - 8));
	pages[PAGE - 1] = 'a';
	assert_false(user_reads_string(&known, pages + PAGE - 8));
}

static void lists(void **state)
{
	char **list = (char **)(pages + PAGE) - 3;
	char *wild[] = {"a", pages + PAGE, NULL};

	(void)state;
	assert_false(user_reads_list(NULL));
	assert_false(user_reads_list(wild));
	list[0] = "a";
	list[1] = "b";
	list[2] = NULL;
	assert_true(user_reads_list(list));
	list[2] = "c";
	assert_false(user_reads_list(list));
	list[0] = NULL;
	assert_true(user_reads_list(list));
	memset(list, 'a', 3 * sizeof *list);
}

/* A page that could be written is asked for again after a change only. */
static void found_again(void **state)
{
	char local[8] = "", kept;

	(void)state;
	assert_true(user_writes(local, sizeof local));
	assert_true(user_writes(pages, PAGE));
	assert_false(user_writes(pages, PAGE + 1));
	assert_false(user_writes(NULL, 1));
	assert_false(user_writes((void *)8, 1));
	assert_false(user_writes((void *)-8l, 8));
	assert_false(user_writes((void *)-8l, 16));
	assert_true(user_writes(pages + PAGE, 0));
	/* bits that no address has */
	assert_false(user_writes((void *)(1ul << 57), 1));
	assert_false(user_writes((void *)((uintptr_t)pages | 1ul << 57), 1));
	kept = pages[0];
	assert_int_equal(mprotect(pages, PAGE, PROT_READ), 0);
	assert_true(user_writes(pages, PAGE));
	/* in the number's low bits as many changes as make it 0 */
	for (int i = 0; i < 1 << 19; i++) {
		user_memory_changed();
		assert_false(i < 3 && user_writes(pages, 1));
	}
	assert_false(user_writes(pages, 1));
	assert_int_equal(mprotect(pages, PAGE, PROT_READ | PROT_WRITE), 0);
	assert_true(user_writes(pages, PAGE));
	assert_int_equal(pages[0], kept);
}

/* To ask changes nothing. */
static void signals(void **state)
{
	sigset_t before, after;

	(void)state;
	memset(&before, 0, sizeof before);
	memset(&after, 0, sizeof after);
	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	assert_true(user_readable(pages, 3));
	assert_false(user_readable(pages + PAGE, 3));
	assert_int_equal(sigprocmask(SIG_SETMASK, NULL, &after), 0);
	assert_int_equal(sigismember(&after, SIGUSR1), 1);
	assert_int_equal(sigismember(&after, SIGUSR2), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes), cmocka_unit_test(nowhere),     cmocka_unit_test(strings),
		cmocka_unit_test(lists), cmocka_unit_test(found_again), cmocka_unit_test(signals),
	};

	return cmocka_run_group_tests(tests, make_pages, give_pages);
}
