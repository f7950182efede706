# SPDX-License-Identifier: Apache-2.0
"""A little of what `make soak-surroundings` does with containers; and tests of what looks at the files there."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import pytest
from lib.kill_model import APPEND, POSITIONAL, RECORD, Op
from lib.support import wait_for
from power import system

from surroundings import container, rootfs
from surroundings.life import SHARED_NAME, Files, Shared
from surroundings.run import CACHE, run, start

WHY_NOT = container.missing()
contained = pytest.mark.skipif(bool(WHY_NOT), reason=f"no containers: {WHY_NOT}")


@contained
def test_only_processes_come_and_go(build: Path, library: Path) -> None:
    """A control: the same boot, the same mount, the same path."""
    run(build, "--rounds", "12", "--modes", "plain", "users", "--change")


@contained
def test_without_the_library(build: Path, library: Path) -> None:
    """A control: everything changes, and the kernel loses nothing."""
    run(build, "--rounds", "4", "--modes", "plain", "users", "handover", "child", "--native")


@contained
@pytest.mark.parametrize("change", ["boot", "path", "node"])
def test_one_thing_changes(build: Path, library: Path, change: str) -> None:
    """The boot id, by runc and nspawn in turn; the path in the container; mount, device and place on the host."""
    run(build, "--rounds", "12", "--modes", "plain", "--change", change)


@contained
def test_everything_changes(build: Path, library: Path) -> None:
    run(build, "--rounds", "24", "--modes", "plain")


@contained
def test_two_users(build: Path, library: Path) -> None:
    run(build, "--rounds", "12", "--modes", "users")


@contained
def test_a_log_goes_to_another_user(build: Path, library: Path) -> None:
    """What the first user's dead program had staged is older than what the second one wrote."""
    run(build, "--rounds", "8", "--modes", "handover", "--change")
    run(build, "--rounds", "8", "--modes", "handover")


@contained
def test_an_idle_worker_lives_on(build: Path, library: Path) -> None:
    """The master is killed, and another one starts beside its worker: in one container, then with other ones, too."""
    run(build, "--rounds", "6", "--modes", "child", "--change")
    run(build, "--rounds", "6", "--modes", "child")


@pytest.mark.skipif(
    bool(WHY_NOT) or not rootfs.kept_debian(CACHE).exists(),
    reason=WHY_NOT or f"no Debian below {CACHE}: make soak-surroundings makes one",
)
def test_the_boot_unit(build: Path, library: Path) -> None:
    """systemd starts it before the program, and stops it after the program."""
    run(build, "--rounds", "8", "--modes", "systemd")


@contained
def test_another_file_system(build: Path, library: Path) -> None:
    run(build, "--rounds", "8", "--modes", "plain", "--fs", "xfs")


@contained
def test_nothing_stays_after_a_kill(build: Path, library: Path) -> None:
    """A driver that is killed leaves no container and no loop device."""

    def descendants(pid: int) -> set[int]:
        found = set()
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                for child in map(int, (task / "children").read_text().split()):
                    found |= {child} | descendants(child)
        return found

    def tmpfs_of(pids: set[int]) -> set[str]:
        """Device numbers of the driver's own directory, where the images are."""
        found = set()
        for pid in pids:
            with contextlib.suppress(OSError):
                mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
                found |= {words[2] for words in mounts if words[4] == str(system.PLACE) and "tmpfs" in words}
        return found

    def loops(devices: set[str]) -> list[str]:
        options = ["losetup", "--noheadings", "--list", "--output", "BACK-MAJ:MIN"]
        said = subprocess.run(options, capture_output=True, text=True, check=False).stdout
        return [line for line in map(str.strip, said.splitlines()) if line in devices]

    driver = start(build, "--rounds", "100000", "--modes", "plain", "--change")
    pids, devices = set(), set()
    try:

        def under_way() -> bool:
            nonlocal pids, devices
            pids = descendants(driver.pid)
            devices = tmpfs_of(pids)
            return len(pids) > 2 and bool(loops(devices))

        wait_for(under_way, "a container")
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the end of all")
    wait_for(lambda: not loops(devices), "the devices to go away")


# ---- what looks at the files ----


def op(kind: int, offset: int, length: int, returned: bool = True, seed: int = 5) -> Op:
    return Op(0, kind, offset, length, seed, returned, 1)


def test_files_must_hold_what_was_acknowledged(tmp_path: Path) -> None:
    first, second = op(APPEND, 0, 100, seed=3), op(APPEND, 0, 50, seed=9)
    last = op(APPEND, 0, 10, returned=False, seed=11)
    files = Files(0, held={0: b"before"}, since=[first, second, last])
    whole = b"before" + first.content() + second.content()
    path = tmp_path / "f0"

    def problems(data: bytes) -> list[str]:
        path.write_bytes(data)
        return files.problems(tmp_path)

    assert not problems(whole)
    assert not problems(whole + last.content())
    assert problems(whole[:-1])
    assert problems(whole + last.content()[:-1])
    assert problems(b"before" + second.content() + first.content())
    assert problems(b"before")
    assert problems(whole + b"?")
    path.unlink()
    assert files.problems(tmp_path)
    assert files.missing(tmp_path) == len(whole)


def test_older_bytes_over_newer_ones_are_found(tmp_path: Path) -> None:
    old, new = op(POSITIONAL, 10, 50, seed=3), op(POSITIONAL, 20, 10, seed=9)
    path = tmp_path / "f0"
    data = bytearray(bytes(10) + old.content())
    data[20:30] = new.content()
    path.write_bytes(data)
    files = Files(0, since=[old, new])
    assert not files.problems(tmp_path)
    files.accept(tmp_path)
    assert not files.problems(tmp_path)
    path.write_bytes(bytes(10) + old.content())
    assert files.problems(tmp_path)
    assert 0 < files.missing(tmp_path) <= 10


def test_shared_records_are_there_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / SHARED_NAME
    shared = Shared()
    shared.note([op(RECORD, number, 64) for number in range(3)] + [op(RECORD, 3, 64, returned=False)])
    assert shared.begun == {1: 4}

    def problems(*numbers: int, rest: bytes = b"") -> list[str]:
        records = [b"record 01 %08d " % number for number in numbers]
        path.write_bytes(b"".join(record.ljust(63, b".") + b"\n" for record in records) + rest)
        return shared.problems(path, [1])

    assert not problems(0, 1, 2)
    assert not problems(0, 1, 2, 3)
    assert problems(0, 1)
    assert problems(0, 1, 2, 2)
    assert problems(0, 2, 1)
    assert problems(0, 1, 2, rest=b"record 01")
