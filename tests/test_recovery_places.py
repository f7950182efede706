# SPDX-License-Identifier: Apache-2.0
"""Recovery where it fails at first and works later: full and read-only places, limits, files that are gone."""

from __future__ import annotations

import os
import resource
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.disks import device_of, disk, run_or_skip
from lib.recovery_lab import (
    APPEND_SOMEWHERE,
    COUNT,
    LINE,
    NOBODY,
    SLOT_BTIME,
    SLOT_DONE,
    SLOT_FLUSH_ACTIVE,
    SLOT_FLUSH_BASE,
    SLOT_FLUSH_FROM,
    Lab,
    actions,
    lines,
    patch_slot,
    read_slot,
    root_only,
)

ROUNDS = 20 if os.environ.get("FASTWRITE_TEST_LONG") == "1" else 6
OWN_UNLINKED = r"""
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = open(argv[1], O_RDWR | O_CREAT, 0644);
	if (argc != 2 || fd < 0)
		return 1;
	for (int i = 0; i < 50; i++)
		write(fd, "before the name went\n", 21);
	unlink(argv[1]);
	for (int i = 0; i < 50; i++)
		write(fd, "behind that, for nobody\n", 24);
	kill(getpid(), SIGKILL);
}
"""


def text_of(report: dict) -> str:
    return " ".join(f"{e['target']} {e.get('error', '')} {e.get('detail', '')}" for e in report["events"])


