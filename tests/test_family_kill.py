# SPDX-License-Identifier: Apache-2.0
"""A member of a family is killed at each marked step (shim/kill.h); the others go on with the same files."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from lib.recovery_lab import NOBODY, root_only
from lib.support import disk_dir, leftovers, preload_env, run_preloaded

LONG = os.environ.get("FASTWRITE_TEST_LONG") == "1"
STRIDE = 1 if LONG else 4
"""Every how many-th step; where a stride begins differs from case to case."""
HANG_SECONDS = 20
RECORD, BEFORE, AFTER, SHORT = 20, 40, 40, 15

COMMON = r"""
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *dir;
/* what the child was told is written, where the parent sees it: appended, at the position, in each short file */
static volatile unsigned *told;

static int open_in(const char *name, int flags)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, flags, 0600);
	if (fd < 0)
		_exit(3);
	return fd;
}

static int put(int fd, char who, unsigned n)
{
	char record[21];
	snprintf(record, sizeof record, "%c%018u\n", who, n);
	return write(fd, record, 20) == 20;
}

static void must_put(int fd, char who, unsigned n)
{
	if (!put(fd, who, n)) {
		perror("write");
		_exit(4);
	}
}

static void begin(char **argv)
{
	dir = argv[1];
	told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}
"""

GO_ON = (
    COMMON
    + r"""
static void short_file(char kind, int k, char who, volatile unsigned *count)
{
	char name[3] = {kind, '0' + k, 0};
	int fd = open_in(name, O_RDWR | O_CREAT | O_TRUNC);
	for (unsigned i = 0; i < 15; i++) {
		must_put(fd, who, i);
		if (count)
			++*count;
	}
	close(fd);
}

int main(int argc, char **argv)
{
	(void)argc;
	begin(argv);
	int a = open_in("a", O_RDWR | O_CREAT | O_APPEND), b = open_in("b", O_RDWR | O_CREAT), status;
	for (unsigned i = 0; i < 40; i++) {
		must_put(a, 'P', i);
		must_put(b, 'P', i);
	}
	if (fork() == 0) {
		for (int round = 0; round < 3; round++) {
			int again = open_in("a", O_WRONLY | O_APPEND);
			for (int i = 0; i < 20; i++) {
				must_put(i % 3 ? a : again, 'C', told[0]);
				++told[0];
				must_put(b, 'C', told[1]);
				++told[1];
			}
			fdatasync(a);
			short_file('c', round, 'C', &told[2 + round]);
			close(again);
		}
		exit(0);
	}
	if (waitpid(-1, &status, 0) < 0)
		return 2;
	for (unsigned i = 40; i < 80; i++) {
		must_put(a, 'P', i);
		must_put(b, 'P', i);
	}
	for (int k = 0; k < 4; k++)
		short_file('d', k, 'P', NULL);
	if (fdatasync(a) || fdatasync(b))
		return 5;
	printf("%d %u %u %u %u %u\n", WIFSIGNALED(status), told[0], told[1], told[2], told[3], told[4]);
	return 0;
}
"""
)

NO_RIGHTS = (
    COMMON
    + r"""
static void become(unsigned user)
{
	if (setgroups(0, NULL) || setgid(user) || setuid(user))
		_exit(6);
}

