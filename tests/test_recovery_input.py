# SPDX-License-Identifier: Apache-2.0
"""Recovery trusts nothing: damaged and foreign arenas, targets that moved, other processes at work."""

from __future__ import annotations

import os
import random
import shutil
import signal
import struct
import subprocess
import time

import pytest
from lib.recovery_lab import (
    CHECKED_BYTES,
    COUNT,
    DATA_AT,
    LINE,
    NOBODY,
    SLOT_BTIME,
    SLOT_BYTES,
    SLOT_PATH,
    SLOTS_AT,
    Lab,
    actions,
    lines,
    of_no_inode,
    root_only,
    seal_blocks,
    seal_header,
)

FLIPS = 400 if os.environ.get("FASTWRITE_TEST_LONG") == "1" else 120
ROUNDS = 40 if os.environ.get("FASTWRITE_TEST_LONG") == "1" else 12


# ---- arenas ----


def test_what_was_left_is_recovered_once(lab: Lab) -> None:
    lab.leave()
    report = lab.recover()
    assert (report["arenas"], report["recovered"], report["bytes"]) == (1, 1, (COUNT - 1) * LINE)
    assert lab.target.read_bytes() == lines(0, COUNT)
    assert not lab.staging.exists()
    assert lab.recover()["arenas"] == 0
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_dry_run_changes_nothing(lab: Lab) -> None:
    lab.leave()
    before = lab.arena().read_bytes()
    report = lab.recover("--dry-run", lab.data)
    assert report["bytes"] == (COUNT - 1) * LINE
    assert lab.arena().read_bytes() == before
    assert lab.target.read_bytes() == lines(0, 1)


@pytest.mark.parametrize("size", [1, 100, 4095, 4096, 8192, 300000])
def test_truncated_arena_is_left_alone(lab: Lab, size: int) -> None:
    lab.leave()
    arena = lab.arena()
    os.truncate(arena, size)
    report = lab.recover(status=1)
    assert report["failed"] == 1
    assert [e["arena"] for e in report["events"] if e["action"] == "failed"] == [str(arena)]
    assert arena.stat().st_size == size
    assert lab.target.read_bytes() == lines(0, 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 100000, b"some text that somebody keeps here\n" * 500, random.Random(3).randbytes(70000)],
    ids=["empty", "zeros", "text", "noise"],
)
def test_foreign_file_is_left_alone(lab: Lab, content: bytes) -> None:
    lab.staging.mkdir(mode=0o700)
    foreign = lab.staging / "holiday.arena"
    foreign.write_bytes(content)
    report = lab.recover(status=1)
    assert report["failed"] == 1
    assert report["events"][0]["arena"] == str(foreign)
    assert foreign.read_bytes() == content


def test_arena_whose_maker_died_at_once_is_removed(lab: Lab) -> None:
    lab.staging.mkdir(mode=0o700)
    (lab.staging / "4000000-env-1f00.arena").write_bytes(b"")
    lab.recover()
    assert not lab.staging.exists()


def test_directory_of_the_users_own_stays(lab: Lab) -> None:
    empty = lab.data / "empty"
    empty.mkdir()
    lab.recover(empty)
    assert empty.is_dir()


