# SPDX-License-Identifier: Apache-2.0
"""Root recovers what other users left or planted, with no more rights than theirs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.recovery_lab import (
    COUNT,
    LINE,
    NOBODY,
    SLOT_PATH,
    Lab,
    actions,
    lines,
    of_no_inode,
    patch_slot,
    root_only,
)

GROUP = 12345


@pytest.fixture(autouse=True)
def only_as_root() -> None:
    root_only()


@pytest.fixture
def user_lab(lab: Lab) -> Lab:
    """A directory in which any user may have data."""
    lab.data.chmod(0o1777)
    return lab


def details(report: dict) -> str:
    return " ".join(event.get("detail", "") + event.get("error", "") for event in report["events"])


def test_group_of_a_directory_is_not_the_owners(user_lab: Lab) -> None:
    """A directory hands its group on to new files; their owners need not belong to that group."""
    os.chown(user_lab.data, 0, GROUP)
    user_lab.data.chmod(0o3777)
    user_lab.leave(user=NOBODY)
    assert user_lab.arena().stat().st_gid == GROUP
    os.chown(user_lab.target, 0, GROUP)
    user_lab.target.chmod(0o660)
    report = user_lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "Permission denied" in details(report)
    assert user_lab.target.read_bytes() == lines(0, 1)


def test_groups_of_the_owner(user_lab: Lab, tmp_path: Path) -> None:
    """The command looks them up: the owner may write to the file as a member of its group only."""
    user_lab.leave(user=NOBODY)
    os.chown(user_lab.target, 0, GROUP)
    user_lab.target.chmod(0o660)
    (tmp_path / "passwd").write_text(f"root:x:0:0::/:/bin/sh\nsomebody:x:{NOBODY}:{NOBODY}::/:/bin/sh\n")
    (tmp_path / "group").write_text(f"root:x:0:\nwriters:x:{GROUP}:other,somebody\n")
    script = 'for f in passwd group; do mount --bind "$0/$f" /etc/$f || exit 9; done; exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, tmp_path, user_lab.command, "recover", user_lab.data],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 9:
        pytest.skip("no private mounts here")
    assert (done.returncode, done.stderr) == (0, "")
    assert user_lab.target.read_bytes() == lines(0, COUNT)


def test_capabilities_are_dropped(user_lab: Lab) -> None:
    """Only a process that may trace root's processes can follow such a path."""
    user_lab.leave(user=NOBODY)
    hidden = user_lab.base / "hidden"
    (hidden / "inner").mkdir(parents=True)
    user_lab.target.rename(hidden / "inner" / "log")
    hidden.chmod(0o700)
    (hidden / "inner").chmod(0o755)
    with subprocess.Popen(["sleep", "60"], cwd=hidden / "inner") as process:
        try:
            patch_slot(user_lab, SLOT_PATH, f"/proc/{process.pid}/cwd/log\0".encode())
            report = user_lab.recover(status=1)
        finally:
            process.kill()
    assert actions(report) == ["failed"]
    assert (hidden / "inner" / "log").read_bytes() == lines(0, 1)


def test_what_others_moved_here_is_no_arena(user_lab: Lab) -> None:
    """A file of root's in a user's directory: the user can have moved it there and forged its content."""
    user_lab.leave()
    os.chown(user_lab.staging, NOBODY, NOBODY)
    report = user_lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "not its directory's owner's" in details(report)
    assert user_lab.target.read_bytes() == lines(0, 1)
    os.chown(user_lab.staging, 0, 0)
    user_lab.recover()
    assert user_lab.target.read_bytes() == lines(0, COUNT)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_arena_that_others_may_write_to(user_lab: Lab, mode: int) -> None:
    user_lab.leave()
    user_lab.arena().chmod(mode)
    report = user_lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "others may write" in details(report)
    assert user_lab.target.read_bytes() == lines(0, 1)