/* A log that root opened to append to, and workers without any right to it: the first one is killed. */
int main(int argc, char **argv)
{
	unsigned user = (unsigned)atoi(argv[2]);
	int status, first;
	(void)argc;
	begin(argv);
	int a = open_in("a", O_WRONLY | O_CREAT | O_APPEND);
	for (unsigned i = 0; i < 40; i++)
		must_put(a, 'P', i);
	if (fork() == 0) {
		become(user);
		for (; told[0] < 60; ++told[0])
			must_put(a, 'C', told[0]);
		fdatasync(a);
		exit(0);
	}
	if (waitpid(-1, &first, 0) < 0)
		return 2;
	if (strcmp(argv[3], "alone") == 0)
		become(user);
	if (fork() == 0) {
		if (strcmp(argv[3], "alone") != 0)
			become(user);
		int done = put(a, 'D', 0) ? 0 : errno;
		int synced = fdatasync(a) == 0 ? 0 : errno;
		printf("%d %u %d %d\n", WIFSIGNALED(first), told[0], done, synced);
		fflush(stdout);
		_exit(0);
	}
	if (waitpid(-1, &status, 0) < 0)
		return 2;
	close(a);
	return status != 0;
}
"""
)

SMALL = {"mem": "1M", "block": "64K", "journal": "1M"}
CASES = {
    "default": {},
    "buffered": {"flush": "buffered", "lag_ms": 1},
    "shared": {"writers": "shared", "flush": "direct"},
    "strict-journal": {"visibility": "strict", "sync": "journal"},
    "journal": {"sync": "journal", "lag_ms": 1},
}


def records(path: Path) -> list[tuple[str, int]]:
    content = path.read_bytes()
    assert len(content) % RECORD == 0, f"{path.name}: {len(content)} bytes"
    found = []
    for at in range(0, len(content), RECORD):
        match = re.fullmatch(rb"([PCD])(\d{18})\n", content[at : at + RECORD])
        assert match, f"{path.name}: {content[at : at + RECORD]!r} at {at}"
        found.append((match[1].decode(), int(match[2])))
    return found


def numbered(who: str, count: int, first: int = 0) -> list[tuple[str, int]]:
    return [(who, n) for n in range(first, first + count)]


def start(program: Path, library: Path, place: Path, step: int, settings: dict, *words: str):
    env = {**os.environ, **preload_env(library, f"{place}/**", **{**SMALL, **settings})}
    if step:
        env["FASTWRITE_KILL_CHILD_STEP"] = str(step)
    try:
        return subprocess.run(
            [program, place, *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as late:
        subprocess.run(["pkill", "-9", "-f", str(place)], check=False)
        pytest.fail(f"step {step}: hangs; {(late.stderr or b'')[-500:]!r}")


def recover(fastwrite: Path, place: Path) -> int:
    """How many bytes were still to be brought.  (An arena whose maker was killed at once may be left, with nothing.)"""
    done = subprocess.run(
        [fastwrite, "recover", "--json", place], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["bytes"]


@pytest.mark.parametrize("case", CASES)
def test_others_go_on(build_debug, fastwrite, compile_c, case):
    program = compile_c(GO_ON)
    deaths, step = 0, 1 + list(CASES).index(case) % STRIDE
    while True:
        with disk_dir() as place:
            done = start(program, build_debug / "libfastwrite.so", place, step, CASES[case])
            where = f"step {step}: {done.stdout}{done.stderr}"
            assert done.returncode == 0, where
            killed, appended, at_position, *short = map(int, done.stdout.split())
            found = records(place / "a")
            k = sum(who == "C" for who, _ in found)
            assert appended <= k <= appended + 1, where
            assert found == numbered("P", BEFORE) + numbered("C", k) + numbered("P", AFTER, BEFORE), where
            found = records(place / "b")
            k = sum(who == "C" for who, _ in found)
            assert at_position <= k <= at_position + 1, where
            assert found == numbered("P", BEFORE) + numbered("C", k) + numbered("P", AFTER, BEFORE), where
            for i, count in enumerate(short):
                path = place / f"c{i}"
                found = records(path) if path.exists() else []
                assert count <= len(found) <= count + 1, f"c{i}: {len(found)} of {count}; {where}"
                assert found == numbered("C", len(found)), where
            for i in range(4):
                assert records(place / f"d{i}") == numbered("P", SHORT), where
            assert recover(fastwrite, place) == 0, where
            assert not (place / ".fastwrite").exists(), where
            if not killed:
                break
        deaths += 1
        step += STRIDE
    assert deaths > 10, "the child passes too few steps"


ONE_REPAIRS = (
    COMMON
    + r"""
