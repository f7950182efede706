# SPDX-License-Identifier: Apache-2.0
"""A program that starts while another one recovers waits, and finds the file complete."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lib.recovery_lab import COUNT, actions, lines
from lib.support import disk_dir, preload_env, run_preloaded, too_slow, wait_for

LEAVE = Path(__file__).resolve().parent / "kill" / "leave.c"
LINES = 1000
BREAK = Path("/proc/sys/fs/lease-break-time")
READER = """
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct stat st;
	int fd = open(argv[1], O_RDWR);
	if (fd < 0 || argc != 2 || write(1, "open\\n", 5) != 5 || fstat(fd, &st) != 0)
		return 9;
	printf("%lld\\n", (long long)st.st_size);
	return 0;
}
"""


def is_open_elsewhere(path: Path) -> bool:
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if Path(os.readlink(entry)) == path and int(entry.parts[2]) != os.getpid():
                return True
        except OSError:
            continue  # closed meanwhile, or somebody else's
    return False


def test_an_open_waits_for_a_recovery(library, compile_c):
    with disk_dir() as place:
        log = place / "log"
        run = run_preloaded(
            library, [compile_c(LEAVE.read_text()), "append", "kill", 0, LINES, log], place, lag_ms=60000
        )
        assert run.returncode == -9, run.stderr
        assert log.stat().st_size < LINES * 100, "nothing was staged"
        (arena,) = (place / ".fastwrite").glob("*.arena")
        with arena.open("rb") as recoverer:
            # as a process in the middle of recovering it
            fcntl.flock(recoverer, fcntl.LOCK_EX)
            reader = subprocess.Popen(
                [compile_c(READER), log],
                env=preload_env(library, f"{place}/**"),
                stdout=subprocess.PIPE,
                text=True,
            )
            wait_for(lambda: is_open_elsewhere(arena), "the start to meet the arena")
            time.sleep(0.3)  # (a program that does not wait has ended by then)
            assert reader.poll() is None
        out, _ = reader.communicate(timeout=60)
        assert (reader.returncode, out) == (0, f"open\n{LINES * 100}\n")
        assert log.stat().st_size == LINES * 100


def test_a_living_arena_is_not_waited_for(library, compile_c):
    with disk_dir() as place:
        log = place / "log"
        owner = subprocess.Popen(
            [compile_c(LEAVE.read_text()), "append", "pause", "0", str(LINES), log],
            env=preload_env(library, f"{place}/**", lag_ms=60000),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert owner.stdout.readline() == "ready\n"
            begin = time.monotonic()
            run = run_preloaded(library, [compile_c(READER), log], place)
            assert run.returncode == 0
            took = time.monotonic() - begin
            assert took < 8, too_slow(took, "it waited as if for a recovery")
        finally:
            owner.terminate()
            owner.wait()


@pytest.fixture
def short_break():
    """Unanswered leases end sooner than after 45 s, but later than most waiting does."""
    if not os.access(BREAK, os.W_OK):
        pytest.skip("the time for leases cannot be set")
    old = BREAK.read_text()
    try:
        BREAK.write_text("8")
        yield
    finally:
        BREAK.write_text(old)


def test_a_lease_that_nobody_answers_for(lab, short_break):
    """A killed flush leaves its lease on a description that an idle worker keeps open."""
    lab.leave()
    with lab.target.open("r+b") as held:
        # (told by no signal)
        fcntl.fcntl(held, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(held, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert actions(lab.recover()) == ["recovered"]
    assert lab.target.read_bytes() == lines(0, COUNT)
