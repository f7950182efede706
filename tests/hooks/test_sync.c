// SPDX-License-Identifier: Apache-2.0
/* Durability: what was written is in the file when a sync returns. */
#include "hook_test.h"

static void durable(void **state)
{
	int fd = open_staged("a", 0);
	unsigned n = RECORDS;

	(void)state;
#define SYNC(call) \
	do { \
		OK(call); \
		check_file("a", 0, n); \
		write_records(fd, n, RECORDS); \
		n += RECORDS; \
	} while (0)
	SYNC(fsync(fd));
	SYNC(fdatasync(fd));
	SYNC(fsync(fd));
	SYNC(syncfs(fd));
	SYNC(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
	SYNC(fdatasync(fd));
#undef SYNC
	sync();
	OK(close(fd));
	check_file("a", 0, n);
	FAILS(fsync(-1), EBADF);
	FAILS(fdatasync(-1), EBADF);
	fd = open_new("a", O_SYNC);
	write_records(fd, 0, RECORDS);
	OK(close(fd));
	check_file("a", 0, RECORDS);
	OK(unlink("a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
