# SPDX-License-Identifier: Apache-2.0
"""Recovery after changes: files that others have written, other boots, mounts, copies of a volume."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from lib.disks import disk, run_or_skip, shut_down
from lib.recovery_lab import COUNT, LINE, Lab, actions, lines, rebooted, root_only

STAGED = (COUNT - 1) * LINE
WHOLE = lines(0, COUNT)
SMALL = 8 << 20


@pytest.fixture
def volume(lab: Lab) -> Iterator[Callable[..., Path]]:
    """volume(kind, …): a file system of its own for lab.data."""
    root_only()
    with ExitStack() as stack:

        def make(kind: str = "ext4", *options: str, size: int = 64 << 20) -> Path:
            point = stack.enter_context(disk(kind, lab.base / "disk", size, "", *options))
            use(lab, point)
            lab.data.mkdir()
            return point

        yield make


def use(lab: Lab, point: Path) -> None:
    lab.data = point / "data"
    lab.target = lab.data / "log"


@contextmanager
def mounted_at(image: Path, point: Path) -> Iterator[Path]:
    """Mounts the image with another device number at another place."""
    point.mkdir(exist_ok=True)
    run_or_skip("mount", "-o", "loop", image, point)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def unmount(point: Path) -> None:
    subprocess.run(["umount", str(point)], check=True)


def other_id(lab: Lab, *command: object) -> subprocess.CompletedProcess:
    """The command with another boot id but the same kernel, as in a container."""
    fake = lab.base / "boot_id"
    fake.write_text("11111111-2222-3333-4444-555555555555\n")
    text = f'mount --bind {fake} /proc/sys/kernel/random/boot_id && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", text, "sh", *command]
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=60, check=False)


def put_aside(lab: Lab) -> list[Path]:
    return sorted((lab.staging / "aside").glob("*.arena"))


# ---- somebody else has written ----


def test_what_was_written_after_the_death_stays(lab: Lab) -> None:
    lab.leave()
    newer = b"N" * (3 * LINE)
    with lab.target.open("r+b") as file:
        file.write(newer)
    report = lab.recover(status=1)
    assert actions(report) == ["aside"]
    assert lab.target.read_bytes() == newer
    (kept,) = put_aside(lab)
    detail = report["events"][0]["detail"]
    assert f"fastwrite recover --force {kept}" in detail and "changed since" in detail
    assert report["events"][0]["bytes"] == STAGED


def test_what_was_put_aside_is_named_each_time_and_written_when_told_so(lab: Lab) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    for _ in range(2):
        assert actions(lab.recover(status=1)) == ["aside"]
    (kept,) = put_aside(lab)
    assert lab.recover("--dry-run", "--force", kept)["recovered"] == 1
    assert lab.target.read_bytes() == b"N" * (3 * LINE)
    assert lab.recover("--force", kept)["recovered"] == 1
    assert lab.target.read_bytes() == b"N" * LINE + WHOLE[LINE:]
    assert lab.recover()["arenas"] == 0
    assert not lab.staging.exists()


def test_force_for_one_file_leaves_the_others(lab: Lab) -> None:
    other = lab.data / "other"
    env = lab.env()
    for name in (lab.target, other):
        name.touch()
    done = subprocess.run(
        [lab.program, "write", "kill", "0", str(COUNT), lab.target, other],
        env=env,
        timeout=60,
        check=False,
        capture_output=True,
    )
    assert done.returncode == -9, done.stderr
    for name in (lab.target, other):
        with name.open("r+b") as file:
            file.write(b"N" * (3 * LINE))
    assert lab.recover(status=1)["aside"] == 2
    assert lab.recover("--force", lab.target, status=None)["recovered"] == 1
    assert lab.target.read_bytes() == b"N" * LINE + WHOLE[LINE:]
    assert other.read_bytes() == b"N" * (3 * LINE)
    assert len(put_aside(lab)) == 1
    assert lab.recover("--force", lab.data)["recovered"] == 1
    assert other.read_bytes() == b"N" * LINE + WHOLE[LINE:]


def test_force_for_one_file_leaves_its_namesake_on_another_volume(lab: Lab) -> None:
    """Both are the first file of their file system, and have one inode number."""
    root_only()
    with disk("ext4", lab.base / "one") as one, disk("ext4", lab.base / "two") as two:
        files = [point / "log" for point in (one, two)]
        for name in files:
            name.touch()
        assert files[0].stat().st_ino == files[1].stat().st_ino
        done = subprocess.run(
            [lab.program, "write", "kill", "0", str(COUNT), *files],
            env={**lab.env(staging=one / ".fastwrite"), "FASTWRITE_PATHS": f"{lab.base}/**/log"},
            timeout=60,
            check=False,
            capture_output=True,
        )
        assert done.returncode == -9, done.stderr
        for name in files:
            with name.open("r+b") as file:
                file.write(b"N" * (3 * LINE))
        assert lab.recover(one, status=1)["aside"] == 2
        assert lab.recover("--force", files[0], status=None)["recovered"] == 1
        assert [name.read_bytes()[LINE:] == WHOLE[LINE:] for name in files] == [True, False]
        assert files[1].read_bytes() == b"N" * (3 * LINE)
        assert lab.recover("--force", one)["recovered"] == 1
        assert files[1].read_bytes() == b"N" * LINE + WHOLE[LINE:]


def test_force_for_a_file_that_is_not_there_writes_nothing(lab: Lab) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    lab.recover(status=1)
    (kept,) = put_aside(lab)
    report = lab.recover("--force", lab.data / "lgo", status=1)
    assert report["arenas"] == 0 and "no such file" in report["stderr"], report
    assert lab.target.read_bytes() == b"N" * (3 * LINE)
    assert put_aside(lab) == [kept]


@pytest.mark.parametrize("name", ["data b", "da'ta", "data\nb"])
def test_the_command_that_a_message_names_can_be_pasted(lab: Lab, name: str) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    data = lab.data.rename(lab.base / name)
    report = lab.recover(data, status=1)
    (command,) = re.findall("`(fastwrite .*?)` writes", report["events"][0]["detail"])
    env = {**os.environ, "PATH": f"{lab.command.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done
    assert (data / lab.target.name).read_bytes() == b"N" * LINE + WHOLE[LINE:]


def test_force_for_no_name_writes_nothing(lab: Lab) -> None:
    """A variable of a script that is not set: the command does not take the working directory for it."""
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    lab.recover(status=1)
    (kept,) = put_aside(lab)
    command = [lab.command, "recover", "--force", ""]
    done = subprocess.run(command, cwd=lab.data, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "an empty PATH: no such file" in done.stderr, done
    assert lab.target.read_bytes() == b"N" * (3 * LINE)
    assert put_aside(lab) == [kept]


@pytest.mark.parametrize("dots", [".//", "././/", ".///./"])
def test_slashes_behind_a_dot_make_no_other_path(lab: Lab, dots: str) -> None:
    lab.leave()
    command = [lab.command, "recover", f"{dots}{lab.data.name}"]
    done = subprocess.run(
        command, cwd=lab.data.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0 and "recovered" in done.stdout, done
    assert lab.target.read_bytes() == WHOLE


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("given", ["aside", "aside/", "ARENA", "in aside", "of aside"])
def test_what_was_put_aside_stays_there_however_it_is_named(lab: Lab, own: bool, given: str) -> None:
    staging = lab.base / "own" if own else lab.staging
    staging.mkdir(mode=0o700)
    lab.leave(**({"staging": staging} if own else {}))
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    assert actions(lab.recover(staging, status=1)) == ["aside"]
    (kept,) = (staging / "aside").iterdir()
    cwd, path = {
        "aside": (staging, "aside"),
        "aside/": (staging, f"{staging}/aside/"),
        "ARENA": (staging, f"{kept}"),
        "in aside": (kept.parent, f"../aside/{kept.name}"),
        "of aside": (kept.parent, "."),
    }[given]
    command = [lab.command, "recover", path]
    for _ in range(2):
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "aside/aside" not in done.stderr, done.stderr
        assert list(kept.parent.iterdir()) == [kept]
    command.insert(2, "--force")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert lab.target.read_bytes() == b"N" * LINE + WHOLE[LINE:]
    assert lab.recover(staging)["arenas"] == 0


@pytest.mark.parametrize("own", [False, True])
def test_an_orphan_of_what_was_put_aside_is_beside_it(lab: Lab, own: bool) -> None:
    staging = lab.base / "own" if own else lab.staging
    staging.mkdir(mode=0o700)
    lab.leave(**({"staging": staging} if own else {}))
    lab.target.write_bytes(b"N" * (3 * LINE))
    lab.recover(staging, status=1)
    lab.target.unlink()
    assert actions(lab.recover("--force", staging / "aside")) == ["orphaned"]
    assert len(list((staging / "orphans").iterdir())) == 1


def test_a_dry_run_tells_what_will_be_orphaned(lab: Lab) -> None:
    lab.leave()
    lab.target.unlink()
    for how in (("--dry-run",), ()):
        report = lab.recover(*how, lab.data)
        assert actions(report) == ["orphaned"]
        assert (report["orphans"], report["recovered"], report["bytes"]) == (1, 0, STAGED)


def test_an_arena_with_dots_in_its_name(lab: Lab) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    lab.arena().rename(lab.staging / "a..b.arena")
    done = subprocess.run(
        [lab.command, "recover", "a..b.arena"],
        cwd=lab.staging,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    assert f"recover --force {lab.staging}/aside/a..b.arena" in done.stderr


def test_the_next_program_names_what_waits(lab: Lab) -> None:
    lab.leave()
    with lab.target.open("r+b") as file:
        file.write(b"N" * (3 * LINE))
    env = {**lab.env(), "FASTWRITE_LOG": "warn"}
    for _ in range(2):
        done = subprocess.run(
            [lab.program, "append", "exit", "0", "1", lab.data / "another"],
            env=env,
            timeout=60,
            check=True,
            capture_output=True,
            text=True,
        )
        assert f"{lab.target}: {STAGED} bytes" in done.stderr and "--force" in done.stderr, done.stderr


def test_appends_go_behind_what_others_have_appended(lab: Lab) -> None:
    lab.leave(mode="append")
    with lab.target.open("ab") as file:
        file.write(b"others\n")
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == WHOLE[:LINE] + b"others\n" + WHOLE[LINE:]


def test_a_close_that_failed_does_not_come_back(lab: Lab) -> None:
    """Bytes that cannot be written stay in the arena.  The file is written anew without the library and keeps that."""
    root_only()
    staging = lab.base / "staging"
    staging.mkdir(mode=0o700)
    point = lab.data
    run_or_skip("mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=755", "none", point)
    try:
        lab.leave(staging=staging, prealloc_mode="off")
        ballast = point / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        report = lab.recover(staging, status=1)
        assert actions(report) == ["failed"]
        ballast.unlink()
        lab.target.write_bytes(b"written anew\n")
        report = lab.recover(staging, status=1)
        assert actions(report) == ["aside"]
        assert lab.target.read_bytes() == b"written anew\n"
    finally:
        unmount(point)


def test_a_reader_that_changes_nothing_is_no_change(lab: Lab) -> None:
    lab.leave()
    lab.target.read_bytes()
    os.chmod(lab.target, 0o600)
    os.utime(lab.target, ns=(0, lab.target.stat().st_mtime_ns))
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == WHOLE


OVERWRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
def write(byte):
    for at in range(0, 400, 100):
        os.pwrite(fd, byte * 100, at)
write(b'a')
os.fdatasync(fd)
print(flush=True)
sys.stdin.readline()
write(b'b')
os.kill(os.getpid(), 9)
"""