@pytest.fixture
def small(lab: Lab) -> Iterator[Path]:
    """4 MiB of memory file system as lab.data."""
    root_only()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "none", str(lab.data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mount: {done.stderr.strip()}")
    try:
        yield lab.data
    finally:
        subprocess.run(["umount", str(lab.data)], check=True)


def elsewhere(lab: Lab) -> Path:
    path = lab.base / "staging"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def fill(place: Path) -> Path:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return ballast


# ---- full and read-only ----


@pytest.mark.parametrize("mode", ["write", "append"])
def test_full_target(lab: Lab, small: Path, mode: str) -> None:
    staging = elsewhere(lab)
    lab.leave(mode=mode, staging=staging, prealloc_mode="off")
    ballast = fill(small)
    for _ in range(3):
        report = lab.recover(staging, status=1)
        assert actions(report) == ["failed"]
        assert "No space left on device" in text_of(report) and "left in the arena" in text_of(report)
        assert len(list(staging.glob("*.arena"))) == 1
    ballast.unlink()
    assert lab.recover(staging)["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)
    assert list(staging.glob("*")) == []


@pytest.mark.parametrize("mode", ["write", "append"])
def test_no_room_for_what_is_put_aside(lab: Lab, small: Path, mode: str) -> None:
    lab.leave(mode=mode, prealloc_mode="off")
    lab.target.unlink()
    ballast = fill(small)
    report = lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "No space left on device" in text_of(report) and "cannot be put aside" in text_of(report)
    assert len(lab.arenas()) == 1
    ballast.unlink()
    assert lab.recover()["orphans"] == 1
    (orphan,) = (lab.staging / "orphans").iterdir()
    assert orphan.read_bytes().strip(b"\0") == lines(1, COUNT - 1)


@pytest.mark.parametrize("mode", ["write", "append"])
def test_read_only_file_system(lab: Lab, small: Path, mode: str) -> None:
    staging = elsewhere(lab)
    lab.leave(mode=mode, staging=staging)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    report = lab.recover(staging, status=1)
    assert actions(report) == ["failed"]
    assert "Read-only file system" in text_of(report) and str(lab.target) in text_of(report)
    assert len(list(staging.glob("*.arena"))) == 1
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    assert lab.recover(staging)["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_read_only_staging(lab: Lab, small: Path) -> None:
    lab.leave()
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    report = lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "Read-only file system" in text_of(report)
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_unwritable_orphans(lab: Lab) -> None:
    root_only()
    lab.data.chmod(0o777)
    lab.leave(user=NOBODY)
    lab.target.unlink()
    orphans = lab.staging / "orphans"
    orphans.mkdir(mode=0o500)
    os.chown(orphans, NOBODY, NOBODY)
    report = lab.recover(status=1)
    assert actions(report) == ["failed"]
    assert "Permission denied" in text_of(report)
    assert len(lab.arenas()) == 1
    orphans.chmod(0o700)
    assert lab.recover()["orphans"] == 1


@pytest.mark.parametrize("mode", ["write", "append"])
def test_limit_of_the_file_size(lab: Lab, mode: str) -> None:
    """Beyond the caller's RLIMIT_FSIZE it reports an error, and no SIGXFSZ ends it.  The rest is written later."""
    lab.leave(mode=mode)
    limit = 3 * LINE + 33

    done = subprocess.run(
        [lab.command, "recover", lab.data],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "File too large" in done.stderr
    assert len(lab.arenas()) == 1
    lab.recover()
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_file_that_may_not_be_read(lab: Lab) -> None:
    """A part of the append may be in a file that cannot be read: it is left alone until it can be."""
    root_only()
    lab.data.chmod(0o777)
    lab.leave(mode="append", user=NOBODY)
    with lab.target.open("ab") as file:
        file.write(lines(1, COUNT - 1)[: 4096 - LINE])
    patch_slot(lab, SLOT_FLUSH_ACTIVE, struct.pack("<I", APPEND_SOMEWHERE))
    patch_slot(lab, SLOT_FLUSH_BASE, struct.pack("<Q", LINE))
    done = read_slot(lab, SLOT_DONE, 8)
    patch_slot(lab, SLOT_FLUSH_FROM, done + struct.pack("<Q", (COUNT - 1) * LINE))
    lab.target.chmod(0o200)
    for user in (NOBODY, None):
        report = lab.recover(status=1, user=user)
        assert actions(report) == ["failed"] and "Permission denied" in text_of(report)
        assert lab.target.stat().st_size == 4096
    lab.target.chmod(0o600)
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == lines(0, COUNT)


def test_append_only_file(lab: Lab) -> None:
    root_only()
    lab.target.touch()
    done = subprocess.run(["chattr", "+a", lab.target], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"chattr: {done.stderr.strip()}")
    try:
        lab.leave(mode="append")
        assert lab.recover()["recovered"] == 1
    finally:
        subprocess.run(["chattr", "-a", lab.target], check=True)
    assert lab.target.read_bytes() == lines(0, COUNT)


# ---- gone ----


def test_name_as_long_as_names_can_be(lab: Lab) -> None:
    lab.target = lab.data / ("n" * 255)
    lab.leave()
    lab.target.unlink()
    assert lab.recover()["orphans"] == 1
    (orphan,) = (lab.staging / "orphans").iterdir()
    assert orphan.read_bytes() == bytes(LINE) + lines(1, COUNT - 1)


def test_two_deleted_files_of_one_number(lab: Lab) -> None:
    """Two deleted files had one inode number in turn: their bytes go to two orphans."""
    contents = []
    for turn in range(2):
        lab.leave(first=turn * COUNT)
        patch_slot(lab, 16, (4242).to_bytes(8, "little"))
        patch_slot(lab, SLOT_BTIME, (1000 + turn).to_bytes(8, "little"))
        lab.target.unlink()
        assert lab.recover()["orphans"] == 1
        contents.append(bytes(LINE) + lines(turn * COUNT + 1, COUNT - 1))
    found = sorted(path.read_bytes() for path in (lab.staging / "orphans").iterdir())
    assert found == sorted(contents)


def test_what_the_program_had_unlinked_is_not_put_aside(
    lab: Lab, compile_c: Callable[..., Path], tmp_path: Path
) -> None:
    program = shutil.copy(compile_c(OWN_UNLINKED), tmp_path / "program")
    done = subprocess.run([program, lab.target], env=lab.env(), capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    report = lab.recover()
    assert report["orphans"] == 0 and report["failed"] == 0, report
    assert not lab.staging.exists()
    assert not lab.target.exists()


@contextmanager
def unmounted_with_bytes(
    lab: Lab, mode: str, **settings: object
) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A program has left bytes for a volume, staged on another one.  The volume is not mounted; a call does that."""
    root_only()
    staging = elsewhere(lab)
    with disk("ext4", lab.base / "disk") as point:
        lab.target = point / "log"
        env = lab.env(staging=staging, **settings)
        done = subprocess.run(
            [lab.program, mode, "kill", "0", str(COUNT), lab.target],
            env={**env, "FASTWRITE_PATHS": f"{point}/**"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == -9, done.stderr
        device = device_of(point)
        subprocess.run(["umount", str(point)], check=True)
        yield staging, lambda: run_or_skip("mount", device, point)


@pytest.mark.parametrize("mode", ["write", "append", "ordered"])
def test_volume_that_is_not_mounted(lab: Lab, mode: str) -> None:
    """Its mount point is an empty directory: the file is not gone."""
    settings = {"sync": "ordered", "writers": "exclusive", "mem": "2M"} if mode == "ordered" else {}
    with unmounted_with_bytes(lab, "write" if mode == "ordered" else mode, **settings) as (staging, mount):
        for force in ([], ["--force"]):
            report = lab.recover(*force, staging, status=1)
            assert set(actions(report)) == {"failed"}
            assert "not mounted" in text_of(report) and "left in the arena" in text_of(report)
        assert lab.recover("--dry-run", staging, status=1)["orphans"] == 0
        assert not (staging / "orphans").exists()
        mount()
        assert lab.recover(staging)["recovered"] == 1
        assert lab.target.read_bytes() == lines(0, COUNT)
        assert list(staging.glob("*")) == []


def test_volume_that_is_not_mounted_any_more(lab: Lab) -> None:
    with unmounted_with_bytes(lab, "write") as (staging, _):
        (arena,) = staging.glob("*.arena")
        assert lab.recover("--force", arena)["orphans"] == 1
        (orphan,) = (staging / "orphans").iterdir()
        assert orphan.read_bytes() == bytes(LINE) + lines(1, COUNT - 1)


def test_file_is_gone_from_its_volume(lab: Lab) -> None:
    with unmounted_with_bytes(lab, "write") as (staging, mount):
        mount()
        lab.target.unlink()
        assert actions(lab.recover(staging)) == ["orphaned"]


# ---- several ----


def start_paused(lab: Lab, first: int, mode: str) -> subprocess.Popen:
    program = subprocess.Popen(
        [lab.program, mode, "pause", str(first), str(COUNT), lab.target],
        env=lab.env(),
        stdout=subprocess.PIPE,
    )
    assert program.stdout.readline() == b"ready\n"
    return program


@pytest.mark.parametrize("moved", [False, True], ids=["there", "renamed"])
def test_two_arenas_for_one_file(lab: Lab, moved: bool) -> None:
    """The lines of both programs are there, each once and whole, and in order for each program."""
    programs = [start_paused(lab, turn * COUNT, "append") for turn in range(3)]
    for program in programs:
        program.kill()
        program.wait()
        program.stdout.close()
    assert len(lab.arenas()) == 3
    target = lab.target
    if moved:
        target = target.rename(lab.data / "log.1")
    assert lab.recover()["recovered"] == 3
    content = target.read_bytes()
    got = [content[i : i + LINE] for i in range(0, len(content), LINE)]
    for turn in range(3):
        wanted = [lines(turn * COUNT + i, 1) for i in range(COUNT)]
        assert [line for line in got if line in wanted] == wanted
    assert len(got) == 3 * COUNT


def test_arenas_are_recovered_in_the_order_in_which_they_were_made(lab: Lab) -> None:
    """Programs overwrote each other's bytes: the result is as if each had written when it started."""
    programs = [start_paused(lab, turn * COUNT, "write") for turn in range(7)]
    for program in programs:
        program.kill()
        program.wait()
        program.stdout.close()
    assert len(lab.arenas()) == 7
    assert lab.target.stat().st_size == 7 * LINE, "each begins where the file ended"
    wanted = bytearray(lab.target.read_bytes())  # all first lines
    for turn in range(7):
        wanted[(turn + 1) * LINE : (turn + COUNT) * LINE] = lines(turn * COUNT + 1, COUNT - 1)
    assert lab.recover("--force", lab.data)["recovered"] == 7
    assert lab.target.read_bytes() == wanted


def test_what_another_program_has_written_since_is_not_overwritten(lab: Lab) -> None:
    """The file is as the last program left it; the bytes of the others wait until the user forces them."""
    programs = [start_paused(lab, turn * COUNT, "write") for turn in range(3)]
    for program in programs:
        program.kill()
        program.wait()
        program.stdout.close()
    wanted = bytearray(lab.target.read_bytes())
    wanted[3 * LINE : (2 + COUNT) * LINE] = lines(2 * COUNT + 1, COUNT - 1)
    report = lab.recover(status=1)
    assert sorted(actions(report)) == ["aside", "aside", "recovered"]
    assert lab.target.read_bytes() == wanted
    assert lab.arenas() == [] and len(list((lab.staging / "aside").iterdir())) == 2


def test_very_many_arenas(lab: Lab) -> None:
    """More arenas than one list holds: those left alone do not stop the others, and are not tried twice."""
    lab.leave()
    for i in range(300):
        (lab.staging / f"kept-{i}.arena").write_bytes(b"no arena")
        (lab.staging / f"400000{i}-env-{i:x}.arena").touch()
    report = lab.recover(status=1)
    assert (report["arenas"], report["failed"], report["recovered"]) == (601, 300, 1)
    assert len(lab.arenas()) == 300
    assert lab.target.read_bytes() == lines(0, COUNT)


@pytest.mark.parametrize("mode", ["write", "append", "deleted"])
def test_eight_recoveries_at_once(lab: Lab, mode: str) -> None:
    for _ in range(ROUNDS):
        lab.leave(mode="write" if mode == "write" else "append")
        if mode == "deleted":
            lab.target.unlink()
        running = [
            subprocess.Popen(
                [lab.command, "recover", lab.data], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            for _ in range(8)
        ]
        said = [(one.communicate(timeout=60), one.returncode) for one in running]
        assert all(status == 0 for _, status in said), said
        if mode == "deleted":
            (orphan,) = (lab.staging / "orphans").iterdir()
            assert orphan.read_bytes().strip(b"\0") == lines(1, COUNT - 1)
            shutil.rmtree(lab.staging)
            continue
        assert lab.target.read_bytes() == lines(0, COUNT)
        assert not lab.staging.exists()
        lab.target.unlink()


# ---- what is shown ----


def test_names_cannot_steer_the_terminal(lab: Lab) -> None:
    lab.target = lab.data / "log\x1b[2J\nrecovered  shadow"
    lab.leave()
    done = subprocess.run([lab.command, "recover", lab.data], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout and "\nrecovered  shadow" not in done.stdout
    assert "log?[2J?recovered" in done.stdout
    assert lab.target.read_bytes() == lines(0, COUNT)
