// SPDX-License-Identifier: Apache-2.0
/*
 * One of several programs that append to one file at the same time:
 *
 *   append PATH WHO COUNT PAUSE_US
 *
 * Says "ready", waits for a line, and appends COUNT records "WHO NUMBER LENGTH xxx...\n" of different
 * lengths, each with one write.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	char line[16], record[3000];
	int fd;

	if (argc != 5)
		return 2;
	fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	printf("ready\n");
	fflush(stdout);
	if (fd < 0 || !fgets(line, sizeof line, stdin))
		return 1;
	for (unsigned n = 0, count = (unsigned)atoi(argv[3]); n < count; n++) {
		/* mostly short ones, some of more than half a page */
		unsigned size = 30 + n * 37 % 170 + (n % 50 == 49 ? 2500 : 0);
		int used = snprintf(record, sizeof record, "%s %u %u ", argv[2], n, size);
		ssize_t done;

		memset(record + used, 'x', size - (unsigned)used);
		record[size - 1] = '\n';
		done = write(fd, record, size);
		if (done != (ssize_t)size) {
			fprintf(stderr, "write: %zd, %s\n", done, strerror(errno));
			return 1;
		}
		if (atoi(argv[4]))
			usleep((unsigned)atoi(argv[4]));
	}
	return close(fd) != 0;
}
