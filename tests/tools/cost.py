#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the library costs where it does nothing: calls on files that no rule matches, and program starts.

Instructions are counted by callgrind and are the same everywhere; times are medians of pairs, natively and
with the library in turn.  Exit status 1 when a limit is missed.  Uses the standard library only.

    PYTHONPATH=tests python -m tools.cost [--build build] [--pairs 15]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MORE_INSTRUCTIONS = {"write": 30}  # promised; the others shall not be far from it
MORE_INSTRUCTIONS_OTHERS = 60
MORE_OPEN_NS = 1000
# Path and rule are asked for by the first use.  With files staged a path is looked up before it is cut, too.
MORE_USED_NS = 2500
MORE_START_US = 2000
CALLS = ("write", "pwrite", "writev", "read", "pread", "lseek", "fstat", "large", "noted")

PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
/* calls PATH COUNT CALL: the first writes are not counted, for COUNT 0 makes them, too */
static int calls(char **argv)
{
	static char bytes[100000] = "0123456789";
	int fd = open(argv[0], O_RDWR | O_CREAT | O_TRUNC, 0644), count = atoi(argv[1]), before = 5;
	struct iovec iov = {bytes, 10};
	struct stat st;
	const char *call = argv[2];
	if (strcmp(call, "large") == 0 || strcmp(call, "noted") == 0)
		before = 0;
	for (int i = 0; i < before; i++)
		if (write(fd, bytes, 10) != 10)
			return 2;
#define REPEAT(name, what) \
	if (strcmp(call, name) == 0) { \
		for (int i = 0; i < count; i++) \
			if ((what) < 0) \
				return 3; \
		return 0; \
	}
	REPEAT("write", write(fd, bytes, 10))
	REPEAT("pwrite", pwrite(fd, bytes, 10, 0))
	REPEAT("writev", writev(fd, &iov, 1))
	REPEAT("read", read(fd, bytes, 10))
	REPEAT("pread", pread(fd, bytes, 10, 0))
	REPEAT("lseek", lseek(fd, 0, SEEK_SET))
	REPEAT("fstat", fstat(fd, &st))
	REPEAT("large", pwrite(fd, bytes, sizeof bytes, 0))
	REPEAT("noted", lseek(fd, 0, SEEK_SET))
	return 4;
}
/* opens PATH FLAGS ENGAGED WRITES: nanoseconds of one open, so many writes and close; ENGAGED: a file that
 * is staged meanwhile, or "" */
