// SPDX-License-Identifier: Apache-2.0
/* Names come and go while bytes are staged. */
#include "hook_test.h"

static void renaming(void **state)
{
	int fd = open_staged("a", 0);
	int dir = OK(open(".", O_RDONLY | O_DIRECTORY));
	unsigned n = RECORDS;

	(void)state;
	OK(rename("a", "b"));
	check_file("b", 0, n);
	write_records(fd, n, RECORDS);
	n += RECORDS;
	OK(renameat(dir, "b", dir, "c"));
	check_file("c", 0, n);
	write_records(fd, n, RECORDS);
	n += RECORDS;
	OK(renameat2(AT_FDCWD, "c", dir, "d", RENAME_NOREPLACE));
	write_records(fd, n, RECORDS);
	n += RECORDS;
	OK(close(fd));
	check_file("d", 0, n);
	FAILS(rename("a", "b"), ENOENT);
	OK(close(dir));
	OK(unlink("d"));
}

/* The new version of a file takes the place of the old one, which is still open. */
static void replacing(void **state)
{
	char bytes[STAGED];
	int old = open_staged("a", 0);
	int new = open_new("b", 0);

	(void)state;
	write_records(new, 900, RECORDS);
	OK(rename("b", "a"));
	check_file("a", 900, RECORDS);
	write_records(new, 900 + RECORDS, RECORDS);
	write_records(old, RECORDS, RECORDS);
	check_file("a", 900, 2 * RECORDS);
	assert_int_equal(OK(pread(old, bytes, STAGED, STAGED)), STAGED);
	check_records(bytes, RECORDS, RECORDS);
	OK(close(old));
	OK(close(new));
	check_file("a", 900, 2 * RECORDS);
	OK(unlink("a"));
}

static void exchanging(void **state)
{
	int a = open_staged("a", 0);
	int b = open_new("b", 0);

	(void)state;
	write_records(b, 900, RECORDS);
	if (renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE) < 0 && errno == EINVAL) {
		print_message("no RENAME_EXCHANGE on this file system\n");
		close(a);
		close(b);
		unlink("a");
		unlink("b");
		skip();
	}
	write_records(a, RECORDS, RECORDS);
	write_records(b, 900 + RECORDS, RECORDS);
	check_file("b", 0, 2 * RECORDS);
	check_file("a", 900, 2 * RECORDS);
	OK(close(a));
	OK(close(b));
	OK(unlink("a"));
	OK(unlink("b"));
}

static void linking(void **state)
{
	int fd = open_staged("a", 0);
	struct stat st;
	int second;

	(void)state;
	OK(link("a", "b"));
	check_file("b", 0, RECORDS);
	write_records(fd, RECORDS, RECORDS);
	OK(linkat(AT_FDCWD, "a", AT_FDCWD, "c", 0));
	check_file("c", 0, 2 * RECORDS);
	second = OK(open("b", O_WRONLY | O_APPEND));
	write_records(second, 2 * RECORDS, RECORDS);
	check_file("a", 0, 3 * RECORDS);
	OK(unlink("a"));
	OK(fstat(fd, &st));
	assert_int_equal(st.st_nlink, 2);
	OK(lseek(fd, 0, SEEK_END));
	write_records(fd, 3 * RECORDS, RECORDS);
	OK(close(fd));
	OK(close(second));
	check_file("b", 0, 4 * RECORDS);
	OK(unlinkat(AT_FDCWD, "b", 0));
	OK(remove("c"));
}

/* ---- a file under another name, and then its process is killed ---- */

static int exchange(void) { return renameat2(AT_FDCWD, "d/a", AT_FDCWD, "e/b", RENAME_EXCHANGE); }
static int exchange_by_number(void)
{
	return (int)syscall(SYS_renameat2, AT_FDCWD, "d/a", AT_FDCWD, "e/b", RENAME_EXCHANGE);
}
static int exchange_back(void) { return renameat2(AT_FDCWD, "e/b", AT_FDCWD, "d/a", RENAME_EXCHANGE); }
static int exchange_directories(void)
{
	return rename("d/a", "d/b") || renameat2(AT_FDCWD, "d", AT_FDCWD, "e", RENAME_EXCHANGE) ? -1 : 0;
}
static int link_and_unlink(void) { return unlink("e/b") || link("d/a", "e/b") || unlink("d/a") ? -1 : 0; }
static int link_and_unlink_by_number(void)
{
	return unlink("e/b") || syscall(SYS_linkat, AT_FDCWD, "d/a", AT_FDCWD, "e/b", 0) ||
	                       syscall(SYS_unlinkat, AT_FDCWD, "d/a", 0)
	               ? -1
	               : 0;
}
/* The name that is known last is not the one that it was opened by. */
static int link_and_rename(void)
{
	return link("d/a", "e/c") || unlink("d/a") || rename("e/c", "e/b") || rename("e", "f") ||
	                       rename("f", "e")
	               ? -1
	               : 0;
}
static int link_and_unlink_the_link(void)
{
	return link("d/a", "e/c") || unlink("e/c") || rename("d/a", "e/b") ? -1 : 0;
}
static int move(void) { return rename("d/a", "e/b"); }
static int move_directory(void)
{
	return rename("d/a", "d/b") || unlink("e/b") || rmdir("e") || rename("d", "e") || mkdir("d", 0755)
	               ? -1
	               : 0;
}

