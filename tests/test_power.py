# SPDX-License-Identifier: Apache-2.0
"""A little of what `make soak-power` does for an hour: power goes, and what was synced is there."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from lib.support import ROOT, all_synced, preload_env, wait_for
from power import commits, records, steps, system
from power.acks import ACK, Acks
from power.check import Check
from power.content import Content

WHY_NOT = system.missing()
powerful = pytest.mark.skipif(bool(WHY_NOT), reason=f"no power to lose: {WHY_NOT}")
PATIENCE_SECONDS = 300


def command(build: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "power", "--build", str(build), *options]


def run(build: Path, tmp_path: Path, *options: str) -> str:
    # the writers sync all file systems now and then; in one boot that may hide what an arena has lost
    with all_synced(spoils="--same-boot" in options):
        return succeed(command(build, "--keep", str(tmp_path), *options))


def run_prefix(build: Path, *options: str) -> str:
    return succeed([sys.executable, "-m", "power.prefix", "--build", str(build), *options])


def succeed(arguments: list[str]) -> str:
    done = subprocess.run(
        arguments,
        cwd=ROOT / "tests",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@powerful
def test_file_systems_are_shut_down(build: Path, library: Path, tmp_path: Path) -> None:
    run(build, tmp_path, "--shutdowns", "6", "--sync", "fdatasync", "fsync", "journal", "off")


@powerful
def test_file_systems_are_shut_down_and_mounted_again(build: Path, library: Path, tmp_path: Path) -> None:
    """The kernel goes on: what was synced is replayed all the same, without a word from anybody."""
    kinds = ("append", "position", "stdio")
    run(build, tmp_path, "--same-boot", "--shutdowns", "9", "--sync", "journal", "--kinds", *kinds)


@powerful
@pytest.mark.parametrize(("fs", "cuts"), [("ext4", "26"), ("xfs", "13")])
def test_the_disk_is_cut_off(build: Path, library: Path, tmp_path: Path, fs: str, cuts: str) -> None:
    run(build, tmp_path, "--cuts", cuts, "--fs", fs, "--sync", "native", "fdatasync", "journal", "off")


@powerful
def test_a_prefix_is_left_natively_and_by_no_control(build: Path, library: Path) -> None:
    kinds = ("steps", "sqlite-wal")
    run_prefix(build, "--shutdowns", "2", "--kinds", *kinds, "--variants", "no-sync", "off")
    run_prefix(build, "--shutdowns", "1", "--variants", "native")
    run_prefix(
        build, "--cuts", "6", "--fs", "ext4", "--kinds", "steps", "--variants", "native", "no-sync", "off"
    )


def test_only_what_was_under_way_may_be_torn() -> None:
    history = steps.History(with_names=False, large=True)
    history.advance(200)
    under_way = next(n for n, _ in reversed(history.values["stack"]) if n < 190)
    before = {
        unit: [value for begin, value in values if begin < under_way][-1]
        for unit, values in history.values.items()
    }
    for first, last, forgiven in ((0, 0, True), (-3, 0, True), (-3, -2, False), (1, 2, False)):
        found = {**before, "stack": steps.SPOILED}
        history.forgive(found, range(under_way + first, under_way + last + 1))
        assert (under_way - 1 in history.states(found)) == forgiven


MODES = ("delete", "truncate", "persist", "wal")


@powerful
@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_ordered_leaves_a_prefix(build: Path, library: Path, fs: str) -> None:
    ordered = ("--variants", "ordered", "--fs", fs)
    # (while a child lives nothing is staged: `steps-processes` would test the kernel)
    numbered = ("steps", "steps-threads", "steps-files", "steps-large", "steps-forks")
    kinds = (*numbered, *(f"sqlite-{mode}" for mode in MODES))
    run_prefix(build, "--shutdowns", "1", "--kinds", *kinds, "git", *ordered)
    run_prefix(build, "--cuts", "3", "--kinds", "steps", "steps-files", "steps-large", "sqlite-wal", *ordered)


@powerful
@pytest.mark.parametrize("fs", ["ext4", "xfs"])
def test_ordered_without_exclusive_writers_leaves_a_prefix(build: Path, library: Path, fs: str) -> None:
    """Another program opens the files now and then, or has the database open for a while."""
    two = ("sqlite-two-delete", "sqlite-two-wal")
    run_prefix(build, "--shutdowns", "2", "--kinds", *two, "--variants", "no-sync", "--fs", fs)
    kinds = ("steps", "steps-threads", "steps-forks", "sqlite-delete", "sqlite-wal", *two)
    run_prefix(build, "--shutdowns", "1", "--kinds", *kinds, "--variants", "ordered-leased", "--fs", fs)
    run_prefix(
        build, "--cuts", "2", "--kinds", "steps", "sqlite-wal", "--variants", "ordered-leased", "--fs", fs
    )


LEVELDB = records.STORES["leveldb"]


@powerful
@pytest.mark.skipif(bool(LEVELDB.missing()), reason=LEVELDB.missing())
def test_leveldb_in_order_leaves_a_prefix(build: Path, library: Path) -> None:
    leveldb = ("--kinds", "leveldb")
    run_prefix(build, "--shutdowns", "2", *leveldb, "--variants", "no-sync", "off", "--fs", "ext4")
    run_prefix(build, "--shutdowns", "1", "--cuts", "3", *leveldb, "--variants", "ordered")


@powerful
def test_relaxed_loses_the_last_moment_only(build: Path, library: Path, tmp_path: Path) -> None:
    kinds = ("append", "replace", "leave")
    # a machine that is busy with other tests may take its time
    options = ("--sync", "relaxed", "--fs", "ext4", "--flush-ms", "1000")
    run(build, tmp_path, "--cuts", "30", "--kinds", *kinds, *options)


def test_a_child_that_has_just_been_started_ends_with_the_program() -> None:
    """Else it would open the files of the next mount, beside their recovery."""
    script = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as program:
        try:
            child = int(program.stdout.readline())
            assert sorted(system.members_of(program.pid)) == sorted([program.pid, child])
        finally:
            system.end_group(program.pid)
        assert system.members_of(program.pid) == []


@powerful
def test_nothing_stays_after_a_kill(build: Path, library: Path) -> None:
    """A driver that is killed leaves no program, no mount and no loop device."""

    def mounted_on(pid: int) -> str:
        try:
            lines = Path(f"/proc/{pid}/mounts").read_text().splitlines()
        except OSError:
            return ""
        return next((line.split()[0] for line in lines if f" {system.DISK} " in line), "")

    def backing(device: str) -> str:
        options = ["losetup", "--noheadings", "--output", "BACK-INO,BACK-MAJ:MIN", device]
        return subprocess.run(options, capture_output=True, text=True, check=False).stdout

    driver = subprocess.Popen(
        command(build, "--cuts", "1000", "--sync", "fdatasync", "--fs", "ext4"),
        cwd=ROOT / "tests",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
        first, device, image = 0, "", ""

        def under_way() -> bool:
            """One of its children, which come and go, has mounted the disk."""
            nonlocal first, device, image
            for pid in map(int, children.read_text().split()):
                if device := mounted_on(pid):
                    first, image = pid, backing(device)
            return bool(image)

        wait_for(under_way, "a cut")
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    wait_for(lambda: not os.path.exists(f"/proc/{first}"), f"the end of {first}")
    wait_for(lambda: backing(device) != image, f"{device} to go away")


# ---- the check itself ----


def acks_of(*entries: tuple[str, int, int]) -> Acks:
    return Acks.of([b"".join(ACK.pack(ord(kind), file, seq, 0) for kind, file, seq in entries)])


@pytest.fixture
def content() -> Content:
    return Content(7)


def test_check_of_a_log(tmp_path: Path, content: Content) -> None:
    acks = acks_of(("B", 0, 9), ("S", 0, 5))
    whole, synced = content.records(0, 0, 9), content.records(0, 0, 5)

    def verdict(data: bytes):
        (tmp_path / "file-0").write_bytes(data)
        return Check(tmp_path, content, acks)("append")

    assert not verdict(whole).text()
    assert not verdict(synced).text()
    assert not verdict(whole[:-3]).text()
    assert not verdict(synced + bytes(len(whole) - len(synced))).text()
    assert verdict(synced[:-1]).lost
    assert verdict(bytes(len(synced))).lost
    assert verdict(b"").lost
    assert verdict(synced[:100] + b"?" + synced[101:]).lost
    assert verdict(synced + b"?").wrong
    assert verdict(whole + b"?").wrong
    (tmp_path / "file-0").unlink()
    assert Check(tmp_path, content, acks)("append").lost


def test_check_of_positions(tmp_path: Path, content: Content) -> None:
    acks = acks_of(("B", 0, 60), ("S", 0, 50), ("W", 0, 55))

    def image(*seqs: int) -> bytearray:
        data = bytearray()
        for seq in seqs:
            at, record = content.offset(0, seq), content.record(0, seq)
            data.extend(bytes(max(0, at + len(record) - len(data))))
            data[at : at + len(record)] = record
        return data

    def verdict(data: bytes):
        (tmp_path / "file-0").write_bytes(data)
        return Check(tmp_path, content, acks)("position")

    synced = [*range(50), 55]
    assert not verdict(image(*synced)).text()
    assert not verdict(image(*range(60))).text()
    assert not verdict(image(*synced, 58)).text()
    assert verdict(image(*range(50))).lost  # without the one that was synced by itself
    assert verdict(image(*range(49), 55)).lost
    assert verdict(image(*synced)[:-1]).lost
    odd = image(*synced)
    gap = next(i for i in range(len(odd) - 64) if odd[i : i + 64] == bytes(64))
    odd[gap + 5] = 1
    assert verdict(odd).wrong


def test_check_of_replaced_files(tmp_path: Path, content: Content) -> None:
    acks = acks_of(("B", 0, 10), ("S", 0, 8))
    for number in range(4, 8):
        (tmp_path / f"name-{number % 4}").write_bytes(content.records(0, number * 5, number * 5 + 5))
    assert not Check(tmp_path, content, acks)("replace").text()
    (tmp_path / "name-0").write_bytes(content.records(0, 40, 45))
    assert not Check(tmp_path, content, acks)("replace").text()
    (tmp_path / "name-1").write_bytes(content.records(0, 5, 10))
    assert Check(tmp_path, content, acks)("replace").lost  # an older version
    (tmp_path / "name-1").write_bytes(content.records(0, 45, 50)[:-1])
    assert Check(tmp_path, content, acks)("replace").lost
    (tmp_path / "name-1").write_bytes(b"?")
    assert Check(tmp_path, content, acks)("replace").wrong
    (tmp_path / "name-1").write_bytes(content.records(0, 25, 30))
    (tmp_path / "name-1.new").write_bytes(content.records(0, 45, 50))
    assert not Check(tmp_path, content, acks)("replace").text()
    (tmp_path / "name-1.new").write_bytes(content.records(0, 25, 30))
    verdict = Check(tmp_path, content, acks)("replace")
    assert verdict.lost and not verdict.wrong  # the directory was synced after the rename
    (tmp_path / "name-1.new").write_bytes(b"?")
    assert Check(tmp_path, content, acks)("replace").wrong
    for path in tmp_path.iterdir():
        path.write_bytes(b"")
    verdict = Check(tmp_path, content, acks_of(("B", 0, 4)))("replace")
    assert verdict.lost and not verdict.wrong


def replay(directory: Path, operations: int) -> None:
    """Makes the files what steps.c makes of them, as simply as can be."""
    history = steps.History()
    steps.prepare(directory)
    while history.operations < operations:
        history.advance(history.operations + 1)
        changed, step = history.last, history.step
        if changed == "stack":
            entries = [steps.bytes_of(each, steps.RECORD) for each in history.stack]
            (directory / "stack").write_bytes(b"".join(entries))
            continue
        kind, number = changed
        if kind == "log":
            with (directory / f"log{number}").open("ab") as log:
                log.write(steps.bytes_of(step, steps.RECORD))
        elif kind == "name":
            path = directory / f"name{number}"
            if history.values[changed][-1][1] == steps.ABSENT:
                path.unlink()
            else:
                path.write_bytes(steps.bytes_of(step, steps.RECORD))
        else:
            size = steps.PAGE if kind == "pages" else steps.SLOT
            with (directory / kind).open("r+b") as file:
                file.seek(number * size)
                file.write(steps.bytes_of(step, size))


def test_check_of_a_prefix(tmp_path: Path) -> None:
    history = steps.History()
    history.advance(2000)
    # (without the last change of a log, a name or the stack it is a prefix, too)
    while history.last[0] != "slots":
        history.advance(history.operations + 1)
    operations = history.operations
    history.advance(3000)
    replay(tmp_path, operations)

    def states() -> list[int]:
        return history.states(history.look(tmp_path))

    (now,) = states()
    assert now == operations
    # older, newer or other bytes in one file: no state of the program
    for path in sorted(tmp_path.iterdir()):
        data = path.read_bytes()
        for wrong in (data[:-1], data[: -steps.RECORD], data + b"?", b"?" + data[1:], bytes(len(data)), b""):
            path.write_bytes(wrong)
            assert not states() or wrong == data, path.name
        path.unlink()
        if path.name.startswith("name"):
            assert not states()
        path.write_bytes(data)
    assert states() == [now]


def test_check_of_commits(tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    commits.prepare(path)
    assert commits.look(path, "delete") == (0, "")
    with closing(sqlite3.connect(path)) as base:
        for number in (1, 2):
            for changed in commits.rows_of(number, "delete"):
                for table, row in zip("ab", changed, strict=True):
                    base.execute(f"UPDATE {table} SET number = ? WHERE id = ?", (number, row))
            base.commit()
        assert commits.look(path, "delete") == (2, "")
        base.execute("UPDATE a SET number = 1 WHERE id = ?", (commits.rows_of(2, "delete")[7][0],))
        base.commit()
    assert "different transactions" in commits.look(path, "delete")[1]
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    assert commits.look(path, "delete")[1]


def test_relaxed_does_not_wait_for_a_longer_lag(library: Path, tmp_path: Path) -> None:
    """The timer's pace is that of the most urgent promise, not only of the lag."""
    program = (
        "import os, time; fd = os.open('log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "trace, end = open('trace').read, time.monotonic() + 300\n"
        "said = ''\n"
        "while said.count('sync(') < 5 and time.monotonic() < end:\n"
        "    for _ in range(20): os.write(fd, b'x' * 100)\n"
        "    time.sleep(0.1); os.fsync(fd); said += trace()\n"
        "os.write(2, b'end')\n"
    )
    trace = tmp_path / "trace"
    settings = preload_env(library, f"{tmp_path}/**", sync="relaxed", relaxed_ms=50, lag_ms=60000)
    setenv = [part for item in settings.items() for part in ("-E", "=".join(item))]
    command = ["strace", "-f", "-o", str(trace), "-e", "trace=fsync,fdatasync,write", *setenv]
    subprocess.run([*command, sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    text = trace.read_text()
    done = text[: text.index('"end"')].count("sync(")
    assert done >= 5, f"{done} syncs"
