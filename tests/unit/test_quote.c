// SPDX-License-Identifier: Apache-2.0
/* quote: a shell reads each word back as it was. */
#include "base/quote.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static char word[200];

static void test_a_plain_path_stays_as_it_is(void **state)
{
	static const char path[] = "/srv/data-1/.fastwrite/7-env_2@a:b%c+d=e,f.arena";

	(void)state;
	assert_string_equal(quote_word(word, sizeof word, path), path);
}

/* bash: sh need not know $'...'. */
static void test_a_shell_reads_it_back(void **state)
{
	static const char *const texts[] = {
		"",   "/a b",    "/a'b",           "/$(reboot)`x`\"", "/a\nb", "/a\n'\\b\t\177",
		"/~", "/a*?[b]", "/\xc3\xa4;&|<>",
	};

	(void)state;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		char command[300], read[200];
		FILE *shell;
		size_t n;

		snprintf(command, sizeof command, "exec bash -s <<'EOF'\nprintf %%s %s\nEOF\n",
		         quote_word(word, sizeof word, texts[i]));
		shell = popen(command, "r");
		assert_non_null(shell);
		n = fread(read, 1, sizeof read - 1, shell);
		read[n] = '\0';
		assert_int_equal(pclose(shell), 0);
		assert_string_equal(read, texts[i]);
	}
}

static void test_what_does_not_fit_has_no_end(void **state)
{
	char large[200];

	(void)state;
	memset(large, ' ', sizeof large);
	large[sizeof large - 1] = '\0';
	for (size_t size = 1; size <= sizeof word; size++) {
		size_t n = strlen(quote_word(word, size, large));

		assert_true(n < size);
		assert_true(n < 2 || word[n - 1] != '\'');
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_plain_path_stays_as_it_is),
		cmocka_unit_test(test_a_shell_reads_it_back),
		cmocka_unit_test(test_what_does_not_fit_has_no_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
