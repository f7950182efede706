# SPDX-License-Identifier: Apache-2.0
"""What lies below a directory, layer by layer: mounts, overlays, partitions, dm, md, loop devices, disks.

Used by doctor_probes and doctor. Nothing here judges.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.environment import Mount, mount_of
from harness.core.model import LabError
from harness.doctor.system import System

EXT = ("ext2", "ext3", "ext4")
MEMORY = ("tmpfs", "ramfs", "devtmpfs")
COPIES = ("btrfs", "bcachefs", "zfs", "nilfs2")  # as arena.c has them
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs", "fuse.sshfs", "fuse.glusterfs")
DEPTH_MAX = 16


@dataclass(frozen=True)
class Volume:
    """A mounted file system. options are those in force, defaults included where the kernel tells them
    (`complete`); an option without a value maps to "". features: of the super block, None when unknown, and why."""

    mount: Mount
    options: dict[str, str]
    complete: bool
    device: str | None
    features: tuple[str, ...] | None = None
    why_no_features: str = ""
    journal_bytes: int | None = None

    @property
    def kind(self) -> str:
        return self.mount.filesystem

    @property
    def in_memory(self) -> bool:
        return self.kind in MEMORY

    def on(self, name: str, default: bool) -> bool:
        """A switch that is written NAME, NAME=1 or noNAME."""
        if f"no{name}" in self.options:
            return False
        return self.options[name] != "0" if name in self.options else default

    def journaled(self) -> bool | None:
        """Whether ext4 has a journal: it names a data mode only then. None = not to be known."""
        if self.features is not None:
            return "has_journal" in self.features
        return "data" in self.options if self.complete else None

    def flushes(self) -> bool | None:
        """Whether a sync flushes the disk's cache. None: there is no disk of this machine."""
        if self.options.get("fsync_mode") == "nobarrier":
            return False
        return self.on("barrier", True) if self.device else None


@dataclass(frozen=True)
class Device:
    """A block device with a request queue. `leaf`: nothing of this machine is below it."""

    name: str
    leaf: bool

    @property
    def queue(self) -> str:
        return f"/sys/class/block/{self.name}/queue"

    @property
    def in_memory(self) -> bool:
        return re.match(r"z?ram\d", self.name) is not None


@dataclass
class Stack:
    """From the directory down. layers: (depth, what, detail); volumes[main] is the one that stores the data."""

    layers: list[tuple[int, str, str]] = field(default_factory=list)
    volumes: list[Volume] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    main: int = 0
    hidden_upper: bool = False
    lost: bool = False

    @property
    def volume(self) -> Volume:
        return self.volumes[self.main]

    @property
    def top(self) -> Volume:
        return self.volumes[0]

    @property
    def below(self) -> list[Volume]:
        """File systems that hold an image of the one above."""
        return self.volumes[self.main + 1 :]

    @property
    def leaves(self) -> list[Device]:
        return [device for device in self.devices if device.leaf]

    def note(self, depth: int, what: str, detail: str = "") -> None:
        self.layers.append((depth, what, detail))


def follow(system: System, directory: Path) -> Stack:
    """LabError when not even the mount is found."""
    info = system.read("/proc/self/mountinfo")
    if info is None:
        raise LabError(f"/proc/self/mountinfo: {system.unread['/proc/self/mountinfo']}")
    return _Walk(system, info).of(directory)


def follow_device(system: System, path: Path) -> Stack:
    """The same from a block device down."""
    walk = _Walk(system, system.read("/proc/self/mountinfo") or "")
    walk.node(path, 0)
    return walk.stack


