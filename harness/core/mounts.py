# SPDX-License-Identifier: Apache-2.0
"""A fresh file system for each leg: an image file in the work directory, on a loop device, mounted there.

    images/N.img   N MiB, filled with zeros once and used again: what is underneath has its blocks, so that
                   a leg does not measure the allocation of the image
    mount/         where the file system of the leg is mounted; the leg writes into mount/data

Queue settings are set on that loop device only, and set back. Everything is found again from the work
directory's path (/proc/self/mountinfo, /sys/block/loopN/loop/backing_file), so that a start after a kill -9
removes it; only the former queue settings are noted in the marker, before they are changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.core import environment
from harness.core.executor import Command, Completed, Executor
from harness.core.model import LabError, MountSpec, UnavailableError

LOOP_CLR_FD = 0x4C01
CHUNK_BYTES = 4 << 20
UNMOUNT_TRIES, UNMOUNT_PAUSE_SECONDS = 100, 0.05
QUEUE_ORDER = ("scheduler", "nr_requests", "read_ahead_kb")
"""A scheduler brings its own nr_requests, so it comes first."""

MKFS: Mapping[str, tuple[str, ...]] = {
    "ext4": ("-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("-q", "-f", "-K"),
    "btrfs": ("-q", "-f", "-K"),
}
"""No discard: it would take the image's blocks away. Nothing lazy: it would run beside the leg."""

_REFUSED = re.compile(r"unknown filesystem type|wrong fs type|bad option", re.IGNORECASE)


@dataclass
class Mounted:
    """A mounted image. `told` goes into the sample: the settings asked for, and those in force."""

    spec: MountSpec
    point: Path
    loop: str
    device: str
    told: dict = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """How many of the asked settings the kernel refused."""
        told = [self.told.get("remount", {}), *self.told.get("queue", {}).values()]
        return sum(bool(t.get("refused")) for t in told)

    @property
    def data(self) -> Path:
        return self.point / "data"

    @property
    def block_device(self) -> tuple[str, str]:
        """("major:minor", name), as environment.block_device has it."""
        return self.device, self.loop


class Mounts:
    """Makes and removes the mounts of one work directory. `note` records queue settings before a change."""

    def __init__(
        self, executor: Executor, root: Path, note: Callable[[dict], None], sysfs: Path = Path("/sys/block")
    ) -> None:
        self._executor = executor
        self._root = root
        self._note = note
        self._sysfs = sysfs

    def why_not(self, spec: MountSpec) -> str:
        """Why such a mount cannot be made here; "" when it can be tried."""
        if os.geteuid() != 0:
            return "a fresh mount needs root"
        if not Path("/dev/loop-control").exists():
            return "no loop devices here (/dev/loop-control)"
        for program in (f"mkfs.{spec.filesystem}", "losetup", "mount"):
            if shutil.which(program) is None:
                return f"{program} is not installed"
        return ""

    def make(self, spec: MountSpec, mib: int) -> Mounted:
        """A new file system, mounted, with an empty data/. UnavailableError when the kernel does not have it."""
        image = self._image(mib)
        self._run("mkfs", f"mkfs.{spec.filesystem}", *MKFS[spec.filesystem], *spec.mkfs, str(image))
        argv = ("losetup", *(("--direct-io=on",) if spec.direct else ()), "--find", "--show", str(image))
        loop = Path(self._run("losetup", *argv).stdout.strip()).name
        try:
            return self._make_on(loop, image, spec, mib)
        except BaseException:
            self._take_down(loop)
            raise

    def _make_on(self, loop: str, image: Path, spec: MountSpec, mib: int) -> Mounted:
        if backing_file(loop, self._sysfs) != str(image):
            raise LabError(f"{loop} does not stand on {image}")
        device = (self._sysfs / loop / "dev").read_text(encoding="utf-8").strip()
        mounted = Mounted(spec, self._root / "mount", loop, device)
        mounted.point.mkdir(exist_ok=True)
        mounted.told = {
            "filesystem": spec.filesystem,
            "mib": mib,
            "mkfs": list(spec.mkfs),
            "asked": spec.options,
        }
        mounted.told["queue"] = self._set_queue(mounted)
        self._mount(mounted)
        self._remount(mounted)
        found = environment.mount_of(mounted.point)
        mounted.told["options"] = found.options if found else None
        mounted.told["features"] = environment.features(loop)
        mounted.data.mkdir()
        return mounted

    def _take_down(self, loop: str) -> None:
        """After a failure. Queue settings are set back with the rest of the leg."""
        with contextlib.suppress(LabError):
            if os.path.ismount(self._root / "mount"):
                unmount(self._root / "mount")
        detach(loop)

    def cool(self, mounted: Mounted) -> None:
        """Unmount and mount again, with nothing of it in memory: for legs that read what was prepared."""
        unmount(mounted.point)
        drop_cache(self._image_path(mounted.told["mib"]))
        self._mount(mounted)
        self._remount(mounted)

    def _image_path(self, mib: int) -> Path:
        return self._root / "images" / f"{mib}.img"

    def _image(self, mib: int) -> Path:
        path = self._image_path(mib)
        if path.exists() and path.stat().st_size == mib << 20:
            return path
        path.parent.mkdir(exist_ok=True)
        check_free(path.parent, mib << 20)
        making = path.with_suffix(".new")
        zeros = bytes(CHUNK_BYTES)
        with open(making, "wb", buffering=0) as file:
            left = mib << 20
            while left:
                left -= file.write(zeros[:left])
            os.fsync(file.fileno())
        making.rename(path)
        return path

    def _mount(self, mounted: Mounted) -> None:
        spec = mounted.spec
        argv = ["mount", "-t", spec.filesystem]
        if spec.options:
            argv += ["-o", spec.options]
        self._run("mount", *argv, f"/dev/{mounted.loop}", str(mounted.point))

    def _remount(self, mounted: Mounted) -> None:
        """The options that are changed later. A refusal is told; unless it may be, the leg cannot be had."""
        spec = mounted.spec
        if not spec.remount:
            return
        done = self._executor.run(Command(("mount", "-o", f"remount,{spec.remount}", str(mounted.point))))
        said = "" if done.returncode == 0 else _said(done)
        mounted.told["remount"] = {"asked": spec.remount, "refused": said}
        if said and not spec.may_refuse:
            raise UnavailableError(f"remount with {spec.remount}: {said}")

    def _set_queue(self, mounted: Mounted) -> dict:
        """Setting -> value asked for, value before, value now, and the reason when the kernel refused."""
        queue = self._sysfs / mounted.loop / "queue"
        asked = mounted.spec.queue
        before = {name: environment.chosen(queue / name) for name in QUEUE_ORDER}
        told = {name: {"was": before[name], "is": before[name]} for name in QUEUE_ORDER}
        if asked:
            self._note({mounted.loop: before})
        for name in (n for n in QUEUE_ORDER if n in asked):
            refused = set_value(queue / name, str(asked[name]))
            told[name] |= {"asked": str(asked[name]), "refused": refused}
            if refused and not mounted.spec.may_refuse:
                raise UnavailableError(f"{name}={asked[name]} on a loop device: {refused}")
        for name in QUEUE_ORDER:
            told[name]["is"] = environment.chosen(queue / name)
        return told

    def _run(self, what: str, *argv: str) -> Completed:
        done = self._executor.run(Command(argv))
        if done.returncode != 0:
            said = _said(done)
            kind = UnavailableError if what == "losetup" or _REFUSED.search(said) else LabError
            raise kind(f"{what}: {said}")
        return done


