// SPDX-License-Identifier: Apache-2.0
/*
 * One of several programs that read, change and write one file in turns, by a lock:
 *
 *   counter PATH WHO TURNS LOCK      LOCK: fcntl, ofd, flock, lockf
 *
 * The file begins with a number of 20 digits; a turn raises it, by small writes, and appends a line "NUMBER
 * WHO" at the end.  Without the lock's hand-over turns would be lost.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { DIGITS = 20 };

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void set_lock(int fd, const char *how, int take)
{
	struct flock l = {.l_type = take ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET};
	int r = -1;

	if (strcmp(how, "fcntl") == 0)
		r = fcntl(fd, take ? F_SETLKW : F_SETLK, &l);
	else if (strcmp(how, "ofd") == 0)
		r = fcntl(fd, take ? F_OFD_SETLKW : F_OFD_SETLK, &l);
	else if (strcmp(how, "flock") == 0)
		r = flock(fd, take ? LOCK_EX : LOCK_UN);
	else if (strcmp(how, "lockf") == 0 && lseek(fd, 0, SEEK_SET) == 0)
		r = lockf(fd, take ? F_LOCK : F_ULOCK, 0);
	if (r < 0)
		fail(how);
}

static void turn(int fd, const char *who)
{
	char digits[DIGITS + 1] = "", line[64];
	unsigned long long number;
	int n;

	if (pread(fd, digits, DIGITS, 0) != DIGITS)
		fail("pread");
	number = strtoull(digits, NULL, 10) + 1;
	snprintf(digits, sizeof digits, "%020llu", number);
	/* in pieces, by both ways to say where */
	if (pwrite(fd, digits, 10, 0) != 10 || lseek(fd, 10, SEEK_SET) != 10 ||
	    write(fd, digits + 10, 5) != 5 || write(fd, digits + 15, 5) != 5)
		fail("write");
	n = snprintf(line, sizeof line, "%llu %s\n", number, who);
	if (lseek(fd, 0, SEEK_END) < 0 || write(fd, line, 3) != 3 ||
	    write(fd, line + 3, (size_t)n - 3) != n - 3)
		fail("write at the end");
}

int main(int argc, char **argv)
{
	char line[16];
	int fd;

	if (argc != 5)
		return 2;
	fd = open(argv[1], O_RDWR);
	printf("ready\n");
	fflush(stdout);
	if (fd < 0 || !fgets(line, sizeof line, stdin))
		fail(argv[1]);
	for (int i = 0, turns = atoi(argv[3]); i < turns; i++) {
		set_lock(fd, argv[4], 1);
		turn(fd, argv[2]);
		set_lock(fd, argv[4], 0);
	}
	return close(fd) != 0;
}
