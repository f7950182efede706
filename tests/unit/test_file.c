// SPDX-License-Identifier: Apache-2.0
/* file: the reasons why a file is bypassed have a name and a sentence each. */
#include "files/file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_reasons(void **state)
{
	(void)state;
	for (int reason = BYPASS_NONE + 1; reason < BYPASS_COUNT; reason++) {
		const char *name = bypass_reason_name((enum bypass_reason)reason);
		const char *text = bypass_reason_text((enum bypass_reason)reason);

		assert_non_null(name);
		assert_non_null(text);
		assert_string_not_equal(name, "?");
		assert_true(strlen(text) > strlen("?"));
	}
	assert_string_equal(bypass_reason_name(BYPASS_COUNT), "?");
	assert_string_equal(bypass_reason_text(BYPASS_COUNT), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_reasons)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
