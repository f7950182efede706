# SPDX-License-Identifier: Apache-2.0
"""On which machine the tests ran, in one line.  A red run on a slow or busy machine can be judged by it.

`PYTHONPATH=tests python3 -m lib.speed LOAD` prints the line; LOAD is the load average at the start.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from lib.support import clean_environment, disk_base, disk_dir, file_system

# Prints nanoseconds of an append (the median of many batches) and of an append with a sync (the median).
SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 500, BATCHES_MAX = 200, SYNCS_MIN = 3, SYNCS_MAX = 200, MS = 1000000 };

static long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;

	return (x > y) - (x < y);
}

static long median(long *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, by_size);
	return values[count / 2];
}

static void append(int fd)
{
	static const char record[100];

	if (write(fd, record, sizeof record) != sizeof record)
		exit(1);
}

int main(int argc, char **argv)
{
	static long appends[BATCHES_MAX], syncs[SYNCS_MAX];
	int fd = argc > 1 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
	int batches = 0, count = 0;
	long begin = now_ns(), last = begin, now;

	if (fd < 0)
		return 1;
	for (; batches < BATCHES_MAX && last - begin < 50 * MS; last = now) {
		for (int i = 0; i < BATCH; i++)
			append(fd);
		now = now_ns();
		appends[batches++] = (now - last) / BATCH;
	}
	if (fsync(fd))
		return 1;
	begin = last = now_ns();
	for (; count < SYNCS_MIN || (count < SYNCS_MAX && last - begin < 100 * MS); last = now) {
		append(fd);
		if (fsync(fd))
			return 1;
		now = now_ns();
		syncs[count++] = now - last;
	}
	printf("%ld %ld\n", median(appends, batches), median(syncs, count));
	return 0;
}
"""
LIMIT = 120  # seconds; ends only what hangs


def costs() -> tuple[float, float] | None:
    """Of an append of 100 bytes, and of one with fsync, in microseconds.  None: they cannot be measured."""
    try:
        with tempfile.TemporaryDirectory(prefix="fastwrite-speed-") as made, disk_dir() as place:
            subprocess.run(
                ["cc", "-O1", "-x", "c", "-", "-o", f"{made}/appends"],
                input=SOURCE,
                text=True,
                capture_output=True,
                check=True,
                timeout=LIMIT,
            )
            done = subprocess.run(
                [f"{made}/appends", place / "file"],
                env=clean_environment(),
                capture_output=True,
                text=True,
                check=True,
                timeout=LIMIT,
            )
    except (OSError, subprocess.SubprocessError):
        return None
    append, sync = map(int, done.stdout.split())
    return append / 1000, sync / 1000


def machine(load_at_start: float) -> str:
    """The line."""
    base = disk_base()
    found = costs()
    cost = "unknown"
    if found:
        cost = f"append of 100 bytes {found[0]:.2f} us, with fsync {found[1]:.1f} us"
    return (
        f"machine: {cost} ({kind(base)} at {base}); {len(os.sched_getaffinity(0))} processors, "
        f"{platform.system()} {platform.release()}; "
        f"load {load_at_start:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    )


def kind(path: Path) -> str:
    """Of a file system; `stat` has one name for all of ext2, ext3 and ext4."""
    try:
        device = path.stat().st_dev
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if line.split()[2] == f"{os.major(device)}:{os.minor(device)}":
                return line.partition(" - ")[2].split()[0]
        return file_system(path)
    except (OSError, subprocess.SubprocessError):
        return "unknown file system"


if __name__ == "__main__":
    print(machine(float(sys.argv[1])))