def test_arena_named_by_its_path(user_lab: Lab) -> None:
    """Where anybody may put files nothing proves whose they are, whatever their names."""
    user_lab.leave(user=NOBODY)
    moved = user_lab.data / user_lab.arena().name
    user_lab.arena().rename(moved)
    report = user_lab.recover(moved, status=1)
    assert report["arenas"] == 0 and "permission" in report["stderr"]
    assert user_lab.target.read_bytes() == lines(0, 1)
    user_lab.data.chmod(0o755)
    user_lab.recover(moved)
    assert user_lab.target.read_bytes() == lines(0, COUNT)


@pytest.mark.parametrize("named", [".fastwrite", ".fastwrite/", "", "log"])
def test_staging_that_is_a_link(user_lab: Lab, named: str) -> None:
    user_lab.leave(user=NOBODY)
    elsewhere = user_lab.base / "elsewhere"
    user_lab.staging.rename(elsewhere)
    user_lab.staging.symlink_to(elsewhere)
    report = user_lab.recover(f"{user_lab.data}/{named}", status=1)
    assert report["arenas"] == 0
    assert report["stderr"].startswith("fastwrite recover: ")
    assert user_lab.target.read_bytes() == lines(0, 1)
    assert len(list(elsewhere.iterdir())) == 1


@pytest.mark.parametrize("mode", [0o770, 0o707])
@pytest.mark.parametrize("named", [".fastwrite", "log"])
def test_staging_that_others_may_write_to(user_lab: Lab, mode: int, named: str) -> None:
    user_lab.leave()
    user_lab.staging.chmod(mode)
    report = user_lab.recover(user_lab.data / named, status=1)
    assert report["recovered"] == 0
    assert "go-w" in report["stderr"]
    assert user_lab.target.read_bytes() == lines(0, 1)


def test_what_is_no_file_is_no_arena(user_lab: Lab) -> None:
    user_lab.leave()
    staging = user_lab.staging
    os.link(user_lab.arena(), user_lab.base / "second-name")
    (staging / "1-env-1.arena").symlink_to("/etc/passwd")
    os.mkfifo(staging / "2-env-1.arena")
    (staging / "3-env-1.arena").mkdir()
    os.mknod(staging / "4-env-1.arena", 0o600 | 0o020000, os.makedev(1, 7))  # /dev/full
    before = Path("/etc/passwd").read_bytes()
    report = user_lab.recover(status=1)
    assert report["failed"] == 5
    assert len(list(staging.iterdir())) == 5
    assert Path("/etc/passwd").read_bytes() == before
    assert user_lab.target.read_bytes() == lines(0, 1)
    (user_lab.base / "second-name").unlink()
    assert user_lab.recover(status=1)["recovered"] == 1
    assert user_lab.target.read_bytes() == lines(0, COUNT)


# ---- orphans ----


def plant_link(lab: Lab, victim: Path) -> None:
    (lab.staging / "orphans").symlink_to(victim)


def plant_file(lab: Lab, victim: Path) -> None:
    (lab.staging / "orphans").touch()


def plant_directory_of_another(lab: Lab, victim: Path) -> None:
    (lab.staging / "orphans").mkdir(mode=0o755)
    os.chown(lab.staging / "orphans", NOBODY, NOBODY)


def plant_directory_for_all(lab: Lab, victim: Path) -> None:
    (lab.staging / "orphans").mkdir()
    (lab.staging / "orphans").chmod(0o777)


@pytest.mark.parametrize(
    "plant", [plant_link, plant_file, plant_directory_of_another, plant_directory_for_all]
)
def test_planted_orphans(user_lab: Lab, plant) -> None:
    user_lab.leave()
    user_lab.target.unlink()
    victim = user_lab.base / "victim"
    victim.mkdir()
    plant(user_lab, victim)
    report = user_lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "cannot be put aside" in details(report)
    assert len(user_lab.arenas()) == 1
    assert list(victim.iterdir()) == []
    orphans = user_lab.staging / "orphans"
    if orphans.is_symlink() or orphans.is_file():
        orphans.unlink()
    else:
        assert list(orphans.iterdir()) == []
        orphans.rmdir()
    assert user_lab.recover()["orphans"] == 1