/* `by_child`: the process that has the file does it, otherwise its parent, which has it not. */
static void killed_after(int (*change)(void), bool by_child)
{
	int down[2], up[2], fd;
	char byte;
	pid_t pid;

	OK(mkdir("d", 0755));
	OK(mkdir("e", 0755));
	OK(close(open_new("e/b", 0)));
	assert_int_equal(pipe(down) | pipe(up), 0);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		char record[RECORD];

		fd = open("d/a", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
		for (unsigned i = 0; i < 2 * RECORDS; i++) {
			record_fill(record, i);
			CHILD(write(fd, record, RECORD) == RECORD);
			if (i + 1 != RECORDS)
				continue;
			if (by_child)
				CHILD(change() == 0);
			CHILD(write(up[1], "x", 1) == 1 && read(down[0], &byte, 1) == 1);
		}
		leave();
	}
	assert_int_equal(read(up[0], &byte, 1), 1);
	if (!by_child)
		assert_int_equal(change(), 0);
	assert_int_equal(write(down[1], "x", 1), 1);
	check_exit(pid, 0);
	close(down[0]), close(down[1]), close(up[0]), close(up[1]);
	/* whoever comes next has not seen the file before: its bytes are put in place by its name */
	pid = fork();
	if (pid == 0)
		_exit(open("e/b", O_RDWR | O_CLOEXEC) < 0);
	check_exit(pid, 0);
	check_file("e/b", 0, 2 * RECORDS);
	unlink("d/a");
	unlink("d/b");
	OK(unlink("e/b"));
}

static int (*const changes[])(void) = {
	exchange,
	exchange_by_number,
	exchange_back,
	exchange_directories,
	link_and_unlink,
	link_and_unlink_by_number,
	link_and_rename,
	link_and_unlink_the_link,
	move,
	move_directory,
};

/* Each in a program of its own, which stages nothing but this. */
static void names_of_the_killed(void **state)
{
	(void)state;
	for (int i = 0; i < (int)(sizeof changes / sizeof *changes) * 2; i++) {
		char number[16];
		pid_t pid;

		snprintf(number, sizeof number, "%d", i);
		fflush(stdout);
		pid = fork();
		if (pid == 0) {
			execl("/proc/self/exe", "test_name", number, NULL);
			_exit(99);
		}
		check_exit(pid, 0);
		/* a directory that was moved may have taken its staging along */
		assert_int_equal(system("rm -r d e"), 0);
	}
	clean_up();
}

/* Unlinked and used on: a new file of that name is another one. */
static void unlinking(void **state)
{
	char bytes[2 * STAGED];
	int old = open_staged("a", 0);
	int new;

	(void)state;
	OK(unlink("a"));
	write_records(old, RECORDS, RECORDS);
	new = open_new("a", 0);
	write_records(new, 900, RECORDS);
	check_file("a", 900, RECORDS);
	assert_int_equal(OK(pread(old, bytes, sizeof bytes, 0)), sizeof bytes);
	check_records(bytes, 0, 2 * RECORDS);
	OK(close(old));
	OK(close(new));
	check_file("a", 900, RECORDS);
	OK(unlink("a"));
	FAILS(unlink("a"), ENOENT);
}

/* The library keeps something in this directory; the program does not need to know. */
static void directories(void **state)
{
	int fd;

	(void)state;
	OK(mkdir("d", 0755));
	fd = open_staged("d/a", 0);
	FAILS(rmdir("d"), ENOTEMPTY);
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	check_file("d/a", 0, 2 * RECORDS);
	OK(unlink("d/a"));
	OK(rmdir("d"));
	OK(mkdir("d", 0755));
	fd = open_staged("d/a", 0);
	OK(unlink("d/a"));
	OK(rmdir("d"));
	write_records(fd, RECORDS, RECORDS);
	OK(close(fd));
	OK(mkdir("d", 0755));
	fd = open_staged("d/a", 0);
	OK(close(fd));
	OK(unlink("d/a"));
	OK(unlinkat(AT_FDCWD, "d", AT_REMOVEDIR));
	OK(mkdir("d", 0755));
	fd = open_staged("d/a", 0);
	OK(close(fd));
	OK(remove("d/a"));
	assert_int_equal(remove("d"), 0); /* glibc tries unlink first, and errno shows it */
	FAILS(rmdir("d"), ENOENT);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_of_the_killed),
		cmocka_unit_test(renaming),
		cmocka_unit_test(replacing),
		cmocka_unit_test(exchanging),
		cmocka_unit_test(linking),
		cmocka_unit_test(unlinking),
		cmocka_unit_test(directories),
	};

	if (argc > 1) {
		killed_after(changes[atoi(argv[1]) / 2], atoi(argv[1]) % 2);
		return 0;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