def test_symlink_and_fifo_are_no_arenas(lab: Lab) -> None:
    lab.leave()
    arena = lab.arena()
    (lab.staging / "1-env-1.arena").symlink_to(arena)
    os.mkfifo(lab.staging / "2-env-1.arena")
    report = lab.recover(status=1)
    assert report["failed"] == 2
    assert report["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)


def flip_places(arena: bytes) -> range:
    """Header and tables: everything before the blocks."""
    return range(struct.unpack_from("<Q", arena, SLOTS_AT)[0] + 3 * SLOT_BYTES)


def seal_blocks_again(damaged: bytearray, arena: bytes) -> None:
    """The parts of the tables, by the offsets in the sound header."""
    sound = bytearray(damaged)
    sound[:CHECKED_BYTES] = arena[:CHECKED_BYTES]
    seal_blocks(sound)
    damaged[CHECKED_BYTES:] = sound[CHECKED_BYTES:]


@pytest.mark.parametrize("checksum", ["broken", "mended"])
def test_flipped_bits(lab: Lab, checksum: str) -> None:
    """No crash; only the target and files put aside are written.  With a mended checksum the change gets further."""
    lab.leave()
    arena_path = lab.arena()
    arena = of_no_inode(arena_path.read_bytes())
    as_left = lab.target.stat()
    bystander = lab.data / "bystander"
    bystander.write_bytes(b"mine")
    dice = random.Random(17)
    places = flip_places(arena)
    used = [i for i in places if arena[i]]
    outcomes = set()
    for turn in range(FLIPS):
        damaged = bytearray(arena)
        for _ in range(dice.choice([1, 1, 1, 4])):
            at = dice.choice(used) if turn % 3 else dice.choice(places)
            damaged[at] ^= 1 << dice.randrange(8)
        if checksum == "mended":
            seal_header(damaged)
            seal_blocks_again(damaged, arena)
        lab.staging.mkdir(mode=0o700, exist_ok=True)
        arena_path.write_bytes(damaged)
        lab.rewind(as_left)
        report = lab.recover(status=None)
        outcomes.update(actions(report))
        assert bystander.read_bytes() == b"mine"
        names = {p.name for p in lab.data.iterdir()}
        assert names <= {"log", "bystander", ".fastwrite"}, names
        data_at = struct.unpack_from("<Q", arena, DATA_AT)[0]
        assert set(lab.target.read_bytes()[LINE:]) <= set(damaged[data_at:]) | {0}, "bytes that nobody staged"
        if report["failed"]:
            assert arena_path.exists(), "a failed arena must not be thrown away"
        shutil.rmtree(lab.staging, ignore_errors=True)
    assert {"failed", "recovered"} <= outcomes, f"the flips reached nothing: {outcomes}"


@pytest.mark.parametrize("where", ["staged", "behind"])
def test_flipped_bits_of_data(lab: Lab, where: str) -> None:
    """Staged bytes have a checksum: with one byte changed, nothing is written to the file and the arena stays.  Bytes
    behind the staged ones do not count."""
    lab.leave()
    arena_path = lab.arena()
    arena = of_no_inode(arena_path.read_bytes())
    as_left = lab.target.stat()
    staged = arena.index(lines(1, COUNT - 1))
    end = staged + (COUNT - 1) * LINE
    dice = random.Random(5)
    for _ in range(FLIPS // 6):
        damaged = bytearray(arena)
        for _ in range(dice.choice([1, 3])):
            at = dice.randrange(staged, end) if where == "staged" else dice.randrange(end, len(arena))
            damaged[at] ^= 1 << dice.randrange(8)
        lab.staging.mkdir(mode=0o700, exist_ok=True)
        arena_path.write_bytes(damaged)
        arena_path.chmod(0o600)
        lab.rewind(as_left)
        if where == "behind":
            assert lab.recover()["recovered"] == 1
            assert lab.target.read_bytes() == lines(0, COUNT)
        else:
            assert actions(lab.recover(status=1)) == ["aside"]
            assert lab.target.read_bytes() == lines(0, 1)
            assert damaged[staged:end] in (lab.staging / "aside" / arena_path.name).read_bytes()
            shutil.rmtree(lab.staging)


def test_torn_page(lab: Lab) -> None:
    """A page that did not reach the disk: it holds zeros, or old bytes of another file."""
    lab.leave()
    arena_path = lab.arena()
    arena = of_no_inode(arena_path.read_bytes())
    staged = arena.index(lines(1, COUNT - 1))
    at = (staged // 4096 + 1) * 4096
    assert staged < at < staged + (COUNT - 1) * LINE
    damaged = bytearray(arena)
    seal_blocks(damaged)
    assert damaged == arena, "the layout changed"
    for page in (bytes(4096), lines(500, 41)[:4096]):
        damaged[at : at + 4096] = page
        arena_path.write_bytes(damaged)
        assert actions(lab.recover(status=1)) == ["aside"]
        assert lab.target.read_bytes() == lines(0, 1)
        shutil.rmtree(lab.staging / "aside")
    seal_blocks(damaged)
    arena_path.write_bytes(damaged)
    assert lab.recover()["recovered"] == 1, "it was not the checksum"


# ---- targets ----


def test_renamed_target(lab: Lab) -> None:
    lab.leave()
    moved = lab.data / "log.1"
    lab.target.rename(moved)
    assert lab.recover()["recovered"] == 1
    assert moved.read_bytes() == lines(0, COUNT)
    assert not lab.target.exists()


def orphan_of(report: dict, lab: Lab) -> bytes:
    assert actions(report) == ["orphaned"]
    assert report["orphans"] == 1
    (orphan,) = (lab.staging / "orphans").iterdir()
    assert orphan.name in report["events"][0]["detail"]
    return orphan.read_bytes()


def test_deleted_target(lab: Lab) -> None:
    lab.leave()
    lab.target.unlink()
    assert orphan_of(lab.recover(), lab) == bytes(LINE) + lines(1, COUNT - 1)
    assert not lab.target.exists()
    assert lab.arenas() == []


def test_replaced_target(lab: Lab) -> None:
    """Another inode has the name: it is not the file that the bytes belong to."""
    lab.leave()
    other = lab.data / "new"
    other.write_bytes(b"somebody else's")
    other.replace(lab.target)
    orphan_of(lab.recover(), lab)
    assert lab.target.read_bytes() == b"somebody else's"


def test_target_that_became_a_link(lab: Lab) -> None:
    lab.leave()
    victim = lab.base / "victim"
    victim.write_bytes(b"precious")
    lab.target.unlink()
    lab.target.symlink_to(victim)
    orphan_of(lab.recover(), lab)
    assert victim.read_bytes() == b"precious"


def test_birth_time_tells_inodes_apart(lab: Lab) -> None:
    lab.leave()
    arena = bytearray(of_no_inode(lab.arena().read_bytes()))
    at = struct.unpack_from("<Q", arena, SLOTS_AT)[0]
    assert str(lab.target).encode() == arena[at + SLOT_PATH :].split(b"\0", 1)[0], "the layout changed"
    (born,) = struct.unpack_from("<q", arena, at + SLOT_BTIME)
    if born == 0:
        pytest.skip("this file system has no birth times")
    struct.pack_into("<q", arena, at + SLOT_BTIME, born - 1000)
    seal_blocks(arena)
    lab.arena().write_bytes(arena)
    orphan_of(lab.recover(), lab)
    assert lab.target.read_bytes() == lines(0, 1)


def test_two_names_of_one_target(lab: Lab) -> None:
    lab.leave()
    os.link(lab.target, lab.data / "second")
    lab.target.unlink()
    assert lab.recover()["recovered"] == 1
    assert (lab.data / "second").read_bytes() == lines(0, COUNT)


# ---- who may ----


def test_arena_of_another_user(lab: Lab) -> None:
    root_only()
    lab.leave()
    report = lab.recover(lab.staging, status=None, user=NOBODY)
    assert report["recovered"] == 0
    assert "permission" in report["stderr"]
    assert len(lab.arenas()) == 1
    assert lab.target.read_bytes() == lines(0, 1)


def test_read_only_target(lab: Lab) -> None:
    root_only()
    lab.data.chmod(0o777)
    lab.leave(user=NOBODY)
    lab.target.chmod(0o444)
    report = lab.recover(status=1, user=NOBODY)
    assert report["failed"] == 1
    assert report["events"][-1]["target"] == str(lab.target)
    assert len(lab.arenas()) == 1
    lab.target.chmod(0o644)
    lab.recover(user=NOBODY)
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_root_acts_with_the_rights_of_the_owner(lab: Lab) -> None:
    """The arena names a file that its owner may not write to; root's groups do not help."""
    root_only()
    lab.data.chmod(0o777)
    lab.leave(user=NOBODY)
    os.chown(lab.target, 0, 0)
    lab.target.chmod(0o660)
    report = lab.recover(status=1)
    assert report["failed"] == 1
    assert lab.target.read_bytes() == lines(0, 1)
    os.chown(lab.target, NOBODY, NOBODY)
    lab.recover()
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_staging_that_others_may_write_to(lab: Lab) -> None:
    lab.leave()
    lab.staging.chmod(0o777)
    report = lab.recover(lab.staging, status=1)
    assert report["recovered"] == 0
    assert lab.target.read_bytes() == lines(0, 1)


# ---- others at work ----


def test_live_arena_is_left_alone(lab: Lab) -> None:
    program = subprocess.Popen(
        [lab.program, "write", "pause", "0", str(COUNT), lab.target], env=lab.env(), stdout=subprocess.PIPE
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        report = lab.recover()
        assert (report["live"], report["recovered"]) == (1, 0)
        assert actions(report) == ["live"]
        assert lab.target.read_bytes() == lines(0, 1)
        assert len(lab.arenas()) == 1
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_a_zombie_is_dead(lab: Lab) -> None:
    """A killed process that its parent has not reaped yet is dead: its arena is recovered."""
    program = subprocess.Popen(
        [lab.program, "write", "pause", "0", str(COUNT), lab.target], env=lab.env(), stdout=subprocess.PIPE
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
        assert lab.recover()["recovered"] == 1
        assert lab.target.read_bytes() == lines(0, COUNT)
    finally:
        program.wait()
        program.stdout.close()


def test_two_recoveries_at_once(lab: Lab) -> None:
    for turn in range(ROUNDS):
        lab.target.unlink(missing_ok=True)
        lab.leave(mode="append" if turn % 2 else "write")
        both = [
            subprocess.Popen(
                [lab.command, "recover", lab.data], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        for one in both:
            out, err = one.communicate(timeout=60)
            assert one.returncode == 0, (out, err)
        assert lab.target.read_bytes() == lines(0, COUNT)
        assert not lab.staging.exists()


@pytest.mark.parametrize("mode", ["write", "append"])
def test_recovered_at_the_next_open(lab: Lab, mode: str) -> None:
    lab.leave(mode=mode)
    lab.leave(mode=mode, first=COUNT)
    lab.leave(mode=mode, first=2 * COUNT, end="exit")
    assert lab.target.read_bytes() == lines(0, 3 * COUNT)
    assert not lab.staging.exists()


def test_next_program_has_the_same_pid(lab: Lab) -> None:
    """A program with the pid of a dead one, as in containers, does not take the dead one's arena for its own."""
    lab.leave()
    script = 'mv "$1" "$2/$$-env-1f.arena" && LD_PRELOAD="$6" exec "$3" write exit "$4" "$4" "$5"'
    done = subprocess.run(
        [
            "sh",
            "-c",
            script,
            "sh",
            lab.arena(),
            lab.staging,
            lab.program,
            str(COUNT),
            lab.target,
            lab.library,
        ],
        env={**lab.env(), "LD_PRELOAD": ""},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert lab.target.read_bytes() == lines(0, 2 * COUNT)


def test_nothing_is_lost_while_others_look(lab: Lab) -> None:
    """Of programs that start together in one directory none takes another one's new arena for a dead one."""
    for turn in range(ROUNDS):
        programs = [
            subprocess.Popen(
                [lab.program, "write", "kill", "0", str(COUNT), lab.data / f"{turn}-{i}"], env=lab.env()
            )
            for i in range(4)
        ]
        for one in programs:
            assert one.wait(timeout=60) == -9
    time.sleep(0.01)
    lab.recover()
    for turn in range(ROUNDS):
        for i in range(4):
            assert (lab.data / f"{turn}-{i}").read_bytes() == lines(0, COUNT), (turn, i)
