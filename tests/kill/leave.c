// SPDX-License-Identifier: Apache-2.0
/*
 * leave MODE END FIRST COUNT PATH...
 *
 * Writes COUNT lines of 100 bytes, numbered from FIRST on, to each PATH; MODE: "write" from the end of the
 * file on, "append" by O_APPEND.  END: "kill" itself, "pause" after a line on standard output, "exit".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 100, FILES_MAX = 16 };

int main(int argc, char **argv)
{
	int fds[FILES_MAX];
	int first, count, files = argc - 5;

	if (files < 1 || files > FILES_MAX)
		return 4;
	first = atoi(argv[3]);
	count = atoi(argv[4]);
	for (int f = 0; f < files; f++) {
		fds[f] = open(argv[5 + f], O_WRONLY | O_CREAT | (argv[1][0] == 'a' ? O_APPEND : 0), 0644);
		if (fds[f] < 0 || lseek(fds[f], 0, SEEK_END) < 0) {
			perror(argv[5 + f]);
			return 3;
		}
	}
	for (int i = first; i < first + count; i++) {
		char line[LINE + 1];

		snprintf(line, sizeof line, "line %08d ", i);
		memset(line + strlen(line), '.', LINE - strlen(line));
		line[LINE - 1] = '\n';
		for (int f = 0; f < files; f++) {
			if (write(fds[f], line, LINE) != LINE) {
				perror("write");
				return 3;
			}
		}
	}
	if (argv[2][0] == 'k')
		kill(getpid(), SIGKILL);
	if (argv[2][0] == 'p') {
		puts("ready");
		fflush(stdout);
		pause();
	}
	return 0;
}