def test_a_time_in_the_future_is_no_file_that_went_back(lab: Lab) -> None:
    """Somebody sets it (cp -p, tar, rsync -t), and the next time is older than the one that the arena has noted."""
    lab.data.mkdir(exist_ok=True)
    lab.target.write_bytes(b"0" * 1000)
    with subprocess.Popen(
        [sys.executable, "-c", OVERWRITER, lab.target],
        env=lab.env(adapt="off"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        program.stdout.readline()
        future = time.time() + 1e6
        os.utime(lab.target, (future, future))
        program.communicate("\n", timeout=60)
    assert program.returncode == -9
    assert lab.target.read_bytes()[:100] == b"a" * 100  # the rest is staged
    with lab.target.open("r+b") as file:
        file.write(b"n" * 400)
    assert actions(lab.recover(status=1)) == ["aside"]
    assert lab.target.read_bytes() == b"n" * 400 + b"0" * 600


# ---- other boots and mounts ----


def test_another_boot_id_of_the_same_kernel(lab: Lab) -> None:
    root_only()
    lab.leave()
    done = other_id(lab, lab.command, "recover", lab.data)
    assert done.returncode == 0, done.stderr
    assert lab.target.read_bytes() == WHOLE


@pytest.mark.parametrize("mounts", [False, True])
def test_the_wall_clock_was_set_between_the_kill_and_the_recovery(lab: Lab, mounts: bool) -> None:
    """As by the first answer of a time server after the boot; perhaps in the next container."""
    root_only()
    lab.leave(mode="write", sync="ordered", writers="exclusive")
    done = rebooted(lab, same_id=True, mounts=mounts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lab.target.read_bytes() == WHOLE
    assert not lab.staging.exists()


@pytest.mark.parametrize("mode", ["write", "append"])
def test_intact_bytes_come_back_after_another_boot(lab: Lab, mode: str) -> None:
    """An orderly reboot loses nothing: neither what was in the page cache nor what was staged."""
    root_only()
    lab.leave(mode=mode)
    done = rebooted(lab)
    assert done.returncode == 0, done.stdout + done.stderr
    assert lab.target.read_bytes() == WHOLE
    assert not lab.staging.exists()


@pytest.mark.parametrize("mode", ["write", "append"])
def test_after_another_boot_a_changed_file_keeps_what_it_has(lab: Lab, mode: str) -> None:
    root_only()
    lab.leave(mode=mode)
    with lab.target.open("ab") as file:
        file.write(b"newer")
    before = lab.target.read_bytes()
    done = rebooted(lab)
    assert "another boot" in done.stderr, done.stdout + done.stderr
    assert lab.target.read_bytes() == before
    assert len(put_aside(lab)) == 1


@pytest.mark.parametrize("how", ["device", "path", "both"])
def test_the_volume_is_mounted_elsewhere(lab: Lab, volume: Callable[..., Path], how: str) -> None:
    point = volume()
    lab.leave()
    image = lab.base / "disk" / "image"
    other = lab.base / "other"
    unmount(point)
    with mounted_at(image, point if how == "device" else other) as place:
        if how == "both":
            with mounted_at(image, lab.base / "third") as third:
                use(lab, third)
                report = lab.recover()
        else:
            use(lab, place)
            report = lab.recover()
        assert actions(report) == ["recovered"], report
        assert (place / "data" / "log").read_bytes() == WHOLE
        assert not (place / "data" / ".fastwrite").exists()
    run_or_skip("mount", image, point)  # for the end of the fixture


def test_an_unrelated_program_of_another_mount_moves_nothing(lab: Lab, volume: Callable[..., Path]) -> None:
    """With a separate staging directory the arena names a path that does not exist here: it is left alone."""
    point = volume()
    staging = lab.base / "staging"
    staging.mkdir(mode=0o700)
    lab.leave(staging=staging)
    image = lab.base / "disk" / "image"
    unmount(point)
    for how in (("--dry-run",), ()):
        report = lab.recover(*how, staging, status=1)
        assert actions(report) == ["failed"] and "not there" in report["events"][0]["detail"], report
    assert len(list(staging.glob("*.arena"))) == 1 and not (staging / "orphans").exists()
    run_or_skip("mount", image, point)
    assert lab.recover(staging)["recovered"] == 1
    assert lab.target.read_bytes() == WHOLE


def test_a_copy_of_the_volume_recovers_itself(lab: Lab, volume: Callable[..., Path]) -> None:
    point = volume()
    lab.leave()
    image, copy = lab.base / "disk" / "image", lab.base / "copy"
    subprocess.run(["sync", "-f", str(point)], check=True)
    shutil.copyfile(image, copy)
    original = lab.target
    before = original.read_bytes()
    with mounted_at(copy, lab.base / "beside") as beside:
        use(lab, beside)
        lab.recover(status=None)
        assert original.read_bytes() == before, "the copy's recovery wrote into the original"
        assert lab.target.read_bytes() == WHOLE
    use(lab, point)
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == WHOLE


def test_without_birth_times_a_reused_inode_gets_nothing(lab: Lab, volume: Callable[..., Path]) -> None:
    volume("ext4", "-I", "128")
    for attempt in range(20):
        lab.leave()
        ino = lab.target.stat().st_ino
        mtime = lab.target.stat().st_mtime_ns
        lab.target.unlink()
        lab.target.write_bytes(b"X" * LINE)  # as long as the old one was
        os.utime(lab.target, ns=(mtime, mtime))
        if lab.target.stat().st_ino == ino:
            break
        lab.recover()
        lab.target.unlink()
        shutil.rmtree(lab.staging, ignore_errors=True)
        (lab.data / f"keeps-{attempt}").touch()
    else:
        pytest.skip("the file system gave no number anew")
    report = lab.recover()
    assert actions(report) == ["orphaned"], report
    assert lab.target.read_bytes() == b"X" * LINE


def test_snapshot_beside_a_living_program(lab: Lab, volume: Callable[..., Path]) -> None:
    """The pid is that of a process that lives, but it has the original open, not the copy of the device."""
    point = volume()
    program = subprocess.Popen(
        [lab.program, "write", "pause", "0", str(COUNT), lab.target], env=lab.env(), stdout=subprocess.PIPE
    )
    try:
        assert program.stdout.readline() == b"ready\n"
        copy = lab.base / "copy"
        run_or_skip("fsfreeze", "--freeze", point)
        try:
            shutil.copy(lab.base / "disk" / "image", copy)
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", point], check=True)
        with mounted_at(copy, lab.base / "mounted") as snapshot:
            report = lab.recover(snapshot / "data")
            assert actions(report) == ["recovered"]
            assert (snapshot / "data" / "log").read_bytes() == WHOLE
            assert not (snapshot / "data" / ".fastwrite").exists()
        assert actions(lab.recover()) == ["live"]
        assert lab.target.stat().st_size == LINE
    finally:
        program.kill()
        program.wait()
        program.stdout.close()
    assert lab.recover()["recovered"] == 1
    assert lab.target.read_bytes() == WHOLE


def test_a_forced_shutdown_and_a_new_mount_in_one_boot(lab: Lab, volume: Callable[..., Path]) -> None:
    """Like a loss of power: the arena may be older than what was synced, so it is checked first."""
    point = volume()
    lab.leave()
    subprocess.run(["sync", "-f", str(point)], check=True)  # (both file and arena)
    with lab.target.open("r+b") as file:
        file.write(b"S" * (3 * LINE))
        file.flush()
        os.fsync(file.fileno())
    shut_down(point)
    image = lab.base / "disk" / "image"
    unmount(point)
    with mounted_at(image, lab.base / "again") as again:
        use(lab, again)
        report = lab.recover(status=None)
        assert lab.target.read_bytes()[: 3 * LINE] == b"S" * (3 * LINE), report
        assert actions(report) == ["aside"]
    run_or_skip("mount", image, point)


def test_the_arena_tells_its_origin(lab: Lab) -> None:
    """The boot time by the clocks, and the device of the arena."""
    lab.leave()
    header = lab.arena().read_bytes()[:4096]
    (boot_ns,) = struct.unpack_from("<q", header, 80)
    major_minor = struct.unpack_from("<Q", header, 104)[0]
    st = lab.arena().stat()
    now = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    # (a clock is read after the other one, perhaps much later, and may be slewed)
    assert abs(boot_ns - now) < 1_000_000_000
    assert (major_minor >> 32, major_minor & 0xFFFFFFFF) == (os.major(st.st_dev), os.minor(st.st_dev))


# ---- paths ----


def test_no_magic_link_is_followed(lab: Lab) -> None:
    """A path through /proc may lead to any file that the recovering process has open."""
    lab.leave()
    content = bytearray(lab.arena().read_bytes())
    (slots_at,) = struct.unpack_from("<Q", content, 48)
    path = b"/proc/self/cwd/log\0"
    content[slots_at + 88 : slots_at + 92] = bytes(4)
    content[slots_at + 232 : slots_at + 232 + len(path)] = path
    lab.arena().write_bytes(content)
    before = lab.target.read_bytes()
    done = subprocess.run(
        [lab.command, "recover", lab.data],
        cwd=lab.data,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert lab.target.read_bytes() == before


@pytest.mark.parametrize("mode", ["write", "append"])
def test_recovery_changes_no_time_when_it_gives_space_back(lab: Lab, mode: str) -> None:
    """Cutting off reserved space leaves no trace: the file keeps the time of its last write."""
    before_ns = time.time_ns() - 10**9
    lab.leave(mode=mode)
    assert lab.recover()["recovered"] == 1
    st = lab.target.stat()
    assert st.st_blocks * 512 < 1 << 16, "the space was not given back"
    assert before_ns < st.st_mtime_ns <= time.time_ns()
