# SPDX-License-Identifier: Apache-2.0
"""Probes of the machine as a whole: page cache, swap, control groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.core.environment import mounts
from harness.doctor.scene import Reading, Scene, one
from harness.doctor.stack import follow, follow_device
from harness.doctor.system import System
from harness.report.present import byte_count

UNLIMITED = 1 << 60  # version 1 says "no limit" by the largest number of pages
SMALL_GROUP_BYTES = 64 << 20  # a few arenas, and little page cache beside them


# ---- page cache ----


def available_bytes(system: System) -> int | None:
    """What the ratios are shares of, nearly: the kernel takes free memory and page cache less its reserves."""
    for line in (system.read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def threshold(scene: Scene, name: str) -> tuple[float, str, dict] | None:
    """Share of available memory, how it is shown, and the settings themselves."""
    size = scene.system.number(f"/proc/sys/vm/{name}_bytes")
    ratio = scene.system.number(f"/proc/sys/vm/{name}_ratio")
    memory = available_bytes(scene.system)
    if size is None or ratio is None or not memory:
        return None
    data = {"bytes": size, "ratio": ratio, "available_bytes": memory}
    if size:
        return size / memory, f"{byte_count(size)} ({size / memory:.0%})", data
    return ratio / 100, f"{ratio} % (now about {byte_count(memory * ratio / 100)})", data


def dirty_background(scene: Scene) -> Reading | None:
    found, limit = threshold(scene, "dirty_background"), threshold(scene, "dirty")
    if found is None or limit is None:
        return None
    share, value, data = found
    cases = ["very-high" if share >= 1 / 3 else "high" if share > 0.1 else "usual"]
    if share >= limit[0]:
        cases.append("not-below")
    return Reading(value, tuple(cases), data)


DIRTY_LOW_BYTES = 32 << 20


def dirty(scene: Scene) -> Reading | None:
    found = threshold(scene, "dirty")
    if found is None:
        return None
    share, value, data = found
    if share * data["available_bytes"] < DIRTY_LOW_BYTES:
        return one(value, "low", data)
    return one(value, "very-high" if share >= 0.4 else "high" if share > 0.2 else "usual", data)


def centiseconds(scene: Scene, name: str, default: int, long: int) -> Reading | None:
    value = scene.system.number(f"/proc/sys/vm/{name}")
    if value is None:
        return None
    case = "very-long" if value >= long else "long" if value > default else "usual"
    return one(f"{value / 100:g} s", case, value)


def writeback_interval(scene: Scene) -> Reading | None:
    found = centiseconds(scene, "dirty_writeback_centisecs", 500, 3000)
    return one("off", "off", 0) if found and found.data == 0 else found


def dirty_expire(scene: Scene) -> Reading | None:
    return centiseconds(scene, "dirty_expire_centisecs", 3000, 6000)


# ---- memory ----


def swaps(system: System) -> list[tuple[str, str]] | None:
    """(path, kind) of every swap area: kind is partition or file."""
    text = system.read("/proc/swaps")
    if text is None:
        return None
    rows = [line.split() for line in text.splitlines()[1:]]
    return [(row[0].replace("\\040", " "), row[1]) for row in rows if len(row) >= 2]


def swap(scene: Scene) -> Reading | None:
    found = swaps(scene.system)
    if found is None:
        return None
    if not found:
        return one("off", "off", [])
    ours = {device.name for device in scene.stack.leaves}
    same = any(ours & swap_disks(scene.system, path, kind) for path, kind in found)
    return one(", ".join(p for p, _ in found), "same" if same else "on", [p for p, _ in found])


def swap_disks(system: System, path: str, kind: str) -> set[str]:
    stack = follow(system, Path(path)) if kind == "file" else follow_device(system, Path(path))
    return {device.name for device in stack.leaves}


def swappiness(scene: Scene) -> Reading | None:
    value = scene.system.number("/proc/sys/vm/swappiness")
    found = swaps(scene.system)
    if value is None or found is None:
        return None
    return one(value, "no-swap" if not found else "high" if value > 100 else "usual")


@dataclass(frozen=True)
class Group:
    """A control group that this process is in, or one above it."""

    path: str
    version: int


def groups(system: System, controller: str) -> list[Group]:
    """This process's group for a controller and those above it, as far as they are visible, nearest first."""
    info, own = system.read("/proc/self/mountinfo"), system.read("/proc/self/cgroup")
    points: dict[int, str] = {}
    for mount in mounts(info or ""):
        if mount.filesystem == "cgroup" and controller in mount.options.split(","):
            points[1] = mount.point
        elif mount.filesystem == "cgroup2":
            points.setdefault(2, mount.point)
    out = []
    for line in (own or "").splitlines():
        _, names, path = line.split(":", 2)
        version = 1 if controller in names.split(",") else 2 if names == "" else 0
        if version not in points or (version == 2 and 1 in points):
            continue
        base = Path(points[version])
        at = base / path.lstrip("/")
        out += [Group(str(p), version) for p in [at, *at.parents] if p == base or base in p.parents]
    return [group for group in out if system.exists(group.path)]


def cgroup_memory(scene: Scene) -> Reading | None:
    found = groups(scene.system, "memory")
    limits: list[tuple[int, str]] = []
    for group in found:
        names = ("memory.limit_in_bytes",) if group.version == 1 else ("memory.max", "memory.high")
        for name in names:
            text = scene.system.read(f"{group.path}/{name}", needed=False)
            if text and text != "max" and int(text) < UNLIMITED:
                limits.append((int(text), f"{group.path}/{name}"))
    version = found[0].version if found else 2
    words = {"no_limit": "-1" if version == 1 else "max"}
    if not limits:
        name = "memory.limit_in_bytes" if version == 1 else "memory.max"
        return one("none", "none", [], **words, memory_file=f"{found[0].path if found else 'GROUP'}/{name}")
    limit, file = min(limits)
    case = "small" if limit < SMALL_GROUP_BYTES else "limit"
    return one(byte_count(limit), case, {"bytes": limit, "file": file}, **words, memory_file=file)


def cgroup_io(scene: Scene) -> Reading | None:
    numbers = {}
    for device in scene.stack.devices:
        number = scene.system.read(f"/sys/class/block/{device.name}/dev")
        if number:
            numbers[number] = device.name
    found = groups(scene.system, "blkio") + [
        group for group in groups(scene.system, "io") if group.version == 2
    ]
    limits = []
    files = []
    for group in found:
        kinds = ("write_bps", "write_iops", "read_bps", "read_iops")
        names = [f"blkio.throttle.{k}_device" for k in kinds] if group.version == 1 else ["io.max"]
        for name in names:
            file = f"{group.path}/{name}"
            for line in (scene.system.read(file, needed=False) or "").splitlines():
                number, _, rest = line.partition(" ")
                if number in numbers and rest:
                    limits.append(f"{numbers[number]} {name.removeprefix('blkio.throttle.')} {rest}")
                    files.append(file)
    if limits:
        return one("; ".join(limits), "limit", limits, io_file=files[0])
    name = "blkio.throttle.write_bps_device" if found and found[0].version == 1 else "io.max"
    return one("none", "none", [], io_file=f"{found[0].path if found else 'GROUP'}/{name}")
