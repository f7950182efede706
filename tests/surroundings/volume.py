# SPDX-License-Identifier: Apache-2.0
"""A volume that moves: a file system in an image, mounted at one place after the other by ever other devices."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from power import system
from power.workload import FailedError

MIB = 1 << 20
SIZES = {"ext4": 96 * MIB, "xfs": 320 * MIB}
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


def make_image(image: Path, kind: str, *options: str) -> None:
    image.unlink(missing_ok=True)
    with image.open("wb") as file:
        file.truncate(SIZES[kind])
    done = subprocess.run(
        [*MAKE[kind], *options, str(image)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise FailedError(f"{MAKE[kind][0]}: {done.stdout}{done.stderr}")


class Volume:
    """At the end of a `with` it is unmounted; the kernel then frees the loop device."""

    def __init__(self, image: Path, kind: str) -> None:
        self.kind = kind
        self.image = image
        self.device: system.Loop | None = None
        self.point: Path | None = None
        make_image(image, kind)

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, *_: object) -> None:
        if self.point:
            system.umount(self.point, system.MNT_DETACH)
        if self.device:
            self.device.close()
        self.image.unlink(missing_ok=True)

    def unmount(self) -> None:
        """In order, as a volume leaves a node: everything is on the device afterwards."""
        if self.point:
            system.umount(self.point)
            self.point.rmdir()
            self.point = None

    def move(self, point: Path) -> None:
        """To a second node: unmounted, and mounted at another place by another device."""
        self.unmount()
        before = self.device
        self.device = system.Loop(self.image)  # another number, since the one before is still taken
        if before:
            before.close()
        point.mkdir()
        system.mount(self.device.path, point, self.kind)
        self.point = point

    @property
    def device_number(self) -> int:
        return os.stat(self.point).st_dev