static int opens(char **argv)
{
	int flags = atoi(argv[1]), writes = atoi(argv[3]), staged = -1;
	double best = 1e18;
	if (argv[2][0]) {
		staged = open(argv[2], O_WRONLY | O_CREAT, 0644);
		for (int i = 0; i < 10; i++)
			if (write(staged, "0123456789", 10) != 10)
				return 2;
		/* what was staged just now is looked at more than once */
		for (int i = 0; i < 5; i++) {
			usleep(800000);
			close(open(argv[0], flags, 0644));
		}
	}
	for (int round = 0; round < 20; round++) {
		double from = now_ns();
		for (int i = 0; i < 2000; i++) {
			int fd = open(argv[0], flags, 0644);
			if (fd < 0)
				return 3;
			for (int w = 0; w < writes; w++)
				if (write(fd, "0123456789", 10) != 10)
					return 4;
			close(fd);
		}
		from = (now_ns() - from) / 2000;
		if (from < best)
			best = from;
	}
	printf("%.1f\n", best);
	return 0;
}
static double start(char **argv, char **env)
{
	double from = now_ns();
	int status;
	pid_t pid;
	if (posix_spawn(&pid, argv[0], NULL, NULL, argv, env) != 0)
		exit(5);
	if (waitpid(pid, &status, 0) != pid || status != 0)
		exit(6);
	return (now_ns() - from) / 1000;
}
/* starts PAIRS LD_PRELOAD=... FASTWRITE_PATHS=... PROGRAM: a line for each pair, microseconds */
static int starts(char **argv)
{
	char *native[] = {NULL}, *with[] = {argv[1], argv[2], NULL}, *program[] = {argv[3], NULL};
	for (int i = atoi(argv[0]); i > 0; i--) {
		double a = start(program, native), b = start(program, with);
		printf("%.1f %.1f\n", a, b);
	}
	return 0;
}
/* nothing: what a process that matches nothing has, after it has used files */
static int shows(char **argv)
{
	char line[4096];
	int fd = open(argv[0], O_RDWR | O_CREAT | O_TRUNC, 0644);
	FILE *file;
	for (int i = 0; i < 100; i++)
		if (write(fd, "0123456789", 10) != 10)
			return 2;
	close(fd);
	for (int which = 0; which < 2; which++) {
		file = fopen(which ? "/proc/self/maps" : "/proc/self/status", "r");
		while (file && fgets(line, sizeof line, file))
			fputs(line, stdout);
		fclose(file);
	}
	return 0;
}
int main(int argc, char **argv)
{
	(void)argc;
	switch (argv[1][0]) {
	case 'c': return calls(argv + 2);
	case 'o': return opens(argv + 2);
	case 's': return argv[1][1] == 't' ? starts(argv + 2) : shows(argv + 2);
	}
	return 1;
}
"""


@dataclass(frozen=True)
class Cost:
    """One line of the table; `limit` is for `more`."""

    what: str
    native: float
    shimmed: float
    more: float
    limit: float
    unit: str

    @property
    def kept(self) -> bool:
        return self.more <= self.limit


class Costs:
    """Measures in a directory of its own; every file below `directory`/managed belongs to the one rule."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.library = library
        self.directory = directory
        self.program = directory / "program"
        (directory / "managed").mkdir()
        (directory / "other").mkdir()
        subprocess.run(
            ["cc", "-O2", "-x", "c", "-", "-o", str(self.program)], input=PROGRAM, text=True, check=True
        )
        clean = {k: v for k, v in os.environ.items() if not k.startswith("FASTWRITE_") and k != "LD_PRELOAD"}
        self.native = clean
        self.shimmed = {
            **clean,
            "LD_PRELOAD": str(library),
            "FASTWRITE_PATHS": f"{directory}/managed/**",
        }

    def run(
        self, env: dict[str, str], *words: object, prefix: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*prefix, str(self.program), *map(str, words)],
            env=env,
            cwd=self.directory / "other",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )

    def both(self, measure: Callable[[dict[str, str]], float]) -> tuple[float, float]:
        return measure(self.native), measure(self.shimmed)

    # ---- instructions ----

    def counted(self, env: dict[str, str], call: str, count: int) -> int:
        callgrind = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
        done = self.run(env, "calls", self.directory / "other" / "a", count, call, prefix=callgrind)
        return int(re.search(r"Collected : (\d+)", done.stderr)[1])

    def instructions(self, call: str, count: int = 1000) -> Cost:
        """Of one call: a long run less a short one."""

        def of(env: dict[str, str]) -> float:
            # the short one has what happens once, too: the second write asks for path and rule
            return (self.counted(env, call, count + 10) - self.counted(env, call, 10)) / count

        native, shimmed = self.both(of)
        limit = MORE_INSTRUCTIONS.get(call, MORE_INSTRUCTIONS_OTHERS)
        return Cost(f"{call}, not matched", native, shimmed, shimmed - native, limit, "instructions")

    # ---- times ----

    def opening(self, name: str, flags: int, engaged: bool, pairs: int, writes: int = 0) -> Cost:
        path = self.directory / "other" / "b"
        path.write_bytes(b"")

        def of(env: dict[str, str]) -> float:
            staged = self.directory / "managed" / "a" if engaged else ""
            return float(self.run(env, "opens", path, flags, staged, writes).stdout)

        made = [self.both(of) for _ in range(pairs)]
        limit = MORE_USED_NS if writes or (engaged and flags & os.O_TRUNC) else MORE_OPEN_NS
        return self.paired(name, made, limit, "ns")

    def starting(self, pairs: int) -> Cost:
        done = self.run(
            self.native,
            "starts",
            pairs,
            f"LD_PRELOAD={self.library}",
            f"FASTWRITE_PATHS={self.directory}/managed/**",
            shutil.which("true") or "/bin/true",
        )
        made = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
        return self.paired("start and end of a program", made, MORE_START_US, "us")

    @staticmethod
    def paired(name: str, made: list[tuple[float, float]], limit: float, unit: str) -> Cost:
        return Cost(
            name,
            statistics.median(a for a, _ in made),
            statistics.median(b for _, b in made),
            statistics.median(b - a for a, b in made),
            limit,
            unit,
        )

    # ---- what is there ----

    def threads(self) -> Cost:
        def of(env: dict[str, str]) -> float:
            text = self.run(env, "shows", self.directory / "other" / "c").stdout
            return int(re.search(r"^Threads:\s+(\d+)", text, re.MULTILINE)[1])

        native, shimmed = self.both(of)
        return Cost("threads", native, shimmed, shimmed - native, 0, "")

    def mappings(self) -> Cost:
        """The library's own file and its zeroed data right behind it do not count."""

        def of(env: dict[str, str]) -> float:
            text = self.run(env, "shows", self.directory / "other" / "c").stdout
            count, end = 0, ""
            for line in text.splitlines():
                match = re.match(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+\s*(.*)$", line)
                if not match:
                    continue
                own = match[3].endswith("/" + self.library.name) or (match[3] == "" and match[1] == end)
                end = match[2] if own else ""
                count += not own
            return count

        native, shimmed = self.both(of)
        return Cost("mappings beside the library's", native, shimmed, shimmed - native, 0, "")


def table(costs: list[Cost]) -> str:
    rows = [("", "native", "library", "more", "at most", "")]
    for c in costs:
        rows.append(
            (
                c.what,
                f"{c.native:.0f}",
                f"{c.shimmed:.0f}",
                f"{c.more:.0f}",
                f"{c.limit:.0f} {c.unit}".strip(),
                "kept" if c.kept else "MISSED",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fastwrite-cost-", dir="/var/tmp") as directory:
        costs = Costs((options.build / "libfastwrite.so").resolve(), Path(directory).resolve())
        lines = [costs.threads(), costs.mappings(), costs.starting(options.pairs * 20)]
        for name, flags in (
            ("to read", os.O_RDONLY),
            ("to write", os.O_WRONLY | os.O_CREAT),
            ("to truncate", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            lines.append(costs.opening(f"open and close {name}", flags, False, options.pairs))
            few = max(3, options.pairs // 5)
            lines.append(costs.opening(f"open and close {name}, others staged", flags, True, few))
        for writes in (1, 2):
            name = f"open to write, {writes} write{'s' if writes > 1 else ''}, close"
            lines.append(costs.opening(name, os.O_WRONLY | os.O_CREAT, False, options.pairs, writes))
        if shutil.which("valgrind"):
            lines += [costs.instructions(call) for call in CALLS]
        else:
            print("instructions: not counted, valgrind is not installed", file=sys.stderr)
    print(table(lines))
    return 0 if all(line.kept for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
