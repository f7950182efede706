# SPDX-License-Identifier: Apache-2.0
"""Small file systems of their own for tests that fill or break one: images on loop devices, and tmpfs."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20
# mkfs.xfs refuses less than 300 MiB unless these are set
SMALL_XFS = {"TEST_DIR": "1", "TEST_DEV": "1", "QA_CHECK_FS": "1"}
MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "--mixed"],
}
SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
SHUTDOWN_NO_FLUSH = 2


def run_or_skip(*command: str | Path, **env: str) -> None:
    """A tool that is missing, or a kernel that lacks something, is no failure of the library."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env},
        )
    except FileNotFoundError:
        pytest.skip(f"{command[0]} is not installed")
    if done.returncode != 0:
        pytest.skip(f"{command[0]}: {(done.stderr or done.stdout).strip()}")


def device_of(point: Path) -> str:
    """What is mounted there."""
    found = subprocess.run(
        ["findmnt", "-no", "SOURCE", str(point)], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def remount(point: Path, repair: bool = False) -> None:
    """Unmounts a file system that has failed, and mounts it anew: the same device, as after a repair."""
    device = device_of(point)
    for _ in range(50):
        subprocess.run(["umount", str(point)], check=True)
        if repair:
            subprocess.run(["e2fsck", "-fy", device], capture_output=True, check=False)
        run_or_skip("mount", device, point)
        try:
            (point / "probe").touch()
            (point / "probe").unlink()
            return
        except OSError:
            time.sleep(0.2)
    pytest.skip("somebody else's mount namespace keeps the failed file system alive")


def unmount_at_last(point: Path) -> None:
    """Also when a test has failed and left a program that uses it."""
    if subprocess.run(["umount", str(point)], capture_output=True, check=False).returncode != 0:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


@contextmanager
def disk(kind: str, place: Path, size: int = 64 * MIB, options: str = "", *make: str) -> Iterator[Path]:
    """A file system of `kind` and `size`, mounted below `place`, gone at the end; the image is place/image."""
    if os.geteuid() != 0:
        pytest.skip("needs root for mounting")
    place.mkdir(exist_ok=True)
    image, point = place / "image", place / "mounted"
    device = None
    point.mkdir()
    if kind == "tmpfs":
        run_or_skip("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", point)
    else:
        with image.open("wb") as file:
            file.truncate(size)
        run_or_skip(*MAKE[kind], *make, image, **SMALL_XFS)
        # not by `mount -o loop`: it must be the same device when it is mounted again
        made = subprocess.run(
            ["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            pytest.skip(f"losetup: {made.stderr.strip()}")
        device = made.stdout.strip()
        run_or_skip("mount", *(["-o", options] if options else []), device, point)
    try:
        yield point
    finally:
        if os.path.ismount(point):
            unmount_at_last(point)
        if device:
            subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)
        image.unlink(missing_ok=True)


def shut_down(point: Path) -> None:
    """From now on the file system answers EIO, as when its device is gone; nothing more is written."""
    fd = os.open(point, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", SHUTDOWN_NO_FLUSH))
    finally:
        os.close(fd)


def fill_up(point: Path, name: str = "ballast") -> Path:
    """Leaves no block free, nor one that the file system gives back with the next write-back."""
    ballast = point / name
    with ballast.open("wb", buffering=0) as file:
        before = -1
        while file.tell() > before:
            before = file.tell()
            for size in (MIB, 4096):
                try:
                    while True:
                        file.write(b"b" * size)
                except OSError as error:
                    assert error.errno == errno.ENOSPC
            os.fsync(file.fileno())
    return ballast
