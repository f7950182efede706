// SPDX-License-Identifier: Apache-2.0
/*
 * What reads and writes a file where no call is seen: mappings, descriptors that came by other ways, rings; made by this
 * process or by a relative, under this name or another.  `outside` is a directory that the library leaves alone.
 */
#include "hook_test.h"

/* Two processes take turns. */
static int to_child[2], to_parent[2];

static void tell(int fd) { CHILD(write(fd, "x", 1) == 1); }
static void hear(int fd)
{
	char c;

	CHILD(read(fd, &c, 1) == 1);
}

static pid_t child(void)
{
	pid_t pid;

	assert_int_equal(pipe(to_child) | pipe(to_parent), 0);
	fflush(stdout);
	pid = fork();
	CHILD(close(pid == 0 ? to_child[1] : to_child[0]) == 0);
	CHILD(close(pid == 0 ? to_parent[0] : to_parent[1]) == 0);
	return pid;
}

static void child_ends(pid_t pid)
{
	check_exit(pid, 0);
	OK(close(to_child[1]));
	OK(close(to_parent[0]));
}

/* First, for nothing has been opened here: a relative stages, and is asked about. */
static void relative_of_a_newcomer(void **state)
{
	char bytes[STAGED];
	struct stat st;
	pid_t pid;
	int fd;

	(void)state;
	pid = child();
	if (pid == 0) {
		fd = open("a", O_RDWR | O_CREAT | O_EXCL, 0644);
		write_records(fd, 0, RECORDS);
		tell(to_parent[1]);
		hear(to_child[0]);
		_exit(0);
	}
	hear(to_parent[0]);
	OK(stat("a", &st));
	assert_int_equal(st.st_size, STAGED);
	fd = OK(open("a", O_RDONLY));
	assert_int_equal(OK(read(fd, bytes, sizeof bytes)), STAGED);
	check_records(bytes, 0, RECORDS);
	OK(close(fd));
	tell(to_child[1]);
	child_ends(pid);
	OK(unlink("a"));
}

static int make_outside(void **state)
{
	(void)state;
	return mkdir("outside", 0755);
}

static int remove_outside(void **state)
{
	(void)state;
	return rmdir("outside");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(relative_of_a_newcomer),    cmocka_unit_test(mapped_by_a_relative),
		cmocka_unit_test(mapped_while_staged),       cmocka_unit_test(mapped_under_another_name),
		cmocka_unit_test(opened_under_another_name), cmocka_unit_test(nameless),
		cmocka_unit_test(received_before),           cmocka_unit_test(received_by_a_relative),
		cmocka_unit_test(ring_of_a_relative),        cmocka_unit_test(after_the_ring),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, make_outside, remove_outside);
}
