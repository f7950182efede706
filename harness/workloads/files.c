// SPDX-License-Identifier: Apache-2.0
/*
 * lab-files: create N small files dataK, each with one open, one write and one close: the case in which
 * staging has nothing to gain.  Prints one JSON object with the time of the loop; --verify reads them
 * all back instead and exits 1 when one differs.
 */
#include "lab.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS_MAX = 101 };

/* Create them all; seconds of the loop. */
static double create_all(const char *dir, uint64_t files, size_t bytes)
{
	char *record = lab_buffer(bytes);
	char path[4096];
	uint64_t start = lab_now_ns();

	for (uint64_t n = 0; n < files; n++) {
		lab_path(path, sizeof(path), dir, "data", n);
		lab_record_fill(record, bytes, 0, n);
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

		if (fd < 0)
			lab_die("%s", path);
		if (write(fd, record, bytes) != (ssize_t)bytes || close(fd))
			lab_die("%s: write", path);
	}
	double seconds = (double)(lab_now_ns() - start) / 1e9;

	free(record);
	return seconds;
}

static void remove_all(const char *dir, uint64_t files)
{
	char path[4096];

	for (uint64_t n = 0; n < files; n++) {
		lab_path(path, sizeof(path), dir, "data", n);
		if (unlink(path))
			lab_die("%s: unlink", path);
	}
}

static int ascending(const void *a, const void *b)
{
	double one = *(const double *)a, other = *(const double *)b;

	return (one > other) - (one < other);
}

/* The loop, several times over with the removal untimed: one loop is short, and one write-back in it
 * would be the result.  Reports the median. */
static void measure(const char *dir, uint64_t files, size_t bytes, uint64_t rounds)
{
	double seconds[ROUNDS_MAX];

	for (uint64_t i = 0; i < rounds; i++) {
		if (i)
			remove_all(dir, files);
		seconds[i] = create_all(dir, files, bytes);
	}
	qsort(seconds, rounds, sizeof(seconds[0]), ascending);
	double median = seconds[rounds / 2];

	printf("{\"bytes\": %llu, \"files\": %llu, \"rounds\": %llu, \"seconds\": %.6f, "
	       "\"seconds_with_sync\": %.6f, \"seconds_least\": %.6f, \"seconds_most\": %.6f}\n",
	       (unsigned long long)(files * bytes), (unsigned long long)files, (unsigned long long)rounds,
	       median, median, seconds[0], seconds[rounds - 1]);
}

static uint64_t verify_all(const char *dir, uint64_t files, size_t bytes, char *first_bad)
{
	char *expected = lab_buffer(bytes), *found = lab_buffer(bytes + 1);
	char path[4096];
	uint64_t bad = 0;

	for (uint64_t n = 0; n < files; n++) {
		lab_path(path, sizeof(path), dir, "data", n);
		lab_record_fill(expected, bytes, 0, n);
		int fd = open(path, O_RDONLY);
		ssize_t got = fd < 0 ? -1 : read(fd, found, bytes + 1);

		if (got != (ssize_t)bytes || memcmp(found, expected, bytes)) {
			if (!bad++)
				snprintf(first_bad, 64, "data%llu", (unsigned long long)n);
		}
		if (fd >= 0)
			close(fd);
	}
	free(expected);
	free(found);
	return bad;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{"dir", required_argument, NULL, 'd'},   {"files", required_argument, NULL, 'f'},
		{"bytes", required_argument, NULL, 'b'}, {"rounds", required_argument, NULL, 'r'},
		{"verify", no_argument, NULL, 'v'},      {0},
	};
	const char *dir = NULL;
	uint64_t files = 10000, bytes = 1000, rounds = 1;
	bool verify = false;
	char first_bad[64] = "";
	int option;

	while ((option = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (option) {
		case 'd': dir = optarg; break;
		case 'f': files = lab_number("files", optarg, 1, 100000000); break;
		case 'b': bytes = lab_number("bytes", optarg, 8, 1 << 24); break;
		case 'r': rounds = lab_number("rounds", optarg, 1, ROUNDS_MAX); break;
		case 'v': verify = true; break;
		default: return LAB_EXIT_USAGE;
		}
	}
	if (!dir)
		lab_usage("--dir is missing");
	if (!verify) {
		measure(dir, files, bytes, rounds);
		return 0;
	}
	uint64_t bad = verify_all(dir, files, bytes, first_bad);

	printf("{\"ok\": %s, \"files\": %llu, \"owed_bytes\": %llu, \"verified_bytes\": %llu, "
	       "\"lost_bytes\": 0, \"corrupt_bytes\": %llu, \"unexpected_bytes\": 0, \"first_problem\": "
	       "\"%s\"}\n",
	       bad ? "false" : "true", (unsigned long long)files, (unsigned long long)(files * bytes),
	       (unsigned long long)((files - bad) * bytes), (unsigned long long)(bad * bytes), first_bad);
	return bad ? LAB_EXIT_FAILED : 0;
}
