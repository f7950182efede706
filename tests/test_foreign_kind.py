# SPDX-License-Identifier: Apache-2.0
"""An arena that is found on another kind of file system than it was made on: as in the writable layer of a container,
looked at from outside.  The locks of its program cannot be seen there."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.disks import disk, run_or_skip, unmount_at_last
from lib.recovery_lab import COUNT, LINE, Lab, actions, lines
from lib.support import run_preloaded

CONTAINED = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
POLICIES = {
    "append": {},
    "write": {},
    "ordered": {"sync": "ordered", "writers": "exclusive", "mem": "2M", "ordered_ms": 60000},
}


class Layers:
    """An overlay over two directories of a disk."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("lower", "upper", "work", "merged"):
            (base / name).mkdir()
        self.lower, self.upper, self.merged = (base / name for name in ("lower", "upper", "merged"))

    @contextmanager
    def mounted(self) -> Iterator[None]:
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.base}/work"
        run_or_skip("mount", "-t", "overlay", "-o", options, "overlay", self.merged)
        try:
            yield
        finally:
            unmount_at_last(self.merged)


@pytest.fixture
def layers(lab: Lab) -> Iterator[Layers]:
    with disk("ext4", lab.base / "disk") as point:
        yield Layers(point)


@contextmanager
def living(lab: Lab, directory: Path, policy: str) -> Iterator[subprocess.Popen]:
    """A program with pids of its own, as in a container, that has staged all lines but the first.  It is dead behind
    this."""
    lab.data, lab.target = directory, directory / "log"
    mode = "append" if policy == "append" else "write"
    program = subprocess.Popen(
        [*CONTAINED, lab.program, mode, "pause", "0", str(COUNT), lab.target],
        env=lab.env(**POLICIES[policy]),
        stdout=subprocess.PIPE,
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        assert lab.target.stat().st_size <= LINE, "nothing was staged: this tests nothing"
        yield program
    finally:
        program.kill()
        program.stdout.read()  # (until the child is dead, too)
        program.wait()
        program.stdout.close()


def of_all(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def expect_refusal(lab: Lab, place: Path, *options: str) -> None:
    before = of_all(place)
    report = lab.recover(*options, place, status=1)
    assert set(actions(report)) == {"failed"}
    assert report["failed"] == len(before) - 1  # (each but the target)
    assert all("another kind of file system" in event["detail"] for event in report["events"])
    assert of_all(place) == before


@pytest.mark.parametrize("policy", POLICIES)
def test_layer_of_a_living_program(lab: Lab, layers: Layers, policy: str) -> None:
    with layers.mounted():
        with living(lab, layers.merged, policy):
            expect_refusal(lab, layers.upper)
            expect_refusal(lab, layers.upper, "--force")
            assert set(actions(lab.recover())) == {"live"}
        expect_refusal(lab, layers.upper)
        # (without force the pages of an overlay count only in the mount namespace that made them)
        lab.recover("--force", lab.data)
        assert lab.target.read_bytes() == lines(0, COUNT)
        assert not lab.staging.exists()


@pytest.mark.parametrize("policy", POLICIES)
def test_overlay_is_gone(lab: Lab, layers: Layers, policy: str) -> None:
    """The command brings the bytes of an arena that it is given by name."""
    with layers.mounted(), living(lab, layers.merged, policy):
        pass
    expect_refusal(lab, layers.upper)
    (arena,) = (layers.upper / ".fastwrite").glob("*.arena")
    lab.recover(arena, status=1)
    report = lab.recover("--force", arena)
    assert report["recovered"] == 1
    assert (layers.upper / "log").read_bytes() == lines(0, COUNT)
    assert not (layers.upper / ".fastwrite").exists()


def test_below_an_overlay(lab: Lab, layers: Layers) -> None:
    """The other way round."""
    with living(lab, layers.lower, "append"), layers.mounted():
        expect_refusal(lab, layers.merged)
    assert actions(lab.recover()) == ["recovered"]
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_programs_start_beside_it(lab: Lab, layers: Layers) -> None:
    """One line for each program, however often it looks."""
    with layers.mounted(), living(lab, layers.merged, "append"):
        before = of_all(layers.upper)
        others = [layers.upper / f"other-{i}" for i in range(4)]
        done = run_preloaded(
            lab.library, [lab.program, "write", "exit", "0", str(COUNT), *others], layers.upper, mem="1M"
        )
        assert done.returncode == 0, done.stderr
        (said,) = done.stderr.splitlines()
        assert "another kind of file system" in said
        assert all(other.read_bytes() == lines(0, COUNT) for other in others)
        assert {name: text for name, text in of_all(layers.upper).items() if "other" not in name} == before
