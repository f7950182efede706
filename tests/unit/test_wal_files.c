// SPDX-License-Identifier: Apache-2.0
/* wal_files: takes no more names than it has memory for, whatever the log says when it is read again. */
#include "recovery/wal_files.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

enum { NAMES = 2, PATH_BYTES = 4 };

static struct wal_files files;
static struct wal_name name;
static char path[ARENA_PATH_MAX];

static int take(uint64_t ino, uint16_t path_bytes)
{
	struct wal_item item = {
		.epoch = 1, .file = (uint32_t)ino, .type = WAL_NAME, .name = &name, .path = path};

	name = (struct wal_name){.dev = 1, .ino = ino, .path_bytes = path_bytes};
	snprintf(path, sizeof path, "/%0*d", path_bytes - 2, (int)ino);
	return wal_files_take(&files, &item);
}

static int begin(void **state)
{
	(void)state;
	files = (struct wal_files){.names = NAMES, .path_bytes = NAMES * PATH_BYTES};
	return wal_files_begin(&files);
}

static int end(void **state)
{
	(void)state;
	wal_files_end(&files);
	return 0;
}

static void test_takes_as_many_names_as_were_counted(void **state)
{
	(void)state;
	for (uint64_t ino = 1; ino <= NAMES; ino++)
		assert_int_equal(take(ino, PATH_BYTES), 0);
	assert_int_equal(take(1, PATH_BYTES), 0); /* the same file again */
	assert_int_equal(take(NAMES + 1, PATH_BYTES), -EBADMSG);
	assert_int_equal(files.count, NAMES);
	assert_int_equal(files.paths_end, NAMES * PATH_BYTES);
}

static void test_takes_no_longer_paths_than_were_counted(void **state)
{
	(void)state;
	assert_int_equal(take(1, NAMES * PATH_BYTES + 1), -EBADMSG);
	assert_int_equal(take(1, PATH_BYTES), 0);
	assert_int_equal(take(2, PATH_BYTES + 1), -EBADMSG);
	assert_int_equal(take(2, PATH_BYTES), 0);
	assert_string_equal(wal_files_path(&files, &files.files[0]), "/01");
	assert_string_equal(wal_files_path(&files, &files.files[1]), "/02");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_takes_as_many_names_as_were_counted, begin, end),
		cmocka_unit_test_setup_teardown(test_takes_no_longer_paths_than_were_counted, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