@pytest.mark.parametrize("kind", ["link", "hard link", "fifo", "directory"])
def test_planted_orphan(user_lab: Lab, kind: str) -> None:
    """The name that the orphan would get is taken."""
    user_lab.leave()
    user_lab.target.unlink()
    saved = {path: of_no_inode(path.read_bytes()) for path in user_lab.arenas()}
    user_lab.recover()
    (orphan,) = (user_lab.staging / "orphans").iterdir()
    content = orphan.read_bytes()
    orphan.unlink()
    victim = user_lab.base / "victim"
    victim.write_bytes(b"precious")
    if kind == "link":
        orphan.symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, orphan)
    elif kind == "fifo":
        os.mkfifo(orphan)
    else:
        orphan.mkdir()
    for path, data in saved.items():
        path.write_bytes(data)
        path.chmod(0o600)
    report = user_lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert len(user_lab.arenas()) == 1
    assert victim.read_bytes() == b"precious"
    shutil.rmtree(orphan) if kind == "directory" else orphan.unlink()
    user_lab.recover()
    assert orphan.read_bytes() == content


def test_orphans_of_a_user_are_his(user_lab: Lab) -> None:
    user_lab.leave(user=NOBODY)
    user_lab.target.unlink()
    user_lab.recover()
    for path in (user_lab.staging / "orphans", *(user_lab.staging / "orphans").iterdir()):
        assert path.stat().st_uid == NOBODY
        assert path.stat().st_mode & 0o077 == 0


def test_aside_of_a_user_is_never_roots(user_lab: Lab) -> None:
    """Root may make a directory where the owner may not at the moment.  It must not stay."""
    user_lab.leave(user=NOBODY)
    user_lab.target.write_bytes(b"changed")  # the arena is put aside
    user_lab.staging.chmod(0o500)
    user_lab.recover(status=None)
    assert not (user_lab.staging / "aside").exists()
    user_lab.staging.chmod(0o700)
    user_lab.recover(status=None, user=NOBODY)
    assert len(list((user_lab.staging / "aside").glob("*.arena"))) == 1


def test_target_is_swapped_all_the_time(user_lab: Lab) -> None:
    """The target's name is now and then a link to another user's file."""
    victim = user_lab.base / "victim"
    victim.write_bytes(b"precious")
    script = """
import os, sys
target, other = sys.argv[1:]
while True:
    try:
        os.rename(target, target + ".kept")
        os.symlink(other, target)
        os.rename(target + ".kept", target)
    except OSError:
        pass
"""
    for turn in range(12):
        user_lab.leave(mode="append" if turn % 2 else "write")
        with subprocess.Popen(["python3", "-c", script, user_lab.target, victim]) as swapper:
            try:
                report = user_lab.recover(status=None)
            finally:
                swapper.kill()
        assert victim.read_bytes() == b"precious"
        kept = user_lab.data / "log.kept"
        if kept.exists():
            kept.replace(user_lab.target)
        for orphan in (user_lab.staging / "orphans").glob("*"):
            # (the file had another name at that moment: its bytes are safe there)
            assert len(orphan.read_bytes().strip(b"\0")) == (COUNT - 1) * LINE
            orphan.unlink()
        if report["recovered"]:
            assert user_lab.target.read_bytes() == lines(0, COUNT)
        shutil.rmtree(user_lab.staging, ignore_errors=True)
        user_lab.target.unlink()


def test_directory_that_may_not_be_listed(user_lab: Lab) -> None:
    """The owner may search the directory, but not list it: the file is found at its path."""
    inner = user_lab.data / "inner"
    inner.mkdir()
    os.chown(inner, NOBODY, NOBODY)
    user_lab.target = inner / "log"
    user_lab.leave(user=NOBODY)
    os.chown(inner, 0, 0)
    inner.chmod(0o711)
    report = user_lab.recover()
    assert report["recovered"] == 1, report
    assert user_lab.target.read_bytes() == lines(0, COUNT)
