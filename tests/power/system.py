# SPDX-License-Identifier: Apache-2.0
"""Mounts, loop devices and namespaces.  Everything happens in a mount and pid namespace of its own, on a tmpfs of its
own, and with loop devices that go with their mount: when the driver ends, in any way, the kernel takes it all away."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from lib.rebooted import started_as_before, started_now

PLACE = Path("/mnt")  # ours within the namespace
DISK = (
    PLACE / "disk"
)  # where the file system under test is mounted, always: recovery knows files by their path
FUSE = PLACE / "fuse"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOATIME, MS_BIND, MS_REC, MS_PRIVATE = 1024, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR = 0x4C82, 0x4C0A, 4
BLKFLSBUF = 0x1261
SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2  # FS_IOC_SHUTDOWN, EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)
UMOUNT_PATIENCE_SECONDS = 20

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    r = getattr(libc, name)(*arguments)
    if r < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return r


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    call(
        "mount",
        source.encode(),
        str(target).encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


def umount(target: Path, flags: int = 0) -> None:
    """Waits for those who are about to leave."""
    limit = time.monotonic() + UMOUNT_PATIENCE_SECONDS
    while True:
        try:
            call("umount2", str(target).encode(), flags)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > limit:
                raise
        time.sleep(0.002)


def members_of(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    members = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # behind the name, which may have spaces: state, parent, group
            state, _, its_group, *_ = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_group) == group and state not in "ZX":
            members.append(int(entry.parent.name))
    return members


def end_group(group: int) -> None:
    """Kills the processes of a group, and waits until each has ended.  A child that has just been started does not
    die with its parent yet, and would go on with the files of the next mount."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    while members_of(group):
        time.sleep(0.001)


def die_with_parent() -> None:
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def missing() -> str:
    """Why this machine cannot run the tests; empty when it can."""
    if os.geteuid() != 0:
        return "only root may mount file systems"
    for path in ("/dev/fuse", "/dev/loop-control"):
        if not os.access(path, os.R_OK | os.W_OK):
            return f"{path} cannot be opened"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        os.close(os.open("/dev/loop-control", os.O_RDWR))
    except OSError as error:
        return f"no FUSE or no loop devices: {error}"
    for program in ("mkfs.ext4", "mkfs.xfs"):
        if not shutil.which(program):
            return f"{program} is missing (make deps)"
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 else 1)
    return "" if os.waitpid(pid, 0)[1] == 0 else "namespaces cannot be made here"


def contained(main: Callable[[], int]) -> int:
    """Runs `main` in namespaces of its own, as their first process; its exit status."""
    call("unshare", CLONE_NEWNS | CLONE_NEWPID)
    outside = os.getpid()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        die_with_parent()
        os.setpgid(0, 0)  # a terminal's Ctrl-C comes once, by way of the parent
        code = 1
        try:
            if os.getppid() not in (0, outside):
                os._exit(1)
            mount("none", Path("/"), None, MS_REC | MS_PRIVATE)
            mount("proc", Path("/proc"), "proc")
            mount("tmpfs", PLACE, "tmpfs", 0, "mode=0711,size=80%")  # (servers run as users of their own)
            for path in (DISK, FUSE):
                path.mkdir()
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
            code = main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = 130
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Loop:
    """A loop device over a file; the kernel frees it when we and the mount have let go of it."""

    def __init__(self, image: Path) -> None:
        self.fd = -1
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
        try:
            while self.fd < 0:
                number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
                fd = self._open(f"/dev/loop{number}")
                info = struct.pack("=QQQQQIIII64s64s32sQQ", *[0] * 8, LO_FLAGS_AUTOCLEAR, b"", b"", b"", 0, 0)
                try:
                    fcntl.ioctl(fd, LOOP_CONFIGURE, struct.pack("=II", backing, 512) + info + bytes(64))
                    self.fd, self.path = fd, f"/dev/loop{number}"
                except OSError as error:
                    os.close(fd)
                    if error.errno != errno.EBUSY:  # somebody else was quicker
                        raise
        finally:
            os.close(backing)
            os.close(control)

    @staticmethod
    def _open(path: str) -> int:
        limit = time.monotonic() + UMOUNT_PATIENCE_SECONDS
        while True:
            try:
                return os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENXIO, errno.EBUSY) or time.monotonic() > limit:
                    raise
            time.sleep(0.002)

    def forget(self) -> None:
        """The image was changed behind the device."""
        fcntl.ioctl(self.fd, BLKFLSBUF, 0)

    def close(self) -> None:
        os.close(self.fd)


@contextlib.contextmanager
def loop(image: Path) -> Iterator[Loop]:
    device = Loop(image)
    try:
        yield device
    finally:
        device.close()


@contextlib.contextmanager
def mounted(device: Loop, kind: str) -> Iterator[Path]:
    """The file system on the device, at DISK."""
    # two disks of one origin may be there at a time
    mount(device.path, DISK, kind, 0, "nouuid" if kind == "xfs" else "")
    try:
        yield DISK
    finally:
        umount(DISK)


@contextlib.contextmanager
def another_boot() -> Iterator[None]:
    """Programs that are started meanwhile take the kernel for another one, with another id, started at another
    time."""
    identity = PLACE / "boot_id"
    identity.write_text(f"{uuid.uuid4()}\n")
    before = BOOT_ID.read_text()
    mount(str(identity), BOOT_ID, None, MS_BIND)
    started_now()
    try:
        assert BOOT_ID.read_text() != before
        yield
    finally:
        started_as_before()
        umount(BOOT_ID, MNT_DETACH)


def shut_down(directory: Path) -> None:
    """Nothing reaches the disk from now on: neither data nor the file system's log."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("=I", NO_LOG_FLUSH))
    finally:
        os.close(fd)
