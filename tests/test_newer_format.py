# SPDX-License-Identifier: Apache-2.0
"""An older library refuses what a newer one left: it changes nothing, says so once, and runs beside it."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest
from lib.recovery_lab import COUNT, LINE, Lab, lines, rebooted, root_only, seal_header
from lib.support import assert_staged, run_preloaded

VERSION = 8  # offset in the headers of arena and log
ORDERED = {"sync": "ordered", "writers": "exclusive", "mem": "2M", "ordered_ms": 60000}


def make_newer(path: Path, *, sealed: bool = True) -> int:
    """The header says that it is of the next version; returns that.  A later header may have its checksum elsewhere,
    or nowhere."""
    content = bytearray(path.read_bytes())
    (version,) = struct.unpack_from("<I", content, VERSION)
    newest = {b"FSTWANRA": 3}.get(bytes(content[:8]), version)
    struct.pack_into("<I", content, VERSION, newest + 1)
    if sealed:
        seal_header(content)
    else:
        content[12:16] = bytes(4)
    with path.open("r+b") as file:  # (the same inode: it is no copy)
        file.write(content)
    return newest + 1


def of_all(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def leave_newer(lab: Lab, ordered: bool, **how: bool) -> tuple[Path, int]:
    lab.leave(**(ORDERED if ordered else {}))
    return lab.arena(), make_newer(lab.arena(), **how)


def status(lab: Lab, *arguments: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "FASTWRITE_PATHS": f"{lab.data}/**"}
    return subprocess.run(
        [lab.command, "status", *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("ordered", [False, True], ids=["blocks", "pages"])
@pytest.mark.parametrize("sealed", [True, False])
def test_recover_leaves_a_newer_arena_alone(lab: Lab, ordered: bool, sealed: bool) -> None:
    arena, version = leave_newer(lab, ordered, sealed=sealed)
    before = of_all(lab.data)
    assert len(before) == (3 if ordered else 2)
    done = subprocess.run([lab.command, "recover", lab.data], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (said,) = done.stderr.splitlines()
    assert str(arena) in said
    assert f"format {version}" in said
    assert "newer libfastwrite" in said
    assert of_all(lab.data) == before
    report = lab.recover("--force", lab.data, status=1)
    assert (report["failed"], report["recovered"], report["aside"]) == (1, 0, 0)
    assert of_all(lab.data) == before


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--prometheus",)])
def test_status_names_a_newer_arena(lab: Lab, arguments: tuple[str, ...]) -> None:
    arena, version = leave_newer(lab, False)
    before = of_all(lab.data)
    done = status(lab, *arguments)
    assert done.returncode == 0
    (said,) = done.stderr.splitlines()
    assert str(arena) in said
    assert f"format {version}" in said
    assert "newer libfastwrite" in said
    assert of_all(lab.data) == before


@pytest.mark.parametrize("ordered", [False, True], ids=["blocks", "pages"])
def test_programs_start_beside_a_newer_arena(lab: Lab, ordered: bool) -> None:
    """One line for each program, however often it looks; and what it writes itself is staged and arrives."""
    arena, version = leave_newer(lab, ordered)
    # (a directory that has just changed is looked at again)
    os.utime(lab.staging, ns=(0, 0))
    before = of_all(lab.data)
    others = [lab.data / f"other-{i}" for i in range(8)]
    done = run_preloaded(
        lab.library,
        [lab.program, "write", "exit", "0", str(COUNT), *others],
        lab.data,
        mem="2M",
        lag_ms=60000,
        **({"sync": "ordered", "writers": "exclusive"} if ordered else {}),
    )
    assert done.returncode == 0, done.stderr
    assert_staged(done.stats, COUNT * LINE)
    (said,) = done.stderr.splitlines()
    assert str(arena) in said
    assert f"format {version}" in said
    assert "newer libfastwrite" in said
    assert all(other.read_bytes() == lines(0, COUNT) for other in others)
    assert {name: text for name, text in of_all(lab.data).items() if not name.startswith("other")} == before


def test_a_newer_program_runs(lab: Lab) -> None:
    """Its arena is in use: nobody says a word, and nothing is done to it, also when a keeper seems to be dead."""
    program = subprocess.Popen(
        [lab.program, "write", "pause", "0", str(COUNT), lab.target], env=lab.env(), stdout=subprocess.PIPE
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        arena = lab.arena()
        version = make_newer(arena)
        with arena.open("r+b") as file:
            file.seek(1024)
            file.write(b"\1" * 512)  # what an older library takes for `keepers`
        before = of_all(lab.data)
        report = lab.recover()
        assert (report["live"], report["failed"], report["recovered"]) == (1, 0, 0)
        done = run_preloaded(
            lab.library, [lab.program, "write", "exit", "0", str(COUNT), lab.data / "other"], lab.data
        )
        assert (done.returncode, done.stderr) == (0, "")
        said = status(lab).stderr
        assert str(arena) in said
        assert f"format {version}" in said
        (lab.data / "other").unlink()
        assert of_all(lab.data) == before
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


@pytest.mark.parametrize("which", ["arena", "log", "both"])
def test_another_boot(lab: Lab, which: str) -> None:
    """A log is not replayed into files of which a newer arena may hold bytes."""
    root_only()
    lab.leave(**ORDERED)
    (log,) = lab.staging.glob("*.journal")
    named = log if which == "log" else lab.arena()
    if which != "log":
        make_newer(lab.arena())
    if which != "arena":
        content = bytearray(log.read_bytes())
        struct.pack_into("<I", content, VERSION, struct.unpack_from("<I", content, VERSION)[0] + 1)
        with log.open("r+b") as file:
            file.write(content)
    if which == "log":
        lab.arena().unlink()
    before = of_all(lab.data)
    done = rebooted(lab)
    assert done.returncode == 1, done.stdout + done.stderr
    assert str(named) in done.stderr
    assert all("newer libfastwrite" in line for line in done.stderr.splitlines())
    assert of_all(lab.data) == before
