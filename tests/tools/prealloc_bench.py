# SPDX-License-Identifier: Apache-2.0
"""What prealloc_mode does for syncs: appends of 4 KiB with an fdatasync each, in turns, on a disk of its own.

    PYTHONPATH=tests python -m tools.prealloc_bench [--records N] [--rounds N] [--dir DIR] [--library FILE] [--image]

For the native program and every mode: time and journal commits per sync, medians over the rounds.  With --image on ext4
in a loop device below DIR (needs root); else DIR itself, where others may commit, too.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from lib import disks
from lib.support import ROOT, disk_base, preload_env

PROGRAM = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}
int main(int argc, char **argv)
{
	int count = atoi(argv[2]), fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0644);
	double *us = calloc((size_t)count, sizeof *us), begin, all;
	char record[4096];
	(void)argc;
	memset(record, 'x', sizeof record);
	all = now();
	for (int i = 0; i < count; i++) {
		begin = now();
		if (write(fd, record, sizeof record) != sizeof record || fdatasync(fd) != 0)
			return perror("record"), 1;
		us[i] = now() - begin;
	}
	all = now() - all;
	qsort(us, (size_t)count, sizeof *us, compare);
	printf("%.1f %.1f %.1f\n", us[count / 2], us[count * 99 / 100], all / count);
	return close(fd) != 0;
}
"""
LEGS: dict[str, dict | None] = {
    "native": None,
    "off": {"prealloc_mode": "off"},
    "keep": {"prealloc_mode": "keep"},
    "zero": {"prealloc_mode": "zero"},
}


def journal_of(path: Path) -> Path | None:
    """Where the kernel counts the commits of the ext4 that holds `path`."""
    source = subprocess.run(
        ["findmnt", "-no", "SOURCE", "-T", path], capture_output=True, text=True, check=False
    ).stdout.strip()
    return next(iter(Path("/proc/fs/jbd2").glob(f"{Path(source).name}-*/info")), None)


def commits(journal: Path | None) -> int:
    return int(re.match(r"(\d+) transactions", journal.read_text())[1]) if journal else 0


def one(leg: str, program: Path, library: Path, place: Path, records: int) -> list[float]:
    """Median, 99th percentile and mean in microseconds, and commits per sync."""
    data, journal = place / "data", journal_of(place)
    data.mkdir(exist_ok=True)
    settings = LEGS[leg]
    env = {} if settings is None else preload_env(library, f"{data}/**", writers="exclusive", **settings)
    before = commits(journal)
    done = subprocess.run(
        [program, data / "log", str(records)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    made = commits(journal) - before
    size = (data / "log").stat().st_size
    if size != records * 4096:
        sys.exit(f"{leg}: {size} bytes, not {records * 4096}")
    (data / "log").unlink()
    return [*map(float, done.stdout.split()), made / records if journal else float("nan")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=disk_base())
    parser.add_argument("--library", type=Path, default=ROOT / "build" / "libfastwrite.so")
    parser.add_argument("--image", action="store_true")
    args = parser.parse_args()
    results: dict[str, list[list[float]]] = {leg: [] for leg in LEGS}
    with ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="fastwrite-bench-", dir=args.dir))
        )
        program = place / "program"
        subprocess.run(["cc", "-O2", "-x", "c", "-", "-o", program], input=PROGRAM, text=True, check=True)
        where = stack.enter_context(disks.disk("ext4", place / "disk", 1 << 30)) if args.image else place
        for round_ in range(args.rounds + 1):
            for leg in LEGS:
                values = one(leg, program, args.library, where, args.records)
                if round_ > 0:  # the first warms up
                    results[leg].append(values)
    print(
        f"{args.records} records of 4 KiB, fdatasync after each; medians of {args.rounds} rounds, microseconds"
    )
    print(f"{'':8} {'median':>8} {'p99':>8} {'mean':>8} {'commits':>8}")
    for leg, rounds in results.items():
        columns = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"{leg:8} {columns[0]:8.1f} {columns[1]:8.1f} {columns[2]:8.1f} {columns[3]:8.3f}")


if __name__ == "__main__":
    main()
