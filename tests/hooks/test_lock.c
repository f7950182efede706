// SPDX-License-Identifier: Apache-2.0
/* Locks hand a file from one process to another. */
#include "hook_test.h"

#include <sys/file.h>

static int lock_whole(int fd, int cmd, short type)
{
	struct flock whole = {.l_type = type, .l_whence = SEEK_SET};

	return fcntl(fd, cmd, &whole);
}

/* Two processes take turns under a lock, each appending at the end that it finds. */
static void take_turns(int cmd, bool posix)
{
	enum { TURNS = 30 };
	int fd = open_new("a", 0);
	char record[RECORD];
	size_t size;
	char *bytes;
	unsigned next[2] = {0, 500};
	pid_t pid;

	OK(close(fd));
	fflush(stdout);
	pid = fork();
	fd = open("a", O_RDWR | O_CLOEXEC);
	for (unsigned i = 0; i < TURNS; i++) {
		if (posix)
			CHILD(lock_whole(fd, cmd, F_WRLCK) == 0);
		else
			CHILD(flock(fd, LOCK_EX) == 0);
		CHILD(lseek(fd, 0, SEEK_END) >= 0);
		for (unsigned j = 0; j < 3; j++) {
			record_fill(record, (pid == 0 ? 500 : 0) + i * 3 + j);
			CHILD(write(fd, record, RECORD) == RECORD);
		}
		if (posix)
			CHILD(lock_whole(fd, cmd, F_UNLCK) == 0);
		else
			CHILD(flock(fd, LOCK_UN) == 0);
	}
	CHILD(close(fd) == 0);
	if (pid == 0)
		_exit(0);
	check_exit(pid, 0);
	bytes = file_bytes("a", &size);
	assert_int_equal(size, 2 * TURNS * 3 * RECORD);
	for (size_t at = 0; at < size; at += RECORD) {
		unsigned who = atoi(bytes + at) >= 500;

		check_records(bytes + at, next[who]++, 1);
	}
	free(bytes);
	OK(unlink("a"));
}

static void locks(void **state)
{
	int fd = open_staged("a", 0), second;

	(void)state;
	OK(lock_whole(fd, F_SETLK, F_WRLCK));
	write_records(fd, RECORDS, RECORDS);
	OK(lock_whole(fd, F_SETLK, F_UNLCK));
	check_file("a", 0, 2 * RECORDS);
	OK(lockf(fd, F_TLOCK, 0));
	write_records(fd, 2 * RECORDS, RECORDS);
	OK(lockf(fd, F_ULOCK, 0));
	OK(flock(fd, LOCK_EX));
	second = OK(open("a", O_RDWR));
	FAILS(flock(second, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	write_records(fd, 3 * RECORDS, RECORDS);
	OK(close(second));
	OK(close(fd));
	check_file("a", 0, 4 * RECORDS);
	OK(unlink("a"));
}

/* A lock must last as long as the program does not close: no descriptor of the library may end it. */
static void lock_lasts(void **state)
{
	struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	int fd = open_staged("a", 0);
	pid_t pid;

	(void)state;
	OK(lock_whole(fd, F_SETLK, F_WRLCK));
	for (unsigned i = 1; i < 200; i++) {
		write_records(fd, i * RECORDS, RECORDS);
		if (i % 50 == 0)
			OK(fdatasync(fd));
	}
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		int other = open("a", O_RDWR);

		CHILD(fcntl(other, F_GETLK, &whole) == 0);
		CHILD(whole.l_type == F_WRLCK);
		_exit(0);
	}
	check_exit(pid, 0);
	OK(close(fd));
	check_file("a", 0, 200 * RECORDS);
	OK(unlink("a"));
}

/* A lock file guards another file: whoever gets the lock next sees what was written, however the lock was
 * given up. */
static void a_lock_file_is_given_up(void **state)
{
	int null = OK(open("/dev/null", O_RDWR | O_CLOEXEC)), fd, lock;

	(void)state;
	OK(mkdir("outside", 0755)); /* which no rule has */
	for (int how = 0; how < 4; how++) {
		lock = OK(open("outside/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
		OK(lock_whole(lock, F_SETLK, F_WRLCK));
		fd = open_staged("a", 0);
		if (how == 0)
			OK(close(lock));
		else if (how == 1)
			OK(dup2(null, lock));
		else if (how == 2)
			OK(dup3(null, lock, O_CLOEXEC));
		else
			OK(close_range((unsigned)lock, (unsigned)lock, 0));
		if (kernel_size("a") != RECORDS * RECORD)
			fail_msg("given up in way %d: %ld bytes", how, (long)kernel_size("a"));
		if (how == 1 || how == 2)
			OK(close(lock));
		OK(close(fd));
		OK(unlink("a"));
	}
	OK(close(null));
	OK(unlink("outside/lock"));
	OK(rmdir("outside"));
}

static void posix_turns(void **state)
{
	(void)state;
	take_turns(F_SETLKW, true);
}
static void ofd_turns(void **state)
{
	(void)state;
	take_turns(F_OFD_SETLKW, true);
}
static void flock_turns(void **state)
{
	(void)state;
	take_turns(0, false);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(locks),
		cmocka_unit_test(lock_lasts),
		cmocka_unit_test(a_lock_file_is_given_up),
		cmocka_unit_test(posix_turns),
		cmocka_unit_test(flock_turns),
		cmocka_unit_test(ofd_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
