# SPDX-License-Identifier: Apache-2.0
"""A program opens files where another process stages: it looks for the dead, but starts no process for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.support import ROOT, disk_dir, preload_env, wait_for

LOOK_NS = 50_000_000
"""Where living processes stage, a process looks again after this time (docs/guarantees.md)."""

OPENS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000 + t.tv_nsec;
}
/* opens: each line of standard input is NS PATH: opens PATH, appends a line of 100 bytes and closes it, until NS have
   passed; answers with the number of opens and the nanoseconds since the start of main */
int main(void)
{
	long begin = now(), ns, first;
	char path[4096], line[101];
	memset(line, '+', 99);
	line[99] = '\n';
	while (scanf("%ld %4095s", &ns, path) == 2) {
		long opens = 0;
		first = now();
		do {
			int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
			if (fd < 0 || write(fd, line, 100) != 100 || close(fd) != 0)
				return perror(path), 3;
			opens++;
		} while (now() - first < ns);
		printf("%ld %ld\n", opens, now() - begin);
		fflush(stdout);
	}
	return 0;
}
"""

MEMBERS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void append(const char *path, int count)
{
	char line[101];
	int fd = open(path, O_WRONLY | O_APPEND | O_CREAT, 0644);
	for (int i = 0; i < count; i++) {
		snprintf(line, sizeof line, "line %08d ", i);
		memset(line + strlen(line), '.', 100 - strlen(line));
		line[99] = '\n';
		if (fd < 0 || write(fd, line, 100) != 100)
			_exit(3);
	}
}
/* members PATH OTHER: stages in OTHER, forks a process that stages 30 lines in PATH, and says its pid */
int main(int argc, char **argv)
{
	(void)argc;
	append(argv[2], 30);
	if (fork() == 0) {
		append(argv[1], 30);
		printf("%d\n", getpid());
		fflush(stdout);
	}
	for (;;)
		pause();
}
"""


def lines(count: int) -> bytes:
    """What `leave` and MEMBERS write."""
    return b"".join((b"line %08d " % i).ljust(99, b".") + b"\n" for i in range(count))


PLUS = b"+" * 99 + b"\n"


@pytest.fixture
def place():
    with disk_dir() as path:
        (path / "data").mkdir()
        yield path


@pytest.fixture(scope="module")
def leave(compile_c) -> Path:
    return compile_c((ROOT / "tests" / "kill" / "leave.c").read_text())


@pytest.fixture(scope="module")
def opens(compile_c) -> Path:
    return compile_c(OPENS)


@contextmanager
def running(command: list, env: dict[str, str]):
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as one:
        try:
            yield one
        finally:
            one.kill()


@contextmanager
def stages(leave: Path, path: Path, env: dict[str, str]):
    """A process that has staged 30 lines of `path` and stands still."""
    before = arenas(path.parent)
    with running([leave, "append", "pause", "0", "30", path], env) as one:
        assert one.stdout.readline() == "ready\n"
        one.send_signal(signal.SIGSTOP)
        assert path.stat().st_size < 3000, "nothing is staged"
        assert len(arenas(path.parent)) == len(before) + 1
        yield one


def arenas(data: Path) -> list[Path]:
    return sorted((data / ".fastwrite").glob("*.arena"))


def ask(one: subprocess.Popen, ns: int, path: Path) -> tuple[int, int]:
    one.stdin.write(f"{ns} {path}\n")
    one.stdin.flush()
    opens, total = one.stdout.readline().split()
    return int(opens), int(total)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("sync", ["fdatasync", "journal"])
def test_no_process_is_started_where_only_the_living_stage(library, leave, opens, place, sync):
    env = {**os.environ, **preload_env(library, f"{place}/data/**", lag_ms=60000, sync=sync)}
    calls = "trace=clone,clone3,fork,vfork,openat"
    out = place / "strace.txt"
    with stages(leave, place / "data" / "one", env), stages(leave, place / "data" / "two", env):
        preload = {key: env.pop(key) for key in ("LD_PRELOAD",)}
        traced = ["strace", "-f", "-qq", "-o", out, "-e", calls, "-E", f"LD_PRELOAD={preload['LD_PRELOAD']}"]
        with running([*traced, opens], env) as one:
            begin = time.monotonic_ns()
            for _ in range(3):
                ask(one, 0, place / "data" / "log")
                until = time.monotonic_ns() + LOOK_NS
                wait_for(lambda until=until: time.monotonic_ns() > until, "the next look")
            ns = time.monotonic_ns() - begin
            one.stdin.close()
            assert one.wait(60) == 0
        assert len(arenas(place / "data")) == 2
    found = out.read_text()
    forks = re.findall(r"^\d+ +(?:clone3?|v?fork)\(.*", found, re.MULTILINE)
    looks = [
        re.findall(rf'^\d+ +openat\(.*"{re.escape(a.name)}"', found, re.MULTILINE)
        for a in arenas(place / "data")
    ]
    assert not forks
    for of_one in looks:
        assert 2 <= len(of_one) <= ns // LOOK_NS + 1


@pytest.mark.parametrize("victim", ["alone", "member"])
def test_the_next_open_finds_the_dead_beside_the_living(library, compile_c, leave, opens, place, victim):
    """The arena of the dead is old: only its locks tell that the process has been killed since the last look."""
    target = place / "data" / "x"
    other = place / "data" / "other"
    env = {**os.environ, **preload_env(library, f"{place}/data/**", lag_ms=60000)}
    with stages(leave, place / "data" / "living", env), running([opens], env) as late:
        if victim == "alone":
            command = [leave, "append", "pause", "0", "30", target]
        else:
            command = [compile_c(MEMBERS), target, other]
        with running(command, env) as one:
            said = one.stdout.readline()
            pid = one.pid if victim == "alone" else int(said)
            one.send_signal(signal.SIGSTOP)
            staging = place / "data" / ".fastwrite"
            ask(late, 0, place / "data" / "log")
            unchanged = staging.stat().st_mtime_ns
            assert target.read_bytes() != lines(30), "nothing is staged"
            os.kill(pid, signal.SIGKILL)
            wait_for(
                lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", "the end of the process"
            )
            assert target.read_bytes() != lines(30), "somebody else was quicker"
            assert staging.stat().st_mtime_ns == unchanged
            until = time.monotonic_ns() + LOOK_NS
            wait_for(lambda: time.monotonic_ns() > until, "the next look")
            ask(late, 0, target)
            assert target.read_bytes() == lines(30) + PLUS
            assert len(arenas(place / "data")) == (1 if victim == "alone" else 2)
