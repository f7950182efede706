// SPDX-License-Identifier: Apache-2.0
/*
 * A daemon that logs: lines with a running number; SIGHUP makes it open its file anew.
 *
 *   logger PATH HOW      HOW: a (O_APPEND) or p (at its own position)
 *
 * Commands by lines: "w N" writes N lines and says how many there are by now; "c" goes on writing until
 * the next one comes; anything else just says how many.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t reopen;
static unsigned written;

static void on_hangup(int number)
{
	(void)number;
	reopen = 1;
}

static int open_log(char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | (argv[2][0] == 'a' ? O_APPEND : 0), 0644);

	if (fd < 0) {
		fprintf(stderr, "%s: %s\n", argv[1], strerror(errno));
		exit(1);
	}
	return fd;
}

static int log_line(char **argv, int fd)
{
	char line[128];
	int n;

	if (reopen) {
		reopen = 0;
		if (close(fd) < 0)
			exit(1);
		fd = open_log(argv);
		if (argv[2][0] != 'a')
			lseek(fd, 0, SEEK_END);
	}
	n = snprintf(line, sizeof line, "%08u a line of a log, as others write them, too\n", written);
	if (write(fd, line, (size_t)n) != n) {
		fprintf(stderr, "write: %s\n", strerror(errno));
		exit(1);
	}
	written++;
	return fd;
}

/* Unbuffered: poll must see what has not been read. */
static int read_command(char *line, size_t size)
{
	size_t n = 0;

	while (n + 1 < size && read(0, line + n, 1) == 1)
		if (line[n++] == '\n') {
			line[n] = '\0';
			return 1;
		}
	return 0;
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
	char line[64];
	int fd;

	if (argc != 3 || sigaction(SIGHUP, &act, NULL) < 0)
		return 2;
	fd = open_log(argv);
	while (read_command(line, sizeof line)) {
		if (line[0] == 'w') {
			for (int n = atoi(line + 2); n > 0; n--)
				fd = log_line(argv, fd);
		} else if (line[0] == 'c') {
			struct pollfd more = {.fd = 0, .events = POLLIN};

			while (poll(&more, 1, 0) == 0) {
				fd = log_line(argv, fd);
				if (written % 4 == 0)
					usleep(100);
			}
		}
		dprintf(1, "%u\n", written);
	}
	return close(fd) != 0;
}
