// SPDX-License-Identifier: Apache-2.0
/*
 * Two programs that write one file at positions, and readers in other processes.
 *
 *   regions write PATH WHO WRITERS COUNT PAUSE_US    record i of WHO is the file's record i * WRITERS + WHO
 *   regions read PATH TOTAL HOW                      HOW: read or mmap
 *
 * A reader looks at the whole file until all TOTAL records are there.  What it sees of a record is nothing
 * (the end of the file, a hole) or the right bytes, and what it has once seen stays.  It prints how many
 * records it saw before the last one had come.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RECORD = 100 };

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void fill(char *record, unsigned number)
{
	char text[16];
	int n = snprintf(text, sizeof text, "%08u ", number);

	for (int i = 0; i < RECORD - 1; i++)
		record[i] = text[i % n];
	record[RECORD - 1] = '\n';
}

static int run_writer(char **argv)
{
	unsigned who = (unsigned)atoi(argv[3]), writers = (unsigned)atoi(argv[4]),
		 count = (unsigned)atoi(argv[5]);
	int fd = open(argv[2], O_RDWR | O_CREAT, 0644);
	char record[RECORD], line[16];

	printf("ready\n");
	fflush(stdout);
	if (fd < 0 || !fgets(line, sizeof line, stdin))
		fail(argv[2]);
	for (unsigned i = 0; i < count; i++) {
		unsigned number = i * writers + who;

		fill(record, number);
		/* by both ways to say where */
		if (i % 3 == 0) {
			if (lseek(fd, (off_t)number * RECORD, SEEK_SET) < 0 ||
			    write(fd, record, RECORD) != RECORD)
				fail("write");
		} else if (pwrite(fd, record, RECORD, (off_t)number * RECORD) != RECORD) {
			fail("pwrite");
		}
		if (atoi(argv[6]))
			usleep((unsigned)atoi(argv[6]));
	}
	if (close(fd) < 0)
		fail("close");
	return 0;
}

/* Records of bytes[0..size) that are there, each once; `seen` remembers. */
static unsigned look(const char *bytes, size_t size, char *seen, unsigned total)
{
	unsigned count = 0;

	for (unsigned i = 0; i < total; i++) {
		char want[RECORD];
		unsigned right = 0, none = 0;

		fill(want, i);
		for (unsigned k = 0; k < RECORD; k++) {
			char c = (size_t)i * RECORD + k < size ? bytes[(size_t)i * RECORD + k] : 0;

			right += c == want[k];
			none += c == 0;
		}
		if (right + none != RECORD) {
			fprintf(stderr, "record %u is wrong\n", i);
			exit(1);
		}
		if (seen[i] && right != RECORD) {
			fprintf(stderr, "record %u was there, and is gone\n", i);
			exit(1);
		}
		seen[i] = right == RECORD;
		count += right == RECORD;
	}
	return count;
}

static int run_reader(char **argv)
{
	unsigned total = (unsigned)atoi(argv[3]), count = 0, early = 0;
	size_t room = (size_t)total * RECORD;
	char *buffer = malloc(room), *seen = calloc(total, 1);
	int fd;

	while ((fd = open(argv[2], O_RDONLY)) < 0)
		usleep(1000);
	while (count < total) {
		if (strcmp(argv[4], "mmap") == 0) {
			struct stat st;
			char *map;

			if (fstat(fd, &st) < 0)
				fail("fstat");
			if (st.st_size == 0)
				continue;
			map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
			if (map == MAP_FAILED)
				fail("mmap");
			/* twice: what comes through a mapping that is there already */
			look(map, (size_t)st.st_size, seen, total);
			usleep(2000);
			count = look(map, (size_t)st.st_size, seen, total);
			munmap(map, (size_t)st.st_size);
		} else {
			ssize_t n = pread(fd, buffer, room, 0);

			if (n < 0)
				fail("pread");
			count = look(buffer, (size_t)n, seen, total);
		}
		if (count < total)
			early = count;
		usleep(1000);
	}
	printf("%u\n", early);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 7 && strcmp(argv[1], "write") == 0)
		return run_writer(argv);
	if (argc == 5 && strcmp(argv[1], "read") == 0)
		return run_reader(argv);
	return 2;
}