def clean(root: Path, queues: Mapping[str, Mapping[str, str]], sysfs: Path = Path("/sys/block")) -> list[str]:
    """Unmount what is mounted below root, set its loop devices' queues back and detach them; what was done.

    queues: loop -> settings as they were before. A loop device that has been given to somebody else meanwhile
    is left alone. LabError when something cannot be unmounted.
    """
    done = []
    for point in mounted_below(root):
        unmount(point)
        done.append(f"mount {point}")
    for loop in sorted(p.name for p in sysfs.glob("loop*")):
        backing = backing_file(loop, sysfs)
        ours = backing is not None and Path(backing).is_relative_to(root)
        if loop in queues and (ours or backing is None):
            for name in QUEUE_ORDER:
                if queues[loop].get(name):
                    set_value(sysfs / loop / "queue" / name, queues[loop][name])
        if ours:
            detach(loop)
            done.append(f"loop device {loop}")
    return done


def mounted_below(root: Path, mountinfo: str | None = None) -> list[Path]:
    """Mount points below a directory (not the directory itself), the last mounted first."""
    points = [Path(mount.point) for mount in environment.mounts(mountinfo)]
    return [p for p in reversed(points) if p != root and p.is_relative_to(root)]


def backing_file(loop: str, sysfs: Path = Path("/sys/block")) -> str | None:
    """The file under a loop device (also one that has been deleted); None when there is none."""
    with contextlib.suppress(OSError):
        return (
            (sysfs / loop / "loop" / "backing_file")
            .read_text(encoding="utf-8", errors="surrogateescape")
            .rstrip("\n")
            .removesuffix(" (deleted)")
        )
    return None


def unmount(point: Path) -> None:
    """LabError when it stays busy for some seconds."""
    libc = ctypes.CDLL(None, use_errno=True)
    error = 0
    for _ in range(UNMOUNT_TRIES):
        if libc.umount2(os.fsencode(point), 0) == 0:
            return
        error = ctypes.get_errno()
        time.sleep(UNMOUNT_PAUSE_SECONDS)
    raise LabError(f"{point}: cannot be unmounted: {os.strerror(error)}")


def detach(loop: str) -> None:
    """The kernel waits until no other program has the device open, such as one that lists all devices."""
    image = backing_file(loop)
    with open(f"/dev/{loop}", "rb", buffering=0) as device:
        with contextlib.suppress(OSError):  # ENXIO: it went with its mount
            fcntl.ioctl(device, LOOP_CLR_FD)
    for _ in range(UNMOUNT_TRIES):
        if image is None or backing_file(loop) != image:
            return
        time.sleep(UNMOUNT_PAUSE_SECONDS)


def drop_cache(path: Path) -> None:
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def check_free(at: Path, need_bytes: float, need_files: int = 0, advice: str = "") -> None:
    """LabError when a file system cannot take that much."""
    found = os.statvfs(at)
    free = found.f_bavail * found.f_frsize
    if free < need_bytes:
        raise LabError(f"{at}: {free / 1e9:.2f} GB free, {need_bytes / 1e9:.2f} GB needed{advice}")
    if found.f_files and found.f_favail < need_files:
        raise LabError(f"{at}: {found.f_favail} free inodes, {need_files} needed")


def set_value(path: Path, value: str) -> str:
    """Write a setting; "" or why the kernel refused it."""
    try:
        path.write_text(value, encoding="utf-8")
    except OSError as error:
        return error.strerror
    return ""


def _said(done: Completed) -> str:
    """What a command complained of, on one line."""
    return " ".join(done.stderr.split())[-300:] or f"exit {done.returncode}"
