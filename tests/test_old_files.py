# SPDX-License-Identifier: Apache-2.0
"""What programs of earlier versions left is recovered by this one (tests/tools/old_files.py)."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from lib.recovery_lab import Lab, actions, lines
from lib.support import ROOT, run_preloaded
from tools import old_files

SETS = sorted(
    path.name.removeprefix("left-").removesuffix(".tar.xz") for path in old_files.DATA.glob("left-*")
)
KILLED = [name for name in SETS if not name.startswith("log-")]
POWERLESS = [name for name in SETS if name.startswith("log-")]


def versions_in(header: str, *names: str) -> set[int]:
    text = (ROOT / "shim" / "format" / header).read_text()
    return {int(re.search(rf"\b{name} = (\d+)", text)[1]) for name in names}


def test_there_are_files_of_each_version() -> None:
    """A version that this library writes has a set, before the next one comes."""
    arenas = versions_in("arena_format.h", "ARENA_VERSION", "ARENA_VERSION_PAGES")
    logs = versions_in("wal_format.h", "WAL_VERSION")
    assert {int(name.rsplit("-", 1)[1]) for name in KILLED} >= arenas
    assert {int(name.rsplit("-", 1)[1]) for name in POWERLESS} >= logs


def expect_whole(directory: Path, noted: dict) -> None:
    for name, size in noted["expected"].items():
        content = (directory / name).read_bytes()
        assert len(content) == size
        assert content == lines(0, -(-size // 100))[:size], name


def leftovers(directory: Path) -> list[str]:
    return sorted(
        str(p.relative_to(directory)) for p in directory.rglob("*") if p.name not in ("first", "second")
    )


def expect_cut_short(directory: Path, noted: dict) -> None:
    """The sets are a test of something."""
    for name, size in noted["expected"].items():
        assert (directory / name).stat().st_size in (0, 100) and size > 100


@pytest.mark.parametrize("name", KILLED)
def test_killed(lab: Lab, name: str) -> None:
    noted = old_files.unpack(name, lab.data, same_boot=True)
    expect_cut_short(lab.data, noted)
    assert actions(lab.recover()) == ["recovered"] * 2
    expect_whole(lab.data, noted)
    assert leftovers(lab.data) == []


@pytest.mark.parametrize("name", [name for name in KILLED if not name.startswith("pages-")])
def test_killed_before_another_boot(lab: Lab, name: str) -> None:
    noted = old_files.unpack(name, lab.data, same_boot=False)
    assert actions(lab.recover()) == ["recovered"] * 2
    expect_whole(lab.data, noted)
    assert leftovers(lab.data) == []


@pytest.mark.parametrize("name", POWERLESS)
def test_power_was_lost(lab: Lab, name: str) -> None:
    noted = old_files.unpack(name, lab.data, same_boot=False)
    expect_cut_short(lab.data, noted)
    assert actions(lab.recover()) == ["recovered"] * 2
    expect_whole(lab.data, noted)
    assert leftovers(lab.data) == []


@pytest.mark.parametrize("name", SETS)
def test_the_next_program_recovers(lab: Lab, name: str) -> None:
    """And goes on behind it."""
    noted = old_files.unpack(name, lab.data, same_boot=name in KILLED)
    size = noted["expected"]["first"]
    done = run_preloaded(
        lab.library, [lab.program, "write", "exit", str(size // 100), "60", lab.data / "first"], lab.data
    )
    assert done.returncode == 0, done.stderr
    assert all("recovery: " in line for line in done.stderr.splitlines())
    noted["expected"]["first"] += 6000
    expect_whole(lab.data, noted)
    assert leftovers(lab.data) == []


@pytest.mark.parametrize("name", KILLED)
def test_status_counts_what_waits(lab: Lab, name: str) -> None:
    old_files.unpack(name, lab.data, same_boot=True)
    env = {**os.environ, "FASTWRITE_PATHS": f"{lab.data}/**"}
    done = subprocess.run(
        [lab.command, "status"], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    waiting = [line.split() for line in done.stdout.splitlines() if line.startswith("waiting")]
    assert [Path(words[1]).name for words in waiting] == ["first", "second"]


# (Pages have no checksum: they count in the same boot only.)
@pytest.mark.parametrize("name", [name for name in SETS if not name.startswith("pages-")])
def test_checksums_are_those_of_the_files_as_they_were(lab: Lab, name: str) -> None:
    """The tool changes identities only: with one staged byte changed, nothing is recovered."""
    old_files.unpack(name, lab.data, same_boot=name in KILLED)
    (path,) = (p for p in lab.staging.iterdir() if p.suffix in (".arena", ".journal"))
    content = bytearray(path.read_bytes())
    content[content.index(b"line 00000001")] ^= 1
    path.write_bytes(content)
    is_arena = path.suffix == ".arena"
    lab.recover(status=1 if is_arena else 0)
    # (an epoch counts as a whole)
    got = [b"line 00000001" in (lab.data / name).read_bytes() for name in ("first", "second")]
    assert sum(got) == (1 if is_arena else 0)
    assert struct.unpack_from("<I", content, old_files.VERSION)[0] == int(name.rsplit("-", 1)[1])
