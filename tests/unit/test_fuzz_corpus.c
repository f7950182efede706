// SPDX-License-Identifier: Apache-2.0
/* The inputs that the fuzzers keep (tests/fuzz/make_corpus.py), each once: what was found stays found, also
 * without clang. */
#define LLVMFuzzerTestOneInput fuzz_arena_input
#include "../fuzz/fuzz_arena.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_journal_input
#include "../fuzz/fuzz_journal.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_pages_input
#include "../fuzz/fuzz_pages.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_status_input
#include "../fuzz/fuzz_status.c"
#undef LLVMFuzzerTestOneInput

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static int replay_all(const char *directory, int (*target)(const uint8_t *, size_t))
{
	static uint8_t input[1 << 16];
	DIR *dir = opendir(directory);
	struct dirent *d;
	int count = 0;

	if (!dir)
		fail_msg("%s is not there: run it in the project's directory", directory);
	while ((d = readdir(dir)) != NULL) {
		char path[512];
		long n;

		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", directory, d->d_name);
		n = world_read(path, input, sizeof input);
		if (n < 0)
			fail_msg("%s cannot be read", path);
		printf("# %s\n", d->d_name);
		fflush(stdout);
		target(input, (size_t)n);
		count++;
	}
	closedir(dir);
	return count;
}

static void test_arenas(void **state)
{
	(void)state;
	assert_true(replay_all("build/fuzz-corpus/arena", fuzz_arena_input) > 100);
}

static void test_journals(void **state)
{
	(void)state;
	assert_true(replay_all("build/fuzz-corpus/journal", fuzz_journal_input) > 20);
}

static void test_pages(void **state)
{
	(void)state;
	assert_true(replay_all("build/fuzz-corpus/pages", fuzz_pages_input) > 10);
}

static void test_status(void **state)
{
	(void)state;
	assert_true(replay_all("build/fuzz-corpus/status", fuzz_status_input) > 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_arenas), cmocka_unit_test(test_journals),
	                                   cmocka_unit_test(test_pages), cmocka_unit_test(test_status)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
