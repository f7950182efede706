# SPDX-License-Identifier: Apache-2.0
"""What members of a family have staged is in the files before one of them hands anything to a process outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from lib.processes import Program, compile_other
from lib.support import assert_staged, disk_dir, run_native, run_preloaded

WRITERS = {"positions": "p", "appends": "a", "stream": "s"}
STARTERS = ("system", "popen", "spawn", "fork", "vfork")
FIRST = 300_000  # bytes of a member's first round


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir() if path.name.isdigit()}


@pytest.fixture
def starter(compile_c) -> Path:
    return compile_other(compile_c, "starter")


@pytest.mark.parametrize("members", [1, 4])
@pytest.mark.parametrize("how", STARTERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_member_starts_a_program(library, starter, writer, how, members):
    command = [starter, WRITERS[writer], how, members, 4]
    with disk_dir() as place:
        assert run_native(command, place).returncode == 0
        native = contents(place)
    with disk_dir() as place:
        run = run_preloaded(library, command, place, lag_ms=60000)
        assert (run.returncode, run.stderr) == (0, "")
        assert_staged(run.stats, members * FIRST - 2000)
        assert contents(place) == native


@pytest.mark.parametrize("how", STARTERS)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_member_starts_a_program_while_the_others_are_stopped(library, starter, writer, how):
    """Their locks are free: their bytes are put in place without them.  (One round, and a block that holds all of it:
    else a member may be stopped in the middle of a flush.)"""
    command = [starter, WRITERS[writer], how, 2, 1]
    with disk_dir() as place:
        assert run_native(command, place).returncode == 0
        native = contents(place)
    with disk_dir() as place:
        run = run_preloaded(library, [*command, "stop"], place, lag_ms=60000, block="1M")
        assert (run.returncode, run.stderr) == (0, "")
        assert_staged(run.stats, 2 * FIRST - 2000)
        assert contents(place) == native


@pytest.mark.parametrize("how", ["lock", "close"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_member_gives_a_lock_back(library, starter, writer, how):
    """A lock may guard files that only other members have open."""
    rounds = 3
    with (
        disk_dir() as place,
        Program(library, [starter, WRITERS[writer], how, 2, rounds], place, lag_ms=60000) as run,
    ):
        for n in range(rounds):
            run.hear()
            sizes = {name: len(text) for name, text in contents(place).items()}
            assert sizes == dict.fromkeys("01", FIRST + n * 700)
            run.process.stdin.write(".")
            run.process.stdin.flush()
        run.finish()
        assert_staged(run.stats, 2 * FIRST - 2000)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_member_ends(library, starter, writer):
    """The process that waits for it is outside of the family."""
    with (
        disk_dir() as place,
        Program(library, [starter, WRITERS[writer], "exit", 2, 1], place, lag_ms=60000) as run,
    ):
        # (the members keep its standard streams)
        assert os.waitstatus_to_exitcode(os.waitpid(run.pid, 0)[1]) == 0
        sizes = {name: len(text) for name, text in contents(place).items()}
        assert sizes == dict.fromkeys("01", FIRST)
        run.process.returncode = 0
        run.finish()
        assert_staged(run.stats, 2 * FIRST - 2000)