class _Walk:
    def __init__(self, system: System, mountinfo: str) -> None:
        self.system, self.mountinfo, self.stack = system, mountinfo, Stack()
        self.seen: set[str] = set()

    def of(self, directory: Path) -> Stack:
        self.mount(directory, 0)
        if not self.stack.volumes:
            raise LabError(f"{directory}: no mount of /proc/self/mountinfo holds it")
        return self.stack

    def mount(self, path: Path, depth: int) -> None:
        found = mount_of(path, self.mountinfo)
        if found is None or depth > DEPTH_MAX:
            self.stack.lost = True
            return
        names = self.block(found)
        device = names[0] if names else None
        self.stack.note(depth, found.filesystem, f"{found.source} on {found.point}")
        volume = self.volume(found, device)
        self.stack.volumes.append(volume)
        if found.filesystem == "overlay":
            self.overlay(volume, depth)
        for name in names:
            self.device(name, depth + 1)
        if external := volume.options.get("logdev"):
            self.node(Path(external), depth + 1)

    def overlay(self, volume: Volume, depth: int) -> None:
        upper = volume.options.get("upperdir", "")
        if upper.startswith("/") and self.system.exists(upper):
            self.stack.main = len(self.stack.volumes)
            self.mount(Path(upper), depth + 1)
        else:
            self.stack.hidden_upper = True

    def block(self, found: Mount) -> list[str]:
        """Names of the block devices of a mount. A file system of several devices has a number of its own."""
        at = f"/sys/dev/block/{found.device}"
        if self.system.exists(at):
            return [self.system.resolve(at).name]
        if not found.source.startswith("/dev/"):
            return []
        name = self.system.resolve(found.source).name
        for identity in self.system.names("/sys/fs/btrfs"):
            members = self.system.names(f"/sys/fs/btrfs/{identity}/devices")
            if name in members:
                return members
        return [name] if self.system.exists(f"/sys/class/block/{name}") else []

    def node(self, path: Path, depth: int) -> None:
        self.device(self.system.resolve(path).name, depth)

    def device(self, name: str, depth: int) -> None:
        at = f"/sys/class/block/{name}"
        if not self.system.exists(at) or depth > DEPTH_MAX:
            self.stack.lost = True
            self.stack.note(depth, "device", f"{name} (not in /sys/class/block)")
            return
        again = name in self.seen
        self.seen.add(name)
        what, detail = self.describe(at)
        self.stack.note(depth, what, f"{name} {detail}".rstrip() + (" (see above)" if again else ""))
        if again:
            return
        slaves = self.system.names(f"{at}/slaves")
        backing = self.system.read(f"{at}/loop/backing_file", needed=False)
        partition = self.system.exists(f"{at}/partition")
        if self.system.exists(f"{at}/queue"):
            self.stack.devices.append(Device(name, not slaves and backing is None))
        if partition:
            self.device(self.system.resolve(at).parent.name, depth + 1)
        for slave in slaves:
            self.device(slave, depth + 1)
        if backing is not None:
            self.backing(backing, depth + 1)

    def backing(self, path: str, depth: int) -> None:
        if path.endswith(" (deleted)"):
            self.stack.note(depth, "file", path)
            self.stack.lost = True
        elif path.startswith("/dev/") and self.system.exists(
            f"/sys/class/block/{self.system.resolve(path).name}"
        ):
            self.node(Path(path), depth)
        else:
            self.stack.note(depth, "file", path)
            self.mount(Path(path), depth + 1)

    def describe(self, at: str) -> tuple[str, str]:
        """Kind of a block device, and what distinguishes it."""
        read = self.system.read
        if self.system.exists(f"{at}/partition"):
            return "partition", ""
        if (backing := read(f"{at}/loop/backing_file", needed=False)) is not None:
            return "loop device", f"on {backing}"
        if (level := read(f"{at}/md/level", needed=False)) is not None:
            return "md", level
        if (name := read(f"{at}/dm/name", needed=False)) is not None:
            subsystem = (read(f"{at}/dm/uuid", needed=False) or "").split("-")[0]
            return "dm", f"{name} {subsystem}".rstrip()
        model = read(f"{at}/device/model", needed=False)
        return "disk", model or ""

    def volume(self, found: Mount, device: str | None) -> Volume:
        options = _options(found.options.split(","))
        complete, features, journal_bytes = False, None, None
        command: tuple[str, ...] = ()
        if found.filesystem in EXT and device:
            shown = self.system.read(f"/proc/fs/ext4/{device}/options")
            complete = shown is not None
            options = {**options, **_options((shown or "").split())}
            command = ("dumpe2fs", "-h", f"/dev/{device}")
            features, journal_bytes = _ext_super(self.system.tool(*command))
        elif found.filesystem == "xfs" and device:
            command = ("xfs_info", found.point)
            features = _xfs_super(self.system.tool(*command))
        why = self.system.unread.get(" ".join(command), "")
        return Volume(found, options, complete, device, features, why, journal_bytes)


def _options(words: list[str]) -> dict[str, str]:
    out = {}
    for word in words:
        name, _, value = word.partition("=")
        if name:
            out[name] = value
    return out


def _ext_super(text: str | None) -> tuple[tuple[str, ...] | None, int | None]:
    """Features, and bytes of the journal when it is inside."""
    if text is None:
        return None, None
    listed = re.search(r"^Filesystem features:\s+(.*)$", text, re.MULTILINE)
    size = re.search(r"^(?:Total journal size|Journal size):\s+(\d+)([kMG]?)", text, re.MULTILINE)
    unit = {"": 1, "k": 2**10, "M": 2**20, "G": 2**30}
    return (
        tuple(listed[1].split()) if listed else None,
        int(size[1]) * unit[size[2]] if size else None,
    )


def _xfs_super(text: str | None) -> tuple[str, ...] | None:
    """From xfs_info: the switches that are on, and the place of the log."""
    if text is None:
        return None
    switches = re.findall(r"\b(crc|finobt|sparse|rmapbt|reflink|bigtime|inobtcount|lazy-count)=1\b", text)
    log = re.search(r"^log\s+=(\S+).*?bsize=(\d+)\s+blocks=(\d+)", text, re.MULTILINE)
    size = [f"log={log[1]}:{int(log[2]) * int(log[3]) // 2**20}MiB"] if log else []
    return tuple(switches + size)
