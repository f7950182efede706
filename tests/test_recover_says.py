# SPDX-License-Identifier: Apache-2.0
"""The output of `fastwrite recover`: full paths, and no line of zeros for an arena that it removed."""

from __future__ import annotations

import subprocess

import pytest
from lib.recovery_lab import COUNT, LINE, Lab, lines


def recover_text(lab: Lab, *arguments: str) -> str:
    done = subprocess.run(
        [lab.command, "recover", *arguments], cwd=lab.data, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("given", [".", ".fastwrite", "log", "../data/", "ARENA"])
def test_full_paths(lab: Lab, given: str) -> None:
    lab.leave()
    if given == "ARENA":
        given = f".fastwrite/{lab.arena().name}"
    text = recover_text(lab, given)
    assert text.splitlines()[0] == f"recovered  {lab.target}  {(COUNT - 1) * LINE} bytes"
    assert "1 recovered" in text.splitlines()[1]
    assert " 0 " not in text
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_full_path_of_what_is_put_aside(lab: Lab) -> None:
    lab.leave()
    lab.target.rename(lab.base / "elsewhere")
    text = recover_text(lab, ".")
    (orphan,) = (lab.staging / "orphans").iterdir()
    assert str(orphan) in text
    assert "1 orphaned" in text
    assert " 0 " not in text


@pytest.mark.parametrize("given", [".", ".fastwrite/aside", ".fastwrite/../.fastwrite/aside/.", "ARENA"])
def test_full_path_of_an_orphan_of_what_had_been_put_aside(lab: Lab, given: str) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    lab.recover(status=1)
    lab.target.unlink()
    (arena,) = (lab.staging / "aside").iterdir()
    text = recover_text(lab, str(arena) if given == "ARENA" else given)
    (orphan,) = (lab.staging / "orphans").iterdir()
    assert text.splitlines()[0].endswith(f"({orphan})")


def test_nothing_was_missing(lab: Lab) -> None:
    """An arena is removed because its bytes are in the file already."""
    lab.leave()
    copy = lab.arena().read_bytes()
    name = lab.arena().name
    assert recover_text(lab, "--quiet", ".") == ""
    lab.staging.mkdir(mode=0o700)
    # killed before it was used
    (lab.staging / name).write_bytes(b"\0" * len(copy))
    (lab.staging / name).chmod(0o600)
    text = recover_text(lab, "--dry-run", ".")
    assert "to be removed" in text
    assert lab.staging.exists()
    text = recover_text(lab, ".")
    assert text.splitlines()[0].startswith(f"nothing    {lab.staging}/{name}  (")
    assert text.splitlines()[1:] == ["1 arenas: nothing was missing in the files; removed"]
    assert not lab.staging.exists()


def test_live(lab: Lab) -> None:
    with subprocess.Popen(
        [lab.program, "write", "pause", "0", str(COUNT), lab.target],
        env=lab.env(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        try:
            assert program.stdout.readline() == b"ready\n"
            text = recover_text(lab, ".")
        finally:
            program.kill()
    assert text.splitlines()[0].startswith(f"live       {lab.staging}/")
    assert text.splitlines()[1] == "1 arenas: 1 live"
    assert lab.arenas()