int main(int argc, char **argv)
{
	int fd, status;
	(void)argc;
	begin(argv);
	fd = open_in("b", O_RDWR | O_CREAT);
	for (unsigned i = 0; i < 40; i++)
		must_put(fd, 'P', i);
	if (fork() == 0) {
		for (; told[0] < 60; ++told[0])
			must_put(fd, 'C', told[0]);
		exit(0);
	}
	waitpid(-1, &status, 0);
	must_put(fd, 'P', 40);
	return 0;
}
"""
)


@pytest.mark.parametrize("step", [1, 4, 19])
def test_all_are_killed_while_one_repairs(build_debug, fastwrite, compile_c, step):
    """What the repair has written to the file is no change by others: recovery puts nothing aside."""
    program, deaths = compile_c(ONE_REPAIRS), 0
    while True:
        with disk_dir() as place:
            settings = {**SMALL, "lag_ms": 60000}
            env = {**os.environ, **preload_env(build_debug / "libfastwrite.so", f"{place}/**", **settings)}
            env |= {"FASTWRITE_KILL_CHILD_STEP": str(step), "FASTWRITE_KILL_STEP": str(1 + deaths)}
            done = subprocess.run(
                [program, place], env=env, capture_output=True, timeout=HANG_SECONDS, check=False
            )
            if done.returncode == 0:
                break
            assert done.returncode == -9, done.stderr
            recover(fastwrite, place)
            if (place / "b").exists():
                found = records(place / "b")
                assert found[:BEFORE] == numbered("P", min(len(found), BEFORE)), (deaths, found)
        deaths += 1
    assert deaths > 10, "the program passes too few steps"


@pytest.mark.parametrize("others", ["root", "alone"])
def test_who_may_not_repair_does_not_hang(build_debug, fastwrite, compile_c, others):
    """The log of a server whose workers may only append: somebody with the right to puts in place what a killed one
    left, or the others are told, and nothing is lost."""
    root_only()
    program = compile_c(NO_RIGHTS)
    deaths, step, refused = 0, 1, 0
    while True:
        with disk_dir() as place:
            settings = {"flush": "direct", "lag_ms": 200}
            library = build_debug / "libfastwrite.so"
            done = start(program, library, place, step, settings, str(NOBODY), others)
            where = f"step {step}: {done.stdout}{done.stderr}"
            assert done.returncode == 0, where
            killed, appended, wrote, synced = map(int, done.stdout.split())
            refused += wrote != 0
            if others == "root":
                assert (wrote, synced) == (0, 0), where
            recover(fastwrite, place)
            found = records(place / "a")
            k = sum(who == "C" for who, _ in found)
            assert appended <= k <= appended + 1, where
            expected = numbered("P", BEFORE) + numbered("C", k)
            assert found in (expected, [*expected, ("D", 0)]), where
            assert wrote != 0 or found[-1] == ("D", 0), where
            if not killed:
                break
        deaths += 1
        step += 1
    assert deaths > 5, "the child passes too few steps"
    print(f"{deaths} deaths, refused after {refused}")


MANY = """
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static int put(int fd, int n)
{
	char record[21];

	snprintf(record, sizeof record, "%019d\\n", n);
	return write(fd, record, 20) == 20;
}

int main(int argc, char **argv)
{
	int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600), n = 0;

	(void)argc;
	for (int i = 0; i < 100; i++)
		if (!put(fd, n++))
			return 2;
	for (int round = 0; round < 50; round++) {
		for (int child = 0; child < 6; child++, n++) {
			pid_t pid = fork();

			if (pid == 0) {
				if (!put(fd, n))
					_exit(3);
				raise(SIGKILL);
			}
			if (pid < 0 || waitpid(pid, NULL, 0) != pid)
				return 4;
		}
		if (!put(fd, n++))
			return 5;
	}
	return 0;
}
"""


def test_the_places_of_many_killed_members_are_free_again(library, compile_c):
    """More than there are places in the family: 300.  A child without a place would not be one of it."""
    with disk_dir() as place:
        run = run_preloaded(library, [compile_c(MANY), place / "a"], place, writers="exclusive")
        assert (run.returncode, run.stderr) == (0, "")
        assert [int(line) for line in (place / "a").read_text().split()] == list(range(450))
        assert run.stats.through == {} and run.stats.writes >= 440
        assert not leftovers(place)
