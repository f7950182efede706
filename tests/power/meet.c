// SPDX-License-Identifier: Apache-2.0
/*
 * meet ARENA MOUNT MICROSECONDS: waits until the log of the arena has one more epoch, then so long, and shuts
 * the file system down.  So power is lost while that epoch goes to the files.  Prints the time of
 * CLOCK_MONOTONIC just before, in nanoseconds.
 */
#include "format/arena_format.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>

#define SHUTDOWN _IOR('X', 125, uint32_t)
enum { NO_LOG_FLUSH = 2, MOST_SECONDS = 60 };

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv)
{
	int arena = argc == 4 ? open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
	int mount = argc == 4 ? open(argv[2], O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	const struct arena_header *header = mmap(NULL, sizeof *header, PROT_READ, MAP_SHARED, arena, 0);
	uint64_t wait_ns = argc == 4 ? strtoull(argv[3], NULL, 10) * 1000 : 0;
	uint64_t begun = now_ns(), first, met, loss;
	uint32_t how = NO_LOG_FLUSH;

	if (mount < 0 || header == MAP_FAILED) {
		perror("meet");
		return 1;
	}
	first = atomic_load(&header->live.order.epochs);
	while (atomic_load(&header->live.order.epochs) == first)
		if (now_ns() - begun > MOST_SECONDS * 1000000000ull) {
			fprintf(stderr, "meet: no epoch in %d s\n", MOST_SECONDS);
			return 1;
		}
	for (met = now_ns(); now_ns() - met < wait_ns;)
		;
	loss = now_ns();
	if (ioctl(mount, SHUTDOWN, &how) != 0) {
		perror("meet: shutdown");
		return 1;
	}
	printf("%llu\n", (unsigned long long)loss);
	return 0;
}
