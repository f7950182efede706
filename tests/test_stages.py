# SPDX-License-Identifier: Apache-2.0
"""Limits, cancelled threads and wrong calls at each stage of one file: unstaged, attached, detached, attached again."""

from __future__ import annotations

import pytest
from lib.processes import compile_other
from lib.support import assert_staged, disk_dir, run_native, run_preloaded

MODES = {
    "adaptive": {"adapt": "on"},
    "at-once": {"adapt": "off"},
    "strict": {"adapt": "on", "visibility": "strict"},
    "direct": {"adapt": "on", "flush": "direct", "writers": "exclusive"},
}

# The first stage at which it is done, so that something is staged later.  A file that is to be staged while a limit
# leaves no room for the arena is bypassed.  A write that was cancelled in the kernel counts as under way for good, and
# the descriptor stays unresolved.
FIRST = {("size", "at-once"): 1, ("descriptors", "at-once"): 1, ("cancel", "at-once"): 1}


def first_stage(what: str, mode: str) -> int:
    return FIRST.get((what, mode), 2 if what == "cancel" else 0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ["size", "descriptors", "cancel", "wrong"])
def test_same_at_each_stage(library, compile_c, what, mode):
    program = compile_other(compile_c, "stages")
    with disk_dir() as place:
        (place / "data").mkdir()
        file = place / "data" / "file"
        command = [program, file, what, first_stage(what, mode)]
        native = run_native(command, place)
        assert (native.returncode, native.stderr) == (0, "")
        text = file.read_bytes()
        file.unlink()
        run = run_preloaded(library, command, place, paths=f"{place}/data/**", **MODES[mode])
        assert (run.returncode, run.stderr) == (0, "")
        assert run.stdout == native.stdout
        if what == "cancel":  # how far the cancelled thread came differs
            lines = file.read_bytes().split(b"\n")[:-1]
            assert [int(line) for line in lines] == list(range(len(lines)))
        else:
            assert file.read_bytes() == text
        assert_staged(run.stats, 1_000_000)


@pytest.mark.parametrize("mode", MODES)
def test_cancelled_before_anything_is_staged(library, compile_c, mode):
    program = compile_other(compile_c, "stages")
    with disk_dir() as place:
        file = place / "file"
        native = run_native([program, file, "cancel", 0], place)
        run = run_preloaded(library, [program, file, "cancel", 0], place, **MODES[mode])
        assert (run.returncode, run.stdout, run.stderr) == (0, native.stdout, "")
        lines = file.read_bytes().split(b"\n")[:-1]
        assert [int(line) for line in lines] == list(range(len(lines)))
